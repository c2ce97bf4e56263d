//! Weights repacked for the kernels in use, kept in memory.

use super::{Matrix, Model};
use crate::arena::{Arena, Exhausted};
use crate::format::model::{Tensor, TensorId, TensorKind};
use crate::kernels::{Kernels, Layout, PackedQ8};
use crate::pool::Pool;
use crate::quant::Q8Matrix;

/// Panels that a thread packs at once.
const PIECE_PANELS: usize = 8;

/// A packed copy of every int8 matrix that is multiplied by.
pub(super) struct PackedWeights {
    layout: Layout,
    /// The matrices of each kind, by layer.
    kinds: Vec<(TensorKind, Vec<Arena>)>,
}

impl PackedWeights {
    /// Packs the matrices of `model`; `None` if they are not int8, or `kernels` want them as they
    /// are.
    pub(super) fn new(
        model: &Model,
        kernels: &Kernels,
        pool: &Pool,
    ) -> Result<Option<PackedWeights>, Exhausted> {
        let Some(layout) = kernels.layout() else { return Ok(None) };
        let is_read =
            |id: TensorId| id.kind != TensorKind::Embedding || model.header().shared_classifier;
        let mut kinds: Vec<(TensorKind, Vec<Arena>)> = Vec::new();
        for Tensor { id, .. } in model.header().tensors().filter(|tensor| is_read(tensor.id)) {
            if id.kind.is_norm() {
                continue;
            }
            let Matrix::Q8(w) = model.matrix(id.kind, id.layer) else { return Ok(None) };
            let Some(bytes) = layout.bytes_q8(w.rows(), w.k(), w.group()) else { return Ok(None) };
            let packed = pack(kernels, pool, layout, w, bytes)?;
            match kinds.last_mut() {
                Some((kind, layers)) if *kind == id.kind => layers.push(packed),
                _ => kinds.push((id.kind, vec![packed])),
            }
        }
        Ok(Some(PackedWeights { layout, kinds }))
    }

    /// The packed matrix of `kind` in `layer`, `[rows, k]`, if there is one.
    pub(super) fn matrix(
        &self,
        (kind, layer): (TensorKind, usize),
        shape: (usize, usize),
        group: usize,
    ) -> Option<Matrix<'_>> {
        let (_, layers) = self.kinds.iter().find(|(of, _)| *of == kind)?;
        let bytes = layers[layer].as_bytes();
        let bytes = &bytes[..self.layout.bytes_q8(shape.0, shape.1, group)?];
        let matrix = PackedQ8::new(bytes, shape, group, self.layout);
        Some(Matrix::PackedQ8(matrix.expect("packed from the same header")))
    }
}

fn pack(
    kernels: &Kernels,
    pool: &Pool,
    layout: Layout,
    w: Q8Matrix<'_>,
    bytes: usize,
) -> Result<Arena, Exhausted> {
    let mut arena = Arena::new(bytes)?;
    let out: &mut [u8] = arena.carver().take("packed weights", bytes)?;
    let piece_rows = PIECE_PANELS * layout.panel_rows();
    let piece_bytes = layout.bytes_q8(piece_rows, w.k(), w.group()).unwrap_or(bytes);
    pool.run_chunks(out, piece_bytes, &|index, out| {
        let start = index * piece_rows;
        kernels.pack_q8(w.slice_rows(start..(start + piece_rows).min(w.rows())), out);
    });
    Ok(arena)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::{KvType, Plan, Row, Transformer};
    use super::*;

    #[test]
    fn packed_weights_give_the_same_logits() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin");
        let model = Arc::new(Model::open(&path).unwrap());
        let rows = |range: std::ops::Range<usize>| -> Vec<Row> {
            let token = |pos: usize| (pos * 37 % 300) as u32;
            range.map(|pos| Row { token: token(pos), stream: 0, pos, wants_logits: true }).collect()
        };
        let plan =
            Plan { ctx_len: 64, max_batch: 32, max_logits: 32, n_streams: 1, kv: KvType::F16 };
        let logits = |kernels: Kernels, pack: bool| {
            let pool = Pool::new(&[0, 0]).unwrap();
            let mut transformer =
                Transformer::new(Arc::clone(&model), kernels, pool, plan).unwrap();
            if pack {
                transformer.pack_weights().unwrap();
                assert_eq!(transformer.is_packed(), kernels.layout().is_some());
            }
            let mut logits = transformer.forward(&rows(0..29)).unwrap().to_vec();
            logits.extend_from_slice(transformer.forward(&rows(29..30)).unwrap());
            logits
        };
        let wanted = logits(Kernels::best(), false);
        for kernels in crate::kernels::Isa::ALL.iter().filter_map(|isa| Kernels::for_isa(*isa)) {
            assert!(logits(kernels, true) == wanted, "{kernels:?}");
        }
    }
}
