//! NEON with int8 matrix products: only those with packed weights differ from [`super::neondot`].
//!
//! `smmla` multiplies two rows of eight weights by two rows of eight activations. A sum holds the
//! four results of a pair of pairs, weight rows first: `[w0 x0, w0 x1, w1 x0, w1 x1]`. A panel of 16
//! rows by 6 rows of activations is 24 sums, and eight columns take 24 `smmla` for 11 loads. The
//! last row of an odd tile is paired with itself.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::{add_scaled, load, load_scales, split_codes, store, widen_4};
use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn};
use super::{Table, neondot, peak};
use crate::quant::bcml1::BLOCK;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    packed: Some(PackedTable {
        layout: Layout::NEON_I8MM,
        tiles_q8: &TILES_Q8,
        tiles_q4: &TILES_Q4,
    }),
    spin_int8,
    ..neondot::TABLE
};

static TILES_Q8: [TileFn; 6] = [
    gemm_q8_q8_f32_mx16c8::<1, 0, 8>,
    gemm_q8_q8_f32_mx16c8::<2, 1, 8>,
    gemm_q8_q8_f32_mx16c8::<3, 1, 4>,
    gemm_q8_q8_f32_mx16c8::<4, 2, 4>,
    gemm_q8_q8_f32_mx16c8::<5, 2, 4>,
    gemm_q8_q8_f32_mx16c8::<6, 3, 4>,
];

static TILES_Q4: [TileFn; 6] = [
    gemm_q8_q4_f32_mx16c8::<1, 0, 8>,
    gemm_q8_q4_f32_mx16c8::<2, 1, 8>,
    gemm_q8_q4_f32_mx16c8::<3, 1, 4>,
    gemm_q8_q4_f32_mx16c8::<4, 2, 4>,
    gemm_q8_q4_f32_mx16c8::<5, 2, 4>,
    gemm_q8_q4_f32_mx16c8::<6, 3, 4>,
];

/// Rows of a panel.
const NR: usize = Layout::NEON_I8MM.panel_rows();

/// `M` rows of activations, `PAIRS` pairs and perhaps one more, by a panel, of which `R` vectors of
/// two rows are taken at once: as many as leave registers for the results too.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_mx16c8<const M: usize, const PAIRS: usize, const R: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    let is_odd = M % 2 == 1;
    for first in (0..8).step_by(R) {
        let mut sums = [[vdupq_n_f32(0.0); R]; PAIRS];
        // Of fours of rows, where there is an odd row of activations.
        let mut last_sums = [vdupq_n_f32(0.0); R];
        for (w, x) in panel.chunks_exact(NR * (4 + x.group)).zip(x.groups::<M, 8>()) {
            let (w_scales, w) = w.split_at(NR * 4);
            let mut dots = [[vdupq_n_s32(0); R]; PAIRS];
            let mut last_dots = [vdupq_n_s32(0); R];
            // In blocks of 32 columns.
            let w = bytemuck::cast_slice::<u8, i8>(w).as_chunks::<16>().0.as_chunks::<8>().0;
            for (w, x) in w.as_chunks::<4>().0.iter().zip(x.q.as_chunks::<4>().0) {
                eight_columns(&mut dots, &mut last_dots, load_rows(&w[0][first..]), &x[0]);
                eight_columns(&mut dots, &mut last_dots, load_rows(&w[1][first..]), &x[1]);
                eight_columns(&mut dots, &mut last_dots, load_rows(&w[2][first..]), &x[2]);
                eight_columns(&mut dots, &mut last_dots, load_rows(&w[3][first..]), &x[3]);
            }
            let w_scales = &w_scales.as_chunks::<16>().0[first / 2..];
            for j in 0..R / 2 {
                let w_scales = load_scales(&w_scales[j]);
                let twice = [vzip1q_f32(w_scales, w_scales), vzip2q_f32(w_scales, w_scales)];
                for i in 0..PAIRS {
                    let x_scales = load_two(x.scales[2 * i], x.scales[2 * i + 1]);
                    for h in 0..2 {
                        let dots = vcvtq_f32_s32(dots[i][2 * j + h]);
                        let scales = vmulq_f32(twice[h], x_scales);
                        sums[i][2 * j + h] = vfmaq_f32(sums[i][2 * j + h], dots, scales);
                    }
                }
                if is_odd {
                    let dots = vuzp1q_s32(last_dots[2 * j], last_dots[2 * j + 1]);
                    last_sums[j] = add_scaled(last_sums[j], dots, w_scales, x.scales[M - 1]);
                }
            }
        }
        store_rows::<M, PAIRS, R>(&sums, &last_sums, first / 2, out);
    }
}

/// Writes the results of `R` vectors of rows, the first of them four rows times `at` in.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn store_rows<const M: usize, const PAIRS: usize, const R: usize>(
    sums: &[[float32x4_t; R]; PAIRS],
    last_sums: &[float32x4_t; R],
    at: usize,
    out: &mut [f32],
) {
    let (fours, _) = out.as_chunks_mut::<4>();
    for j in 0..R / 2 {
        for i in 0..PAIRS {
            let [low, high] = [sums[i][2 * j], sums[i][2 * j + 1]];
            store(&mut fours[8 * i + at + j], vuzp1q_f32(low, high));
            store(&mut fours[8 * i + 4 + at + j], vuzp2q_f32(low, high));
        }
        if M % 2 == 1 {
            store(&mut fours[4 * (M - 1) + at + j], last_sums[j]);
        }
    }
}

/// As [`gemm_q8_q8_f32_mx16c8`] with 4-bit weights.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q4_f32_mx16c8<const M: usize, const PAIRS: usize, const R: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    for first in (0..8).step_by(R) {
        let mut sums = [[vdupq_n_f32(0.0); R]; PAIRS];
        let mut last_sums = [vdupq_n_f32(0.0); R];
        let groups = panel.chunks_exact(NR * BLOCK_BYTES * (x.group / BLOCK));
        for (w, x) in groups.zip(x.summed_groups::<M, 8>()) {
            // What a product is added to and stays the same, its zero signed.
            let mut totals = [[vdupq_n_f32(-0.0); R]; PAIRS];
            let mut last_totals = [vdupq_n_f32(-0.0); R];
            let blocks = x.q.as_chunks::<4>().0.iter().zip(x.sums);
            for (w, (x_q, x_sums)) in w.as_chunks::<{ NR * BLOCK_BYTES }>().0.iter().zip(blocks) {
                let (parameters, w) = w.as_chunks::<16>().0.split_at(4);
                let mut dots = [[vdupq_n_s32(0); R]; PAIRS];
                let mut last_dots = [vdupq_n_s32(0); R];
                let [a, b] = split_rows(&w[first..]);
                eight_columns(&mut dots, &mut last_dots, a, &x_q[0]);
                eight_columns(&mut dots, &mut last_dots, b, &x_q[1]);
                let [a, b] = split_rows(&w[8 + first..]);
                eight_columns(&mut dots, &mut last_dots, a, &x_q[2]);
                eight_columns(&mut dots, &mut last_dots, b, &x_q[3]);
                for j in 0..R / 2 {
                    let at = first / 2 + j;
                    let multipliers = widen_4(&parameters[at / 2], at % 2);
                    let offsets = widen_4(&parameters[2 + at / 2], at % 2);
                    let twice = |x| [vzip1q_f32(x, x), vzip2q_f32(x, x)];
                    let (multipliers2, offsets2) = (twice(multipliers), twice(offsets));
                    for i in 0..PAIRS {
                        let x_sums = load_two(x_sums[2 * i], x_sums[2 * i + 1]);
                        for h in 0..2 {
                            let total = &mut totals[i][2 * j + h];
                            let dots = vcvtq_f32_s32(dots[i][2 * j + h]);
                            *total = vfmaq_f32(*total, offsets2[h], x_sums);
                            *total = vfmaq_f32(*total, dots, multipliers2[h]);
                        }
                    }
                    if M % 2 == 1 {
                        let dots = vuzp1q_s32(last_dots[2 * j], last_dots[2 * j + 1]);
                        let total = vfmaq_n_f32(last_totals[j], offsets, x_sums[M - 1]);
                        last_totals[j] = vfmaq_f32(total, vcvtq_f32_s32(dots), multipliers);
                    }
                }
            }
            for j in 0..R {
                for i in 0..PAIRS {
                    let x_scales = load_two(x.scales[2 * i], x.scales[2 * i + 1]);
                    sums[i][j] = vfmaq_f32(sums[i][j], totals[i][j], x_scales);
                }
                last_sums[j] = vfmaq_n_f32(last_sums[j], last_totals[j], x.scales[M - 1]);
            }
        }
        store_rows::<M, PAIRS, R>(&sums, &last_sums, first / 2, out);
    }
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn load_rows<const R: usize>(w: &[[i8; 16]]) -> [int8x16_t; R] {
    let mut rows = [vdupq_n_s8(0); R];
    for j in 0..R {
        rows[j] = load(&w[j]);
    }
    rows
}

/// The low and the high codes of `R` vectors.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn split_rows<const R: usize>(w: &[[u8; 16]]) -> [[int8x16_t; R]; 2] {
    let mut halves = [[vdupq_n_s8(0); R]; 2];
    for j in 0..R {
        [halves[0][j], halves[1][j]] = split_codes(&w[j]);
    }
    halves
}

/// Adds the products of eight columns.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn eight_columns<const M: usize, const PAIRS: usize, const R: usize>(
    dots: &mut [[int32x4_t; R]; PAIRS],
    last_dots: &mut [int32x4_t; R],
    w: [int8x16_t; R],
    x: &[[u8; 8]; M],
) {
    let pairs = bytemuck::cast_slice::<[u8; 8], i8>(x).as_chunks::<16>().0;
    for j in 0..R {
        for i in 0..PAIRS {
            dots[i][j] = smmla(dots[i][j], w[j], load(&pairs[i]));
        }
        if M % 2 == 1 {
            last_dots[j] = smmla(last_dots[j], w[j], load_eight(&x[M - 1]));
        }
    }
}

/// Eight bytes, twice.
#[target_feature(enable = "neon,i8mm")]
fn load_eight(x: &[u8; 8]) -> int8x16_t {
    vreinterpretq_s8_u64(vdupq_n_u64(u64::from_ne_bytes(*x)))
}

/// Two scales, twice.
#[target_feature(enable = "neon,i8mm")]
fn load_two(a: f32, b: f32) -> float32x4_t {
    let two = u64::from(a.to_bits()) | u64::from(b.to_bits()) << 32;
    vreinterpretq_f32_u64(vdupq_n_u64(two))
}

/// Adds the products of two rows of eight by two rows of eight, as the intrinsic `vmmlaq_s32` does,
/// which is not stable.
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("smmla {sums:v}.4s, {w:v}.16b, {x:v}.16b", sums = inout(vreg) sums, w = in(vreg) w,
            x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// See [`super::Kernels::spin_int8`]: 32 products an instruction.
#[target_feature(enable = "neon,i8mm")]
fn spin_int8(rounds: usize) -> i32 {
    let x = vdupq_n_s8(std::hint::black_box(3));
    let step = |sums: &mut [int32x4_t; 16]| {
        for sum in sums {
            *sum = smmla(*sum, x, x);
        }
    };
    peak::spin(rounds, 32, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
