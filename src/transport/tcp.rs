//! Links over TCP: a connection to the next node, and those that previous nodes open.
//!
//! A record is a `u32` with the length of the rest, and a datagram whose frame is in one piece. The
//! connection loses nothing, so the link protocol only adds credit and liveness; a connection that breaks
//! ends its session.

mod stream;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::doubt;
use super::link::{
    Burst, LOST_US, LinkIn, LinkOut, LinkState, Links, Mode, Sending, Unheard, Wire,
};
use super::options::CarrierOptions;
use super::place::mapped;
use super::resolver::{Resolver, unresolved};
use super::sleep::Sleep;
use super::time::Clock;
use super::{Endpoint, Micros, TransportError};
use crate::sys::net;
use crate::wire::datagram::is_forward;
use crate::wire::hello::Name;
use stream::{ReadOutcome, TcpInput, TcpOutput};

/// Most unproven connections at a time: one more closes the oldest.
const STRANGERS_MAX: usize = 24;
/// Time after which an unproven connection is closed.
const STRANGER_US: Micros = 3_000_000;
/// First and longest pause between two attempts to connect.
const CONNECT_US: (Micros, Micros) = (50_000, 1_000_000);
/// Time for which a silent, unproven connection keeps its file descriptor, if these are few and another connection
/// waits for one.
const FILE_US: Micros = 50_000;
/// How long to wait for a file descriptor when there is none.
const NO_FILE_US: Micros = 100_000;
/// Connections that are accepted in one round, so that strangers cannot keep a node busy.
const ACCEPTS: usize = 8;

/// Both links of a node over TCP.
pub struct Tcp {
    options: CarrierOptions,
    links: Links,
    listener: TcpListener,
    dialing: Dialing,
    next: Option<TcpInput>,
    prev: Vec<TcpInput>,
    out: TcpWire,
    /// When accepting goes on after a lack of file descriptors.
    accept_at: Micros,
    clock: Clock,
    address: SocketAddr,
    notices: Vec<String>,
}

/// The search for the next node, and the attempts to connect to it.
struct Dialing {
    resolver: Resolver,
    next_address: Option<SocketAddr>,
    connect_at: Micros,
    pause: Micros,
    /// When the next node's host first refused a connection.
    refused_at: Option<Micros>,
    is_doubted: bool,
}

/// The sending sides: of the link to the next node, and of those from previous ones.
#[derive(Default)]
struct TcpWire {
    next: Option<TcpOutput>,
    prev: Vec<TcpOutput>,
}

impl Wire for TcpWire {
    fn burst(&mut self, _: SocketAddr, burst: &Burst<'_>) -> Sending {
        let Some(next) = &mut self.next else { return Sending::Gone };
        match burst.runs().all(|frame| next.frame(frame)) {
            true => Sending::Gone,
            false => Sending::NoRoom,
        }
    }

    fn control(&mut self, to: SocketAddr, datagram: &[u8]) {
        let output = match is_forward(datagram) {
            true => self.next.as_mut(),
            false => self.prev.iter_mut().find(|output| output.peer == to),
        };
        if let Some(output) = output {
            output.control(datagram);
        }
    }
}

impl Tcp {
    /// Listens for the previous node and opens the link to the next, if one is given.
    ///
    /// # Errors
    /// A host that cannot be found, an address that cannot be listened on.
    pub fn open(options: CarrierOptions) -> Result<Tcp, TransportError> {
        let (listen, resolver) = options.addresses()?;
        let fail = |source| TransportError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let links = Links { next: None, prev: Some(LinkIn::new(options.config.clone())) };
        let mut tcp = Tcp {
            options,
            links,
            listener,
            next: None,
            prev: Vec::with_capacity(STRANGERS_MAX + 2),
            out: TcpWire { next: None, prev: Vec::with_capacity(STRANGERS_MAX + 2) },
            dialing: Dialing {
                resolver,
                next_address: None,
                connect_at: 0,
                pause: CONNECT_US.0,
                refused_at: None,
                is_doubted: false,
            },
            accept_at: 0,
            clock: Clock::start(),
            address,
            notices: Vec::new(),
        };
        if let Some(next) = tcp.dialing.resolver.address() {
            tcp.open_next(next);
        }
        Ok(tcp)
    }

    /// Follows a missing next node to another address.
    fn follow_next(&mut self, now: Micros) {
        match self.dialing.resolver.turn(now, self.links.is_next_missed()) {
            None => {}
            Some(Err(e)) => self.tell(&unresolved(&e)),
            Some(Ok(address)) if self.links.next.is_none() => self.open_next(address),
            Some(Ok(address)) => {
                let address = mapped(address, self.address.is_ipv6());
                self.disconnect(now);
                if let Some(next) = &mut self.links.next {
                    next.set_address(address, now);
                }
                self.dialing.next_address = Some(address);
                (self.dialing.connect_at, self.dialing.pause) = (now, CONNECT_US.0);
                (self.dialing.refused_at, self.dialing.is_doubted) = (None, false);
            }
        }
    }

    /// Begins the link to the next node.
    fn open_next(&mut self, address: SocketAddr) {
        let address = mapped(address, self.address.is_ipv6());
        let now = self.clock.now();
        self.options.config.spend_seed();
        let config = self.options.config.clone();
        self.options.config.spend_seed();
        self.disconnect(now);
        self.links.next = Some(LinkOut::new(config, Mode::Stream, address, now));
        self.dialing.next_address = Some(address);
        (self.dialing.connect_at, self.dialing.pause) = (now, CONNECT_US.0);
        (self.dialing.refused_at, self.dialing.is_doubted) = (None, false);
    }

    fn tell(&mut self, notice: &str) {
        if !self.notices.iter().any(|told| told == notice) {
            self.notices.push(notice.to_owned());
        }
    }

    // The connection to the next node

    fn connect(&mut self, now: Micros) {
        let Some(address) = self.dialing.next_address else { return };
        if self.next.is_some() || now < self.dialing.connect_at {
            return;
        }
        self.dialing.connect_at = now + self.dialing.pause;
        self.dialing.pause = (2 * self.dialing.pause).min(CONNECT_US.1);
        let mut connected = net::connect(address);
        if connected.as_ref().is_err_and(net::is_out_of_files) && self.close_stranger(now, 0) {
            connected = net::connect(address);
        }
        let Ok(stream) = connected else { return };
        // If this fails, frames only take longer.
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        let mut input = TcpInput::new(stream.clone(), address, now);
        input.is_proven = true;
        self.next = Some(input);
        self.out.next = Some(TcpOutput::new(stream, address));
        if let Some(link) = &mut self.links.next {
            link.on_connect(now);
        }
    }

    fn disconnect(&mut self, now: Micros) {
        (self.next, self.out.next) = (None, None);
        self.dialing.connect_at = self.dialing.connect_at.max(now);
        if let Some(link) = &mut self.links.next {
            link.on_disconnect(now);
        }
    }

    fn receive_next(&mut self, now: Micros) -> usize {
        let Some(input) = &mut self.next else { return 0 };
        let n = match input.read() {
            ReadOutcome::Bytes(n) if take(input, &mut self.links, &mut self.out, now) => n,
            reading => {
                if let ReadOutcome::Refused = reading {
                    self.doubt(now);
                }
                self.disconnect(now);
                return 1;
            }
        };
        if self.links.next.as_ref().is_some_and(|link| *link.state() == LinkState::Up) {
            self.dialing.pause = CONNECT_US.0;
        }
        n
    }

    /// Called when the next node's host refuses connections; notifies the user if that lasts.
    fn doubt(&mut self, now: Micros) {
        let since = *self.dialing.refused_at.get_or_insert(now);
        let Some(next) = &mut self.links.next else { return };
        if now >= since + doubt::PATIENCE_US && !self.dialing.is_doubted && !next.is_heard() {
            self.dialing.is_doubted = true;
            let to = next.address();
            next.on_unheard(Unheard { to, is_stream: true, has_other: false });
        }
    }

    /// Gives up a connection that is not established in time, or has become silent.
    fn check_next(&mut self, now: Micros) {
        let is_up = self
            .links
            .next
            .as_ref()
            .is_some_and(|link| matches!(link.state(), LinkState::Up | LinkState::Refused(_)));
        let is_old = self.next.as_ref().is_some_and(|input| now > input.since + 2 * LOST_US);
        let is_broken = self.out.next.as_ref().is_some_and(|output| output.is_broken);
        if is_broken || (is_old && !is_up) {
            self.disconnect(now);
        }
    }

    // Connections from previous nodes

    fn accept(&mut self, now: Micros) {
        for _ in 0..ACCEPTS {
            if now < self.accept_at {
                return;
            }
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if net::is_out_of_files(&e) => {
                    if !self.close_stranger(now, FILE_US) {
                        self.accept_at = now + NO_FILE_US;
                    }
                    continue;
                }
                Err(_) => return,
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            // If this fails, acknowledgements only take longer.
            let _ = stream.set_nodelay(true);
            if self.prev.iter().filter(|input| !input.is_proven).count() >= STRANGERS_MAX {
                self.close_stranger(now, 0);
            }
            let stream = Arc::new(stream);
            self.prev.push(TcpInput::new(stream.clone(), peer, now));
            self.out.prev.push(TcpOutput::new(stream, peer));
        }
    }

    /// Closes the oldest unproven connection that is at least `us` old and was not offered a session; if there is none
    /// and `us` is 0, the oldest unproven one. Returns whether one was closed.
    fn close_stranger(&mut self, now: Micros, us: Micros) -> bool {
        let is_due = |input: &TcpInput| !input.is_proven && now >= input.since + us;
        let is_mute = |input: &TcpInput| is_due(input) && !input.is_offered;
        let mute = self.prev.iter().position(is_mute);
        let oldest = mute.or_else(|| self.prev.iter().position(is_due).filter(|_| us == 0));
        oldest.map(|oldest| self.close(oldest)).is_some()
    }

    fn close(&mut self, index: usize) {
        let input = self.prev.remove(index);
        self.out.prev.retain(|output| output.peer != input.peer);
        if let Some(link) = &mut self.links.prev
            && link.address() == Some(input.peer)
        {
            link.on_disconnect();
        }
    }

    /// Reads from previous nodes: from all, or only from the session's one.
    fn receive_prev(&mut self, now: Micros, only_proven: bool) -> usize {
        let mut n_received = 0;
        let mut index = 0;
        while let Some(input) = self.prev.get_mut(index) {
            if only_proven && !input.is_proven {
                index += 1;
                continue;
            }
            let is_late = !input.is_proven && now > input.since + STRANGER_US;
            match input.read() {
                ReadOutcome::Bytes(n)
                    if !is_late && take(input, &mut self.links, &mut self.out, now) =>
                {
                    n_received += n;
                    index += 1;
                }
                _ => {
                    self.close(index);
                    n_received += 1;
                }
            }
        }
        n_received
    }

    /// Marks the connection whose session was taken as proven, and closes the connection of the session before.
    fn prove(&mut self) {
        let current = self.links.prev.as_ref().and_then(LinkIn::address);
        let offered = self.links.prev.as_ref().and_then(LinkIn::offered);
        for input in &mut self.prev {
            input.is_proven |= Some(input.peer) == current;
            input.is_offered |= Some(input.peer) == offered;
        }
        let is_replaced = |input: &TcpInput| input.is_proven && Some(input.peer) != current;
        while let Some(index) = self.prev.iter().position(is_replaced) {
            self.close(index);
        }
    }

    // Both

    fn receive_all(&mut self, now: Micros) -> usize {
        self.connect(now);
        self.check_next(now);
        self.accept(now);
        let n = self.receive_next(now) + self.receive_prev(now, false);
        self.prove();
        n
    }

    fn transmit(&mut self, now: Micros) {
        if let Some(next) = &mut self.out.next {
            next.flush();
        }
        for output in &mut self.out.prev {
            output.flush();
        }
        self.links.transmit(now, &mut self.out);
    }

    fn sleep(&self, now: Micros, until: Micros) {
        let mut fds: heapless::Vec<(BorrowedFd<'_>, bool), { STRANGERS_MAX + 4 }> =
            heapless::Vec::new();
        let mut until = until.min(self.links.deadline());
        // All fit: the session's connections, the strangers', and the listener.
        match now < self.accept_at {
            true => until = until.min(self.accept_at),
            false => drop(fds.push((self.listener.as_fd(), false))),
        }
        for output in self.out.next.iter().chain(&self.out.prev) {
            let _ = fds.push((output.stream.as_fd(), !output.is_empty()));
        }
        if self.next.is_none() && self.dialing.next_address.is_some() {
            until = until.min(self.dialing.connect_at);
        }
        net::wait(&fds, Duration::from_micros(until.saturating_sub(now)));
    }
}

/// Gives all whole records of `input` to the links. False if the connection has to be closed.
fn take(input: &mut TcpInput, links: &mut Links, out: &mut TcpWire, now: Micros) -> bool {
    let peer = input.peer;
    loop {
        match input.record() {
            // A stream damages nothing: a datagram that is dropped here is not for these links.
            Ok(Some(record)) => drop(links.on_datagram(now, peer, record, out)),
            Ok(None) => break,
            Err(()) => return false,
        }
    }
    input.rewind();
    true
}

impl Endpoint for Tcp {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn service(&mut self, wait: Duration) -> io::Result<()> {
        let start = self.clock.now();
        let end = start.saturating_add(wait.as_micros() as Micros);
        let spin_end = start + self.options.spin.as_micros() as Micros;
        self.follow_next(start);
        self.transmit(start);
        let mut n_received = self.receive_all(start);
        let mut now = start;
        let mut is_prefetched = false;
        loop {
            if self.links.is_ready() {
                return Ok(());
            }
            now = self.clock.now().max(now);
            if n_received > 0 || now >= self.links.deadline() {
                self.transmit(now);
            }
            if self.links.is_ready() || now >= end {
                return Ok(());
            }
            if now < spin_end || n_received > 0 {
                if !std::mem::replace(&mut is_prefetched, true) {
                    self.links.prefetch();
                }
                std::hint::spin_loop();
                n_received = self.receive_next(now) + self.receive_prev(now, true);
            } else {
                self.sleep(now, end);
                now = self.clock.now();
                self.transmit(now);
                n_received = self.receive_all(now);
            }
        }
    }

    /// Adds what the endpoint waits for to `sleep`. Connections outside the session are read whenever
    /// it is serviced.
    fn join<'a>(&'a mut self, sleep: &mut Sleep<'a>) {
        let left = self.links.deadline().saturating_sub(self.clock.now());
        sleep.shorten(Duration::from_micros(left));
        let peer = self.links.prev.as_ref().and_then(LinkIn::address);
        let prev = self.out.prev.iter().filter(|output| Some(output.peer) == peer);
        for output in self.out.next.iter().chain(prev) {
            sleep.on(output.stream.as_fd(), !output.is_empty());
        }
    }

    fn expect_next(&mut self, name: Option<Name>) {
        self.options.config.next = name;
    }

    fn set_next(&mut self, address: SocketAddr) {
        self.dialing.resolver.forget();
        self.open_next(address);
    }

    fn carrier(&self) -> &'static str {
        "tcp"
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }
}
