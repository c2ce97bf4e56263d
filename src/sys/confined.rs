//! Work that may be hostile, on a thread of its own, with limits of memory, stack and time.
//!
//! Work that goes beyond a limit cannot be undone: its thread stops for ever and keeps what it has, and the program goes
//! on. So does work that panics in a program that panics end. The heap calls [`spend`] with each allocation, so that a
//! thread stops before it is inside the system's allocator, whose locks others need. Recursion that allocates nothing
//! reaches the guard page below its stack; the handler of that signal stops it as well.

use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicIsize, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Limits of work that may be hostile.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory that it may hold at a time.
    pub memory_bytes: usize,
    /// Stack of its thread, at least 2 MiB.
    pub stack_bytes: usize,
    /// Time after which it is not waited for.
    pub time: Duration,
}

/// The limit beyond which work went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// Memory. The work keeps what it has.
    Memory,
    /// Stack: functions that call each other too deeply. The work keeps what it has.
    Stack,
    /// A panic. The work keeps what it has, if panics end the program.
    Panic,
    /// Time. The work goes on, for [`LATE_SECONDS`] at most.
    Time,
}

/// The outcome of work.
#[derive(Clone, Copy, Debug)]
pub struct Done<T> {
    /// Its result.
    pub result: T,
    /// Memory that it allocated and did not free, the result's among it.
    pub kept_bytes: usize,
}

/// Work goes on for this long after its caller has given up. Then it stops at its next allocation, and keeps what it has.
const LATE_SECONDS: u64 = 120;
/// Stack that must be left at an allocation: enough for the system's allocator, and for a panic's message.
const MARGIN_BYTES: usize = 512 << 10;
/// How far from the computed end of a stack its guard page can be.
const GUARD_BYTES: usize = 256 << 10;

/// Values of [`Budget::fault`].
const WORKS: u8 = 0;
const NO_MEMORY: u8 = 1;
const NO_STACK: u8 = 2;
const PANICKED: u8 = 3;
const TOO_LATE: u8 = 4;

/// Memory and stack of a thread with [`Limits`].
struct Budget {
    left: AtomicIsize,
    /// The lowest address of the stack, to within [`GUARD_BYTES`].
    floor: AtomicUsize,
    fault: AtomicU8,
    /// The second of [`now`] at which the work must be over; 0 while it is waited for.
    last_second: AtomicU64,
}

/// Budgets that no thread uses.
static BUDGETS: Mutex<Vec<&'static Budget>> = Mutex::new(Vec::new());

/// The handler of SIGSEGV before this module's.
static BEFORE: OnceLock<SigAction> = OnceLock::new();

thread_local! {
    static BUDGET: Cell<Option<&'static Budget>> = const { Cell::new(None) };
}

/// Runs `work` on a thread of its own. A thread that goes beyond a limit stops there for ever, and keeps what it has, so
/// the same work should not be tried again. A program with another heap than [`Heap`](super::heap::Heap) does not count
/// memory.
///
/// # Errors
/// If there is no thread for it.
pub fn within<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<Done<T>, Overrun>> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        catch_panics();
        catch_overflows();
    });
    let lock = || BUDGETS.lock().unwrap_or_else(PoisonError::into_inner);
    let free = lock().pop();
    let new = || Budget {
        left: AtomicIsize::new(0),
        floor: AtomicUsize::new(0),
        fault: AtomicU8::new(WORKS),
        last_second: AtomicU64::new(0),
    };
    let budget: &'static Budget = free.unwrap_or_else(|| Box::leak(Box::new(new())));
    let bytes = isize::try_from(limits.memory_bytes).unwrap_or(isize::MAX);
    budget.left.store(bytes, Ordering::Relaxed);
    // A caller may have given up just when its work was over.
    budget.last_second.store(0, Ordering::Relaxed);
    let (result, results) = sync_channel(1);
    let thread = thread::Builder::new().name("template".to_owned()).stack_size(limits.stack_bytes);
    let spawned = thread.spawn(move || {
        budget.floor.store(stack_pointer().saturating_sub(limits.stack_bytes), Ordering::Relaxed);
        BUDGET.set(Some(budget));
        let done = panic::catch_unwind(AssertUnwindSafe(work));
        BUDGET.set(None);
        let Ok(done) = done else {
            return budget.fault.store(PANICKED, Ordering::Relaxed);
        };
        let kept = bytes.saturating_sub(budget.left.load(Ordering::Relaxed));
        lock().push(budget);
        // A caller that has given up waits no more.
        let _ = result.send(Done { result: done, kept_bytes: kept.try_into().unwrap_or(0) });
    });
    if let Err(e) = spawned {
        lock().push(budget);
        return Err(e);
    }
    let end = Instant::now() + limits.time;
    loop {
        let received = results.recv_timeout(Duration::from_millis(20));
        match (received, budget.fault.load(Ordering::Relaxed)) {
            (Ok(done), _) => return Ok(Ok(done)),
            (Err(_), NO_MEMORY) => return Ok(Err(Overrun::Memory)),
            (Err(_), NO_STACK) => return Ok(Err(Overrun::Stack)),
            (Err(_), PANICKED) => return Ok(Err(Overrun::Panic)),
            (Err(RecvTimeoutError::Timeout), _) if Instant::now() < end => {}
            (Err(_), _) => {
                budget.last_second.store(now() + LATE_SECONDS, Ordering::Relaxed);
                return Ok(Err(Overrun::Time));
            }
        }
    }
}

/// Takes `bytes` of this thread's budget, or gives them back. Never returns if there are not as many, or if the stack is
/// nearly used up. Inlined, it would stand at each allocation of the program.
#[inline(never)]
pub(super) fn spend(bytes: isize) {
    let Some(budget) = BUDGET.get() else { return };
    let before = budget.left.fetch_sub(bytes, Ordering::Relaxed);
    if before < bytes {
        stop(budget, NO_MEMORY);
    }
    if stack_pointer() < budget.floor.load(Ordering::Relaxed) + MARGIN_BYTES {
        stop(budget, NO_STACK);
    }
    let last = budget.last_second.load(Ordering::Relaxed);
    if last != 0 && now() > last {
        stop(budget, TOO_LATE);
    }
}

/// Seconds since the first call, and one.
fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_secs() + 1
}

/// Stops this thread for ever. Allowed in a signal handler.
fn stop(budget: &Budget, fault: u8) -> ! {
    budget.fault.store(fault, Ordering::Relaxed);
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// An address near the top of this thread's stack.
fn stack_pointer() -> usize {
    let here = 0_u8;
    (&raw const here).addr()
}

/// Makes threads with a budget stop where they panic, if panics end the program. They say nothing.
fn catch_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |what| match BUDGET.get() {
        Some(budget) if cfg!(panic = "abort") => stop(budget, PANICKED),
        Some(_) => {}
        None => before(what),
    }));
}

/// Makes threads with a budget stop where they use up their stack. Without the handler they end the program there.
fn catch_overflows() {
    let handler = SigHandler::SigAction(on_fault);
    let action =
        SigAction::new(handler, SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK, SigSet::empty());
    // SAFETY: the handler calls only what is allowed in one.
    if let Ok(before) = unsafe { sigaction(Signal::SIGSEGV, &action) } {
        BEFORE.get_or_init(|| before);
    }
}

extern "C" fn on_fault(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the system passes valid information with SA_SIGINFO, and SIGSEGV has an address.
    let at = unsafe { (*info).si_addr() }.addr();
    if let Some(budget) = BUDGET.get()
        && at.abs_diff(budget.floor.load(Ordering::Relaxed)) < GUARD_BYTES
    {
        stop(budget, NO_STACK);
    }
    let default = || SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let before = BEFORE.get().copied().unwrap_or_else(default);
    // SAFETY: the former handler is as good as before. The instruction that failed is tried again, and it is called.
    let _ = unsafe { sigaction(Signal::SIGSEGV, &before) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { memory_bytes: 1 << 20, stack_bytes: 4 << 20, time: Duration::from_secs(60) };

    /// Deep enough for any stack, and nothing is allocated on the way down.
    #[inline(never)]
    fn deep(level: u64) -> u64 {
        let lines = std::hint::black_box([level; 32]);
        if level == u64::MAX { 0 } else { deep(level + 1) ^ lines[(level % 32) as usize] }
    }

    #[test]
    fn work_that_fails_ends_no_process() {
        let overrun = |work: fn() -> u64| within(LIMITS, work).unwrap().map(|done| done.result);
        assert_eq!(overrun(|| deep(0)), Err(Overrun::Stack));
        assert_eq!(overrun(|| panic!("on purpose")), Err(Overrun::Panic));
        assert_eq!(overrun(|| 7), Ok(7));
        let slow = Limits { time: Duration::ZERO, ..LIMITS };
        let sleep = || thread::sleep(Duration::from_secs(2));
        assert_eq!(within(slow, sleep).unwrap().err(), Some(Overrun::Time));
    }

    #[test]
    fn panics_elsewhere_go_their_way() {
        assert_eq!(within(LIMITS, || 7).unwrap().map(|done| done.result), Ok(7));
        assert!(thread::spawn(|| panic!("on purpose")).join().is_err());
    }
}
