//! Why a ring cannot go on.

use std::fmt;

use super::Status;

/// Why a ring cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// It made no progress for longer than allowed.
    Timeout {
        /// Seconds allowed.
        seconds: u64,
        /// What it waited for.
        what: String,
    },
    /// The next node proved that it and this one do not fit.
    Refused(String),
    /// A node cannot do what was asked.
    Node {
        /// Its name.
        name: String,
        /// Its answer.
        status: Status,
    },
    /// The nodes do not have the model's layers, each once.
    Layers {
        /// What every node has.
        found: String,
        /// Layers of the model.
        n_layers: u32,
    },
}

impl RingError {
    /// Whether the ring was there, or could have been, and is lost for good.
    pub fn is_lost(&self) -> bool {
        matches!(self, RingError::Timeout { .. })
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Timeout { seconds, what } => {
                write!(f, "the ring is lost: no progress for {seconds} s; {what}")
            }
            RingError::Refused(what) => f.write_str(what),
            RingError::Node { name, status } => match status {
                Status::Context(max) => write!(
                    f,
                    "{name} keeps contexts of up to {max} tokens; start it with a larger --ctx"
                ),
                Status::Streams(max) => {
                    write!(f, "{name} keeps up to {max} streams; start it with more --streams")
                }
                Status::Batch(max) => {
                    write!(f, "{name} takes batches of up to {max} rows; start it with --batch")
                }
                Status::Memory | Status::Ready => {
                    write!(f, "{name} has not enough memory; try a smaller --ctx")
                }
            },
            RingError::Layers { found, n_layers } => {
                write!(f, "the ring has layers {found}; the model has 0..{n_layers}")
            }
        }
    }
}

impl std::error::Error for RingError {}
