//! The receiving half: the link from the previous node.
//!
//! Bank `seq % n_banks` collects frame `seq`; frames may come from the oldest unreleased one on, as many as
//! there are banks. All others are dropped.

mod session;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::bank::{Bank, Deposit};
use super::config::{BANKS_MAX, LinkConfig};
use super::handshake::{self, Judged, Offers};
use super::joiner::Joiner;
use super::progress::{LinkEvent, LinkProgress, LinkState, LinkStats, Refused};
use super::seq::{bank, is_before};
use super::times::{ACK_DELAY_US, LOST_US, without_pause};
use super::wire::{Wire, open_control, send_control};
use crate::sys::tensor::{self, Device, RxBank};
use crate::transport::Micros;
use crate::wire::control::{Ack, Ping};
use crate::wire::datagram::{Datagram, DatagramHeader, DatagramKind, HEADER_LEN};
use crate::wire::hello::{HELLO_LEN, Name, Nonce, REFUSE_FIXED, Refusal, RingInfo};
use crate::wire::piece::Piece;
use crate::wire::seal::Randomness;
use session::{Followed, InSession};

/// Empty banks that are checked behind the newest frame.
const LOOK_AHEAD: u32 = 4;
/// Most HELLOs and CONFIRMs that are examined in [`GREETING_SPAN_US`]: strangers cost no more.
const GREETINGS_MAX: u32 = 32;
const GREETING_SPAN_US: Micros = 10_000;
/// Most HELLOs answered in that time if each answer takes a key exchange, a third of a millisecond on a small board.
/// Recorded HELLOs can cause these.
const EXCHANGES_MAX: u32 = 4;
const CALL_AGAIN_US: Micros = 250_000;

/// A link from the previous node.
pub struct LinkIn {
    config: LinkConfig,
    random: Randomness,
    offers: Offers,
    progress: LinkProgress,
    session: Option<InSession>,
    /// The address that was offered a session last.
    offered: Option<SocketAddr>,
    banks: Box<[Bank]>,
    joiner: Joiner,
    load: GreetingLoad,
    /// Whether the node left the oldest frame for later.
    is_left: bool,
    serviced_at: Micros,
    stats: LinkStats,
}

/// Number of greetings in the current span, which is limited.
struct GreetingLoad {
    /// Greetings in the current span, and the span's start.
    greetings: (u32, Micros),
    /// HELLOs in the span that led to a key exchange.
    exchanges: u32,
}

impl LinkIn {
    /// A link that waits for a connector.
    ///
    /// # Panics
    /// If the number of banks is not as [`LinkConfig::n_banks`] says.
    pub fn new(config: LinkConfig) -> LinkIn {
        let banks = (0..config.n_banks).map(|_| Bank::new()).collect();
        LinkIn::with_banks(banks, config)
    }

    /// A link whose frames the kernel module collects, with as many banks as it has:
    /// [`LinkIn::collect`] takes them.
    ///
    /// # Panics
    /// If another link has the banks.
    pub fn of_kernel(device: &Arc<Device>, mut config: LinkConfig) -> LinkIn {
        config.n_banks = tensor::BANKS;
        let bank = |i| Bank::of_kernel(device.bank(i).expect("no other link has the banks"));
        LinkIn::with_banks((0..tensor::BANKS).map(bank).collect(), config)
    }

    fn with_banks(banks: Box<[Bank]>, mut config: LinkConfig) -> LinkIn {
        assert!(config.n_banks.is_power_of_two());
        assert!((2..=BANKS_MAX).contains(&config.n_banks));
        let mut seed = config.seed;
        // The sending half has another sequence.
        seed[0] ^= 0x80;
        let mut random = Randomness::new(seed);
        config.spend_seed();
        let offers = Offers::new(random.draw(), random.id());
        LinkIn {
            banks,
            config,
            random,
            offers,
            progress: LinkProgress::new(),
            session: None,
            offered: None,
            joiner: Joiner::new(),
            load: GreetingLoad { greetings: (0, 0), exchanges: 0 },
            is_left: false,
            serviced_at: 0,
            stats: LinkStats::default(),
        }
    }

    /// State of the link.
    pub fn state(&self) -> &LinkState {
        &self.progress.state
    }

    /// The previous node, once there was a session.
    pub fn peer(&self) -> Option<&RingInfo> {
        self.session.as_ref().map(|session| &session.agreed.peer)
    }

    /// Address that the previous node sends from.
    pub fn address(&self) -> Option<SocketAddr> {
        self.session.as_ref().map(|session| session.agreed.from)
    }

    /// Address of the node that was last offered a session.
    pub(in crate::transport) fn offered(&self) -> Option<SocketAddr> {
        self.offered
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
        let srtt_us = self.session.as_ref().map_or(0, |session| session.gaps.srtt_us);
        LinkStats { srtt_us, ..self.stats }
    }

    /// The oldest frame, complete and aligned for any element; the same until
    /// [`LinkIn::release`].
    pub fn front(&self) -> Option<&[u8]> {
        let session = self.session.as_ref().filter(|s| s.window.first != s.window.next)?;
        Some(self.banks[bank(session.window.first, session.n_banks)].frame())
    }

    /// Frees the oldest frame's bank. Without a frame, as after a reset, nothing happens.
    pub fn release(&mut self) {
        let Some(session) = self.session.as_mut().filter(|s| s.window.first != s.window.next)
        else {
            return;
        };
        let n_banks = session.n_banks;
        let freed = bank(session.window.first, n_banks);
        self.banks[freed].clear();
        session.window.first = session.window.first.wrapping_add(1);
        if let Ok([freed, next]) =
            self.banks.get_disjoint_mut([freed, bank(session.window.next, n_banks)])
        {
            // The processor's caches still hold the freed memory.
            next.take_memory(freed);
        }
        // The sender may be waiting for room.
        if session.window.told_end.wrapping_sub(session.window.next) < n_banks / 2 {
            session.make_due(DatagramKind::Ack);
        }
    }

    /// Declares that this node's next frame to the same node acknowledges all frames it has released, which
    /// then need no other acknowledgement.
    pub fn imply_released(&mut self) {
        let now = self.serviced_at;
        if let Some(session) = &mut self.session {
            session.imply_released(now);
        }
    }

    /// Requests the next frame, which the node misses, once. If it was sent, it is retransmitted.
    pub fn ask(&mut self) {
        if let Some(session) = &mut self.session {
            session.ask();
        }
    }

    /// Leaves the oldest frame, and those that may come behind it, for later: an endpoint that is
    /// serviced does not return for them before [`super::Links::begin_turn`].
    pub fn leave(&mut self) {
        self.is_left = true;
    }

    /// Counts frames that were left for later as waiting again.
    pub(super) fn begin_turn(&mut self) {
        self.is_left = false;
    }

    #[cfg(test)]
    pub(super) fn bank_bytes(&self) -> usize {
        self.banks.iter().map(Bank::bytes).sum()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.banks.iter().filter(|bank| bank.is_begun()).count()
    }

    /// Whether a frame or an event waits.
    pub(super) fn is_ready(&self) -> bool {
        !self.progress.events.is_empty() || (!self.is_left && self.front().is_some())
    }

    /// Notes that the connection of the session is gone.
    pub fn on_disconnect(&mut self) {
        if self.progress.state == LinkState::Up {
            self.progress.lost();
        }
    }

    /// From now on only a node of this name may be the previous one.
    pub fn expect(&mut self, name: Name) {
        let is_other = |session: &InSession| session.agreed.peer.name != name;
        if self.session.as_ref().is_some_and(is_other) {
            self.session = None;
            self.banks.iter_mut().for_each(Bank::clear);
            self.on_disconnect();
        }
        self.config.prev = Some(name);
    }

    // Incoming datagrams

    /// Takes a datagram from the previous node. All kinds except DATA have been proven.
    pub(super) fn on_datagram(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        bytes: &mut [u8],
        wire: &mut impl Wire,
    ) {
        let is_used = match header.kind {
            DatagramKind::Data => self.on_data(now, from, header, bytes).is_some(),
            DatagramKind::Piece => self.on_piece(now, from, header, &bytes[HEADER_LEN..]).is_some(),
            DatagramKind::Ping => self.on_ping(now, from, header, bytes).is_some(),
            _ => self.on_greeting(now, from, header, &bytes[HEADER_LEN..], wire),
        };
        if !is_used {
            self.stats.dropped += 1;
        }
    }

    /// Takes a piece of a datagram of the session, from the neighbour's known address.
    fn on_piece(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        payload: &[u8],
    ) -> Option<()> {
        let agreed = &self.session.as_ref()?.agreed;
        if agreed.id != header.session || agreed.from != from {
            return None;
        }
        let piece = Piece::parse(payload).ok()?;
        let mut joiner = std::mem::take(&mut self.joiner);
        let is_used = match joiner.join(header, &piece) {
            Some(whole) => self.on_whole(now, from, whole),
            None => Some(()),
        };
        self.joiner = joiner;
        is_used
    }

    /// Takes a datagram that came in pieces.
    fn on_whole(&mut self, now: Micros, from: SocketAddr, bytes: &[u8]) -> Option<()> {
        let header = DatagramHeader::parse_unproven(&Datagram::new_checked(bytes).ok()?).ok()?;
        if header.kind != DatagramKind::Data {
            return None;
        }
        self.on_data(now, from, &header, bytes)
    }

    fn on_data(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        bytes: &[u8],
    ) -> Option<()> {
        let session = self.session.as_mut().filter(|s| s.owns(&from, header))?;
        let datagram = Datagram::new_checked(bytes).ok()?;
        let n_banks = session.n_banks;
        let seq = header.seq;
        if is_before(seq, session.window.next) {
            datagram.prove().ok()?;
            self.stats.duplicates += 1;
            session.on_duplicate();
            session.make_due(DatagramKind::Ack);
            return Some(());
        }
        if seq.wrapping_sub(session.window.first) >= n_banks {
            datagram.prove().ok()?;
            session.make_due(DatagramKind::Ack);
            return None;
        }
        let index = bank(seq, n_banks);
        if let Some(bank) = self.banks[index].kernel_mut() {
            // The datagram came in pieces, or before the kernel module knew of the session. The module stores it if it
            // can.
            datagram.prove().ok()?;
            session.see(now, seq.wrapping_add(1));
            return bank.take(bytes).ok();
        }
        let deposit = self.banks[index].deposit(header, &datagram, session.agreed.keys.as_mut());
        match deposit {
            Deposit::Forged => return None,
            Deposit::Duplicate => {
                self.stats.duplicates += 1;
                session.on_duplicate();
            }
            Deposit::New | Deposit::Complete => self.stats.datagrams += 1,
        }
        if deposit != Deposit::Duplicate && !is_before(seq.wrapping_add(1), session.window.seen_end)
        {
            session.move_to(from);
        }
        session.heard_at = now;
        session.see(now, seq.wrapping_add(1));
        session.gaps.nack_at[index] =
            session.gaps.nack_at[index].max(now + session.chunk_patience());
        if deposit == Deposit::Complete {
            session.on_complete();
            session.due.ack_at = session.due.ack_at.min(now + ACK_DELAY_US);
            session.deliver(&self.banks, &mut self.stats);
        }
        self.revive();
        Some(())
    }

    /// Passes the peer of a new session to the kernel module, by `set_peer`, with all banks of this link, which are
    /// then free. If the neighbour only moved, `set_peer` gets no banks, and they keep what they hold.
    ///
    /// # Errors
    /// The system's.
    pub fn follow_session(
        &mut self,
        set_peer: impl FnOnce(
            SocketAddr,
            u64,
            Option<&mut dyn Iterator<Item = &mut RxBank>>,
        ) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let (from, id) = (session.agreed.from, session.agreed.id);
        match std::mem::replace(&mut session.followed, Followed::Yes) {
            Followed::Yes => Ok(()),
            Followed::Moved => set_peer(from, id, None),
            Followed::No => {
                let mut banks = self.banks.iter_mut().filter_map(Bank::kernel_mut);
                set_peer(from, id, Some(&mut banks))
            }
        }
    }

    /// Whether the kernel module has completed the next frame.
    pub fn is_next_ready(&self) -> bool {
        let Some(session) = &self.session else { return false };
        self.banks[bank(session.window.next, session.n_banks)].is_ready()
    }

    /// Takes chunks that the kernel module has collected.
    pub fn collect(&mut self, now: Micros) {
        let Some(session) = &mut self.session else { return };
        if session.followed == Followed::No {
            return;
        }
        let n_banks = session.n_banks;
        let (mut is_heard, mut n_empty) = (false, 0);
        for i in 0..n_banks - session.window.next.wrapping_sub(session.window.first) {
            let seq = session.window.next.wrapping_add(i);
            let index = bank(seq, n_banks);
            // Frames overtake each other by a few at most.
            n_empty += u32::from(!is_before(seq, session.window.seen_end));
            if n_empty > LOOK_AHEAD {
                break;
            }
            let id = (session.agreed.id, seq);
            let (n_good, n_bad) = self.banks[index].collect(id, session.agreed.keys.as_mut());
            self.stats.dropped += u64::from(n_bad);
            self.stats.datagrams += u64::from(n_good);
            if n_good == 0 {
                continue;
            }
            (is_heard, n_empty) = (true, 0);
            session.heard_at = now;
            session.see(now, seq.wrapping_add(1));
            session.gaps.nack_at[index] =
                session.gaps.nack_at[index].max(now + session.chunk_patience());
            if self.banks[index].is_complete() {
                session.due.ack_at = session.due.ack_at.min(now + ACK_DELAY_US);
            }
        }
        session.deliver(&self.banks, &mut self.stats);
        if is_heard {
            self.revive();
        }
    }

    fn on_ping(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        bytes: &mut [u8],
    ) -> Option<()> {
        let session = self.session.as_mut().filter(|s| s.owns(&from, header))?;
        let is_newer = session.newest_ping.is_none_or(|newest| header.counter() > newest)
            || session.agreed.is_recounted(now, session.heard_at);
        if !is_newer {
            return None;
        }
        let payload = open_control(header, bytes, session.agreed.keys.as_mut()).ok()?;
        let ping = Ping::parse(payload).ok()?;
        session.newest_ping = Some(header.counter());
        session.move_to(from);
        session.heard_at = now;
        session.echo = ping.name;
        session.gaps.srtt_us = ping.srtt_us.min(1_000_000);
        if ping.next.wrapping_sub(session.window.first) <= session.n_banks {
            session.see(now, ping.next);
        }
        session.make_due(DatagramKind::Pong);
        self.revive();
        Some(())
    }

    fn revive(&mut self) {
        if let (LinkState::Lost, Some(session)) = (&self.progress.state, &self.session) {
            self.progress.up(session.agreed.id, &session.agreed.peer.name);
        }
    }

    fn on_greeting(
        &mut self,
        now: Micros,
        from: SocketAddr,
        header: &DatagramHeader,
        payload: &[u8],
        wire: &mut impl Wire,
    ) -> bool {
        if now >= self.load.greetings.1 + GREETING_SPAN_US {
            (self.load.greetings, self.load.exchanges) = ((0, now), 0);
        }
        self.load.greetings.0 += 1;
        if self.load.greetings.0 > GREETINGS_MAX {
            return false;
        }
        match header.kind {
            DatagramKind::Hello => self.on_hello(now, from, payload, wire),
            DatagramKind::Confirm => self.on_confirm(now, from, header.session, payload),
            _ => false,
        }
    }

    fn on_hello(
        &mut self,
        now: Micros,
        from: SocketAddr,
        payload: &[u8],
        wire: &mut impl Wire,
    ) -> bool {
        let hello = match self.offers.judge(&self.config, payload) {
            Judged::Fits(hello) => hello,
            Judged::Nonsense => return false,
            Judged::Refused(nonce, refusal, name) => {
                self.refuse((now, from), nonce, (refusal, name), wire);
                return true;
            }
        };
        if let Some(session) = &mut self.session {
            let is_kept =
                hello.resume == session.agreed.id && session.agreed.instance == hello.instance;
            if is_kept {
                session.make_due(DatagramKind::Ack);
            }
            if is_kept && session.agreed.keys.is_some() {
                return true;
            }
            if self.progress.state == LinkState::Up && session.is_held_against(now, from, &hello) {
                let with = session.agreed.peer.name.clone();
                let refusal = (Refusal::Busy { with }, hello.node.name);
                self.refuse((now, from), hello.nonce, refusal, wire);
                return true;
            }
        }
        let Some(raw) = payload.first_chunk::<HELLO_LEN>() else { return false };
        if self.config.key.is_some() {
            self.load.exchanges += 1;
            if self.load.exchanges > EXCHANGES_MAX {
                return false;
            }
        }
        let offer = self.offers.welcome(&self.config, from, raw, hello.nonce);
        let Some((session, welcome)) = offer else { return false };
        send_control(wire, from, (DatagramKind::Welcome, session, 0), None, &welcome);
        self.offered = Some(from);
        true
    }

    fn refuse(
        &mut self,
        (now, from): (Micros, SocketAddr),
        nonce: Nonce,
        (refusal, name): (Refusal, Name),
        wire: &mut impl Wire,
    ) {
        let payload = handshake::refuse(&self.config, nonce, refusal.clone());
        // Another version may understand only this part.
        let is_stranger = matches!(refusal, Refusal::Version { .. });
        let bytes = if is_stranger { REFUSE_FIXED } else { payload.len() };
        send_control(wire, from, (DatagramKind::Refuse, 0, 0), None, &payload[..bytes]);
        let (is_next, by_peer, is_proven) = (false, false, false);
        self.progress.refused(now, Refused { refusal, is_next, by_peer, name, from, is_proven });
    }

    fn on_confirm(&mut self, now: Micros, from: SocketAddr, id: u64, payload: &[u8]) -> bool {
        if let Some(session) = self.session.as_mut().filter(|s| s.agreed.id == id) {
            session.make_due(DatagramKind::Ack);
            return true;
        }
        let Some(agreed) = self.offers.confirm(&self.config, (from, id), payload) else {
            return false;
        };
        self.offers.renew(self.random.draw());
        if let Some(session) = self.session.as_mut().filter(|s| s.is_resumed_by(&agreed)) {
            session.move_to(from);
            session.heard_at = now;
            session.make_due(DatagramKind::Ack);
            self.revive();
            return true;
        }
        if self.session.is_some() {
            self.progress.tell(LinkEvent::Reset);
        }
        self.banks.iter_mut().for_each(Bank::clear);
        self.progress.up(id, &agreed.peer.name);
        self.session = Some(InSession::new(agreed, now, self.banks.len(), self.config.reorder_us));
        true
    }

    // Outgoing datagrams

    /// Sends what is due.
    pub(super) fn transmit(&mut self, now: Micros, wire: &mut impl Wire) {
        let before = std::mem::replace(&mut self.serviced_at, now);
        let Some(session) = &mut self.session else { return };
        session.heard_at = without_pause(session.heard_at, before, now);
        if self.progress.state == LinkState::Up && now > session.heard_at + LOST_US {
            self.progress.lost();
        }
        if session.calls_at().is_some_and(|at| now >= at) {
            session.due.call_at = now + CALL_AGAIN_US;
            session.make_due(DatagramKind::Ack);
        }
        let mut ack = Ack::default();
        session.name_missing(now, &self.banks, &mut ack);
        if !ack.nacks.is_empty() || now >= session.due.ack_at {
            session.make_due(DatagramKind::Ack);
        }
        if let Some(kind) = session.due.kind_due.take() {
            session.send(wire, kind, ack);
        }
    }

    /// When there is something to send next, if nothing arrives.
    pub(super) fn deadline(&self) -> Micros {
        let Some(session) = &self.session else { return Micros::MAX };
        if session.due.kind_due.is_some() {
            return 0;
        }
        let lost = match self.progress.state {
            LinkState::Up => session.heard_at + LOST_US + 1,
            _ => Micros::MAX,
        };
        let nacks = session.incomplete(&self.banks).map(|(index, _)| session.gaps.nack_at[index]);
        let call = session.calls_at().unwrap_or(Micros::MAX);
        nacks.fold(lost.min(session.due.ack_at).min(call), Micros::min)
    }
}
