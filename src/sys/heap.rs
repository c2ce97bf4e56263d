//! The heap of the program: a lack of memory ends the program with one line instead of a signal.
//!
//! Most allocations are small, and their callers cannot go on without them. A caller that wants much memory,
//! of a size that the user chose, asks with [`may_fail`] and says what it was for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
    static BUDGET: Cell<Option<&'static Budget>> = const { Cell::new(None) };
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

/// Limits of work that may be hostile.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory that it may hold at a time.
    pub memory_bytes: usize,
    /// Stack of its thread.
    pub stack_bytes: usize,
    /// Time after which it is not waited for.
    pub seconds: u32,
}

/// The limit beyond which work went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// Memory. The work keeps what it has.
    Memory,
    /// Time. The work goes on, unless it panicked.
    Time,
}

/// Memory of a thread with [`Limits`].
struct Budget {
    left: AtomicIsize,
    is_spent: AtomicBool,
}

/// Budgets that no thread uses.
static BUDGETS: Mutex<Vec<&'static Budget>> = Mutex::new(Vec::new());

/// Runs `work` on a thread of its own. A thread that wants more memory than its limit stops there for ever, and keeps what
/// it has, so the same work should not be tried again. A program with another heap than [`Heap`] does not count memory.
///
/// # Errors
/// If there is no thread for it.
pub fn within<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, Overrun>> {
    let lock = || BUDGETS.lock().unwrap_or_else(PoisonError::into_inner);
    let free = lock().pop();
    let new = || Budget { left: AtomicIsize::new(0), is_spent: AtomicBool::new(false) };
    let budget: &'static Budget = free.unwrap_or_else(|| Box::leak(Box::new(new())));
    let bytes = isize::try_from(limits.memory_bytes).unwrap_or(isize::MAX);
    budget.left.store(bytes, Ordering::Relaxed);
    let (result, results) = sync_channel(1);
    let thread = thread::Builder::new().name("template".to_owned()).stack_size(limits.stack_bytes);
    let spawned = thread.spawn(move || {
        BUDGET.set(Some(budget));
        let done = work();
        BUDGET.set(None);
        lock().push(budget);
        // A caller that has given up waits no more.
        let _ = result.send(done);
    });
    if let Err(e) = spawned {
        lock().push(budget);
        return Err(e);
    }
    let end = Instant::now() + Duration::from_secs(limits.seconds.into());
    loop {
        match results.recv_timeout(Duration::from_millis(20)) {
            Ok(done) => return Ok(Ok(done)),
            Err(_) if budget.is_spent.load(Ordering::Relaxed) => return Ok(Err(Overrun::Memory)),
            Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
            Err(_) => return Ok(Err(Overrun::Time)),
        }
    }
}

/// Takes `bytes` of this thread's budget, or gives them back. Never returns if there are not as many. Inlined, it would
/// stand at each allocation of the program.
#[inline(never)]
fn spend(bytes: isize) {
    let Some(budget) = BUDGET.get() else { return };
    let before = budget.left.fetch_sub(bytes, Ordering::Relaxed);
    if before < bytes {
        budget.is_spent.store(true, Ordering::Relaxed);
        loop {
            thread::sleep(Duration::from_secs(3600));
        }
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
