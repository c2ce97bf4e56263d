//! When a board's work is to end.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::sys::{notify, signal};

/// Ends a worker, or its present work. All clones end the one worker.
#[derive(Clone, Default)]
pub struct Stop {
    has_other_work: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

thread_local! {
    /// The worker that this thread works for.
    static OWN: RefCell<Stop> = RefCell::new(Stop::default());
}

impl Stop {
    /// Has [`is_interrupted`] heed this on the calling thread.
    pub(super) fn heed(&self) {
        OWN.set(self.clone());
    }

    /// Ends the worker's present work, because a master told it something else.
    pub(super) fn end_for_other_work(&self) {
        self.has_other_work.store(true, Relaxed);
    }

    /// Lets the worker begin what it has been told.
    pub(super) fn go_on(&self) {
        self.has_other_work.store(false, Relaxed);
    }

    /// Ends the worker, as a signal does.
    pub fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// True if the worker is to end its present work.
    pub(super) fn is_set(&self) -> bool {
        self.has_other_work.load(Relaxed) || self.is_over.load(Relaxed)
    }
}

/// True if a signal ended the work of this thread, or if its worker's [`Stop`] did. Each turn of a loop calls this, and
/// so sends a sign of life to a service manager that watches.
pub(crate) fn is_interrupted() -> bool {
    notify::alive();
    signal::interrupted() != 0 || OWN.with_borrow(Stop::is_set)
}
