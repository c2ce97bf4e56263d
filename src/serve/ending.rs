//! End of a server: the first signal begins a drain period. The end of this period, or a second signal, stops all
//! answers.
//!
//! The state is global because a signal goes to the whole process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::sys::signal;

/// Drain period: how long answers may take after the first signal.
static DRAIN: OnceLock<Duration> = OnceLock::new();
/// End of the drain period; `None` if it never ends.
static END: OnceLock<Option<Instant>> = OnceLock::new();

/// Sets how long answers may take after the first signal.
pub(super) fn set_drain(drain: Duration) {
    // The first server of a process decides.
    DRAIN.get_or_init(|| drain);
}

/// Whether a signal has asked for the end.
pub(super) fn is_asked_for() -> bool {
    signal::interrupted() > 0
}

/// Whether running answers have to be given up.
pub(super) fn is_over() -> bool {
    if !is_asked_for() {
        return false;
    }
    let drain = DRAIN.get().copied().unwrap_or_default();
    // A time beyond the clock's range never comes.
    let end = END.get_or_init(|| Instant::now().checked_add(drain));
    signal::interrupted() > 1 || end.is_some_and(|end| Instant::now() >= end)
}
