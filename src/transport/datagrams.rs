//! Links over datagrams: one socket for both neighbours, and the loop that services them. A carrier handles
//! datagrams that leave by another way, or arrive past the socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::doubt::Doubt;
use super::link::{LinkIn, LinkOut, Links, Wire};
use super::options::CarrierOptions;
use super::place::mapped;
use super::resolver::{Resolver, unresolved};
use super::sleep::Sleep;
use super::time::Clock;
use super::{Endpoint, Micros, TransportError};
use crate::sys::net::{DatagramSocket, MESSAGE_BYTES};
use crate::wire::datagram;
use crate::wire::hello::Name;

/// Most messages that are received in one round.
const MESSAGES_MAX: usize = 8;
/// Longest look at what bypasses the socket before the socket is polled again, in microseconds.
pub(super) const GLANCE_US: Micros = 10;

/// A carrier of datagrams: a socket, and possibly another way beside it.
pub trait Carrier: Wire + Send {
    /// Name of the carrier.
    const NAME: &'static str;
    /// Time for which the socket need not be polled, in microseconds, because frames bypass it.
    const SOCKET_RESTS_US: Micros;

    /// The socket for datagrams of every kind.
    fn socket(&self) -> &DatagramSocket;

    /// Makes a link to the next node. The link before it must have been dropped.
    fn link_to(&self, options: &CarrierOptions, address: SocketAddr, now: Micros) -> LinkOut;

    /// Takes what has come without the socket.
    ///
    /// # Errors
    /// The system's.
    fn collect(&mut self, links: &mut Links, now: Micros) -> io::Result<()>;

    /// Watches for what comes without the socket, until something is there or `is_over` returns true.
    fn glance(&self, links: &mut Links, is_over: impl Fn() -> bool);

    /// Makes `sleep` end when something comes.
    fn join<'a>(&'a self, sleep: &mut Sleep<'a>);

    /// Adds a notice for the user, unless it was added before.
    fn tell(&mut self, notice: &str);

    /// Notices for the user, one line each.
    fn notices(&self) -> &[String];
}

/// Both links of a node over a carrier of datagrams.
pub struct Datagrams<C> {
    options: CarrierOptions,
    links: Links,
    carrier: C,
    resolver: Resolver,
    /// Buffer for one received message.
    room: Box<[u8]>,
    /// Most messages to receive in the next round: [`MESSAGES_MAX`] after a full round, else 1, which saves a call that
    /// finds nothing.
    n_wanted: usize,
    /// Time from which on the socket is polled again.
    ask_at: Micros,
    /// Diagnosis of a next node that is silent.
    doubt: Option<Doubt>,
    clock: Clock,
    address: SocketAddr,
}

/// Opens a socket with `bind` that listens at `address`. Returns it with the address that it got.
pub(super) fn listen(
    address: SocketAddr,
    bind: fn(SocketAddr) -> io::Result<DatagramSocket>,
) -> Result<(DatagramSocket, SocketAddr), TransportError> {
    let fail = |source| TransportError::Listen { address, source };
    let socket = bind(address).map_err(fail)?;
    let address = socket.local_address().map_err(fail)?;
    Ok((socket, address))
}

/// Lets the kernel poll the network device for `us` microseconds, unless that is 0. Returns a notice if the kernel
/// refuses.
pub(super) fn poll_device(socket: &DatagramSocket, us: u32) -> Option<String> {
    let result = if us == 0 { Ok(()) } else { socket.set_busy_poll(us) };
    result.err().map(|e| format!("the kernel does not poll the network device: {e}"))
}

impl<C: Carrier> Datagrams<C> {
    /// Links over a carrier whose socket listens at `address`: `prev` from the previous node, and one to the next node
    /// if its address is known.
    pub(super) fn new(
        mut options: CarrierOptions,
        carrier: C,
        (address, resolver): (SocketAddr, Resolver),
        prev: LinkIn,
    ) -> Datagrams<C> {
        options.config.spend_seed();
        let links = Links { next: None, prev: Some(prev) };
        let clock = Clock::start();
        let room = vec![0; MESSAGE_BYTES].into_boxed_slice();
        let (next, doubt) = (resolver.address(), None);
        let mut node = Datagrams {
            options,
            links,
            carrier,
            resolver,
            room,
            n_wanted: 1,
            ask_at: 0,
            doubt,
            clock,
            address,
        };
        if let Some(next) = next {
            node.open_next(next);
        }
        node
    }

    /// Continues the diagnosis of a silent next node.
    fn doubt(&mut self, now: Micros) {
        if let (Some(doubt), Some(next)) = (&mut self.doubt, &mut self.links.next)
            && let Some(unheard) = doubt.turn(now, next.is_heard())
        {
            next.on_unheard(unheard);
        }
    }

    /// Follows a missing next node to another address.
    fn follow_next(&mut self, now: Micros) {
        match self.resolver.turn(now, self.links.is_next_missed()) {
            None => {}
            Some(Err(e)) => self.carrier.tell(&unresolved(&e)),
            Some(Ok(address)) => match &mut self.links.next {
                Some(next) => {
                    let address = mapped(address, self.address.is_ipv6());
                    next.set_address(address, now);
                    self.doubt = Some(Doubt::new(address, now));
                }
                None => self.open_next(address),
            },
        }
    }

    /// Opens the link to the next node.
    fn open_next(&mut self, address: SocketAddr) {
        let address = mapped(address, self.address.is_ipv6());
        // Dropped first: the new link may need the same slots of the kernel module.
        self.links.next = None;
        let now = self.clock.now();
        self.options.config.spend_seed();
        self.links.next = Some(self.carrier.link_to(&self.options, address, now));
        self.options.config.spend_seed();
        self.doubt = Some(Doubt::new(address, now));
    }

    /// Takes what has arrived. Returns whether the socket had something.
    fn receive(&mut self, now: Micros) -> io::Result<bool> {
        let has_received = now >= self.ask_at && self.ask(now)?;
        self.carrier.collect(&mut self.links, now)?;
        Ok(has_received)
    }

    /// Receives from the socket. Returns whether something came; if not, the socket rests.
    fn ask(&mut self, now: Micros) -> io::Result<bool> {
        let mut room = std::mem::take(&mut self.room);
        let received = self.receive_in(&mut room, now);
        self.room = room;
        let n = received?;
        self.n_wanted = if n == self.n_wanted { MESSAGES_MAX } else { 1 };
        // With busy polling, receiving makes the kernel poll the device, also for frames that bypass the socket.
        let rests = n == 0 && self.options.busy_poll_us == 0;
        self.ask_at = if rests { now + C::SOCKET_RESTS_US } else { 0 };
        Ok(n > 0)
    }

    /// Receives messages one by one in `room`. Returns how many there were.
    fn receive_in(&mut self, room: &mut [u8], now: Micros) -> io::Result<usize> {
        let mut n = 0;
        while n < self.n_wanted
            && let Some((from, message)) = self.carrier.socket().receive(room)?
        {
            for datagram in datagram::split(message) {
                // Datagrams that are damaged or of another protocol are dropped.
                let _ = self.links.on_datagram(now, from, datagram, &mut self.carrier);
            }
            n += 1;
        }
        Ok(n)
    }
}

impl<C: Carrier> Endpoint for Datagrams<C> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn service(&mut self, wait: Duration) -> io::Result<()> {
        let start = self.clock.now();
        let end = start.saturating_add(wait.as_micros() as Micros);
        let spin_end = start + self.options.spin.as_micros() as Micros;
        self.follow_next(start);
        self.links.transmit(start, &mut self.carrier);
        self.doubt(start);
        let mut now = start;
        let mut is_prefetched = false;
        loop {
            let has_received = self.receive(now)?;
            if self.links.is_ready() {
                return Ok(());
            }
            now = self.clock.now();
            if has_received || now >= self.links.deadline() {
                self.links.transmit(now, &mut self.carrier);
            }
            if self.links.is_ready() || now >= end {
                return Ok(());
            }
            let until = self.links.deadline().min(end);
            if now < spin_end {
                if !std::mem::replace(&mut is_prefetched, true) {
                    self.links.prefetch();
                }
                let (clock, until) = (self.clock, until.min(now + GLANCE_US));
                self.carrier.glance(&mut self.links, || clock.now() >= until);
            } else if !has_received {
                let mut sleep = Sleep::new(Duration::from_micros(until.saturating_sub(now)));
                self.carrier.join(&mut sleep);
                sleep.sleep();
                (now, self.ask_at) = (self.clock.now(), 0);
            }
        }
    }

    fn join<'a>(&'a mut self, sleep: &mut Sleep<'a>) {
        let left = self.links.deadline().saturating_sub(self.clock.now());
        sleep.shorten(Duration::from_micros(left));
        self.ask_at = 0;
        self.carrier.join(sleep);
    }

    fn expect_next(&mut self, name: Option<Name>) {
        self.options.config.next = name;
    }

    fn set_next(&mut self, address: SocketAddr) {
        self.resolver.forget();
        self.open_next(address);
    }

    fn carrier(&self) -> &'static str {
        C::NAME
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn notices(&self) -> &[String] {
        self.carrier.notices()
    }
}
