//! The link protocol between a node and its neighbours, without sockets and clocks: datagrams
//! and times go in, frames and datagrams come out.
//!
//! [`LinkOut`] opens the link to the next node and sends; [`LinkIn`] listens to the previous one
//! and receives. Between them frames arrive once, whole and in order, over a carrier that
//! loses, repeats, reorders and damages datagrams; memory is bounded on both ends.
//!
//! - A **session** begins with HELLO, WELCOME, CONFIRM and the first ACK. It survives silence;
//!   it ends when another takes its place, and frames in flight end with it.
//! - The receiver has a fixed number of **banks**. It says in each ACK how far the sender may
//!   go, and which chunks have not come although it waited for reordered ones.
//! - A chunk whose datagram is too long for the **path** travels in pieces.
//! - The sender keeps frames until they are acknowledged, sends again what is named as missing,
//!   and asks with PING and a chunk of its oldest frame when it hears nothing.

mod bank;
mod handshake;
mod joiner;
mod path;
mod progress;
mod receiver;
mod rtt;
mod sender;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use bank::{Burst, Mode, Outgoing};
pub use progress::{Event, Refused, State, Unheard};
pub use receiver::LinkIn;
pub use sender::LinkOut;

use handshake::Agreed;
use progress::Progress;

use super::Micros;
pub use crate::sys::net::Sending;
use crate::wire::Error;
use crate::wire::datagram::{DATAGRAM_BYTES, Datagram, HEADER_LEN, Header, Kind, TAG_BYTES};
use crate::wire::hello::RingInfo;
use crate::wire::seal::{Key, SessionKeys, derive};

/// A neighbour that says nothing for so long is lost.
pub const LOST_US: Micros = 1_000_000;
/// After so much silence the neighbour may have restarted: the sending half asks with a HELLO, and
/// the receiving one gives its place to another node.
const SILENCE_US: Micros = 600_000;
/// How long frames may wait for their acknowledgement: others may come meanwhile, and what the
/// node sends in reply goes first. The sender expects it.
const ACK_DELAY_US: Micros = 500;
/// A link with nothing to say sends a PING as often.
const PING_US: Micros = 250_000;
/// Most banks a link may have: the kernel's mapping has as many.
pub const BANKS_MAX: usize = 64;

/// What both ends of a node's links need.
#[derive(Clone)]
pub struct LinkConfig {
    /// This node.
    pub node: RingInfo,
    /// The ring's key, if it has one.
    pub key: Option<Key>,
    /// Frames that each direction keeps in memory: a power of two, 2 to [`BANKS_MAX`].
    pub n_banks: usize,
    /// Unpredictable bytes, different for each run of a node.
    pub seed: [u8; 32],
}

impl LinkConfig {
    /// With 16 banks.
    pub fn new(node: RingInfo, key: Option<Key>, seed: [u8; 32]) -> LinkConfig {
        LinkConfig { node, key, n_banks: 16, seed }
    }

    /// The seed has been used: from the one that is here now nobody finds it again, nor what came of it.
    pub(in crate::transport) fn spend_seed(&mut self) {
        self.seed = derive(&self.seed, "LEAP spent seed", &[]);
    }
}

/// What a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Smoothed round-trip time, 0 if unknown; the receiving side has the sender's.
    pub srtt_us: u32,
    /// Mean deviation from it; on the sending side only.
    pub rttvar_us: u32,
    /// Frames sent first, or delivered.
    pub frames: u64,
    /// Bytes of these frames, seals included.
    pub bytes: u64,
    /// Bytes of the longest datagram that the path takes; 0 over a stream, and on the receiving side.
    pub datagram_bytes: u32,
    /// Datagrams of data sent or accepted, whole or in pieces.
    pub datagrams: u64,
    /// Chunks sent again.
    pub retransmits: u64,
    /// Chunks that had arrived before.
    pub duplicates: u64,
    /// Datagrams that were damaged, forged, stale, or not for this link.
    pub dropped: u64,
}

/// Where datagrams go out. Losing some is allowed.
pub trait Wire {
    /// Sends chunks of a frame. If there is no room now, the sender comes again.
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> Sending;
    /// Sends a datagram of another kind.
    fn control(&mut self, to: SocketAddr, datagram: &[u8]);
    /// Sends datagrams that lie side by side, of `datagram_bytes` each but the last, which may be shorter.
    fn pieces(&mut self, to: SocketAddr, bytes: &[u8], datagram_bytes: usize) -> Sending {
        for datagram in bytes.chunks(datagram_bytes) {
            self.control(to, datagram);
        }
        Sending::Gone
    }
}

/// Both links of a node.
#[derive(Default)]
pub struct Links {
    /// To the next node.
    pub next: Option<LinkOut>,
    /// From the previous node.
    pub prev: Option<LinkIn>,
}

impl Links {
    /// Takes a datagram, whole and as it came; `bytes` is scratch afterwards.
    ///
    /// # Errors
    /// Why it was dropped without touching a link.
    pub fn on_datagram(
        &mut self,
        now: Micros,
        from: SocketAddr,
        bytes: &mut [u8],
        wire: &mut impl Wire,
    ) -> Result<(), Error> {
        let datagram = Datagram::new_checked(&*bytes)?;
        let header = Header::parse_unproven(&datagram)?;
        if header.kind != Kind::Data {
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

    /// Sends what is due: frames first, as nodes wait for them.
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

    /// Brings the room for the next frame to be sent into the CPU's nearest cache, which the frames that
    /// wait for their acknowledgement are too many for.
    pub fn warm(&self) {
        if let Some(next) = &self.next {
            next.warm();
        }
    }

    /// The node looks at everything anew: what it left for later waits for it again, and room that it
    /// asked for is not kept for it.
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
        self.next.as_ref().is_none_or(|next| *next.state() != State::Up)
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

/// `heard_at` as if time had stood still while this node itself was stopped: then the neighbour
/// could not be heard, and its silence means nothing.
fn without_pause(heard_at: Micros, before: Micros, now: Micros) -> Micros {
    let pause = now.saturating_sub(before);
    if pause > 2 * PING_US { (heard_at + pause).min(now) } else { heard_at }
}

/// Whether counters of a session may begin anew. Without keys anybody can count as high as there are
/// numbers: if nothing newer follows for a while, the newest was not the neighbour's.
fn is_recounted(agreed: &Agreed, now: Micros, heard_at: Micros) -> bool {
    agreed.keys.is_none() && now > heard_at + SILENCE_US
}

/// Whether `a` comes before `b`, where numbers wrap around.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Sends a control datagram of a session, sealed if it has keys.
fn send_control(
    wire: &mut impl Wire,
    to: SocketAddr,
    (kind, session, counter): (Kind, u64, u64),
    keys: Option<&SessionKeys>,
    payload: &[u8],
) {
    let tag_bytes = if keys.is_some() { TAG_BYTES } else { 0 };
    let end = HEADER_LEN + payload.len() + tag_bytes;
    let mut datagram = [0; DATAGRAM_BYTES];
    let (raw, rest) = datagram.split_first_chunk_mut().expect("it is longer than a header");
    let body = &mut rest[..end - HEADER_LEN];
    body[..payload.len()].copy_from_slice(payload);
    let header = Header::control(kind, session, counter, body.len());
    header.emit(raw, |_| 0);
    if let Some(keys) = keys {
        keys.seal(&header, raw, body);
    }
    header.emit_for(raw, body);
    wire.control(to, &datagram[..end]);
}

/// The plain payload of a session's control datagram.
fn open_control<'a>(
    header: &Header,
    bytes: &'a mut [u8],
    keys: Option<&mut SessionKeys>,
) -> Result<&'a [u8], Error> {
    let (raw, payload) = bytes.split_at_mut(HEADER_LEN);
    let len = match keys {
        Some(keys) => keys.open(header, raw, payload)?,
        None => payload.len(),
    };
    Ok(&payload[..len])
}
