//! Whether a forward pass is to end before it is done.

use std::sync::atomic::{AtomicBool, Ordering};

/// Polled by every thread before each piece of work. A piece that was left out makes the pass worthless, so
/// once it has returned true it always does.
pub(super) struct Interrupt {
    is_interrupted: Option<fn() -> bool>,
    was_interrupted: AtomicBool,
}

impl Interrupt {
    /// Comes when `is_interrupted` first says so; never without one.
    pub(super) fn new(is_interrupted: Option<fn() -> bool>) -> Interrupt {
        Interrupt { is_interrupted, was_interrupted: AtomicBool::new(false) }
    }

    /// Asks, and says whether the work is to be left out.
    pub(super) fn ask(&self) -> bool {
        let Some(is_interrupted) = self.is_interrupted else { return false };
        if !self.was_interrupted.load(Ordering::Relaxed) && is_interrupted() {
            self.was_interrupted.store(true, Ordering::Relaxed);
        }
        self.was_interrupted.load(Ordering::Relaxed)
    }
}
