//! Nothing is allocated for a token: alone, over a link, in a team.

mod alone;
#[path = "../common/counting.rs"]
mod counting;
mod link;
#[path = "../common/rings.rs"]
mod rings;
mod team;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time runs until the result is dropped: the heap counts what all threads ask for.
fn alone_in_process() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
