//! The ring: which node has which layers, and how batches travel round.
//!
//! [`Topology`] lists the nodes and their layers. [`Master`] and [`Worker`] are the protocol of a node, as
//! pure state machines: they move bytes between a [`Link`] and the caller's [`Rows`], report when there is
//! something to compute, and know no clock, no socket and no arithmetic. The caller passes the time in, in
//! microseconds.
//!
//! The master begins an *epoch* with OPEN, which goes round the ring: every node takes the layers that are
//! assigned to it, or those of its own user if none are assigned, empties its streams and adds its line. When
//! OPEN comes back, batches flow: each node receives the rows of a batch, computes, and sends them on; the
//! last one returns the rows whose logits are wanted. A node repeats REPORT while the node before it is
//! missing, and while it is busy for long: it computes, packs weights or waits for its team ([`Hop::say`]).
//! The master waits as long as there is progress, and names the node that it waits for. A node that finds
//! frames or its KV lost sends REPORT to the next; the master then begins a new epoch, and the caller submits again what the
//! streams are to hold. Frames of another epoch are dropped everywhere, and links keep their order, so
//! nothing is computed twice within an epoch.
//!
//! The caller of the master decides which pages of keys and values a stream has. PAGES tells the other nodes,
//! ahead of the batch that needs them.
//!
//! Nodes may keep pages of prompts in files, each its own layers' part. KEEP names a page that the batch
//! before has computed. FETCH goes round like a batch, in order with the batches: every node reads the named
//! pages, as far as all nodes before it could, and the master learns how many all have.
//!
//! When layers move and all batches have been answered, nothing is computed again: the OPEN names the epoch
//! before, and nodes that have its KV say so. If all nodes with layers do, MOVED goes round: each node that
//! gets it sends the KV of its former layers as KV frames, which travel on to the new owners, and then MOVED.
//! Only one node sends at a time, so there is room for its frames. A second MOVED tells the nodes that all
//! has arrived.

mod address;
mod batch;
mod course;
mod error;
mod fetch;
mod held;
mod hop;
mod master;
mod moving;
mod options;
mod pages;
pub(crate) mod plan;
mod team_file;
mod times;
mod topology;
mod worker;

#[cfg(test)]
mod hostile;

use crate::wire::Dtype;
use crate::wire::frame::{FrameKeep, FramePage, KvPiece, NodeLine, Reason, Sizes, Status, Way};

pub use crate::group::Setbacks;
pub use address::Address;
pub(crate) use batch::{fits, token_bytes};
pub(crate) use error::RingError;
pub(crate) use fetch::PagesToRead;
pub use held::Held;
pub(crate) use held::{KvPart, KvParts};
pub(crate) use hop::Hop;
pub(crate) use master::Master;
pub use options::Misfits;
pub(crate) use options::{MasterOptions, MasterStep};
pub(crate) use team_file::{TEAM_PORT_DEFAULT, TeamNode};
pub(crate) use times::Times;
pub use topology::Member;
pub(crate) use topology::{PORT_DEFAULT, Place, TeamPlace, Topology, TopologyError};
pub(crate) use worker::{Opening, Worker, WorkerStep};

/// A node's neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The node that sends to this one.
    Prev,
    /// The node that this one sends to.
    Next,
}

/// A change of the link to a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The peer is there, for the first time or after [`Event::Silent`].
    Up(Side),
    /// The peer has been silent for a while. Frames in flight may still arrive.
    Silent(Side),
    /// The peer began again: frames in flight are lost.
    Reset(Side),
    /// A peer with other settings answers, or no peer does.
    Refused {
        /// The node, and the reason.
        what: String,
        /// Whether the refusal is proven, and trying again is in vain.
        is_final: bool,
    },
}

/// A node's two links: in from the node before, out to the next. Frames arrive whole, once and
/// in order, unless there was a [`Event::Reset`].
pub(crate) trait Link {
    /// A free buffer for the next frame to send; `None` if the receiver has no room, or there
    /// is no link.
    fn reserve(&mut self) -> Option<&mut [u8]>;

    /// Sends the first `bytes` of the reserved buffer.
    fn commit(&mut self, bytes: usize);

    /// Leaves the oldest frame, and those that may come behind it, until there is the room that
    /// [`Link::reserve`] did not have, or an event.
    fn leave(&mut self);

    /// The oldest frame that has arrived.
    fn front(&mut self) -> Option<&[u8]>;

    /// Drops the oldest frame.
    fn release(&mut self);

    /// The next change.
    fn next_event(&mut self) -> Option<Event>;

    /// Whether a neighbour answers.
    fn is_up(&mut self, side: Side) -> bool;

    /// Round trip to the next node in microseconds; 0 if unknown.
    fn rtt_us(&mut self) -> u32;

    /// Bytes of the longest datagram that the way to the next node takes; 0 over a stream.
    fn datagram_bytes(&mut self) -> u32;

    /// Name of the carrier to the next node.
    fn carrier(&self) -> &'static str;
}

/// The rows of activations that batches are made of, and what layers store of them.
pub(crate) trait Rows {
    /// Takes rows that were received, `[n, dim]` as `dtype`, from row `first` on.
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]);

    /// Writes row `row` as `dtype` to `out`, `[dim]`.
    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]);

    /// Gives a stream another page; `false` if there is no such stream or page.
    fn set_page(&mut self, page: &FramePage, sizes: &Sizes) -> bool;

    /// Keeps a computed page in a file; `false` if there is no such stream or page.
    fn keep(&mut self, page: &FrameKeep, sizes: &Sizes) -> bool;

    /// Writes the next piece of KV that moves away; see [`Held::give`].
    fn give_kv(&mut self, out: &mut [u8]) -> Option<KvPiece>;

    /// Stores a piece of KV that another node had; `None` if the layer is another node's, `false` if there is
    /// no place for it.
    fn take_kv(&mut self, piece: &KvPiece, bytes: &[u8], sizes: &Sizes) -> Option<bool>;

    /// Ends a move of KV; see [`Held::moved`].
    fn moved(&mut self, epoch: u32, sizes: &Sizes);
}

/// `line` with what is known of the link to the next node.
fn with_link(line: NodeLine, link: &mut impl Link) -> NodeLine {
    let carrier = heapless::String::try_from(link.carrier()).unwrap_or_default();
    let way = Way { rtt_us: link.rtt_us(), datagram_bytes: link.datagram_bytes(), carrier };
    NodeLine { way, ..line }
}
