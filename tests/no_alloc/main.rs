//! No token allocates: on one board, over a link, in a team.

#[path = "../common/allocator.rs"]
mod allocator;
mod alone;
#[path = "../common/counting.rs"]
mod counting;
mod link;
#[path = "../common/rings.rs"]
mod rings;
mod team;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one test run at a time, until the result is dropped: the heap counts allocations of all threads.
fn alone_in_process() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
