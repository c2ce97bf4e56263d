//! A session of the receiving half: which frames are delivered and which are coming.

use std::net::SocketAddr;

use super::super::bank::Bank;
use super::super::config::BANKS_MAX;
use super::super::handshake::Agreed;
use super::super::progress::LinkStats;
use super::super::seq::{bank, is_before};
use super::super::times::{ACK_DELAY_US, SILENCE_US};
use super::super::wire::{Wire, send_control};
use crate::transport::Micros;
use crate::wire::control::{ACK_MAX, Ack, ChunkBits, NACKS_MAX, Nack};
use crate::wire::datagram::{DatagramHeader, DatagramKind};
use crate::wire::hello::Hello;

/// Silence after which the sender is told this node's address, which may have changed; and silence after which this
/// ends.
const CALL_US: Micros = 300_000;
const CALLS_END_US: Micros = 60_000_000;
/// Longest time between chunks of a frame: initial value and lower bound, and upper bound for slow wires.
const CHUNKS_US: (Micros, Micros) = (100, 2_000);

/// Frames `first..next` are delivered and not released, `next..` are coming.
pub(super) struct InSession {
    pub(super) agreed: Agreed,
    /// State of the session in the kernel module.
    pub(super) followed: Followed,
    pub(super) n_banks: u32,
    pub(super) gaps: Gaps,
    pub(super) counter: u64,
    pub(super) newest_ping: Option<u64>,
    pub(super) window: InWindow,
    pub(super) echo: u32,
    pub(super) due: Due,
    pub(super) heard_at: Micros,
}

/// Deadlines of requests for missing chunks, and their measures.
pub(super) struct Gaps {
    /// The `reorder_us` of [`super::super::config::LinkConfig`].
    reorder_us: Micros,
    pub(super) srtt_us: u32,
    /// When each bank's missing chunks are to be requested.
    pub(super) nack_at: [Micros; BANKS_MAX],
    /// Estimate of how long chunks of a frame stay behind others.
    chunks_us: Micros,
}

/// Frames of the session, by number.
pub(super) struct InWindow {
    pub(super) first: u32,
    pub(super) next: u32,
    /// The frame behind the newest that is known to be sent.
    pub(super) seen_end: u32,
    /// End of the window that the sender was last told.
    pub(super) told_end: u32,
}

/// The next answer, and its deadline.
pub(super) struct Due {
    pub(super) kind_due: Option<DatagramKind>,
    /// Whether the next answer asks for the next frame, which is not known to be sent.
    asks: bool,
    /// Deadline for the acknowledgement of a delivered frame.
    pub(super) ack_at: Micros,
    pub(super) call_at: Micros,
}

/// State of a session in the kernel module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// The module knows nothing of the session.
    No,
    /// The module knows the neighbour's old address.
    Moved,
    /// The module knows the session and the neighbour's address.
    Yes,
}

impl InSession {
    pub(super) fn new(
        agreed: Agreed,
        now: Micros,
        n_banks: usize,
        reorder_us: Micros,
    ) -> InSession {
        InSession {
            agreed,
            followed: Followed::No,
            n_banks: n_banks as u32,
            counter: 0,
            newest_ping: None,
            window: InWindow { first: 0, next: 0, seen_end: 0, told_end: 0 },
            echo: 0,
            heard_at: now,
            due: Due {
                kind_due: Some(DatagramKind::Ack),
                asks: false,
                ack_at: Micros::MAX,
                call_at: 0,
            },
            gaps: Gaps { reorder_us, srtt_us: 0, nack_at: [0; BANKS_MAX], chunks_us: CHUNKS_US.0 },
        }
    }

    /// Whether `hello` is refused because the session's node still answers and is another one. A node that restarted is
    /// not refused: its address is the same, or the session is silent.
    pub(super) fn is_held_against(&self, now: Micros, from: SocketAddr, hello: &Hello) -> bool {
        let is_other = self.agreed.instance != hello.instance && self.agreed.from != from;
        is_other && now <= self.heard_at + SILENCE_US
    }

    /// Whether a datagram may be the neighbour's: with seals it proves itself from any address.
    pub(super) fn owns(&self, from: &SocketAddr, header: &DatagramHeader) -> bool {
        let is_known = self.agreed.from == *from || self.agreed.keys.is_some();
        self.agreed.id == header.session && is_known
    }

    /// Whether a neighbour without a key has proven with `agreed` where it is now.
    pub(super) fn is_resumed_by(&self, agreed: &Agreed) -> bool {
        let has_keys = self.agreed.keys.is_some() || agreed.keys.is_some();
        let ours = (self.agreed.id, self.agreed.instance);
        !has_keys && (agreed.resume, agreed.instance) == ours
    }

    /// Notes the address that the neighbour sends from, as it has proven.
    pub(super) fn move_to(&mut self, from: SocketAddr) {
        if self.agreed.from != from {
            self.agreed.from = from;
            if self.followed == Followed::Yes {
                self.followed = Followed::Moved;
            }
        }
    }

    /// When to tell a silent neighbour this node's address.
    pub(super) fn calls_at(&self) -> Option<Micros> {
        let at = self.due.call_at.max(self.heard_at + CALL_US);
        (at < self.heard_at + CALLS_END_US).then_some(at)
    }

    /// Makes an answer of this kind due, but not in place of a PONG, which contains the same.
    pub(super) fn make_due(&mut self, kind: DatagramKind) {
        if self.due.kind_due != Some(DatagramKind::Pong) {
            self.due.kind_due = Some(kind);
        }
    }

    /// Notes that the neighbour learns by other means which frames were released.
    pub(super) fn imply_released(&mut self, now: Micros) {
        self.window.told_end = self.window.first.wrapping_add(self.n_banks);
        let is_all = self.window.first == self.window.next;
        self.due.ack_at = if is_all { Micros::MAX } else { now + ACK_DELAY_US };
    }

    /// Requests the next frame, although it may not have been sent.
    pub(super) fn ask(&mut self) {
        if !is_before(self.window.next, self.window.seen_end) {
            self.due.asks = true;
            self.make_due(DatagramKind::Ack);
        }
    }

    /// How long a frame may be delayed behind later ones.
    fn patience(&self) -> Micros {
        Micros::from(self.gaps.srtt_us / 4).max(self.gaps.reorder_us)
    }

    /// Time for which chunks of a frame may be delayed behind others, because devices deliver several at a time.
    pub(super) fn chunk_patience(&self) -> Micros {
        self.patience().max(self.gaps.chunks_us)
    }

    /// Notes a chunk that came twice: it may have been requested while it was in flight, so patience grows.
    pub(super) fn on_duplicate(&mut self) {
        self.gaps.chunks_us = (self.gaps.chunks_us + self.gaps.chunks_us / 16).min(CHUNKS_US.1);
    }

    /// Notes a complete frame. Patience shrinks slowly, because it delays frames with lost chunks.
    pub(super) fn on_complete(&mut self) {
        self.gaps.chunks_us = (self.gaps.chunks_us - self.gaps.chunks_us / 64).max(CHUNKS_US.0);
    }

    /// Notes that frames before `end` have been sent.
    pub(super) fn see(&mut self, now: Micros, end: u32) {
        while is_before(self.window.seen_end, end) {
            self.gaps.nack_at[bank(self.window.seen_end, self.n_banks)] = now + self.patience();
            self.window.seen_end = self.window.seen_end.wrapping_add(1);
        }
    }

    /// Delivers what is complete, in order.
    pub(super) fn deliver(&mut self, banks: &[Bank], stats: &mut LinkStats) {
        while self.window.next.wrapping_sub(self.window.first) < self.n_banks {
            let bank = &banks[bank(self.window.next, self.n_banks)];
            if !bank.is_complete() {
                break;
            }
            stats.frames += 1;
            stats.bytes += u64::from(bank.travel_bytes());
            self.window.next = self.window.next.wrapping_add(1);
        }
    }

    /// Banks of incomplete frames that were sent, with the frames' numbers.
    pub(super) fn incomplete<'a>(
        &self,
        banks: &'a [Bank],
    ) -> impl Iterator<Item = (usize, u32)> + use<'a> {
        let (next, n_banks) = (self.window.next, self.n_banks);
        let n_seen = self.window.seen_end.wrapping_sub(next).min(n_banks);
        (0..n_seen)
            .map(move |i| next.wrapping_add(i))
            .map(move |seq| (bank(seq, n_banks), seq))
            .filter(|(index, _)| !banks[*index].is_complete())
    }

    pub(super) fn name_missing(&mut self, now: Micros, banks: &[Bank], ack: &mut Ack) {
        if std::mem::take(&mut self.due.asks) && !is_before(self.window.next, self.window.seen_end)
        {
            // There is room: it is the first.
            let _ = ack.nacks.push(Nack { seq: self.window.next, missing: ChunkBits::MAX });
        }
        let again = Micros::from(self.gaps.srtt_us) * 3 / 2;
        // A silent sender is asked less and less often.
        let silence = now.saturating_sub(self.heard_at);
        let again = again.max(2 * self.chunk_patience()).max(silence / 2);
        for (index, seq) in self.incomplete(banks) {
            if now >= self.gaps.nack_at[index] && ack.nacks.len() < NACKS_MAX {
                let nack = Nack { seq, missing: banks[index].missing() };
                // There is room: the length was compared.
                let _ = ack.nacks.push(nack);
                self.gaps.nack_at[index] = now + again;
            }
        }
    }

    pub(super) fn send(&mut self, wire: &mut impl Wire, kind: DatagramKind, mut ack: Ack) {
        ack.next = self.window.next;
        ack.window_end = self.window.first.wrapping_add(self.n_banks);
        ack.echo = self.echo;
        (self.window.told_end, self.due.ack_at) = (ack.window_end, Micros::MAX);
        self.counter += 1;
        let mut payload = [0; ACK_MAX];
        let len = ack.emit(&mut payload);
        let id = (kind, self.agreed.id, self.counter);
        send_control(wire, self.agreed.from, id, self.agreed.keys.as_ref(), &payload[..len]);
    }
}
