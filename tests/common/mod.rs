//! Shared by tests that run LEAP as a program.
//!
//! Two environment variables tell the tests where they run:
//!
//! - `LEAP_TEST_RUNNER`: words to put before the program, such as `qemu-aarch64-static -cpu
//!   cortex-a53`, when this machine cannot run it by itself. `scripts/run-aarch64.sh` sets it.
//! - `LEAP_TEST_QUICK=1`: emulation is slow, so tests with many cases take a sample of them.

pub(crate) mod distant;
pub(crate) mod folder;
pub(crate) mod gguf;
pub(crate) mod jobs;
pub(crate) mod models;
pub(crate) mod ran;
pub(crate) mod rings;
pub(crate) mod running;
pub(crate) mod terminal;

use std::env;
use std::net::Ipv4Addr;
use std::panic::Location;
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;

/// A command that runs the `leap` binary built with these tests.
#[allow(dead_code, reason = "every test crate compiles this module; not all start programs")]
pub(crate) fn leap() -> Command {
    let runner = env::var("LEAP_TEST_RUNNER").unwrap_or_default();
    command(&runner, env!("CARGO_BIN_EXE_leap"))
}

/// True if tests with many cases should take a sample of them.
#[allow(dead_code, reason = "every test crate compiles this module; not all have many cases")]
pub(crate) fn quick() -> bool {
    env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1")
}

/// `cases`, or a third of them if tests should be quick: other ones in each test, and on processors with more tiers.
#[allow(dead_code, reason = "every test crate compiles this module; not all have many cases")]
#[track_caller]
pub(crate) fn sample<T>(cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut cases: Vec<T> = cases.into_iter().collect();
    if quick() {
        let start = (Location::caller().line() as usize + models::isas().count()) % 3;
        let start = start % cases.len();
        cases = cases.into_iter().skip(start).step_by(3).collect();
    }
    cases
}

/// An address of the loopback network that no other test has, in this process or another: all its ports are free.
#[allow(dead_code, reason = "every test crate compiles this module; not all need hosts")]
pub(crate) fn own_host() -> Ipv4Addr {
    static HOSTS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, HOSTS.fetch_add(1, Ordering::Relaxed), high, low)
}

/// Calls `each` with all items, four at a time: for work that mostly waits, like the start and end of rings.
#[allow(dead_code, reason = "every test crate compiles this module; not all have many rings")]
pub(crate) fn side_by_side<T: Sync>(all: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(one);
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(work);
        }
    });
}

/// `program`, preceded by the words of `runner`.
fn command(runner: &str, program: &str) -> Command {
    let mut words = runner.split_whitespace().chain([program]);
    // The chain ends with `program`, so it is never empty.
    let mut command = Command::new(words.next().unwrap_or(program));
    command.args(words);
    command
}

#[test]
fn runner_words_stand_before_the_program() {
    let bare = command("", "/bin/leap");
    assert_eq!(bare.get_program(), "/bin/leap");
    assert_eq!(bare.get_args().count(), 0);

    let emulated = command(" qemu-aarch64-static  -cpu max ", "/bin/leap");
    assert_eq!(emulated.get_program(), "qemu-aarch64-static");
    assert!(emulated.get_args().eq(["-cpu", "max", "/bin/leap"]));
}
