//! Tiles of five and six rows. Registers hold totals of one or two rows, and memory the others.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::super::neon::registers::{
    block_ends, floats, floats_by_lane, load_2, load_4, registers,
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
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, low4 = 4, low5 = 5,
    bytes0 = 6, bytes1 = 7, bytes2 = 8, bytes3 = 9, bytes4 = 10, bytes5 = 11,
    // Totals of the first row; of five rows those of the second too.
    low_total0 = 12, high_total0 = 13, low_total1 = 5, high_total1 = 11,
    // Sums of products, at the end of a block.
    low_dot = 14, high_dot = 15,
    // Sums of activations since the group's begin: of four rows, then of two, with a sixteenth in the last
    // lane; 128; zero of sums; mask of low codes.
    running = 16, running_last = 17, c128 = 18, zero = 19, mask = 20,
    // Low codes of four columns, bytes of four columns each.
    code = 21, byte0 = 22, byte1 = 23, byte2 = 24, byte3 = 25,
    // Multipliers of the two strips, which become steps, are in the first two of these in even blocks, in
    // the last two in odd ones; activations in the four others.
    a0 = 26, a1 = 27, b0 = 28, b1 = 29, c0 = 30, c1 = 31,
    // At the end of a block: parameters of the next as they are packed, then their offsets; its sums of
    // activations; totals from memory.
    low_offsets = 24, high_offsets = 25, x_sums = 28, x_sums_last = 29, low_total = 22, high_total = 23,
    // At the end of an activation group: scales, results.
    x_scales = 28, x_scales_last = 29, y0 = 24, y1 = 25,
}

/// Sixteen columns of two strips by five rows.
macro_rules! columns_5 {
    ($next:literal $x0:ident $x1:ident $x2:ident $x3:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_4!("16b" $x0 $x1 $x2 $x3, "x", "#64"),
            four_columns!(byte0: bytes0 low0 $x0 0, bytes1 low1 $x0 1, bytes2 low2 $x0 2, bytes3 low3 $x0 3,
                bytes4 low4 $x1 0),
            load_rows_4!($x0 "x"),
            four_columns!(byte1: bytes0 low0 $x1 1, bytes1 low1 $x1 2, bytes2 low2 $x1 3, bytes3 low3 $x2 0,
                bytes4 low4 $x2 1),
            four_columns!(byte2: bytes0 low0 $x2 2, bytes1 low1 $x2 3, bytes2 low2 $x3 0, bytes3 low3 $x3 1,
                bytes4 low4 $x3 2),
            four_columns!(byte3: bytes0 low0 $x3 3, bytes1 low1 $x0 0, bytes2 low2 $x0 1, bytes3 low3 $x0 2,
                bytes4 low4 $x0 3),
        )
    };
}

/// Columns by six rows.
macro_rules! columns_6 {
    ($next:literal $x0:ident $x1:ident $x2:ident $x3:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_4!("16b" $x0 $x1 $x2 $x3, "x", "#64"),
            four_columns!(byte0: bytes0 low0 $x0 0, bytes1 low1 $x0 1, bytes2 low2 $x0 2, bytes3 low3 $x0 3,
                bytes4 low4 $x1 0, bytes5 low5 $x1 1),
            four_columns!(byte1: bytes0 low0 $x1 2, bytes1 low1 $x1 3, bytes2 low2 $x2 0, bytes3 low3 $x2 1,
                bytes4 low4 $x2 2, bytes5 low5 $x2 3),
            load_2!($x0 $x1, "x"),
            four_columns!(byte2: bytes0 low0 $x3 0, bytes1 low1 $x3 1, bytes2 low2 $x3 2, bytes3 low3 $x3 3,
                bytes4 low4 $x0 0, bytes5 low5 $x0 1),
            four_columns!(byte3: bytes0 low0 $x0 2, bytes1 low1 $x0 3, bytes2 low2 $x1 0, bytes3 low3 $x1 1,
                bytes4 low4 $x1 2, bytes5 low5 $x1 3),
        )
    };
}

macro_rules! products_5 {
    (even) => {
        concat!(columns_5!("#64" b0 b1 c0 c1), columns_5!("{to_next}" b0 b1 c0 c1))
    };
    (odd) => {
        concat!(columns_5!("#64" a0 a1 b0 b1), columns_5!("{to_next}" a0 a1 b0 b1))
    };
}

macro_rules! products_6 {
    (even) => {
        concat!(columns_6!("#64" b0 b1 c0 c1), columns_6!("{to_next}" b0 b1 c0 c1))
    };
    (odd) => {
        concat!(columns_6!("#64" a0 a1 b0 b1), columns_6!("{to_next}" a0 a1 b0 b1))
    };
}

/// A line for each row: its sums, its totals, registers or a place in memory, its sum of activations since the
/// group's begin and in the next block.
macro_rules! lines_5 {
    ($line:ident $($steps:ident)*) => {
        concat!(
            $line!($($steps)*, low0 bytes0, [low_total0 high_total0], running x_sums 0),
            $line!($($steps)*, low1 bytes1, [low_total1 high_total1], running x_sums 1),
            $line!($($steps)*, low2 bytes2, [64], running x_sums 2),
            $line!($($steps)*, low3 bytes3, [96], running x_sums 3),
            $line!($($steps)*, low4 bytes4, [128], running_last x_sums_last 0),
        )
    };
}

macro_rules! lines_6 {
    ($line:ident $($steps:ident)*) => {
        concat!(
            $line!($($steps)*, low0 bytes0, [low_total0 high_total0], running x_sums 0),
            $line!($($steps)*, low1 bytes1, [32], running x_sums 1),
            $line!($($steps)*, low2 bytes2, [64], running x_sums 2),
            $line!($($steps)*, low3 bytes3, [96], running x_sums 3),
            $line!($($steps)*, low4 bytes4, [128], running_last x_sums_last 0),
            $line!($($steps)*, low5 bytes5, [160], running_last x_sums_last 1),
        )
    };
}

/// Loads a row's totals.
macro_rules! load_totals {
    ($low:ident $high:ident $at:literal) => {
        concat!("ldp q", r!($low), ", q", r!($high), ", [{totals}, #", $at, "]\n")
    };
}

/// Stores those that were loaded.
macro_rules! store_totals {
    ($at:literal) => {
        concat!("stp q", r!(low_total), ", q", r!(high_total), ", [{totals}, #", $at, "]\n")
    };
}

macro_rules! begin_any_row {
    (, $low:ident $bytes:ident, [$at:literal], $running:ident $x_sums:ident $lane:literal) => {
        concat!(
            begin_row!(, $low $bytes, [low_total high_total], $running $x_sums $lane),
            store_totals!($at),
        )
    };
    ($($in_registers:tt)*) => {
        begin_row!($($in_registers)*)
    };
}

macro_rules! next_any_row {
    ($low_steps:ident $high_steps:ident, $low:ident $bytes:ident, [$at:literal],
     $running:ident $x_sums:ident $lane:literal) => {
        concat!(
            load_totals!(low_total high_total $at),
            next_row!($low_steps $high_steps, $low $bytes, [low_total high_total], $running $x_sums $lane),
            store_totals!($at),
        )
    };
    ($($in_registers:tt)*) => {
        next_row!($($in_registers)*)
    };
}

/// Totals from memory go to the row's sums, which are done with.
macro_rules! last_any_row {
    ($low_steps:ident $high_steps:ident, $low:ident $bytes:ident, [$at:literal],
     $running:ident $x_sums:ident $lane:literal) => {
        concat!(
            dots!($low $bytes, $running $lane),
            load_totals!($low $bytes $at),
            floats!("fmla" $low low_dot $low_steps),
            floats!("fmla" $bytes high_dot $high_steps),
        )
    };
    ($($in_registers:tt)*) => {
        last_row!($($in_registers)*)
    };
}

/// Begins an activation group.
macro_rules! begin {
    ($load_rows:ident $lines:ident) => {
        concat!(
            load_strips!(a0 a1),
            $load_rows!(running running_last "sums"),
            $lines!(begin_any_row),
            "mov v", r!(running_last), ".s[3], {sixteenth:w}\n",
        )
    };
}

/// Ends a block whose multipliers are in `$low` and `$high`, and begins the next, whose are in the others.
macro_rules! next {
    ($load_rows:ident $lines:ident $low:ident $high:ident, $next_low:ident $next_high:ident) => {
        concat!(
            load_strips!($next_low $next_high),
            floats!("fsub" $low $low $next_low),
            floats!("fsub" $high $high $next_high),
            floats_by_lane!("fmul" $high $high running_last 3),
            $load_rows!(x_sums x_sums_last "sums"),
            $lines!(next_any_row $low $high),
            floats!("fadd" running running x_sums),
            floats!("fadd" running_last running_last x_sums_last),
        )
    };
}

/// Ends the last block of a group.
macro_rules! last {
    ($load_rows:ident $lines:ident $low:ident $high:ident) => {
        concat!(
            floats_by_lane!("fmul" $high $high running_last 3),
            $lines!(last_any_row $low $high),
        )
    };
}

block_ends!(begin_5 next_5 last_5: load_rows_5 lines_5, a0 a1, c0 c1);
block_ends!(begin_6 next_6 last_6: load_rows_6 lines_6, a0 a1, c0 c1);

/// Adds two totals times scales of rows to `out`.
macro_rules! add_two {
    ($a:ident $x_a:ident $i:literal, $b:ident $x_b:ident $j:literal, $at:literal) => {
        concat!(
            load_out!(y0 y1 $at),
            floats_by_lane!("fmla" y0 $a $x_a $i),
            floats_by_lane!("fmla" y1 $b $x_b $j),
            store_out!(y0 y1 $at),
        )
    };
}

macro_rules! add_out_5 {
    () => {
        concat!(
            load_rows_5!(x_scales x_scales_last "scales"),
            add_two!(low_total0 x_scales 0, low_total1 x_scales 1, 0),
            add_two!(low2 x_scales 2, low3 x_scales 3, 32),
            add_two!(low4 x_scales_last 0, high_total0 x_scales 0, 64),
            add_two!(high_total1 x_scales 1, bytes2 x_scales 2, 96),
            add_two!(bytes3 x_scales 3, bytes4 x_scales_last 0, 128),
        )
    };
}

macro_rules! add_out_6 {
    () => {
        concat!(
            load_rows_6!(x_scales x_scales_last "scales"),
            add_two!(low_total0 x_scales 0, low1 x_scales 1, 0),
            add_two!(low2 x_scales 2, low3 x_scales 3, 32),
            add_two!(low4 x_scales_last 0, low5 x_scales_last 1, 64),
            add_two!(high_total0 x_scales 0, bytes1 x_scales 1, 96),
            add_two!(bytes2 x_scales 2, bytes3 x_scales 3, 128),
            add_two!(bytes4 x_scales_last 0, bytes5 x_scales_last 1, 160),
        )
    };
}

/// Fills the registers that stay as they are.
macro_rules! constants {
    () => {
        concat!(fill!(zero "zero"), fill!(c128 "c128"), "movi v", r!(mask), ".16b, #15\n")
    };
}

gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_5x16c4: 5 by 2, constants begin_5 products_5 next_5 last_5 add_out_5,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_6x16c4: 6 by 2, constants begin_6 products_6 next_6 last_6 add_out_6,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
