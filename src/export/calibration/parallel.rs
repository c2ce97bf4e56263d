//! Runs independent parts of work on as many threads as there are cores.

use std::sync::Mutex;
use std::thread;

use crate::sys::cpu;

/// Calls `job` with each of `parts` and its index. If the system refuses threads, the others do their work.
pub(super) fn for_each<T: Send>(parts: &mut [T], job: &(impl Fn(usize, &mut T) + Sync)) {
    let n_threads = cpu::n_useful_threads().min(parts.len());
    let queue = Mutex::new(parts.iter_mut().enumerate());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let work = || {
        while let Some((n, part)) = next() {
            job(n, part);
        }
    };
    let work_anywhere = || {
        // The caller may be pinned.
        cpu::unpin_current_thread();
        work();
    };
    thread::scope(|scope| {
        for _ in 1..n_threads {
            // With a thread less, the work only takes longer.
            let _ = thread::Builder::new().spawn_scoped(scope, work_anywhere);
        }
        work();
    });
}
