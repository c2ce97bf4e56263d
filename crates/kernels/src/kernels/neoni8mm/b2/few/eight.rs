//! Tiles of five to eight rows, one strip at a time. Scales stand twice, as sums of a pair have them;
//! the last of an odd number of rows is half of a pair, and its totals are parted.

use std::arch::asm;

use super::super::super::super::neon::registers::{
    block_ends, floats, load_4, registers, to_floats,
};
use super::super::super::super::neondot::gemm::{any_blocks, load_out, one_block, store_out};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::pairs::{NR, PANEL_BLOCK_B2 as PANEL_BLOCK};
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of up to four pairs with the first two rows of the strip, then with the others.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, high0 = 4, high1 = 5, high2 = 6, high3 = 7,
    // Totals of the same.
    low_total0 = 8, low_total1 = 9, low_total2 = 10, low_total3 = 11,
    high_total0 = 12, high_total1 = 13, high_total2 = 14, high_total3 = 15,
    // Low codes of two vectors of bytes; scales, each twice, of even blocks and of odd ones; mask of low codes.
    code0 = 16, code1 = 17, even = 18, odd = 19, mask = 20,
    // Bytes of the strip, which become high codes; activations.
    byte0 = 24, byte1 = 25, byte2 = 26, byte3 = 27, x0 = 28, x1 = 29, x2 = 30, x3 = 31,
    // At the end of a block, each twice: zeros of the next, and their products with its scales; differences of
    // scales, then 16 times as large. Sums of activations, or scales, of a row or of a pair, twice.
    zeros = 24, offsets = 24, low_offsets = 25, high_offsets = 26,
    less = 27, low_steps = 28, high_steps = 29, pair = 21,
    // Results. Four pairs leave registers for one pair's only.
    y0 = 22, y1 = 23, y2 = 3, y3 = 7, y4 = 11, y5 = 15,
}

/// A line for each pair, and for an odd row: its sums, its totals, its results, where these are in a strip of them, in
/// bytes, and what it is.
macro_rules! lines_5 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, y0 y1 0 pair),
            $line!(low1 high1, low_total1 high_total1, y2 y3 32 pair),
            $line!(low2 high2, low_total2 high_total2, y4 y5 64 row),
        )
    };
}

macro_rules! lines_6 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, y0 y1 0 pair),
            $line!(low1 high1, low_total1 high_total1, y2 y3 32 pair),
            $line!(low2 high2, low_total2 high_total2, y4 y5 64 pair),
        )
    };
}

macro_rules! lines_7 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, y0 y1 0 pair),
            $line!(low1 high1, low_total1 high_total1, y0 y1 32 pair),
            $line!(low2 high2, low_total2 high_total2, y0 y1 64 pair),
            $line!(low3 high3, low_total3 high_total3, y0 y1 96 row),
        )
    };
}

macro_rules! lines_8 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, y0 y1 0 pair),
            $line!(low1 high1, low_total1 high_total1, y0 y1 32 pair),
            $line!(low2 high2, low_total2 high_total2, y0 y1 64 pair),
            $line!(low3 high3, low_total3 high_total3, y0 y1 96 pair),
        )
    };
}

/// Loads what a pair has for a block or a group, twice, or what a row has, four times.
macro_rules! load_for {
    (pair, $from:literal) => {
        load_pair!(pair, $from)
    };
    (row, $from:literal) => {
        load_row!(pair, $from)
    };
}

/// Loads a block's scales, and multiplies them by its zeros.
macro_rules! load_parameters {
    ($scales:ident) => {
        concat!(
            "ldr s", r!(zeros), ", [{parameters}, #16]\n",
            "ld1 {{v", r!($scales), ".s}}[0], [{parameters}], {block_bytes}\n",
            twice!(zeros), twice!($scales),
            bytes_to_8!("umull" offsets $scales zeros "8b"),
            "ushll v", r!(low_offsets), ".4s, v", r!(offsets), ".4h, #0\n",
            "ushll2 v", r!(high_offsets), ".4s, v", r!(offsets), ".8h, #0\n",
        )
    };
}

/// Makes eight bytes of four, each twice.
macro_rules! twice {
    ($bytes:ident) => {
        concat!("zip1 v", r!($bytes), ".8b, v", r!($bytes), ".8b, v", r!($bytes), ".8b\n")
    };
}

/// Makes sums zero, and totals what the first block's zeros take.
macro_rules! begin_sums {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal $kind:ident) => {
        concat!(
            load_for!($kind, "sums"),
            clear_sums!($low $high),
            ints!("mul" $low_total low_offsets pair),
            ints!("mul" $high_total high_offsets pair),
        )
    };
}

/// Adds what the next block's zeros take.
macro_rules! add_zeros {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal $kind:ident) => {
        concat!(
            load_for!($kind, "sums"),
            ints!("mla" $low_total low_offsets pair),
            ints!("mla" $high_total high_offsets pair),
        )
    };
}

/// Subtracts a block's sums.
macro_rules! subtract_sums {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal $kind:ident) => {
        concat!(
            ints!("mls" $low_total $low low_steps),
            ints!("mls" $high_total $high high_steps),
        )
    };
}

/// Subtracts totals times scales from results.
macro_rules! add_results {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal pair) => {
        concat!(
            load_pair!(pair, "scales"),
            to_floats!($low_total $low_total),
            to_floats!($high_total $high_total),
            floats!("fmls" $y0 $low_total pair),
            floats!("fmls" $y1 $high_total pair),
        )
    };
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal row) => {
        concat!(
            load_row!(pair, "scales"),
            ints!("uzp1" $low_total $low_total $high_total),
            to_floats!($low_total $low_total),
            floats!("fmls" $y0 $low_total pair),
        )
    };
}

macro_rules! load_results {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal pair) => {
        load_out!($y0 $y1 $at)
    };
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal row) => {
        concat!("ldr q", r!($y0), ", [{out}, #", $at, "]\n")
    };
}

macro_rules! store_results {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal pair) => {
        store_out!($y0 $y1 $at)
    };
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal row) => {
        concat!("str q", r!($y0), ", [{out}, #", $at, "]\n")
    };
}

/// Adds to results in memory, where there are no registers for them.
macro_rules! add_out {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $y0:ident $y1:ident $at:literal $kind:ident) => {
        concat!(
            load_results!($low $high, $low_total $high_total, $y0 $y1 $at $kind),
            add_results!($low $high, $low_total $high_total, $y0 $y1 $at $kind),
            store_results!($low $high, $low_total $high_total, $y0 $y1 $at $kind),
        )
    };
}

/// Begins an activation group.
macro_rules! begin {
    ($lines:ident) => {
        concat!(load_parameters!(even), $lines!(begin_sums))
    };
}

/// Ends a block whose scales are in `$this`, and begins the next, whose are in the other.
macro_rules! next {
    ($lines:ident $this:ident, $next:ident) => {
        concat!(
            load_parameters!($next),
            bytes_to_8!("usubl" less $this $next "8b"),
            steps!(),
            $lines!(add_zeros),
            $lines!(subtract_sums),
        )
    };
}

macro_rules! steps {
    () => {
        concat!(
            sixteen_times!("sshll" low_steps less "4h"),
            sixteen_times!("sshll2" high_steps less "8h"),
        )
    };
}

/// Ends the last block of a group.
macro_rules! last {
    ($lines:ident $this:ident) => {
        concat!(widen_bytes!("ushll" less $this "8b"), steps!(), $lines!(subtract_sums))
    };
}

block_ends!(begin_5 next_5 last_5: lines_5, even, odd);
pair_steps!(products_5: load_x_5 three_pairs; lines_5: add_up_5 = add_results, load_5 = load_results, store_5 = store_results);
block_ends!(begin_6 next_6 last_6: lines_6, even, odd);
pair_steps!(products_6: load_x_6 three_pairs; lines_6: add_up_6 = add_results, load_6 = load_results, store_6 = store_results);
block_ends!(begin_7 next_7 last_7: lines_7, even, odd);
pair_steps!(products_7: load_x_7 four_pairs; lines_7: add_up_7 = add_out);
block_ends!(begin_8 next_8 last_8: lines_8, even, odd);
pair_steps!(products_8: load_x_8 four_pairs; lines_8: add_up_8 = add_out);

gemm_few_b2!(gemm_q8_b2_f32_5x16c8: 5 by 1, load_5 begin_5 products_5 next_5 last_5 add_up_5 store_5);
gemm_few_b2!(gemm_q8_b2_f32_6x16c8: 6 by 1, load_6 begin_6 products_6 next_6 last_6 add_up_6 store_6);
gemm_few_b2!(gemm_q8_b2_f32_7x16c8: 7 by 1, nothing begin_7 products_7 next_7 last_7 add_up_7 nothing);
gemm_few_b2!(gemm_q8_b2_f32_8x16c8: 8 by 1, nothing begin_8 products_8 next_8 last_8 add_up_8 nothing);
