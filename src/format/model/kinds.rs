//! The table of tensors: a row for each kind that a model may have, in the order of the file.
//!
//! Code that lists, sizes, stores or packs tensors uses the table. For a family with a new tensor, add a
//! [`TensorKind`] and its row at the end, and the exporter's row of names.

use super::check::GROUP_MIN;
use super::header::Header;
use super::recurrent::Mixer;

/// Purpose of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// Norm before attention; behind it in an encoder.
    AttentionNorm,
    /// Norm before the feed-forward layer; behind it in an encoder.
    FfnNorm,
    /// Norm before the classifier.
    FinalNorm,
    /// Token embedding.
    Embedding,
    /// Query projection.
    Wq,
    /// Key projection.
    Wk,
    /// Value projection.
    Wv,
    /// Attention's output projection.
    Wo,
    /// Feed-forward gate.
    W1,
    /// Down projection.
    W2,
    /// Up projection.
    W3,
    /// Projection from the last hidden state to logits; absent if the embedding is also the classifier.
    Classifier,
    /// Bias of queries.
    Bq,
    /// Bias of keys.
    Bk,
    /// Bias of values.
    Bv,
    /// Bias of attention's output.
    Bo,
    /// Norm of each head's queries.
    QNorm,
    /// Norm of each head's keys.
    KNorm,
    /// Norm after attention.
    AttentionPostNorm,
    /// Norm after the feed-forward layer.
    FfnPostNorm,
    /// Attention sinks: one more score for each head.
    Sinks,
    /// Router: projection to the scores of the experts.
    Router,
    /// Bias of the router's scores.
    RouterBias,
    /// Bias of the gate, or of all experts' gates.
    B1,
    /// Bias of the down projection, or of all experts'.
    B2,
    /// Bias of the up projection, or of all experts'.
    B3,
    /// Gate of a dense layer in a model of mixtures.
    DenseW1,
    /// Down projection of a dense layer.
    DenseW2,
    /// Up projection of a dense layer.
    DenseW3,
    /// Projection to the gate of attention's output.
    OutputGate,
    /// Projection to the inputs of a recurrent layer's convolution.
    MixIn,
    /// Projection to the gate of a recurrent layer's output.
    MixGate,
    /// Output projection of a recurrent layer.
    MixOut,
    /// Projection to the values that steer each update of a recurrent layer's state.
    MixControls,
    /// Taps of a recurrent layer's convolution, the oldest input's first.
    MixConv,
    /// Logarithm of the decay of each head's state, negative.
    MixDecay,
    /// Bias of each head's step.
    MixStepBias,
    /// Norm of the recurrence's output: of each head, or of each group of heads.
    MixNorm,
    /// Query projection of a layer with heads of its own.
    FullWq,
    /// Key projection of such a layer.
    FullWk,
    /// Value projection of such a layer.
    FullWv,
    /// Attention's output projection in such a layer.
    FullWo,
    /// Norm of each head's queries in such a layer.
    FullQNorm,
    /// Norm of each head's keys in such a layer.
    FullKNorm,
    /// Factor of a layer's output.
    LayerScale,
    /// Part of all layers' inputs that belongs to a token.
    InputTable,
    /// Projection from a token's embedding to all layers' inputs.
    InputProjection,
    /// Norm of a layer's part of that projection's output.
    InputNorm,
    /// Projection from the residual stream to the gate of a layer's input.
    InputGate,
    /// Projection from a layer's gated input to the residual stream.
    InputOut,
    /// Norm after that projection.
    InputPostNorm,
    /// Norm before a mixture that has a feed-forward layer beside it.
    MixtureNorm,
    /// Norm after such a mixture.
    MixturePostNorm,
    /// Norm after the feed-forward layer beside a mixture.
    DensePostNorm,
    /// Norm before the router of such a mixture.
    RouterNorm,
    /// Factor of each expert's output in such a mixture.
    ExpertScale,
    /// Bias of a recurrent layer's convolution.
    MixConvBias,
    /// Factor of each head's input in its output.
    MixSkip,
    /// Bias of each expert's score in the choice of experts.
    ChoiceBias,
    /// Projection to the gate of a shared expert's output.
    SharedGate,
    /// Row that an encoder adds to every token's embedding.
    TokenType,
    /// Rows that an encoder adds by position.
    PositionTable,
    /// LayerNorm of an encoder's embeddings.
    EmbeddingNorm,
    /// Bias of that norm.
    EmbeddingNormBias,
    /// Bias of an encoder's LayerNorm behind attention.
    AttentionNormBias,
    /// Bias of an encoder's LayerNorm behind the feed-forward layer.
    FfnNormBias,
    /// First dense layer behind pooling.
    PooledIn,
    /// Second dense layer behind pooling.
    PooledOut,
    /// Projection from an embedding and a hidden state, side by side, to the input of the block behind the last layer.
    NextJoin,
    /// Norm of that embedding.
    NextEmbeddingNorm,
    /// Norm of that hidden state.
    NextHiddenNorm,
    /// Norm of that block's output, before the classifier.
    NextNorm,
}

/// Use of a tensor, which decides how it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorRole {
    /// Applied to activations elementwise: one row, always f32.
    Vector,
    /// A matrix that is multiplied.
    Matrix,
    /// One row for each token, which is looked up.
    Embedding,
    /// A matrix that is multiplied, and stored like the embedding.
    Classifier,
    /// A matrix that is multiplied, always in f32.
    Router,
}

/// Order of the rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// The order in which they are computed.
    Plain,
    /// Rows 2i and 2i + 1 of each head are a RoPE pair; in a vector, values 2i and 2i + 1.
    RopePairs,
}

/// A row of the table.
struct TensorSpec {
    kind: TensorKind,
    name: &'static str,
    is_per_layer: bool,
    role: TensorRole,
    order: RowOrder,
    shape: fn(&Header) -> (usize, usize),
    is_present: fn(&Header) -> bool,
}

use TensorKind::*;
use TensorRole::{Matrix, Vector};

static TABLE: [TensorSpec; 72] = [
    in_each_layer(AttentionNorm, "attention_norm", Vector, |h| (1, h.dim)),
    in_each_layer(FfnNorm, "ffn_norm", Vector, |h| (1, h.dim)),
    once(FinalNorm, "final_norm", Vector, |h| (1, h.dim)).present_if(|h| !is_encoder(h)),
    once(Embedding, "embedding", TensorRole::Embedding, |h| (h.vocab_size, h.dim)),
    in_each_layer(Wq, "wq", Matrix, |h| (h.q_dim(), h.dim)).ordered(RowOrder::RopePairs),
    in_each_layer(Wk, "wk", Matrix, |h| (h.kv_dim(), h.dim)).ordered(RowOrder::RopePairs),
    in_each_layer(Wv, "wv", Matrix, |h| (h.kv_dim(), h.dim)),
    in_each_layer(Wo, "wo", Matrix, |h| (h.dim, h.q_dim())),
    in_each_layer(W1, "w1", Matrix, |h| (h.n_ffns() * h.ffn_dim, h.dim)),
    in_each_layer(W2, "w2", Matrix, |h| (h.n_ffns() * h.dim, h.ffn_dim)),
    in_each_layer(W3, "w3", Matrix, |h| (h.n_ffns() * h.ffn_dim, h.dim))
        .present_if(Header::has_gates),
    once(Classifier, "classifier", TensorRole::Classifier, |h| (h.vocab_size, h.dim))
        .present_if(|h| h.classifier() == Classifier),
    in_each_layer(Bq, "bq", Vector, |h| (1, h.q_dim()))
        .ordered(RowOrder::RopePairs)
        .present_if(|h| h.features.qkv_bias),
    in_each_layer(Bk, "bk", Vector, |h| (1, h.kv_dim()))
        .ordered(RowOrder::RopePairs)
        .present_if(|h| h.features.qkv_bias),
    in_each_layer(Bv, "bv", Vector, |h| (1, h.kv_dim())).present_if(|h| h.features.qkv_bias),
    in_each_layer(Bo, "bo", Vector, |h| (1, h.dim)).present_if(|h| h.features.output_bias),
    in_each_layer(QNorm, "q_norm", Vector, |h| (1, h.head_dim))
        .ordered(RowOrder::RopePairs)
        .present_if(|h| h.features.qk_norm),
    in_each_layer(KNorm, "k_norm", Vector, |h| (1, h.head_dim))
        .ordered(RowOrder::RopePairs)
        .present_if(|h| h.features.qk_norm),
    in_each_layer(AttentionPostNorm, "attention_post_norm", Vector, |h| (1, h.dim))
        .present_if(|h| h.features.post_norms),
    in_each_layer(FfnPostNorm, "ffn_post_norm", Vector, |h| (1, h.dim))
        .present_if(|h| h.features.post_norms),
    in_each_layer(Sinks, "sinks", Vector, |h| (1, h.n_heads)).present_if(|h| h.features.sinks),
    in_each_layer(Router, "router", TensorRole::Router, |h| (h.n_ffns(), h.dim))
        .present_if(|h| h.features.experts.is_some()),
    in_each_layer(RouterBias, "router_bias", Vector, |h| (1, h.n_ffns()))
        .present_if(has_expert_biases),
    in_each_layer(B1, "b1", Vector, |h| (1, h.n_ffns() * h.ffn_dim)).present_if(has_ffn_biases),
    in_each_layer(B2, "b2", Vector, |h| (1, h.n_ffns() * h.dim)).present_if(has_ffn_biases),
    in_each_layer(B3, "b3", Vector, |h| (1, h.n_ffns() * h.ffn_dim))
        .present_if(|h| has_ffn_biases(h) && h.has_gates()),
    in_each_layer(DenseW1, "dense_w1", Matrix, |h| (h.dense_ffn_dim(), h.dim))
        .present_if(has_dense),
    in_each_layer(DenseW2, "dense_w2", Matrix, |h| (h.dim, h.dense_ffn_dim()))
        .present_if(has_dense),
    in_each_layer(DenseW3, "dense_w3", Matrix, |h| (h.dense_ffn_dim(), h.dim))
        .present_if(has_dense),
    in_each_layer(OutputGate, "output_gate", Matrix, |h| (h.q_dim(), h.dim))
        .present_if(|h| h.features.output_gate),
    in_each_layer(MixIn, "mix_in", Matrix, |h| (mixed(h, |m| m.in_rows(h.dim)), h.dim))
        .present_if(Header::has_state),
    in_each_layer(MixGate, "mix_gate", Matrix, |h| (mixed(h, |m| m.gate_rows()), h.dim))
        .present_if(|h| mixed(h, |m| m.gate_rows()) > 0),
    in_each_layer(MixOut, "mix_out", Matrix, |h| (h.dim, mixed(h, |m| m.out_cols(h.dim))))
        .present_if(Header::has_state),
    in_each_layer(MixControls, "mix_controls", TensorRole::Router, |h| {
        (mixed(h, |m| m.n_controls()), h.dim)
    })
    .present_if(|h| mixed(h, |m| m.n_controls()) > 0),
    in_each_layer(MixConv, "mix_conv", TensorRole::Router, |h| {
        (mixed(h, |m| m.taps()), mixed(h, |m| m.channels(h.dim)))
    })
    .present_if(Header::has_state),
    in_each_layer(MixDecay, "mix_decay", Vector, |h| (1, mixed(h, |m| m.state_heads())))
        .present_if(|h| mixed(h, |m| m.state_heads()) > 0),
    in_each_layer(MixStepBias, "mix_step_bias", Vector, |h| (1, mixed(h, |m| m.state_heads())))
        .present_if(|h| mixed(h, |m| m.state_heads()) > 0),
    in_each_layer(MixNorm, "mix_norm", Vector, |h| (1, mixed(h, Mixer::norm_dim)))
        .present_if(|h| mixed(h, Mixer::norm_dim) > 0),
    in_each_layer(FullWq, "full_wq", Matrix, |h| (h.full_q_dim(), h.dim))
        .ordered(RowOrder::RopePairs)
        .present_if(has_full_heads),
    in_each_layer(FullWk, "full_wk", Matrix, |h| (h.full_kv_dim(), h.dim))
        .ordered(RowOrder::RopePairs)
        .present_if(has_full_heads),
    in_each_layer(FullWv, "full_wv", Matrix, |h| (h.full_kv_dim(), h.dim))
        .present_if(has_full_heads),
    in_each_layer(FullWo, "full_wo", Matrix, |h| (h.dim, h.full_q_dim()))
        .present_if(has_full_heads),
    in_each_layer(FullQNorm, "full_q_norm", Vector, |h| (1, h.full_head_dim()))
        .ordered(RowOrder::RopePairs)
        .present_if(|h| has_full_heads(h) && h.features.qk_norm),
    in_each_layer(FullKNorm, "full_k_norm", Vector, |h| (1, h.full_head_dim()))
        .ordered(RowOrder::RopePairs)
        .present_if(|h| has_full_heads(h) && h.features.qk_norm),
    in_each_layer(LayerScale, "layer_scale", Vector, |_| (1, 1))
        .present_if(|h| h.features.more.layer_scales),
    once(InputTable, "input_table", TensorRole::Embedding, |h| (h.vocab_size, h.layer_inputs()))
        .present_if(has_inputs),
    once(InputProjection, "input_projection", TensorRole::Classifier, |h| {
        (h.layer_inputs(), h.dim)
    })
    .present_if(has_inputs),
    once(InputNorm, "input_norm", Vector, |h| (1, input_dim(h))).present_if(has_inputs),
    in_each_layer(InputGate, "input_gate", TensorRole::Classifier, |h| (input_dim(h), h.dim))
        .present_if(has_inputs),
    in_each_layer(InputOut, "input_out", TensorRole::Classifier, |h| (h.dim, input_dim(h)))
        .present_if(has_inputs),
    in_each_layer(InputPostNorm, "input_post_norm", Vector, |h| (1, h.dim)).present_if(has_inputs),
    in_each_layer(MixtureNorm, "mixture_norm", Vector, |h| (1, h.dim)).present_if(has_norms_beside),
    in_each_layer(MixturePostNorm, "mixture_post_norm", Vector, |h| (1, h.dim))
        .present_if(has_norms_beside),
    in_each_layer(DensePostNorm, "dense_post_norm", Vector, |h| (1, h.dim))
        .present_if(has_norms_beside),
    in_each_layer(RouterNorm, "router_norm", Vector, |h| (1, h.dim)).present_if(has_norms_beside),
    in_each_layer(ExpertScale, "expert_scale", Vector, |h| (1, h.n_ffns()))
        .present_if(has_norms_beside),
    in_each_layer(MixConvBias, "mix_conv_bias", Vector, |h| (1, mixed(h, |m| m.channels(h.dim))))
        .present_if(is_state_space),
    in_each_layer(MixSkip, "mix_skip", Vector, |h| (1, mixed(h, |m| m.state_heads())))
        .present_if(is_state_space),
    in_each_layer(ChoiceBias, "choice_bias", Vector, |h| (1, h.n_ffns()))
        .present_if(|h| h.features.experts.is_some_and(|experts| experts.is_sigmoid)),
    in_each_layer(SharedGate, "shared_gate", TensorRole::Router, |h| (1, h.dim))
        .present_if(|h| h.features.more.has_shared_gate),
    once(TokenType, "token_type", Vector, |h| (1, h.dim)).present_if(is_encoder),
    once(PositionTable, "position_table", Vector, |h| (1, n_positions(h) * h.dim))
        .present_if(|h| n_positions(h) > 0),
    once(EmbeddingNorm, "embedding_norm", Vector, |h| (1, h.dim)).present_if(is_encoder),
    once(EmbeddingNormBias, "embedding_norm_bias", Vector, |h| (1, h.dim)).present_if(is_encoder),
    in_each_layer(AttentionNormBias, "attention_norm_bias", Vector, |h| (1, h.dim))
        .present_if(is_encoder),
    in_each_layer(FfnNormBias, "ffn_norm_bias", Vector, |h| (1, h.dim)).present_if(is_encoder),
    once(PooledIn, "pooled_in", TensorRole::Router, |h| (dense_dim(h), h.dim))
        .present_if(|h| dense_dim(h) > 0),
    once(PooledOut, "pooled_out", TensorRole::Router, |h| (h.dim, dense_dim(h)))
        .present_if(|h| dense_dim(h) > 0),
    in_each_layer(NextJoin, "next_join", Matrix, |h| (h.dim, h.dim.saturating_mul(2)))
        .present_if(has_next),
    in_each_layer(NextEmbeddingNorm, "next_embedding_norm", Vector, |h| (1, h.dim))
        .present_if(has_next),
    in_each_layer(NextHiddenNorm, "next_hidden_norm", Vector, |h| (1, h.dim)).present_if(has_next),
    in_each_layer(NextNorm, "next_norm", Vector, |h| (1, h.dim)).present_if(has_next),
];

fn is_encoder(header: &Header) -> bool {
    header.encoder().is_some()
}

fn n_positions(header: &Header) -> usize {
    header.encoder().map_or(0, |encoder| encoder.n_positions)
}

fn dense_dim(header: &Header) -> usize {
    header.embedding().map_or(0, |embedding| embedding.dense_dim)
}

fn is_state_space(header: &Header) -> bool {
    let mixer = header.features.recurrent.map(|recurrent| recurrent.mixer);
    matches!(mixer, Some(Mixer::StateSpace(_)))
}

/// A size of the model's recurrent layers; 0 if it has none.
fn mixed(header: &Header, size: impl Fn(&Mixer) -> usize) -> usize {
    header.features.recurrent.map_or(0, |recurrent| size(&recurrent.mixer))
}

fn has_dense(header: &Header) -> bool {
    header.features.dense.is_some() || is_parallel(header)
}

fn is_parallel(header: &Header) -> bool {
    header.features.more.parallel_ffn.is_some()
}

/// Whether mixture and layer beside it have norms of their own.
fn has_norms_beside(header: &Header) -> bool {
    is_parallel(header) && !header.features.more.is_shared_expert
}

fn has_full_heads(header: &Header) -> bool {
    header.features.more.full_heads.is_some()
}

fn has_inputs(header: &Header) -> bool {
    input_dim(header) > 0
}

fn input_dim(header: &Header) -> usize {
    header.features.more.layer_input_dim
}

fn has_next(header: &Header) -> bool {
    header.features.more.has_next
}

fn has_expert_biases(header: &Header) -> bool {
    header.features.experts.is_some_and(|experts| experts.has_biases)
}

fn has_ffn_biases(header: &Header) -> bool {
    header.features.ffn_bias || has_expert_biases(header)
}

// A kind is the index of its row.
const _: () = {
    let mut index = 0;
    while index < TABLE.len() {
        assert!(TABLE[index].kind as usize == index);
        index += 1;
    }
};

type Shape = fn(&Header) -> (usize, usize);

const fn once(kind: TensorKind, name: &'static str, role: TensorRole, shape: Shape) -> TensorSpec {
    let order = RowOrder::Plain;
    TensorSpec { kind, name, is_per_layer: false, role, order, shape, is_present: |_| true }
}

const fn in_each_layer(
    kind: TensorKind,
    name: &'static str,
    role: TensorRole,
    shape: Shape,
) -> TensorSpec {
    TensorSpec { is_per_layer: true, ..once(kind, name, role, shape) }
}

impl TensorSpec {
    const fn ordered(self, order: RowOrder) -> TensorSpec {
        TensorSpec { order, ..self }
    }

    const fn present_if(self, is_present: fn(&Header) -> bool) -> TensorSpec {
        TensorSpec { is_present, ..self }
    }
}

impl TensorKind {
    fn spec(self) -> &'static TensorSpec {
        &TABLE[self as usize]
    }

    /// Name of the kind in messages.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Whether each layer has a tensor of this kind.
    pub fn is_per_layer(self) -> bool {
        self.spec().is_per_layer
    }

    /// Use of the tensor.
    pub fn role(self) -> TensorRole {
        self.spec().role
    }

    /// Order of the tensor's rows.
    pub fn order(self) -> RowOrder {
        self.spec().order
    }

    /// Whether the tensor holds one part for each expert of a mixture, one after the other.
    pub fn is_per_expert(self) -> bool {
        matches!(self, W1 | W2 | W3 | B1 | B2 | B3)
    }

    /// Whether dense layers of a model of mixtures lack this kind.
    fn is_of_mixture(self) -> bool {
        self.is_per_expert() || matches!(self, Router | RouterBias | ChoiceBias)
    }

    /// Whether recurrent layers lack this kind.
    fn is_of_attention(self) -> bool {
        matches!(self, Wq | Wk | Wv | Wo | Bq | Bk | Bv | Bo | QNorm | KNorm | Sinks | OutputGate)
    }

    /// Whether only recurrent layers have this kind.
    pub fn is_of_recurrence(self) -> bool {
        matches!(
            self,
            MixIn
                | MixGate
                | MixOut
                | MixControls
                | MixConv
                | MixDecay
                | MixStepBias
                | MixNorm
                | MixConvBias
                | MixSkip
        )
    }

    /// Whether only the block behind the last layer has this kind.
    pub fn is_of_next(self) -> bool {
        matches!(self, NextJoin | NextEmbeddingNorm | NextHiddenNorm | NextNorm)
    }

    /// Whether the tensor is a vector, which is always f32.
    pub fn is_vector(self) -> bool {
        self.role() == Vector
    }
}

impl Header {
    /// Kinds of tensors of this model, in the order of its file.
    pub(super) fn kinds(&self) -> impl Iterator<Item = TensorKind> {
        TABLE.iter().filter(|spec| (spec.is_present)(self)).map(|spec| spec.kind)
    }

    /// Whether the model has tensors of `kind`. The file's share need not hold them.
    pub fn has(&self, kind: TensorKind) -> bool {
        (kind.spec().is_present)(self)
    }

    /// Whether `layer` has a tensor of `kind`, if the model has this kind.
    pub fn has_in(&self, kind: TensorKind, layer: usize) -> bool {
        match kind {
            kind if kind.is_of_next() => self.next_layer() == Some(layer),
            DenseW1 | DenseW2 | DenseW3 => self.is_dense(layer) || is_parallel(self),
            kind if kind.is_of_mixture() => !self.is_dense(layer),
            kind if kind.is_of_attention() && self.mixer(layer).is_some() => false,
            kind if kind.is_of_recurrence() => self.mixer(layer).is_some(),
            Wq | Wo | QNorm => !self.has_full_heads(layer),
            Wk | Wv | KNorm => !self.has_full_heads(layer) && self.has_own_kv(layer),
            FullWq | FullWo | FullQNorm => self.has_full_heads(layer),
            FullWk | FullWv | FullKNorm => self.has_full_heads(layer) && self.has_own_kv(layer),
            _ => true,
        }
    }

    /// `[rows, cols]` of a tensor of `kind`; vectors have one row.
    pub fn shape(&self, kind: TensorKind) -> (usize, usize) {
        (kind.spec().shape)(self)
    }

    /// The matrix that turns the last hidden state into logits.
    pub fn classifier(&self) -> TensorKind {
        let is_once = self.packed.is_none_or(|packed| packed.shares_embedding);
        match self.shared_classifier && is_once {
            true => Embedding,
            false => Classifier,
        }
    }

    /// Whether a tensor of `kind` is a matrix that is multiplied, and so quantised if the model is.
    pub fn is_multiplied(&self, kind: TensorKind) -> bool {
        match kind.role() {
            Vector | TensorRole::Router => false,
            Matrix | TensorRole::Classifier => !self.is_narrow(kind),
            TensorRole::Embedding => kind == self.classifier() && self.embedding().is_none(),
        }
    }

    /// Whether the rows of a matrix are too short for groups, so that it stays f32.
    pub(super) fn is_narrow(&self, kind: TensorKind) -> bool {
        kind == InputOut && !input_dim(self).is_multiple_of(GROUP_MIN)
    }

    /// Number of columns of every matrix; groups lie along the columns.
    pub fn matrix_cols(&self) -> impl Iterator<Item = usize> + Clone {
        let is_matrix = |spec: &&TensorSpec| !matches!(spec.role, Vector | TensorRole::Router);
        let is_there = |spec: &&TensorSpec| (spec.is_present)(self) && !self.is_narrow(spec.kind);
        let matrices = TABLE.iter().filter(is_matrix).filter(is_there);
        matrices.map(|spec| (spec.shape)(self).1)
    }
}
