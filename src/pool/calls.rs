//! How the threads of a pool join a call, take its pieces and leave it.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::section::Section;

/// Number of polls of an idle thread before it sleeps: some tens of microseconds.
const SPINS: u32 = 20_000;

/// The work of one call. Pieces are numbers, and each is taken once.
pub(super) type PieceJob<'a> = &'a (dyn Fn(usize) + Sync + 'a);

/// State that the threads of a pool share.
pub(super) struct Calls {
    /// Number of the call in the upper half; [`CLOSED`] and the number of workers in the call in the lower
    /// half.
    state: AtomicU64,
    /// The current job: a pointer to a [`PieceJob`] on the caller's stack.
    job: AtomicPtr<()>,
    /// Remaining pieces of each thread: the caller's first, then the workers'.
    sections: Vec<Section>,
    /// Number of workers that have started and have made the allocations of a thread's start.
    started: AtomicUsize,
    /// A flag for each worker: whether it sleeps.
    sleeping: Vec<AtomicBool>,
    panicked: AtomicBool,
    closing: AtomicBool,
}

impl Calls {
    /// State for `n_workers` workers and the caller.
    pub(super) fn new(n_workers: usize) -> Calls {
        Calls {
            state: AtomicU64::new(CLOSED),
            job: AtomicPtr::new(ptr::null_mut()),
            sections: (0..=n_workers).map(|_| Section::default()).collect(),
            started: AtomicUsize::new(0),
            sleeping: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    /// Calls `job` once for each number below `pieces`, on the caller and all `workers` that join. Returns
    /// when all are done.
    ///
    /// # Panics
    /// If `job` panicked on any thread.
    ///
    /// # Safety
    /// - No other call may be in progress.
    pub(super) unsafe fn run(&self, pieces: usize, job: PieceJob<'_>, workers: &[JoinHandle<()>]) {
        self.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        let (mut start, n) = (0, self.sections.len());
        for (index, section) in self.sections.iter().enumerate() {
            let end = ((index + 1) * pieces).div_ceil(n);
            section.put(start..end);
            start = end;
        }
        let epoch = epoch(self.state.load(Ordering::Relaxed)).wrapping_add(1);
        // Pairs with the swap in `sleep`: either the worker sees this call, or this thread sees it sleeping.
        self.state.swap(u64::from(epoch) << 32, Ordering::SeqCst);
        for (flag, worker) in self.sleeping.iter().zip(workers) {
            if flag.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        // `job` must outlive the workers' use of it even if a piece panics here.
        let close = Close(self);
        self.take_pieces(0, job);
        drop(close);
        assert!(!self.panicked.load(Ordering::Relaxed), "a worker thread panicked");
    }

    /// Counts a worker that is ready.
    pub(super) fn note_start(&self) {
        self.started.fetch_add(1, Ordering::Release);
    }

    /// Number of workers that are ready.
    pub(super) fn started(&self) -> usize {
        self.started.load(Ordering::Acquire)
    }

    /// Makes each worker return once it is awake.
    pub(super) fn end(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    /// Body of worker `index`: works on each call until [`Calls::end`].
    pub(super) fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.join_next(seen, index) {
            seen = epoch;
            let _leave = Leave(self);
            let job: *const PieceJob<'_> = self.job.load(Ordering::Relaxed).cast();
            // SAFETY: `run` stored the address of a live `PieceJob` before it opened the call that
            // `join_next` joined, and waits for `Leave` before the job dies.
            let job = unsafe { *job };
            self.take_pieces(1 + index, job);
        }
    }

    fn take_pieces(&self, thread: usize, job: PieceJob<'_>) {
        while let Some(piece) = self.sections[thread].take().or_else(|| self.take_over(thread)) {
            job(piece);
        }
    }

    /// Moves half of another thread's remaining pieces to `thread`, and returns the first of them for the
    /// caller to run; no other thread can take it. `None` if no pieces are left.
    fn take_over(&self, thread: usize) -> Option<usize> {
        let n = self.sections.len();
        let mut others = (1..n).map(|i| &self.sections[(thread + i) % n]);
        let pieces = others.find_map(Section::take_half)?;
        self.sections[thread].put(pieces.start + 1..pieces.end);
        Some(pieces.start)
    }

    /// Waits for an open call after `seen` and joins it; `None` when the pool is dropped.
    fn join_next(&self, mut seen: u32, index: usize) -> Option<u32> {
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if epoch(state) != seen {
                seen = epoch(state);
                spins = 0;
                if self.join(state) {
                    return Some(seen);
                }
            }
            if self.closing.load(Ordering::Acquire) {
                return None;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                self.sleep(seen, index);
            }
        }
    }

    /// Enters the call of `state`, unless it has been closed.
    fn join(&self, mut state: u64) -> bool {
        let call = epoch(state);
        while epoch(state) == call && state & CLOSED == 0 {
            let joined = state + 1;
            match self.state.compare_exchange_weak(
                state,
                joined,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Sleeps until there is a call after `seen`. May wake spuriously.
    fn sleep(&self, seen: u32, index: usize) {
        // A swap instead of a store: an emulator may move the loads below before a store.
        self.sleeping[index].swap(true, Ordering::SeqCst);
        let is_due = epoch(self.state.load(Ordering::SeqCst)) != seen;
        if !is_due && !self.closing.load(Ordering::SeqCst) {
            thread::park();
        }
        self.sleeping[index].store(false, Ordering::Relaxed);
    }
}

/// Flag in [`Calls::state`]: the call takes no more workers.
const CLOSED: u64 = 1 << 31;

/// Number of a call.
fn epoch(state: u64) -> u32 {
    (state >> 32) as u32
}

/// Takes a worker out of a call when dropped, also in a panic.
struct Leave<'a>(&'a Calls);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.panicked.store(true, Ordering::Relaxed);
        }
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// When dropped, closes a call and waits until no worker is in it.
struct Close<'a>(&'a Calls);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while state & (CLOSED - 1) > 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                // A worker may be waiting for this core.
                thread::yield_now();
            }
            state = self.0.state.load(Ordering::Acquire);
        }
    }
}
