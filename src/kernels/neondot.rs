//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads. With packed
//! weights each lane of a vector is a row, and `sdot` multiplies all of them by the four activations
//! in one lane of another vector: a panel of 16 rows by 6 rows of activations is 24 sums, and four
//! columns take 24 `sdot` for 5.5 loads.

use std::arch::aarch64::*;
use std::arch::asm;

use super::matmul::{chunks, level, level_blocks, level_weights, steps};
use super::neon::{
    self, add_block, add_group, add_scaled, codes, load, load_32, load_scales, parameters,
    split_codes, store, widen_4,
};
use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn, tiles_of};
use super::{Blocks4, Groups, SummedRow, Table, peak};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    dot_q8_q8_f32_1x4,
    dot_q8_q8_f32_4x4,
    dot_q8_q4_f32_1x4,
    dot_q8_q4_f32_4x4,
    packed: Some(PackedTable {
        layout: Layout::new(0x0202, NR, 4, 0),
        tiles_q8: &TILES_Q8,
        tiles_q4: &TILES_Q4,
    }),
    spin_int8,
    ..neon::TABLE
};

static TILES_Q8: [TileFn; 6] = tiles_of!(gemm_q8_q8_f32_mx16c4: 1 2 3 4 5 6);
static TILES_Q4: [TileFn; 6] = tiles_of!(gemm_q8_q4_f32_mx16c4: 1 2 3 4 5 6);

/// Rows of a panel.
const NR: usize = 16;

/// `M` rows of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q8_f32_mx16c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match M {
        ..4 => rows_of_panel::<M, 4>(panel, x, out),
        _ => rows_of_panel::<M, 2>(panel, x, out),
    }
}

/// Takes `R` vectors of rows of a panel at once: as many as leave registers for the results too.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn rows_of_panel<const M: usize, const R: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    for first in (0..4).step_by(R) {
        let mut sums = [[vdupq_n_f32(0.0); R]; M];
        for (w, x) in panel.chunks_exact(NR * (4 + x.group)).zip(x.groups::<M, 4>()) {
            let (w_scales, w) = w.split_at(NR * 4);
            let mut dots = [[vdupq_n_s32(0); R]; M];
            // In blocks of 32 columns, so that the lanes of `x` are known.
            let w = bytemuck::cast_slice::<u8, i8>(w).as_chunks::<16>().0.as_chunks::<32>().0;
            let x_q: &[i8] = bytemuck::cast_slice(x.q.as_flattened().as_flattened());
            let x_q = x_q.as_chunks::<16>().0.as_chunks::<2>().0.as_chunks::<M>().0;
            for (w, x) in w.iter().zip(x_q) {
                let (w, x) = (&w[first..], x.as_flattened());
                four_columns::<M, R, 0>(&mut dots, load_rows(&w[0..]), x);
                four_columns::<M, R, 1>(&mut dots, load_rows(&w[4..]), x);
                four_columns::<M, R, 2>(&mut dots, load_rows(&w[8..]), x);
                four_columns::<M, R, 3>(&mut dots, load_rows(&w[12..]), x);
                four_columns::<M, R, 4>(&mut dots, load_rows(&w[16..]), x);
                four_columns::<M, R, 5>(&mut dots, load_rows(&w[20..]), x);
                four_columns::<M, R, 6>(&mut dots, load_rows(&w[24..]), x);
                four_columns::<M, R, 7>(&mut dots, load_rows(&w[28..]), x);
            }
            let w_scales = &w_scales.as_chunks::<16>().0[first..];
            for j in 0..R {
                let w_scales = load_scales(&w_scales[j]);
                for i in 0..M {
                    sums[i][j] = add_scaled(sums[i][j], dots[i][j], w_scales, x.scales[i]);
                }
            }
        }
        for (out, sums) in out.as_chunks_mut::<NR>().0.iter_mut().zip(&sums) {
            for (out, sums) in out.as_chunks_mut::<4>().0[first..].iter_mut().zip(sums) {
                store(out, *sums);
            }
        }
    }
}

/// `M` rows of activations by a panel of 4-bit weights.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q4_f32_mx16c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    match M {
        ..3 => rows_of_q4_panel::<M, 4>(panel, x, out),
        _ => rows_of_q4_panel::<M, 2>(panel, x, out),
    }
}

/// Takes `R` vectors of rows of a panel at once.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn rows_of_q4_panel<const M: usize, const R: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    for first in (0..4).step_by(R) {
        let mut sums = [[vdupq_n_f32(0.0); R]; M];
        let groups = panel.chunks_exact(NR * BLOCK_BYTES * (x.group / BLOCK));
        for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
            // What a product is added to and stays the same, its zero signed.
            let mut totals = [[vdupq_n_f32(-0.0); R]; M];
            let x_q: &[i8] = bytemuck::cast_slice(x.q.as_flattened().as_flattened());
            let x_q = x_q.as_chunks::<16>().0.as_chunks::<2>().0.as_chunks::<M>().0;
            let blocks = w.as_chunks::<{ NR * BLOCK_BYTES }>().0.iter();
            for (w, (x_q, x_sums)) in blocks.zip(x_q.iter().zip(x.sums)) {
                let (x_q, w) = (x_q.as_flattened(), w.as_chunks::<16>().0);
                let mut dots = [[vdupq_n_s32(0); R]; M];
                let (parameters, w) = w.split_at(4);
                let [a, b] = split_rows(&w[first..]);
                four_columns::<M, R, 0>(&mut dots, a, x_q);
                four_columns::<M, R, 1>(&mut dots, b, x_q);
                let [a, b] = split_rows(&w[4 + first..]);
                four_columns::<M, R, 2>(&mut dots, a, x_q);
                four_columns::<M, R, 3>(&mut dots, b, x_q);
                let [a, b] = split_rows(&w[8 + first..]);
                four_columns::<M, R, 4>(&mut dots, a, x_q);
                four_columns::<M, R, 5>(&mut dots, b, x_q);
                let [a, b] = split_rows(&w[12 + first..]);
                four_columns::<M, R, 6>(&mut dots, a, x_q);
                four_columns::<M, R, 7>(&mut dots, b, x_q);
                for j in 0..R {
                    let at = first + j;
                    let multipliers = widen_4(&parameters[at / 2], at % 2);
                    let offsets = widen_4(&parameters[2 + at / 2], at % 2);
                    for i in 0..M {
                        let total = vfmaq_n_f32(totals[i][j], offsets, x_sums[i]);
                        totals[i][j] = vfmaq_f32(total, vcvtq_f32_s32(dots[i][j]), multipliers);
                    }
                }
            }
            for i in 0..M {
                for j in 0..R {
                    sums[i][j] = vfmaq_n_f32(sums[i][j], totals[i][j], x.scales[i]);
                }
            }
        }
        for (out, sums) in out.as_chunks_mut::<NR>().0.iter_mut().zip(&sums) {
            for (out, sums) in out.as_chunks_mut::<4>().0[first..].iter_mut().zip(sums) {
                store(out, *sums);
            }
        }
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn load_rows<const R: usize>(w: &[[i8; 16]]) -> [int8x16_t; R] {
    let mut rows = [vdupq_n_s8(0); R];
    for j in 0..R {
        rows[j] = load(&w[j]);
    }
    rows
}

/// The low and the high codes of `R` vectors.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn split_rows<const R: usize>(w: &[[u8; 16]]) -> [[int8x16_t; R]; 2] {
    let mut halves = [[vdupq_n_s8(0); R]; 2];
    for j in 0..R {
        [halves[0][j], halves[1][j]] = split_codes(&w[j]);
    }
    halves
}

/// Adds the products of columns `4 * C..4 * C + 4` of a block.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn four_columns<const M: usize, const R: usize, const C: usize>(
    dots: &mut [[int32x4_t; R]; M],
    w: [int8x16_t; R],
    x: &[[i8; 16]],
) {
    // Written out, as the compiler must know each lane and keeps `dots` in registers only so.
    macro_rules! row {
        ($i:literal) => {
            if $i < M {
                let at = C * M + $i;
                let x = load(&x[at / 4]);
                for j in 0..R {
                    dots[$i][j] = sdot_lane(dots[$i][j], w[j], x, at % 4);
                }
            }
        };
    }
    row!(0);
    row!(1);
    row!(2);
    row!(3);
    row!(4);
    row!(5);
}

/// One activation row by four weight rows.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q8_f32_1x4(x: &Q8Row<'_>, w: &[Q8Row<'_>; 4], groups: Groups) -> [f32; 4] {
    let [y] = tile_q8([x], w, groups);
    y
}

/// Four activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn dot_q8_q8_f32_4x4(x: &[Q8Row<'_>; 4], w: &[Q8Row<'_>; 4], groups: Groups) -> [[f32; 4]; 4] {
    tile_q8(x.each_ref(), w, groups)
}

/// `M` activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "neon,dotprod")]
fn tile_q8<const M: usize>(
    x: [&Q8Row<'_>; M],
    w: &[Q8Row<'_>; 4],
    groups: Groups,
) -> [[f32; 4]; M] {
    let (mut out, mut totals) = ([vdupq_n_f32(0.0); M], [vdupq_n_f32(0.0); M]);
    let mut sums = [[vdupq_n_s32(0); 4]; M];
    let (k, n) = (x[0].q.len(), groups.x / groups.w);
    let (x, w) = (level(x, k, groups.x), level(w.each_ref(), k, groups.w));
    for g in 0..k / groups.w {
        let (x_chunks, w_chunks) = (chunks(&x, g, groups.w), chunks(&w, g, groups.w));
        if g % n == 0 {
            (sums, totals) = ([[vdupq_n_s32(0); 4]; M], [vdupq_n_f32(-0.0); M]);
        }
        for c in 0..groups.w / 16 {
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
        let steps = steps(&w, g, n);
        for i in 0..M {
            totals[i] = add_group(totals[i], sums[i], &steps);
            if (g + 1) % n == 0 {
                out[i] = vfmaq_n_f32(out[i], totals[i], x[i].scales[g / n]);
            }
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
    let mut sums = [[vdupq_n_s32(0); 4]; M];
    for b in 0..blocks {
        if b % group_blocks == 0 {
            (sums, totals) = ([[vdupq_n_s32(0); 4]; M], [vdupq_n_f32(-0.0); M]);
        }
        let block = [&w[0][b], &w[1][b], &w[2][b], &w[3][b]];
        let codes = [codes(block[0]), codes(block[1]), codes(block[2]), codes(block[3])];
        let [mut multipliers, offsets] = parameters(block);
        if (b + 1) % group_blocks != 0 {
            let next = [&w[0][b + 1], &w[1][b + 1], &w[2][b + 1], &w[3][b + 1]];
            multipliers = vsubq_f32(multipliers, parameters(next)[0]);
        }
        for i in 0..M {
            let x = load_32(&x_blocks[i].0[b]);
            for j in 0..4 {
                sums[i][j] = add_products_q4(sums[i][j], x, codes[j]);
            }
            let total = vfmaq_n_f32(totals[i], offsets, x_blocks[i].1[b] as f32);
            totals[i] = vfmaq_f32(total, vcvtq_f32_s32(total_of(sums[i])), multipliers);
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

/// Adds the products of a block to four sums.
#[target_feature(enable = "neon,dotprod")]
fn add_products_q4(sums: int32x4_t, x: [int8x16_t; 2], codes: [int8x16_t; 2]) -> int32x4_t {
    sdot(sdot(sums, x[0], codes[0]), x[1], codes[1])
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

/// Adds the products of each four of `w` with the four of `x` in `lane`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot_lane(sums: int32x4_t, w: int8x16_t, x: int8x16_t, lane: usize) -> int32x4_t {
    match lane {
        0 => sdot_by::<0>(sums, w, x),
        1 => sdot_by::<1>(sums, w, x),
        2 => sdot_by::<2>(sums, w, x),
        _ => sdot_by::<3>(sums, w, x),
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot_by<const LANE: usize>(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]", sums = inout(vreg) sums,
            w = in(vreg) w, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// See [`super::Kernels::spin_int8`]: 16 products an instruction.
#[target_feature(enable = "neon,dotprod")]
fn spin_int8(rounds: usize) -> i32 {
    let x = vdupq_n_s8(std::hint::black_box(3));
    let step = |sums: &mut [int32x4_t; 16]| {
        for sum in sums {
            *sum = sdot(*sum, x, x);
        }
    };
    peak::spin(rounds, 16, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
