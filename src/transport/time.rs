//! Time as links and carriers count it.

use std::time::Instant;

/// Microseconds since some origin.
pub type Micros = u64;

/// Microseconds since the carrier was opened.
#[derive(Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Clock {
        Clock(Instant::now())
    }

    /// The time, which is never 0.
    pub(super) fn now(self) -> Micros {
        self.0.elapsed().as_micros() as Micros + 1
    }
}
