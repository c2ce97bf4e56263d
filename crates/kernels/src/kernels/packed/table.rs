//! A tier's operations on packed weights.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::bytes::ByteTiles;
use super::cut::TileSet;
use super::ggml::{RunTile, Unpacked};
use super::layout::Layout;
use crate::quant::ggml::Form;

/// Bytes of a part of a panel that stays in L1, with weights counted as int8.
pub(in crate::kernels) const PART_BYTES: usize = 16 << 10;

/// A tier's operations on packed weights.
pub(in crate::kernels) struct PackedTable {
    pub(in crate::kernels) layout: Layout,
    /// Tiles that multiply a panel of int8 weights.
    pub(in crate::kernels) tiles_q8: &'static TileSet,
    /// Tiles that multiply a panel of 4-bit weights.
    pub(in crate::kernels) tiles_q4: &'static TileSet,
    /// Tiles that multiply a panel of BCML2.
    pub(in crate::kernels) tiles_b2: &'static TileSet,
    /// Tiles that multiply a panel of blocks of a form of GGUF files, by their rows of activations, from 1. Panels are
    /// unpacked for tiles of more rows.
    pub(in crate::kernels) run_tiles: fn(Form) -> &'static [RunTile],
    /// Tiles of the same heights for more rows: codes are unpacked once for all of them.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::kernels) byte_tiles: fn(Form) -> ByteTiles,
    /// Unpacks blocks of a GGUF file's types of a panel; see [`ggml::unpack`](super::ggml::unpack).
    pub(in crate::kernels) unpack_ggml: unsafe fn(Layout, Form, &[u8], &mut Unpacked<'_>),
    /// Copies a tile's results to their places.
    pub(in crate::kernels) place: PlaceFn,
    /// Bytes of a panel that a tile best takes at once, with weights counted as int8: what L1 holds ([`PART_BYTES`]),
    /// or more if that is no slower.
    pub(in crate::kernels) part_bytes: usize,
    /// Set if tiles of some heights take unpacked panels of 4-bit weights.
    pub(in crate::kernels) unpack_q4: Option<Unpack>,
    /// Set if tiles of some heights take unpacked panels of BCML2.
    pub(in crate::kernels) unpack_b2: Option<Unpack>,
}

/// Unpacks the codes of 4-bit weights once for many tiles.
pub(in crate::kernels) struct Unpack {
    /// Arguments: groups of a panel, blocks in each group, and the output.
    pub(in crate::kernels) unpack: unsafe fn(&[u8], usize, &mut [u8]),
    /// Bytes of a panel's block before unpacking.
    pub(in crate::kernels) packed_bytes: usize,
    /// Bytes of a panel's block after unpacking.
    pub(in crate::kernels) bytes: usize,
}

/// Copies results of a panel's first rows from a kernel's order to `columns` of the output's rows.
pub(in crate::kernels) type PlaceFn = unsafe fn(&[f32], Range<usize>, &mut [&mut [f32]]);
