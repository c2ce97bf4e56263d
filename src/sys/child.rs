//! Tries work in a child process that may take little memory and time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::memory::virtual_bytes;

/// Whether a copy of this process completes `work` with `bytes` more memory than this one has, and within
/// `seconds` seconds. Effects of `work`, and its output on the terminal, are not seen here.
///
/// # Errors
/// If the process cannot be copied.
pub fn comes_to_an_end(bytes: u64, seconds: u32, work: impl FnOnce()) -> io::Result<bool> {
    let memory = virtual_bytes().map_or(bytes, |own| own.saturating_add(bytes));
    let nowhere = File::options().write(true).open("/dev/null")?;
    // SAFETY: of all threads the child has this one. The C library hands its heap over usable, and
    // should the work wait for another thread's lock, the alarm ends it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            for fd in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
                // SAFETY: both are descriptors, and the call takes no pointers.
                unsafe { libc::dup2(nowhere.as_raw_fd(), fd) };
            }
            // SAFETY: it takes no pointers.
            unsafe { libc::alarm(seconds) };
            let limits = [(Resource::RLIMIT_CORE, 0), (Resource::RLIMIT_AS, memory)];
            let is_limited = limits.into_iter().all(|(what, most)| limit(what, most).is_ok());
            let is_done = is_limited && catch_unwind(AssertUnwindSafe(work)).is_ok();
            // SAFETY: it takes no pointers, and ends the copy before anything of this process is
            // run down a second time.
            unsafe { libc::_exit(i32::from(!is_done)) }
        }
        child => wait(child),
    }
}

/// Limits `what` to `most`, or to the most that this process may have.
fn limit(what: Resource, most: u64) -> nix::Result<()> {
    let most = most.min(getrlimit(what)?.1);
    setrlimit(what, most, most)
}

/// Waits for `child`. Returns whether it ended well.
fn wait(child: libc::pid_t) -> io::Result<bool> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a place for the one number that is written.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return Ok(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_ends_or_its_process_does() {
        const MIB: u64 = 1 << 20;
        let mut seen = 1;
        assert!(comes_to_an_end(64 * MIB, 10, || seen += 1).unwrap());
        assert_eq!(seen, 1);
        let fits = || drop(black_box(vec![1_u8; 16 << 20]));
        assert!(comes_to_an_end(64 * MIB, 10, fits).unwrap());
        assert!(!comes_to_an_end(64 * MIB, 10, || panic!("in the child")).unwrap());
        assert!(!comes_to_an_end(64 * MIB, 1, || sleep(Duration::from_secs(60))).unwrap());
        // An emulator does not apply limits to the program that it emulates.
        if std::env::var_os("LEAP_TEST_RUNNER").is_none() {
            let bursts = || drop(black_box(vec![1_u8; 256 << 20]));
            assert!(!comes_to_an_end(64 * MIB, 10, bursts).unwrap());
        }
    }
}
