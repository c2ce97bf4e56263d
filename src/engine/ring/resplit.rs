//! Other layers for the nodes of a running ring.

use std::fmt;
use std::ops::Range;

use crate::engine::error::StepError;
use crate::engine::weights::{Listener, Preparing};
use crate::model::{PackError, PackReport, StartError};
use crate::ring::{Member, RingError};
use crate::wire::frame::NodeLine;

/// Prepares the weights of a stage that has taken other layers: packs new ones, and compares them with their
/// checksums. Returns the report of packing, if weights were packed.
pub type Prepare<'a, S> =
    dyn Fn(&mut S, Listener<'_>) -> Result<Option<PackReport>, PackError> + 'a;

/// Why the nodes of a ring did not get other layers.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResplitError {
    /// There is no ring, or the layers are not a valid split of it.
    Split(String),
    /// This node has no memory for its part, or its file does not hold it.
    Start(StartError),
    /// The weights of this node's part are damaged, or cannot be packed.
    Weights(PackError),
    /// Another node cannot take its part, or the ring is lost.
    Step(StepError),
}

impl fmt::Display for ResplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResplitError::Split(what) => f.write_str(what),
            ResplitError::Start(e) => e.fmt(f),
            ResplitError::Weights(e) => e.fmt(f),
            ResplitError::Step(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ResplitError {}

impl From<StepError> for ResplitError {
    fn from(error: StepError) -> ResplitError {
        ResplitError::Step(error)
    }
}

impl ResplitError {
    /// Whether the ring can continue as before.
    pub(super) fn leaves_a_ring(&self) -> bool {
        let ring = match self {
            ResplitError::Split(_) => return false,
            ResplitError::Start(_) | ResplitError::Weights(_) => return true,
            ResplitError::Step(StepError::Ring(error)) => error,
            ResplitError::Step(_) => return false,
        };
        matches!(ring, RingError::Node { .. } | RingError::Layers { .. })
    }
}

/// Logs only that part of preparing weights which makes a node slower.
pub(super) fn tell_unpacked(what: Preparing<'_>) {
    if let Preparing::Unpacked(why) = what {
        log::warn!("{why}; weights are used unpacked, which is slower");
    }
}

/// Layers of the nodes of `lines` after nodes that are not among `members` have left: members have all
/// layers, the others none. `None` if no node leaves, a new one comes, or the order changes.
pub(super) fn left_by(lines: &[NodeLine], members: &[Member]) -> Option<Vec<Range<usize>>> {
    let (mut end, mut rest) = (0, members.iter().peekable());
    let layers = |line: &NodeLine| match rest.next_if(|member| line.name == member.name.as_str()) {
        Some(member) => {
            end = member.layers.end;
            member.layers.clone()
        }
        None => end..end,
    };
    let layers: Vec<Range<usize>> = lines.iter().map(layers).collect();
    let leaves = lines.len() > members.len() && rest.next().is_none();
    leaves.then_some(layers)
}

/// Checks that `layers` leave those of nodes that are teams unchanged.
pub(crate) fn check_fixed(lines: &[NodeLine], layers: &[Range<usize>]) -> Result<(), ResplitError> {
    let moves = |(line, layers): &(&NodeLine, &Range<usize>)| {
        line.nodes > 1 && **layers != (line.layers.start as usize..line.layers.end as usize)
    };
    match lines.iter().zip(layers).find(moves) {
        None => Ok(()),
        Some((NodeLine { name, layers, .. }, _)) => Err(ResplitError::Split(format!(
            "{name} is a team, whose layers stay: {}..{}",
            layers.start, layers.end
        ))),
    }
}

/// Checks that `layers` give each of `n_nodes` nodes some of the model's layers, and leave none out.
pub(crate) fn check_split(
    layers: &[Range<usize>],
    n_nodes: usize,
    n_layers: usize,
) -> Result<(), ResplitError> {
    let mut end = 0;
    let joins = layers.iter().all(|layers| {
        let joins = layers.start == end && layers.end > end;
        end = layers.end;
        joins
    });
    match joins && end == n_layers && layers.len() == n_nodes {
        true => Ok(()),
        false => {
            let given: Vec<String> =
                layers.iter().map(|layers| format!("{}..{}", layers.start, layers.end)).collect();
            Err(ResplitError::Split(format!(
                "layers {} are no split of 0..{n_layers} over {n_nodes} nodes",
                given.join(", ")
            )))
        }
    }
}
