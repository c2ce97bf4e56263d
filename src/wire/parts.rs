//! The parts of a model that an OPEN gives to the nodes of a group.

use std::ops::Range;

/// The kind of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Ranges of layers: the OPEN goes round the ring.
    Layers,
    /// Rows of each layer: the first node sends an OPEN to each other node.
    Rows {
        /// Index of the node that the OPEN goes to.
        node: u16,
        /// Whether the group also embeds ids and turns rows into logits.
        has_ends: bool,
    },
    /// No part of the model: the node drafts with a smaller model.
    Drafts,
}

/// The parts of all nodes, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts<'a> {
    /// Ranges of layers; empty if every node takes those that its own user wants.
    Layers(&'a [Range<u32>]),
    /// Shares of the rows, relative to each other.
    Rows {
        /// Share of each node.
        shares: &'a [u16],
        /// Index of the node that the OPEN goes to.
        node: u16,
        /// Whether the group also embeds ids and turns rows into logits.
        has_ends: bool,
    },
    /// No parts: the node drafts with a smaller model.
    Drafts,
}
