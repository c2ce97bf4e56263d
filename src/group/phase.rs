//! Where a group is, as its first node sees it.

/// A move is given up after this long without a sign of it, and all is computed again.
const UNSEEN_MAX_US: u64 = 30_000_000;
/// A move may take this long in any case.
const MOVE_MIN_US: u64 = 200_000;

/// Where a group is, as its first node sees it.
pub(crate) enum Phase {
    /// Nodes are asked to be ready; OPEN goes out next at this time.
    Opening(u64),
    /// KV of moved layers is in flight.
    Moving(Moving, MovePatience),
    /// Batches flow.
    Open,
}

/// How long a move goes on.
pub(crate) struct MovePatience {
    /// When a sign of the move was seen last.
    seen_us: u64,
    /// By this time all could have been computed again.
    end_us: u64,
}

impl MovePatience {
    /// True if recomputing is the better choice: nothing moves, or too slowly. The quicker of the two is not
    /// known beforehand, as the wires were not measured. Giving up the move at the time in which all could
    /// have been recomputed takes at most twice as long as the better of both.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        now > self.end_us || now > self.seen_us.saturating_add(UNSEEN_MAX_US)
    }
}

impl Phase {
    /// The phase of a move that begins at `now`; recomputing its positions would take `again_us`, if that is
    /// known.
    pub(crate) fn moving(now: u64, again_us: Option<u64>) -> Phase {
        let limit = again_us.map_or(u64::MAX, |us| us.max(MOVE_MIN_US));
        let patience = MovePatience { seen_us: now, end_us: now.saturating_add(limit) };
        Phase::Moving(Moving::Sending, patience)
    }

    /// A sign of the move is seen; `false` if nothing moves.
    pub(crate) fn see(&mut self, now: u64) -> bool {
        let Phase::Moving(_, patience) = self else { return false };
        patience.seen_us = now;
        true
    }

    /// The first node has sent its part.
    pub(crate) fn sent(&mut self, now: u64) {
        if let Phase::Moving(moving, patience) = self {
            (*moving, patience.seen_us) = (Moving::Waiting, now);
        }
    }

    /// MOVED is back.
    pub(crate) fn end_waiting(&mut self) {
        if let Phase::Moving(moving @ Moving::Waiting, _) = self {
            *moving = Moving::Ending;
        }
    }
}

/// Where a move is, as the first node sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moving {
    /// The first node sends what its former layers have stored.
    Sending,
    /// The other nodes do.
    Waiting,
    /// All is on its way, and the nodes are to be told.
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
        // A move of a few positions gets `MOVE_MIN_US` nevertheless.
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
