//! Totals of a tile that sums are added to.

use std::arch::x86_64::*;

/// Totals that sums are added to, floats or integers: those of the first `HELD` rows, and those kept in memory.
///
/// Sums fill most registers, and from those left to it the compiler would move totals to memory and
/// back without end. But a processor has few places for stores that wait for their values, as these
/// do for the last products: with all of them in memory it would not get to the products behind them.
/// So `HELD` is as many rows as registers are left for, fewer where offsets take some.
#[repr(align(64))]
pub(super) struct Totals<T, const M: usize, const HELD: usize> {
    held: [[T; 2]; HELD],
    /// By row; the first `HELD` are not used.
    rest: [[T; 2]; M],
}

impl<T: Copy, const M: usize, const HELD: usize> Totals<T, M, HELD> {
    /// Totals of `first` each.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    pub(super) fn of(first: T) -> Totals<T, M, HELD> {
        Totals { held: [[first; 2]; HELD], rest: [[first; 2]; M] }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    pub(super) fn get(&self, i: usize, j: usize) -> T {
        if i < HELD {
            self.held[i][j]
        } else {
            // SAFETY: a reference is valid for reads.
            unsafe { (&raw const self.rest[i][j]).read_volatile() }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    pub(super) fn set(&mut self, i: usize, j: usize, total: T) {
        if i < HELD {
            self.held[i][j] = total;
        } else {
            // SAFETY: a unique reference is valid for writes.
            unsafe { (&raw mut self.rest[i][j]).write_volatile(total) };
        }
    }
}

impl<const M: usize, const HELD: usize> Totals<__m512, M, HELD> {
    /// The total to which block `b` of the activation group is added.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    pub(super) fn before(&self, b: usize, i: usize, j: usize) -> __m512 {
        // A product that is added to it stays the same, its zero signed.
        if b == 0 { _mm512_set1_ps(-0.0) } else { self.get(i, j) }
    }
}
