//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads. With packed
//! weights each lane of a vector is a row, and `sdot` multiplies all of them by the four activations
//! in one lane of another vector. A tile of 12 rows of activations by a strip of four rows is 12
//! sums, as many running totals, and eight registers for operands: 16 columns take 48 `sdot` for
//! four loads of four registers each. That leaves no register over, which is why those loops, and
//! those of eight rows and of a single one, are written in assembly:
//!
//! ```text
//! v0-v11   sums         of rows 0 to 11 with a strip
//! v12-v23  totals       of the same
//! v24-v27  weights      16 columns of a strip, four of them each; at a group's end its scales
//! v28-v31  activations  four columns of four rows each; at a group's end the rows' scales or sums
//! ```
//!
//! Tiles of two to four rows take several strips at once instead, so that they have as many sums for
//! each load. Results wait as the loops have them, strip by strip; those of int8 weights stand in the
//! registers of totals all along a strip. In an activation group of 4-bit weights the first product of
//! each total is not added to anything, so that totals need not be cleared.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::matmul::{chunks, level, level_blocks, level_weights, scales};
use super::neon::{
    self, codes, load, load_32, load_floats, parameters, place_row, scaled, store, total_of,
};
use super::packed::layout::Layout;
use super::packed::table::{PART_BYTES, PackedTable, Unpack};
use super::peak;
use super::table::{Blocks4, SummedRow, Table};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

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

/// The products of sixteen columns of 12 rows: 12 vectors of activations, three of them for each four
/// columns, by weights in registers v24 to v27.
macro_rules! sdot_12_rows {
    () => {
        concat!(
            load_x!(),
            sdot_rows!(24 28: 0 1 2 3),
            sdot_rows!(24 29: 4 5 6 7),
            sdot_rows!(24 30: 8 9 10 11),
            sdot_rows!(25 31: 0 1 2 3),
            load_x!(),
            sdot_rows!(25 28: 4 5 6 7),
            sdot_rows!(25 29: 8 9 10 11),
            sdot_rows!(26 30: 0 1 2 3),
            sdot_rows!(26 31: 4 5 6 7),
            load_x!(),
            sdot_rows!(26 28: 8 9 10 11),
            sdot_rows!(27 29: 0 1 2 3),
            sdot_rows!(27 30: 4 5 6 7),
            sdot_rows!(27 31: 8 9 10 11),
        )
    };
}

/// The same of eight rows.
macro_rules! sdot_8_rows {
    () => {
        concat!(
            load_x!(),
            sdot_rows!(24 28: 0 1 2 3),
            sdot_rows!(24 29: 4 5 6 7),
            sdot_rows!(25 30: 0 1 2 3),
            sdot_rows!(25 31: 4 5 6 7),
            load_x!(),
            sdot_rows!(26 28: 0 1 2 3),
            sdot_rows!(26 29: 4 5 6 7),
            sdot_rows!(27 30: 0 1 2 3),
            sdot_rows!(27 31: 4 5 6 7),
        )
    };
}

/// Lines for each two of 12 rows: the registers of their sums and of their totals, where values of
/// them are among those of all rows (a register and two lanes), two registers that are free where
/// results are added, and where these are in a strip of them, in bytes.
macro_rules! lines_12 {
    ($line:ident) => {
        concat!(
            $line!(0 1 12 13 26 0 1 24 25 0), $line!(2 3 14 15 26 2 3 30 31 32),
            $line!(4 5 16 17 27 0 1 24 25 64), $line!(6 7 18 19 27 2 3 30 31 96),
            $line!(8 9 20 21 28 0 1 24 25 128), $line!(10 11 22 23 28 2 3 30 31 160),
        )
    };
}

/// The same for eight rows.
macro_rules! lines_8 {
    ($line:ident) => {
        concat!(
            $line!(0 1 12 13 26 0 1 24 25 0), $line!(2 3 14 15 26 2 3 30 31 32),
            $line!(4 5 16 17 27 0 1 24 25 64), $line!(6 7 18 19 27 2 3 30 31 96),
        )
    };
}

/// Makes sums [`ZERO`](super::packed::tile::ZERO), floats by their bits: a subtraction of that, which makes
/// floats of them, has more units that do it than a conversion.
macro_rules! begin_sums {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!("dup v", $a, ".4s, {zero:w}\n", "dup v", $b, ".4s, {zero:w}\n")
    };
}

/// Takes results of two rows from a strip of `out` to the totals' registers.
macro_rules! load_results {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        load_out!($ta $tb $at)
    };
}

/// Puts them back.
macro_rules! store_results {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        store_out!($ta $tb $at)
    };
}

/// Adds the totals v12 to v23 times the next 12 scales to a strip of `out`.
macro_rules! add_out_12 {
    () => {
        concat!("ld1 {{v26.4s, v27.4s, v28.4s}}, [{scales}], #48\n", lines_12!(add_out))
    };
}

/// The same for eight rows.
macro_rules! add_out_8 {
    () => {
        concat!("ldp q26, q27, [{scales}], #32\n", lines_8!(add_out))
    };
}

macro_rules! add_out {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!(
            load_out!($y $z $at),
            floats_by_lane!("fmla" $y $ta $x $i),
            floats_by_lane!("fmla" $z $tb $x $j),
            store_out!($y $z $at),
        )
    };
}

/// Makes sums zero and totals what a product is added to and stays the same, its zero signed.
macro_rules! clear {
    ($dots:literal $total:literal) => {
        concat!("movi v", $dots, ".2d, #0\n", "movi v", $total, ".4s, #128, lsl #24\n")
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

/// Adds v16 to v19 times `$a` to `$d` to the totals v4 to v7.
macro_rules! add_products_4 {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            floats!("fmla" 4 16 $a),
            floats!("fmla" 5 17 $b),
            floats!("fmla" 6 18 $c),
            floats!("fmla" 7 19 $d),
        )
    };
}

mod by_lane;
pub(super) mod gemm;
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
        place,
        // With 24 KiB of a tile's activations no more than a small second level has, and little more
        // than a first level of 32 KiB if a strip's quarter is counted.
        part_bytes: 2 * PART_BYTES,
        unpack_q4: Some(Unpack {
            unpack: q4::unpack,
            packed_bytes: q4::PANEL_BLOCK,
            bytes: q4::UNPACKED_BLOCK,
        }),
    }),
    spin_int8,
    ..neon::TABLE
};

/// See [`PackedTable::place`]: a tile's results are `[4, t, 4]`, strip by strip.
#[target_feature(enable = "neon,dotprod")]
fn place(y: &[f32], columns: Range<usize>, out: &mut [&mut [f32]]) {
    let (y, t) = (y.as_chunks::<4>().0, out.len());
    let strip = |i: usize| y[i * t..][..t].iter();
    let strips = strip(0).zip(strip(1)).zip(strip(2)).zip(strip(3));
    for (out, (((a, b), c), d)) in out.iter_mut().zip(strips) {
        let y = [load_floats(a), load_floats(b), load_floats(c), load_floats(d)];
        place_row(y, &mut out[columns.clone()]);
    }
}

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
    let k = x[0].q.len();
    let (x, w) = (level(x, k, group), level(w.each_ref(), k, group));
    for g in 0..k / group {
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
        let scales = scales(&w, g);
        for i in 0..M {
            out[i] = vfmaq_n_f32(out[i], scaled(sums[i], &scales), x[i].scales[g]);
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
