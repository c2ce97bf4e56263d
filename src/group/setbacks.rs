//! Counts of a group's losses and abandoned waits.

/// Losses and pauses of a ring or team since it was formed. All are 0 if nothing failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setbacks {
    /// Links that went silent or started again, and nodes that lost their KV.
    pub failures: u64,
    /// Batches in flight when the group was opened again; they are recomputed.
    pub batches_lost: u64,
    /// Openings after which streams were recomputed from their beginning.
    pub streams_lost: u64,
    /// Moves of KV that were given up because they took too long.
    pub moves_given_up: u64,
    /// Changes of layers or nodes that stopped waiting before all batches were answered.
    pub drains_given_up: u64,
    /// Openings that were delayed because the previous one was too recent.
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
