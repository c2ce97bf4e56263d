//! Tiles of two and four rows, two strips at a time. Pairs of rows, as `smmla` sums them, are parted at the
//! end of a block: parameters then need not stand twice.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::super::neon::registers::{
    block_ends, floats, floats_by_lane, load_4, registers, to_floats,
};
use super::super::super::super::neondot::gemm::{
    any_blocks, gemm_few_q4, gemm_few_q4_groups, load_out, load_strips, one_block, store_out, widen,
};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::pairs::{NR, PANEL_BLOCK};
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of up to two pairs with the first strip, then with the other: of its first two rows, of the
    // others.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, high0 = 4, high1 = 5, high2 = 6, high3 = 7,
    // Totals of up to four rows with the first strip, then with the other.
    total0 = 8, total1 = 9, total2 = 10, total3 = 11, total4 = 12, total5 = 13, total6 = 14, total7 = 15,
    // Mask of low codes.
    mask = 20,
    // Multipliers of the two strips, which become steps, in even blocks and in odd ones.
    even0 = 18, even1 = 19, odd0 = 21, odd1 = 22,
    // Bytes of a strip, which become high codes, and low codes of two of them; activations.
    byte0 = 24, byte1 = 25, byte2 = 26, byte3 = 27, code0 = 16, code1 = 17,
    x0 = 28, x1 = 29, x2 = 30, x3 = 31,
    // At the end of a block: parameters of the next as they are packed, then their offsets; its sums of
    // activations; two rows' sums of products.
    low_offsets = 24, high_offsets = 25, x_sums = 28, dot0 = 16, dot1 = 17,
    // At the end of an activation group: two pairs' scales, a pair's totals as its results stand, results.
    pair0 = 28, pair1 = 29, low_total = 16, high_total = 17, y0 = 24, y1 = 25,
}

/// A pair by a strip of a block.
macro_rules! strip_by_2 {
    ($next:literal $low:ident $high:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            split!(byte0 byte1),
            smmla_pair!(code0 code1 x0: $low $high), smmla_pair!(byte0 byte1 x1: $low $high),
            split!(byte2 byte3),
            smmla_pair!(code0 code1 x2: $low $high), smmla_pair!(byte2 byte3 x3: $low $high),
        )
    };
}

/// A block's products with two rows.
macro_rules! products_2 {
    ($parity:ident) => {
        concat!(
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            strip_by_2!("#64" low0 high0),
            strip_by_2!("{to_next}" low1 high1),
        )
    };
}

macro_rules! products_4 {
    ($parity:ident) => {
        concat!(
            strip_by_4!("#64" low0 high0 low1 high1),
            "sub {x}, {x}, #128\n",
            strip_by_4!("{to_next}" low2 high2 low3 high3),
        )
    };
}

/// Loads values of two rows.
macro_rules! load_rows_2 {
    ($to:ident $from:literal) => {
        concat!("ldr d", r!($to), ", [{", $from, "}], #8\n")
    };
}

/// Loads a value of each of four rows.
macro_rules! load_rows_4 {
    ($to:ident $from:literal) => {
        concat!("ldr q", r!($to), ", [{", $from, "}], #16\n")
    };
}

/// A line for each pair and strip: its sums, its rows' totals and lanes, the strip's offsets and steps.
macro_rules! lines_2 {
    ($line:ident $($low_steps:ident $high_steps:ident)?) => {
        concat!(
            $line!(low0 high0, total0 0, total1 1, low_offsets $($low_steps)?),
            $line!(low1 high1, total2 0, total3 1, high_offsets $($high_steps)?),
        )
    };
}

macro_rules! lines_4 {
    ($line:ident $($low_steps:ident $high_steps:ident)?) => {
        concat!(
            $line!(low0 high0, total0 0, total1 1, low_offsets $($low_steps)?),
            $line!(low1 high1, total2 2, total3 3, low_offsets $($low_steps)?),
            $line!(low2 high2, total4 0, total5 1, high_offsets $($high_steps)?),
            $line!(low3 high3, total6 2, total7 3, high_offsets $($high_steps)?),
        )
    };
}

/// Makes a pair's sums zero, and its totals what the first block's offsets add.
macro_rules! begin_pair {
    ($low:ident $high:ident, $a:ident $i:literal, $b:ident $j:literal, $offsets:ident) => {
        concat!(
            "movi v", r!($low), ".2d, #0\nmovi v", r!($high), ".2d, #0\n",
            floats_by_lane!("fmul" $a $offsets x_sums $i),
            floats_by_lane!("fmul" $b $offsets x_sums $j),
        )
    };
}

/// Adds a block to the totals of a pair with a strip, and what the next block's offsets add.
macro_rules! next_pair {
    ($low:ident $high:ident, $a:ident $i:literal, $b:ident $j:literal, $offsets:ident $steps:ident) => {
        concat!(
            last_pair!($low $high, $a $i, $b $j, $offsets $steps),
            floats_by_lane!("fmla" $a $offsets x_sums $i),
            floats_by_lane!("fmla" $b $offsets x_sums $j),
        )
    };
}

/// Adds a block to them.
macro_rules! last_pair {
    ($low:ident $high:ident, $a:ident $i:literal, $b:ident $j:literal, $offsets:ident $steps:ident) => {
        concat!(
            floats!("uzp1" dot0 $low $high),
            floats!("uzp2" dot1 $low $high),
            to_floats!(dot0 dot0),
            to_floats!(dot1 dot1),
            floats!("fmla" $a dot0 $steps),
            floats!("fmla" $b dot1 $steps),
        )
    };
}

/// Begins an activation group.
macro_rules! begin {
    ($load_rows:ident $lines:ident) => {
        concat!(load_strips!(even0 even1), $load_rows!(x_sums "sums"), $lines!(begin_pair))
    };
}

/// Ends a block whose multipliers are in `$low` and `$high`, and begins the next, whose are in the others.
macro_rules! next {
    ($load_rows:ident $lines:ident $low:ident $high:ident, $next_low:ident $next_high:ident) => {
        concat!(
            load_strips!($next_low $next_high),
            floats!("fsub" $low $low $next_low),
            floats!("fsub" $high $high $next_high),
            $load_rows!(x_sums "sums"),
            $lines!(next_pair $low $high),
        )
    };
}

/// Ends the last block of a group.
macro_rules! last {
    ($load_rows:ident $lines:ident $low:ident $high:ident) => {
        $lines!(last_pair $low $high)
    };
}

block_ends!(begin_2 next_2 last_2: load_rows_2 lines_2, even0 even1, odd0 odd1);
block_ends!(begin_4 next_4 last_4: load_rows_4 lines_4, even0 even1, odd0 odd1);

/// Adds a pair's totals times its scales to a strip of `out`.
macro_rules! add_out {
    ($a:ident $b:ident $pair:ident $at:literal) => {
        concat!(
            floats!("zip1" low_total $a $b),
            floats!("zip2" high_total $a $b),
            load_out!(y0 y1 $at),
            floats!("fmla" y0 low_total $pair),
            floats!("fmla" y1 high_total $pair),
            store_out!(y0 y1 $at),
        )
    };
}

macro_rules! add_out_2 {
    () => {
        concat!(
            load_pair!(pair0, "scales"),
            add_out!(total0 total1 pair0 0), add_out!(total2 total3 pair0 32),
        )
    };
}

macro_rules! add_out_4 {
    () => {
        concat!(
            load_pair!(pair0, "scales"), load_pair!(pair1, "scales"),
            add_out!(total0 total1 pair0 0), add_out!(total2 total3 pair1 32),
            add_out!(total4 total5 pair0 64), add_out!(total6 total7 pair1 96),
        )
    };
}

gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_2x16c8: 2 by 2, constants begin_2 products_2 next_2 last_2 add_out_2);
gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_4x16c8: 4 by 2, constants begin_4 products_4 next_4 last_4 add_out_4);
