//! Gathers of rows among the nodes of a team.

use std::ops::Range;

use super::batch::ForwardError;

/// Nodes that need the gathered rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Every node.
    All,
    /// The first.
    Lead,
}

/// Rows whose columns are spread over the nodes.
#[derive(Debug)]
pub struct SpreadRows<'a> {
    /// `[m, row_bytes]`, of which this node has filled its own part.
    pub bytes: &'a mut [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    /// The two byte ranges of a row that each node computes.
    pub parts: &'a [[Range<usize>; 2]],
    /// Nodes that receive the parts.
    pub to: To,
}

/// Exchanges rows among the nodes of a team: a [`Transformer`](super::Transformer) calls it at the same
/// places of a pass on all of them.
pub trait Gather {
    /// Returns when the others' parts of `rows` are there too, if this node is one of those that need them.
    ///
    /// # Errors
    /// If that will not be; what the streams held is worth nothing then.
    fn gather(&mut self, rows: SpreadRows<'_>) -> Result<(), ForwardError>;

    /// Most bytes of a node's part of rows for [`Gather::start`], the same on all nodes.
    fn start_max(&self) -> usize;

    /// Starts to send this node's part of the last of `rows`. Rows before it are those started and not
    /// finished: one at most.
    ///
    /// # Errors
    /// See [`Gather::gather`].
    fn start(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError>;

    /// Returns when the others' parts of the first of `rows` are there too. `rows` are all that were started
    /// and not finished.
    ///
    /// # Errors
    /// See [`Gather::gather`].
    fn finish(&mut self, rows: &mut [SpreadRows<'_>]) -> Result<(), ForwardError>;
}
