//! Features of model families' layers that Llama's lack.

use super::embedding::EmbeddingModel;
use super::layer_set::LayerSet;
use super::more_features::MoreFeatures;
use super::recurrent::RecurrentLayers;

/// Maximum number of experts that a token may use.
pub const EXPERTS_ACTIVE_MAX: usize = 16;

/// Function from the gate and up projections to the input of the down projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// gate · sigmoid(gate) · up.
    Silu,
    /// gelu(gate) · up, with the tanh approximation of GELU.
    GeluTanh,
    /// gelu(gate) · up, or gelu(gate) in a layer without up, with the error function.
    GeluErf,
    /// With gate at most `limit` and up within ±`limit`: gate · sigmoid(1.702 · gate) · (up + 1).
    ClampedSilu {
        /// Limit of gate and up; above 0.
        limit: f32,
    },
}

/// Mixture of experts: feed-forward layers of which each token uses some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts.
    pub n: usize,
    /// Number of experts that a token uses.
    pub n_active: usize,
    /// Whether the weights of the used experts add up to 1; otherwise those of all experts do.
    pub is_normalised: bool,
    /// Whether router and experts add biases.
    pub has_biases: bool,
    /// Whether an expert's weight is the sigmoid of its score, to which a bias is added in the choice alone. Otherwise
    /// weights are a softmax.
    pub is_sigmoid: bool,
}

/// Dense layers of a model of mixtures: they have one feed-forward layer without experts. In a model without mixtures,
/// layers whose feed-forward layer has another width than the others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseLayers {
    /// The dense layers.
    pub layers: LayerSet,
    /// Width of their feed-forward layer.
    pub ffn_dim: usize,
}

/// RoPE divisors for all of a long text.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Length of the longest text that is not a long one, in tokens.
    pub original_ctx: usize,
    /// A divisor for each pair of a head.
    pub divisors: Vec<f32>,
}

/// Growth of queries with their position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Queries at `pos` are multiplied by `1 + slope · ln(1 + floor(pos / original_ctx))`.
    pub slope: f32,
    /// Context length in training.
    pub original_ctx: usize,
}

/// Features of a model family's layers that Llama's lack. The default is Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether attention's output has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down have biases, in a model without experts.
    pub ffn_bias: bool,
    /// Whether each head's queries and keys are normalised before they are rotated.
    pub qk_norm: bool,
    /// Whether there are norms after attention and after the feed-forward layer.
    pub post_norms: bool,
    /// Whether each head's softmax has one more score, whose weight belongs to no position.
    pub sinks: bool,
    /// Whether attention's output is multiplied by the sigmoid of a gate, before its projection.
    pub output_gate: bool,
    /// Function applied to the gate.
    pub activation: Activation,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of attention's scores; `None` for 1 / sqrt(head_dim).
    pub attention_scale: Option<f32>,
    /// Factor of the outputs of attention and of the feed-forward layer, before they are added to the
    /// residual stream.
    pub residual_scale: f32,
    /// Layers that attend to all positions although the model has a window.
    pub full_layers: LayerSet,
    /// Layers without RoPE.
    pub unrotated_layers: LayerSet,
    /// Base of the RoPE frequencies of layers with a window, which are then not scaled.
    pub local_theta: Option<f64>,
    /// How many values of a head are rotated, from the first on; `None` for all.
    pub rotary_dim: Option<usize>,
    /// Factor of RoPE's cosines and sines, except in layers with `local_theta`.
    pub rope_magnitude: f32,
    /// Divisor of each pair's RoPE frequency, for models without a scaling formula; empty for others.
    pub rope_divisors: Vec<f32>,
    /// Divisors for long texts, if they are different.
    pub long_rope: Option<LongRope>,
    /// Growth of queries with their position, if there is one.
    pub temperature: Option<Temperature>,
    /// Experts, if the feed-forward layers are mixtures.
    pub experts: Option<Experts>,
    /// Dense layers of a model of mixtures, or layers of another width, if there are any.
    pub dense: Option<DenseLayers>,
    /// Recurrent layers, if the model has any.
    pub recurrent: Option<RecurrentLayers>,
    /// Features that few families have.
    pub more: MoreFeatures,
    /// Properties of a model of embeddings; `None` for others.
    pub embedding: Option<EmbeddingModel>,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            qkv_bias: false,
            output_bias: false,
            ffn_bias: false,
            qk_norm: false,
            post_norms: false,
            sinks: false,
            output_gate: false,
            activation: Activation::Silu,
            embedding_scale: 1.0,
            attention_scale: None,
            residual_scale: 1.0,
            full_layers: LayerSet::default(),
            unrotated_layers: LayerSet::default(),
            local_theta: None,
            rotary_dim: None,
            rope_magnitude: 1.0,
            rope_divisors: Vec::new(),
            long_rope: None,
            temperature: None,
            experts: None,
            dense: None,
            recurrent: None,
            more: MoreFeatures::default(),
            embedding: None,
        }
    }
}
