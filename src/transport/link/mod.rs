//! The link protocol between a node and its neighbours, without sockets and clocks: datagrams
//! and times go in, frames and datagrams come out.
//!
//! [`LinkOut`] opens the link to the next node and sends; [`LinkIn`] listens to the previous one
//! and receives. Between them frames arrive once, whole and in order, over a carrier that
//! loses, repeats, reorders and damages datagrams; memory is bounded on both ends.
//!
//! # Words
//!
//! | word | means |
//! |---|---|
//! | frame | what a node hands over at once, up to [`FRAME_MAX`]; `seq` numbers those of a session |
//! | chunk | a frame's part that fits a datagram: [`CHUNK_BYTES`] of it, a tag included if it is sealed |
//! | datagram | a header and a chunk (DATA), or a control message |
//! | piece | part of a DATA datagram that is too long for the path |
//! | bank | memory of one frame; frame `seq` is in bank `seq % n_banks` |
//! | window | the frames that the receiver has banks for; `window_end` is behind the last of them |
//! | NACK | in an ACK: the chunks of a frame that are missing, as bits |
//! | probe | a PING with a chunk of the oldest frame, when an ACK is overdue |
//! | generation | the frames that are sealed under one pair of keys |
//! | carrier | what datagrams travel by: UDP, TCP, the kernel module, a simulated network |
//!
//! # States
//!
//! ```text
//!                HELLO →  ← WELCOME  CONFIRM →  ← ACK
//!   Connecting ──────────────────────────────────────────► Up
//!      │                                            ▲     │ ▲
//!      │ ← REFUSE, or a WELCOME                     │     │ │ anything of the
//!      │   that does not fit      the same exchange │     │ │ session arrives
//!      ▼                                            │     ▼ │
//!   Refused ────────────────────────────────────────┘    Lost
//! ```
//!
//! A link is lost when it has heard nothing for [`LOST_US`], or its connection closed. HELLO is repeated
//! whenever the neighbour does not answer: it may have restarted. If it has, the exchange gives a new
//! session, and the old one's frames are gone, which [`LinkEvent::Reset`] tells. A session that only fell
//! silent goes on where it was.
//!
//! # Roles
//!
//! The sender keeps a frame until it is acknowledged, retransmits the chunks that a NACK names, and probes
//! when it hears nothing. The receiver acknowledges delivered frames, names chunks that are still missing
//! after a while for reordering, and opens the window as banks become free.
//!
//! [`CHUNK_BYTES`]: crate::wire::datagram::CHUNK_BYTES
//! [`FRAME_MAX`]: crate::wire::datagram::FRAME_MAX

mod bank;
mod burst;
mod config;
mod handshake;
mod joiner;
mod path;
mod progress;
mod receiver;
mod rtt;
mod sender;
mod seq;
mod times;
mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use crate::sys::net::Sending;
pub use burst::{Burst, Mode, OutgoingDatagram};
pub use config::{BANKS_MAX, LinkConfig};
pub use progress::{LinkEvent, LinkState, LinkStats, Refused, Unheard};
pub use receiver::LinkIn;
pub use sender::LinkOut;
pub use times::LOST_US;
pub use wire::Wire;

use super::Micros;
use crate::wire::WireError;
use crate::wire::datagram::{Datagram, DatagramHeader, DatagramKind};

/// Both links of a node.
#[derive(Default)]
pub struct Links {
    /// To the next node.
    pub next: Option<LinkOut>,
    /// From the previous node.
    pub prev: Option<LinkIn>,
}

impl Links {
    /// Takes a whole datagram as it came; `bytes` is scratch afterwards.
    ///
    /// # Errors
    /// Why the datagram was dropped without touching a link.
    pub fn on_datagram(
        &mut self,
        now: Micros,
        from: SocketAddr,
        bytes: &mut [u8],
        wire: &mut impl Wire,
    ) -> Result<(), WireError> {
        let datagram = Datagram::new_checked(&*bytes)?;
        let header = DatagramHeader::parse_unproven(&datagram)?;
        if header.kind != DatagramKind::Data {
            datagram.prove()?;
        }
        match (&mut self.next, &mut self.prev) {
            (_, Some(prev)) if header.kind.is_forward() => {
                prev.on_datagram(now, from, &header, bytes, wire);
            }
            (Some(next), _) if !header.kind.is_forward() => {
                next.on_datagram(now, from, &header, bytes);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends what is due: frames first, because nodes wait for them.
    pub fn transmit(&mut self, now: Micros, wire: &mut impl Wire) {
        if let Some(next) = &mut self.next {
            next.transmit(now, wire);
        }
        if let Some(prev) = &mut self.prev {
            prev.transmit(now, wire);
        }
    }

    /// When [`Links::transmit`] has something to do next, if nothing comes before.
    pub fn deadline(&self) -> Micros {
        let next = self.next.as_ref().map_or(Micros::MAX, LinkOut::deadline);
        next.min(self.prev.as_ref().map_or(Micros::MAX, LinkIn::deadline))
    }

    /// Reads the bank that the next frame will be written to, so that the writes hit the L1 cache. All banks together
    /// are larger than this cache, so each has been evicted before its turn comes.
    pub fn prefetch(&self) {
        if let Some(next) = &self.next {
            next.prefetch();
        }
    }

    /// Begins a new round over the links: frames left for later count as waiting again, and requests for room are
    /// forgotten.
    pub fn begin_turn(&mut self) {
        if let Some(next) = &mut self.next {
            next.begin_turn();
        }
        if let Some(prev) = &mut self.prev {
            prev.begin_turn();
        }
    }

    /// Whether there is no next node, or it does not answer.
    pub(super) fn is_next_missed(&self) -> bool {
        self.next.as_ref().is_none_or(|next| *next.state() != LinkState::Up)
    }

    /// Whether a frame, an event or room that was asked for waits for the node.
    pub fn is_ready(&self) -> bool {
        self.next.as_ref().is_some_and(LinkOut::is_ready)
            || self.prev.as_ref().is_some_and(LinkIn::is_ready)
    }
}

#[cfg(test)]
impl Links {
    /// Bytes of the banks of both links.
    pub(crate) fn bank_bytes(&self) -> usize {
        let next = self.next.as_ref().map_or(0, LinkOut::bank_bytes);
        next + self.prev.as_ref().map_or(0, LinkIn::bank_bytes)
    }

    /// Frames that both links hold, whole or in part.
    pub(crate) fn held(&self) -> usize {
        let next = self.next.as_ref().map_or(0, LinkOut::in_flight);
        next + self.prev.as_ref().map_or(0, LinkIn::held)
    }
}
