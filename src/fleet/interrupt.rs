//! When a ring's node is to end.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::sys::{notify, signal};

/// Whether this board has been told to do something else.
static HAS_OTHER_WORK: AtomicBool = AtomicBool::new(false);

/// Whether a signal or the work's own reason ended it. Called at every turn of the loops, which a service
/// manager may watch.
pub(crate) fn is_interrupted() -> bool {
    notify::alive();
    signal::interrupted() != 0 || HAS_OTHER_WORK.load(Relaxed)
}

/// Ends what runs, as a signal would.
pub(crate) fn end_for_other_work() {
    HAS_OTHER_WORK.store(true, Relaxed);
}

/// Goes on with that.
pub(crate) fn go_on() {
    HAS_OTHER_WORK.store(false, Relaxed);
}
