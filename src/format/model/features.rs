//! Features of families' layers that Llama's lack.

/// Most layers that a [`LayerSet`] can tell apart.
pub const LAYER_SET_MAX: usize = 256;

/// Most experts that a token may use.
pub const EXPERTS_ACTIVE_MAX: usize = 16;

/// Some of a model's layers, the first [`LAYER_SET_MAX`] at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSet(pub(super) [u64; LAYER_SET_MAX / 64]);

impl LayerSet {
    /// The set of `layers`; `None` if one is beyond what a set can hold.
    pub fn new(layers: impl Iterator<Item = usize>) -> Option<LayerSet> {
        let mut set = LayerSet::default();
        for layer in layers {
            *set.0.get_mut(layer / 64)? |= 1 << (layer % 64);
        }
        Some(set)
    }

    /// Whether `layer` is one of them.
    pub fn contains(&self, layer: usize) -> bool {
        self.0.get(layer / 64).is_some_and(|word| word >> (layer % 64) & 1 == 1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.end() == 0
    }

    /// The layer after the last of them.
    pub(super) fn end(&self) -> usize {
        (0..LAYER_SET_MAX).rev().find(|layer| self.contains(*layer)).map_or(0, |last| last + 1)
    }
}

/// From the gate and up projections to the input of the down projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// gate · sigmoid(gate) · up.
    Silu,
    /// gelu(gate) · up, with the GELU that is approximated by tanh.
    GeluTanh,
    /// With gate at most `limit` and up within ±`limit`: gate · sigmoid(1.702 · gate) · (up + 1).
    ClampedSilu {
        /// Above 0.
        limit: f32,
    },
}

/// Feed-forward layers of which each token uses some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub n: usize,
    /// How many a token uses.
    pub n_active: usize,
    /// Whether the weights of those add up to 1, not those of all.
    pub is_normalised: bool,
    /// Whether router and experts add biases.
    pub has_biases: bool,
}

/// Layers of a model of mixtures that have one feed-forward layer instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseLayers {
    /// Which layers.
    pub layers: LayerSet,
    /// Width of their feed-forward layer.
    pub ffn_dim: usize,
}

/// Divisors of frequencies in all of a text that is long.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Tokens of the longest text that is not.
    pub original_ctx: usize,
    /// A divisor for each pair.
    pub divisors: Vec<f32>,
}

/// Features of a family's layers that Llama's lack; the default is Llama.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether attention's output has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down of a feed-forward layer that is no mixture have biases.
    pub ffn_bias: bool,
    /// Whether each head's queries and keys are normalised before they are rotated.
    pub qk_norm: bool,
    /// Whether there is a norm behind attention and one behind the feed-forward layer, too.
    pub post_norms: bool,
    /// Whether each head's softmax has one more score, whose weight goes nowhere.
    pub sinks: bool,
    /// Function applied to the gate.
    pub activation: Activation,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of attention's scores; `None` for 1 / sqrt(head_dim).
    pub attention_scale: Option<f32>,
    /// Factor of each half of a layer before it is added to the residual stream.
    pub residual_scale: f32,
    /// Layers that look at all positions though the model has a window.
    pub full_layers: LayerSet,
    /// Layers that do not rotate queries and keys.
    pub unrotated_layers: LayerSet,
    /// Base of the RoPE frequencies of layers with a window, which are not scaled then.
    pub local_theta: Option<f64>,
    /// How many values of a head are rotated, its first; `None` for all.
    pub rotary_dim: Option<usize>,
    /// Factor of the cosines and sines of rotations, except in layers with `local_theta`.
    pub rope_magnitude: f32,
    /// Divisor of each pair's frequency, for models without a formula; empty for the others.
    pub rope_divisors: Vec<f32>,
    /// If others take their place in long texts.
    pub long_rope: Option<LongRope>,
    /// If the feed-forward layers are mixtures.
    pub experts: Option<Experts>,
    /// Layers of a model of mixtures that are none.
    pub dense: Option<DenseLayers>,
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
            experts: None,
            dense: None,
        }
    }
}
