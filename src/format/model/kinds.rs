//! The table of tensors: a row for each kind that a model may have, in the order of the file.
//!
//! Code that lists, sizes, stores or packs tensors uses the table. For a family with a new tensor, add a
//! [`TensorKind`] and its row at the end, and the exporter's row of names.

use super::header::Header;

/// Purpose of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// Norm before attention.
    AttentionNorm,
    /// Norm before the feed-forward layer.
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

static TABLE: [TensorSpec; 29] = [
    in_each_layer(AttentionNorm, "attention_norm", Vector, |h| (1, h.dim)),
    in_each_layer(FfnNorm, "ffn_norm", Vector, |h| (1, h.dim)),
    once(FinalNorm, "final_norm", Vector, |h| (1, h.dim)),
    once(Embedding, "embedding", TensorRole::Embedding, |h| (h.vocab_size, h.dim)),
    in_each_layer(Wq, "wq", Matrix, |h| (h.q_dim(), h.dim)).ordered(RowOrder::RopePairs),
    in_each_layer(Wk, "wk", Matrix, |h| (h.kv_dim(), h.dim)).ordered(RowOrder::RopePairs),
    in_each_layer(Wv, "wv", Matrix, |h| (h.kv_dim(), h.dim)),
    in_each_layer(Wo, "wo", Matrix, |h| (h.dim, h.q_dim())),
    in_each_layer(W1, "w1", Matrix, |h| (h.n_ffns() * h.ffn_dim, h.dim)),
    in_each_layer(W2, "w2", Matrix, |h| (h.n_ffns() * h.dim, h.ffn_dim)),
    in_each_layer(W3, "w3", Matrix, |h| (h.n_ffns() * h.ffn_dim, h.dim)),
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
    in_each_layer(B3, "b3", Vector, |h| (1, h.n_ffns() * h.ffn_dim)).present_if(has_ffn_biases),
    in_each_layer(DenseW1, "dense_w1", Matrix, |h| (h.dense_ffn_dim(), h.dim))
        .present_if(|h| h.features.dense.is_some()),
    in_each_layer(DenseW2, "dense_w2", Matrix, |h| (h.dim, h.dense_ffn_dim()))
        .present_if(|h| h.features.dense.is_some()),
    in_each_layer(DenseW3, "dense_w3", Matrix, |h| (h.dense_ffn_dim(), h.dim))
        .present_if(|h| h.features.dense.is_some()),
];

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
        self.is_per_expert() || matches!(self, Router | RouterBias)
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
            DenseW1 | DenseW2 | DenseW3 => self.is_dense(layer),
            kind if kind.is_of_mixture() => !self.is_dense(layer),
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
            Matrix | TensorRole::Classifier => true,
            TensorRole::Embedding => kind == self.classifier(),
        }
    }

    /// Number of columns of every matrix; groups lie along the columns.
    pub fn matrix_cols(&self) -> impl Iterator<Item = usize> + Clone {
        let is_matrix = |spec: &&TensorSpec| !matches!(spec.role, Vector | TensorRole::Router);
        let matrices = TABLE.iter().filter(is_matrix);
        // The width of dense layers is no limit if there are none.
        let is_dense = |spec: &TensorSpec| matches!(spec.kind, DenseW1 | DenseW2 | DenseW3);
        let matrices = matrices.filter(move |spec| !is_dense(spec) || (spec.is_present)(self));
        matrices.map(|spec| (spec.shape)(self).1)
    }
}
