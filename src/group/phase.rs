//! The state of a group, as its first node sees it.

/// A move without any sign of progress for this long is given up, and its KV is recomputed.
const UNSEEN_MAX_US: u64 = 30_000_000;
/// Every move may take at least this long.
const MOVE_MIN_US: u64 = 200_000;

/// The state of a group, as its first node sees it.
pub(crate) enum Phase {
    /// Nodes are asked to be ready. The next OPEN is due at this time.
    Opening(u64),
    /// KV of moved layers is in flight.
    Moving(Moving, MovePatience),
    /// Batches flow.
    Open,
}

/// The deadlines of a move.
pub(crate) struct MovePatience {
    /// Time of the last sign of progress.
    seen_us: u64,
    /// Time by which everything could have been recomputed.
    end_us: u64,
}

impl MovePatience {
    /// True if recomputing is the better choice: nothing moves, or too slowly. Which of the two is faster is not known
    /// beforehand, because the links were not measured. A move that is given up when everything could have been
    /// recomputed costs at most twice the better choice.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        now > self.end_us || now > self.seen_us.saturating_add(UNSEEN_MAX_US)
    }
}

impl Phase {
    /// The phase of a move that begins at `now`; recomputing its positions would take `again_us`, if known.
    pub(crate) fn moving(now: u64, again_us: Option<u64>) -> Phase {
        let limit = again_us.map_or(u64::MAX, |us| us.max(MOVE_MIN_US));
        let patience = MovePatience { seen_us: now, end_us: now.saturating_add(limit) };
        Phase::Moving(Moving::Sending, patience)
    }

    /// Notes a sign of progress; `false` if no move is in progress.
    pub(crate) fn see(&mut self, now: u64) -> bool {
        let Phase::Moving(_, patience) = self else { return false };
        patience.seen_us = now;
        true
    }

    /// Notes that the first node has sent its part.
    pub(crate) fn sent(&mut self, now: u64) {
        if let Phase::Moving(moving, patience) = self {
            (*moving, patience.seen_us) = (Moving::Waiting, now);
        }
    }

    /// Notes that MOVED is back.
    pub(crate) fn end_waiting(&mut self) {
        if let Phase::Moving(moving @ Moving::Waiting, _) = self {
            *moving = Moving::Ending;
        }
    }
}

/// The steps of a move, as the first node sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moving {
    /// The first node sends the KV of its former layers.
    Sending,
    /// The other nodes send theirs.
    Waiting,
    /// All KV has been sent; the nodes must be told.
    Ending,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_over(phase: &Phase, now: u64) -> bool {
        let Phase::Moving(_, patience) = phase else { panic!("no move") };
        patience.is_over(now)
    }

    #[test]
    fn a_move_is_given_up_when_all_could_have_been_computed_again() {
        let second = 1_000_000;
        let mut phase = Phase::moving(5 * second, Some(60 * second));
        assert!(phase.see(40 * second));
        phase.sent(60 * second);
        assert!(!is_over(&phase, 65 * second) && is_over(&phase, 65 * second + 1));
        // Even a move of a few positions gets `MOVE_MIN_US`.
        assert!(!is_over(&Phase::moving(0, Some(1)), MOVE_MIN_US));
    }

    #[test]
    fn a_move_that_stands_still_is_given_up() {
        let mut phase = Phase::moving(0, None);
        assert!(!is_over(&phase, UNSEEN_MAX_US) && is_over(&phase, UNSEEN_MAX_US + 1));
        assert!(phase.see(UNSEEN_MAX_US));
        assert!(!is_over(&phase, 2 * UNSEEN_MAX_US));
        assert!(!Phase::Open.see(0));
    }
}
