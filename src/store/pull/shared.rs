//! State that the threads of a download share, and its news for the caller.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::store::error::StoreError;

/// Interval between two calls that tell of progress.
pub(super) const TELL_PERIOD: Duration = Duration::from_millis(100);

/// Shortest wait that is told.
const TOLD_FROM: Duration = Duration::from_secs(2);

/// News of a download.
#[derive(Debug)]
pub(crate) enum PullEvent<'a> {
    /// A decision, or the reason of a wait, in words.
    Note(&'a str),
    /// Bytes of the file with the hash `digest` that are there.
    Bytes { digest: &'a str, done: u64, total: u64 },
}

/// State that the threads of a download share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) is_ended: AtomicBool,
    pub(super) done: AtomicU64,
    /// Bytes of the file that is being fetched.
    total: AtomicU64,
    /// The file's hash, and notes that the caller has not seen.
    words: Mutex<(String, Vec<String>)>,
}

impl Shared {
    /// Refuses to go on once the caller has left.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.is_ended.load(Ordering::Relaxed) {
            true => Err(StoreError::Interrupted),
            false => Ok(()),
        }
    }

    /// Waits for `time`, at most until the caller leaves.
    pub(super) fn wait(&self, time: Duration) -> Result<(), StoreError> {
        let steps = time.as_millis().div_ceil(TELL_PERIOD.as_millis());
        for _ in 0..steps {
            self.check()?;
            thread::sleep(TELL_PERIOD);
        }
        self.check()
    }

    /// Waits like [`wait`](Self::wait), and tells the reason if that takes long.
    pub(super) fn wait_for(&self, why: StoreError, time: Duration) -> Result<(), StoreError> {
        if time >= TOLD_FROM {
            self.note(format!("{why}; waits {} s", time.as_secs()));
        }
        self.wait(time)
    }

    pub(super) fn note(&self, note: String) {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).1.push(note);
    }

    /// Begins to tell of the file with the hash `digest`, of which `done` bytes are there.
    pub(super) fn begin(&self, digest: &str, (done, total): (u64, u64)) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        digest.clone_into(&mut words.0);
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    pub(super) fn tell(
        &self,
        tell: &mut dyn FnMut(PullEvent<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (digest, notes) = {
            let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            (words.0.clone(), std::mem::take(&mut words.1))
        };
        for note in &notes {
            tell(PullEvent::Note(note))?;
        }
        let total = self.total.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed).min(total);
        tell(PullEvent::Bytes { digest: &digest, done, total })
    }
}
