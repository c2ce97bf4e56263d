//! Errors of a ring.

use std::fmt;
use std::ops::Range;

use super::topology::covers;
use super::{NodeLine, Status};

/// Reason why a ring cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The ring made no progress for longer than allowed.
    Timeout {
        /// Seconds allowed.
        seconds: u64,
        /// Object of the wait, in words.
        what: String,
    },
    /// The next node proved that it and this one do not fit.
    Refused(String),
    /// A node cannot do what was asked.
    Node {
        /// The node's line of the OPEN, with its answer.
        line: Box<NodeLine>,
    },
    /// The nodes do not have the model's layers, each once.
    Layers {
        /// Layers of every node, in words.
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
            RingError::Node { line } => f.write_str(&refusal(line)),
            RingError::Layers { found, n_layers } => {
                write!(f, "the ring has layers {found}; the model has 0..{n_layers}")
            }
        }
    }
}

impl std::error::Error for RingError {}

/// A hint if more or less nodes answer than layers are assigned to: some have orders of another ring.
pub(super) fn strangers(lines: &[NodeLine], assigned: &[Range<u32>]) -> Option<String> {
    let names = || {
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        names.join(", ")
    };
    let is_other = !assigned.is_empty() && lines.len() != assigned.len();
    is_other.then(|| format!("{} answer, and the ring has {} nodes", names(), assigned.len()))
}

/// The reason why the nodes of these lines, at most `n_nodes`, do not have the model's layers as `assigned`
/// (if that says anything); `None` if they do.
pub(super) fn misfit(
    lines: &[NodeLine],
    assigned: &[Range<u32>],
    n_nodes: usize,
    n_layers: u32,
) -> Option<RingError> {
    if let Some(line) = lines.iter().find(|line| line.status != Status::Ready) {
        return Some(RingError::Node { line: Box::new(line.clone()) });
    }
    let is_as_assigned = assigned.is_empty() || lines.iter().map(|line| &line.layers).eq(assigned);
    if lines.len() <= n_nodes && is_as_assigned && covers(lines, n_layers) {
        return None;
    }
    let found: Vec<String> =
        lines.iter().map(|l| format!("{}..{}", l.layers.start, l.layers.end)).collect();
    Some(RingError::Layers { found: found.join(", "), n_layers })
}

/// Why a node cannot take its part of a ring, and what to do.
pub(super) fn refusal(line: &NodeLine) -> String {
    let name = line.name.as_str();
    why_unfit(line, name, &format!("{name}'s"))
}

/// See [`refusal`]. The reason calls the node "it".
pub(super) fn nameless_refusal(line: &NodeLine) -> String {
    why_unfit(line, "it", "its")
}

/// A refusal whose subject is `name`, and whose possessive is `whose`.
fn why_unfit(line: &NodeLine, name: &str, whose: &str) -> String {
    let layers = &line.layers;
    let layers = format!("{}..{}", layers.start, layers.end);
    match line.status {
        Status::Context(max) => {
            format!("{name} keeps contexts of up to {max} tokens; start it with a larger --ctx")
        }
        Status::Streams(max) => {
            format!("{name} keeps up to {max} streams; start it with more --streams")
        }
        Status::Batch(max) => {
            format!("{name} takes batches of up to {max} rows; start it with --batch")
        }
        Status::Memory | Status::Ready => format!(
            "{name} has not enough memory for layers {layers}; try a smaller --ctx, or fewer layers"
        ),
        Status::Unassigned => {
            format!("{name} has no layers: give it --split and --end, or a ring file")
        }
        Status::Lacks => format!(
            "{name} is to have layers {layers}, and its file holds {}..{}; give it the whole model, or \
             what `leap export --layers {layers}` writes",
            line.held.start, line.held.end
        ),
        Status::Fixed => format!("{name} is a team, whose layers stay: it cannot have {layers}"),
        Status::Team => {
            format!("a board of {whose} team cannot take its part: {name} says which one, and why")
        }
        Status::Damaged => format!(
            "weights of layers {layers} on {name} do not match their checksums; copy its model anew"
        ),
    }
}
