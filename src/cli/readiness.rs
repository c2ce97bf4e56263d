//! A board's report to the master that holds it: whether its part runs, and if not, why.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::memory;

/// Time that a board may wait for something before its master hears of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// State of this board's order.
static STATE: Mutex<State> = Mutex::new(State { is_ready: false, waits: None, failure: None });

/// Steps of the work that makes the board ready: pieces that came, weights that were packed.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

struct State {
    is_ready: bool,
    /// Start of the board's wait, and what it waits for.
    waits: Option<(Instant, String)>,
    /// Why the board cannot carry out its order.
    failure: Option<String>,
}

/// Locks the state, which stays valid when a thread panics while it holds the lock.
fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a new order: the board is neither ready, waiting nor failed.
pub(in crate::cli) fn begin() {
    *lock() = State { is_ready: false, waits: None, failure: None };
}

/// Notes that the board's links are open: it is ready.
pub(in crate::cli) fn ready() {
    let mut state = lock();
    (state.is_ready, state.waits) = (true, None);
}

/// Counts a step of the work that makes the board ready.
pub(in crate::cli) fn advance() {
    PROGRESS.fetch_add(1, Relaxed);
}

/// Grows with each step of the work that makes the board ready. While weights are compared or copied, blocks read from
/// the disk count as steps.
pub(in crate::cli) fn progress() -> u64 {
    PROGRESS.load(Relaxed).wrapping_add(memory::blocks_read())
}

/// Notes what the board waits for.
pub(in crate::cli) fn wait(what: &str) {
    let mut state = lock();
    let since = state.waits.as_ref().map_or_else(Instant::now, |(since, _)| *since);
    state.waits = Some((since, what.to_owned()));
}

/// Ends the wait: the awaited thing has come.
pub(in crate::cli) fn go_on() {
    advance();
    lock().waits = None;
}

/// Notes why the board cannot carry out its order.
pub(in crate::cli) fn fail(why: &str) {
    *lock() = State { is_ready: false, waits: None, failure: Some(why.to_owned()) };
}

/// True if the board's part runs. The error says why it does not, and will not soon.
pub(in crate::cli) fn state() -> Result<bool, String> {
    let state = lock();
    match (&state.failure, &state.waits) {
        (Some(why), _) => Err(why.clone()),
        (None, Some((since, what))) if since.elapsed() >= PATIENCE => Err(what.clone()),
        _ => Ok(state.is_ready),
    }
}
