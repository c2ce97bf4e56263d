//! When a board's work is to end.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::sys::{notify, signal};

/// Ends a worker, or what it does just now. Clones end the same worker.
#[derive(Clone, Default)]
pub(crate) struct Stop {
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

    /// Ends what the worker does, as it has been told to do something else.
    pub(super) fn end_for_other_work(&self) {
        self.has_other_work.store(true, Relaxed);
    }

    /// Lets the worker begin what it has been told.
    pub(super) fn go_on(&self) {
        self.has_other_work.store(false, Relaxed);
    }

    /// Ends the worker. A program of its own ends by a signal.
    #[cfg(all(test, feature = "demo"))]
    pub(super) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Whether the worker is to end what it does.
    pub(super) fn is_set(&self) -> bool {
        self.has_other_work.load(Relaxed) || self.is_over.load(Relaxed)
    }
}

/// Whether a signal ended the work of this thread, or the worker that it works for was told to end it. Called at
/// every turn of the loops, which a service manager may watch.
pub(crate) fn is_interrupted() -> bool {
    notify::alive();
    signal::interrupted() != 0 || OWN.with_borrow(Stop::is_set)
}
