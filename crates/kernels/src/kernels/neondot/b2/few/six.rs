//! Tiles of one to six rows, all of whose totals registers hold.

use std::arch::asm;
use std::mem::MaybeUninit;

use super::super::super::super::neon::registers::{
    floats_by_lane, load_2, load_4, registers, store_4, to_floats,
};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::gemm::{
    NR, PANEL_BLOCK_B2 as PANEL_BLOCK, any_blocks, load_out, load_x, one_block, widen,
};
use crate::quant::bcml1::BLOCK;

registers! {
    // For each cell: sums of low codes, sums of bytes, totals of both strips.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, low4 = 4, low5 = 16,
    bytes0 = 5, bytes1 = 6, bytes2 = 7, bytes3 = 8, bytes4 = 9, bytes5 = 17,
    low_total0 = 10, low_total1 = 11, low_total2 = 12, low_total3 = 19, low_total4 = 26, low_total5 = 18,
    high_total0 = 20, high_total1 = 21, high_total2 = 22, high_total3 = 23, high_total4 = 24, high_total5 = 25,
    // Activations; the last two if there is no sixth cell.
    x0 = 13, x1 = 14, x2 = 15, x3 = 16, x4 = 25,
    // Bytes of the other pair of strips, of a single row.
    other0 = 22, other1 = 23, other2 = 24, other3 = 25,
    // Scales of an even block and of an odd one, if there is no sixth cell; if there is, of a block and of the
    // next, at the end of the first.
    even_scales = 17, odd_scales = 18, scales = 30, next_scales = 31,
    // Mask of low codes; bytes of four columns each, then low codes.
    mask = 27, byte0 = 28, byte1 = 29, byte2 = 30, byte3 = 31,
    // At the begin of a block: its zeros, which become products with scales, as of low codes do; sums of
    // activations of up to four rows and of others, which instructions that take 16 bits of them want in one of
    // the first 16 registers.
    zeros = 28, high_zeros = 28, low_zeros = 29, x_sums = 13, x_sums_last = 14,
    // At its end: steps of each strip, 16 times the high codes' sums.
    low_steps0 = 28, high_steps0 = 29, low_steps1 = 30, high_steps1 = 31, high = 15,
    // At the end of an activation group: scales of rows, results.
    x_scales = 13, x_scales_last = 14, y0 = 28, y1 = 29, y2 = 30, y3 = 31,
}

/// The cells behind the fourth.
macro_rules! own_cell {
    (4 $line:ident $($rest:tt)*) => {
        $line!(low4 bytes4 [low_total4 high_total4], $($rest)*)
    };
    (5 $line:ident $($rest:tt)*) => {
        $line!(low5 bytes5 [low_total5 high_total5], $($rest)*)
    };
}

/// Sixteen columns of both pairs of strips by a row.
macro_rules! columns_1 {
    ($next:literal: $x:ident) => {
        concat!(
            load_bytes!("w" $next),
            load_4!("16b" other0 other1 other2 other3, "second_w", $next),
            products!(
                byte0 [0 $x 0], other0 [1 $x 0], byte1 [0 $x 1], other1 [1 $x 1],
                byte2 [0 $x 2], other2 [1 $x 2], byte3 [0 $x 3], other3 [1 $x 3]
            ),
        )
    };
}

/// Columns of one pair by two rows.
macro_rules! columns_2 {
    ($w:literal $next:literal, $a:tt $b:tt: $x0:ident $x1:ident) => {
        concat!(
            load_bytes!($w $next),
            products!(
                byte0 [$a $x0 0, $b $x0 1], byte1 [$a $x0 2, $b $x0 3],
                byte2 [$a $x1 0, $b $x1 1], byte3 [$a $x1 2, $b $x1 3]
            ),
        )
    };
}

/// Columns by three rows.
macro_rules! columns_3 {
    ($w:literal $next:literal, $a:tt $b:tt $c:tt) => {
        concat!(
            load_bytes!($w $next),
            products!(
                byte0 [$a x0 0, $b x0 1, $c x0 2], byte1 [$a x0 3, $b x1 0, $c x1 1],
                byte2 [$a x1 2, $b x1 3, $c x2 0], byte3 [$a x2 1, $b x2 2, $c x2 3]
            ),
        )
    };
}

/// Columns by four rows, whose activations it loads.
macro_rules! columns_4 {
    ($next:literal) => {
        concat!(
            load_x!(),
            load_bytes!("w" $next),
            products!(
                byte0 [0 x0 0, 1 x0 1, 2 x0 2, 3 x0 3], byte1 [0 x1 0, 1 x1 1, 2 x1 2, 3 x1 3],
                byte2 [0 x2 0, 1 x2 1, 2 x2 2, 3 x2 3], byte3 [0 x3 0, 1 x3 1, 2 x3 2, 3 x3 3]
            ),
        )
    };
}

/// Columns by five rows.
macro_rules! columns_5 {
    ($next:literal) => {
        concat!(
            load_x!(),
            load_rows_4!(x4 "x"),
            load_bytes!("w" $next),
            products!(
                byte0 [0 x0 0, 1 x0 1, 2 x0 2, 3 x0 3, 4 x1 0], byte1 [0 x1 1, 1 x1 2, 2 x1 3, 3 x2 0, 4 x2 1],
                byte2 [0 x2 2, 1 x2 3, 2 x3 0, 3 x3 1, 4 x3 2], byte3 [0 x3 3, 1 x4 0, 2 x4 1, 3 x4 2, 4 x4 3]
            ),
        )
    };
}

/// Columns by six rows.
macro_rules! columns_6 {
    ($next:literal) => {
        concat!(
            load_bytes!("w" $next),
            eight_columns_6!(byte0 byte1),
            eight_columns_6!(byte2 byte3),
        )
    };
}

macro_rules! eight_columns_6 {
    ($a:ident $b:ident) => {
        concat!(
            load_3_x!(),
            products!(
                $a [0 x0 0, 1 x0 1, 2 x0 2, 3 x0 3, 4 x1 0, 5 x1 1],
                $b [0 x1 2, 1 x1 3, 2 x2 0, 3 x2 1, 4 x2 2, 5 x2 3]
            ),
        )
    };
}

/// A block's products with a row.
macro_rules! products_1 {
    ($parity:ident) => {
        concat!(
            load_2!(x0 x1, "x"),
            columns_1!("#64": x0),
            columns_1!("{to_next}": x1),
        )
    };
}

macro_rules! products_2 {
    ($parity:ident) => {
        concat!(
            load_x!(),
            columns_2!("w" "#64", 0 1: x0 x1),
            columns_2!("second_w" "#64", 2 3: x0 x1),
            columns_2!("w" "{to_next}", 0 1: x2 x3),
            columns_2!("second_w" "{to_next}", 2 3: x2 x3),
        )
    };
}

macro_rules! products_3 {
    ($parity:ident) => {
        concat!(
            load_3_x!(),
            columns_3!("w" "#64", 0 1 2),
            columns_3!("second_w" "#64", 3 4 5),
            load_3_x!(),
            columns_3!("w" "{to_next}", 0 1 2),
            columns_3!("second_w" "{to_next}", 3 4 5),
        )
    };
}

macro_rules! products_4 {
    ($parity:ident) => {
        concat!(columns_4!("#64"), columns_4!("{to_next}"))
    };
}

macro_rules! products_5 {
    ($parity:ident) => {
        concat!(columns_5!("#64"), columns_5!("{to_next}"))
    };
}

macro_rules! products_6 {
    ($parity:ident) => {
        concat!(columns_6!("#64"), columns_6!("{to_next}"))
    };
}

/// A line for each cell: its pair of strips, of those that are taken at once, and its row's sum of activations,
/// a register and a lane of 16 bits.
macro_rules! lines_1 {
    ($line:ident) => {
        concat!(cell!(0 $line first x_sums 0), cell!(1 $line second x_sums 0))
    };
}

macro_rules! lines_2 {
    ($line:ident) => {
        concat!(
            cell!(0 $line first x_sums 0), cell!(1 $line first x_sums 2),
            cell!(2 $line second x_sums 0), cell!(3 $line second x_sums 2),
        )
    };
}

macro_rules! lines_3 {
    ($line:ident) => {
        concat!(
            cell!(0 $line first x_sums 0), cell!(1 $line first x_sums 2), cell!(2 $line first x_sums 4),
            cell!(3 $line second x_sums 0), cell!(4 $line second x_sums 2), cell!(5 $line second x_sums 4),
        )
    };
}

macro_rules! lines_4 {
    ($line:ident) => {
        concat!(
            cell!(0 $line first x_sums 0), cell!(1 $line first x_sums 2),
            cell!(2 $line first x_sums 4), cell!(3 $line first x_sums 6),
        )
    };
}

macro_rules! lines_5 {
    ($line:ident) => {
        concat!(lines_4!($line), cell!(4 $line first x_sums_last 0))
    };
}

macro_rules! lines_6 {
    ($line:ident) => {
        concat!(lines_5!($line), cell!(5 $line first x_sums_last 2))
    };
}

/// Defines what tiles begin an activation group with, and end blocks with, if they have no sixth cell: registers
/// keep a block's scales.
macro_rules! ends_of_even_and_odd_blocks {
    ($begin:ident $next:ident $last:ident: $pairs:tt $lines:ident $($load_sums:tt)*) => {
        macro_rules! $begin {
            () => {
                begin!($lines even_scales, $($load_sums)*)
            };
        }

        macro_rules! $next {
            (even) => {
                next!($pairs $lines even_scales odd_scales, $($load_sums)*)
            };
            (odd) => {
                next!($pairs $lines odd_scales even_scales, $($load_sums)*)
            };
        }

        macro_rules! $last {
            (even) => {
                last!($pairs $lines even_scales)
            };
            (odd) => {
                last!($pairs $lines odd_scales)
            };
        }
    };
}

ends_of_even_and_odd_blocks!(begin_1 next_1 last_1: 2 lines_1 load_rows_1!(x_sums "sums"));
ends_of_even_and_odd_blocks!(begin_2 next_2 last_2: 2 lines_2 load_rows_2!(x_sums "sums"));
ends_of_even_and_odd_blocks!(begin_4 next_4 last_4: 1 lines_4 load_rows_4!(x_sums "sums"));
ends_of_even_and_odd_blocks!(begin_5 next_5 last_5: 1 lines_5 load_rows_5!(x_sums x_sums_last "sums"));

ends_of_blocks!(begin_3 next_3 last_3: 2 lines_3 load_rows_3!(x_sums "sums"));
ends_of_blocks!(begin_6 next_6 last_6: 1 lines_6 load_rows_6!(x_sums x_sums_last "sums"));

macro_rules! add_out_1 {
    () => {
        concat!(
            load_rows_1!(x_scales "scales"),
            add_4!([] low_total0 x_scales 0, high_total0 x_scales 0, low_total1 x_scales 0, high_total1 x_scales 0),
        )
    };
}

macro_rules! add_out_2 {
    () => {
        concat!(
            load_rows_2!(x_scales "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, high_total0 x_scales 0, high_total1 x_scales 1),
            add_4!(["{to_first}"] low_total2 x_scales 0, low_total3 x_scales 1, high_total2 x_scales 0, high_total3 x_scales 1),
        )
    };
}

macro_rules! add_out_3 {
    () => {
        concat!(
            load_rows_3!(x_scales "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, low_total2 x_scales 2, high_total0 x_scales 0),
            add_4!(["#64"] high_total1 x_scales 1, high_total2 x_scales 2, low_total3 x_scales 0, low_total4 x_scales 1),
            add_4!(["{to_first}"] low_total5 x_scales 2, high_total3 x_scales 0, high_total4 x_scales 1, high_total5 x_scales 2),
        )
    };
}

macro_rules! add_out_4 {
    () => {
        concat!(
            load_rows_4!(x_scales "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, low_total2 x_scales 2, low_total3 x_scales 3),
            add_4!(["{to_first}"] high_total0 x_scales 0, high_total1 x_scales 1, high_total2 x_scales 2, high_total3 x_scales 3),
        )
    };
}

macro_rules! add_out_5 {
    () => {
        concat!(
            load_rows_5!(x_scales x_scales_last "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, low_total2 x_scales 2, low_total3 x_scales 3),
            add_4!(["#64"] low_total4 x_scales_last 0, high_total0 x_scales 0, high_total1 x_scales 1,
                high_total2 x_scales 2),
            add_2!(["#-128"] high_total3 x_scales 3, high_total4 x_scales_last 0),
        )
    };
}

macro_rules! add_out_6 {
    () => {
        concat!(
            load_rows_6!(x_scales x_scales_last "scales"),
            add_4!(["#64"] low_total0 x_scales 0, low_total1 x_scales 1, low_total2 x_scales 2, low_total3 x_scales 3),
            add_4!(["#64"] low_total4 x_scales_last 0, low_total5 x_scales_last 1, high_total0 x_scales 0,
                high_total1 x_scales 1),
            add_4!(["{to_first}"] high_total2 x_scales 2, high_total3 x_scales 3, high_total4 x_scales_last 0,
                high_total5 x_scales_last 1),
        )
    };
}

gemm_few!(gemv_q8_b2_f32_1x16c4: 1 by 2, begin_1 products_1 next_1 last_1 add_out_1);
gemm_few!(gemm_q8_b2_f32_2x16c4: 2 by 2, begin_2 products_2 next_2 last_2 add_out_2);
gemm_few!(gemm_q8_b2_f32_3x16c4: 3 by 2, begin_3 products_3 next_3 last_3 add_out_3);
gemm_few!(gemm_q8_b2_f32_4x16c4: 4 by 1, begin_4 products_4 next_4 last_4 add_out_4);
gemm_few!(gemm_q8_b2_f32_5x16c4: 5 by 1, begin_5 products_5 next_5 last_5 add_out_5);
gemm_few!(gemm_q8_b2_f32_6x16c4: 6 by 1, begin_6 products_6 next_6 last_6 add_out_6);
