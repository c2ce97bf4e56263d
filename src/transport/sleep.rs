//! One sleep on several endpoints.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys::net;

/// The conditions that end a node's sleep.
pub struct Sleep<'a> {
    /// Files that end the sleep when they can be read; if the flag is set, also when they can be written.
    files: heapless::Vec<(BorrowedFd<'a>, bool), { net::POLLED_MAX }>,
    longest: Duration,
}

impl<'a> Sleep<'a> {
    /// A sleep of at most `longest`.
    pub fn new(longest: Duration) -> Sleep<'a> {
        Sleep { files: heapless::Vec::new(), longest }
    }

    /// Ends the sleep after `wait` if not before.
    pub fn shorten(&mut self, wait: Duration) {
        self.longest = self.longest.min(wait);
    }

    /// Ends the sleep when `file` can be read, or written if `is_writer`.
    pub(super) fn on(&mut self, file: BorrowedFd<'a>, is_writer: bool) {
        // All fit: an endpoint has at most two files. A file without room would be checked later.
        let _ = self.files.push((file, is_writer));
    }

    /// The time after which the sleep ends in any case.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Sleeps.
    pub fn sleep(&self) {
        net::wait(&self.files, self.longest);
    }
}
