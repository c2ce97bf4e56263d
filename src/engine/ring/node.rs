//! A node's endpoint: serviced by the main thread while it waits, and by the link thread while it computes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::NodeError;
use crate::ring::Hop;
use crate::sys::cpu;
use crate::transport::Endpoint;
use crate::wire::frame::Reason;
use crate::wire::hello::Name;

/// Period of the link thread while the main thread computes.
const SERVICE_EVERY: Duration = Duration::from_millis(2);
/// Period of the link thread while the main thread does not compute.
const IDLE_EVERY: Duration = Duration::from_millis(30);
/// Period of the link thread after it has found the main thread at the links [`RESTS_AFTER`] times in a row.
const RESTED_EVERY: Duration = Duration::from_millis(250);
const RESTS_AFTER: u32 = 5;
/// Time after which the master is told that a worker is away from its links.
const BUSY_AFTER_US: u64 = 3_000_000;
/// Period of the reports that a worker is away from its links.
const BUSY_EVERY_US: u64 = 1_000_000;

/// Values of [`Shared::packed`] that are not percentages.
const NOT_PACKING: u32 = u32::MAX;
const ASSEMBLING: u32 = u32::MAX - 1;

/// The endpoint and the thread that services its links.
pub(super) struct Node {
    shared: Arc<Shared>,
    link_thread: Option<JoinHandle<()>>,
}

struct Shared {
    start: Instant,
    /// Name of the node in messages to the master while its main thread is busy; `None` for a master.
    name: Option<Name>,
    /// When the main thread was last at the links, in microseconds since the start.
    seen_us: AtomicU64,
    endpoint: Mutex<Box<dyn Endpoint>>,
    is_computing: AtomicBool,
    /// Percentage of packed weights while this node packs; [`ASSEMBLING`] while it waits for the boards of
    /// its team; otherwise [`NOT_PACKING`].
    packed: AtomicU32,
    /// Whether the link thread sleeps for a long time.
    is_resting: AtomicBool,
    is_closing: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Box<dyn Endpoint>> {
        // A panic elsewhere leaves the endpoint in a valid state.
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Services the links while the main thread computes: acknowledgements, retransmissions and heartbeats.
    fn service_links(&self) {
        cpu::unpin_current_thread();
        let (mut n_driven, mut said_us) = (0, 0);
        while !self.is_closing.load(Ordering::Relaxed) {
            let is_resting = n_driven >= RESTS_AFTER;
            // Stored before `is_computing` is read, so that a thread that starts to compute in between sees
            // it.
            self.is_resting.store(is_resting, Ordering::SeqCst);
            thread::park_timeout(match self.is_computing.load(Ordering::SeqCst) {
                true => SERVICE_EVERY,
                false if is_resting => RESTED_EVERY,
                false => IDLE_EVERY,
            });
            let Ok(mut endpoint) = self.endpoint.try_lock() else {
                n_driven += 1;
                continue;
            };
            n_driven = 0;
            if let Err(e) = endpoint.service(Duration::ZERO) {
                log::debug!("link: {e}");
            }
            self.say_busy(&mut **endpoint, &mut said_us);
        }
    }

    /// Tells the master that this node only answers its neighbours, because its main thread is busy.
    fn say_busy(&self, endpoint: &mut dyn Endpoint, said_us: &mut u64) {
        let Some(name) = &self.name else { return };
        let now = self.now();
        let away_us = now.saturating_sub(self.seen_us.load(Ordering::Relaxed));
        if away_us >= BUSY_AFTER_US && now >= *said_us + BUSY_EVERY_US {
            *said_us = now;
            let seconds = u32::try_from(away_us / 1_000_000).unwrap_or(u32::MAX);
            let reason = match self.packed.load(Ordering::Relaxed) {
                NOT_PACKING => Reason::Busy(seconds),
                ASSEMBLING => Reason::Incomplete,
                percent => Reason::Packing(percent),
            };
            Hop::new(endpoint).say(name, reason);
        }
    }
}

impl Node {
    /// A node over `endpoint`. With a `name` it tells the master when its work takes long.
    pub(super) fn new(endpoint: Box<dyn Endpoint>, name: Option<Name>) -> Result<Node, NodeError> {
        let shared = Arc::new(Shared {
            start: Instant::now(),
            name,
            seen_us: AtomicU64::new(0),
            endpoint: Mutex::new(endpoint),
            is_computing: AtomicBool::new(false),
            packed: AtomicU32::new(NOT_PACKING),
            is_resting: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        });
        let serviced = Arc::clone(&shared);
        let link_thread = thread::Builder::new()
            .name("leap-link".to_owned())
            .spawn(move || serviced.service_links())
            .map_err(NodeError::Thread)?;
        Ok(Node { shared, link_thread: Some(link_thread) })
    }

    /// Locks the endpoint for this thread until the result is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Endpoint>> {
        self.shared.seen_us.store(self.now(), Ordering::Relaxed);
        self.shared.lock()
    }

    /// Microseconds since the node's start.
    pub(super) fn now(&self) -> u64 {
        self.shared.now()
    }

    /// Runs `work` while the link thread services the links. Returns the result, and the time in
    /// microseconds.
    pub(super) fn compute<T>(&self, work: impl FnOnce() -> T) -> (T, u32) {
        self.shared.is_computing.store(true, Ordering::SeqCst);
        if self.shared.is_resting.swap(false, Ordering::SeqCst) {
            self.wake_link_thread();
        }
        let start = Instant::now();
        let result = work();
        let compute_us = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.shared.is_computing.store(false, Ordering::Relaxed);
        (result, compute_us)
    }

    /// Runs `work`, which packs weights and reports its percentage, while the link thread services the links
    /// and passes the percentage on.
    pub(super) fn prepare<T>(&self, work: impl FnOnce(&dyn Fn(u32)) -> T) -> T {
        self.shared.packed.store(0, Ordering::Relaxed);
        let tell = |percent| self.shared.packed.store(percent, Ordering::Relaxed);
        let (result, _) = self.compute(|| work(&tell));
        self.shared.packed.store(NOT_PACKING, Ordering::Relaxed);
        result
    }

    /// Runs `work`, which waits for the boards of this node's team, while the link thread services the links
    /// and tells the master of the wait.
    pub(super) fn assemble<T>(&self, work: impl FnOnce() -> T) -> T {
        self.shared.packed.store(ASSEMBLING, Ordering::Relaxed);
        let (result, _) = self.compute(work);
        self.shared.packed.store(NOT_PACKING, Ordering::Relaxed);
        result
    }

    fn wake_link_thread(&self) {
        if let Some(link_thread) = &self.link_thread {
            link_thread.thread().unpark();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        self.wake_link_thread();
        if let Some(link_thread) = self.link_thread.take() {
            // A link thread that panicked has nothing left to do.
            let _ = link_thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::link::LinkConfig;
    use crate::transport::options::CarrierOptions;
    use crate::transport::place::HostPort;
    use crate::transport::udp::Udp;
    use crate::wire::Dtype;
    use crate::wire::frame::{Frame, Repr};
    use crate::wire::hello::{RingInfo, name};

    /// Endpoint of a ring of two, for the node with the model's layer `index`.
    fn end(index: u32) -> Box<dyn Endpoint> {
        let node = RingInfo {
            model: 7,
            dim: 64,
            n_layers: 2,
            kv_dim: 64,
            vocab_size: 512,
            held: 0..2,
            wish: Some(index..index + 1),
            dtype: Dtype::F32,
            is_master: index == 0,
            name: name("test"),
            ..RingInfo::default()
        };
        let config = LinkConfig::new(node, None, [index as u8 + 1; 32]);
        Box::new(
            Udp::open(CarrierOptions::new(config, HostPort::new("127.0.0.1", 0), None)).unwrap(),
        )
    }

    /// Runs `work` on a worker. The second argument returns frames that the ring's master has received.
    fn heard(work: impl FnOnce(&Node, &mut dyn FnMut() -> Option<Repr>)) {
        let (mut master, mut worker) = (end(0), end(1));
        master.set_next(worker.local_address());
        worker.set_next(master.local_address());
        let node = Node::new(worker, Some(name("pi"))).unwrap();
        let start = Instant::now();
        let mut heard = || {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing is said");
            master.service(Duration::from_millis(50)).unwrap();
            let prev = master.links().prev.as_mut()?;
            while prev.next_event().is_some() {}
            let frame = Frame::parse(prev.front()?).ok()?;
            assert_eq!(frame.name(), "pi");
            let heard = frame.repr();
            prev.release();
            Some(heard)
        };
        work(&node, &mut heard);
    }

    #[test]
    fn a_node_that_computes_for_ever_is_told_by_its_other_thread() {
        heard(|node, heard| {
            let (heard, _) = node.compute(|| {
                loop {
                    if let Some(heard) = heard() {
                        return heard;
                    }
                }
            });
            let Repr::Report { reason: Reason::Busy(3..), .. } = heard else { panic!("{heard:?}") };
        });
    }

    #[test]
    fn a_node_that_packs_says_how_far_it_is() {
        heard(|node, heard| {
            node.prepare(|tell| {
                tell(42);
                loop {
                    if let Some(Repr::Report { reason, .. }) = heard() {
                        return assert_eq!(reason, Reason::Packing(42));
                    }
                }
            });
        });
    }
}
