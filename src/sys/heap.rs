//! The heap of the program: a lack of memory ends the program with one line instead of a signal.
//!
//! Most allocations are small, and their callers cannot go on without them. A caller that wants much memory,
//! of a size that the user chose, asks with [`may_fail`] and says what it was for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::confined::spend;

/// The system's heap. When the system refuses memory that nothing can go on without, the program ends
/// with a message on stderr instead of by SIGABRT, before `main` too.
pub struct Heap {
    /// The message, with its line end.
    pub message: &'static str,
    /// The program's exit code.
    pub exit_code: i32,
}

/// Whether a thread has begun to print the message.
static IS_SAID: AtomicBool = AtomicBool::new(false);

thread_local! {
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which handles failed allocations on this thread itself.
pub fn may_fail<T>(work: impl FnOnce() -> T) -> T {
    let before = MAY_FAIL.replace(true);
    let result = work();
    MAY_FAIL.set(before);
    result
}

/// Gives memory that is free within the heap back to the system. Glibc keeps it for each thread that has ended, which
/// adds up if large work ends in many threads.
#[cfg(feature = "serve")]
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointers, and the heap locks itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The length of an allocation, which is at most `isize::MAX`.
fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

impl Heap {
    fn check(&self, pointer: *mut u8) -> *mut u8 {
        if pointer.is_null() && !MAY_FAIL.get() {
            self.exhausted();
        }
        pointer
    }

    #[cold]
    fn exhausted(&self) -> ! {
        if IS_SAID.swap(true, Ordering::Relaxed) {
            // Another thread is about to end the program.
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        let message = self.message;
        // SAFETY: the text is static; nothing is allocated here.
        unsafe { libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len()) };
        // SAFETY: the call ends the process and runs nothing that could allocate.
        unsafe { libc::_exit(self.exit_code) };
    }
}

// SAFETY: every call goes on to `System` unchanged, which keeps the promises, or does not return.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        spend(signed(layout.size()));
        // SAFETY: the caller's promises about `layout` are those `System` asks for.
        self.check(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        spend(signed(layout.size()));
        // SAFETY: the caller's promises about `layout` are those `System` asks for.
        self.check(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        spend(-signed(layout.size()));
        // SAFETY: `pointer` came from `System`, as all memory here does, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        spend(signed(bytes).saturating_sub(signed(layout.size())));
        // SAFETY: `pointer` came from `System` with this layout; the caller promises the rest.
        self.check(unsafe { System.realloc(pointer, layout, bytes) })
    }
}
