//! How two matrices that stand side by side are cut, of whose columns something is made together.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Most units of two matrices.
pub const UNITS_MAX: usize = 256;

/// How two matrices of the same width are cut by columns.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// Columns of each.
    pub width: usize,
    /// Columns of a piece.
    pub step: usize,
    /// Columns that something is made of together, whole pieces.
    pub unit: usize,
}

impl Pairs {
    /// How many units there are.
    pub fn units(&self) -> usize {
        self.width.div_ceil(self.unit)
    }

    /// Columns of unit `index`.
    pub(super) fn columns(&self, index: usize) -> Range<usize> {
        index * self.unit..((index + 1) * self.unit).min(self.width)
    }

    /// Pieces of both matrices in unit `index`.
    pub(super) fn pieces_of(&self, index: usize) -> usize {
        2 * self.columns(index).len().div_ceil(self.step)
    }

    /// Pieces of one matrix in a run: the units of one of so many threads. A thread goes through its run of the first matrix,
    /// then of the second, as memory is quickest where one piece follows the other.
    fn run(&self, threads: usize) -> usize {
        self.units().div_ceil(threads) * (self.unit / self.step)
    }

    /// How many pieces so many threads have; some may have no columns.
    pub(super) fn pieces(&self, threads: usize) -> usize {
        2 * threads * self.run(threads)
    }

    /// The matrix of piece `index` and its columns.
    pub(super) fn piece(&self, threads: usize, index: usize) -> (usize, Range<usize>) {
        let run = self.run(threads);
        let (thread, in_both) = (index / (2 * run), index % (2 * run));
        let start = ((thread * run + in_both % run) * self.step).min(self.width);
        (in_both / run, start..(start + self.step).min(self.width))
    }

    /// Where columns of one matrix stand in row `row` of both.
    pub(super) fn place(&self, row: usize, matrix: usize, columns: &Range<usize>) -> Range<usize> {
        let start = (2 * row + matrix) * self.width;
        start + columns.start..start + columns.end
    }
}

/// How many pieces of each unit are done; 0 between calls.
pub(super) struct Counts(Vec<Count>);

/// In lines of its own, which the thread that mostly takes a unit's pieces has in its cache.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

impl Counts {
    pub(super) fn new() -> Counts {
        Counts((0..UNITS_MAX).map(|_| Count::default()).collect())
    }

    /// Counts a piece of `unit`, which has so many; true if it is the last. The caller that gets true sees
    /// the writes of the others.
    pub(super) fn add(&self, unit: usize, pieces: usize) -> bool {
        let count = &self.0[unit].0;
        let is_last = count.fetch_add(1, Ordering::AcqRel) + 1 == pieces;
        if is_last {
            count.store(0, Ordering::Relaxed);
        }
        is_last
    }

    /// Makes all counts 0 again if a job panics.
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
