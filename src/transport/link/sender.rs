//! The sending half: the link to the next node.

mod greeting;
mod released;
mod session;

use std::net::SocketAddr;
use std::sync::Arc;

use super::bank::Bank;
use super::burst::Mode;
use super::config::{BANKS_MAX, LinkConfig};
use super::handshake::{self, Agreed, Unfit};
use super::path::Path;
use super::progress::{LinkEvent, LinkProgress, LinkState, LinkStats, Refused, Unheard};
use super::rtt::Rtt;
use super::seq::{bank, is_before};
use super::times::{LOST_US, PING_US, SILENCE_US, without_pause};
use super::wire::{Wire, open_control, send_control};
use crate::sys::tensor::{self, Device};
use crate::transport::Micros;
use crate::wire::control::Ack;
use crate::wire::datagram::{DatagramHeader, DatagramKind, HEADER_LEN};
use crate::wire::hello::RingInfo;
use crate::wire::seal::Randomness;
use greeting::{Attempt, CONFIRM_TRIES, HELLO_US, Offer, different};
use session::{OutSession, SentFrame};

/// Interval between checks of a bank that the network still reads, if the node waits for it.
const READ_US: Micros = 200;
/// Number of answers in a row, contradicting earlier acknowledgements, after which the earlier ones count as
/// forged.
const ASTRAY_MAX: u32 = 8;
/// Time after which a lost session without keys is replaced: strangers may have spoilt this end's counters,
/// so that the neighbour's datagrams are not believed.
const RESUME_US: Micros = 10_000_000;
/// The last frame number of a sealed session, so that no nonce comes twice.
const SEALED_SEQ_MAX: u32 = u32::MAX - 1024;

/// A link to the next node.
pub struct LinkOut {
    config: LinkConfig,
    mode: Mode,
    address: SocketAddr,
    random: Randomness,
    progress: LinkProgress,
    opening: Opening,
    session: Option<OutSession>,
    outbox: Outbox,
    path: Path,
    serviced_at: Micros,
    stats: LinkStats,
}

/// Attempts to open a session.
struct Opening {
    attempt: Attempt,
    offer: Option<Offer>,
    /// Address from which an answer came that has the session's number, but proves nothing.
    heard_from: Option<SocketAddr>,
}

/// Frames that wait or are in flight.
struct Outbox {
    banks: Box<[Bank]>,
    sent: [SentFrame; BANKS_MAX],
    is_reserved: bool,
    /// Whether the node asked for room when there was none.
    wants_room: bool,
}

impl LinkOut {
    /// A link to `address`, which is not connected yet.
    ///
    /// # Panics
    /// If the number of banks is not as [`LinkConfig::n_banks`] says.
    pub fn new(config: LinkConfig, mode: Mode, address: SocketAddr, now: Micros) -> LinkOut {
        let banks = (0..config.n_banks).map(|_| Bank::new()).collect();
        LinkOut::with_banks(banks, config, mode, address, now)
    }

    /// A link to `address` that the kernel module sends for, with as many banks as it has
    /// slots.
    ///
    /// # Panics
    /// If another link has the slots.
    pub fn of_kernel(
        device: &Arc<Device>,
        mut config: LinkConfig,
        address: SocketAddr,
        now: Micros,
    ) -> LinkOut {
        config.n_banks = tensor::BANKS;
        let slot = |i| Bank::of_slot(device.slot(i).expect("no other link has the slots"));
        let banks = (0..tensor::BANKS).map(slot).collect();
        LinkOut::with_banks(banks, config, Mode::Datagrams, address, now)
    }

    fn with_banks(
        banks: Box<[Bank]>,
        mut config: LinkConfig,
        mode: Mode,
        address: SocketAddr,
        now: Micros,
    ) -> LinkOut {
        assert!(config.n_banks.is_power_of_two());
        assert!((2..=BANKS_MAX).contains(&config.n_banks));
        let mut random = Randomness::new(config.seed);
        config.spend_seed();
        let ephemeral = random.draw();
        let hello = handshake::hello(&config, (random.draw(), &ephemeral), 0);
        LinkOut {
            config,
            mode,
            address,
            random,
            progress: LinkProgress::new(),
            opening: Opening {
                attempt: Attempt {
                    hello,
                    ephemeral,
                    resume: 0,
                    at: now,
                    sent_at: now,
                    pause: HELLO_US.0,
                    counter: 0,
                },
                offer: None,
                heard_from: None,
            },
            session: None,
            path: Path::new(mode),
            outbox: Outbox {
                banks,
                sent: [SentFrame::default(); BANKS_MAX],
                is_reserved: false,
                wants_room: false,
            },
            serviced_at: now,
            stats: LinkStats::default(),
        }
    }

    /// State of the link.
    pub fn state(&self) -> &LinkState {
        &self.progress.state
    }

    /// The next node, once there was a session.
    pub fn peer(&self) -> Option<&RingInfo> {
        self.session.as_ref().map(|session| &session.agreed.peer)
    }

    /// Address of the next node.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The session's number, once there was one.
    pub fn session(&self) -> Option<u64> {
        self.session.as_ref().map(|session| session.agreed.id)
    }

    /// Takes the oldest event.
    pub fn next_event(&mut self) -> Option<LinkEvent> {
        self.progress.events.pop_front()
    }

    /// Counters of the link.
    pub fn stats(&self) -> LinkStats {
        let rtt = self.session.as_ref().map_or(Rtt::default(), |session| session.rtt);
        let datagram_bytes = match self.mode {
            Mode::Datagrams => self.path.longest() as u32,
            Mode::Stream => 0,
        };
        LinkStats { srtt_us: rtt.srtt_us(), rttvar_us: rtt.var_us(), datagram_bytes, ..self.stats }
    }

    /// Room for the next frame, [`crate::wire::datagram::FRAME_MAX`] bytes, aligned for any
    /// element; the same until [`LinkOut::commit`]. `None` without a session, and while all banks
    /// are on their way: an endpoint that is serviced returns when there is room again.
    pub fn reserve(&mut self) -> Option<&mut [u8]> {
        self.outbox.wants_room = !self.has_room();
        let session = self.session.as_ref().filter(|_| !self.outbox.wants_room)?;
        self.outbox.is_reserved = true;
        Some(self.outbox.banks[bank(session.window.head, self.config.n_banks as u32)].buffer())
    }

    /// Reads the room for a frame as long as the last one into L1.
    pub(super) fn prefetch(&self) {
        let Some(session) = &self.session else { return };
        let n_banks = self.config.n_banks as u32;
        let bytes =
            self.outbox.banks[bank(session.window.head.wrapping_sub(1), n_banks)].travel_bytes();
        self.outbox.banks[bank(session.window.head, n_banks)].prefetch(bytes as usize);
    }

    fn has_room(&self) -> bool {
        self.free_bank().is_some_and(Bank::ask_idle)
    }

    /// The bank of the next frame, if what it held is acknowledged.
    fn free_bank(&self) -> Option<&Bank> {
        let n_banks = self.config.n_banks as u32;
        let is_sealed = self.config.key.is_some();
        let session = self.session.as_ref()?;
        let is_spent = is_sealed && session.window.head >= SEALED_SEQ_MAX;
        let is_free = session.window.head.wrapping_sub(session.window.base) < n_banks;
        (is_free && !is_spent).then(|| &self.outbox.banks[bank(session.window.head, n_banks)])
    }

    /// Gives the first `bytes` of the reserved room to the link. It goes out with the next
    /// `LinkOut::transmit`. Without a reservation, as after a reset, nothing happens.
    ///
    /// # Panics
    /// If `bytes` is 0 or more than the room.
    pub fn commit(&mut self, bytes: usize) {
        assert!(bytes > 0 && bytes <= crate::wire::datagram::FRAME_MAX);
        let is_reserved = std::mem::take(&mut self.outbox.is_reserved);
        let Some(session) = self.session.as_mut().filter(|_| is_reserved) else { return };
        let bank = &mut self.outbox.banks[bank(session.window.head, self.config.n_banks as u32)];
        let agreed = &session.agreed;
        bank.close(bytes, (agreed.id, session.window.head), self.mode, agreed.keys.as_ref());
        session.generation.bytes += u64::from(bank.travel_bytes());
        session.window.head = session.window.head.wrapping_add(1);
    }

    /// Frames committed and not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.session.as_ref().map_or(0, |s| s.window.head.wrapping_sub(s.window.base) as usize)
    }

    #[cfg(test)]
    pub(super) fn generation(&self) -> u32 {
        self.session.as_ref().map_or(0, |session| session.generation.number)
    }

    /// Counts `bytes` as sealed.
    #[cfg(test)]
    pub(super) fn count_sealed(&mut self, bytes: u64) {
        if let Some(session) = &mut self.session {
            session.generation.bytes += bytes;
        }
    }

    #[cfg(test)]
    pub(super) fn bank_bytes(&self) -> usize {
        self.outbox.banks.iter().map(Bank::bytes).sum()
    }

    /// Forgets that the caller waits for room, until it asks again.
    pub(super) fn begin_turn(&mut self) {
        self.outbox.wants_room = false;
    }

    /// Whether an event waits, or room that was asked for.
    pub(super) fn is_ready(&self) -> bool {
        !self.progress.events.is_empty() || (self.outbox.wants_room && self.has_room())
    }

    /// Whether the next node, or something in its place, has ever answered.
    pub(in crate::transport) fn is_heard(&self) -> bool {
        self.session.is_some() || self.progress.state != LinkState::Connecting
    }

    /// Reports why nothing is heard of the next node, as the carrier found.
    pub(in crate::transport) fn on_unheard(&mut self, unheard: Unheard) {
        self.progress.tell(LinkEvent::Unheard(unheard));
    }

    /// Begins the handshake on a new connection at once.
    pub fn on_connect(&mut self, now: Micros) {
        self.opening.offer = None;
        self.greet(now, 0);
    }

    /// Notes that the connection is gone: a stream's session ends, and the next one begins at once.
    pub fn on_disconnect(&mut self, now: Micros) {
        if self.progress.state == LinkState::Up {
            self.progress.lost();
        }
        self.on_connect(now);
    }

    /// Sets another address of the neighbour, and greets it there if it is not heard.
    pub fn set_address(&mut self, address: SocketAddr, now: Micros) {
        self.address = address;
        if self.opening.attempt.at != Micros::MAX {
            (self.opening.attempt.at, self.opening.attempt.pause) = (now, HELLO_US.0);
        }
    }

    /// Starts again with HELLO.
    fn greet(&mut self, now: Micros, resume: u64) {
        let (nonce, ephemeral) = (self.random.draw(), self.random.draw());
        let hello = handshake::hello(&self.config, (nonce, &ephemeral), resume);
        let Attempt { counter, sent_at, .. } = self.opening.attempt;
        let (at, pause) = (now, HELLO_US.0);
        self.opening.attempt = Attempt { hello, ephemeral, resume, at, sent_at, pause, counter };
    }

    // Incoming datagrams

    /// Takes a datagram from the next node.
    pub(super) fn on_datagram(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        bytes: &mut [u8],
    ) {
        let is_used = match header.kind {
            DatagramKind::Welcome => self.on_welcome(now, from, header, &bytes[HEADER_LEN..]),
            DatagramKind::Refuse => self.on_refuse(now, from, &bytes[HEADER_LEN..]),
            DatagramKind::Ack | DatagramKind::Pong => {
                self.take_offer(now, from, header, bytes)
                    || self.on_answer(now, from, header, bytes).is_some()
            }
            _ => false,
        };
        if !is_used {
            self.stats.dropped += 1;
        }
    }

    fn on_welcome(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        body: &[u8],
    ) -> bool {
        let is_asking =
            self.session.is_none() || self.is_silent(now) || self.opening.attempt.resume == 0;
        let is_known = self.opening.offer.as_ref().is_some_and(|o| o.agreed.id == header.session);
        if !is_asking || is_known || self.session() == Some(header.session) {
            return true;
        }
        let place = (from, header.session);
        let ours = (&self.opening.attempt.hello, &self.opening.attempt.ephemeral);
        match handshake::accept_welcome(&self.config, ours, place, body) {
            None => false,
            Some(Err(Unfit { refusal, name, is_proven })) => {
                let by_peer = false;
                self.refused(
                    now,
                    Refused { refusal, is_next: true, by_peer, name, from, is_proven },
                );
                true
            }
            Some(Ok((agreed, confirm))) => {
                self.opening.offer =
                    Some(Offer { agreed, confirm, at: now, sent_at: now, tries: 0 });
                true
            }
        }
    }

    fn on_refuse(&mut self, now: Micros, from: SocketAddr, payload: &[u8]) -> bool {
        let answer = handshake::accept_refuse(&self.config, &self.opening.attempt.hello, payload);
        let Some((refusal, name, is_proven)) = answer.filter(|_| self.opening.offer.is_none())
        else {
            return false;
        };
        let by_peer = true;
        self.refused(now, Refused { refusal, is_next: true, by_peer, name, from, is_proven });
        true
    }

    /// Notes a refusal: HELLOs go on at the longest pause. Any number of refusals cannot put them off.
    fn refused(&mut self, now: Micros, refused: Refused) {
        self.progress.refused(now, refused);
        self.opening.attempt.pause = HELLO_US.1;
        self.opening.attempt.at = self.opening.attempt.sent_at + HELLO_US.1;
    }

    /// The first answer under an offered session's keys makes it the link's session.
    fn take_offer(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        bytes: &mut [u8],
    ) -> bool {
        let Some(offer) = &mut self.opening.offer else { return false };
        if offer.agreed.id != header.session || offer.agreed.from != from {
            return false;
        }
        let Some(ack) = answer(header, bytes, &mut offer.agreed) else { return false };
        let Some(offer) = self.opening.offer.take() else { return false };
        if self.session.is_some() {
            self.progress.tell(LinkEvent::Reset);
        }
        let answer = (header.counter(), &ack);
        let mut session = OutSession::new(offer.agreed, now, answer, self.config.reorder_us);
        if offer.tries == 1 {
            session.rtt.sample(now - offer.sent_at);
        }
        self.progress.up(session.agreed.id, &session.agreed.peer.name);
        self.session = Some(session);
        self.outbox.sent = [SentFrame::default(); BANKS_MAX];
        self.outbox.is_reserved = false;
        let id = self.session();
        self.greet(Micros::MAX, id.unwrap_or(0));
        true
    }

    /// Takes an ACK or PONG of the session. `None` if it is of another session, not proven, or older than another one.
    fn on_answer(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        bytes: &mut [u8],
    ) -> Option<()> {
        let session = self.session.as_mut().filter(|s| s.agreed.id == header.session)?;
        let is_newer = session.newest_answer.is_none_or(|newest| header.counter() > newest)
            || session.agreed.is_recounted(now, session.heard_at);
        let is_asked = self.opening.offer.as_ref().is_some_and(|offer| offer.agreed.from == from);
        let is_known = from == session.agreed.from || session.agreed.keys.is_some() || is_asked;
        if !is_known {
            self.opening.heard_from = Some(from);
        }
        if !is_known || !is_newer {
            return None;
        }
        let ack = answer(header, bytes, &mut session.agreed)?;
        session.newest_answer = Some(header.counter());
        if session.agreed.from != from {
            session.agreed.from = from;
            self.path.on_move(now);
        }
        if session.hear(&ack) {
            session.heard_at = now;
            if self.progress.state != LinkState::Up {
                self.progress.up(session.agreed.id, &session.agreed.peer.name);
            }
            let is_looking = self.opening.attempt.resume == header.session;
            if is_looking && self.opening.attempt.at != Micros::MAX {
                self.opening.offer = None;
                self.greet(Micros::MAX, header.session);
            }
        } else if self.opening.offer.is_some() {
            // The answer to a PING shows whether the neighbour hears this node again.
            session.pings.ping_at = session.pings.ping_at.min(now.saturating_sub(PING_US));
        }
        self.on_ack(now, &ack);
        Some(())
    }

    fn on_ack(&mut self, now: Micros, ack: &Ack) {
        let Some(session) = &mut self.session else { return };
        let n_banks = self.config.n_banks as u32;
        if ack.echo == session.pings.ping.name && !session.pings.is_ping_answered {
            session.pings.is_ping_answered = true;
            session.rtt.sample(now - session.pings.ping_at);
            self.path.on_echo(now, ack.echo);
        }
        let is_sent =
            |seq: u32| !is_before(seq, session.window.base) && !is_before(session.window.sent, seq);
        let is_astray = !is_sent(ack.next);
        session.n_astray = if is_astray { session.n_astray + 1 } else { 0 };
        if is_astray {
            if session.agreed.keys.is_none() && session.n_astray == ASTRAY_MAX {
                self.greet(now, 0);
            }
            return;
        }
        if ack.next != session.window.base {
            let newest = bank(ack.next.wrapping_sub(1), n_banks);
            session.rtt.at_most(now.saturating_sub(self.outbox.sent[newest].at));
            session.probing.probes = 0;
            session.probing.probe_at = now + session.rtt.timeout(0);
        }
        self.on_delivered(ack.next);
        let Some(session) = &mut self.session else { return };
        let room = ack.window_end.wrapping_sub(session.window.base);
        if is_before(session.window.window_end, ack.window_end) && room <= BANKS_MAX as u32 {
            session.window.window_end = ack.window_end;
            session.probing.probes = 0;
        }
        let (mut is_lost, mut has_passed) = (false, false);
        for nack in &ack.nacks {
            // A stream loses nothing.
            let is_sent = !is_before(nack.seq, session.window.base)
                && is_before(nack.seq, session.window.sent);
            if is_sent && self.mode == Mode::Datagrams {
                let index = bank(nack.seq, n_banks);
                let (sent, bank) = (&mut self.outbox.sent[index], &self.outbox.banks[index]);
                let missing = nack.missing & bank.all();
                let (long, telling) =
                    (bank.longer_than(self.path.long()), bank.longer_than(self.path.telling()));
                has_passed |= sent.missing & !missing & telling != 0;
                is_lost |= session.on_missing(now, sent, missing) & long != 0;
            }
        }
        if has_passed {
            self.path.on_passed();
        } else if is_lost {
            self.path.on_lost(now);
        }
    }

    /// Notes that all frames before `end` have arrived.
    fn on_delivered(&mut self, end: u32) {
        let Some(session) = &mut self.session else { return };
        while session.window.base != end {
            let bank = &self.outbox.banks[bank(session.window.base, self.config.n_banks as u32)];
            session.on_delivered(bank.travel_bytes());
            if bank.longer_than(self.path.telling()) != 0 {
                self.path.on_passed();
            }
        }
    }

    fn is_silent(&self, now: Micros) -> bool {
        self.session.as_ref().is_none_or(|s| now.saturating_sub(s.heard_at) > SILENCE_US)
    }

    // Outgoing datagrams

    /// Sends what is due.
    pub(super) fn transmit(&mut self, now: Micros, wire: &mut impl Wire) {
        let before = std::mem::replace(&mut self.serviced_at, now);
        if let Some(session) = &mut self.session {
            session.heard_at = without_pause(session.heard_at, before, now);
        }
        self.handshake(now, wire);
        let Some(session) = &mut self.session else { return };
        session.change_keys(now);
        let path = &mut self.path;
        session.send_frames(
            now,
            wire,
            path,
            (&self.outbox.banks, &mut self.outbox.sent),
            &mut self.stats,
        );
        session.ask(now, wire, path, &self.outbox.banks, self.mode);
        if self.progress.state == LinkState::Up && now > session.heard_at + LOST_US {
            self.progress.lost();
        }
        let is_spent = session.agreed.keys.is_some() && session.window.head >= SEALED_SEQ_MAX;
        if is_spent
            && session.window.base == session.window.head
            && self.opening.attempt.resume != 0
        {
            self.greet(now, 0);
        }
    }

    fn handshake(&mut self, now: Micros, wire: &mut impl Wire) {
        if let Some(session) = &self.session
            && self.opening.attempt.at == Micros::MAX
            && now > session.heard_at + SILENCE_US
        {
            self.opening.attempt.at = now;
        }
        if let Some(session) = &self.session
            && self.opening.attempt.resume != 0
            && session.agreed.keys.is_none()
            && now > session.heard_at + RESUME_US
        {
            self.greet(now, 0);
        }
        if let Some(offer) = &mut self.opening.offer {
            if offer.tries >= CONFIRM_TRIES {
                self.opening.offer = None;
                self.opening.attempt.at = now;
            } else if now >= offer.at {
                let places = [self.address, offer.agreed.from];
                offer.send(now, wire, &places);
            }
        } else if now >= self.opening.attempt.at {
            let places = self.places();
            let attempt = &mut self.opening.attempt;
            attempt.counter += 1;
            let id = (DatagramKind::Hello, 0, attempt.counter);
            for place in different(&places) {
                send_control(wire, place, id, None, &attempt.hello);
            }
            (attempt.sent_at, attempt.at) = (now, now + attempt.pause);
            attempt.pause = (attempt.pause * 2).min(HELLO_US.1);
        }
    }

    /// Addresses where the neighbour may be: the configured one, the session's, and the one where a node that
    /// knows the session has answered.
    fn places(&self) -> [SocketAddr; 3] {
        let session = self.session.as_ref().map_or(self.address, |session| session.agreed.from);
        [self.address, session, self.opening.heard_from.unwrap_or(self.address)]
    }

    /// When there is something to send next, if nothing arrives.
    pub(super) fn deadline(&self) -> Micros {
        let handshake =
            self.opening.offer.as_ref().map_or(self.opening.attempt.at, |offer| offer.at);
        let Some(session) = &self.session else { return handshake };
        let lost = match self.progress.state {
            LinkState::Up => session.heard_at + LOST_US + 1,
            _ => Micros::MAX,
        };
        let silence = match self.opening.attempt.at {
            Micros::MAX => session.heard_at + SILENCE_US + 1,
            _ => Micros::MAX,
        };
        // The network does not report when it has read a bank.
        let is_read =
            self.outbox.wants_room && self.free_bank().is_some_and(|bank| !bank.ask_idle());
        let bank = if is_read { self.serviced_at + READ_US } else { Micros::MAX };
        handshake.min(lost).min(silence).min(bank).min(session.deadline())
    }
}

fn answer(header: &DatagramHeader, bytes: &mut [u8], agreed: &mut Agreed) -> Option<Ack> {
    let payload = open_control(header, bytes, agreed.keys.as_mut()).ok()?;
    Ack::parse(payload).ok()
}
