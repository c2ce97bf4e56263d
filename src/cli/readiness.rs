//! The report of a board to the master that holds it: whether its part is at work, and if not, why.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::memory;

/// For how long a board may wait for something before its master hears of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far this board is with its order.
static STATE: Mutex<State> = Mutex::new(State { is_ready: false, waits: None, failure: None });

/// Steps of the work that makes it ready: bytes that came, weights that are packed.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

struct State {
    is_ready: bool,
    /// The thing that it waits for, and since when it waits.
    waits: Option<(Instant, String)>,
    /// Why it cannot do it.
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

/// Its links are open.
pub(in crate::cli) fn ready() {
    let mut state = lock();
    (state.is_ready, state.waits) = (true, None);
}

/// Counts a step of the work that makes the board ready.
pub(in crate::cli) fn advance() {
    PROGRESS.fetch_add(1, Relaxed);
}

/// A number that grows with each step of the work that makes the board ready. For weights that are compared
/// or copied, blocks read from the disk count.
pub(in crate::cli) fn progress() -> u64 {
    PROGRESS.load(Relaxed).wrapping_add(memory::blocks_read())
}

/// Notes that the board waits, and for what.
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

/// Notes that the board cannot do its order, and why.
pub(in crate::cli) fn fail(why: &str) {
    *lock() = State { is_ready: false, waits: None, failure: Some(why.to_owned()) };
}

/// Whether its part is at work; or why it is not, and will not be soon.
pub(in crate::cli) fn state() -> Result<bool, String> {
    let state = lock();
    match (&state.failure, &state.waits) {
        (Some(why), _) => Err(why.clone()),
        (None, Some((since, what))) if since.elapsed() >= PATIENCE => Err(what.clone()),
        _ => Ok(state.is_ready),
    }
}
