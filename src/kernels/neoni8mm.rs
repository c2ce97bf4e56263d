//! NEON with int8 matrix products: only those with packed weights differ from [`super::neondot`].
//!
//! `smmla` multiplies two rows of eight weights by two rows of eight activations. A sum holds the
//! four results of a pair of pairs, weight rows first: `[w0 x0, w0 x1, w1 x0, w1 x1]`. A panel of 16
//! rows by 6 rows of activations is 24 sums, and eight columns take 24 `smmla` for 11 loads. The
//! last row of an odd tile is paired with itself.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::{add_scaled, load, load_scales, store};
use super::packed::{Layout, PackedTable, Tile, TileQ8};
use super::{Table, neondot, peak};

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    packed: Some(PackedTable { layout: Layout::new(0x0203, NR, 8, 0), tiles_q8: &TILES_Q8 }),
    spin_int8,
    ..neondot::TABLE
};

static TILES_Q8: [TileQ8; 6] = [
    gemm_q8_q8_f32_mx16c8::<1, 0, 8>,
    gemm_q8_q8_f32_mx16c8::<2, 1, 8>,
    gemm_q8_q8_f32_mx16c8::<3, 1, 4>,
    gemm_q8_q8_f32_mx16c8::<4, 2, 4>,
    gemm_q8_q8_f32_mx16c8::<5, 2, 4>,
    gemm_q8_q8_f32_mx16c8::<6, 3, 4>,
];

/// Rows of a panel.
const NR: usize = 16;

/// `M` rows of activations, `PAIRS` pairs and perhaps one more, by a panel, of which `R` vectors of
/// two rows are taken at once: as many as leave registers for the results too. A group of 64 is
/// what models have; known, it saves a loop.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q8_f32_mx16c8<const M: usize, const PAIRS: usize, const R: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    match x.group {
        64 => rows_of_panel::<M, PAIRS, R, 64>(panel, x, out),
        _ => rows_of_panel::<M, PAIRS, R, 0>(panel, x, out),
    }
}

/// `GROUP` is the group, or 0 for any.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn rows_of_panel<const M: usize, const PAIRS: usize, const R: usize, const GROUP: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    let is_odd = M % 2 == 1;
    let group = if GROUP == 0 { x.group } else { GROUP };
    for first in (0..8).step_by(R) {
        let mut sums = [[vdupq_n_f32(0.0); R]; PAIRS];
        // Of fours of rows, where there is an odd row of activations.
        let mut last_sums = [vdupq_n_f32(0.0); R];
        for (w, x) in panel.chunks_exact(NR * (4 + group)).zip(x.groups_of::<M, 8>(group)) {
            let (w_scales, w) = w.split_at(NR * 4);
            let mut dots = [[vdupq_n_s32(0); R]; PAIRS];
            let mut last_dots = [vdupq_n_s32(0); R];
            // In blocks of 32 columns.
            let w = bytemuck::cast_slice::<u8, i8>(w).as_chunks::<16>().0.as_chunks::<8>().0;
            for (w, x) in w.as_chunks::<4>().0.iter().zip(x.q.as_chunks::<4>().0) {
                eight_columns(&mut dots, &mut last_dots, &w[0][first..], &x[0]);
                eight_columns(&mut dots, &mut last_dots, &w[1][first..], &x[1]);
                eight_columns(&mut dots, &mut last_dots, &w[2][first..], &x[2]);
                eight_columns(&mut dots, &mut last_dots, &w[3][first..], &x[3]);
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
        let (fours, _) = out.as_chunks_mut::<4>();
        for j in 0..R / 2 {
            let at = first / 2 + j;
            for i in 0..PAIRS {
                let [low, high] = [sums[i][2 * j], sums[i][2 * j + 1]];
                store(&mut fours[8 * i + at], vuzp1q_f32(low, high));
                store(&mut fours[8 * i + 4 + at], vuzp2q_f32(low, high));
            }
            if is_odd {
                store(&mut fours[4 * (M - 1) + at], last_sums[j]);
            }
        }
    }
}

/// Adds the products of eight columns.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn eight_columns<const M: usize, const PAIRS: usize, const R: usize>(
    dots: &mut [[int32x4_t; R]; PAIRS],
    last_dots: &mut [int32x4_t; R],
    w: &[[i8; 16]],
    x: &[[u8; 8]; M],
) {
    let pairs = bytemuck::cast_slice::<[u8; 8], i8>(x).as_chunks::<16>().0;
    for j in 0..R {
        let w = load(&w[j]);
        for i in 0..PAIRS {
            dots[i][j] = smmla(dots[i][j], w, load(&pairs[i]));
        }
        if M % 2 == 1 {
            last_dots[j] = smmla(last_dots[j], w, load_eight(&x[M - 1]));
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
        for i in 0..32 {
            sums[i % 16] = smmla(sums[i % 16], x, x);
        }
    };
    peak::spin(rounds, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
