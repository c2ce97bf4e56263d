//! Work on parts that are independent, by as many threads as there are CPUs.

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

/// Does `job` with each of `parts`, which has this number. Threads that the system refuses leave
/// their work to the others.
pub(super) fn for_each<T: Send>(parts: &mut [T], job: &(impl Fn(usize, &mut T) + Sync)) {
    let n_threads = thread::available_parallelism().map_or(1, NonZero::get);
    let n_threads = n_threads.min(parts.len());
    let queue = Mutex::new(parts.iter_mut().enumerate());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let work = || {
        while let Some((n, part)) = next() {
            job(n, part);
        }
    };
    thread::scope(|scope| {
        for _ in 1..n_threads {
            // A thread less is slower, no more.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}
