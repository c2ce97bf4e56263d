//! Division of two matrices that stand side by side into pieces, and into units that are completed together.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Maximum number of units of two matrices.
pub const UNITS_MAX: usize = 256;

/// Division of two matrices of the same width by columns.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// Number of columns of each matrix.
    pub width: usize,
    /// Number of columns of a piece.
    pub step: usize,
    /// Number of columns of a unit: a multiple of `step`.
    pub unit: usize,
}

impl Pairs {
    /// Number of units.
    pub fn units(&self) -> usize {
        self.width.div_ceil(self.unit)
    }

    /// Columns of unit `index`.
    pub(super) fn columns(&self, index: usize) -> Range<usize> {
        index * self.unit..((index + 1) * self.unit).min(self.width)
    }

    /// Number of pieces in unit `index`, of both matrices.
    pub(super) fn pieces_of(&self, index: usize) -> usize {
        2 * self.columns(index).len().div_ceil(self.step)
    }

    /// Number of pieces of one matrix in a run, which covers the units of one of `threads` threads. A thread
    /// computes its run of the first matrix, then of the second, because memory is fastest when pieces follow
    /// each other.
    fn run(&self, threads: usize) -> usize {
        self.units().div_ceil(threads) * (self.unit / self.step)
    }

    /// Number of pieces for `threads` threads; some may have no columns.
    pub(super) fn pieces(&self, threads: usize) -> usize {
        2 * threads * self.run(threads)
    }

    /// Matrix and columns of piece `index`.
    pub(super) fn piece(&self, threads: usize, index: usize) -> (usize, Range<usize>) {
        let run = self.run(threads);
        let (thread, in_both) = (index / (2 * run), index % (2 * run));
        let start = ((thread * run + in_both % run) * self.step).min(self.width);
        (in_both / run, start..(start + self.step).min(self.width))
    }

    /// Position of columns of one matrix in row `row` of `out`.
    pub(super) fn place(&self, row: usize, matrix: usize, columns: &Range<usize>) -> Range<usize> {
        let start = (2 * row + matrix) * self.width;
        start + columns.start..start + columns.end
    }
}

/// Number of finished pieces of each unit; 0 between calls.
pub(super) struct Counts(Vec<Count>);

/// A counter in cache lines of its own, which stay with the thread that takes most of the unit's pieces.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

impl Counts {
    pub(super) fn new() -> Counts {
        Counts((0..UNITS_MAX).map(|_| Count::default()).collect())
    }

    /// Counts a finished piece of `unit`, which has `pieces` pieces. True if it is the last; its caller then
    /// sees the writes of all others.
    pub(super) fn add(&self, unit: usize, pieces: usize) -> bool {
        let count = &self.0[unit].0;
        let is_last = count.fetch_add(1, Ordering::AcqRel) + 1 == pieces;
        if is_last {
            count.store(0, Ordering::Relaxed);
        }
        is_last
    }

    /// Resets all counts to 0 if a job panics before the guard is dropped.
    pub(super) fn reset(&self) -> Reset<'_> {
        Reset(self)
    }
}

pub(super) struct Reset<'a>(&'a Counts);

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.0.iter().for_each(|count| count.0.store(0, Ordering::Relaxed));
        }
    }
}
