//! What each kind of checkpoint calls its tensors, and how it orders their rows.
//!
//! A row of [`names`] for each kind of tensor stands beside the table in
//! [`format::model`](crate::format::model), which says everything else.

use crate::format::model::{RowOrder, TensorId, TensorKind};

/// How a checkpoint names its tensors.
#[derive(Clone, Copy)]
pub(super) enum Naming {
    HuggingFace,
    Meta,
    Gguf,
}

/// What GGUF files divide RoPE frequencies by.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Hugging Face's, Meta's and GGUF's name, behind that of the layer if each layer has one.
fn names(kind: TensorKind) -> [&'static str; 3] {
    match kind {
        TensorKind::AttentionNorm => ["input_layernorm", "attention_norm", "attn_norm"],
        TensorKind::FfnNorm => ["post_attention_layernorm", "ffn_norm", "ffn_norm"],
        TensorKind::FinalNorm => ["model.norm", "norm", "output_norm"],
        TensorKind::Embedding => ["model.embed_tokens", "tok_embeddings", "token_embd"],
        TensorKind::Wq => ["self_attn.q_proj", "attention.wq", "attn_q"],
        TensorKind::Wk => ["self_attn.k_proj", "attention.wk", "attn_k"],
        TensorKind::Wv => ["self_attn.v_proj", "attention.wv", "attn_v"],
        TensorKind::Wo => ["self_attn.o_proj", "attention.wo", "attn_output"],
        TensorKind::W1 => ["mlp.gate_proj", "feed_forward.w1", "ffn_gate"],
        TensorKind::W2 => ["mlp.down_proj", "feed_forward.w2", "ffn_down"],
        TensorKind::W3 => ["mlp.up_proj", "feed_forward.w3", "ffn_up"],
        TensorKind::Classifier => ["lm_head", "output", "output"],
    }
}

impl Naming {
    /// The name of tensor `id`.
    pub(super) fn name(self, TensorId { kind, layer }: TensorId) -> String {
        let (layers, name) = (self.layers(), self.name_in_layer(kind));
        match kind.is_per_layer() {
            true => format!("{layers}.{layer}.{name}"),
            false => name,
        }
    }

    /// The name of the first tensor of `kind`.
    pub(super) fn first(self, kind: TensorKind) -> String {
        self.name(TensorId::first(kind))
    }

    /// Whether a tensor called `name` is one of `kind`, in whatever layer.
    pub(super) fn is_name_of(self, name: &str, kind: TensorKind) -> bool {
        let before = name.strip_suffix(&self.name_in_layer(kind));
        match kind.is_per_layer() {
            true => before.is_some_and(|before| before.ends_with('.')),
            false => before == Some(""),
        }
    }

    /// Whether each head's RoPE pairs stand as two halves in tensors of `kind`, where a model file
    /// has them side by side.
    pub(super) fn has_halved_heads(self, kind: TensorKind) -> bool {
        matches!(self, Naming::HuggingFace) && kind.order() == RowOrder::RopePairs
    }

    fn layers(self) -> &'static str {
        match self {
            Naming::HuggingFace => "model.layers",
            Naming::Meta => "layers",
            Naming::Gguf => "blk",
        }
    }

    fn name_in_layer(self, kind: TensorKind) -> String {
        let [hugging_face, meta, gguf] = names(kind);
        let name = match self {
            Naming::HuggingFace => hugging_face,
            Naming::Meta => meta,
            Naming::Gguf => gguf,
        };
        format!("{name}.weight")
    }
}

/// Whether a tensor holds what can be computed from the configuration.
pub(super) fn is_computable(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || name == "rope.freqs"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_one_kind() {
        let kinds = [
            TensorKind::FinalNorm,
            TensorKind::Embedding,
            TensorKind::Classifier,
            TensorKind::AttentionNorm,
            TensorKind::FfnNorm,
            TensorKind::Wo,
            TensorKind::W2,
        ];
        for naming in [Naming::HuggingFace, Naming::Meta, Naming::Gguf] {
            for kind in kinds {
                let name = naming.name(TensorId { kind, layer: 10 });
                let found = kinds.into_iter().filter(|&kind| naming.is_name_of(&name, kind));
                assert_eq!(found.collect::<Vec<_>>(), [kind], "{name}");
            }
        }
        assert!(!Naming::Meta.is_name_of("xoutput.weight", TensorKind::Classifier));
        assert!(!Naming::Meta.is_name_of("attention.wo.weight", TensorKind::Wo));
    }
}
