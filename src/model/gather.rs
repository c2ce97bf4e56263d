//! What the nodes of a team bring together.

use std::ops::Range;

use super::batch::ForwardError;

/// Who needs what all nodes have computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Every node.
    All,
    /// The first.
    Lead,
}

/// Brings together what the nodes of a team have computed: a [`Transformer`](super::Transformer) calls it
/// at the same places of a pass on all of them.
pub trait Gather {
    /// `bytes` are rows of `row_bytes`, of which this node has filled its own of `parts`, two ranges of a
    /// row's bytes for each node. Returns when the others' are there too, if it is one of those that need them.
    ///
    /// # Errors
    /// If that will not be; what the streams held is worth nothing then.
    fn gather(
        &mut self,
        bytes: &mut [u8],
        row_bytes: usize,
        parts: &[[Range<usize>; 2]],
        to: To,
    ) -> Result<(), ForwardError>;
}
