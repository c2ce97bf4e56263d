//! A tile of activations for a kernel.

use crate::quant::bcml1::BLOCK;

/// Most rows of any tier's tiles.
pub(in crate::kernels) const MR_MAX: usize = 12;

/// Zero of sums that are integers and floats at once; see `kernels/packed/mod.rs`.
pub(in crate::kernels) const ZERO: f32 = 12_582_912.0;

/// A kernel. Arguments: some groups of a panel; the same groups of a tile; and `t * nr` results to add products to, in
/// an order of the tier's. Results of a single row are in the panel's order.
pub(in crate::kernels) type TileFn = unsafe fn(&[u8], &Q8Tile<'_>, &mut [f32]);

/// Some groups of the rows of a tile, laid out as the module describes.
pub(in crate::kernels) struct Q8Tile<'a> {
    pub(in crate::kernels) q: &'a [i8],
    pub(in crate::kernels) scales: &'a [f32],
    /// Zero points; empty for 4-bit weights.
    pub(in crate::kernels) zeros: &'a [f32],
    /// Sums of 32 values; empty for int8 weights, bits of integers for BCML2.
    pub(in crate::kernels) sums: &'a [f32],
    /// Activations that share a scale.
    pub(in crate::kernels) group: usize,
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "no tier asks for anything")
    )]
    pub(in crate::kernels) ahead: Ahead<'a>,
}

/// Memory that a tile may prefetch for its successors.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no tier asks for anything"))]
pub(in crate::kernels) struct Ahead<'a> {
    /// Address of weights, which need not be valid.
    pub(in crate::kernels) w: *const u8,
    /// Bytes of weights to prefetch for each [`AHEAD_COLUMNS`].
    pub(in crate::kernels) w_step: usize,
    /// Number of tiles that take turns with a part of a panel, each prefetching its share; 0 if they are many, or
    /// prefetch nothing.
    pub(in crate::kernels) n_tiles: usize,
    /// Output rows of the tile's results.
    pub(in crate::kernels) rows: &'a [&'a mut [f32]],
    /// First column of the results in these rows.
    pub(in crate::kernels) column: usize,
}

#[cfg(target_arch = "x86_64")]
impl Ahead<'_> {
    /// Prefetches the next weights, the share of `columns` columns.
    #[inline(always)]
    pub(in crate::kernels) fn prefetch_weights(&mut self, columns: usize) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let bytes = self.w_step * (columns / AHEAD_COLUMNS);
        for line in (0..bytes).step_by(64) {
            // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.w.wrapping_add(line).cast()) };
        }
        self.w = self.w.wrapping_add(bytes);
    }

    /// 1 or 2 if that many tiles take turns with a part of a panel and should prefetch their shares line by line, past
    /// L2; `hint` tells whether the processor prefers this. Otherwise 0.
    #[inline(always)]
    pub(in crate::kernels) fn few_tiles(&self, hint: i32) -> usize {
        if hint == std::arch::x86_64::_MM_HINT_NTA && self.n_tiles <= 2 { self.n_tiles } else { 0 }
    }

    /// Prefetches `LINES` lines of weights past L2, and advances by `bytes`.
    #[inline(always)]
    pub(in crate::kernels) fn prefetch_lines<const LINES: usize>(&mut self, bytes: usize) {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        for line in 0..LINES {
            let at = self.w.wrapping_add(64 * line);
            // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
            unsafe { _mm_prefetch::<_MM_HINT_NTA>(at.cast()) };
        }
        self.w = self.w.wrapping_add(bytes);
    }

    /// Prefetches `lines` lines of each output row that is the share of group `i` of `groups`: all rows at once would
    /// delay loads.
    #[inline(always)]
    pub(in crate::kernels) fn prefetch_rows(&self, lines: usize, i: usize, groups: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for row in self.rows.iter().skip(i).step_by(groups) {
            for line in 0..lines {
                let at = row.as_ptr().wrapping_add(self.column + 16 * line);
                // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
            }
        }
    }
}

/// Prefetches the bytes that follow `bytes` at some distance into L1: weights that are unpacked before a tile takes them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::kernels) fn prefetch_behind(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    const DISTANCE: usize = 4096;
    for line in bytes.chunks(64) {
        let at = line.as_ptr().wrapping_add(DISTANCE);
        // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

/// Columns of a step, after which a tile prefetches.
pub(in crate::kernels) const AHEAD_COLUMNS: usize = 16;

/// A group of a tile of `M` rows, in blocks of `KR` columns.
pub(in crate::kernels) struct TileGroup<'a, const M: usize, const KR: usize> {
    pub(in crate::kernels) q: &'a [[[u8; KR]; M]],
    pub(in crate::kernels) scales: &'a [f32; M],
    pub(in crate::kernels) zeros: &'a [f32; M],
}

/// An activation group of a tile of `M` rows with the sums of its blocks, in blocks of `KR` columns.
pub(in crate::kernels) struct SummedGroup<'a, const M: usize, const KR: usize> {
    pub(in crate::kernels) q: &'a [[[u8; KR]; M]],
    pub(in crate::kernels) scales: &'a [f32; M],
    pub(in crate::kernels) sums: &'a [[f32; M]],
}

impl<const M: usize, const KR: usize> TileGroup<'_, M, KR> {
    /// Sum of the values of row `i`.
    #[inline(always)]
    pub(in crate::kernels) fn sum(&self, i: usize) -> f32 {
        // Exact: both are integers below 2^24, and their difference is a multiple of 128.
        (ZERO - self.zeros[i]) * (1.0 / 128.0)
    }
}

impl<'a> Q8Tile<'a> {
    /// Sums of blocks for BCML2.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(in crate::kernels) fn int_sums(&self) -> &'a [i32] {
        bytemuck::cast_slice(self.sums)
    }

    /// Values as bytes.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(in crate::kernels) fn q_bytes(&self) -> &'a [u8] {
        bytemuck::cast_slice(self.q)
    }

    /// Blocks of 4-bit weights in an activation group.
    #[inline(always)]
    pub(in crate::kernels) fn blocks(&self) -> usize {
        self.group / BLOCK
    }

    /// The tile's groups.
    #[inline(always)]
    pub(in crate::kernels) fn groups<const M: usize, const KR: usize>(
        &self,
    ) -> impl Iterator<Item = TileGroup<'a, M, KR>> {
        let q: &[u8] = bytemuck::cast_slice(self.q);
        let (scales, zeros) = (self.scales.as_chunks().0, self.zeros.as_chunks().0);
        let len = self.group * M;
        // Values are indexed: zipped chunks would divide to find their number.
        scales.iter().zip(zeros).enumerate().map(move |(g, (scales, zeros))| TileGroup {
            q: q[g * len..][..len].as_chunks().0.as_chunks().0,
            scales,
            zeros,
        })
    }

    /// The tile's groups, with sums.
    #[inline(always)]
    pub(in crate::kernels) fn summed_groups<const M: usize, const KR: usize>(
        &self,
    ) -> impl Iterator<Item = SummedGroup<'a, M, KR>> {
        let q: &[u8] = bytemuck::cast_slice(self.q);
        let (sums, n, len) = (self.sums.as_chunks().0, self.blocks(), self.group * M);
        self.scales.as_chunks().0.iter().enumerate().map(move |(g, scales)| SummedGroup {
            q: q[g * len..][..len].as_chunks().0.as_chunks().0,
            scales,
            sums: &sums[g * n..][..n],
        })
    }
}
