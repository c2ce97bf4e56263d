//! Products with weights rearranged so that a kernel reads them in order and adds without
//! horizontal sums.
//!
//! # Weights
//!
//! A packed matrix is a row of panels of `nr` matrix rows each, the last one padded with rows of
//! zeros. A panel is a row of groups:
//!
//! ```text
//! scales  [nr]                   f32
//! w       [group / kr, nr, kr]   i8, or with `flip` set the i8 + 128 as u8
//! ```
//!
//! and 4-bit ones blocks of 32 columns instead of groups:
//!
//! ```text
//! multipliers  [nr]                      f16
//! offsets      [nr]                      f16
//! codes        [32 / kr / 2, nr, kr]     two in a byte, those of the next kr columns high
//! ```
//!
//! So a vector holds the same `kr` columns of several rows, and one instruction that multiplies
//! bytes by activations and adds neighbours gives each row a lane of its own. `nr` and `kr` are a
//! tier's choice ([`Layout`]); the bytes are in the machine's order, as they never leave it.
//!
//! # Activations
//!
//! [`Q8Tiles`]: rows are taken together in tiles of `mr`, the last one as short as it must be; a
//! tile of `t` rows stands in the same order as a panel, so that one of a single row is plain:
//!
//! ```text
//! q       [k / kr, t, kr]   i8
//! scales  [k / group, t]    f32
//! biases  [k / group, t]    i32, -128 * the sum of the group's q; for int8 weights
//! sums    [k / 32, t]       f32, the sum of each 32 q; for 4-bit weights
//! ```
//!
//! A flipped weight counts 128 times its activation too much, so sums that start at the bias come
//! out right, for -128 too. They wrap on the way and are exact in the end.

mod layout;
mod matmul;
mod tiles;

use crate::quant::bcml1::BLOCK;

pub use layout::{GROUP_MAX, Layout, PackError, PackedQ4, PackedQ8};
pub use tiles::Q8Tiles;

pub(super) use layout::{pack_q4, pack_q8, read_row_q4, read_row_q8};
pub(super) use matmul::{matmul_q4, matmul_q8};
pub(super) use tiles::{quantize_tile, quantize_tile_summed};

/// Most rows of any tier's panels.
pub(super) const NR_MAX: usize = 32;

/// Most rows of any tier's tiles.
pub(super) const MR_MAX: usize = 8;

/// What a tier does with packed weights.
pub(super) struct PackedTable {
    pub(super) layout: Layout,
    /// One panel of int8 weights by a tile of `index + 1` rows, for every height up to `mr`.
    pub(super) tiles_q8: &'static [TileFn],
    /// The same for 4-bit weights.
    pub(super) tiles_q4: &'static [TileFn],
}

/// A kernel: a panel's bytes, a tile, the results `[t, nr]`.
pub(super) type TileFn = unsafe fn(&[u8], &Tile<'_>, &mut [f32]);

/// The rows of a tile, laid out as the module describes.
pub(super) struct Tile<'a> {
    pub(super) q: &'a [i8],
    pub(super) scales: &'a [f32],
    /// Empty for 4-bit weights.
    pub(super) biases: &'a [i32],
    /// Empty for int8 weights.
    pub(super) sums: &'a [f32],
    pub(super) group: usize,
}

/// A group of a tile of `M` rows, in blocks of `KR` columns.
pub(super) struct TileGroup<'a, const M: usize, const KR: usize> {
    pub(super) q: &'a [[[u8; KR]; M]],
    pub(super) scales: &'a [f32; M],
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no tier flips weights"))]
    pub(super) biases: &'a [i32; M],
}

/// A group of a tile of `M` rows with the sums of its blocks, in blocks of `KR` columns.
pub(super) struct SummedGroup<'a, const M: usize, const KR: usize> {
    pub(super) q: &'a [[[u8; KR]; M]],
    pub(super) scales: &'a [f32; M],
    pub(super) sums: &'a [[f32; M]],
}

impl<'a> Tile<'a> {
    /// Each group.
    #[inline(always)]
    pub(super) fn groups<const M: usize, const KR: usize>(
        &self,
    ) -> impl Iterator<Item = TileGroup<'a, M, KR>> {
        let q: &[u8] = bytemuck::cast_slice(self.q);
        let scales = self.scales.as_chunks().0.iter().zip(self.biases.as_chunks().0);
        q.chunks_exact(self.group * M).zip(scales).map(|(q, (scales, biases))| TileGroup {
            q: q.as_chunks().0.as_chunks().0,
            scales,
            biases,
        })
    }

    /// Each group, with sums.
    #[inline(always)]
    pub(super) fn summed_groups<const M: usize, const KR: usize>(
        &self,
    ) -> impl Iterator<Item = SummedGroup<'a, M, KR>> {
        let q: &[u8] = bytemuck::cast_slice(self.q);
        let blocks = self.group / BLOCK;
        let scales = self.scales.as_chunks().0.iter();
        let sums = self.sums.as_chunks().0.chunks_exact(blocks);
        q.chunks_exact(self.group * M).zip(scales.zip(sums)).map(|(q, (scales, sums))| {
            SummedGroup { q: q.as_chunks().0.as_chunks().0, scales, sums }
        })
    }
}

/// Bytes of each row in a block of packed 4-bit weights.
pub(super) const BLOCK_BYTES: usize = crate::quant::bcml1::BLOCK_BYTES;

/// The instances of a kernel for tiles of so many rows.
macro_rules! tiles_of {
    ($kernel:ident: $($m:literal)*) => {
        [$($kernel::<$m>),*]
    };
}

pub(super) use tiles_of;

impl PackedTable {
    /// Rows of a whole tile.
    pub(super) fn mr(&self) -> usize {
        self.tiles_q8.len()
    }
}
