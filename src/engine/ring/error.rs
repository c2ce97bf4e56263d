//! Why a node of a ring cannot work.

use std::io;

use super::frames::COUNT_MAX;
use crate::model::CheckError;

/// Why a node cannot work.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// The link's socket failed.
    Link(io::Error),
    /// The system refused a thread.
    Thread(io::Error),
    /// A row of the model does not fit into a frame.
    Width,
    /// There are more streams or rows than frames can number.
    Counts,
    /// The weights are damaged, so that the other nodes would work in vain.
    Weights(CheckError),
}

impl std::fmt::Display for NodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NodeError::Link(e) => write!(f, "the link failed: {e}"),
            NodeError::Thread(e) => write!(f, "cannot start the link's thread: {e}"),
            NodeError::Width => write!(f, "the model is too wide for the ring's frames"),
            NodeError::Counts => write!(
                f,
                "a ring numbers up to {COUNT_MAX} streams and rows of a batch; use fewer on it"
            ),
            NodeError::Weights(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for NodeError {}
