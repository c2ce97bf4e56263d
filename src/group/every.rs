//! When a node may repeat what it said.

/// How often a node says which other one it misses.
pub(crate) const MISSING_EVERY_US: u64 = 1_000_000;

/// When it may be said next.
#[derive(Clone, Copy, Default)]
pub(crate) struct Every {
    /// The earliest time.
    next_us: u64,
}

impl Every {
    /// Whether it may be said now.
    pub(crate) fn is_due(self, now: u64) -> bool {
        now >= self.next_us
    }

    /// Notes that it is said now; the next time is after `period_us`.
    pub(crate) fn said(&mut self, now: u64, period_us: u64) {
        self.next_us = now + period_us;
    }
}
