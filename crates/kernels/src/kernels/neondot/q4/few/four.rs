//! Tiles of two to four rows, all of whose totals registers hold.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::super::neon::registers::{
    block_ends, floats, floats_by_lane, load_4, registers,
};
use super::super::super::super::packed::tile::{Q8Tile, ZERO};
use super::super::super::gemm::{
    NR, any_blocks, gemm_few_q4, gemm_few_q4_groups, load_out, load_strips, one_block, store_out,
    widen,
};
use super::super::single::PANEL_BLOCK;
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of low codes of each row with the first strip, and of bytes as they are.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, bytes0 = 4, bytes1 = 5, bytes2 = 6, bytes3 = 7,
    // Totals of each row with the first strip and with the other.
    low_total0 = 8, low_total1 = 9, low_total2 = 10, low_total3 = 11,
    high_total0 = 12, high_total1 = 13, high_total2 = 14, high_total3 = 15,
    // Each row's sum of activations since the group's begin; a sixteenth; 128; zero of sums; what
    // leaves low codes.
    running = 16, sixteenth = 17, c128 = 18, zero = 19, mask = 20,
    // Low codes of four columns, bytes of four columns each.
    code = 21, byte0 = 22, byte1 = 23, byte2 = 24, byte3 = 25,
    // Multipliers of the two strips, which become steps, are in the first two of these in even blocks, in
    // the last two in odd ones; activations in the four others.
    a0 = 26, a1 = 27, b0 = 28, b1 = 29, c0 = 30, c1 = 31,
    // At the end of a block: parameters of the next as they are packed, then their offsets; its sums of
    // activations; sums of products.
    low_offsets = 24, high_offsets = 25, x_sums = 28, low_dot = 21, high_dot = 22,
    // At the end of an activation group: scales, results.
    x_scales = 28, y0 = 24, y1 = 25,
}

/// Sixteen columns of two strips by two rows.
macro_rules! columns_2 {
    ($next:literal $x0:ident $x1:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            four_columns!(byte0: bytes0 low0 $x0 0, bytes1 low1 $x0 1),
            four_columns!(byte1: bytes0 low0 $x0 2, bytes1 low1 $x0 3),
            four_columns!(byte2: bytes0 low0 $x1 0, bytes1 low1 $x1 1),
            four_columns!(byte3: bytes0 low0 $x1 2, bytes1 low1 $x1 3),
        )
    };
}

/// Columns by three rows.
macro_rules! columns_3 {
    ($next:literal $x0:ident $x1:ident $x2:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            "ld1 {{v", r!($x0), ".16b, v", r!($x1), ".16b, v", r!($x2), ".16b}}, [{x}], #48\n",
            four_columns!(byte0: bytes0 low0 $x0 0, bytes1 low1 $x0 1, bytes2 low2 $x0 2),
            four_columns!(byte1: bytes0 low0 $x0 3, bytes1 low1 $x1 0, bytes2 low2 $x1 1),
            four_columns!(byte2: bytes0 low0 $x1 2, bytes1 low1 $x1 3, bytes2 low2 $x2 0),
            four_columns!(byte3: bytes0 low0 $x2 1, bytes1 low1 $x2 2, bytes2 low2 $x2 3),
        )
    };
}

/// Columns by four rows.
macro_rules! columns_4 {
    ($next:literal $x0:ident $x1:ident $x2:ident $x3:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_4!("16b" $x0 $x1 $x2 $x3, "x", "#64"),
            four_columns!(byte0: bytes0 low0 $x0 0, bytes1 low1 $x0 1, bytes2 low2 $x0 2, bytes3 low3 $x0 3),
            four_columns!(byte1: bytes0 low0 $x1 0, bytes1 low1 $x1 1, bytes2 low2 $x1 2, bytes3 low3 $x1 3),
            four_columns!(byte2: bytes0 low0 $x2 0, bytes1 low1 $x2 1, bytes2 low2 $x2 2, bytes3 low3 $x2 3),
            four_columns!(byte3: bytes0 low0 $x3 0, bytes1 low1 $x3 1, bytes2 low2 $x3 2, bytes3 low3 $x3 3),
        )
    };
}

/// A block's products with two rows.
macro_rules! products_2 {
    (even) => {
        products_2!(b0 b1 c0 c1)
    };
    (odd) => {
        products_2!(a0 a1 b0 b1)
    };
    ($x0:ident $x1:ident $x2:ident $x3:ident) => {
        concat!(
            load_4!("16b" $x0 $x1 $x2 $x3, "x", "#64"),
            columns_2!("#64" $x0 $x1),
            columns_2!("{to_next}" $x2 $x3),
        )
    };
}

macro_rules! products_3 {
    (even) => {
        concat!(columns_3!("#64" b0 b1 c0), columns_3!("{to_next}" b0 b1 c0))
    };
    (odd) => {
        concat!(columns_3!("#64" a0 a1 b0), columns_3!("{to_next}" a0 a1 b0))
    };
}

macro_rules! products_4 {
    (even) => {
        concat!(columns_4!("#64" b0 b1 c0 c1), columns_4!("{to_next}" b0 b1 c0 c1))
    };
    (odd) => {
        concat!(columns_4!("#64" a0 a1 b0 b1), columns_4!("{to_next}" a0 a1 b0 b1))
    };
}

/// A line for each row: its sums, its totals, its sum of activations since the group's begin and in the next
/// block.
macro_rules! lines_2 {
    ($line:ident $($steps:ident)*) => {
        concat!(
            $line!($($steps)*, low0 bytes0, [low_total0 high_total0], running x_sums 0),
            $line!($($steps)*, low1 bytes1, [low_total1 high_total1], running x_sums 1),
        )
    };
}

macro_rules! lines_3 {
    ($line:ident $($steps:ident)*) => {
        concat!(
            lines_2!($line $($steps)*),
            $line!($($steps)*, low2 bytes2, [low_total2 high_total2], running x_sums 2),
        )
    };
}

macro_rules! lines_4 {
    ($line:ident $($steps:ident)*) => {
        concat!(
            lines_3!($line $($steps)*),
            $line!($($steps)*, low3 bytes3, [low_total3 high_total3], running x_sums 3),
        )
    };
}

/// Begins an activation group.
macro_rules! begin {
    ($load_rows:ident $lines:ident) => {
        concat!(load_strips!(a0 a1), $load_rows!(running "sums"), $lines!(begin_row))
    };
}

/// Ends a block whose multipliers are in `$low` and `$high`, and begins the next, whose are in the others.
macro_rules! next {
    ($load_rows:ident $lines:ident $low:ident $high:ident, $next_low:ident $next_high:ident) => {
        concat!(
            load_strips!($next_low $next_high),
            floats!("fsub" $low $low $next_low),
            floats!("fsub" $high $high $next_high),
            floats!("fmul" $high $high sixteenth),
            $load_rows!(x_sums "sums"),
            $lines!(next_row $low $high),
            floats!("fadd" running running x_sums),
        )
    };
}

/// Ends the last block of a group.
macro_rules! last {
    ($load_rows:ident $lines:ident $low:ident $high:ident) => {
        concat!(floats!("fmul" $high $high sixteenth), $lines!(last_row $low $high))
    };
}

block_ends!(begin_2 next_2 last_2: load_rows_2 lines_2, a0 a1, c0 c1);
block_ends!(begin_3 next_3 last_3: load_rows_3 lines_3, a0 a1, c0 c1);
block_ends!(begin_4 next_4 last_4: load_rows_4 lines_4, a0 a1, c0 c1);

/// Adds two totals times scales of rows to a strip, or two, of `out`.
macro_rules! add_out {
    ($a:ident $i:literal, $b:ident $j:literal, $at:literal) => {
        concat!(
            load_out!(y0 y1 $at),
            floats_by_lane!("fmla" y0 $a x_scales $i),
            floats_by_lane!("fmla" y1 $b x_scales $j),
            store_out!(y0 y1 $at),
        )
    };
}

macro_rules! add_out_2 {
    () => {
        concat!(
            load_rows_2!(x_scales "scales"),
            add_out!(low_total0 0, low_total1 1, 0), add_out!(high_total0 0, high_total1 1, 32),
        )
    };
}

macro_rules! add_out_3 {
    () => {
        concat!(
            load_rows_3!(x_scales "scales"),
            add_out!(low_total0 0, low_total1 1, 0), add_out!(low_total2 2, high_total0 0, 32),
            add_out!(high_total1 1, high_total2 2, 64),
        )
    };
}

macro_rules! add_out_4 {
    () => {
        concat!(
            load_rows_4!(x_scales "scales"),
            add_out!(low_total0 0, low_total1 1, 0), add_out!(low_total2 2, low_total3 3, 32),
            add_out!(high_total0 0, high_total1 1, 64), add_out!(high_total2 2, high_total3 3, 96),
        )
    };
}

/// Fills the registers that stay as they are.
macro_rules! constants {
    () => {
        concat!(
            fill!(zero "zero"), fill!(c128 "c128"), fill!(sixteenth "sixteenth"),
            "movi v", r!(mask), ".16b, #15\n",
        )
    };
}

gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_2x16c4: 2 by 2, constants begin_2 products_2 next_2 last_2 add_out_2,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_3x16c4: 3 by 2, constants begin_3 products_3 next_3 last_3 add_out_3,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_4x16c4: 4 by 2, constants begin_4 products_4 next_4 last_4 add_out_4,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
