//! A tier's operations on packed weights.

use std::ops::Range;

use super::cut::TileSet;
use super::layout::Layout;

/// Bytes of a part of a panel that stays in the first level of cache, its values counted as int8.
pub(in crate::kernels) const PART_BYTES: usize = 16 << 10;

/// A tier's operations on packed weights.
pub(in crate::kernels) struct PackedTable {
    pub(in crate::kernels) layout: Layout,
    /// One panel of int8 weights by a tile.
    pub(in crate::kernels) tiles_q8: &'static TileSet,
    /// One panel of 4-bit weights by a tile.
    pub(in crate::kernels) tiles_q4: &'static TileSet,
    /// One panel of BCML2 by a tile.
    pub(in crate::kernels) tiles_b2: &'static TileSet,
    /// Puts a tile's results in place.
    pub(in crate::kernels) place: PlaceFn,
    /// Bytes of a panel that a tile best takes at once, its values counted as int8: what the first
    /// level of cache holds ([`PART_BYTES`]), or more where that is no slower.
    pub(in crate::kernels) part_bytes: usize,
    /// Set where some heights' tiles take unpacked panels of 4-bit weights.
    pub(in crate::kernels) unpack_q4: Option<Unpack>,
    /// Set where some heights' tiles take unpacked panels of BCML2.
    pub(in crate::kernels) unpack_b2: Option<Unpack>,
}

/// Takes the codes of 4-bit weights apart once for many tiles.
pub(in crate::kernels) struct Unpack {
    /// Takes some groups of a panel, how many blocks each of them has, and what it makes of them.
    pub(in crate::kernels) unpack: unsafe fn(&[u8], usize, &mut [u8]),
    /// Bytes of a panel's block before unpacking.
    pub(in crate::kernels) packed_bytes: usize,
    /// Bytes of a panel's block after unpacking.
    pub(in crate::kernels) bytes: usize,
}

/// Puts results that kernels left in their own order, those of a panel's first rows, in `columns` of
/// the rows of the output.
pub(in crate::kernels) type PlaceFn = unsafe fn(&[f32], Range<usize>, &mut [&mut [f32]]);
