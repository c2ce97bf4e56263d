//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads.

use std::arch::aarch64::*;
use std::arch::asm;

use super::matmul::{chunks, level, level_blocks, level_weights};
use super::neon::{self, add_block, add_group, codes, load, load_32, parameters, store};
use super::{Blocks4, SummedRow, Table};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    dot_q8_q8_f32_1x4,
    dot_q8_q8_f32_4x4,
    dot_q8_q4_f32_1x4,
    dot_q8_q4_f32_4x4,
    ..neon::TABLE
};

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

/// One activation row by four weight rows of 4 bits.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q4_f32_1x4(x: &SummedRow<'_>, w: &Blocks4<'_>, group: usize) -> [f32; 4] {
    let [y] = tile_q4([x], w, group);
    y
}

/// Four activation rows by four weight rows of 4 bits: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q4_f32_4x4(x: &[SummedRow<'_>; 4], w: &Blocks4<'_>, group: usize) -> [[f32; 4]; 4] {
    tile_q4(x.each_ref(), w, group)
}

/// `M` activation rows by four weight rows of 4 bits: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn tile_q4<const M: usize>(x: [&SummedRow<'_>; M], w: &Blocks4<'_>, group: usize) -> [[f32; 4]; M] {
    let (mut out, mut totals) = ([vdupq_n_f32(0.0); M], [vdupq_n_f32(0.0); M]);
    let (blocks, group_blocks) = (w[0].len(), group / BLOCK);
    let (x_blocks, w) = (level_blocks(x, blocks), level_weights(w, blocks));
    for b in 0..blocks {
        let w = [&w[0][b], &w[1][b], &w[2][b], &w[3][b]];
        let codes = [codes(w[0]), codes(w[1]), codes(w[2]), codes(w[3])];
        let parameters = parameters(w);
        for i in 0..M {
            let x = load_32(&x_blocks[i].0[b]);
            let mut sums = [vdupq_n_s32(0); 4];
            for j in 0..4 {
                sums[j] = products_q4(x, codes[j]);
            }
            let is_first = b % group_blocks == 0;
            totals[i] = add_block(totals[i], is_first, sums, x_blocks[i].1[b], parameters);
        }
        if (b + 1) % group_blocks == 0 {
            for i in 0..M {
                out[i] = vfmaq_n_f32(out[i], totals[i], x[i].row.scales[b / group_blocks]);
            }
        }
    }
    let mut y = [[0.0; 4]; M];
    for i in 0..M {
        store(&mut y[i], out[i]);
    }
    y
}

/// The products of a block in four sums.
#[target_feature(enable = "neon,dotprod")]
fn products_q4(x: [int8x16_t; 2], codes: [int8x16_t; 2]) -> int32x4_t {
    sdot(sdot(vdupq_n_s32(0), x[0], codes[0]), x[1], codes[1])
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
