//! A session of the sending half: which frames are in flight, and what is due for them.

use super::super::bank::Bank;
use super::super::burst::Mode;
use super::super::config::BANKS_MAX;
use super::super::handshake::Agreed;
use super::super::path::Path;
use super::super::progress::LinkStats;
use super::super::rtt::Rtt;
use super::super::seq::{bank, is_before};
use super::super::times::PING_US;
use super::super::wire::{Wire, send_control};
use crate::transport::Micros;
use crate::wire::control::{Ack, ChunkBits, PING_LEN, Ping};
use crate::wire::datagram::{CHUNK_BYTES, DatagramKind, HEADER_LEN, SLOTS_BYTES, TAG_BYTES};

/// Limit of bytes in flight: at first, and the lowest after losses.
const FLIGHT_BYTES: (u32, u32) = (512 << 10, SLOTS_BYTES as u32);
/// A generation of a sealed session's keys ends after this time, or this many bytes of frames.
const GENERATION_US: Micros = 120_000_000;
const GENERATION_BYTES: u64 = 1 << 30;

/// Frames `base..sent` are on the way, `sent..head` wait.
pub(super) struct OutSession {
    pub(super) agreed: Agreed,
    pub(super) counter: u64,
    pub(super) newest_answer: Option<u64>,
    /// Answers in a row that do not fit what was acknowledged.
    pub(super) n_astray: u32,
    pub(super) generation: KeyAge,
    pub(super) window: OutWindow,
    /// The `reorder_us` of [`super::super::config::LinkConfig`].
    reorder_us: Micros,
    flight: Flight,
    pub(super) rtt: Rtt,
    pub(super) heard_at: Micros,
    pub(super) pings: Pings,
    pub(super) probing: Probing,
}

/// Frames of the session, by number.
pub(super) struct OutWindow {
    pub(super) base: u32,
    pub(super) sent: u32,
    pub(super) head: u32,
    pub(super) window_end: u32,
    /// Frames that the neighbour has banks for.
    n_theirs: u32,
}

/// Bytes in flight, and their limit.
pub(super) struct Flight {
    flight_bytes: u32,
    flight_max: u32,
    cut_at: Micros,
}

/// The PINGs of the session.
pub(super) struct Pings {
    pub(super) ping: Ping,
    /// The newest PING that is known to have arrived.
    pub(super) echo: u32,
    pub(super) ping_at: Micros,
    pub(super) is_ping_answered: bool,
}

/// The probes that ask for an acknowledgement.
pub(super) struct Probing {
    pub(super) probe_at: Micros,
    pub(super) probes: u32,
}

/// Age of a generation of keys.
pub(super) struct KeyAge {
    pub(super) number: u32,
    /// First frame of the generation.
    pub(super) first: u32,
    pub(super) bytes: u64,
    end_at: Micros,
}

/// State of a frame in flight.
#[derive(Clone, Copy, Default)]
pub(super) struct SentFrame {
    /// When the frame was sent first.
    pub(super) at: Micros,
    /// Chunks to be retransmitted.
    pub(super) due: ChunkBits,
    /// Chunks of the last retransmission.
    pub(super) again: ChunkBits,
    /// Chunks that were missing in the last report.
    pub(super) missing: ChunkBits,
    again_at: Micros,
}

impl OutSession {
    pub(super) fn new(
        agreed: Agreed,
        now: Micros,
        (counter, ack): (u64, &Ack),
        reorder_us: Micros,
    ) -> OutSession {
        let n_theirs = ack.window_end.min(BANKS_MAX as u32);
        OutSession {
            agreed,
            counter: 0,
            newest_answer: Some(counter),
            n_astray: 0,
            generation: KeyAge { number: 0, first: 0, bytes: 0, end_at: now + GENERATION_US },
            window: OutWindow { base: 0, sent: 0, head: 0, window_end: n_theirs, n_theirs },
            reorder_us,
            flight: Flight { flight_bytes: 0, flight_max: FLIGHT_BYTES.0, cut_at: now },
            rtt: Rtt::default(),
            heard_at: now,
            pings: Pings {
                ping: Ping { name: 0, next: 0, srtt_us: 0 },
                echo: ack.echo,
                ping_at: now,
                is_ping_answered: true,
            },
            probing: Probing { probe_at: Micros::MAX, probes: 0 },
        }
    }

    /// Takes an answer's report on PINGs and frames. True if only a recent answer can contain it: the
    /// neighbour hears this node.
    pub(super) fn hear(&mut self, ack: &Ack) -> bool {
        let is_echo_new = std::mem::replace(&mut self.pings.echo, ack.echo) != ack.echo;
        is_echo_new || ack.next != self.window.base
    }

    /// Begins another generation of keys when this one is over, but not before the neighbour uses it too, and has all
    /// frames of the generation before.
    pub(super) fn change_keys(&mut self, now: Micros) {
        let Some(keys) = &mut self.agreed.keys else { return };
        let KeyAge { number, first, bytes, end_at } = self.generation;
        let is_over = now >= end_at || bytes >= GENERATION_BYTES;
        if is_over && keys.is_followed() && !is_before(self.window.base, first) {
            keys.advance();
            let (number, end_at) = (number + 1, now + GENERATION_US);
            self.generation = KeyAge { number, first: self.window.head, bytes: 0, end_at };
        }
    }

    /// Notes that the oldest frame in flight has arrived.
    pub(super) fn on_delivered(&mut self, bytes: u32) {
        self.window.base = self.window.base.wrapping_add(1);
        self.flight.flight_bytes = self.flight.flight_bytes.saturating_sub(bytes);
        self.flight.flight_max = self.flight.flight_max.saturating_add(bytes / 4).min(u32::MAX / 2);
    }

    /// Notes that the neighbour has released all frames before `end`.
    pub(super) fn on_released(&mut self, now: Micros, end: u32) {
        self.heard_at = now;
        let window_end = end.wrapping_add(self.window.n_theirs);
        if is_before(self.window.window_end, window_end) {
            self.window.window_end = window_end;
        }
        self.probing.probes = 0;
        self.probing.probe_at = now + self.rtt.timeout(0);
    }

    /// Takes the missing chunks of a frame, to be retransmitted. Chunks in flight are left alone for a while. Returns
    /// those that were retransmitted in vain.
    pub(super) fn on_missing(
        &mut self,
        now: Micros,
        sent: &mut SentFrame,
        missing: ChunkBits,
    ) -> ChunkBits {
        let rtt_us = Micros::from(self.rtt.srtt_us());
        if now < sent.at + rtt_us.min(self.reorder_us) {
            // The request left before the frame could arrive.
            return 0;
        }
        let patience = rtt_us.max(self.reorder_us);
        let is_recent = sent.again != 0 && now < sent.again_at + patience;
        sent.due |= if is_recent { missing & !sent.again } else { missing };
        if sent.due != 0 && now > self.flight.cut_at + patience {
            self.flight.cut_at = now;
            self.flight.flight_max = (self.flight.flight_max / 2).max(FLIGHT_BYTES.1);
        }
        sent.missing = missing;
        if is_recent { 0 } else { missing & sent.again }
    }

    pub(super) fn send_frames(
        &mut self,
        now: Micros,
        wire: &mut impl Wire,
        path: &mut Path,
        (banks, sent): (&[Bank], &mut [SentFrame; BANKS_MAX]),
        stats: &mut LinkStats,
    ) {
        let n_banks = banks.len() as u32;
        let to = self.agreed.from;
        let mut seq = self.window.base;
        while seq != self.window.sent {
            let frame = &mut sent[bank(seq, n_banks)];
            if frame.due != 0 {
                if !path.burst(now, wire, to, &banks[bank(seq, n_banks)].burst(frame.due)) {
                    return;
                }
                stats.retransmits += u64::from(frame.due.count_ones());
                stats.datagrams += u64::from(frame.due.count_ones());
                let is_recent = now < frame.again_at + self.reorder_us;
                frame.again = if is_recent { frame.again } else { 0 } | frame.due;
                (frame.due, frame.again_at) = (0, now);
            }
            seq = seq.wrapping_add(1);
        }
        while self.window.sent != self.window.head
            && is_before(self.window.sent, self.window.window_end)
        {
            let index = bank(self.window.sent, n_banks);
            let bytes = banks[index].travel_bytes();
            let is_full = self.flight.flight_bytes > 0
                && self.flight.flight_bytes + bytes > self.flight.flight_max;
            if is_full || !path.burst(now, wire, to, &banks[index].burst(ChunkBits::MAX)) {
                break;
            }
            sent[index] = SentFrame { at: now, ..SentFrame::default() };
            self.flight.flight_bytes += bytes;
            self.window.sent = self.window.sent.wrapping_add(1);
            self.probing.probe_at = now + self.rtt.timeout(self.probing.probes);
            stats.frames += 1;
            stats.bytes += u64::from(bytes);
            stats.datagrams += u64::from(banks[index].all().count_ones());
        }
    }

    /// Whether an answer is expected: frames are in flight, or wait for credit.
    fn is_waiting(&self) -> bool {
        self.window.base != self.window.head
    }

    /// Sends a PING when the link is idle or an answer is overdue, with a chunk of the oldest frame in flight: if that
    /// is the missing one, a round trip is saved. Streams lose no chunks.
    pub(super) fn ask(
        &mut self,
        now: Micros,
        wire: &mut impl Wire,
        path: &mut Path,
        banks: &[Bank],
        mode: Mode,
    ) {
        let is_overdue = self.is_waiting() && now >= self.probing.probe_at;
        if !is_overdue && now < self.pings.ping_at + PING_US {
            return;
        }
        if is_overdue && self.window.base != self.window.sent && mode == Mode::Datagrams {
            let bank = &banks[bank(self.window.base, banks.len() as u32)];
            let all = bank.all();
            if !path.burst(now, wire, self.agreed.from, &bank.burst(all & !(all >> 1))) {
                self.probing.probe_at = now + self.rtt.timeout(self.probing.probes);
                return;
            }
        }
        if is_overdue {
            self.probing.probes += 1;
        }
        self.probing.probe_at = now + self.rtt.timeout(self.probing.probes);
        self.send_ping(now, wire, path);
    }

    fn send_ping(&mut self, now: Micros, wire: &mut impl Wire, path: &mut Path) {
        let name = self.pings.ping.name.wrapping_add(1).max(1);
        self.pings.ping = Ping { name, next: self.window.sent, srtt_us: self.rtt.srtt_us() };
        (self.pings.ping_at, self.pings.is_ping_answered) = (now, false);
        let keys = self.agreed.keys.as_ref();
        let around = HEADER_LEN + if keys.is_some() { TAG_BYTES } else { 0 };
        let mut payload = [0; CHUNK_BYTES];
        let (ping, _) = payload.split_first_chunk_mut().expect("a ping is shorter than a chunk");
        self.pings.ping.emit(ping);
        let bytes = path.ask(now, name).map_or(PING_LEN, |bytes| bytes - around);
        self.counter += 1;
        let id = (DatagramKind::Ping, self.agreed.id, self.counter);
        send_control(wire, self.agreed.from, id, keys, &payload[..bytes]);
    }

    pub(super) fn deadline(&self) -> Micros {
        let probe = if self.is_waiting() { self.probing.probe_at } else { Micros::MAX };
        probe.min(self.pings.ping_at + PING_US)
    }
}
