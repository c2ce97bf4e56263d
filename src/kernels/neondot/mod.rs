//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads. With packed
//! weights each lane of a vector is a row, and `sdot` multiplies all of them by the four activations
//! in one lane of another vector. A tile of 12 rows of activations by a strip of four rows is 12
//! sums, as many running totals, and eight registers for operands: 16 columns take 48 `sdot` for
//! four loads of four registers each. That leaves no register over, which is why those loops, and
//! those of a single row, are written in assembly.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::matmul::{chunks, level, level_blocks, level_weights, steps};
use super::neon::{self, add_group, codes, load, load_32, parameters, store, total_of};
use super::packed::{Layout, PackedTable, Unpack};
use super::{Blocks4, Groups, SummedRow, Table, peak};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

/// The instances of a kernel for tiles of so many rows, between one for a single row and one for
/// whole tiles.
macro_rules! tiles_of {
    ($single:ident $kernel:ident: $($m:literal)* $whole:ident) => {
        [$single, $($kernel::<$m>,)* $whole]
    };
}

/// Four `sdot`: rows `$a` to `$d` of activations in register `$x` by weights in register `$w`.
macro_rules! sdot_rows {
    ($w:literal $x:literal: $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "sdot v", $a, ".4s, v", $w, ".16b, v", $x, ".4b[0]\n", "sdot v", $b, ".4s, v", $w,
            ".16b, v", $x, ".4b[1]\n", "sdot v", $c, ".4s, v", $w, ".16b, v", $x, ".4b[2]\n",
            "sdot v", $d, ".4s, v", $w, ".16b, v", $x, ".4b[3]\n",
        )
    };
}

/// Loads the next 64 bytes of activations.
macro_rules! load_x {
    () => {
        "ld1 {{v28.16b, v29.16b, v30.16b, v31.16b}}, [{x}], #64\n"
    };
}

/// The products of sixteen columns of 12 rows: 12 vectors of activations, three of them for each four
/// columns, by weights in registers `$a` to `$d`.
macro_rules! sdot_16_columns_of {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            load_x!(),
            sdot_rows!($a 28: 0 1 2 3),
            sdot_rows!($a 29: 4 5 6 7),
            sdot_rows!($a 30: 8 9 10 11),
            sdot_rows!($b 31: 0 1 2 3),
            load_x!(),
            sdot_rows!($b 28: 4 5 6 7),
            sdot_rows!($b 29: 8 9 10 11),
            sdot_rows!($c 30: 0 1 2 3),
            sdot_rows!($c 31: 4 5 6 7),
            load_x!(),
            sdot_rows!($c 28: 8 9 10 11),
            sdot_rows!($d 29: 0 1 2 3),
            sdot_rows!($d 30: 4 5 6 7),
            sdot_rows!($d 31: 8 9 10 11),
        )
    };
}

/// Makes the sums v0 to v11 zero and the totals v12 to v23 what a product is added to and stays the
/// same, its zero signed.
macro_rules! clear_12 {
    () => {
        concat!(
            clear!(0 12), clear!(1 13), clear!(2 14), clear!(3 15), clear!(4 16), clear!(5 17),
            clear!(6 18), clear!(7 19), clear!(8 20), clear!(9 21), clear!(10 22), clear!(11 23),
        )
    };
}

macro_rules! clear {
    ($dots:literal $total:literal) => {
        concat!("movi v", $dots, ".2d, #0\n", "movi v", $total, ".4s, #128, lsl #24\n")
    };
}

/// Adds the sums in register `$dots` times those in v24 to `$total`.
macro_rules! add_total {
    ($dots:literal $total:literal) => {
        concat!("scvtf v25.4s, v", $dots, ".4s\n", "fmla v", $total, ".4s, v25.4s, v24.4s\n",)
    };
}

/// Adds the total in register `$total` times a lane of `$scales` to four of `out`, `$at` bytes in.
macro_rules! add_out {
    ($total:literal $scales:literal $lane:literal $at:literal) => {
        concat!(
            "ldr q28, [{out}, #",
            $at,
            "]\n",
            "fmla v28.4s, v",
            $total,
            ".4s, v",
            $scales,
            ".s[",
            $lane,
            "]\n",
            "str q28, [{out}, #",
            $at,
            "]\n",
        )
    };
}

/// Adds the totals v12 to v23 times the next 12 scales to `out`, whose rows are 64 bytes long.
macro_rules! add_out_12 {
    () => {
        concat!(
            "ld1 {{v24.4s, v25.4s, v26.4s}}, [{scales}], #48\n",
            add_out!(12 24 0 0), add_out!(13 24 1 64), add_out!(14 24 2 128),
            add_out!(15 24 3 192), add_out!(16 25 0 256), add_out!(17 25 1 320),
            add_out!(18 25 2 384), add_out!(19 25 3 448), add_out!(20 26 0 512),
            add_out!(21 26 1 576), add_out!(22 26 2 640), add_out!(23 26 3 704),
        )
    };
}

/// Adds the totals v4 to v7 of a single row times its scale to `out`, 16 floats.
macro_rules! add_out_single {
    () => {
        concat!(
            "ld1 {{v16.4s, v17.4s, v18.4s, v19.4s}}, [{out}]\n",
            "ldr s27, [{scales}], #4\n",
            "fmla v16.4s, v4.4s, v27.s[0]\n",
            "fmla v17.4s, v5.4s, v27.s[0]\n",
            "fmla v18.4s, v6.4s, v27.s[0]\n",
            "fmla v19.4s, v7.4s, v27.s[0]\n",
            "st1 {{v16.4s, v17.4s, v18.4s, v19.4s}}, [{out}]\n",
        )
    };
}

/// Adds the sums v0 to v3 times `$a` to `$d` to the totals v4 to v7.
macro_rules! add_totals_4 {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "scvtf v16.4s, v0.4s\n",
            "scvtf v17.4s, v1.4s\n",
            "scvtf v18.4s, v2.4s\n",
            "scvtf v19.4s, v3.4s\n",
            "fmla v4.4s, v16.4s, v",
            $a,
            ".4s\n",
            "fmla v5.4s, v17.4s, v",
            $b,
            ".4s\n",
            "fmla v6.4s, v18.4s, v",
            $c,
            ".4s\n",
            "fmla v7.4s, v19.4s, v",
            $d,
            ".4s\n",
        )
    };
}

pub(super) use {add_out, add_total, clear, clear_12, load_x};

mod q4;
mod q8;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    dot_q8_q8_f32_1x4,
    dot_q8_q8_f32_4x4,
    dot_q8_q4_f32_1x4,
    dot_q8_q4_f32_4x4,
    packed: Some(PackedTable {
        layout: Layout::NEON_DOT,
        tiles_q8: &q8::TILES,
        tiles_q4: &q4::TILES,
        unpack_q4: Some(Unpack {
            unpack: q4::unpack,
            packed_bytes: q4::PANEL_BLOCK,
            bytes: q4::UNPACKED_BLOCK,
        }),
    }),
    spin_int8,
    ..neon::TABLE
};

/// Rows of a panel: four strips.
const NR: usize = Layout::NEON_DOT.panel_rows();

/// Adds the products of columns `4 * C..4 * C + 4` of some, of which each has `M` fours of `x`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn four_columns<const M: usize, const C: usize>(
    dots: &mut [int32x4_t; M],
    w: int8x16_t,
    x: &[[i8; 16]],
) {
    for i in 0..M {
        let at = C * M + i;
        dots[i] = sdot_lane(dots[i], w, load(&x[at / 4]), at % 4);
    }
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
