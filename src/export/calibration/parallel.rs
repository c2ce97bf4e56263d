//! Work on parts that are independent, by as many threads as there are cores.

use std::sync::Mutex;
use std::thread;

use crate::sys::cpu;

/// Does `job` with each of `parts`, which has this number. Threads that the system refuses leave
/// their work to the others.
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
            // A thread less is slower, no more.
            let _ = thread::Builder::new().spawn_scoped(scope, work_anywhere);
        }
        work();
    });
}
