//! A node's endpoint: driven by the thread that computes while it waits, and by another one
//! while it computes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::NodeError;
use crate::sys::cpu;
use crate::transport::Endpoint;

/// How often the other thread looks after the links while this one computes, and while it does
/// not.
const MINDED_EVERY: Duration = Duration::from_millis(2);
const IDLE_EVERY: Duration = Duration::from_millis(30);
/// The same while this thread waits for the links itself, which shows when it has been found to so
/// many times in a row.
const RESTED_EVERY: Duration = Duration::from_millis(250);
const RESTS_AFTER: u32 = 5;

/// The endpoint and the thread that minds it.
pub(super) struct Node {
    shared: Arc<Shared>,
    minder: Option<JoinHandle<()>>,
    start: Instant,
}

struct Shared {
    endpoint: Mutex<Box<dyn Endpoint>>,
    is_computing: AtomicBool,
    /// Whether the other thread sleeps for long.
    is_resting: AtomicBool,
    is_closing: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Box<dyn Endpoint>> {
        // The endpoint is as sound as before, whoever panicked with it in hand.
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the neighbours while nobody else does: acknowledgements, repetitions and signs
    /// of life.
    fn mind(&self) {
        cpu::unpin_current_thread();
        let mut n_driven = 0;
        while !self.is_closing.load(Ordering::Relaxed) {
            let is_resting = n_driven >= RESTS_AFTER;
            // In this order, so that one who begins to compute meanwhile sees it.
            self.is_resting.store(is_resting, Ordering::SeqCst);
            thread::park_timeout(match self.is_computing.load(Ordering::SeqCst) {
                true => MINDED_EVERY,
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
        }
    }
}

impl Node {
    pub(super) fn new(endpoint: Box<dyn Endpoint>) -> Result<Node, NodeError> {
        let shared = Arc::new(Shared {
            endpoint: Mutex::new(endpoint),
            is_computing: AtomicBool::new(false),
            is_resting: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
        });
        let minded = Arc::clone(&shared);
        let minder = thread::Builder::new()
            .name("leap-link".to_owned())
            .spawn(move || minded.mind())
            .map_err(NodeError::Thread)?;
        Ok(Node { shared, minder: Some(minder), start: Instant::now() })
    }

    /// The endpoint, for this thread alone until the result is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, Box<dyn Endpoint>> {
        self.shared.lock()
    }

    /// Microseconds since the node began.
    pub(super) fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Runs `work` while the other thread minds the links; returns its result and how many
    /// microseconds it took.
    pub(super) fn compute<T>(&self, work: impl FnOnce() -> T) -> (T, u32) {
        self.shared.is_computing.store(true, Ordering::SeqCst);
        if self.shared.is_resting.swap(false, Ordering::SeqCst) {
            self.wake_minder();
        }
        let start = Instant::now();
        let result = work();
        let compute_us = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.shared.is_computing.store(false, Ordering::Relaxed);
        (result, compute_us)
    }

    fn wake_minder(&self) {
        if let Some(minder) = &self.minder {
            minder.thread().unpark();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        self.wake_minder();
        if let Some(minder) = self.minder.take() {
            // A minder that panicked has nothing left to do.
            let _ = minder.join();
        }
    }
}
