//! The pieces of a call that a thread has left.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Consecutive pieces: the first in the upper half, the one after the last in the lower half. A section has
/// cache lines of its own, which mostly stay in its thread's cache.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Section(AtomicU64);

// Relaxed ordering suffices: the state of a call orders its begin and end. A piece that was taken never comes
// back, so a successful compare-and-exchange took pieces that were really left.
impl Section {
    /// Stores `pieces`. The section must be empty.
    ///
    /// # Panics
    /// If a piece's number exceeds 32 bits.
    pub(super) fn put(&self, pieces: Range<usize>) {
        self.0.store(bits(pieces), Ordering::Relaxed);
    }

    /// Takes the first piece.
    pub(super) fn take(&self) -> Option<usize> {
        self.cut(|pieces| pieces.start + 1..pieces.end, |pieces| pieces.start)
    }

    /// Takes the last half of the pieces.
    pub(super) fn take_half(&self) -> Option<Range<usize>> {
        let middle = |pieces: &Range<usize>| pieces.start + pieces.len() / 2;
        self.cut(|pieces| pieces.start..middle(pieces), |pieces| middle(pieces)..pieces.end)
    }

    /// Keeps the pieces of `left`, and returns those of `taken`; `None` if there are no pieces.
    fn cut<T>(
        &self,
        left: impl Fn(&Range<usize>) -> Range<usize>,
        taken: impl Fn(&Range<usize>) -> T,
    ) -> Option<T> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let pieces = (now >> 32) as usize..(now & u64::from(u32::MAX)) as usize;
            if pieces.is_empty() {
                return None;
            }
            let left = bits(left(&pieces));
            match self.0.compare_exchange_weak(now, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken(&pieces)),
                Err(other) => now = other,
            }
        }
    }
}

fn bits(pieces: Range<usize>) -> u64 {
    let [start, end] =
        [pieces.start, pieces.end].map(|piece| u64::from(u32::try_from(piece).expect("so few")));
    start << 32 | end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_from_both_ends() {
        let section = Section::default();
        assert_eq!((section.take(), section.take_half()), (None, None));
        section.put(3..8);
        assert_eq!(section.take(), Some(3));
        assert_eq!(section.take_half(), Some(6..8));
        assert_eq!(section.take_half(), Some(5..6));
        assert_eq!(section.take_half(), Some(4..5));
        assert_eq!((section.take(), section.take_half()), (None, None));
    }
}
