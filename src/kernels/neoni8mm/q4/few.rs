//! Tiles of two and four rows, which take 4-bit weights as they are packed, two strips at a time. What `smmla`
//! adds up for pairs is parted into rows at the end of a block: parameters then need not stand twice.

use std::arch::asm;

use super::super::super::neon::registers::{floats, floats_by_lane, load_4, registers, to_floats};
use super::super::super::neondot::gemm::{
    NO_PARAMETERS, gemm_few_q4, load_out, load_steps, store_out, widen,
};
use super::super::super::packed::tile::Q8Tile;
use super::super::pairs::{NR, PANEL_BLOCK};
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of up to two pairs with the first strip, then with the other: of its first two rows, of the
    // others.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, high0 = 4, high1 = 5, high2 = 6, high3 = 7,
    // Totals of up to four rows with the first strip, then with the other.
    total0 = 8, total1 = 9, total2 = 10, total3 = 11, total4 = 12, total5 = 13, total6 = 14, total7 = 15,
    // What leaves low codes.
    mask = 20,
    // Bytes of a strip, which become high codes, and low codes; activations.
    byte0 = 24, byte1 = 25, byte2 = 26, byte3 = 27, code0 = 16, code1 = 17, code2 = 18, code3 = 19,
    x0 = 28, x1 = 29, x2 = 30, x3 = 31,
    // At the end of a block: parameters of the first strip and of the other, as they are packed, then their
    // offsets; steps; the next block's multipliers; sums of activations; two rows' sums of products.
    low_offsets = 24, high_offsets = 25, low_steps = 28, high_steps = 29, low_next = 26, high_next = 27,
    x_sums = 30, dot0 = 31, dot1 = 26,
    // At the end of an activation group: two pairs' scales, a pair's totals as its results stand, results.
    pair0 = 28, pair1 = 29, low_total = 16, high_total = 17, y0 = 24, y1 = 25,
}

/// Loads a strip of a block and takes it apart.
macro_rules! load_codes {
    ($next:literal) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            split!(code0 byte0), split!(code1 byte1), split!(code2 byte2), split!(code3 byte3),
        )
    };
}

macro_rules! split {
    ($code:ident $byte:ident) => {
        concat!(
            "and v",
            r!($code),
            ".16b, v",
            r!($byte),
            ".16b, v",
            r!(mask),
            ".16b\n",
            "ushr v",
            r!($byte),
            ".16b, v",
            r!($byte),
            ".16b, #4\n",
        )
    };
}

/// A pair by a strip of a block.
macro_rules! strip_by_2 {
    ($low:ident $high:ident) => {
        concat!(
            smmla_pair!(code0 code1 x0: $low $high), smmla_pair!(byte0 byte1 x1: $low $high),
            smmla_pair!(code2 code3 x2: $low $high), smmla_pair!(byte2 byte3 x3: $low $high),
        )
    };
}

/// Two pairs by a strip of a block.
macro_rules! strip_by_4 {
    ($low0:ident $high0:ident $low1:ident $high1:ident) => {
        concat!(
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            smmla_pair!(code0 code1 x0: $low0 $high0), smmla_pair!(code0 code1 x1: $low1 $high1),
            smmla_pair!(byte0 byte1 x2: $low0 $high0), smmla_pair!(byte0 byte1 x3: $low1 $high1),
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            smmla_pair!(code2 code3 x0: $low0 $high0), smmla_pair!(code2 code3 x1: $low1 $high1),
            smmla_pair!(byte2 byte3 x2: $low0 $high0), smmla_pair!(byte2 byte3 x3: $low1 $high1),
        )
    };
}

/// Adds a block to the totals of a pair with a strip, or (`fmul`) begins them.
macro_rules! end_pair {
    ($name:literal $low:ident $high:ident, $a:ident $i:literal, $b:ident $j:literal,
     $offsets:ident $steps:ident) => {
        concat!(
            floats!("uzp1" dot0 $low $high),
            floats!("uzp2" dot1 $low $high),
            to_floats!(dot0 dot0),
            to_floats!(dot1 dot1),
            floats_by_lane!($name $a $offsets x_sums $i),
            floats_by_lane!($name $b $offsets x_sums $j),
            floats!("fmla" $a dot0 $steps),
            floats!("fmla" $b dot1 $steps),
        )
    };
}

macro_rules! block_2 {
    ($name:literal) => {
        concat!(
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            load_codes!("#64"), strip_by_2!(low0 high0),
            load_codes!("{to_next}"), strip_by_2!(low1 high1),
            load_steps!(),
            "ldr d", r!(x_sums), ", [{sums}], #8\n",
            end_pair!($name low0 high0, total0 0, total1 1, low_offsets low_steps),
            end_pair!($name low1 high1, total2 0, total3 1, high_offsets high_steps),
        )
    };
}

macro_rules! block_4 {
    ($name:literal) => {
        concat!(
            load_codes!("#64"), strip_by_4!(low0 high0 low1 high1),
            "sub {x}, {x}, #128\n",
            load_codes!("{to_next}"), strip_by_4!(low2 high2 low3 high3),
            load_steps!(),
            "ldr q", r!(x_sums), ", [{sums}], #16\n",
            end_pair!($name low0 high0, total0 0, total1 1, low_offsets low_steps),
            end_pair!($name low1 high1, total2 2, total3 3, low_offsets low_steps),
            end_pair!($name low2 high2, total4 0, total5 1, high_offsets high_steps),
            end_pair!($name low3 high3, total6 2, total7 3, high_offsets high_steps),
        )
    };
}

/// Makes sums zero.
macro_rules! clear {
    ($($sum:ident)*) => {
        concat!($("movi v", r!($sum), ".2d, #0\n",)*)
    };
}

macro_rules! begin_2 {
    () => {
        clear!(low0 high0 low1 high1)
    };
}

macro_rules! begin_4 {
    () => {
        clear!(low0 high0 low1 high1 low2 high2 low3 high3)
    };
}

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

macro_rules! constants {
    () => {
        concat!("movi v", r!(mask), ".16b, #15\n")
    };
}

gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_2x16c8: 2 constants begin_2 block_2 add_out_2);
gemm_few_q4!("neon,i8mm" gemm_q8_q4_f32_4x16c8: 4 constants begin_4 block_4 add_out_4);
