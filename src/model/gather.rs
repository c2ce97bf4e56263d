//! Exchange of rows among the nodes of a team.

use std::ops::Range;

use super::batch::ForwardError;

/// Nodes that get the gathered rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Every node.
    All,
    /// The lead, which is the first node.
    Lead,
}

/// Rows whose columns are spread over the nodes of a team.
#[derive(Debug)]
pub struct SpreadRows<'a> {
    /// `[m, row_bytes]`; this node has filled its own columns.
    pub bytes: &'a mut [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Byte ranges of a row for each node: the parts that the node computes.
    pub parts: &'a [Vec<Range<usize>>],
    /// Nodes that receive the parts.
    pub to: To,
}

/// Exchanges rows among the nodes of a team. The [`Transformer`](super::Transformer) of each node calls it at
/// the same steps of a pass.
pub trait Gather {
    /// Sends this node's part of `rows`. If this node is among those in `rows.to`, waits for the parts of the
    /// others.
    ///
    /// # Errors
    /// If parts do not arrive. The streams' KV is then invalid.
    fn gather(&mut self, rows: SpreadRows<'_>) -> Result<(), ForwardError>;

    /// Maximum bytes of a node's part of rows for [`Gather::start`], equal on all nodes.
    fn start_max(&self) -> usize;

    /// Starts to send this node's part of the last of `rows`. The rows before it have been started and not
    /// finished; there is at most one.
    ///
    /// # Errors
    /// See [`Gather::gather`].
    fn start(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError>;

    /// Waits for the other nodes' parts of the first of `rows`. `rows` are all that have been started and not
    /// finished.
    ///
    /// # Errors
    /// See [`Gather::gather`].
    fn finish(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError>;
}
