//! Waiting for input.

use std::io;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Whether stdin has something to read, or has ended, within `timeout_ms`.
pub fn is_stdin_readable(timeout_ms: u16) -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(timeout_ms)).is_ok_and(|ready| ready > 0)
}
