//! A heap that counts allocations.

#![expect(unsafe_code, reason = "a global allocator is an unsafe trait; so are system calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Counts allocations of all threads but the test harness's.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes that were allocated.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Id of the test harness's thread, or 0. That thread prints a message when a test takes more than a minute.
static HARNESS: AtomicI32 = AtomicI32::new(0);

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

// SAFETY: every call is passed on to `System` unchanged, which keeps the promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: `System` asks for the same promises about `layout` as this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System`, as all memory here does, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: `pointer` came from `System` with this layout; the caller promises the rest.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
