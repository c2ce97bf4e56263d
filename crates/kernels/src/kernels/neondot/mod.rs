//! NEON with dot product instructions: only the int8 tiles differ from [`super::neon`].
//!
//! A tile of 4 × 4 rows holds 16 sums of 4 × i32 and takes 16 `sdot` for 8 loads. With packed weights each lane of a
//! vector is a row, and `sdot` multiplies all of them by the four activations in one lane of another vector. A tile of
//! 12 rows of activations by a strip of four rows has 12 sums, as many running totals, and eight registers for
//! operands: 16 columns take 48 `sdot` for four loads of four registers each. No register is left over, so the loops
//! are written in assembly. Tiles of up to four rows (4-bit weights: eight) take two or four strips at a time, which
//! makes as many sums for each load.
//!
//! Results lie in the order of the loops, strip by strip; those of int8 weights stay in the totals' registers all along
//! a strip. In an activation group of 4-bit weights, the first product begins each total, so totals need not be
//! cleared.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::ops::Range;

use self::vectors::sdot;
use super::matmul::{chunks, level, level_blocks, level_weights, scales};
use super::neon::{
    self, codes, dots_of_rows, load, load_32, load_floats, parameters, place_row, scaled, store,
    total_of,
};
use super::packed::layout::Layout;
use super::packed::table::{PART_BYTES, PackedTable, Unpack};
use super::peak;
use super::table::{Blocks4, SummedRow, Table};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

/// The registers of tall tiles; a file may add other names for some of them.
macro_rules! tall_registers {
    ($($name:ident = $number:literal),* $(,)?) => {
        registers! {
            // Sums of rows 0 to 11 with a strip.
            sum0 = 0, sum1 = 1, sum2 = 2, sum3 = 3, sum4 = 4, sum5 = 5,
            sum6 = 6, sum7 = 7, sum8 = 8, sum9 = 9, sum10 = 10, sum11 = 11,
            // Totals of the same rows.
            total0 = 12, total1 = 13, total2 = 14, total3 = 15, total4 = 16, total5 = 17,
            total6 = 18, total7 = 19, total8 = 20, total9 = 21, total10 = 22, total11 = 23,
            // Weights: 16 columns of a strip, four of them each.
            w0 = 24, w1 = 25, w2 = 26, w3 = 27,
            // Activations: four columns of four rows each.
            x0 = 28, x1 = 29, x2 = 30, x3 = 31,
            // At the end of a group or block, when weights and activations are no longer needed: the weights' scales,
            // the zero of sums, and scales or sums of activations of 12 rows.
            w_scales = 24, zero = 25, rows0 = 26, rows1 = 27, rows2 = 28,
            // Results of two rows, and of two others.
            y0 = 24, y1 = 25, y2 = 30, y3 = 31,
            $($name = $number,)*
        }
    };
}

/// Adds products of weights with a lane of activations: four bytes each.
macro_rules! sdot {
    ($sum:ident $w:ident $x:ident $lane:literal) => {
        concat!("sdot v", r!($sum), ".4s, v", r!($w), ".16b, v", r!($x), ".4b[", $lane, "]\n")
    };
}

/// Four `sdot`: rows `$a` to `$d` of activations in register `$x` by weights in register `$w`.
macro_rules! sdot_rows {
    ($w:ident $x:ident: $a:ident $b:ident $c:ident $d:ident) => {
        concat!(
            sdot!($a $w $x 0), sdot!($b $w $x 1), sdot!($c $w $x 2), sdot!($d $w $x 3),
        )
    };
}

/// The products of sixteen columns of 12 rows: 12 vectors of activations, three for each four columns of weights.
macro_rules! sdot_12_rows {
    ($next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            load_x!(),
            sdot_rows!(w0 x0: sum0 sum1 sum2 sum3),
            sdot_rows!(w0 x1: sum4 sum5 sum6 sum7),
            sdot_rows!(w0 x2: sum8 sum9 sum10 sum11),
            sdot_rows!(w1 x3: sum0 sum1 sum2 sum3),
            load_x!(),
            sdot_rows!(w1 x0: sum4 sum5 sum6 sum7),
            sdot_rows!(w1 x1: sum8 sum9 sum10 sum11),
            sdot_rows!(w2 x2: sum0 sum1 sum2 sum3),
            sdot_rows!(w2 x3: sum4 sum5 sum6 sum7),
            load_x!(),
            sdot_rows!(w2 x0: sum8 sum9 sum10 sum11),
            sdot_rows!(w3 x1: sum0 sum1 sum2 sum3),
            sdot_rows!(w3 x2: sum4 sum5 sum6 sum7),
            sdot_rows!(w3 x3: sum8 sum9 sum10 sum11),
        )
    };
}

/// Multiplies and adds the products of eight rows.
macro_rules! sdot_8_rows {
    ($next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            load_x!(),
            sdot_rows!(w0 x0: sum0 sum1 sum2 sum3),
            sdot_rows!(w0 x1: sum4 sum5 sum6 sum7),
            sdot_rows!(w1 x2: sum0 sum1 sum2 sum3),
            sdot_rows!(w1 x3: sum4 sum5 sum6 sum7),
            load_x!(),
            sdot_rows!(w2 x0: sum0 sum1 sum2 sum3),
            sdot_rows!(w2 x1: sum4 sum5 sum6 sum7),
            sdot_rows!(w3 x2: sum0 sum1 sum2 sum3),
            sdot_rows!(w3 x3: sum4 sum5 sum6 sum7),
        )
    };
}

/// Arguments of `$line`, once for each two of 12 rows: their sums; their totals; a register and two lanes with their
/// values among those of all rows; two registers for their results; and the offset of these in a strip, in bytes.
macro_rules! lines_12 {
    ($line:ident) => {
        concat!(
            $line!(sum0 sum1, total0 total1, rows0 0 1, y0 y1 0),
            $line!(sum2 sum3, total2 total3, rows0 2 3, y2 y3 32),
            $line!(sum4 sum5, total4 total5, rows1 0 1, y0 y1 64),
            $line!(sum6 sum7, total6 total7, rows1 2 3, y2 y3 96),
            $line!(sum8 sum9, total8 total9, rows2 0 1, y0 y1 128),
            $line!(sum10 sum11, total10 total11, rows2 2 3, y2 y3 160),
        )
    };
}

/// Arguments of `$line`, once for each two of eight rows.
macro_rules! lines_8 {
    ($line:ident) => {
        concat!(
            $line!(sum0 sum1, total0 total1, rows0 0 1, y0 y1 0),
            $line!(sum2 sum3, total2 total3, rows0 2 3, y2 y3 32),
            $line!(sum4 sum5, total4 total5, rows1 0 1, y0 y1 64),
            $line!(sum6 sum7, total6 total7, rows1 2 3, y2 y3 96),
        )
    };
}

/// Begins sums at [`ZERO`](super::packed::tile::ZERO), a float by its bits. Subtracting it later makes floats of the
/// sums; more units can subtract than convert.
macro_rules! begin_sums {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        concat!("dup v", r!($a), ".4s, {zero:w}\n", "dup v", r!($b), ".4s, {zero:w}\n")
    };
}

/// Loads results of two rows from a strip of `out` into the totals' registers.
macro_rules! load_results {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        load_out!($ta $tb $at)
    };
}

/// Stores results of two rows from the totals' registers.
macro_rules! store_results {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        store_out!($ta $tb $at)
    };
}

/// Loads the next 12 rows' scales or sums of activations.
macro_rules! load_rows_12 {
    ($from:literal) => {
        concat!(
            "ld1 {{v",
            r!(rows0),
            ".4s, v",
            r!(rows1),
            ".4s, v",
            r!(rows2),
            ".4s}}, [{",
            $from,
            "}], #48\n",
        )
    };
}

/// Loads a single row's scale, or a sum of its activations.
macro_rules! load_rows_1 {
    ($to:ident $from:literal) => {
        concat!("ldr s", r!($to), ", [{", $from, "}], #4\n")
    };
}

/// Loads a value of each of two rows.
macro_rules! load_rows_2 {
    ($to:ident $from:literal) => {
        concat!("ldr d", r!($to), ", [{", $from, "}], #8\n")
    };
}

/// Loads a value of each of three rows.
macro_rules! load_rows_3 {
    ($to:ident $from:literal) => {
        concat!(load_rows_2!($to $from), "ld1 {{v", r!($to), ".s}}[2], [{", $from, "}], #4\n")
    };
}

/// Loads a value of each of four rows.
macro_rules! load_rows_4 {
    ($to:ident $from:literal) => {
        concat!("ldr q", r!($to), ", [{", $from, "}], #16\n")
    };
}

/// Loads a value of each of five rows, the last into a register of its own.
macro_rules! load_rows_5 {
    ($to:ident $to_last:ident $from:literal) => {
        concat!(load_rows_4!($to $from), "ldr s", r!($to_last), ", [{", $from, "}], #4\n")
    };
}

/// Loads a value of each of six rows, the last two into another register.
macro_rules! load_rows_6 {
    ($to:ident $to_last:ident $from:literal) => {
        concat!(load_rows_4!($to $from), load_rows_2!($to_last $from))
    };
}

/// An instruction from two registers of four integers to a third.
macro_rules! integers {
    ($name:literal $to:ident $a:ident $b:ident) => {
        concat!($name, " v", r!($to), ".4s, v", r!($a), ".4s, v", r!($b), ".4s\n")
    };
}

/// Adds totals times the next 12 scales to a strip of `out`.
macro_rules! add_out_12 {
    () => {
        concat!(load_rows_12!("scales"), lines_12!(add_out))
    };
}

/// Adds the results of eight rows to the output.
macro_rules! add_out_8 {
    () => {
        concat!(load_2!(rows0 rows1, "scales"), lines_8!(add_out))
    };
}

macro_rules! add_out {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        concat!(
            load_out!($ya $yb $at),
            floats_by_lane!("fmla" $ya $ta $rows $i),
            floats_by_lane!("fmla" $yb $tb $rows $j),
            store_out!($ya $yb $at),
        )
    };
}

mod b2;
pub(super) mod gemm;
mod kv8;
mod q4;
mod q8;
mod runs;
pub(super) mod vectors;

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
        tiles_b2: &b2::TILES,
        run_tiles: runs::tiles,
        unpack_ggml: neon::unpack_ggml,
        place,
        // With 24 KiB of a tile's activations, as much as a small L2 has, and little more than an L1 of 32 KiB if only
        // a strip's quarter counts.
        part_bytes: 2 * PART_BYTES,
        unpack_q4: Some(Unpack {
            unpack: q4::unpack,
            packed_bytes: q4::PANEL_BLOCK,
            bytes: q4::UNPACKED_BLOCK,
        }),
        unpack_b2: Some(Unpack {
            unpack: b2::unpack,
            packed_bytes: gemm::PANEL_BLOCK_B2,
            bytes: b2::UNPACKED_BLOCK,
        }),
    }),
    score_i8: kv8::score_i8,
    score_i8_4: kv8::score_i8_4,
    weigh_i8: kv8::weigh_i8,
    weigh_i8_4: kv8::weigh_i8_4,
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

dots_of_rows! { , "neon,dotprod", sdot add_products_q4 }

/// Adds the products of a block to four sums.
#[target_feature(enable = "neon,dotprod")]
fn add_products_q4(sums: int32x4_t, x: [int8x16_t; 2], codes: [int8x16_t; 2]) -> int32x4_t {
    sdot(sdot(sums, x[0], codes[0]), x[1], codes[1])
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
