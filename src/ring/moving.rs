//! What layers have stored on its way to the nodes that have them now.

use super::batch::Broken;
use super::{Link, Rows, Sizes};
use crate::wire::frame::{self, HEADER_LEN, KvPiece, NodeLine, Streams};
use crate::wire::hello::Name;

/// Most bytes of keys and values in a frame.
pub(super) const KV_BYTES: usize = 32 << 10;

/// A move of which the master sees nothing for so long is given up, and all is computed again.
const UNSEEN_MAX_US: u64 = 30_000_000;
/// So long a move may take in any case.
const MOVE_MIN_US: u64 = 200_000;

/// Where a ring is, as its master sees it.
pub(super) enum Phase {
    /// OPEN goes out next at this time.
    Opening(u64),
    /// What layers have stored moves.
    Moving(Moving, Patience),
    /// Batches flow.
    Open,
}

/// How long a move goes on.
pub(super) struct Patience {
    /// Nothing of it has been seen since this time.
    seen_us: u64,
    /// Then all could have been computed again.
    end_us: u64,
}

impl Patience {
    /// Whether it is better to compute all again: nothing moves, or too slowly. Which of both is quicker is not known
    /// beforehand, as nobody has measured the wires; who gives up the one when the other would have been done takes
    /// at most twice as long as the better of them.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now > self.end_us || now > self.seen_us.saturating_add(UNSEEN_MAX_US)
    }
}

impl Phase {
    /// A move that begins, of what could be computed again in so long, if that is known.
    pub(super) fn moving(now: u64, again_us: Option<u64>) -> Phase {
        let limit = again_us.map_or(u64::MAX, |us| us.max(MOVE_MIN_US));
        let patience = Patience { seen_us: now, end_us: now.saturating_add(limit) };
        Phase::Moving(Moving::Sending, patience)
    }

    /// Something of a move is seen; `false` if there is none.
    pub(super) fn see(&mut self, now: u64) -> bool {
        let Phase::Moving(_, patience) = self else { return false };
        patience.seen_us = now;
        true
    }

    /// The master has sent its part.
    pub(super) fn sent(&mut self, now: u64) {
        if let Phase::Moving(moving, patience) = self {
            (*moving, patience.seen_us) = (Moving::Waiting, now);
        }
    }

    /// MOVED is back.
    pub(super) fn end_waiting(&mut self) {
        if let Phase::Moving(moving @ Moving::Waiting, _) = self {
            *moving = Moving::Ending;
        }
    }
}

/// Where a move is, as its master sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moving {
    /// The master sends what its former layers have stored.
    Sending,
    /// The other nodes do.
    Waiting,
    /// All is on its way, and the nodes are to be told.
    Ending,
}

/// The nodes with layers of an epoch that is over, all of whose batches have been round.
pub(super) struct Earlier {
    epoch: u32,
    nodes: Vec<Name>,
}

impl Earlier {
    /// The epoch of these nodes.
    pub(super) fn new(epoch: u32, lines: &[NodeLine]) -> Earlier {
        let with_layers = lines.iter().filter(|line| !line.layers.is_empty());
        Earlier { epoch, nodes: with_layers.map(|line| line.name.clone()).collect() }
    }

    /// The epoch.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether all that its nodes have stored is with the nodes of these lines. Nodes of one name cannot be told apart: all
    /// of them have to have it.
    pub(super) fn is_kept_by(&self, lines: &[NodeLine]) -> bool {
        let mut same = lines.iter().filter(|line| self.nodes.contains(&line.name));
        same.clone().count() == self.nodes.len()
            && same.all(|line| line.streams == Streams::Kept)
            && lines.iter().all(|line| line.streams != Streams::Untold)
    }
}

/// Sends what this node's former layers have stored, then MOVED; `false` if it has to wait.
pub(super) fn send(epoch: u32, link: &mut impl Link, rows: &mut impl Rows) -> bool {
    loop {
        let Some(out) = link.reserve() else { return false };
        let end = out.len().min(HEADER_LEN + KV_BYTES);
        let piece = rows.give_kv(&mut out[HEADER_LEN..end]);
        let bytes = match piece {
            Some(piece) => frame::emit_kv(epoch, piece, out),
            None => frame::emit_moved(epoch, false, out),
        };
        link.commit(bytes.expect("what was written fits the frame"));
        if piece.is_none() {
            return true;
        }
    }
}

/// Stores a piece; `true` if it is another node's.
pub(super) fn take(
    piece: &KvPiece,
    bytes: &[u8],
    (sizes, n_layers): (&Sizes, u32),
    rows: &mut impl Rows,
) -> Result<bool, Broken> {
    match rows.take_kv(piece, bytes, sizes) {
        Some(true) => Ok(false),
        None if piece.layer < n_layers && bytes.len() <= KV_BYTES => Ok(true),
        _ => Err(Broken("keys and values without a place")),
    }
}

/// Sends a piece on as it came; `false` if it has to wait, and those behind it.
pub(super) fn forward(frame: &[u8], link: &mut impl Link) -> bool {
    match link.reserve().and_then(|out| out.get_mut(..frame.len())) {
        Some(out) => {
            out.copy_from_slice(frame);
            link.commit(frame.len());
            true
        }
        None => {
            link.leave();
            false
        }
    }
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
        // What is soon computed again is moved all the same if that is quick, too.
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
