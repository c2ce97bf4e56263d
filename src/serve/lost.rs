//! Boards that answers need and that are lost.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Says why boards that are needed for an answer are lost, if they are.
pub(crate) type Lost = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Why the boards were given up; `None` once they are back.
#[derive(Default)]
pub(super) struct GivenUp(Mutex<Option<String>>);

impl GivenUp {
    pub(super) fn why(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Sets the reason why boards were given up, or clears it once they are back.
    pub(super) fn set(&self, why: Option<String>) {
        *self.lock() = why;
    }

    /// Locks the reason. No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
