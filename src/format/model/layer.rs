//! Parameters of each layer of a model.

use super::features::{Activation, Temperature};
use super::header::{Header, RopeScaling};
use super::more_features::FullHeads;
use super::recurrent::Mixer;

/// Parameters of a layer besides its tensors. Norms and biases follow from the tensors that exist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Form of a recurrent layer; `None` if the layer has attention.
    pub mixer: Option<Mixer>,
    /// Width of one attention head.
    pub head_dim: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Whether the heads are [`MoreFeatures::full_heads`](super::MoreFeatures::full_heads), with tensors of their own.
    pub has_full_heads: bool,
    /// The layer whose keys and values are used: this one, or an earlier one.
    pub kv_layer: usize,
    /// Positions that a token attends to, including its own; `None` for all.
    pub window: Option<usize>,
    /// Rotation of queries and keys; `None` if they are not rotated.
    pub rope: Option<Rope>,
    /// Growth of queries with their position, if there is one.
    pub temperature: Option<Temperature>,
    /// Factor of attention's scores.
    pub attention_scale: f32,
    /// Function applied to the gate.
    pub activation: Activation,
    /// Factor of the outputs of attention and of the feed-forward layer, before they are added to the
    /// residual stream.
    pub residual_scale: f32,
    /// Epsilon: added to the mean square in RMSNorm.
    pub norm_eps: f32,
}

/// The angles of rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies.
    pub scaling: Option<RopeScaling>,
    /// Factor of the cosines and sines.
    pub magnitude: f32,
    /// How many values of a head are rotated, from the first on.
    pub dim: usize,
}

impl Header {
    /// Form of `layer` if it is recurrent; `None` if it has attention.
    pub fn mixer(&self, layer: usize) -> Option<Mixer> {
        let recurrent = self.features.recurrent?;
        recurrent.layers.contains(layer).then_some(recurrent.mixer)
    }

    /// Whether some layers are recurrent: a stream then has a state beside its keys and values.
    pub fn has_state(&self) -> bool {
        self.features.recurrent.is_some()
    }

    /// Parameters of `layer`, or of the block behind the last. All layers of Llama and Mistral are alike; those of
    /// other families differ by [`Features`](super::Features).
    pub fn layer(&self, layer: usize) -> LayerSpec {
        assert!(layer < self.n_layers_and_next());
        let features = &self.features;
        let window = self.sliding_window.filter(|_| !features.full_layers.contains(layer));
        let has_full_heads = self.has_full_heads(layer);
        let own = FullHeads { head_dim: self.head_dim, n_kv_heads: self.n_kv_heads };
        let full = features.more.full_heads.filter(|_| has_full_heads);
        let FullHeads { head_dim, n_kv_heads } = full.unwrap_or(own);
        let rope = match features.local_theta.filter(|_| window.is_some()) {
            Some(theta) => Rope { theta, scaling: None, magnitude: 1.0, dim: self.rotary_dim() },
            None => Rope {
                theta: self.rope_theta,
                scaling: self.rope_scaling,
                magnitude: features.rope_magnitude,
                dim: if has_full_heads { head_dim } else { self.rotary_dim() },
            },
        };
        let scale = 1.0 / (head_dim as f32).sqrt();
        LayerSpec {
            mixer: self.mixer(layer),
            head_dim,
            n_kv_heads,
            has_full_heads,
            kv_layer: self.kv_layer(layer).unwrap_or(layer),
            window,
            rope: Some(rope).filter(|_| !features.unrotated_layers.contains(layer)),
            temperature: features.temperature,
            attention_scale: features.attention_scale.unwrap_or(scale),
            activation: features.activation,
            residual_scale: features.residual_scale,
            norm_eps: self.norm_eps,
        }
    }

    /// Parameters of every layer, in order.
    pub fn layers(&self) -> impl Iterator<Item = LayerSpec> {
        (0..self.n_layers).map(|layer| self.layer(layer))
    }
}
