//! Which pieces of a file are asked for, by several connections.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most pieces that are requested and not yet safe on the disk, a MiB: a power cut may lose these.
pub(super) const AHEAD: u64 = 32;
/// How often a connection without work looks for some.
const ASKED_EVERY: Duration = Duration::from_millis(200);

/// Assigns pieces to connections, none of them far beyond those that are safe: a power cut loses little.
pub(super) struct Pieces {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Pieces that were never requested.
    untaken: Range<u64>,
    /// Pieces that lost connections have given back.
    returned: Vec<u64>,
    /// Requested pieces, and on how many connections each.
    asked: Vec<(u64, usize)>,
    /// Pieces before this one are safe.
    safe: u64,
    /// Pieces from there on that are in the file.
    there: BTreeSet<u64>,
    is_over: bool,
}

impl Pieces {
    pub(super) fn new(n_pieces: u64) -> Pieces {
        let (asked, returned, there) = (Vec::new(), Vec::new(), BTreeSet::new());
        let state = State { untaken: 0..n_pieces, returned, asked, safe: 0, there, is_over: false };
        Pieces { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A piece to request. A connection that `may_wait`, because it has nothing else to do, gets the slowest piece of
    /// another connection, or waits; `None` then means that no work is left.
    pub(super) fn take(&self, may_wait: bool) -> Option<u64> {
        let mut state = self.state();
        loop {
            if state.is_over {
                return None;
            }
            let piece = state.take();
            let piece = if may_wait { piece.or_else(|| state.take_again()) } else { piece };
            if piece.is_some() || !may_wait || state.is_done() {
                return piece;
            }
            let waited = self.changed.wait_timeout(state, ASKED_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Records that this piece is in the file, and returns whether it is new there.
    pub(super) fn put(&self, piece: u64) -> bool {
        let mut state = self.state();
        let n_asked = state.asked.len();
        state.asked.retain(|(asked, _)| *asked != piece);
        let is_new = state.asked.len() < n_asked;
        if is_new {
            state.there.insert(piece);
        }
        if state.is_done() {
            self.changed.notify_all();
        }
        is_new
    }

    /// Takes a piece back from a connection that was lost.
    pub(super) fn give_back(&self, piece: u64) {
        let mut state = self.state();
        let Some(at) = state.asked.iter().position(|(asked, _)| *asked == piece) else { return };
        state.asked[at].1 -= 1;
        if state.asked[at].1 == 0 {
            state.asked.remove(at);
            state.returned.push(piece);
        }
        self.changed.notify_all();
    }

    /// The consecutive pieces in the file that follow the safe ones.
    pub(super) fn unsafe_pieces(&self) -> Range<u64> {
        let state = self.state();
        let n = (state.safe..).zip(&state.there).take_while(|(at, piece)| at == *piece).count();
        state.safe..state.safe + n as u64
    }

    /// Records that pieces before this one are safe.
    pub(super) fn keep(&self, end: u64) {
        let mut state = self.state();
        state.safe = end;
        state.there = state.there.split_off(&end);
        self.changed.notify_all();
    }

    /// Whether there is a piece that may be requested, and that no connection has.
    pub(super) fn has_more(&self) -> bool {
        let state = self.state();
        !state.returned.is_empty() || state.may_take()
    }

    /// Ends the work: no connection gets a piece any more.
    pub(super) fn close(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// The state is sound even after a panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn may_take(&self) -> bool {
        !self.untaken.is_empty() && self.untaken.start < self.safe + AHEAD
    }

    fn take(&mut self) -> Option<u64> {
        let piece = match self.returned.pop() {
            Some(piece) => piece,
            None if self.may_take() => self.untaken.next()?,
            None => return None,
        };
        self.asked.push((piece, 1));
        Some(piece)
    }

    /// The piece that was requested first, of those that only one connection has requested.
    fn take_again(&mut self) -> Option<u64> {
        let (piece, n) = self.asked.iter_mut().find(|(_, n)| *n == 1)?;
        *n += 1;
        Some(*piece)
    }

    fn is_done(&self) -> bool {
        self.untaken.is_empty() && self.returned.is_empty() && self.asked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_handed_out_once_and_none_far_ahead_of_those_that_are_safe() {
        let pieces = Pieces::new(40);
        let taken: Vec<u64> = std::iter::from_fn(|| pieces.take(false)).collect();
        assert_eq!(taken, (0..AHEAD).collect::<Vec<_>>());
        assert!(!pieces.has_more());
        for piece in [0, 1, 3, 4] {
            assert!(pieces.put(piece));
        }
        assert_eq!(pieces.unsafe_pieces(), 0..2);
        pieces.keep(2);
        assert!(pieces.has_more());
        assert_eq!(
            [pieces.take(false), pieces.take(false), pieces.take(false)],
            [Some(32), Some(33), None]
        );
        pieces.put(2);
        assert_eq!(pieces.unsafe_pieces(), 2..5);
    }

    #[test]
    fn a_connection_with_nothing_to_do_takes_over_what_is_slow() {
        let pieces = Pieces::new(2);
        assert_eq!([pieces.take(true), pieces.take(true)], [Some(0), Some(1)]);
        // The other connection requests both, too, once.
        assert_eq!([pieces.take(true), pieces.take(true)], [Some(0), Some(1)]);
        assert!(pieces.put(0) && !pieces.put(0));
        // One of two connections is lost: the other one still brings it.
        pieces.give_back(1);
        assert!(!pieces.has_more());
        pieces.give_back(1);
        assert_eq!(pieces.take(true), Some(1));
        // Pieces that are there already are not requested again.
        pieces.give_back(0);
        assert!(pieces.put(1));
        assert_eq!(pieces.take(true), None);
    }

    #[test]
    fn nobody_waits_for_a_piece_once_the_work_is_over() {
        let pieces = Pieces::new(AHEAD + 1);
        while pieces.take(false).is_some() {}
        std::thread::scope(|scope| {
            for piece in 0..AHEAD {
                assert_eq!(pieces.take(true), Some(piece));
            }
            let waiting = scope.spawn(|| pieces.take(true));
            pieces.close();
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
