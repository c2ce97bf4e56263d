//! Whether anybody still wants what a forward pass computes.

use std::sync::atomic::{AtomicBool, Ordering};

/// Asked before each piece of work. Once lost it stays so: a piece that was left out makes the
/// pass worthless.
pub(super) struct Interest {
    is_wanted: Option<fn() -> bool>,
    is_lost: AtomicBool,
}

impl Interest {
    /// Lost when `is_wanted` says no for the first time; never without one.
    pub(super) fn new(is_wanted: Option<fn() -> bool>) -> Interest {
        Interest { is_wanted, is_lost: AtomicBool::new(false) }
    }

    /// Whether the work may be left out.
    pub(super) fn is_lost(&self) -> bool {
        let Some(is_wanted) = self.is_wanted else { return false };
        if !self.is_lost.load(Ordering::Relaxed) && !is_wanted() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        self.is_lost.load(Ordering::Relaxed)
    }
}
