//! A model's demand on boards.

use crate::engine::{CTX_LEN_DEFAULT, KvMemory, Options};
use crate::format::model::{Header, Tensor, TensorRole};
use crate::model::{KvKind, Plan, PlanError, Share};
use crate::ring::plan::{Load, Need};

/// Rows of a prompt that go round a ring at once: few enough that all boards have some.
pub(crate) const BATCH: usize = 64;

/// Sizes that users ask for.
pub(crate) struct Asked {
    pub(crate) ctx_len: Option<usize>,
    pub(crate) batch: usize,
    pub(crate) streams: usize,
    pub(crate) kv: Option<KvKind>,
    pub(crate) kv_memory: Option<u64>,
}

impl From<&Options> for Asked {
    /// Sizes of a master that may get a ring.
    fn from(options: &Options) -> Asked {
        Asked {
            ctx_len: options.ctx_len,
            batch: options.batch.unwrap_or(BATCH),
            streams: options.n_streams.unwrap_or(1),
            kv: options.kv,
            kv_memory: match options.kv_memory {
                KvMemory::Bytes(bytes) => Some(bytes),
                _ => None,
            },
        }
    }
}

/// The sizes for a run of a model with this header.
pub(crate) fn sizes(header: &Header, asked: Asked) -> Plan {
    let ctx_len = asked.ctx_len.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT));
    let plan = Plan {
        ctx_len,
        max_batch: asked.batch.min(ctx_len.max(1)),
        max_logits: asked.streams,
        n_streams: asked.streams,
        kv: asked.kv.unwrap_or(KvKind::for_weights(header.weights)),
        kv_pages: None,
    };
    Plan {
        kv_pages: asked.kv_memory.map(|bytes| plan.pages_in(bytes, header, &Share::whole(header))),
        ..plan
    }
}

/// The load of each layer of a model with this header and these sizes.
pub(crate) fn load(header: &Header, plan: &Plan) -> Result<Load, PlanError> {
    // This limit keeps sums over all boards from overflowing.
    if plan.bytes(header, &Share::whole(header))? > usize::MAX / 4 {
        return Err(PlanError::TooLarge);
    }
    let bytes = |layers, has_ends| plan.bytes(header, &Share { layers, has_ends });
    let (every, with_ends) = (bytes(0..0, false)?, bytes(0..0, true)?);
    let mut ends = Need { memory: with_ends.saturating_sub(every) as u64, ..Need::default() };
    // Keys and values, or the states of a recurrent layer.
    let own = |layer: usize| {
        let memory = bytes(layer..layer + 1, false)?.saturating_sub(every) as u64;
        Ok(Need { memory, ..Need::default() })
    };
    let mut layers = (0..header.n_layers).map(own).collect::<Result<Vec<Need>, PlanError>>()?;
    // Boards that share a model's layers leave its block that guesses out.
    for tensor in header.tensors().filter(|tensor| !header.is_of_next(tensor.id)) {
        let need = match tensor.id.kind.is_per_layer() {
            true => &mut layers[tensor.id.layer],
            false => &mut ends,
        };
        need.memory += tensor.bytes;
        need.read += header.bytes_per_token_of(&tensor);
        need.ops += ops(header, &tensor);
    }
    let (row_bytes, joined_from) = (4 * header.row_width() as u64, header.joined_from());
    Ok(Load { layers, ends, every: every as u64, row_bytes, joined_from })
}

/// Operations for one row of activations, in matrices that are multiplied.
fn ops(header: &Header, tensor: &Tensor) -> u64 {
    let is_looked_up = tensor.id.kind.role() == TensorRole::Embedding;
    let is_matrix = !tensor.id.kind.is_vector();
    if !is_matrix || (is_looked_up && !header.is_multiplied(tensor.id.kind)) {
        return 0;
    }
    (2.0 * tensor.rows as f64 * tensor.cols as f64 * header.active_part(tensor.id.kind)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::model::Weights;
    use crate::model::{KvKind, Shape};

    const PLAN: Plan = Plan {
        ctx_len: 2048,
        max_batch: 64,
        max_logits: 1,
        n_streams: 2,
        kv: KvKind::F16,
        kv_pages: None,
    };

    fn load_of(shape: &str) -> (Header, Load) {
        let header = Shape::from_name(shape).unwrap().header(Weights::Q8 { group: 64 });
        let load = load(&header, &PLAN).unwrap();
        (header, load)
    }

    #[test]
    fn states_need_memory_in_the_layers_that_have_them() {
        let (header, load) = load_of("qwen3.5-0.8b");
        let weights = |layer| -> u64 {
            let own = header.tensors().filter(|tensor| tensor.id.kind.is_per_layer());
            own.filter(|tensor| tensor.id.layer == layer).map(|tensor| tensor.bytes).sum()
        };
        let rest = |layer: usize| load.layers[layer].memory - weights(layer);
        // 16 heads of 128 by 128 f32, in two slots of each of two streams and in four checkpoints.
        assert!(header.mixer(0).is_some() && rest(0) > 8 * (16 * 128 * 128 * 4));
        // Two contexts of 2,048 keys and values of two heads, in f16.
        assert!(header.mixer(3).is_none());
        assert_eq!(rest(3), 2 * 2048 * 2 * (2 * 256 * 2));
    }

    #[test]
    fn the_block_behind_the_last_layer_is_no_load() {
        let (plain, wanted) = load_of("qwen3.5-0.8b");
        let mut header = plain;
        header.features.more.has_next = true;
        let found = load(&header, &PLAN).unwrap();
        let needs = |load: &Load| -> Vec<(u64, u64)> {
            load.layers.iter().map(|need| (need.read, need.ops)).collect()
        };
        assert_eq!(needs(&found), needs(&wanted));
        assert_eq!((found.ends.read, found.ends.ops), (wanted.ends.read, wanted.ends.ops));
    }

    #[test]
    fn a_model_is_the_sum_of_its_parts() {
        for shape in ["tinyllama", "qwen3-30b-a3b", "gemma3-1b"] {
            let (header, load) = load_of(shape);
            let all = || load.layers.iter().chain([&load.ends]);
            assert_eq!(all().map(|need| need.read).sum::<u64>(), header.bytes_per_token(|_| true));
            let weights: u64 = header.tensors().map(|tensor| tensor.bytes).sum();
            assert!(all().map(|need| need.memory).sum::<u64>() > weights, "{shape}");
            assert!(load.every > 0 && load.row_bytes == 4 * header.row_width() as u64);
        }
        // 1.1 B weights; the embedding is not multiplied.
        let (_, load) = load_of("tinyllama");
        let ops = load.layers.iter().chain([&load.ends]).map(|need| need.ops).sum::<u64>();
        assert_eq!(ops, 2 * 1_034_420_224);
        // A token uses 3 of the mixture's 30 B weights.
        let (header, load) = load_of("qwen3-30b-a3b");
        let read: u64 = load.layers.iter().map(|need| need.read).sum();
        let all: u64 = header.tensors().map(|tensor| tensor.bytes).sum();
        assert!(read < all / 8, "{read} {all}");
    }
}
