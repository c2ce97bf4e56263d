//! Counts of what a group lost, and waited for in vain.

/// Counts of losses and pauses of a ring or team since it was formed. All are 0 if nothing failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setbacks {
    /// Links that went silent or started again, and nodes that lost what they had stored.
    pub failures: u64,
    /// Batches that were under way when the group was opened again: they are computed again.
    pub batches_lost: u64,
    /// Openings after which streams were computed again from their beginning.
    pub streams_lost: u64,
    /// Moves of stored keys and values that were given up, as they took too long.
    pub moves_given_up: u64,
    /// Waits for batches, ahead of other layers or nodes, that ended before all were answered.
    pub drains_given_up: u64,
    /// Openings that were put off, as the group had been opened just before.
    pub openings_put_off: u64,
}

impl Setbacks {
    /// Each count with its name.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 6] {
        [
            ("failures", self.failures),
            ("batches_lost", self.batches_lost),
            ("streams_lost", self.streams_lost),
            ("moves_given_up", self.moves_given_up),
            ("drains_given_up", self.drains_given_up),
            ("openings_put_off", self.openings_put_off),
        ]
    }
}
