//! Totals of a tile.

use std::arch::x86_64::*;

/// Totals that sums are added to, floats or integers: those of the first `HELD` rows in registers, the others in
/// memory.
///
/// Sums fill most registers, and with those left the compiler would move totals to memory and back all the time. With
/// all totals in memory, stores that wait for the last products would fill the processor's few store slots, and later
/// products would wait for them. So `HELD` is the number of rows that registers are left for, fewer if offsets take
/// some.
#[repr(align(64))]
pub(super) struct Totals<T, const M: usize, const HELD: usize> {
    held: [[T; 2]; HELD],
    /// Totals by row; the first `HELD` are unused.
    rest: [[T; 2]; M],
}

impl<T: Copy, const M: usize, const HELD: usize> Totals<T, M, HELD> {
    /// Totals that all begin at `first`.
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
        // Adding to -0.0 keeps a product as it is, with the sign of a zero.
        if b == 0 { _mm512_set1_ps(-0.0) } else { self.get(i, j) }
    }
}
