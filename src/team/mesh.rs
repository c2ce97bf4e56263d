//! A node's endpoints, one for each other node, and the thread that services them while it computes.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::group::Notice;
use crate::sys::cpu;
use crate::transport::link::{LinkEvent, LinkState, Links, Refused, Unheard};
use crate::transport::{Endpoint, Micros, Sleep};
use crate::wire::frame::TEAM_NODES_MAX as NODES_MAX;
use crate::wire::hello::{PROTOCOL, Refusal};

/// The link thread services an endpoint that was idle for this long. It looks as often while batches come.
const SERVICE_EVERY: Duration = Duration::from_millis(2);
/// Period of the link thread while a gather is open and the node computes: it acknowledges parts and sends
/// further ones.
const GATHER_SERVICE_EVERY: Duration = Duration::from_micros(500);
/// Period of the link thread while no batches come.
const IDLE_EVERY: Duration = Duration::from_millis(30);
/// Time without a batch after which no more are expected.
const IDLE_AFTER_US: u64 = 1_000_000;

/// Clock of a node.
pub(crate) trait Time: Send + Sync {
    /// Microseconds since some origin.
    fn now(&self) -> Micros;
    /// Lets others go first for a moment, while this node looks for what is missing.
    fn pause(&self);
    /// Sleeps until something in `sleep` wakes this node.
    fn sleep(&self, sleep: Sleep<'_>);
}

/// The system's clock.
struct SystemTime(Instant);

impl Time for SystemTime {
    fn now(&self) -> Micros {
        self.0.elapsed().as_micros() as Micros
    }

    fn pause(&self) {
        thread::yield_now();
    }

    fn sleep(&self, sleep: Sleep<'_>) {
        sleep.sleep();
    }
}

/// The endpoints of a node of a team, and the thread that services them.
pub struct Mesh {
    shared: Arc<Shared>,
    own: usize,
    /// Names of the nodes, for notices and errors.
    names: Vec<String>,
    link_thread: Option<JoinHandle<()>>,
}

struct Shared {
    time: Arc<dyn Time>,
    peers: Vec<Option<Peer>>,
    /// Time of this node's last start or gather, in microseconds.
    driven_us: AtomicU64,
    /// Whether the link thread sleeps for long.
    is_resting: AtomicBool,
    /// Whether a gather is under way while this node computes.
    is_gathering: AtomicBool,
    is_closing: AtomicBool,
}

struct Peer {
    ends: Mutex<Ends>,
    /// Time of the last service, in microseconds.
    serviced_us: AtomicU64,
}

/// Both links with a peer, and what the user has not heard about them yet.
struct Ends {
    endpoint: Box<dyn Endpoint>,
    refused: Option<Refused>,
    unheard: Option<Unheard>,
    /// The other protocol that the peer was said to speak, since both links were up.
    stranger: Option<u16>,
}

/// Numbers of the sessions of both links with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sessions {
    next: u64,
    prev: u64,
}

/// The links with a peer, for this thread alone.
pub(super) struct PeerLinks<'m> {
    shared: &'m Shared,
    /// Name of the peer.
    name: &'m str,
    serviced_us: &'m AtomicU64,
    ends: MutexGuard<'m, Ends>,
}

impl Mesh {
    /// A node's endpoints by the other nodes' indices, with `None` in its own place. Each endpoint's next and
    /// previous node are the same: that peer.
    ///
    /// # Errors
    /// Fewer than 2 nodes or more than [`NODES_MAX`], not exactly one `None`, no thread to be had.
    pub fn new(endpoints: Vec<Option<Box<dyn Endpoint>>>) -> io::Result<Mesh> {
        let mut mesh = Mesh::without_link_thread(endpoints, Arc::new(SystemTime(Instant::now())))?;
        let serviced = Arc::clone(&mesh.shared);
        let link_thread = thread::Builder::new().name("leap-link".to_owned());
        mesh.link_thread = Some(link_thread.spawn(move || serviced.service_links())?);
        Ok(mesh)
    }

    /// The mesh of a node that is alone.
    pub fn alone() -> Mesh {
        let time = Arc::new(SystemTime(Instant::now()));
        Mesh::of(vec![None], 0, time)
    }

    /// The mesh with this clock, without a link thread: the caller calls [`LinkThread::turn`].
    pub(crate) fn without_link_thread(
        endpoints: Vec<Option<Box<dyn Endpoint>>>,
        time: Arc<dyn Time>,
    ) -> io::Result<Mesh> {
        let own = endpoints.iter().position(Option::is_none);
        let n_peers = endpoints.iter().flatten().count();
        let is_sound = (2..=NODES_MAX).contains(&endpoints.len()) && n_peers + 1 == endpoints.len();
        let Some(own) = own.filter(|_| is_sound) else {
            let what = format!("a team of {} nodes with links to {n_peers}", endpoints.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        };
        let peer = |endpoint| {
            let ends = Ends { endpoint, refused: None, unheard: None, stranger: None };
            Peer { ends: Mutex::new(ends), serviced_us: AtomicU64::new(0) }
        };
        let peers = endpoints.into_iter().map(|endpoint| endpoint.map(peer)).collect();
        Ok(Mesh::of(peers, own, time))
    }

    fn of(peers: Vec<Option<Peer>>, own: usize, time: Arc<dyn Time>) -> Mesh {
        let names = (0..peers.len()).map(|node| format!("node {node} of the team")).collect();
        Mesh { shared: Arc::new(Shared::new(peers, time)), own, names, link_thread: None }
    }

    /// The mesh of nodes with these names.
    ///
    /// # Panics
    /// If there is not one name for each node.
    pub fn named(mut self, names: Vec<String>) -> Mesh {
        assert!(names.len() == self.n_nodes());
        self.names = names;
        self
    }

    /// Name of a node.
    pub(super) fn name(&self, node: usize) -> String {
        self.names[node].clone()
    }

    /// Services the endpoints in tests, which have no link thread.
    #[cfg(test)]
    pub(crate) fn link_thread(&self) -> LinkThread {
        LinkThread(Arc::clone(&self.shared))
    }

    /// The time, in microseconds.
    pub(super) fn now(&self) -> Micros {
        self.shared.time.now()
    }

    /// Lets others go first for a moment.
    pub(super) fn pause(&self) {
        self.shared.time.pause();
    }

    /// This node's index.
    pub fn own(&self) -> usize {
        self.own
    }

    /// Nodes of the team, this one included.
    pub fn n_nodes(&self) -> usize {
        self.shared.peers.len()
    }

    /// Indices of the other nodes.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..self.n_nodes()).filter(move |node| *node != own)
    }

    /// The links with node `node`.
    ///
    /// # Panics
    /// If it is this node, or none.
    pub(super) fn lock(&self, node: usize) -> PeerLinks<'_> {
        let peer = self.peer(node);
        let (shared, serviced_us) = (&*self.shared, &peer.serviced_us);
        let mut links =
            PeerLinks { shared, name: &self.names[node], serviced_us, ends: peer.lock() };
        links.links().begin_turn();
        links
    }

    fn peer(&self, node: usize) -> &Peer {
        self.shared.peers[node].as_ref().expect("no node has links with itself")
    }

    /// Sleeps until a frame comes from one of `nodes`, or an endpoint has something to do, for `wait` at
    /// most. The endpoints were serviced just now.
    ///
    /// # Panics
    /// See [`Mesh::lock`].
    pub(super) fn sleep(&self, nodes: impl Iterator<Item = usize>, wait: Duration) {
        let locked = nodes.map(|node| self.peer(node).lock());
        let mut ends: heapless::Vec<MutexGuard<'_, Ends>, NODES_MAX> = locked.collect();
        // The link thread may have taken something meanwhile.
        if ends.iter_mut().any(|ends| ends.endpoint.links().is_ready()) {
            return;
        }
        let mut sleep = Sleep::new(wait);
        ends.iter_mut().for_each(|ends| ends.endpoint.join(&mut sleep));
        self.shared.time.sleep(sleep);
    }

    /// A batch is under way: the link thread wakes up.
    pub(super) fn drive(&self) {
        self.shared.driven_us.store(self.shared.now(), Ordering::SeqCst);
        if self.shared.is_resting.swap(false, Ordering::SeqCst) {
            self.wake_link_thread();
        }
    }

    /// Sets whether a gather is open while this node computes: then the link thread looks more often.
    pub(super) fn set_gathering(&self, is_gathering: bool) {
        self.shared.is_gathering.store(is_gathering, Ordering::Relaxed);
    }

    /// The endpoints again, as [`Mesh::new`] was given them; links go on as they are.
    pub fn into_endpoints(mut self) -> Vec<Option<Box<dyn Endpoint>>> {
        self.stop_link_thread();
        let shared = Arc::clone(&self.shared);
        drop(self);
        let peers = Arc::into_inner(shared).map(|shared| shared.peers).unwrap_or_default();
        let ends = |peer: Peer| peer.ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        peers.into_iter().map(|peer| peer.map(|peer| ends(peer).endpoint)).collect()
    }

    fn stop_link_thread(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        self.wake_link_thread();
        if let Some(link_thread) = self.link_thread.take() {
            // A link thread that panicked has nothing left to do.
            let _ = link_thread.join();
        }
    }

    fn wake_link_thread(&self) {
        if let Some(link_thread) = &self.link_thread {
            link_thread.thread().unpark();
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.stop_link_thread();
    }
}

impl Peer {
    fn lock(&self) -> MutexGuard<'_, Ends> {
        // A panic elsewhere leaves the endpoint sound.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn new(peers: Vec<Option<Peer>>, time: Arc<dyn Time>) -> Shared {
        Shared {
            time,
            peers,
            driven_us: AtomicU64::new(0),
            is_resting: AtomicBool::new(false),
            is_gathering: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        }
    }

    fn now(&self) -> Micros {
        self.time.now()
    }

    /// Services the links while the main thread computes: acknowledgements, retransmissions and heartbeats.
    fn service_links(&self) {
        cpu::unpin_current_thread();
        while !self.is_closing.load(Ordering::Relaxed) {
            thread::park_timeout(self.rest());
            self.service_peers();
        }
    }

    /// Time for which the link thread may sleep now.
    fn rest(&self) -> Duration {
        // In this order, so that a thread that begins a batch meanwhile sees it.
        self.is_resting.store(true, Ordering::SeqCst);
        let idle_us = self.now().saturating_sub(self.driven_us.load(Ordering::SeqCst));
        let is_idle = idle_us > IDLE_AFTER_US;
        self.is_resting.fetch_and(is_idle, Ordering::SeqCst);
        if is_idle { IDLE_EVERY } else { self.service_every() }
    }

    fn service_every(&self) -> Duration {
        if self.is_gathering.load(Ordering::Relaxed) { GATHER_SERVICE_EVERY } else { SERVICE_EVERY }
    }

    fn service_peers(&self) {
        self.peers.iter().flatten().for_each(|peer| self.service_peer(peer));
    }

    fn service_peer(&self, peer: &Peer) {
        let away_us = self.now().saturating_sub(peer.serviced_us.load(Ordering::Relaxed));
        if u128::from(away_us) < self.service_every().as_micros() {
            return;
        }
        // The holder of the lock services it.
        let Ok(mut ends) = peer.ends.try_lock() else { return };
        if let Err(e) = ends.endpoint.service(Duration::ZERO) {
            log::debug!("link: {e}");
        }
    }
}

/// The link thread of a node, for tests that run it themselves.
#[cfg(test)]
pub(crate) struct LinkThread(Arc<Shared>);

#[cfg(test)]
impl LinkThread {
    /// Time for which the thread may sleep before [`LinkThread::turn`].
    pub(crate) fn rest(&self) -> Duration {
        self.0.rest()
    }

    /// Services all endpoints that have been idle for a while.
    pub(crate) fn turn(&self) {
        self.0.service_peers();
    }
}

impl PeerLinks<'_> {
    fn links(&mut self) -> &mut Links {
        self.ends.endpoint.links()
    }

    /// The sessions, if both links are up.
    pub(super) fn sessions(&mut self) -> Option<Sessions> {
        let Links { next: Some(next), prev: Some(prev) } = self.links() else { return None };
        let is_up = *next.state() == LinkState::Up && *prev.state() == LinkState::Up;
        let (next, prev) = (next.session()?, prev.session()?);
        is_up.then_some(Sessions { next, prev })
    }

    fn next_event(&mut self) -> Option<LinkEvent> {
        let links = self.links();
        let prev = links.prev.as_mut().and_then(|prev| prev.next_event());
        prev.or_else(|| links.next.as_mut()?.next_event())
    }

    /// Drops events, as the sessions show what happened, but keeps the reason why the peer has no links.
    /// While an event waits, [`PeerLinks::service`] does not.
    pub(super) fn drop_events(&mut self) {
        while let Some(event) = self.next_event() {
            match event {
                LinkEvent::Refused(refused) => self.ends.refused = Some(refused),
                LinkEvent::Unheard(unheard) => self.ends.unheard = Some(unheard),
                LinkEvent::Up { .. } => self.ends.stranger = None,
                LinkEvent::Lost | LinkEvent::Reset => {}
            }
        }
    }

    /// Why the two nodes do not fit, unless that was told.
    pub(super) fn refusal(&mut self) -> Option<Notice> {
        self.drop_events();
        let refused = self.ends.refused.take()?;
        let Refusal::Version { prev, next } = refused.refusal else {
            return Some(Notice::Refused(self.of_link(&refused)));
        };
        let theirs = if refused.is_next { next } else { prev };
        // Either link tells it.
        let is_told = self.ends.stranger.replace(theirs) == Some(theirs);
        let at = SocketAddr::new(refused.from.ip().to_canonical(), refused.from.port());
        let what = || {
            format!(
                "{} at {at} speaks protocol {theirs}, this node protocol {PROTOCOL}; \
                 install the same release on both",
                self.name
            )
        };
        (!is_told).then(|| Notice::Refused(what()))
    }

    /// Why nothing is heard of the peer, unless that was told.
    pub(super) fn silence(&mut self) -> Option<Notice> {
        self.drop_events();
        let unheard = self.ends.unheard.take()?;
        Some(Notice::Refused(self.of_link(&unheard)))
    }

    /// Says that `what` concerns the links with this peer.
    fn of_link(&self, what: &dyn Display) -> String {
        format!("link to {}: {what}", self.name)
    }

    /// Room for a frame.
    pub(super) fn reserve(&mut self) -> Option<&mut [u8]> {
        self.links().next.as_mut()?.reserve()
    }

    /// Sends the first `bytes` of the reserved room when the endpoint is serviced.
    pub(super) fn commit(&mut self, bytes: usize) {
        if let Some(next) = &mut self.links().next {
            next.commit(bytes);
        }
    }

    /// Number of the next frame that is sent.
    pub(super) fn head(&mut self) -> u32 {
        self.links().next.as_ref().map_or(0, |next| next.head())
    }

    /// The peer has released all frames before `end`, as what it sends shows.
    pub(super) fn on_released(&mut self, end: u32) {
        if let Some(next) = &mut self.links().next {
            next.on_released(end);
        }
    }

    /// Declares that frames sent from now on acknowledge all frames released here.
    pub(super) fn imply_released(&mut self) {
        if let Some(prev) = &mut self.links().prev {
            prev.imply_released();
        }
    }

    /// The next frame is missed: asks for it when the endpoint is serviced.
    pub(super) fn ask(&mut self) {
        if let Some(prev) = &mut self.links().prev {
            prev.ask();
        }
    }

    /// Sends a frame that `emit` writes, if there is room; says whether there was.
    pub(super) fn send(&mut self, emit: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let Some(bytes) = self.reserve().and_then(emit) else { return false };
        self.commit(bytes);
        true
    }

    /// The oldest frame.
    pub(super) fn front(&mut self) -> Option<&[u8]> {
        self.links().prev.as_mut()?.front()
    }

    /// Frees the oldest frame.
    pub(super) fn release(&mut self) {
        if let Some(prev) = &mut self.links().prev {
            prev.release();
        }
    }

    /// Leaves all frames for later: [`PeerLinks::service`] does not return for them.
    pub(super) fn leave(&mut self) {
        if let Some(prev) = &mut self.links().prev {
            prev.leave();
        }
    }

    /// Sends due frames and takes arrived ones, and waits for `wait` if there are none; see
    /// [`Endpoint::service`].
    pub(super) fn service(&mut self, wait: Duration) {
        if let Err(e) = self.ends.endpoint.service(wait) {
            // It shows as a silent peer.
            log::debug!("link: {e}");
        }
        self.serviced_us.store(self.shared.now(), Ordering::Relaxed);
    }

    /// Frames sent that the peer has not confirmed.
    pub(super) fn in_flight(&mut self) -> usize {
        self.links().next.as_ref().map_or(0, |next| next.in_flight())
    }

    /// Round trip to the peer, in microseconds; 0 if unknown.
    pub(super) fn rtt_us(&mut self) -> u32 {
        self.links().next.as_ref().map_or(0, |next| next.stats().srtt_us)
    }

    /// The carrier's notice after the first `n_told`.
    pub(super) fn carrier_notice(&self, n_told: usize) -> Option<Notice> {
        let what = self.ends.endpoint.notices().get(n_told)?;
        Some(Notice::Carrier(self.of_link(what)))
    }
}
