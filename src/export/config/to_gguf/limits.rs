//! Models that no GGUF file says, or that llama.cpp does not compute.

use crate::export::config::family::Family;
use crate::export::config::gguf_keys as keys;
use crate::format::model::{
    Architecture, DeltaRule, DenseLayers, EmbeddingModel, Experts, Features, Header, LayerSet,
    Mixer, RecurrentLayers, RopeScaling,
};

/// Checks that the GGUF file of `family` can say all of a model of `header`, but for what
/// [`check`](super::check) compares.
///
/// # Errors
/// Names what it cannot say.
pub(super) fn check(header: &Header, family: &Family) -> Result<(), String> {
    let Features { experts, long_rope, .. } = &header.features;
    let reads_divisors = matches!(
        header.architecture,
        Architecture::Llama
            | Architecture::Mistral
            | Architecture::Granite
            | Architecture::Granite4
    );
    if matches!(header.rope_scaling, Some(RopeScaling::Llama3 { .. })) && !reads_divisors {
        // Llama.cpp refuses files of other families with their tensor.
        let name = Family::name_of(header);
        return Err(format!("a GGUF file of {name} with Llama 3's RoPE: it cannot say that"));
    }
    let may_recur = matches!(
        family.architecture,
        Architecture::Lfm2 | Architecture::Qwen35 | Architecture::Granite4
    );
    if may_recur && header.features.recurrent.is_none() {
        let name = Family::name_of(header);
        return Err(format!("a GGUF file of {name} without recurrent layers"));
    }
    let has_divisors = header.rope_scaling == Some(RopeScaling::Divisors);
    let what = match experts {
        // Llama.cpp wants both of this family's tensors of divisors.
        None if family.in_gguf() == "phi3" && has_divisors && long_rope.is_none() => {
            "LongRoPE without long texts; take a longer --ctx"
        }
        Some(Experts { is_normalised: false, .. }) => "experts whose weights do not add up to 1",
        Some(_) if has_other_dense_layers(header) => {
            return Err("a GGUF file in which only some layers have experts".to_owned());
        }
        _ if has_other_widths(header) => {
            "recurrent layers whose keys are not as wide as their values"
        }
        _ if has_other_sources(header) => {
            "layers that use keys and values of others than the last two that have their own"
        }
        _ => match header.embedding() {
            Some(EmbeddingModel { is_normalised: false, .. }) => "vectors that keep their length",
            Some(model) if is_other_embedder(model, family) => {
                "dense layers behind pooling, or texts read both ways, in this family"
            }
            _ => return Ok(()),
        },
    };
    Err(format!("a GGUF file of {what}"))
}

/// Whether llama.cpp computes this kind of embedding model in another family alone.
fn is_other_embedder(model: &EmbeddingModel, family: &Family) -> bool {
    let has_dense = model.dense_dim > 0 && family.in_gguf() != "gemma-embedding";
    has_dense || model.is_bidirectional != family.allows(keys::CAUSAL)
}

/// Whether layers lack experts where a GGUF file cannot say so: only LFM2's first ones may.
fn has_other_dense_layers(header: &Header) -> bool {
    header.features.dense.is_some_and(|DenseLayers { layers, .. }| {
        let is_first = |n: usize| LayerSet::new(0..n) == Some(layers);
        header.architecture != Architecture::Lfm2 || !(0..header.n_layers).any(is_first)
    })
}

fn has_other_widths(header: &Header) -> bool {
    header.features.recurrent.is_some_and(|RecurrentLayers { mixer, .. }| match mixer {
        Mixer::DeltaRule(DeltaRule { key_dim, value_dim, .. }) => key_dim != value_dim,
        _ => false,
    })
}

/// Whether layers use keys and values of others than in llama.cpp: of the last layer that has its own if they have no
/// window, and of the one before it if they have one.
fn has_other_sources(header: &Header) -> bool {
    let first_shared = header.n_layers - header.features.more.n_shared_kv;
    (first_shared..header.n_layers).any(|layer| {
        let is_full = header.features.full_layers.contains(layer);
        let behind = if is_full { 1 } else { 2 };
        header.kv_layer(layer) != first_shared.checked_sub(behind)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::model::{FullHeads, MoreFeatures, Pooling, Weights};

    const RULE: DeltaRule = DeltaRule {
        taps: 4,
        key_heads: 2,
        value_heads: 4,
        key_dim: 32,
        value_dim: 32,
        is_tiled: false,
    };

    fn header(architecture: Architecture, features: Features) -> Header {
        Header { architecture, features, n_layers: 6, ..Header::blank(Weights::F32) }
    }

    fn of_rule(rule: DeltaRule) -> Header {
        let (layers, mixer) = (LayerSet::new(0..3).unwrap(), Mixer::DeltaRule(rule));
        let recurrent = Some(RecurrentLayers { layers, mixer });
        header(Architecture::Qwen35, Features { recurrent, ..Features::default() })
    }

    /// A model like Gemma 4 whose full layers are `full`, and of which the last two use others' keys and values.
    fn of_sources(full: [usize; 2]) -> Header {
        let full_heads = Some(FullHeads { head_dim: 32, n_kv_heads: 1 });
        let more = MoreFeatures { full_heads, n_shared_kv: 2, ..MoreFeatures::default() };
        let full_layers = LayerSet::new(full.into_iter()).unwrap();
        header(Architecture::Gemma4, Features { full_layers, more, ..Features::default() })
    }

    const MODEL: EmbeddingModel = EmbeddingModel {
        pooling: Pooling::Last,
        is_normalised: true,
        is_bidirectional: false,
        encoder: None,
        dense_dim: 0,
        first: None,
        last: None,
        prompts: Vec::new(),
    };

    fn of_embedder(model: EmbeddingModel) -> Header {
        header(Architecture::Qwen3, Features { embedding: Some(model), ..Features::default() })
    }

    #[test]
    fn models_that_llama_cpp_does_not_compute_are_refused() {
        let plain = |architecture| header(architecture, Features::default());
        for (header, words) in [
            (of_rule(RULE), None),
            (of_rule(DeltaRule { value_dim: 64, ..RULE }), Some("are not as wide")),
            (plain(Architecture::Qwen35), Some("qwen3_5_text without recurrent layers")),
            (plain(Architecture::Lfm2), Some("lfm2 without recurrent layers")),
            // Without recurrent layers and experts, it is Granite.
            (plain(Architecture::Granite4), None),
            (of_sources([3, 5]), None),
            (of_sources([2, 5]), Some("keys and values of others")),
            (of_embedder(MODEL), None),
            (of_embedder(EmbeddingModel { is_normalised: false, ..MODEL }), Some("their length")),
            (of_embedder(EmbeddingModel { dense_dim: 64, ..MODEL }), Some("dense layers behind")),
        ] {
            let found = check(&header, Family::written(&header).unwrap());
            let is_wanted = match (&found, words) {
                (Err(what), Some(words)) => what.contains(words),
                (Ok(()), None) => true,
                _ => false,
            };
            assert!(is_wanted, "{found:?}, wanted {words:?}");
        }
    }
}
