//! Tiles of three and of five to eight rows, one strip at a time. Parameters stand twice, as sums of a pair have
//! them; the last of an odd number of rows is half of a pair, and its sums are parted.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::super::neon::registers::{
    block_ends, floats, load_4, registers, to_floats,
};
use super::super::super::super::neondot::gemm::{
    any_blocks, gemm_few_q4, gemm_few_q4_groups, load_out, one_block, store_out, widen,
};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::pairs::{NR, PANEL_BLOCK};
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of up to four pairs with the first two rows of the strip, then with the others.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, high0 = 4, high1 = 5, high2 = 6, high3 = 7,
    // Totals of the same; the first of an odd row's two is that of all four.
    low_total0 = 8, low_total1 = 9, low_total2 = 10, low_total3 = 11,
    high_total0 = 12, high_total1 = 13, high_total2 = 14, high_total3 = 15,
    // Low codes of two vectors of bytes; multipliers, which become steps, in even blocks and in odd ones; what
    // leaves low codes.
    code0 = 16, code1 = 17, even = 18, odd = 19, mask = 20,
    // Bytes of the strip, which become high codes; activations.
    byte0 = 24, byte1 = 25, byte2 = 26, byte3 = 27, x0 = 28, x1 = 29, x2 = 30, x3 = 31,
    // At the end of a block: parameters of the next as they are packed, then its offsets; these and the steps,
    // each twice; sums of activations, or scales, of a row or of a pair, twice; sums of products.
    offsets = 24, low_offsets = 25, high_offsets = 26, low_steps = 27, high_steps = 28, pair = 21,
    low_dot = 29, high_dot = 30,
    // At the end of an activation group: results.
    low_y = 25, high_y = 26,
}

/// A line for each pair, and for an odd row: its sums, its totals, and where its results are in a strip of them,
/// in bytes.
macro_rules! lines_3 {
    ($line:ident $($steps:ident)?) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, 0 $(, $steps)?),
            $line!(low1 high1, low_total1, 32 $(, $steps)?),
        )
    };
}

macro_rules! lines_5 {
    ($line:ident $($steps:ident)?) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, 0 $(, $steps)?),
            $line!(low1 high1, low_total1 high_total1, 32 $(, $steps)?),
            $line!(low2 high2, low_total2, 64 $(, $steps)?),
        )
    };
}

macro_rules! lines_6 {
    ($line:ident $($steps:ident)?) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, 0 $(, $steps)?),
            $line!(low1 high1, low_total1 high_total1, 32 $(, $steps)?),
            $line!(low2 high2, low_total2 high_total2, 64 $(, $steps)?),
        )
    };
}

macro_rules! lines_7 {
    ($line:ident $($steps:ident)?) => {
        concat!(lines_6!($line $($steps)?), $line!(low3 high3, low_total3, 96 $(, $steps)?))
    };
}

macro_rules! lines_8 {
    ($line:ident $($steps:ident)?) => {
        concat!(
            lines_6!($line $($steps)?),
            $line!(low3 high3, low_total3 high_total3, 96 $(, $steps)?),
        )
    };
}

/// Loads a block's parameters: multipliers, and offsets, as they are and each twice.
macro_rules! load_strip {
    ($multipliers:ident) => {
        concat!(
            "ld1 {{v", r!(offsets), ".8h}}, [{parameters}], {to_next}\n",
            widen!("fcvtl" $multipliers offsets "4h"),
            widen!("fcvtl2" offsets offsets "8h"),
            floats!("zip1" low_offsets offsets offsets),
            floats!("zip2" high_offsets offsets offsets),
        )
    };
}

/// Makes sums zero, and totals what the first block's offsets add.
macro_rules! begin_pair {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(pair, "sums"),
            clear_sums!($low $high),
            floats!("fmul" $low_total low_offsets pair),
            floats!("fmul" $high_total high_offsets pair),
        )
    };
    ($low:ident $high:ident, $total:ident, $at:literal) => {
        concat!(
            load_row!(pair, "sums"),
            clear_sums!($low $high),
            floats!("fmul" $total offsets pair),
        )
    };
}

/// Adds a block to the totals, and what the next block's offsets add.
macro_rules! next_pair {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal, $steps:ident) => {
        concat!(
            last_pair!($low $high, $low_total $high_total, $at, $steps),
            load_pair!(pair, "sums"),
            floats!("fmla" $low_total low_offsets pair),
            floats!("fmla" $high_total high_offsets pair),
        )
    };
    ($low:ident $high:ident, $total:ident, $at:literal, $steps:ident) => {
        concat!(
            last_pair!($low $high, $total, $at, $steps),
            load_row!(pair, "sums"),
            floats!("fmla" $total offsets pair),
        )
    };
}

/// Adds a block to the totals.
macro_rules! last_pair {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal, $steps:ident) => {
        concat!(
            to_floats!(low_dot $low),
            to_floats!(high_dot $high),
            floats!("fmla" $low_total low_dot low_steps),
            floats!("fmla" $high_total high_dot high_steps),
        )
    };
    ($low:ident $high:ident, $total:ident, $at:literal, $steps:ident) => {
        concat!(
            floats!("uzp1" low_dot $low $high),
            to_floats!(low_dot low_dot),
            floats!("fmla" $total low_dot $steps),
        )
    };
}

/// Adds totals times scales to `out`.
macro_rules! add_pair {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(pair, "scales"),
            load_out!(low_y high_y $at),
            floats!("fmla" low_y $low_total pair),
            floats!("fmla" high_y $high_total pair),
            store_out!(low_y high_y $at),
        )
    };
    ($low:ident $high:ident, $total:ident, $at:literal) => {
        concat!(
            load_row!(pair, "scales"),
            "ldr q", r!(low_y), ", [{out}, #", $at, "]\n",
            floats!("fmla" low_y $total pair),
            "str q", r!(low_y), ", [{out}, #", $at, "]\n",
        )
    };
}

/// Begins an activation group.
macro_rules! begin {
    ($lines:ident) => {
        concat!(load_strip!(even), $lines!(begin_pair))
    };
}

/// Ends a block whose multipliers are in `$this`, and begins the next, whose are in the other.
macro_rules! next {
    ($lines:ident $this:ident, $next:ident) => {
        concat!(
            load_strip!($next),
            floats!("fsub" $this $this $next),
            double_steps!($this),
            $lines!(next_pair $this),
        )
    };
}

macro_rules! double_steps {
    ($steps:ident) => {
        concat!(floats!("zip1" low_steps $steps $steps), floats!("zip2" high_steps $steps $steps))
    };
}

/// Ends the last block of a group.
macro_rules! last {
    ($lines:ident $this:ident) => {
        concat!(double_steps!($this), $lines!(last_pair $this))
    };
}

/// Eight columns of three rows.
macro_rules! load_pair_and_row {
    ($($last:ident)?) => {
        load_x_3!(x0 x1 $($last)?)
    };
}

block_ends!(begin_3 next_3 last_3: lines_3, even, odd);
pair_steps!(products_3: load_pair_and_row two_pairs; lines_3: add_up_3 = add_pair);
block_ends!(begin_5 next_5 last_5: lines_5, even, odd);
pair_steps!(products_5: load_x_5 three_pairs; lines_5: add_up_5 = add_pair);
block_ends!(begin_6 next_6 last_6: lines_6, even, odd);
pair_steps!(products_6: load_x_6 three_pairs; lines_6: add_up_6 = add_pair);
block_ends!(begin_7 next_7 last_7: lines_7, even, odd);
pair_steps!(products_7: load_x_7 four_pairs; lines_7: add_up_7 = add_pair);
block_ends!(begin_8 next_8 last_8: lines_8, even, odd);
pair_steps!(products_8: load_x_8 four_pairs; lines_8: add_up_8 = add_pair);

gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_3x16c8: 3 by 1, constants begin_3 products_3 next_3 last_3 add_up_3, columns_bytes = in(reg) 24_usize);
gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_5x16c8: 5 by 1, constants begin_5 products_5 next_5 last_5 add_up_5, columns_bytes = in(reg) 40_usize);
gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_6x16c8: 6 by 1, constants begin_6 products_6 next_6 last_6 add_up_6);
gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_7x16c8: 7 by 1, constants begin_7 products_7 next_7 last_7 add_up_7, columns_bytes = in(reg) 56_usize);
gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_8x16c8: 8 by 1, constants begin_8 products_8 next_8 last_8 add_up_8);
