//! The interval between repetitions of a message.

/// Microseconds between two messages about a missing node.
pub(crate) const MISSING_EVERY_US: u64 = 1_000_000;

/// Earliest time of a message's next repetition.
#[derive(Clone, Copy, Default)]
pub(crate) struct Every {
    /// Earliest time of the next repetition, in microseconds.
    next_us: u64,
}

impl Every {
    /// Whether the message is due.
    pub(crate) fn is_due(self, now: u64) -> bool {
        self.left_us(now) == 0
    }

    /// Microseconds until the message is due.
    pub(crate) fn left_us(self, now: u64) -> u64 {
        self.next_us.saturating_sub(now)
    }

    /// Notes that the message is sent; its next repetition is due after `period_us`.
    pub(crate) fn said(&mut self, now: u64, period_us: u64) {
        self.next_us = now + period_us;
    }
}
