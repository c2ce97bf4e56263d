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

    /// The whole model, with the block behind its last layer ([`Header::next_layer`]) if there is one.
    pub fn with_next(header: &Header) -> Share {
        Share { layers: 0..header.n_layers_and_next(), has_ends: true }
    }

    /// The part of the model in the file of `header`, without the block behind the last layer.
    pub fn of_file(header: &Header) -> Share {
        match &header.share {
            Some(share) => Share { layers: share.layers.clone(), has_ends: share.has_ends },
            None => Share::whole(header),
        }
    }

    /// The share's layers that are the model's, without the block behind the last.
    pub fn own_layers(&self, header: &Header) -> Range<usize> {
        self.layers.start..self.layers.end.min(header.n_layers)
    }

    /// Whether the share contains the block behind the model's last layer.
    pub fn has_next(&self, header: &Header) -> bool {
        self.layers.end > header.n_layers
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
