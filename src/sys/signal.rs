//! Signals that ask the program to stop, and the signal for an unreadable mapped file.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// SIGINTs since [`install`] or [`count_one`].
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// The signal, other than SIGINT, that asked the program to end; 0 if none did.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

/// The thread of [`Reading`], 0 if there is none.
static READER: AtomicUsize = AtomicUsize::new(0);

/// The message and the exit code of [`explain_bus_errors`].
static BUS_ERROR: OnceLock<(&str, i32)> = OnceLock::new();

/// Counts SIGINT, SIGTERM and SIGHUP from now on, instead of ending the process, and makes a file-size limit
/// an error of the write instead of a signal.
///
/// A SIGHUP that is ignored already (`nohup`) stays ignored. Signals interrupt system calls that wait, so
/// that a program asking for input can look at [`interrupted`].
///
/// # Errors
/// The system's.
pub fn install() -> io::Result<()> {
    set(Signal::SIGINT, SigHandler::Handler(count), SaFlags::empty())?;
    set(Signal::SIGTERM, SigHandler::Handler(count), SaFlags::empty())?;
    set(Signal::SIGALRM, SigHandler::Handler(call_reader), SaFlags::empty())?;
    set(Signal::SIGXFSZ, SigHandler::SigIgn, SaFlags::empty())?;
    let before = set(Signal::SIGHUP, SigHandler::Handler(count), SaFlags::empty())?;
    if matches!(before.handler(), SigHandler::SigIgn) {
        set(Signal::SIGHUP, SigHandler::SigIgn, SaFlags::empty())?;
    }
    Ok(())
}

/// Number of signals that asked the program to stop its work: SIGINTs since [`install`] or [`count_one`], and
/// one for all others.
pub fn interrupted() -> u32 {
    INTERRUPTS.load(Ordering::Relaxed) + u32::from(is_final())
}

/// Whether a signal asked for the program's end, and not only for the end of its present work: any signal but SIGINT,
/// which a person sends.
pub fn is_final() -> bool {
    ENDED_BY.load(Ordering::Relaxed) != 0
}

/// The number of the signal behind [`interrupted`].
pub fn interrupted_by() -> Option<i32> {
    match (ENDED_BY.load(Ordering::Relaxed), INTERRUPTS.load(Ordering::Relaxed)) {
        (0, 0) => None,
        (0, _) => Some(libc::SIGINT),
        (signal, _) => Some(signal),
    }
}

/// Forgets the SIGINTs so far, and counts only the next SIGINT or SIGTERM. The signal after it ends the process,
/// whatever it is doing.
///
/// # Errors
/// The system's.
pub fn count_one() -> io::Result<()> {
    INTERRUPTS.store(0, Ordering::Relaxed);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        set(signal, SigHandler::Handler(count), SaFlags::SA_RESETHAND)?;
    }
    Ok(())
}

/// See [`interrupt_reading`].
pub struct Reading(());

/// While the result lives, a SIGTERM or SIGHUP that is counted also sends SIGINT to the calling thread. It does so once
/// a second, because a signal just before the thread waits would be lost. A line editor handles SIGINT itself, and
/// returns from reading with the terminal as it found it.
pub fn interrupt_reading() -> Reading {
    // SAFETY: the call has no requirements.
    READER.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
    Reading(())
}

impl Drop for Reading {
    fn drop(&mut self) {
        READER.store(0, Ordering::Relaxed);
    }
}

/// Makes the process end with `message` on stderr and `exit_code`, instead of by SIGBUS, when it reads a mapped file
/// that its disk no longer gives, or that is shorter than when it was mapped. The first call sets the message.
///
/// # Errors
/// The system's.
pub fn explain_bus_errors(message: &'static str, exit_code: i32) -> io::Result<()> {
    BUS_ERROR.get_or_init(|| (message, exit_code));
    set(Signal::SIGBUS, SigHandler::Handler(end), SaFlags::empty()).map(drop)
}

extern "C" fn end(_signal: libc::c_int) {
    let (message, exit_code) = BUS_ERROR.get().unwrap_or(&("", 1));
    // SAFETY: the text is static, and both functions are allowed in a signal handler.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        libc::_exit(*exit_code);
    }
}

extern "C" fn count(signal: libc::c_int) {
    match signal {
        libc::SIGINT => {
            INTERRUPTS.fetch_add(1, Ordering::Relaxed);
        }
        _ => ENDED_BY.store(signal, Ordering::Relaxed),
    }
    if signal != libc::SIGINT {
        call_reader(libc::SIGALRM);
    }
}

/// Sends SIGINT to the thread that reads, if there is one, and again in a second.
extern "C" fn call_reader(_signal: libc::c_int) {
    let reader = READER.load(Ordering::Relaxed);
    if reader != 0 {
        // SAFETY: the thread is in the call between making and dropping its `Reading`, so it is
        // alive; the functions are allowed in a signal handler.
        unsafe {
            libc::alarm(1);
            libc::pthread_kill(reader as libc::pthread_t, libc::SIGINT);
        }
    }
}

fn set(signal: Signal, handler: SigHandler, flags: SaFlags) -> io::Result<SigAction> {
    let action = SigAction::new(handler, flags, SigSet::empty());
    // SAFETY: `count` and `call_reader` change atomics and send signals, `end` writes and ends the process: all of
    // that is allowed in a signal handler.
    Ok(unsafe { sigaction(signal, &action)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the counts after signals, in a process whose counts matter to no other test.
    fn counts_are_right() -> bool {
        let is = |wanted| (interrupted(), is_final(), interrupted_by()) == wanted;
        let raise = |signal| nix::sys::signal::raise(signal).is_ok();
        install().is_ok()
            && is((0, false, None))
            && raise(Signal::SIGINT)
            && is((1, false, Some(libc::SIGINT)))
            && raise(Signal::SIGTERM)
            && is((2, true, Some(libc::SIGTERM)))
            // A signal that asks for the end is not forgotten with those that ask for less.
            && count_one().is_ok()
            && is((1, true, Some(libc::SIGTERM)))
    }

    #[test]
    fn signals_are_counted_after_install() {
        // SAFETY: the child changes signal handlers and counts of its own, and ends without running anything else.
        let status = unsafe {
            match libc::fork() {
                0 => libc::_exit(if counts_are_right() { 0 } else { 1 }),
                child => {
                    assert!(child > 0, "{}", io::Error::last_os_error());
                    let mut status = -1;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    status
                }
            }
        };
        assert_eq!(status, 0);
    }
}
