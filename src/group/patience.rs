//! How long a group's first node has waited.
//!
//! Answered batches count as progress. A group that opens again and again, or whose nodes all answer while
//! none computes, makes none.

/// First time after which a batch is reported as slow; the next report is after twice that time.
const STALL_US: u64 = 10_000_000;

/// The first node's deadlines. Times are microseconds.
pub(crate) struct Patience {
    /// Longest time without progress; `None` to wait for ever.
    limit_us: Option<u64>,
    /// The last progress, less the time that this node was away.
    since_us: u64,
    /// Rows that were replayed in this epoch, and in any since the last answer.
    replayed: (usize, usize),
    /// Whether the group has become complete since the last answer.
    was_opened: bool,
    /// Whether a batch has begun since the last answer.
    is_owed: bool,
    /// Since when the group is to be opened, less the time that this node was away.
    closed_us: u64,
    stall_us: u64,
    is_stalled: bool,
}

impl Patience {
    /// Waits for up to `limit_us` from time 0 on.
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

    /// Patience with other nodes, of which nothing is known, for as long.
    pub(crate) fn renewed(&self) -> Patience {
        Patience::new(self.limit_us)
    }

    /// From now on it waits for up to `limit_us`.
    pub(crate) fn limit(&mut self, limit_us: Option<u64>) {
        self.limit_us = limit_us;
    }

    /// Extends the deadlines by the `us` in which this node was away and could hear no progress.
    pub(crate) fn pause(&mut self, us: u64) {
        self.since_us += us;
        self.closed_us += us;
    }

    /// Restarts the deadline: the group waits for nothing, or for something else than before.
    pub(crate) fn rest(&mut self, now: u64) {
        self.since_us = now;
    }

    /// A batch was answered. Returns whether it had been told that it takes long.
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

    /// Notes that rows of earlier batches were recomputed: progress if there are more than ever since the
    /// last answer.
    pub(crate) fn replayed(&mut self, now: u64, n_rows: usize) {
        let (rows, most) = &mut self.replayed;
        *rows += n_rows;
        if rows > most {
            (*most, self.since_us) = (*rows, now);
        }
    }

    /// Nodes are waited for: the time starts again, but only once before the next answer.
    pub(crate) fn waits(&mut self, now: u64) {
        if !self.was_opened || !self.is_owed {
            self.since_us = now;
        }
    }

    /// Notes that a batch begins. Its deadline starts unless one before has not been answered, which may be
    /// this one again.
    pub(crate) fn begins(&mut self, now: u64) {
        if !std::mem::replace(&mut self.is_owed, true) {
            (self.since_us, self.was_opened) = (now, false);
        }
    }

    /// The group is complete: progress, but only once before the next answer.
    pub(crate) fn opened(&mut self, now: u64) {
        if !std::mem::replace(&mut self.was_opened, true) {
            self.since_us = now;
        }
    }

    /// The group is to be opened again.
    pub(crate) fn reopened(&mut self, now: u64) {
        (self.replayed.0, self.closed_us) = (0, now);
    }

    /// The nodes get other parts, which is asked for and takes its time.
    pub(crate) fn assigned(&mut self, now: u64) {
        (self.since_us, self.was_opened) = (now, false);
    }

    /// For how many seconds there may be no progress, if there has been none for longer.
    pub(crate) fn overdue(&self, now: u64) -> Option<u64> {
        let limit_us = self.limit_us?;
        (now.saturating_sub(self.since_us) > limit_us).then_some(limit_us / 1_000_000)
    }

    /// For how long the group has not been open.
    pub(crate) fn closed_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.closed_us)
    }

    /// For how many seconds the oldest batch has not been answered, if that is to be told.
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

    /// The time, from `now` on, at which it gives up a group that opens each second, begins its batch again
    /// and breaks.
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
