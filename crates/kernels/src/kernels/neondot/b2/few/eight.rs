//! Tiles of seven and eight rows. Registers hold totals of the first four, and memory the others.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::super::neon::registers::{
    floats_by_lane, load_2, load_4, registers, store_4, to_floats,
};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::gemm::{
    NR, PANEL_BLOCK_B2 as PANEL_BLOCK, any_blocks, load_out, one_block, widen,
};
use crate::quant::bcml1::BLOCK;

registers! {
    // For each cell: sums of low codes, sums of bytes; for the first four also totals of both strips.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, low4 = 4, low5 = 5, low6 = 6, low7 = 7,
    bytes0 = 8, bytes1 = 9, bytes2 = 10, bytes3 = 11, bytes4 = 12, bytes5 = 16, bytes6 = 17, bytes7 = 18,
    low_total0 = 19, low_total1 = 20, low_total2 = 21, low_total3 = 22,
    high_total0 = 23, high_total1 = 24, high_total2 = 25, high_total3 = 26,
    // Activations.
    x0 = 13, x1 = 14, x2 = 15,
    // Mask of low codes; bytes of four columns each, then low codes.
    mask = 27, byte0 = 28, byte1 = 29, byte2 = 30, byte3 = 31,
    // At the end of a block: its scales, which become steps, and those of the next; zeros of that, which become
    // products with scales, as of low codes do; sums of activations of four rows and of the others, which
    // instructions that take 16 bits of them want in one of the first 16 registers; 16 times the high codes'
    // sums; totals from memory.
    scales = 30, next_scales = 31, low_steps0 = 30, high_steps0 = 31, zeros = 28, high_zeros = 28, low_zeros = 29,
    x_sums = 13, x_sums_last = 14, high = 15, low_total = 13, high_total = 27,
    // At the end of an activation group: scales of rows, results.
    x_scales = 13, x_scales_last = 14, y0 = 28, y1 = 29, y2 = 30, y3 = 31,
}

/// The cells behind the fourth, whose totals are in memory.
macro_rules! own_cell {
    (4 $line:ident $($rest:tt)*) => {
        $line!(low4 bytes4 [0], $($rest)*)
    };
    (5 $line:ident $($rest:tt)*) => {
        $line!(low5 bytes5 [32], $($rest)*)
    };
    (6 $line:ident $($rest:tt)*) => {
        $line!(low6 bytes6 [64], $($rest)*)
    };
    (7 $line:ident $($rest:tt)*) => {
        $line!(low7 bytes7 [96], $($rest)*)
    };
}

/// Loads a cell's totals.
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

/// Sixteen columns of a pair of strips by seven rows.
macro_rules! columns_7 {
    ($next:literal) => {
        concat!(
            load_bytes!("w" $next),
            load_2!(x0 x1, "x"),
            products!(byte0 [0 x0 0, 1 x0 1, 2 x0 2, 3 x0 3, 4 x1 0, 5 x1 1, 6 x1 2]),
            load_2!(x2 x0, "x"),
            products!(byte1 [0 x1 3, 1 x2 0, 2 x2 1, 3 x2 2, 4 x2 3, 5 x0 0, 6 x0 1]),
            load_2!(x1 x2, "x"),
            products!(byte2 [0 x0 2, 1 x0 3, 2 x1 0, 3 x1 1, 4 x1 2, 5 x1 3, 6 x2 0]),
            load_rows_4!(x0 "x"),
            products!(byte3 [0 x2 1, 1 x2 2, 2 x2 3, 3 x0 0, 4 x0 1, 5 x0 2, 6 x0 3]),
        )
    };
}

/// Columns by eight rows.
macro_rules! columns_8 {
    ($next:literal) => {
        concat!(
            load_bytes!("w" $next),
            four_columns_8!(byte0),
            four_columns_8!(byte1),
            four_columns_8!(byte2),
            four_columns_8!(byte3),
        )
    };
}

macro_rules! four_columns_8 {
    ($byte:ident) => {
        concat!(
            load_2!(x0 x1, "x"),
            products!($byte [0 x0 0, 1 x0 1, 2 x0 2, 3 x0 3, 4 x1 0, 5 x1 1, 6 x1 2, 7 x1 3]),
        )
    };
}

/// A block's products with seven rows.
macro_rules! products_7 {
    ($parity:ident) => {
        concat!(make_mask!(), columns_7!("#64"), columns_7!("{to_next}"))
    };
}

macro_rules! products_8 {
    ($parity:ident) => {
        concat!(make_mask!(), columns_8!("#64"), columns_8!("{to_next}"))
    };
}

/// A line for each cell: its pair of strips, the only one, and its row's sum of activations, a register and a
/// lane of 16 bits.
macro_rules! lines_7 {
    ($line:ident) => {
        concat!(
            cell!(0 $line first x_sums 0), cell!(1 $line first x_sums 2),
            cell!(2 $line first x_sums 4), cell!(3 $line first x_sums 6),
            cell!(4 $line first x_sums_last 0), cell!(5 $line first x_sums_last 2),
            cell!(6 $line first x_sums_last 4),
        )
    };
}

macro_rules! lines_8 {
    ($line:ident) => {
        concat!(lines_7!($line), cell!(7 $line first x_sums_last 6))
    };
}

/// Loads values of seven rows.
macro_rules! load_rows_7 {
    ($to:ident $to_last:ident $from:literal) => {
        concat!(load_rows_4!($to $from), load_rows_3!($to_last $from))
    };
}

ends_of_blocks!(begin_7 next_7 last_7: 1 lines_7 load_rows_7!(x_sums x_sums_last "sums"));
ends_of_blocks!(begin_8 next_8 last_8: 1 lines_8 load_2!(x_sums x_sums_last, "sums"));

macro_rules! add_out_7 {
    () => {
        concat!(
            load_rows_7!(x_scales x_scales_last "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, low_total2 x_scales 2, low_total3 x_scales 3),
            add_4!(["#64"] low4 x_scales_last 0, low5 x_scales_last 1, low6 x_scales_last 2, high_total0 x_scales 0),
            add_4!(["#64"] high_total1 x_scales 1, high_total2 x_scales 2, high_total3 x_scales 3, bytes4 x_scales_last 0),
            add_2!(["#-192"] bytes5 x_scales_last 1, bytes6 x_scales_last 2),
        )
    };
}

macro_rules! add_out_8 {
    () => {
        concat!(
            load_2!(x_scales x_scales_last, "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, low_total2 x_scales 2, low_total3 x_scales 3),
            add_4!(["#64"] low4 x_scales_last 0, low5 x_scales_last 1, low6 x_scales_last 2, low7 x_scales_last 3),
            add_4!(["#64"] high_total0 x_scales 0, high_total1 x_scales 1, high_total2 x_scales 2, high_total3 x_scales 3),
            add_4!(["{to_first}"] bytes4 x_scales_last 0, bytes5 x_scales_last 1, bytes6 x_scales_last 2, bytes7 x_scales_last 3),
        )
    };
}

gemm_few!(gemm_q8_b2_f32_7x16c4: 7 by 1, begin_7 products_7 next_7 last_7 add_out_7);
gemm_few!(gemm_q8_b2_f32_8x16c4: 8 by 1, begin_8 products_8 next_8 last_8 add_out_8);
