//! How a server ends: the first signal asks for it, and a while later, or with the second, it is over.
//!
//! Signals come to a process, so this is the process's, too.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::sys::signal;

/// How long answers may take after the first signal.
static DRAIN: OnceLock<Duration> = OnceLock::new();
/// When they have taken that; `None` is never.
static END: OnceLock<Option<Instant>> = OnceLock::new();

/// Gives answers this long after the first signal.
pub(super) fn set_drain(drain: Duration) {
    // The first server of a process decides.
    DRAIN.get_or_init(|| drain);
}

/// Whether a signal has asked for the end.
pub(super) fn is_asked_for() -> bool {
    signal::interrupted() > 0
}

/// Whether what runs still is to be given up.
pub(super) fn is_over() -> bool {
    if !is_asked_for() {
        return false;
    }
    let drain = DRAIN.get().copied().unwrap_or_default();
    // A time that is beyond the clock's is as good as none.
    let end = END.get_or_init(|| Instant::now().checked_add(drain));
    signal::interrupted() > 1 || end.is_some_and(|end| Instant::now() >= end)
}
