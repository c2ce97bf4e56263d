//! Names of tensors in each kind of checkpoint, and the order of their rows.
//!
//! A row of [`names`] for each kind of tensor stands beside the table in
//! [`format::model`](crate::format::model), which says everything else.

use std::ops::Range;

use super::encoder_names;
use crate::format::model::{
    Architecture, Experts, Header, Mixer, RowOrder, StateSpace, TensorId, TensorKind,
};

/// How a checkpoint names its tensors.
#[derive(Clone, Copy)]
pub(super) enum Naming {
    HuggingFace,
    Meta,
    Gguf,
}

/// Divisors of RoPE frequencies in GGUF files: for all texts, or for short and for long ones.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(super) const ROPE_FACTORS: [&str; 2] =
    ["rope_factors_short.weight", "rope_factors_long.weight"];

/// Hugging Face's, Meta's and GGUF's name; the layer's name precedes it if each layer has such a tensor. Empty if there
/// is no such tensor.
fn names(kind: TensorKind) -> [&'static str; 3] {
    match kind {
        TensorKind::AttentionNorm => ["input_layernorm", "attention_norm", "attn_norm"],
        TensorKind::FfnNorm => ["post_attention_layernorm", "ffn_norm", "ffn_norm"],
        TensorKind::FinalNorm => ["model.norm", "norm", "output_norm"],
        TensorKind::Embedding => ["model.embed_tokens", "tok_embeddings", "token_embd"],
        TensorKind::Wq | TensorKind::Bq | TensorKind::FullWq => {
            ["self_attn.q_proj", "attention.wq", "attn_q"]
        }
        TensorKind::Wk | TensorKind::Bk | TensorKind::FullWk => {
            ["self_attn.k_proj", "attention.wk", "attn_k"]
        }
        TensorKind::Wv | TensorKind::Bv | TensorKind::FullWv => {
            ["self_attn.v_proj", "attention.wv", "attn_v"]
        }
        TensorKind::Wo | TensorKind::Bo | TensorKind::FullWo => {
            ["self_attn.o_proj", "attention.wo", "attn_output"]
        }
        TensorKind::W1 | TensorKind::DenseW1 => ["mlp.gate_proj", "feed_forward.w1", "ffn_gate"],
        TensorKind::W2 | TensorKind::DenseW2 => ["mlp.down_proj", "feed_forward.w2", "ffn_down"],
        TensorKind::W3 | TensorKind::DenseW3 => ["mlp.up_proj", "feed_forward.w3", "ffn_up"],
        TensorKind::Classifier => ["lm_head", "output", "output"],
        TensorKind::QNorm | TensorKind::FullQNorm => ["self_attn.q_norm", "", "attn_q_norm"],
        TensorKind::KNorm | TensorKind::FullKNorm => ["self_attn.k_norm", "", "attn_k_norm"],
        TensorKind::AttentionPostNorm => ["post_attention_layernorm", "", "post_attention_norm"],
        TensorKind::FfnPostNorm => ["post_feedforward_layernorm", "", "post_ffw_norm"],
        TensorKind::Sinks => ["self_attn.sinks", "", "attn_sinks.weight"],
        TensorKind::Router => ["mlp.gate", "", "ffn_gate_inp"],
        TensorKind::RouterBias => ["mlp.router", "", "ffn_gate_inp"],
        TensorKind::B1 => ["mlp.experts.gate_up_proj_bias", "", "ffn_gate_exps.bias"],
        TensorKind::B2 => ["mlp.experts.down_proj_bias", "", "ffn_down_exps.bias"],
        TensorKind::B3 => ["mlp.experts.gate_up_proj_bias", "", "ffn_up_exps.bias"],
        TensorKind::OutputGate => ["self_attn.q_proj", "", "attn_q"],
        TensorKind::MixIn => ["linear_attn.in_proj_qkv", "", "attn_qkv"],
        TensorKind::MixGate => ["linear_attn.in_proj_z", "", "attn_gate"],
        TensorKind::MixOut => ["linear_attn.out_proj", "", "ssm_out"],
        // Two tensors, see `place`.
        TensorKind::MixControls => ["", "", ""],
        TensorKind::MixConv => ["linear_attn.conv1d", "", "ssm_conv1d"],
        TensorKind::MixDecay => ["linear_attn.A_log", "", "ssm_a"],
        TensorKind::MixStepBias => ["linear_attn.dt_bias", "", "ssm_dt.bias"],
        TensorKind::MixNorm => ["linear_attn.norm", "", "ssm_norm"],
        TensorKind::LayerScale => ["layer_scalar", "", "layer_output_scale.weight"],
        TensorKind::InputTable => ["model.embed_tokens_per_layer", "", "per_layer_token_embd"],
        TensorKind::InputProjection => {
            ["model.per_layer_model_projection", "", "per_layer_model_proj"]
        }
        TensorKind::InputNorm => ["model.per_layer_projection_norm", "", "per_layer_proj_norm"],
        TensorKind::InputGate => ["per_layer_input_gate", "", "inp_gate"],
        TensorKind::InputOut => ["per_layer_projection", "", "proj"],
        TensorKind::InputPostNorm => ["post_per_layer_input_norm", "", "post_norm"],
        TensorKind::MixtureNorm => ["pre_feedforward_layernorm_2", "", "pre_ffw_norm_2"],
        TensorKind::MixturePostNorm => ["post_feedforward_layernorm_2", "", "post_ffw_norm_2"],
        TensorKind::DensePostNorm => ["post_feedforward_layernorm_1", "", "post_ffw_norm_1"],
        TensorKind::RouterNorm => ["router.scale", "", "ffn_gate_inp.scale"],
        TensorKind::ExpertScale => ["router.per_expert_scale", "", "ffn_down_exps.scale"],
        TensorKind::MixConvBias => ["mamba.conv1d", "", "ssm_conv1d"],
        TensorKind::MixSkip => ["mamba.D", "", "ssm_d"],
        TensorKind::ChoiceBias => ["feed_forward.expert_bias", "", "exp_probs_b.bias"],
        TensorKind::PooledIn => ["dense.0.linear", "", "dense_2"],
        TensorKind::PooledOut => ["dense.1.linear", "", "dense_3"],
        // See `encoder_names`.
        TensorKind::TokenType
        | TensorKind::PositionTable
        | TensorKind::EmbeddingNorm
        | TensorKind::EmbeddingNormBias
        | TensorKind::AttentionNormBias
        | TensorKind::FfnNormBias => ["", "", ""],
        TensorKind::NextJoin => ["fc", "", "nextn.eh_proj"],
        TensorKind::NextEmbeddingNorm => ["pre_fc_norm_embedding", "", "nextn.enorm"],
        TensorKind::NextHiddenNorm => ["pre_fc_norm_hidden", "", "nextn.hnorm"],
        TensorKind::NextNorm => ["norm", "", "nextn.shared_head_norm"],
        TensorKind::SharedGate => ["mlp.shared_expert_gate", "", "ffn_gate_inp_shexp"],
    }
}

/// End of a tensor's name.
fn suffix(kind: TensorKind) -> &'static str {
    match kind {
        TensorKind::Bq | TensorKind::Bk | TensorKind::Bv | TensorKind::Bo => ".bias",
        TensorKind::RouterBias => ".bias",
        TensorKind::MixDecay | TensorKind::MixStepBias | TensorKind::MixSkip => "",
        TensorKind::ChoiceBias => "",
        TensorKind::MixConvBias => ".bias",
        TensorKind::LayerScale | TensorKind::RouterNorm | TensorKind::ExpertScale => "",
        TensorKind::Sinks | TensorKind::B1 | TensorKind::B2 | TensorKind::B3 => "",
        _ => ".weight",
    }
}

/// Where in a checkpoint the values of a tensor are.
pub(super) enum Place {
    /// In the tensor of this name.
    Whole(String),
    /// Nowhere: this many values, all 0.
    Zeros(usize),
    /// In the tensors of these names, one below the other.
    Stacked(Vec<String>),
    /// In these rows of a tensor that has this many rows.
    Rows(String, Range<usize>, usize),
    /// In the rows of this part of each head of a tensor. There are this many heads, and this many parts in each.
    HeadParts(String, usize, (usize, usize)),
    /// In the first row of a tensor.
    FirstRow(String),
    /// In a tensor of this many rows, which together are one vector.
    Flat(String, usize),
    /// In a tensor of rows of taps, one for each channel.
    Taps(String),
    /// In a tensor with a transposed matrix, or a vector, for each expert. The rows are given by the first one and the
    /// step.
    Transposed(String, (usize, usize)),
    /// In a tensor of MXFP4 blocks and one of their scales, not transposed. The rows are given by the first one and the
    /// step.
    Blocks([String; 2], (usize, usize)),
}

impl Place {
    /// The names of the tensors that have values.
    pub(super) fn names(&self) -> &[String] {
        match self {
            Place::Whole(name)
            | Place::Rows(name, ..)
            | Place::HeadParts(name, ..)
            | Place::FirstRow(name)
            | Place::Flat(name, _)
            | Place::Taps(name)
            | Place::Transposed(name, _) => std::slice::from_ref(name),
            Place::Stacked(names) => names,
            Place::Blocks(names, _) => names,
            Place::Zeros(_) => &[],
        }
    }

    /// The place in tensors that are called as `rename` says.
    fn renamed(mut self, rename: &dyn Fn(&str) -> String) -> Place {
        match &mut self {
            Place::Whole(name)
            | Place::Rows(name, ..)
            | Place::HeadParts(name, ..)
            | Place::FirstRow(name)
            | Place::Flat(name, _)
            | Place::Taps(name)
            | Place::Transposed(name, _) => *name = rename(name),
            Place::Stacked(names) => names.iter_mut().for_each(|name| *name = rename(name)),
            Place::Blocks(names, _) => names.iter_mut().for_each(|name| *name = rename(name)),
            Place::Zeros(_) => {}
        }
        self
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

    /// Whether a tensor called `name` is one of `kind`, in any layer.
    pub(super) fn is_name_of(self, name: &str, kind: TensorKind) -> bool {
        let before = name.strip_suffix(&self.name_in_layer(kind));
        match kind.is_per_layer() {
            true => before.is_some_and(|before| before.ends_with('.')),
            false => before == Some(""),
        }
    }

    /// Where the values of tensor `id` are in a checkpoint of a model of `header`.
    pub(super) fn place(self, id: TensorId, header: &Header) -> Place {
        self.in_next(self.in_layers(id, header), id, header)
    }

    /// `place` of tensor `id` in the block behind the last layer, whose tensors Hugging Face does not count as a layer's;
    /// `place` itself in all others.
    fn in_next(self, place: Place, id: TensorId, header: &Header) -> Place {
        if !self.is_hugging_face() || !header.is_of_next(id) {
            return place;
        }
        let own = format!("{}.{}.", self.layers(), id.layer);
        let to = if id.kind.is_of_next() { "mtp." } else { "mtp.layers.0." };
        place.renamed(&|name| format!("{to}{}", name.strip_prefix(&own).unwrap_or(name)))
    }

    fn in_layers(self, id: TensorId, header: &Header) -> Place {
        let TensorId { kind, layer } = id;
        let in_layer = |name: &str| format!("{}.{layer}.{name}", self.layers());
        let is_matrix = !kind.is_vector();
        if header.encoder().is_some() {
            return self.of_encoder(id, header);
        }
        match (header.architecture, kind, self.is_hugging_face()) {
            (Architecture::Gemma3 | Architecture::Gemma4, TensorKind::FfnNorm, true) => {
                Place::Whole(in_layer("pre_feedforward_layernorm.weight"))
            }
            (Architecture::GptOss, TensorKind::FfnNorm, false) => {
                Place::Whole(in_layer("post_attention_norm.weight"))
            }
            (Architecture::GptOss, TensorKind::Router, true) => {
                Place::Whole(in_layer("mlp.router.weight"))
            }
            (Architecture::GptOss, TensorKind::W1 | TensorKind::W3, true) => {
                let first = usize::from(kind == TensorKind::W3);
                Place::Transposed(in_layer("mlp.experts.gate_up_proj"), (first, 2))
            }
            (Architecture::GptOss, TensorKind::W2, true) => {
                Place::Transposed(in_layer("mlp.experts.down_proj"), (0, 1))
            }
            (Architecture::GptOss, TensorKind::B1 | TensorKind::B3, true) => {
                let first = usize::from(kind == TensorKind::B3);
                Place::Transposed(self.name(id), (first, 2))
            }
            (_, TensorKind::B1 | TensorKind::B2 | TensorKind::B3, _)
                if header.features.experts.is_none() =>
            {
                Place::Whole(self.bias_of_ffn(id))
            }
            (Architecture::Phi3, ..) => self.fused(id, header),
            (Architecture::Granite4, ..) => self.of_granite4(id, header),
            (Architecture::Lfm2, ..) => self.of_lfm2(id, header),
            (Architecture::Qwen35, ..) => self.of_qwen35(id, header),
            (Architecture::Gemma4, ..) => self.of_gemma4(id, header),
            _ if header.n_ffns() > 1 && kind.is_per_expert() && is_matrix => {
                self.experts(id, header.n_ffns())
            }
            _ => Place::Whole(self.name(id)),
        }
    }

    /// Encoders have names of their own.
    fn of_encoder(self, id: TensorId, header: &Header) -> Place {
        if matches!(id.kind, TensorKind::PooledIn | TensorKind::PooledOut) {
            return Place::Whole(self.name(id));
        }
        match (id.kind, encoder_names::find(id, header, self.is_hugging_face())) {
            (TensorKind::TokenType, (name, _)) => Place::FirstRow(name),
            (TensorKind::PositionTable, (name, _)) => {
                Place::Flat(name, header.encoder().map_or(0, |encoder| encoder.n_positions))
            }
            (_, (name, Some((rows, all)))) => Place::Rows(name, rows, all),
            (_, (name, None)) => Place::Whole(name),
        }
    }

    /// LFM2 has names of its own.
    fn of_lfm2(self, id: TensorId, header: &Header) -> Place {
        let is_mixture = header.n_ffns() > 1 && id.kind.is_per_expert();
        let name = match (id.kind, self.is_hugging_face()) {
            (_, false) if is_mixture => return self.experts(id, header.n_ffns()),
            (TensorKind::W1 | TensorKind::W2 | TensorKind::W3, true) if is_mixture => {
                return self.experts_of_lfm2(id, header.n_ffns());
            }
            (TensorKind::Router, true) => "feed_forward.gate.weight",
            (TensorKind::FinalNorm, true) => "model.embedding_norm.weight",
            (TensorKind::FinalNorm, false) => "token_embd_norm.weight",
            (TensorKind::AttentionNorm, true) => "operator_norm.weight",
            (TensorKind::FfnNorm, true) => "ffn_norm.weight",
            (TensorKind::Wo, true) => "self_attn.out_proj.weight",
            (TensorKind::QNorm, true) => "self_attn.q_layernorm.weight",
            (TensorKind::KNorm, true) => "self_attn.k_layernorm.weight",
            (TensorKind::W1 | TensorKind::DenseW1, true) => "feed_forward.w1.weight",
            (TensorKind::W2 | TensorKind::DenseW2, true) => "feed_forward.w2.weight",
            (TensorKind::W3 | TensorKind::DenseW3, true) => "feed_forward.w3.weight",
            (TensorKind::MixIn, true) => "conv.in_proj.weight",
            (TensorKind::MixIn, false) => "shortconv.in_proj.weight",
            (TensorKind::MixOut, true) => "conv.out_proj.weight",
            (TensorKind::MixOut, false) => "shortconv.out_proj.weight",
            (TensorKind::MixConv, true) => "conv.conv.weight",
            (TensorKind::MixConv, false) => "shortconv.conv.weight",
            _ => return Place::Whole(self.name(id)),
        };
        let name = match id.kind.is_per_layer() {
            true => format!("{}.{}.{name}", self.layers(), id.layer),
            false => name.to_owned(),
        };
        if id.kind == TensorKind::MixConv { Place::Taps(name) } else { Place::Whole(name) }
    }

    fn experts_of_lfm2(self, TensorId { kind, layer }: TensorId, n: usize) -> Place {
        let name = match kind {
            TensorKind::W1 => "w1",
            TensorKind::W2 => "w2",
            _ => "w3",
        };
        let layers = self.layers();
        let of = |expert| format!("{layers}.{layer}.feed_forward.experts.{expert}.{name}.weight");
        Place::Stacked((0..n).map(of).collect())
    }

    /// Qwen3.5 has queries and their gates head by head in one tensor.
    fn of_qwen35(self, id: TensorId, header: &Header) -> Place {
        let in_layer = |name: &str| format!("{}.{}.{name}", self.layers(), id.layer);
        let controls = match self.is_hugging_face() {
            true => ["linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"],
            false => ["ssm_beta.weight", "ssm_alpha.weight"],
        };
        let n = header.n_ffns();
        match id.kind {
            kind if n > 1 && (kind.is_per_expert() || is_dense(kind)) => self.of_shared(id, n),
            TensorKind::Wq => Place::HeadParts(self.name(id), header.n_heads, (0, 2)),
            TensorKind::OutputGate => Place::HeadParts(self.name(id), header.n_heads, (1, 2)),
            TensorKind::MixControls => Place::Stacked(controls.map(in_layer).to_vec()),
            TensorKind::MixConv => Place::Taps(self.name(id)),
            TensorKind::FfnNorm if !self.is_hugging_face() => {
                Place::Whole(in_layer("post_attention_norm.weight"))
            }
            _ => Place::Whole(self.name(id)),
        }
    }

    /// The experts and the shared expert of Qwen3.5's mixtures. All experts may be in one tensor; see
    /// [`Naming::single_experts`].
    fn of_shared(self, id: TensorId, n: usize) -> Place {
        let in_layer = |name: &str| format!("{}.{}.{name}", self.layers(), id.layer);
        let is_hugging_face = self.is_hugging_face();
        match id.kind {
            TensorKind::W1 | TensorKind::W3 if is_hugging_face => {
                let part = usize::from(id.kind == TensorKind::W3);
                Place::HeadParts(in_layer("mlp.experts.gate_up_proj"), n, (part, 2))
            }
            TensorKind::W2 if is_hugging_face => Place::Whole(in_layer("mlp.experts.down_proj")),
            TensorKind::W1 | TensorKind::W2 | TensorKind::W3 => self.experts(id, n),
            kind => {
                let [hugging_face, _, gguf] = names(kind);
                Place::Whole(match is_hugging_face {
                    true => in_layer(&format!(
                        "mlp.shared_expert.{}.weight",
                        hugging_face.trim_start_matches("mlp.")
                    )),
                    false => in_layer(&format!("{gguf}_shexp.weight")),
                })
            }
        }
    }

    /// The experts of a checkpoint that has a tensor for each, although the family's usual ones have one for all.
    pub(super) fn single_experts(self, id: TensorId, header: &Header) -> Option<Place> {
        let has_both = header.architecture == Architecture::Qwen35 && self.is_hugging_face();
        let is_experts = header.n_ffns() > 1 && id.kind.is_per_expert();
        (has_both && is_experts)
            .then(|| self.in_next(self.experts(id, header.n_ffns()), id, header))
    }

    /// The bias of a feed-forward layer that is no mixture.
    fn bias_of_ffn(self, TensorId { kind, layer }: TensorId) -> String {
        let kind = match kind {
            TensorKind::B1 => TensorKind::W1,
            TensorKind::B2 => TensorKind::W2,
            _ => TensorKind::W3,
        };
        let weight = self.name(TensorId { kind, layer });
        format!("{}.bias", weight.trim_end_matches(".weight"))
    }

    /// The experts of a mixture: tensors of their own, or one of all.
    fn experts(self, TensorId { kind, layer }: TensorId, n: usize) -> Place {
        let [hugging_face, _, gguf] = names(kind);
        let layers = self.layers();
        if !self.is_hugging_face() {
            return Place::Whole(format!("{layers}.{layer}.{gguf}_exps.weight"));
        }
        let name = hugging_face.trim_start_matches("mlp.");
        let of = |expert| format!("{layers}.{layer}.mlp.experts.{expert}.{name}.weight");
        Place::Stacked((0..n).map(of).collect())
    }

    /// Phi 3 has queries, keys and values in one tensor, and gates and ups in another.
    fn fused(self, id: TensorId, header: &Header) -> Place {
        let (q, kv, ffn) = (header.q_dim(), header.kv_dim(), header.ffn_dim);
        let [qkv, gate_up] = match self.is_hugging_face() {
            true => ["self_attn.qkv_proj", "mlp.gate_up_proj"],
            false => ["attn_qkv", "ffn_up"],
        };
        let (name, rows, all) = match id.kind {
            TensorKind::Wq => (qkv, 0..q, q + 2 * kv),
            TensorKind::Wk => (qkv, q..q + kv, q + 2 * kv),
            TensorKind::Wv => (qkv, q + kv..q + 2 * kv, q + 2 * kv),
            TensorKind::W1 => (gate_up, 0..ffn, 2 * ffn),
            TensorKind::W3 => (gate_up, ffn..2 * ffn, 2 * ffn),
            _ => return Place::Whole(self.name(id)),
        };
        Place::Rows(format!("{}.{}.{name}.weight", self.layers(), id.layer), rows, all)
    }

    /// Granite 4 has experts in one tensor, gates above ups, and the parts of a Mamba layer's input in another.
    fn of_granite4(self, id: TensorId, header: &Header) -> Place {
        if let Some(Mixer::StateSpace(space)) = header.mixer(id.layer)
            && id.kind.is_of_recurrence()
        {
            return self.of_mamba(id, (space, header.dim));
        }
        let in_layer = |name: &str| format!("{}.{}.{name}", self.layers(), id.layer);
        let n = header.n_ffns();
        let (kind, is_hugging_face) = (id.kind, self.is_hugging_face());
        let input = || in_layer("block_sparse_moe.input_linear.weight");
        let shared = || in_layer("shared_mlp.input_linear.weight");
        match kind {
            TensorKind::W1 | TensorKind::W3 if n > 1 && is_hugging_face => {
                Place::HeadParts(input(), n, (usize::from(kind == TensorKind::W3), 2))
            }
            TensorKind::W2 if n > 1 && is_hugging_face => {
                Place::Whole(in_layer("block_sparse_moe.output_linear.weight"))
            }
            TensorKind::Router if is_hugging_face => {
                Place::Whole(in_layer("block_sparse_moe.router.layer.weight"))
            }
            TensorKind::W1 | TensorKind::DenseW1 if is_hugging_face => {
                Place::HeadParts(shared(), 1, (0, 2))
            }
            TensorKind::W3 | TensorKind::DenseW3 if is_hugging_face => {
                Place::HeadParts(shared(), 1, (1, 2))
            }
            TensorKind::W2 | TensorKind::DenseW2 if is_hugging_face => {
                Place::Whole(in_layer("shared_mlp.output_linear.weight"))
            }
            kind if n > 1 && (kind.is_per_expert() || is_dense(kind)) => self.of_shared(id, n),
            _ => Place::Whole(self.name(id)),
        }
    }

    /// The tensors of a Mamba layer in a model of width `dim`.
    fn of_mamba(self, id: TensorId, (space, dim): (StateSpace, usize)) -> Place {
        let mixer = Mixer::StateSpace(space);
        let (gates, inputs) = (mixer.gate_rows(), mixer.in_rows(dim));
        let all = gates + inputs + space.heads;
        let [name, column] = match (id.kind, self.is_hugging_face()) {
            (TensorKind::MixIn | TensorKind::MixGate | TensorKind::MixControls, true) => {
                ["mamba.in_proj.weight", ""]
            }
            (TensorKind::MixIn | TensorKind::MixGate | TensorKind::MixControls, false) => {
                ["ssm_in.weight", ""]
            }
            (TensorKind::MixOut, true) => ["mamba.out_proj.weight", ""],
            (TensorKind::MixConv, true) => ["mamba.conv1d.weight", ""],
            (TensorKind::MixDecay, true) => ["mamba.A_log", ""],
            (TensorKind::MixStepBias, true) => ["mamba.dt_bias", ""],
            (TensorKind::MixNorm, true) => ["mamba.norm.weight", ""],
            (TensorKind::MixDecay, false) => ["ssm_a", "column"],
            (TensorKind::MixSkip, false) => ["ssm_d", "column"],
            (TensorKind::MixNorm, false) => ["ssm_norm.weight", "groups"],
            _ => ["", ""],
        };
        let name = match name {
            "" => self.name(id),
            name => format!("{}.{}.{name}", self.layers(), id.layer),
        };
        match (id.kind, column) {
            (TensorKind::MixGate, _) => Place::Rows(name, 0..gates, all),
            (TensorKind::MixIn, _) => Place::Rows(name, gates..gates + inputs, all),
            (TensorKind::MixControls, _) => Place::Rows(name, gates + inputs..all, all),
            (TensorKind::MixConv, _) => Place::Taps(name),
            (_, "column") => Place::Flat(name, space.heads),
            (_, "groups") => Place::Flat(name, space.groups),
            _ => Place::Whole(name),
        }
    }

    /// Gemma 4's mixtures have gates and ups of all experts in one tensor.
    fn of_gemma4(self, id: TensorId, header: &Header) -> Place {
        let in_layer = |name: &str| format!("{}.{}.{name}", self.layers(), id.layer);
        let of = |[hugging_face, gguf]: [&str; 2]| {
            in_layer(if self.is_hugging_face() { hugging_face } else { gguf })
        };
        let Some(Experts { n, .. }) = header.features.experts else {
            return Place::Whole(self.name(id));
        };
        let gate_up = || of(["experts.gate_up_proj", "ffn_gate_up_exps.weight"]);
        match id.kind {
            TensorKind::W1 => Place::HeadParts(gate_up(), n, (0, 2)),
            TensorKind::W3 => Place::HeadParts(gate_up(), n, (1, 2)),
            TensorKind::W2 => Place::Whole(of(["experts.down_proj", "ffn_down_exps.weight"])),
            TensorKind::Router => Place::Whole(of(["router.proj.weight", "ffn_gate_inp.weight"])),
            _ => Place::Whole(self.name(id)),
        }
    }

    /// Whether tensor `name` is that of keys and values in a layer that uses those of another.
    pub(super) fn is_of_shared_kv(self, name: &str, header: &Header) -> bool {
        let Some(rest) = name.strip_prefix(self.layers()).and_then(|rest| rest.strip_prefix('.'))
        else {
            return false;
        };
        let Some((layer, name)) = rest.split_once('.') else { return false };
        let layer = layer.parse().unwrap_or(usize::MAX);
        let kinds = [TensorKind::Wk, TensorKind::Wv, TensorKind::KNorm];
        layer < header.n_layers
            && !header.has_own_kv(layer)
            && kinds.into_iter().any(|kind| self.name_in_layer(kind) == name)
    }

    /// Whether each head's RoPE pairs stand as two halves in tensors of `kind`, where a model file has them side by
    /// side. GGUF files of Llama and its near relations have them side by side, too.
    pub(super) fn has_halved_heads(self, kind: TensorKind, header: &Header) -> bool {
        let is_halved = match self {
            // Without rotation there are no pairs.
            _ if header.architecture == Architecture::Bert => false,
            Naming::HuggingFace => true,
            Naming::Meta => false,
            Naming::Gguf => !matches!(
                header.architecture,
                Architecture::Llama
                    | Architecture::Mistral
                    | Architecture::SmolLm3
                    | Architecture::Granite
                    | Architecture::Granite4
            ),
        };
        is_halved && kind.order() == RowOrder::RopePairs
    }

    /// Whether tensor `name` is part of the block behind Qwen3.5's last layer that guesses the token after the next.
    pub(super) fn is_of_next_token_block(self, name: &str, header: &Header) -> bool {
        let layer = || name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok();
        header.architecture == Architecture::Qwen35
            && match self.is_hugging_face() {
                true => name.starts_with("mtp."),
                false => layer().is_some_and(|layer: usize| layer >= header.n_layers),
            }
    }

    fn is_hugging_face(self) -> bool {
        matches!(self, Naming::HuggingFace)
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
        format!("{name}{}", suffix(kind))
    }
}

/// Whether tensors of `kind` are those of a dense layer, or of one beside a mixture.
fn is_dense(kind: TensorKind) -> bool {
    matches!(kind, TensorKind::DenseW1 | TensorKind::DenseW2 | TensorKind::DenseW3)
}

/// Whether a tensor holds what can be computed from the configuration.
pub(super) fn is_computable(name: &str) -> bool {
    const OF_LAYERS: [&str; 4] = [
        "rotary_emb.inv_freq",
        "rotary_emb.cos_cached",
        "rotary_emb.sin_cached",
        "attn_rot_embd.weight",
    ];
    let is_end =
        |end: &&str| name == *end || name.strip_suffix(*end).is_some_and(|n| n.ends_with('.'));
    name == "rope.freqs" || OF_LAYERS.iter().any(is_end)
}

/// Whether a tensor of a GGUF file belongs to the vision part of a model, which some programs put in the same file.
pub(super) fn is_of_seeing_part(name: &str) -> bool {
    name.starts_with("v.") || name.starts_with("mm.")
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
