//! Errors of a team's nodes.

use std::fmt;

/// Reason why a call of a team's node failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TeamError {
    /// The epoch is over: the node with this index was lost, restarted, gave up or sent what no sound node
    /// sends. The lead opens the next one.
    Lost {
        /// Index of the node.
        node: usize,
    },
    /// A member cannot be ready for what the lead asks for.
    Refused {
        /// Name of the node.
        node: String,
        /// The member's reason.
        why: String,
    },
    /// Members were not ready in time.
    Timeout {
        /// Name of the first member that was not ready.
        node: String,
        /// Time that the lead waited, in seconds.
        seconds: u64,
    },
    /// The lead has begun another epoch, has closed this one or was lost: back to
    /// [`Member::next`](super::Member::next).
    Superseded,
    /// No epoch is open.
    NotOpen,
    /// This node cannot open its links, for this reason.
    Links(String),
    /// The caller was interrupted.
    Interrupted,
}

impl fmt::Display for TeamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TeamError::Lost { node } => write!(f, "node {node} of the team is lost"),
            TeamError::Refused { node, why } => write!(f, "{node} refuses: {why}"),
            TeamError::Timeout { node, seconds } => {
                write!(f, "{node} was not ready within {seconds} s")
            }
            TeamError::Superseded => write!(f, "the team's lead has gone on without this node"),
            TeamError::NotOpen => write!(f, "the team is not open"),
            TeamError::Links(why) => write!(f, "no links to the other nodes of the team: {why}"),
            TeamError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for TeamError {}
