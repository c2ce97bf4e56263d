//! Blocks of GGUF files, unpacked to a byte for each code: a part of a panel that many tiles take in turn (x86-64).
//!
//! Sums of products begin at [`ZERO`](super::tile::ZERO) less those of the code of zero. So their bits are floats, `ZERO + d` with the exact
//! sum `d` of the scalar kernel, and one operation subtracts `ZERO` and multiplies:
//!
//! ```text
//! fma(ZERO + d, scale, -(ZERO * scale)) = d * scale, rounded once
//! ```
//!
//! Scales have at most 18 bits, so `ZERO * scale` is exact unless it is infinite. Only the sign of a zero may differ from
//! the scalar kernel's, which shows in no result unless an earlier product was so small that it became 0. Scales that are
//! so large or small are not taken here ([`are_usual`]).

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::ops::Range;
use std::ptr;

use super::activations::Q8Tiles;
use super::ggml::RunTile;
use super::layout::{NR_MAX, Panels};
use super::table::PackedTable;
use super::tile::Q8Tile;
use crate::kernels::table::call;
use crate::quant::bcml1::BLOCK;
use crate::quant::ggml::Form;

/// Most runs that are unpacked at once: two long blocks, which L1 holds beside a tile's activations.
pub(in crate::kernels) const RUNS_MAX: usize = 16;

/// Fewest rows for which panels are unpacked once for all tiles, because that takes less time.
pub(super) const FROM_ROWS: usize = 12;

/// Bytes of weights that a tile prefetches with each run.
const NEXT_BYTES: usize = 64;

/// Some runs of a panel: their codes, and what these are multiplied by.
#[repr(align(64))]
pub(in crate::kernels) struct Bytes {
    /// Two vectors for each four columns.
    pub(in crate::kernels) codes: [u8; RUNS_MAX * NR_MAX * BLOCK],
    /// `[runs, n_scales, nr]`.
    pub(in crate::kernels) scales: [f32; RUNS_MAX * 2 * NR_MAX],
    /// `-(ZERO * scale)` of each of them.
    pub(in crate::kernels) less: [f32; RUNS_MAX * 2 * NR_MAX],
    /// `[runs, nr]`; unused if runs have no offset.
    pub(in crate::kernels) offsets: [f32; RUNS_MAX * NR_MAX],
    pub(in crate::kernels) n_runs: usize,
    /// Whether all scales are such that sums are exact.
    pub(in crate::kernels) is_usual: bool,
    /// Whether these are the first runs of a panel: results are not read then.
    pub(in crate::kernels) is_first: bool,
    /// Whether these are the last: other results are added to those of products then.
    pub(in crate::kernels) is_last: bool,
    /// Columns of a row of activations.
    k: usize,
    /// Address of weights that the tile prefetches into L2, which need not be valid.
    next: *const u8,
    /// The code of zero.
    pub(in crate::kernels) zero: u8,
}

/// A tile of activations by some runs of a panel. Arguments: these runs; the same groups of a tile; and `t * nr` results
/// to add to, those of each row of activations in the order of the panel's rows: of products, and others of second
/// halves of runs or of offsets.
pub(in crate::kernels) type ByteTile = unsafe fn(&Bytes, &Q8Tile<'_>, [&mut [f32]; 2]);

/// A tier's functions for a form.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct ByteTiles {
    /// Unpacks blocks of a panel. All of `Bytes` is written that tiles read.
    pub(in crate::kernels) unpack: unsafe fn(Form, &[u8], &mut Bytes),
    /// Tiles by their rows of activations, from 1.
    pub(in crate::kernels) tiles: &'static [ByteTile],
}

impl Bytes {
    const ZERO: Bytes = Bytes {
        codes: [0; RUNS_MAX * NR_MAX * BLOCK],
        scales: [0.0; RUNS_MAX * 2 * NR_MAX],
        less: [0.0; RUNS_MAX * 2 * NR_MAX],
        offsets: [0.0; RUNS_MAX * NR_MAX],
        n_runs: 0,
        is_usual: true,
        is_first: true,
        is_last: true,
        k: 0,
        next: ptr::null(),
        zero: 0,
    };

    /// Prefetches weights that are to be unpacked next, and the next tile's activations: those of the same columns as
    /// this one's `x` of a run.
    #[inline(always)]
    pub(in crate::kernels) fn prefetch<const M: usize>(&self, run: usize, x: &[[[[u8; 4]; M]; 4]]) {
        let w = self.next.wrapping_add(run * NEXT_BYTES);
        // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(w.cast()) };
        for line in (0..BLOCK * M).step_by(64) {
            let x = x.as_ptr().cast::<i8>().wrapping_add(M * self.k + line);
            // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(x) };
        }
    }
}

/// Least size of scales of weights: an f16's, times a whole number.
pub(in crate::kernels) const W_LEAST: f32 = 1.0 / (1_u128 << 40) as f32;

/// Least size of scales of activations: products with any scale of weights are no zeros.
const X_LEAST: f32 = 1.0 / (1_u128 << 105) as f32;

/// Whether each scale is 0 or at least `least`, and its product with [`ZERO`](super::tile::ZERO) far from infinite.
#[inline(always)]
pub(in crate::kernels) fn are_usual(scales: &[f32], least: f32) -> bool {
    let is_usual = |size: f32| (size == 0.0) | ((size >= least) & (size < 1e30));
    scales.iter().fold(true, |all, scale| all & is_usual(scale.abs()))
}

/// Multiplies rows that are cut together by panels of a GGUF file's blocks. A panel with unusual scales, and all panels
/// if activations have such, are multiplied by `tiles`, which unpack codes in registers.
pub(super) fn matmul(
    (packed, form): (&PackedTable, Form),
    tiles: &[RunTile],
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
    mut sums: [&mut [f32]; 2],
) {
    let nr = w.layout.panel_rows();
    let is_usual = are_usual(x.scales(), X_LEAST);
    let mut bytes = Bytes::ZERO;
    for (panel_index, (_, panel)) in w.iter().enumerate() {
        let columns = panel_index * nr..((panel_index + 1) * nr).min(w.dims.rows);
        let panel = Panel { form, blocks: panel, columns };
        if !is_usual || multiply(packed, &panel, x, &mut bytes, &mut sums, out).is_none() {
            for rows in x.cut().tiles(out.len()) {
                let (tile, y) = (tiles[rows.len() - 1], &mut sums[0][..rows.len() * nr]);
                call!(tile(form, panel.blocks, &x.tile(rows.clone()), y));
                call!(packed.place(y, panel.columns.clone(), &mut out[rows]));
            }
        }
    }
}

/// A panel's blocks, and the columns of its results.
struct Panel<'a> {
    form: Form,
    blocks: &'a [u8],
    columns: Range<usize>,
}

/// Multiplies rows by a panel, part by part; `None` if it has unusual scales.
fn multiply(
    packed: &PackedTable,
    panel: &Panel<'_>,
    x: Q8Tiles<'_>,
    bytes: &mut Bytes,
    sums: &mut [&mut [f32]; 2],
    out: &mut [&mut [f32]],
) -> Option<()> {
    let Panel { form, blocks, columns } = panel;
    let (nr, runs) = (packed.layout.panel_rows(), x.k() / BLOCK);
    bytes.k = x.k();
    let ByteTiles { unpack, tiles } = (packed.byte_tiles)(*form);
    let part_bytes = RUNS_MAX * BLOCK / form.len() * form.panel_block(nr);
    for (i, part) in blocks.chunks(part_bytes).enumerate() {
        let groups = i * RUNS_MAX..((i + 1) * RUNS_MAX).min(runs);
        call!(unpack(*form, part, bytes));
        (bytes.is_first, bytes.is_last) = (groups.start == 0, groups.end == runs);
        if !bytes.is_usual {
            return None;
        }
        bytes.next = part.as_ptr_range().end;
        for rows in x.cut().tiles(x.m()) {
            let sums = sums.each_mut().map(|sums| &mut sums[rows.start * nr..rows.end * nr]);
            let ([y, others], tile) = (sums, tiles[rows.len() - 1]);
            call!(tile(bytes, &x.part(rows.clone(), groups.clone()), [&mut *y, others]));
            bytes.next = bytes.next.wrapping_add(groups.len() * NEXT_BYTES);
            if bytes.is_last {
                call!(packed.place(y, columns.clone(), &mut out[rows]));
            }
        }
    }
    Some(())
}
