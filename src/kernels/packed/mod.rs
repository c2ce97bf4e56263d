//! Products with weights rearranged so that a kernel reads them in order and adds without
//! horizontal sums.
//!
//! # Weights
//!
//! A packed matrix is a row of panels of `nr` matrix rows each, the last one padded with rows of
//! zeros. A panel is a row of groups:
//!
//! ```text
//! scales  [nr]                                             f32
//! w       [group / kr / steps, nr / rows, steps, rows, kr]  i8, or with `flip` set i8 + 128 as u8
//! ```
//!
//! and 4-bit ones blocks of 32 columns instead of groups:
//!
//! ```text
//! parameters  [nr / rows, 2, rows]                               f16, multipliers and offsets
//! codes       [32 / kr / 2 / steps, nr / rows, steps, rows, kr]  two in a byte, those of the next
//!                                                                kr columns high
//! or codes    [nr / rows / 2, 32 / kr, rows, kr]                 two in a byte, those of the next
//!                                                                strip high, less 8
//! ```
//!
//! So a vector holds the same `kr` columns of several rows, and one instruction that multiplies
//! bytes by activations and adds neighbours gives each row a lane of its own. Where a kernel takes
//! some `rows` of a panel at once, they stand in strips that have `steps` such vectors one after
//! the other; elsewhere `rows` is `nr` and `steps` 1. All of these are a tier's choice ([`Layout`]);
//! the bytes are in the machine's order, as they never leave it.
//!
//! # Activations
//!
//! [`Q8Tiles`]: rows are taken together in tiles of `mr`, the last one as short as it must be; a
//! tile of `t` rows stands in the same order as a panel, so that one of a single row is plain:
//!
//! ```text
//! q       [k / kr, t, kr]   i8
//! scales  [k / group, t]    f32
//! zeros   [k / group, t]    f32, for int8 weights that are flipped
//! sums    [k / 32, t]       f32, the sum of each 32 q; for 4-bit weights
//! ```
//!
//! A flipped weight counts 128 times its activation too much: what stands for 0 in an integer sum of
//! such products moves by 128 times each activation. `zeros` has where a group's sum begins for that to
//! be [`ZERO`] behind it. Sums begin there, taken as an integer by its bits, and are floats by their
//! bits at all times: a bit more or less is 1 more or less between 2^23 and 2^24, which they do not
//! leave, as the at most 256 activations before and behind count for no more than `256 * 127 * 128` of
//! the 2^22 on either side of `ZERO`. So the true sum is the float less `ZERO`, exactly.

mod layout;
mod matmul;
mod tiles;

use std::ops::Range;

use crate::quant::bcml1::BLOCK;

pub use layout::{GROUP_MAX, Layout, PackError, PackedQ4, PackedQ8};
pub use tiles::Q8Tiles;

pub(super) use layout::{pack_q4, pack_q8};
#[cfg(test)]
pub(super) use matmul::RESULTS;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use matmul::place_rows;
pub(super) use matmul::{PART_BYTES, matmul_q4, matmul_q8};
pub(super) use tiles::{quantize_tile_row, quantize_tile_row_summed};

/// Most rows of any tier's panels.
pub(super) const NR_MAX: usize = 32;

/// Most rows of any tier's tiles.
pub(super) const MR_MAX: usize = 12;

/// What a tier does with packed weights.
pub(super) struct PackedTable {
    pub(super) layout: Layout,
    /// One panel of int8 weights by a tile of `index + 1` rows, for every height up to `mr`.
    pub(super) tiles_q8: &'static [TileFn],
    /// The same for 4-bit weights.
    pub(super) tiles_q4: &'static [TileFn],
    /// Puts a tile's results in place.
    pub(super) place: PlaceFn,
    /// Bytes of a panel that a tile best takes at once, its values counted as int8: what the first
    /// level of cache holds ([`PART_BYTES`]), or more where that is no slower.
    pub(super) part_bytes: usize,
    /// Set where those of more than one row take what this made of the panel.
    pub(super) unpack_q4: Option<Unpack>,
}

/// Takes the codes of 4-bit weights apart once for many tiles.
pub(super) struct Unpack {
    /// Takes some groups of a panel, how many blocks each of them has, and what it makes of them.
    pub(super) unpack: unsafe fn(&[u8], usize, &mut [u8]),
    /// Bytes of a panel's block before.
    pub(super) packed_bytes: usize,
    /// The same behind.
    pub(super) bytes: usize,
}

/// What stands for 0 in a sum that is an integer and a float at once; see the module's text.
pub(super) const ZERO: f32 = 12_582_912.0;

/// A kernel: some groups of a panel, the same groups of a tile, and what their products are added
/// to, `t * nr` results in an order of the tier's; those of a single row stand in the panel's.
pub(super) type TileFn = unsafe fn(&[u8], &Tile<'_>, &mut [f32]);

/// Puts results that kernels left in their own order, those of a panel's first rows, in `columns` of
/// the rows of the output.
pub(super) type PlaceFn = unsafe fn(&[f32], Range<usize>, &mut [&mut [f32]]);

/// Some groups of the rows of a tile, laid out as the module describes.
pub(super) struct Tile<'a> {
    pub(super) q: &'a [i8],
    pub(super) scales: &'a [f32],
    /// Empty for 4-bit weights.
    pub(super) zeros: &'a [f32],
    /// Empty for int8 weights.
    pub(super) sums: &'a [f32],
    /// Activations that share a scale.
    pub(super) group: usize,
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "no tier asks for anything")
    )]
    pub(super) ahead: Ahead<'a>,
}

/// What a tile may ask for that is needed after it.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no tier asks for anything"))]
pub(super) struct Ahead<'a> {
    /// Weights: an address that need not be valid.
    pub(super) w: *const u8,
    /// How many bytes of them for each [`AHEAD_COLUMNS`].
    pub(super) w_step: usize,
    /// Rows that its results go to.
    pub(super) rows: &'a [&'a mut [f32]],
    /// Where in them.
    pub(super) column: usize,
}

#[cfg(target_arch = "x86_64")]
impl Ahead<'_> {
    /// Asks for `lines` lines of each row that group `i` of `groups` has to ask for: all rows at once
    /// would hold up loads.
    #[inline(always)]
    pub(super) fn prefetch_rows(&self, lines: usize, i: usize, groups: usize) {
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
pub(super) const AHEAD_COLUMNS: usize = 16;

/// A group of a tile of `M` rows, in blocks of `KR` columns.
pub(super) struct TileGroup<'a, const M: usize, const KR: usize> {
    pub(super) q: &'a [[[u8; KR]; M]],
    pub(super) scales: &'a [f32; M],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no tier flips weights"))]
    pub(super) zeros: &'a [f32; M],
}

/// An activation group of a tile of `M` rows with the sums of its blocks, in blocks of `KR` columns.
pub(super) struct SummedGroup<'a, const M: usize, const KR: usize> {
    pub(super) q: &'a [[[u8; KR]; M]],
    pub(super) scales: &'a [f32; M],
    pub(super) sums: &'a [[f32; M]],
}

impl<'a> Tile<'a> {
    /// Blocks of 4-bit weights in an activation group.
    #[inline(always)]
    pub(super) fn blocks(&self) -> usize {
        self.group / BLOCK
    }

    /// Each group.
    #[inline(always)]
    pub(super) fn groups<const M: usize, const KR: usize>(
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
    pub(super) fn summed_groups<const M: usize, const KR: usize>(
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

/// Bytes of each row in a block of packed 4-bit weights.
pub(super) const BLOCK_BYTES: usize = crate::quant::bcml1::BLOCK_BYTES;

/// The instances of a kernel for tiles of so many rows, the first in twice as many sums: a single
/// row has too few for its additions not to wait for each other.
#[cfg(target_arch = "x86_64")]
macro_rules! tiles_of {
    ($kernel:ident: 1 $($m:literal)*) => {
        [$kernel::<1, 2>, $($kernel::<$m, 1>),*]
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use tiles_of;

impl PackedTable {
    /// Rows of a whole tile.
    pub(super) fn mr(&self) -> usize {
        self.tiles_q8.len()
    }
}
