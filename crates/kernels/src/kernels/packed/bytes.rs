//! Blocks of GGUF files, unpacked to a byte for each code: a part of a panel that many tiles take in turn (x86-64).
//!
//! Sums of products begin at [`ZERO`](super::tile::ZERO) less those of the code of zero. So their bits are floats,
//! `ZERO + d` with the exact sum `d` of the scalar kernel, and one operation subtracts `ZERO` and multiplies:
//!
//! ```text
//! fma(ZERO + d, scale, -(ZERO * scale)) = d * scale, rounded once
//! ```
//!
//! Scales have at most 18 bits, so `ZERO * scale` is exact unless it is infinite. Only the sign of a zero may differ from
//! the scalar kernel's, which shows in no result unless an earlier product was so small that it became 0. Scales that are
//! so large or small are not taken here ([`are_usual`]).

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::ptr;

use super::layout::NR_MAX;
use super::tile::Q8Tile;
use crate::quant::bcml1::BLOCK;
use crate::quant::ggml::Form;

/// Most runs that are unpacked at once: two long blocks, which L1 holds beside a tile's activations.
pub(in crate::kernels) const RUNS_MAX: usize = 16;

/// Bytes of weights that a tile prefetches with each run.
pub(super) const NEXT_BYTES: usize = 64;

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
    /// Factors of offsets for the halves of runs, `[runs, nr]`: 16 bits each. Unused if they have none.
    pub(in crate::kernels) mins: [i32; RUNS_MAX * NR_MAX],
    pub(in crate::kernels) n_runs: usize,
    /// Whether all scales are such that sums are exact.
    pub(in crate::kernels) is_usual: bool,
    /// Whether these are the first runs of a panel: results are not read then.
    pub(in crate::kernels) is_first: bool,
    /// Whether these are the last: other results are added to those of products then.
    pub(in crate::kernels) is_last: bool,
    /// Columns of a row of activations.
    pub(super) k: usize,
    /// Address of weights that the tile prefetches into L2, which need not be valid.
    pub(super) next: *const u8,
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
    pub(super) const ZERO: Bytes = Bytes {
        codes: [0; RUNS_MAX * NR_MAX * BLOCK],
        scales: [0.0; RUNS_MAX * 2 * NR_MAX],
        less: [0.0; RUNS_MAX * 2 * NR_MAX],
        offsets: [0.0; RUNS_MAX * NR_MAX],
        mins: [0; RUNS_MAX * NR_MAX],
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

/// Whether each scale is 0 or at least `least`, and its product with [`ZERO`](super::tile::ZERO) far from infinite.
#[inline(always)]
pub(in crate::kernels) fn are_usual(scales: &[f32], least: f32) -> bool {
    let is_usual = |size: f32| (size == 0.0) | ((size >= least) & (size < 1e30));
    scales.iter().fold(true, |all, scale| all & is_usual(scale.abs()))
}
