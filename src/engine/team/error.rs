//! Why a node cannot be part of a team.

use std::fmt;

use crate::engine::ring::NodeError;
use crate::model::{SharesError, StartError};

/// Why a node cannot be part of a team.
#[derive(Debug)]
#[non_exhaustive]
pub enum TeamStartError {
    /// The model cannot be shared with these shares.
    Shares(SharesError),
    /// This node has no memory for its part.
    Start(StartError),
    /// The model file has only some rows, and not those of this board.
    Rows,
    /// The node cannot work.
    Node(NodeError),
}

impl fmt::Display for TeamStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TeamStartError::Shares(e) => e.fmt(f),
            TeamStartError::Start(e) => e.fmt(f),
            TeamStartError::Rows => f.write_str(
                "its file has other rows: give all the same shares, or it the whole model",
            ),
            TeamStartError::Node(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for TeamStartError {}
