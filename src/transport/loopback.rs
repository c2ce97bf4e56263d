//! Endpoints within one process, in virtual time.
//!
//! A [`Network`] carries datagrams between its endpoints with its [`Faults`], and holds the clock: it stands
//! still until [`Network::step`], or an endpoint that waits, moves it. One seed gives one course of events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::fault::{Dice, Faults};
use super::link::{Burst, LinkConfig, LinkIn, LinkOut, Links, Mode, Sending, Wire};
use super::{Endpoint, Micros, Sleep};
use crate::wire::hello::Name;

/// Most datagrams that wait for an endpoint; more are lost, as in a socket's buffer.
const INBOX_MAX: usize = 4096;

/// A network of endpoints, numbered from 0 in the order in which they joined.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Mutex<NetworkState>>,
}

struct NetworkState {
    now: Micros,
    dice: Dice,
    faults: Faults,
    /// Losses to come in the current burst of each way (from, to).
    bursts: BTreeMap<(SocketAddr, usize), u32>,
    flying: BinaryHeap<Reverse<Flight>>,
    n_sent: u64,
    nodes: Vec<LoopbackHost>,
    cuts: BTreeSet<(usize, usize)>,
    /// Limits for the length of datagrams on ways (from, to).
    limits: BTreeMap<(usize, usize), Limit>,
    /// Addresses that endpoints have given up.
    gone: BTreeSet<SocketAddr>,
    /// Owners of the addresses that endpoints moved to, from [`MOVED_PORT`] on.
    moved: Vec<usize>,
}

struct Limit {
    bytes: usize,
    is_told: bool,
}

struct LoopbackHost {
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    deadline: Micros,
    /// Address that the endpoint sends from.
    address: SocketAddr,
}

impl LoopbackHost {
    fn at(address: SocketAddr) -> LoopbackHost {
        LoopbackHost { inbox: VecDeque::new(), deadline: 0, address }
    }
}

/// Ordered by arrival; the number makes equal times unequal.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Micros,
    number: u64,
    from: SocketAddr,
    to: usize,
    bytes: Vec<u8>,
}

/// Port of the first address that an endpoint moves to.
const MOVED_PORT: u16 = 10_000;

/// The address of endpoint `index`, until it moves.
pub fn address(index: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + index as u16))
}

impl Network {
    /// An empty network, at time 1,000,000.
    pub fn new(seed: u64, faults: Faults) -> Network {
        let shared = NetworkState {
            now: 1_000_000,
            dice: Dice::new(seed),
            faults,
            bursts: BTreeMap::new(),
            flying: BinaryHeap::new(),
            n_sent: 0,
            nodes: Vec::new(),
            cuts: BTreeSet::new(),
            limits: BTreeMap::new(),
            gone: BTreeSet::new(),
            moved: Vec::new(),
        };
        Network { shared: Arc::new(Mutex::new(shared)) }
    }

    /// A new endpoint with a link to endpoint `next`, which may join later.
    pub fn endpoint(&self, config: LinkConfig, next: Option<usize>) -> Loopback {
        let mut shared = self.lock();
        let (index, now) = (shared.nodes.len(), shared.now);
        shared.nodes.push(LoopbackHost::at(address(index)));
        drop(shared);
        Loopback::new(self.clone(), index, config, next, now)
    }

    /// Endpoint `index` after a restart: it has forgotten all, and what waited for it is gone.
    ///
    /// # Panics
    /// If no endpoint has this index.
    pub fn restart(&self, index: usize, config: LinkConfig, next: Option<usize>) -> Loopback {
        let mut shared = self.lock();
        shared.nodes[index] = LoopbackHost::at(shared.nodes[index].address);
        let now = shared.now;
        drop(shared);
        Loopback::new(self.clone(), index, config, next, now)
    }

    /// Endpoint `index` is down until it restarts: it no longer moves the clock.
    ///
    /// # Panics
    /// If no endpoint has this index.
    pub fn stop(&self, index: usize) {
        self.lock().nodes[index].deadline = Micros::MAX;
    }

    /// The network's time.
    pub fn now(&self) -> Micros {
        self.lock().now
    }

    /// Changes the network's faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Cuts the way between two endpoints, both directions, or mends it.
    pub fn partition(&self, a: usize, b: usize, is_cut: bool) {
        let mut shared = self.lock();
        for way in [(a, b), (b, a)] {
            match is_cut {
                true => shared.cuts.insert(way),
                false => shared.cuts.remove(&way),
            };
        }
    }

    /// Gives endpoint `index` another address to send from, and returns it; datagrams to the old one still
    /// arrive if `keeps_old`.
    ///
    /// # Panics
    /// If no endpoint has this index.
    pub fn move_endpoint(&self, index: usize, keeps_old: bool) -> SocketAddr {
        let mut shared = self.lock();
        let port = MOVED_PORT + shared.moved.len() as u16;
        shared.moved.push(index);
        let new = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let old = std::mem::replace(&mut shared.nodes[index].address, new);
        if !keeps_old {
            shared.gone.insert(old);
        }
        new
    }

    /// Bounds the datagrams from one endpoint to another: the sender knows the bound if `is_told`, else
    /// longer ones vanish.
    pub fn set_limit(&self, from: usize, to: usize, bytes: usize, is_told: bool) {
        self.lock().limits.insert((from, to), Limit { bytes, is_told });
    }

    /// Puts a datagram into an endpoint's inbox, as a stranger would.
    pub fn inject(&self, from: SocketAddr, to: usize, bytes: &[u8]) {
        self.lock().arrive(from, to, bytes.to_vec());
    }

    /// Moves time to the next arrival or the next endpoint's deadline; false if there is
    /// neither. Then every endpoint is to be serviced.
    pub fn step(&self) -> bool {
        let mut shared = self.lock();
        let deadline = shared.nodes.iter().map(|node| node.deadline).min();
        shared.step(deadline.unwrap_or(Micros::MAX), Micros::MAX)
    }

    /// Steps like [`Network::step`], but not past `limit`: there time stops, and it returns false.
    pub fn step_to(&self, limit: Micros) -> bool {
        let mut shared = self.lock();
        let deadline = shared.nodes.iter().map(|node| node.deadline).min();
        let has_moved = shared.step(deadline.unwrap_or(Micros::MAX), limit);
        if !has_moved {
            shared.now = shared.now.max(limit);
        }
        has_moved
    }

    /// Moves time forward to `at`, or not at all if that is past. Datagrams that arrive until then wait for
    /// their endpoint.
    pub fn pass_to(&self, at: Micros) {
        let mut shared = self.lock();
        while shared.flying.peek().is_some_and(|Reverse(flight)| flight.at <= at) {
            if let Some(Reverse(flight)) = shared.flying.pop() {
                shared.arrive(flight.from, flight.to, flight.bytes);
            }
        }
        shared.now = shared.now.max(at);
    }

    /// When the first of the datagrams that are on the way, or wait, is there for endpoint `to`.
    ///
    /// # Panics
    /// If no endpoint has this index.
    pub fn next_arrival(&self, to: usize) -> Option<Micros> {
        let shared = self.lock();
        if !shared.nodes[to].inbox.is_empty() {
            return Some(shared.now);
        }
        let flights = shared.flying.iter().filter(|Reverse(flight)| flight.to == to);
        flights.map(|Reverse(flight)| flight.at).min()
    }

    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        // A panic elsewhere leaves nothing half done that matters here.
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl NetworkState {
    /// Moves time to `deadline` or the next arrival, if that is not behind `limit`.
    fn step(&mut self, deadline: Micros, limit: Micros) -> bool {
        let arrival = self.flying.peek().map_or(Micros::MAX, |Reverse(flight)| flight.at);
        let at = deadline.min(arrival).max(self.now);
        if at > limit || at == Micros::MAX {
            return false;
        }
        // An endpoint that is late stays so until it is serviced; time goes on.
        self.now = if at == self.now && arrival > at { at + 1 } else { at };
        while self.flying.peek().is_some_and(|Reverse(flight)| flight.at <= self.now) {
            if let Some(Reverse(flight)) = self.flying.pop() {
                self.arrive(flight.from, flight.to, flight.bytes);
            }
        }
        true
    }

    fn arrive(&mut self, from: SocketAddr, to: usize, bytes: Vec<u8>) {
        if let Some(node) = self.nodes.get_mut(to)
            && node.inbox.len() < INBOX_MAX
        {
            node.inbox.push_back((from, bytes));
        }
    }

    /// The endpoint that owns an address.
    fn owner(&self, address: SocketAddr) -> Option<usize> {
        if self.gone.contains(&address) {
            return None;
        }
        match address.port().checked_sub(MOVED_PORT) {
            Some(number) => self.moved.get(usize::from(number)).copied(),
            None => usize::from(address.port()).checked_sub(1),
        }
    }

    /// Whether an endpoint knows that a datagram is too long for the way.
    fn refuses(&self, from: usize, to: SocketAddr, bytes: usize) -> bool {
        let limit = self.owner(to).and_then(|to| self.limits.get(&(from, to)));
        limit.is_some_and(|limit| limit.is_told && bytes > limit.bytes)
    }

    fn send(&mut self, from: usize, to: SocketAddr, mut bytes: Vec<u8>) {
        let Some(to) = self.owner(to) else { return };
        let is_too_long = self.limits.get(&(from, to)).is_some_and(|l| bytes.len() > l.bytes);
        if is_too_long || self.cuts.contains(&(from, to)) {
            return;
        }
        let from = self.nodes[from].address;
        let left = self.bursts.entry((from, to)).or_default();
        if self.faults.is_in_burst(&mut self.dice, left) {
            return;
        }
        for delay in self.faults.fate(&mut self.dice, &mut bytes) {
            self.n_sent += 1;
            let (at, number) = (self.now + delay, self.n_sent);
            self.flying.push(Reverse(Flight { at, number, from, to, bytes: bytes.clone() }));
        }
    }
}

/// An endpoint of a [`Network`].
pub struct Loopback {
    network: Network,
    index: usize,
    config: LinkConfig,
    links: Links,
}

struct LoopbackWire<'a> {
    shared: MutexGuard<'a, NetworkState>,
    from: usize,
}

impl Wire for LoopbackWire<'_> {
    fn burst(&mut self, to: SocketAddr, burst: &Burst<'_>) -> Sending {
        for datagram in burst.datagrams() {
            let bytes = datagram.to_vec();
            if self.shared.refuses(self.from, to, bytes.len()) {
                return Sending::TooLong;
            }
            self.shared.send(self.from, to, bytes);
        }
        Sending::Gone
    }

    fn pieces(&mut self, to: SocketAddr, bytes: &[u8], datagram_bytes: usize) -> Sending {
        if self.shared.refuses(self.from, to, datagram_bytes.min(bytes.len())) {
            return Sending::TooLong;
        }
        for datagram in bytes.chunks(datagram_bytes) {
            self.shared.send(self.from, to, datagram.to_vec());
        }
        Sending::Gone
    }

    fn control(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.shared.send(self.from, to, datagram.to_vec());
    }
}

impl Loopback {
    fn new(
        network: Network,
        index: usize,
        config: LinkConfig,
        next: Option<usize>,
        now: Micros,
    ) -> Loopback {
        let out = |next| LinkOut::new(config.clone(), Mode::Datagrams, address(next), now);
        let links = Links { next: next.map(out), prev: Some(LinkIn::new(config.clone())) };
        Loopback { network, index, config, links }
    }

    /// Takes what has arrived and sends what is due, at the network's time.
    fn turn(&mut self) {
        let shared = self.network.lock();
        let now = shared.now;
        let mut out = LoopbackWire { shared, from: self.index };
        self.links.transmit(now, &mut out);
        while let Some((from, mut bytes)) = out.shared.nodes[self.index].inbox.pop_front() {
            // Damaged datagrams are dropped.
            let _ = self.links.on_datagram(now, from, &mut bytes, &mut out);
        }
        out.shared.nodes[self.index].deadline = self.links.deadline();
    }
}

impl Endpoint for Loopback {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    fn service(&mut self, wait: Duration) -> io::Result<()> {
        self.turn();
        let end = self.network.now() + wait.as_micros() as Micros;
        while !self.links.is_ready() && self.network.now() < end {
            let mut shared = self.network.lock();
            let deadline = shared.nodes[self.index].deadline;
            if !shared.step(deadline, end) {
                shared.now = end;
            }
            drop(shared);
            self.turn();
        }
        Ok(())
    }

    /// An arrival does not end the sleep: the clock stands still meanwhile.
    fn join<'a>(&'a mut self, sleep: &mut Sleep<'a>) {
        let left = self.links.deadline().saturating_sub(self.network.now());
        sleep.shorten(Duration::from_micros(left));
    }

    fn expect_next(&mut self, name: Option<Name>) {
        self.config.next = name;
    }

    fn set_next(&mut self, address: SocketAddr) {
        let now = self.network.now();
        self.links.next = Some(LinkOut::new(self.config.clone(), Mode::Datagrams, address, now));
    }

    fn carrier(&self) -> &'static str {
        "loopback"
    }

    fn local_address(&self) -> SocketAddr {
        address(self.index)
    }

    fn notices(&self) -> &[String] {
        &[]
    }
}
