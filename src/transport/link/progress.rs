//! States and events of a link.

use std::fmt;
use std::net::SocketAddr;

use heapless::Deque;

use crate::transport::Micros;
use crate::wire::hello::{Name, Refusal};

/// Most events that wait for the node; one more drops the oldest.
const EVENTS_MAX: usize = 16;
/// Most refusals that are remembered, so that each is reported once.
const TOLD_MAX: usize = 16;
/// First and longest pause between two notices of unproven refusals, whatever their reasons: strangers can
/// invent any number of reasons.
const TELL_US: (Micros, Micros) = (250_000, 64_000_000);

/// State of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// No session yet.
    Connecting,
    /// The session is open, and the neighbour answers.
    Up,
    /// The session is open, and the neighbour has been silent for [`LOST_US`](super::LOST_US).
    Lost,
    /// The neighbours do not fit. The link keeps trying.
    Refused(Refused),
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Smoothed round-trip time, 0 if unknown; the receiving side has the sender's.
    pub srtt_us: u32,
    /// Mean deviation of the round-trip time; 0 on the receiving side.
    pub rttvar_us: u32,
    /// Frames sent, without retransmissions, or delivered.
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

/// An event of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The session is up: a new one, or one that was [`LinkEvent::Lost`], unharmed.
    Up {
        /// Number of the session.
        session: u64,
    },
    /// The neighbour has been silent for [`LOST_US`](super::LOST_US).
    Lost,
    /// A new session replaced the old one, whose frames in flight are gone.
    Reset,
    /// A peer and this node do not fit. Reported once for each reason, name and host.
    Refused(Refused),
    /// The next node has never been heard, and its host shows why.
    Unheard(Unheard),
}

/// Why a next node is not heard, although its host answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unheard {
    /// Address of the next node.
    pub to: SocketAddr,
    /// Whether this node uses streams; else datagrams.
    pub is_stream: bool,
    /// Whether the host accepts the other of the two.
    pub has_other: bool,
}

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.to.ip().to_canonical(), self.to.port());
        let (own, other) = if self.is_stream { ("TCP", "UDP") } else { ("UDP", "TCP") };
        match self.has_other {
            true => write!(
                f,
                "the next node is not heard on {own} port {port} of {host}, but its {other} port is \
                 open; give all nodes the same --transport"
            ),
            false => write!(
                f,
                "no program listens on {own} port {port} of {host}; start the next node, with the same \
                 --transport"
            ),
        }
    }
}

/// A peer that does not fit, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub refusal: Refusal,
    /// Whether the peer answers in the next node's place; else it greeted this node.
    pub is_next: bool,
    /// Whether the peer refuses; else this node does.
    pub by_peer: bool,
    /// Name that the peer gave itself; empty if it gave none.
    pub name: Name,
    /// Address of the peer.
    pub from: SocketAddr,
    /// Whether the peer proved for this very attempt that it holds the key. A HELLO alone proves nothing: it may be a
    /// recording.
    pub is_proven: bool,
}

impl Refused {
    /// Whether further attempts are in vain until a setting is changed. A refusal without proof may be a stranger's.
    /// Others may pass: a busy neighbour becomes free, a neighbour that waits for another node is told of this one, and
    /// a message may have been carried to the wrong node.
    pub fn is_final(&self) -> bool {
        let may_pass = matches!(
            self.refusal,
            Refusal::Busy { .. }
                | Refusal::Stray { .. }
                | Refusal::Elsewhere { .. }
                | Refusal::Other(_)
        );
        self.is_proven && !may_pass
    }

    /// Whether both would be reported in the same words. Ports are ignored, because they change with every connection.
    fn is_like(&self, other: &Refused) -> bool {
        let unplaced = |refused: &Refused| {
            let from = SocketAddr::new(refused.from.ip(), 0);
            Refused { from, ..refused.clone() }
        };
        unplaced(self) == unplaced(other)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = SocketAddr::new(self.from.ip().to_canonical(), self.from.port());
        let name = match (self.name.as_str(), self.is_next) {
            ("", true) => "the next node",
            ("", false) => "a node",
            (name, _) => name,
        };
        let how = if self.by_peer { "refuses this node" } else { "is refused" };
        let (prev, next) = if self.is_next { ("this node", name) } else { (name, "this node") };
        write!(f, "{name} at {from} {how}: {}", self.refusal.between(prev, next))
    }
}

/// State and events of one link.
pub(super) struct LinkProgress {
    pub(super) state: LinkState,
    pub(super) events: Deque<LinkEvent, EVENTS_MAX>,
    told: Deque<Refused, TOLD_MAX>,
    tell_at: Micros,
    pause: Micros,
}

impl LinkProgress {
    pub(super) fn new() -> LinkProgress {
        LinkProgress {
            state: LinkState::Connecting,
            events: Deque::new(),
            told: Deque::new(),
            tell_at: 0,
            pause: TELL_US.0,
        }
    }

    pub(super) fn tell(&mut self, event: LinkEvent) {
        if self.events.is_full() {
            self.events.pop_front();
        }
        // There is room for one.
        let _ = self.events.push_back(event);
    }

    /// Notes that the session with this number is up, with the neighbour of this name. A later refusal is
    /// then reported again.
    pub(super) fn up(&mut self, session: u64, name: &Name) {
        self.state = LinkState::Up;
        for _ in 0..self.told.len() {
            if let Some(told) = self.told.pop_front().filter(|told| told.name != *name) {
                // There was room for it.
                let _ = self.told.push_back(told);
            }
        }
        self.tell(LinkEvent::Up { session });
    }

    pub(super) fn lost(&mut self) {
        self.state = LinkState::Lost;
        self.tell(LinkEvent::Lost);
    }

    /// Reports a refusal, unless it was reported before.
    pub(super) fn refused(&mut self, now: Micros, refused: Refused) {
        if self.state != LinkState::Up && self.state != LinkState::Lost {
            self.state = LinkState::Refused(refused.clone());
        }
        let is_early = now < self.tell_at && !refused.is_proven;
        if is_early || self.told.iter().any(|told| told.is_like(&refused)) {
            return;
        }
        if !refused.is_proven {
            self.tell_at = now + self.pause;
            self.pause = (2 * self.pause).min(TELL_US.1);
        }
        if self.told.is_full() {
            self.told.pop_front();
        }
        // There is room for one.
        let _ = self.told.push_back(refused.clone());
        self.tell(LinkEvent::Refused(refused));
    }
}
