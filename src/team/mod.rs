//! A team: up to [`NODES_MAX`] nodes that share every layer of a model by output rows.
//!
//! The lead, node 0, begins an epoch ([`Lead::open`]) and sends each batch to all members ([`Lead::start`]).
//! Then every node runs the same pass, computes its own columns of each product and sends them to the others
//! ([`Lead::gather`], [`Member::gather`]): all nodes call the same gathers in the same order. This module
//! moves bytes and knows nothing of layers.
//!
//! Each pair of nodes has two links, one each way, in an endpoint of its own ([`Mesh`]).
//!
//! # Epochs
//!
//! An epoch holds as long as no link of it breaks. Within it each node counts its gathers from 0, and a PART
//! names its gather. A node that gives an epoch up sends a REPORT to every node that may wait for it, because
//! the lead's next OPEN may stand behind parts that cannot be taken yet. Frames of another epoch are dropped
//! everywhere: the lead waits for all to be READY, so each member knows a new epoch before it gets parts of
//! it.
//!
//! # Acknowledgements, and what is lost
//!
//! A node begins a gather when it has all parts of the one before. So its part acknowledges theirs, and links
//! send acknowledgements of their own only if no gather follows for a while. A lost part is retransmitted
//! once its link shows that later ones have come. No part comes after the last one of a pass: it is requested
//! when it takes longer than recent parts did, by a timer of the waiting node that is about a round trip.

mod error;
mod exchange;
mod incoming;
mod lead;
mod member;
mod mesh;
mod opening;
mod parts;
mod patience;

#[cfg(test)]
mod tests;

pub use error::TeamError;
pub use exchange::{TeamFigures, UNDER_WAY_MAX};
pub use lead::Lead;
pub use member::{Member, Order};
pub use mesh::Mesh;
#[cfg(test)]
pub(crate) use mesh::{LinkThread, Time};
pub use opening::Opening;
pub use parts::{Gathered, Part, To};

pub use crate::wire::frame::{
    FrameSpan, FrameWants, NodeLine, Sizes, TEAM_NODES_MAX as NODES_MAX, Work,
};

use crate::transport::Micros;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::PART_AT;

/// [`reorder_us`](crate::transport::link::LinkConfig::reorder_us) of a team's links: every node waits for a
/// lost part, which costs more than a datagram that comes twice.
pub const REORDER_US: Micros = 30;

/// [`n_banks`](crate::transport::link::LinkConfig::n_banks) of the links of a team of `n_nodes`, a power
/// of two. The fewer nodes, the longer the parts of a long batch, which links have to hold; and the fewer
/// banks, the more of the next one is still in the processor's caches.
pub const fn banks(n_nodes: usize) -> usize {
    match n_nodes {
        ..=2 => 16,
        3..=4 => 8,
        _ => 4,
    }
}

/// Most bytes of a node's part of rows that are gathered while the nodes compute. A link holds that many,
/// whatever it is sealed with, so that a sender need not wait for room at a node that has given up and takes
/// nothing any more.
pub const fn started_max(n_nodes: usize) -> usize {
    banks(n_nodes) * (FRAME_MAX - PART_AT)
}
