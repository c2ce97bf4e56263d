//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Table;
use super::matmul::{chunks, level};
use super::neon::{self, add_group, load, store};
use crate::quant::Q8Row;

/// The tier's functions.
pub(super) static TABLE: Table = Table { dot_q8_q8_f32_1x4, dot_q8_q8_f32_4x4, ..neon::TABLE };

/// One activation row by four weight rows.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q8_f32_1x4(x: &Q8Row<'_>, w: &[Q8Row<'_>; 4], group: usize) -> [f32; 4] {
    let [y] = tile_q8([x], w, group);
    y
}

/// Four activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q8_f32_4x4(x: &[Q8Row<'_>; 4], w: &[Q8Row<'_>; 4], group: usize) -> [[f32; 4]; 4] {
    tile_q8(x.each_ref(), w, group)
}

/// `M` activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn tile_q8<const M: usize>(x: [&Q8Row<'_>; M], w: &[Q8Row<'_>; 4], group: usize) -> [[f32; 4]; M] {
    let mut out = [vdupq_n_f32(0.0); M];
    let (k, groups) = (x[0].q.len(), x[0].scales.len());
    let (x, w) = (level(x, k, groups), level(w.each_ref(), k, groups));
    for g in 0..groups {
        let (x_chunks, w_chunks) = (chunks(&x, g, group), chunks(&w, g, group));
        let mut sums = [[vdupq_n_s32(0); 4]; M];
        for c in 0..group / 16 {
            let w = [
                load(&w_chunks[0][c]),
                load(&w_chunks[1][c]),
                load(&w_chunks[2][c]),
                load(&w_chunks[3][c]),
            ];
            for i in 0..M {
                let x = load(&x_chunks[i][c]);
                for j in 0..4 {
                    sums[i][j] = sdot(sums[i][j], x, w[j]);
                }
            }
        }
        let w_scales = [w[0].scales[g], w[1].scales[g], w[2].scales[g], w[3].scales[g]];
        for i in 0..M {
            out[i] = add_group(out[i], sums[i], &w_scales, x[i].scales[g]);
        }
    }
    let mut y = [[0.0; 4]; M];
    for i in 0..M {
        store(&mut y[i], out[i]);
    }
    y
}

/// Adds 16 products to four sums, as the intrinsic `vdotq_s32` does, which is not stable.
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("sdot {sums:v}.4s, {x:v}.16b, {w:v}.16b", sums = inout(vreg) sums, x = in(vreg) x,
            w = in(vreg) w, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
