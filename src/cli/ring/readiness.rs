//! The report of a board to the master that holds it: whether its part is at work, and if not, why.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long a board may wait for something before its master hears of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far this board is with its order.
static STATE: Mutex<State> = Mutex::new(State { is_ready: false, waits: None, failure: None });

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

/// There is something new to do.
pub(super) fn begin() {
    *lock() = State { is_ready: false, waits: None, failure: None };
}

/// Its links are open.
pub(super) fn ready() {
    let mut state = lock();
    (state.is_ready, state.waits) = (true, None);
}

/// It waits, and says for what.
pub(super) fn wait(what: &str) {
    let mut state = lock();
    let since = state.waits.as_ref().map_or_else(Instant::now, |(since, _)| *since);
    state.waits = Some((since, what.to_owned()));
}

/// Ends the wait: the awaited thing has come.
pub(super) fn go_on() {
    lock().waits = None;
}

/// It cannot do what it was told.
pub(super) fn fail(why: &str) {
    *lock() = State { is_ready: false, waits: None, failure: Some(why.to_owned()) };
}

/// Whether its part is at work; or why it is not, and will not be soon.
pub(super) fn state() -> Result<bool, String> {
    let state = lock();
    match (&state.failure, &state.waits) {
        (Some(why), _) => Err(why.clone()),
        (None, Some((since, what))) if since.elapsed() >= PATIENCE => Err(what.clone()),
        _ => Ok(state.is_ready),
    }
}
