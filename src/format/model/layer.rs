//! What each layer of a model computes.

use super::header::{Header, RopeScaling};

/// What a layer computes besides the products with its matrices. Which norms and biases it has
/// follows from the tensors that are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Positions a token can look back, itself included; `None` for all.
    pub window: Option<usize>,
    /// How queries and keys are rotated; `None` if they are not.
    pub rope: Option<Rope>,
    /// What is applied to the gate.
    pub activation: Activation,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
}

/// The angles of rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling of the frequencies.
    pub scaling: Option<RopeScaling>,
}

/// What is applied to the gate of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
}

impl Header {
    /// What layer `layer` computes. The layers of Llama and Mistral are all alike; how those of
    /// another family differ is said here.
    pub fn layer(&self, layer: usize) -> LayerSpec {
        assert!(layer < self.n_layers);
        LayerSpec {
            window: self.sliding_window,
            rope: Some(Rope { theta: self.rope_theta, scaling: self.rope_scaling }),
            activation: Activation::Silu,
            norm_eps: self.norm_eps,
        }
    }

    /// What every layer computes, in order.
    pub fn layers(&self) -> impl Iterator<Item = LayerSpec> {
        (0..self.n_layers).map(|layer| self.layer(layer))
    }

    /// Positions that a token can look back in the layer where it sees most of them.
    pub fn widest_window(&self) -> usize {
        let windows = self.layers().map(|layer| layer.window.unwrap_or(usize::MAX));
        windows.max().unwrap_or(usize::MAX)
    }
}
