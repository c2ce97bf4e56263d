//! The deadlines of a group's first node.
//!
//! Answered batches count as progress. A group that opens again and again, or whose nodes all answer but compute
//! nothing, makes no progress.

/// Time after which the first slow batch is reported. After that, a report takes twice the slowest reported time.
const STALL_US: u64 = 10_000_000;

/// The first node's deadlines. Times are microseconds.
pub(crate) struct Patience {
    /// Longest time without progress; `None` to wait for ever.
    limit_us: Option<u64>,
    /// Time of the last progress; later by each pause of this node.
    since_us: u64,
    /// Rows replayed in this epoch, and the most of any epoch since the last answer.
    replayed: (usize, usize),
    /// Whether the group has become complete since the last answer.
    was_opened: bool,
    /// Whether a batch has begun since the last answer.
    is_owed: bool,
    /// Time since when the group is not open; later by each pause of this node.
    closed_us: u64,
    stall_us: u64,
    is_stalled: bool,
}

impl Patience {
    /// Deadlines of `limit_us` from time 0 on.
    pub(crate) fn new(limit_us: Option<u64>) -> Patience {
        Patience {
            limit_us,
            since_us: 0,
            replayed: (0, 0),
            was_opened: false,
            is_owed: false,
            closed_us: 0,
            stall_us: STALL_US,
            is_stalled: false,
        }
    }

    /// Fresh deadlines with the same limit, for other nodes.
    pub(crate) fn renewed(&self) -> Patience {
        Patience::new(self.limit_us)
    }

    /// Changes the limit.
    pub(crate) fn limit(&mut self, limit_us: Option<u64>) {
        self.limit_us = limit_us;
    }

    /// Extends the deadlines by the `us` in which this node was away and could hear no progress.
    pub(crate) fn pause(&mut self, us: u64) {
        self.since_us += us;
        self.closed_us += us;
    }

    /// Restarts the deadline: the group is idle, or waits for something else than before.
    pub(crate) fn rest(&mut self, now: u64) {
        self.since_us = now;
    }

    /// Notes that a batch was answered. Returns whether the user had been told that it stalls.
    pub(crate) fn answered(&mut self, now: u64) -> bool {
        let took_us = now.saturating_sub(self.since_us);
        (self.since_us, self.replayed) = (now, (self.replayed.0, 0));
        (self.was_opened, self.is_owed) = (false, false);
        let was_stalled = std::mem::take(&mut self.is_stalled);
        if was_stalled {
            self.stall_us = self.stall_us.max(2 * took_us);
        }
        was_stalled
    }

    /// Notes that rows of earlier batches were recomputed: progress if there are more than in any epoch since the last
    /// answer.
    pub(crate) fn replayed(&mut self, now: u64, n_rows: usize) {
        let (rows, most) = &mut self.replayed;
        *rows += n_rows;
        if rows > most {
            (*most, self.since_us) = (*rows, now);
        }
    }

    /// Notes that nodes are missing. This restarts the deadline, but not again once the group has opened and begun a
    /// batch that is not answered.
    pub(crate) fn waits(&mut self, now: u64) {
        if !self.was_opened || !self.is_owed {
            self.since_us = now;
        }
    }

    /// Notes that a batch begins. The deadline starts, unless an earlier batch is unanswered (or this one, begun a
    /// second time).
    pub(crate) fn begins(&mut self, now: u64) {
        if !std::mem::replace(&mut self.is_owed, true) {
            (self.since_us, self.was_opened) = (now, false);
        }
    }

    /// Notes that the group is complete: progress, but only once before the next answer.
    pub(crate) fn opened(&mut self, now: u64) {
        if !std::mem::replace(&mut self.was_opened, true) {
            self.since_us = now;
        }
    }

    /// Notes that an opening begins.
    pub(crate) fn reopened(&mut self, now: u64) {
        (self.replayed.0, self.closed_us) = (0, now);
    }

    /// Notes that nodes get other parts on request. This restarts the deadline because it takes time.
    pub(crate) fn assigned(&mut self, now: u64) {
        (self.since_us, self.was_opened) = (now, false);
    }

    /// The limit in whole seconds, if it has passed without progress.
    pub(crate) fn overdue(&self, now: u64) -> Option<u64> {
        let limit_us = self.limit_us?;
        (now.saturating_sub(self.since_us) > limit_us).then_some(limit_us / 1_000_000)
    }

    /// Microseconds since the opening began.
    pub(crate) fn closed_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.closed_us)
    }

    /// Seconds since the oldest batch began, if the user should be told that it stalls.
    pub(crate) fn stalls(&mut self, now: u64) -> Option<u64> {
        let waited_us = now.saturating_sub(self.since_us);
        if self.is_stalled || waited_us < self.stall_us {
            return None;
        }
        self.is_stalled = true;
        Some(waited_us / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time, from `now` on, at which `patience` gives up a group that opens each second, begins its batch again and
    /// breaks.
    fn lost(patience: &mut Patience, now: u64) -> Option<u64> {
        (now..now + 100).find(|now| {
            patience.waits(*now);
            let is_over = patience.overdue(*now).is_some();
            patience.opened(*now);
            patience.begins(*now);
            is_over
        })
    }

    #[test]
    fn a_group_that_was_idle_for_long_has_as_long_as_any_to_mend_a_batch() {
        let mut patience = Patience::new(Some(10));
        patience.waits(0);
        patience.opened(3);
        for begun in [1_000, 5_000] {
            patience.begins(begun);
            assert_eq!(lost(&mut patience, begun + 50), Some(begun + 61));
            patience.answered(begun + 70);
        }
    }
}
