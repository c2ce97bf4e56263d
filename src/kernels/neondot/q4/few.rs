//! Tiles of two to four rows, which take 4-bit weights as they are packed, two strips at a time.
//!
//! Of each row and strip of the first kind there is a sum of low codes, `L`, and of the other a sum of bytes
//! as they are, `B = L + 16 * Σ (code - 8) * q`. Both are floats by their bits. So `B - L` is exact, and
//! with 128 times the sum of activations it is 16 times the high codes' sum; the other
//! strip's steps are a sixteenth. All of these are integers below 2^24.

use std::arch::asm;

use super::super::super::neon::registers::{floats, floats_by_lane, load_2, load_4, registers};
use super::super::super::packed::tile::{Q8Tile, ZERO};
use super::super::gemm::{NO_PARAMETERS, NR, gemm_few_q4, load_out, load_steps, store_out, widen};
use super::single::PANEL_BLOCK;
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of low codes of each row with the first strip, and of bytes as they are.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, bytes0 = 4, bytes1 = 5, bytes2 = 6, bytes3 = 7,
    // Totals of each row with the first strip and with the other.
    low_total0 = 8, low_total1 = 9, low_total2 = 10, low_total3 = 11,
    high_total0 = 12, high_total1 = 13, high_total2 = 14, high_total3 = 15,
    // Of each row the sum of activations since the group's begin; 128; zero of sums; what leaves low
    // codes; a sixteenth.
    running = 16, c128 = 17, zero = 18, mask = 19, sixteenth = 20,
    // Bytes of four columns each, and low codes of these; activations.
    byte0 = 24, byte1 = 25, byte2 = 26, byte3 = 27, code = 21, x0 = 28, x1 = 29, x2 = 30, x3 = 31,
    // At the end of a block: its parameters as they are packed, then their offsets; steps; the next
    // block's multipliers; sums of activations; a sum of products.
    low_offsets = 24, high_offsets = 25, low_steps = 28, high_steps = 29, low_next = 26, high_next = 27,
    x_sums = 30, low_dot = 31, high_dot = 26,
    // At the end of an activation group: scales, results.
    x_scales = 28, y0 = 24, y1 = 25,
}

/// Four columns of two strips: each row's sums, a register and a lane of its activations.
macro_rules! four_columns {
    ($byte:ident: $($bytes:ident $low:ident $x:ident $lane:literal),*) => {
        concat!(
            "and v", r!(code), ".16b, v", r!($byte), ".16b, v", r!(mask), ".16b\n",
            $(sdot!($bytes $byte $x $lane),)*
            $(sdot!($low code $x $lane),)*
        )
    };
}

/// Sixteen columns of two strips by two rows.
macro_rules! columns_2 {
    ($next:literal) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_2!(x0 x1, "x"),
            four_columns!(byte0: bytes0 low0 x0 0, bytes1 low1 x0 1),
            four_columns!(byte1: bytes0 low0 x0 2, bytes1 low1 x0 3),
            four_columns!(byte2: bytes0 low0 x1 0, bytes1 low1 x1 1),
            four_columns!(byte3: bytes0 low0 x1 2, bytes1 low1 x1 3),
        )
    };
}

/// The same by three rows.
macro_rules! columns_3 {
    ($next:literal) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            "ld1 {{v", r!(x0), ".16b, v", r!(x1), ".16b, v", r!(x2), ".16b}}, [{x}], #48\n",
            four_columns!(byte0: bytes0 low0 x0 0, bytes1 low1 x0 1, bytes2 low2 x0 2),
            four_columns!(byte1: bytes0 low0 x0 3, bytes1 low1 x1 0, bytes2 low2 x1 1),
            four_columns!(byte2: bytes0 low0 x1 2, bytes1 low1 x1 3, bytes2 low2 x2 0),
            four_columns!(byte3: bytes0 low0 x2 1, bytes1 low1 x2 2, bytes2 low2 x2 3),
        )
    };
}

/// The same by four rows.
macro_rules! columns_4 {
    ($next:literal) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            four_columns!(byte0: bytes0 low0 x0 0, bytes1 low1 x0 1, bytes2 low2 x0 2, bytes3 low3 x0 3),
            four_columns!(byte1: bytes0 low0 x1 0, bytes1 low1 x1 1, bytes2 low2 x1 2, bytes3 low3 x1 3),
            four_columns!(byte2: bytes0 low0 x2 0, bytes1 low1 x2 1, bytes2 low2 x2 2, bytes3 low3 x2 3),
            four_columns!(byte3: bytes0 low0 x3 0, bytes1 low1 x3 1, bytes2 low2 x3 2, bytes3 low3 x3 3),
        )
    };
}

/// Loads values of two rows.
macro_rules! load_rows_2 {
    ($to:ident $from:literal) => {
        concat!("ldr d", r!($to), ", [{", $from, "}], #8\n")
    };
}

/// Of three.
macro_rules! load_rows_3 {
    ($to:ident $from:literal) => {
        concat!(load_rows_2!($to $from), "ld1 {{v", r!($to), ".s}}[2], [{", $from, "}], #4\n")
    };
}

/// Of four.
macro_rules! load_rows_4 {
    ($to:ident $from:literal) => {
        concat!("ldr q", r!($to), ", [{", $from, "}], #16\n")
    };
}

/// A line for each row: its sums, its totals, its lane.
macro_rules! lines_2 {
    ($line:ident $($name:literal)?) => {
        concat!(
            $line!($($name)? low0 bytes0, low_total0 high_total0, 0),
            $line!($($name)? low1 bytes1, low_total1 high_total1, 1),
        )
    };
}

macro_rules! lines_3 {
    ($line:ident $($name:literal)?) => {
        concat!(
            lines_2!($line $($name)?),
            $line!($($name)? low2 bytes2, low_total2 high_total2, 2),
        )
    };
}

macro_rules! lines_4 {
    ($line:ident $($name:literal)?) => {
        concat!(
            lines_3!($line $($name)?),
            $line!($($name)? low3 bytes3, low_total3 high_total3, 3),
        )
    };
}

/// Makes a row's sums zero.
macro_rules! begin_sums {
    ($low:ident $bytes:ident, $low_total:ident $high_total:ident, $lane:literal) => {
        concat!(copy!($low zero), copy!($bytes zero))
    };
}

macro_rules! copy {
    ($to:ident $from:ident) => {
        concat!("mov v", r!($to), ".16b, v", r!($from), ".16b\n")
    };
}

/// Adds a block to a row's totals, or (`fmul`) begins them.
macro_rules! end_row {
    ($name:literal $low:ident $bytes:ident, $low_total:ident $high_total:ident, $lane:literal) => {
        concat!(
            floats!("fsub" low_dot $low zero),
            floats!("fsub" high_dot $bytes $low),
            floats_by_lane!($name $low_total low_offsets x_sums $lane),
            floats_by_lane!($name $high_total high_offsets x_sums $lane),
            floats_by_lane!("fmla" high_dot c128 running $lane),
            floats!("fmla" $low_total low_dot low_steps),
            floats!("fmla" $high_total high_dot high_steps),
        )
    };
}

/// A block: its products, its steps and offsets, its totals.
macro_rules! block {
    ($name:literal $columns:ident $load_rows:ident $lines:ident) => {
        concat!(
            $columns!("#64"), $columns!("{to_next}"),
            load_steps!(),
            $load_rows!(x_sums "sums"),
            floats!("fadd" running running x_sums),
            floats!("fmul" high_steps high_steps sixteenth),
            $lines!(end_row $name),
        )
    };
}

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

/// Copies a number that is an operand to each lane.
macro_rules! fill {
    ($to:ident $from:literal) => {
        concat!("dup v", r!($to), ".4s, {", $from, ":w}\n")
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

macro_rules! begin_2 {
    () => {
        concat!(lines_2!(begin_sums), "movi v", r!(running), ".2d, #0\n")
    };
}

macro_rules! begin_3 {
    () => {
        concat!(lines_3!(begin_sums), "movi v", r!(running), ".2d, #0\n")
    };
}

macro_rules! begin_4 {
    () => {
        concat!(lines_4!(begin_sums), "movi v", r!(running), ".2d, #0\n")
    };
}

macro_rules! block_2 {
    ($name:literal) => {
        block!($name columns_2 load_rows_2 lines_2)
    };
}

macro_rules! block_3 {
    ($name:literal) => {
        block!($name columns_3 load_rows_3 lines_3)
    };
}

macro_rules! block_4 {
    ($name:literal) => {
        block!($name columns_4 load_rows_4 lines_4)
    };
}

gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_2x16c4: 2 constants begin_2 block_2 add_out_2,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_3x16c4: 3 constants begin_3 block_3 add_out_3,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
gemm_few_q4!("neon,dotprod" gemm_q8_q4_f32_4x16c4: 4 constants begin_4 block_4 add_out_4,
    zero = in(reg) ZERO.to_bits(), c128 = in(reg) 128_f32.to_bits(),
    sixteenth = in(reg) 0.0625_f32.to_bits());
