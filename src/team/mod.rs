//! A team: up to [`NODES_MAX`] nodes that share every layer of a model by output rows.
//!
//! The lead, node 0, begins an epoch ([`Lead::open`]) and tells all members each batch ([`Lead::start`]). Then
//! every node runs the same pass, computes its own columns of each product and gives them to the others
//! ([`Lead::gather`], [`Member::gather`]): all nodes call the same gathers in the same order. This module moves
//! bytes and knows nothing of layers.
//!
//! Each pair of nodes has two links, one each way, in an endpoint of its own ([`Mesh`]).
//!
//! # Epochs
//!
//! An epoch holds as long as no link of it breaks. Within it each node counts its gathers from 0, so a PART
//! says which one it is for. A node that gives an epoch up sends FAILED to whoever may wait for it: then
//! nobody waits for a part that never comes, although the lead's next OPEN may stand behind parts that cannot
//! be taken yet. Frames of another epoch are dropped wherever they turn up: a member is told of a new epoch before
//! anybody sends parts of it, as the lead waits for all to be READY.
//!
//! # Acknowledgements, and what is lost
//!
//! A node begins a gather when it has all parts of the one before. So its part acknowledges theirs, and links send
//! acknowledgements of their own only where no gather follows for a while. A part that was lost is asked for once
//! its link shows that later ones have come, or, as behind the last one of a pass nothing comes, when it takes
//! longer than parts took of late: by a timer of the waiting node, which is of the order of a round trip.

mod error;
mod exchange;
mod incoming;
mod lead;
mod member;
mod mesh;
mod notice;
mod parts;
mod patience;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use error::TeamError;
pub use exchange::{TeamFigures, UNDER_WAY_MAX};
pub use lead::Lead;
pub use member::{Member, Order};
pub use mesh::Mesh;
pub use notice::TeamNotice;
pub use parts::{Gathered, Part, To};

pub use crate::wire::frame::{FrameSpan, FrameWants};
pub use crate::wire::team::{NODES_MAX, Opening, TeamLine, Work};

use crate::transport::Micros;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::team::PART_AT;

/// [`reorder_us`](crate::transport::link::LinkConfig::reorder_us) of a team's links: every node waits for what is
/// lost, and a datagram that comes twice costs less than that.
pub const REORDER_US: Micros = 30;

/// [`n_banks`](crate::transport::link::LinkConfig::n_banks) of the links of a team of so many nodes, a power of two. The
/// fewer nodes, the longer the parts of a long batch, which links are to hold; and the fewer banks take turns, the more
/// of the next one is still in the processor's caches.
pub const fn banks(n_nodes: usize) -> usize {
    match n_nodes {
        ..=2 => 16,
        3..=4 => 8,
        _ => 4,
    }
}

/// Most bytes of a node's part of rows that are gathered while the nodes compute. So much a link holds, whatever it is
/// sealed with: a node that has given up takes nothing any more, and whoever sends to it does not wait for room.
pub const fn started_max(n_nodes: usize) -> usize {
    banks(n_nodes) * (FRAME_MAX - PART_AT)
}
