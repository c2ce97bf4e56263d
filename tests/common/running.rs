//! Programs that run beside a test.
#![allow(dead_code, reason = "every test crate compiles this module; not all start programs")]

use std::process::Child;

/// A program, killed when this is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
