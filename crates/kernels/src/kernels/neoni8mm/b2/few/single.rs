//! A single row, all strips at once.

use std::arch::asm;

use super::super::super::super::neon::registers::{floats, load_4, registers, to_floats};
use super::super::super::super::neondot::gemm::{any_blocks, load_out, one_block, store_out};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::pairs::{NR, PANEL_BLOCK_B2 as PANEL_BLOCK};
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of each strip, each twice: of its first two rows, of the others; their totals.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, high0 = 4, high1 = 5, high2 = 6, high3 = 7,
    total0 = 16, total1 = 17, total2 = 18, total3 = 19,
    // Scales of even blocks and of odd ones; mask of low codes; 32 activations, eight twice each; their sum.
    even = 8, odd = 9, mask = 10, eight0 = 11, eight1 = 12, eight2 = 13, eight3 = 14, x_sum = 15,
    // Bytes of a strip, which become high codes, and low codes.
    byte0 = 20, byte1 = 21, byte2 = 22, byte3 = 23, code0 = 24, code1 = 25, code2 = 26, code3 = 27,
    // At the end of a block: zeros of the next, their products with its scales, differences of scales; each
    // strip's differences, 16 times as large, and its sums.
    zeros = 24, offsets0 = 11, offsets1 = 12, less0 = 13, less1 = 14,
    steps0 = 20, steps1 = 21, steps2 = 22, steps3 = 23, dot0 = 24, dot1 = 25, dot2 = 26, dot3 = 27,
    // Results; at the end of an activation group its scale.
    y0 = 28, y1 = 29, y2 = 30, y3 = 31, x_scale = 24,
}

/// A block's products.
macro_rules! products_1 {
    ($parity:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", "#64"),
            load_eights!(),
            strip!(eight0 eight1 eight2 eight3: low0 high0, "#64"), strip!(eight0 eight1 eight2 eight3: low1 high1, "#64"),
            strip!(eight0 eight1 eight2 eight3: low2 high2, "{to_next}"), strip!(eight0 eight1 eight2 eight3: low3 high3),
        )
    };
}

/// Loads a block's scales and its sum of activations, and multiplies scales by zeros.
macro_rules! load_parameters {
    ($scales:ident) => {
        concat!(
            "ldp q", r!($scales), ", q", r!(zeros), ", [{parameters}], #288\n",
            "ldr s", r!(x_sum), ", [{sums}], #4\n",
            bytes_to_8!("umull" offsets0 $scales zeros "8b"),
            bytes_to_8!("umull2" offsets1 $scales zeros "16b"),
        )
    };
}

/// Adds what the block's zeros take, or begins with it.
macro_rules! add_zeros {
    ($name:literal) => {
        concat!(
            wide_by_lane!($name low total0 offsets0 x_sum 0),
            wide_by_lane!($name high total1 offsets0 x_sum 0),
            wide_by_lane!($name low total2 offsets1 x_sum 0),
            wide_by_lane!($name high total3 offsets1 x_sum 0),
        )
    };
}

/// Subtracts sums by how much scales are less in the next block.
macro_rules! subtract_sums {
    () => {
        concat!(
            sixteen_times!("sshll" steps0 less0 "4h"), sixteen_times!("sshll2" steps1 less0 "8h"),
            sixteen_times!("sshll" steps2 less1 "4h"), sixteen_times!("sshll2" steps3 less1 "8h"),
            ints!("uzp1" dot0 low0 high0), ints!("uzp1" dot1 low1 high1),
            ints!("uzp1" dot2 low2 high2), ints!("uzp1" dot3 low3 high3),
            ints!("mls" total0 dot0 steps0), ints!("mls" total1 dot1 steps1),
            ints!("mls" total2 dot2 steps2), ints!("mls" total3 dot3 steps3),
        )
    };
}

macro_rules! begin {
    () => {
        concat!(
            clear_sums!(low0 high0), clear_sums!(low1 high1),
            clear_sums!(low2 high2), clear_sums!(low3 high3),
            load_parameters!(even),
            add_zeros!("smull"),
        )
    };
}

/// Ends a block whose scales are in `$this`, and begins the next.
macro_rules! next_of {
    ($this:ident $next:ident) => {
        concat!(
            load_parameters!($next),
            bytes_to_8!("usubl" less0 $this $next "8b"),
            bytes_to_8!("usubl2" less1 $this $next "16b"),
            add_zeros!("smlal"),
            subtract_sums!(),
        )
    };
}

macro_rules! next {
    (even) => {
        next_of!(even odd)
    };
    (odd) => {
        next_of!(odd even)
    };
}

macro_rules! last {
    ($this:ident) => {
        concat!(
            widen_bytes!("ushll" less0 $this "8b"), widen_bytes!("ushll2" less1 $this "16b"),
            subtract_sums!(),
        )
    };
}

macro_rules! add_out {
    () => {
        concat!(
            "ld1r {{v", r!(x_scale), ".4s}}, [{scales}], #4\n",
            to_floats!(total0 total0), to_floats!(total1 total1),
            to_floats!(total2 total2), to_floats!(total3 total3),
            floats!("fmls" y0 total0 x_scale), floats!("fmls" y1 total1 x_scale),
            floats!("fmls" y2 total2 x_scale), floats!("fmls" y3 total3 x_scale),
        )
    };
}

macro_rules! load_results {
    () => {
        concat!(load_out!(y0 y1 0), load_out!(y2 y3 32))
    };
}

macro_rules! store_results {
    () => {
        concat!(store_out!(y0 y1 0), store_out!(y2 y3 32))
    };
}

gemm_few_b2!(gemv_q8_b2_f32_1x16c8: 1 by 4, load_results begin products_1 next last add_out store_results);
