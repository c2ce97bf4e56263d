//! Sets of a model's layers.

/// Maximum number of layers of a model for which a [`LayerSet`] can tell each apart.
pub const LAYER_SET_MAX: usize = 256;

/// A set of layers, among the model's first [`LAYER_SET_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSet(pub(super) [u64; LAYER_SET_MAX / 64]);

impl LayerSet {
    /// The set of `layers`; `None` if one is beyond [`LAYER_SET_MAX`].
    pub fn new(layers: impl Iterator<Item = usize>) -> Option<LayerSet> {
        let mut set = LayerSet::default();
        for layer in layers {
            *set.0.get_mut(layer / 64)? |= 1 << (layer % 64);
        }
        Some(set)
    }

    /// Whether `layer` is in the set.
    pub fn contains(&self, layer: usize) -> bool {
        self.0.get(layer / 64).is_some_and(|word| word >> (layer % 64) & 1 == 1)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.end() == 0
    }

    /// The layer after the last of the set.
    pub(super) fn end(&self) -> usize {
        (0..LAYER_SET_MAX).rev().find(|layer| self.contains(*layer)).map_or(0, |last| last + 1)
    }
}
