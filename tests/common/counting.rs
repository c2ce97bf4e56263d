//! A heap that counts allocations.

#![expect(unsafe_code, reason = "the number of a thread is a system call")]

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::allocator::Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that were allocated.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Id of the test harness's thread, or 0. That thread prints a message when a test takes more than a minute.
static HARNESS: AtomicI32 = AtomicI32::new(0);

/// Counts allocations of all threads but the test harness's.
fn count(bytes: usize) {
    let harness = HARNESS.load(Ordering::Relaxed);
    if harness == 0 || harness != this_thread() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn this_thread() -> i32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

#[global_allocator]
static COUNTING: Counting = Counting(count);

/// Excludes the process's first thread, unless the test runs on it (`--test-threads=1`).
pub(crate) fn leave_out_harness() {
    let first = std::process::id() as i32;
    if this_thread() != first {
        HARNESS.store(first, Ordering::Relaxed);
    }
}

/// Number of allocations of the process so far.
pub(crate) fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Bytes that the process has allocated so far.
#[allow(dead_code, reason = "not every test that counts looks at them")]
pub(crate) fn allocated_bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}
