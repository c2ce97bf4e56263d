//! Interrupts a forward pass.

use std::sync::atomic::{AtomicBool, Ordering};

/// Every thread polls it before each piece of work. A skipped piece makes the pass worthless, so it returns
/// true for good after the first time.
pub(super) struct Interrupt {
    is_interrupted: Option<fn() -> bool>,
    was_interrupted: AtomicBool,
}

impl Interrupt {
    /// Polls `is_interrupted`; without it nothing interrupts.
    pub(super) fn new(is_interrupted: Option<fn() -> bool>) -> Interrupt {
        Interrupt { is_interrupted, was_interrupted: AtomicBool::new(false) }
    }

    /// An interrupt of another pass, by the same function.
    pub(super) fn again(&self) -> Interrupt {
        Interrupt::new(self.is_interrupted)
    }

    /// Polls. True if the caller must skip its work.
    pub(super) fn ask(&self) -> bool {
        let Some(is_interrupted) = self.is_interrupted else { return false };
        if !self.was_interrupted.load(Ordering::Relaxed) && is_interrupted() {
            self.was_interrupted.store(true, Ordering::Relaxed);
        }
        self.was_interrupted.load(Ordering::Relaxed)
    }
}
