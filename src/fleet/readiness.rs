//! The report of a board to the master that holds it: whether its part is at work, and if not, why.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::memory;

/// Longest time that a board waits for something before its master hears of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Progress of a board with its order.
#[derive(Default)]
pub(super) struct Readiness {
    state: Mutex<State>,
    /// Steps of the work that makes it ready: bytes that came, weights that are packed.
    progress: AtomicU64,
}

#[derive(Default)]
struct State {
    is_ready: bool,
    /// Start of the board's wait, and what it waits for.
    waits: Option<(Instant, String)>,
    /// Reason why the board cannot do its order.
    failure: Option<String>,
}

impl Readiness {
    /// Locks the state, which stays valid when a thread panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a new order: the board is neither ready, waiting nor failed.
    pub(super) fn begin(&self) {
        *self.lock() = State::default();
    }

    /// Notes that the board's links are open.
    pub(super) fn ready(&self) {
        let mut state = self.lock();
        (state.is_ready, state.waits) = (true, None);
    }

    /// Counts a step of the work that makes the board ready.
    pub(super) fn advance(&self) {
        self.progress.fetch_add(1, Relaxed);
    }

    /// A number that grows with each step of the work that makes the board ready. For weights that are compared
    /// or copied, blocks read from the disk count.
    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Relaxed).wrapping_add(memory::blocks_read())
    }

    /// Notes that the board waits, and for what.
    pub(super) fn wait(&self, what: &str) {
        let mut state = self.lock();
        let since = state.waits.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        state.waits = Some((since, what.to_owned()));
    }

    /// Ends the wait: the awaited thing has come.
    pub(super) fn go_on(&self) {
        self.advance();
        self.lock().waits = None;
    }

    /// Notes that the board cannot do its order, and why.
    pub(super) fn fail(&self, why: &str) {
        *self.lock() = State { failure: Some(why.to_owned()), ..State::default() };
    }

    /// True if the board's part is at work.
    ///
    /// # Errors
    /// The reason why it is not, and will not be soon.
    pub(super) fn state(&self) -> Result<bool, String> {
        let state = self.lock();
        match (&state.failure, &state.waits) {
            (Some(why), _) => Err(why.clone()),
            (None, Some((since, what))) if since.elapsed() >= PATIENCE => Err(what.clone()),
            _ => Ok(state.is_ready),
        }
    }
}
