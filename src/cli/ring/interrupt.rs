//! When a ring's node is to end.

use crate::sys::{notify, signal};

/// Whether a signal has ended the work. Asked at every turn of the loops, which a service manager may watch.
pub(in crate::cli) fn is_interrupted() -> bool {
    notify::alive();
    signal::interrupted() != 0
}
