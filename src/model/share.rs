//! The part of a model that one node holds.

use std::ops::Range;

use crate::format::model::{Header, TensorId};

/// The layers of a model that one node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// First layer, and the layer after the last.
    pub layers: Range<usize>,
    /// Whether the node also embeds tokens and turns the last activations into logits.
    pub has_ends: bool,
}

impl Share {
    /// The whole model that `header` describes.
    pub fn whole(header: &Header) -> Share {
        Share { layers: 0..header.n_layers, has_ends: true }
    }

    /// The part of the model in the file of `header`.
    pub fn of_file(header: &Header) -> Share {
        match &header.share {
            Some(share) => Share { layers: share.layers.clone(), has_ends: share.has_ends },
            None => Share::whole(header),
        }
    }

    /// Whether the share contains all of `other`.
    pub fn includes(&self, other: &Share) -> bool {
        let (own, others) = (&self.layers, &other.layers);
        own.start <= others.start && others.end <= own.end && (self.has_ends || !other.has_ends)
    }

    /// Whether tensor `id` belongs to the share.
    pub fn holds(&self, id: TensorId) -> bool {
        match id.kind.is_per_layer() {
            true => self.layers.contains(&id.layer),
            false => self.has_ends,
        }
    }
}
