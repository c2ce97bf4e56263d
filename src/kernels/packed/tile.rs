//! A tile of activations, as a kernel takes it.

use crate::quant::bcml1::BLOCK;

/// Most rows of any tier's tiles.
pub(in crate::kernels) const MR_MAX: usize = 12;

/// Zero of sums that are integers and floats at once; see the text of `kernels/packed/mod.rs`.
pub(in crate::kernels) const ZERO: f32 = 12_582_912.0;

/// A kernel: some groups of a panel, the same groups of a tile, and what their products are added
/// to, `t * nr` results in an order of the tier's; those of a single row stand in the panel's.
pub(in crate::kernels) type TileFn = unsafe fn(&[u8], &Q8Tile<'_>, &mut [f32]);

/// Some groups of the rows of a tile, laid out as the module describes.
pub(in crate::kernels) struct Q8Tile<'a> {
    pub(in crate::kernels) q: &'a [i8],
    pub(in crate::kernels) scales: &'a [f32],
    /// Empty for 4-bit weights.
    pub(in crate::kernels) zeros: &'a [f32],
    /// Empty for int8 weights; integers by their bits for BCML2.
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
    /// Weights: an address that need not be valid.
    pub(in crate::kernels) w: *const u8,
    /// How many bytes of them for each [`AHEAD_COLUMNS`].
    pub(in crate::kernels) w_step: usize,
    /// How many tiles take turns with a part of a panel, each asking for its share; 0 if they are many, or ask for
    /// nothing.
    pub(in crate::kernels) n_tiles: usize,
    /// Rows that its results go to.
    pub(in crate::kernels) rows: &'a [&'a mut [f32]],
    /// Where in them.
    pub(in crate::kernels) column: usize,
}

#[cfg(target_arch = "x86_64")]
impl Ahead<'_> {
    /// Asks for the next weights that are ahead, as many as `columns` are for.
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

    /// How many tiles take turns with a part of a panel, 1 or 2, where each had better ask for its share of what is
    /// ahead line by line and past the second level of cache, which is the `hint` of those it is better for; otherwise 0.
    #[inline(always)]
    pub(in crate::kernels) fn few_tiles(&self, hint: i32) -> usize {
        if hint == std::arch::x86_64::_MM_HINT_NTA && self.n_tiles <= 2 { self.n_tiles } else { 0 }
    }

    /// Asks for `LINES` lines of weights so, and goes on by `bytes`.
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

    /// Asks for `lines` lines of each row that group `i` of `groups` has to ask for: all rows at once
    /// would hold up loads.
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

/// Columns of a step in which a tile asks for what is ahead.
pub(in crate::kernels) const AHEAD_COLUMNS: usize = 16;

/// A group of a tile of `M` rows, in blocks of `KR` columns.
pub(in crate::kernels) struct TileGroup<'a, const M: usize, const KR: usize> {
    pub(in crate::kernels) q: &'a [[[u8; KR]; M]],
    pub(in crate::kernels) scales: &'a [f32; M],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no tier flips weights"))]
    pub(in crate::kernels) zeros: &'a [f32; M],
}

/// An activation group of a tile of `M` rows with the sums of its blocks, in blocks of `KR` columns.
pub(in crate::kernels) struct SummedGroup<'a, const M: usize, const KR: usize> {
    pub(in crate::kernels) q: &'a [[[u8; KR]; M]],
    pub(in crate::kernels) scales: &'a [f32; M],
    pub(in crate::kernels) sums: &'a [[f32; M]],
}

impl<'a> Q8Tile<'a> {
    /// For BCML2, the sums of blocks.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    pub(in crate::kernels) fn int_sums(&self) -> &'a [i32] {
        bytemuck::cast_slice(self.sums)
    }

    /// Blocks of 4-bit weights in an activation group.
    #[inline(always)]
    pub(in crate::kernels) fn blocks(&self) -> usize {
        self.group / BLOCK
    }

    /// Each group.
    #[inline(always)]
    pub(in crate::kernels) fn groups<const M: usize, const KR: usize>(
        &self,
    ) -> impl Iterator<Item = TileGroup<'a, M, KR>> {
        let q: &[u8] = bytemuck::cast_slice(self.q);
        let (scales, zeros) = (self.scales.as_chunks().0, self.zeros.as_chunks().0);
        let len = self.group * M;
        // Values not by zipped chunks: that would divide to know how many there are.
        scales.iter().zip(zeros).enumerate().map(move |(g, (scales, zeros))| TileGroup {
            q: q[g * len..][..len].as_chunks().0.as_chunks().0,
            scales,
            zeros,
        })
    }

    /// Each group, with sums.
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
