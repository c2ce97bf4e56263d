//! Tiles of two rows, all strips at once, and of three and four, two strips at a time. Pairs of rows, as
//! `smmla` sums them, are parted at the end of a block: scales then need not stand twice.

use std::arch::asm;

use super::super::super::super::neon::registers::{
    block_ends, floats, load_4, registers, to_floats,
};
use super::super::super::super::neondot::gemm::{any_blocks, load_out, one_block, store_out};
use super::super::super::super::packed::tile::Q8Tile;
use super::super::super::pairs::{NR, PANEL_BLOCK_B2 as PANEL_BLOCK};
use crate::quant::bcml1::BLOCK;

registers! {
    // Sums of each strip with two rows, or of two strips with a pair and then the other: of a strip's first two
    // rows, of the others.
    low0 = 0, low1 = 1, low2 = 2, low3 = 3, high0 = 4, high1 = 5, high2 = 6, high3 = 7,
    // Totals of the two rows of each of these; of a row without another the second is not used.
    total0 = 12, total1 = 13, total2 = 14, total3 = 15, total4 = 16, total5 = 17, total6 = 18, total7 = 19,
    // Each row's sum of activations; scales of even blocks and of odd ones; mask of low codes.
    x_sums = 8, even = 9, odd = 10, mask = 11,
    // Bytes of a strip, which become high codes, and low codes; activations.
    byte0 = 24, byte1 = 25, byte2 = 26, byte3 = 27, code0 = 20, code1 = 21, code2 = 22, code3 = 23,
    x0 = 28, x1 = 29, x2 = 30, x3 = 31,
    // At the end of a block: zeros of the next, their products with its scales, differences of scales; each
    // strip's differences, 16 times as large; rows' sums.
    zeros = 24, offsets0 = 22, offsets1 = 23, less0 = 25, less1 = 26,
    steps0 = 28, steps1 = 29, steps2 = 30, steps3 = 31,
    dot0 = 20, dot1 = 21, dot2 = 22, dot3 = 23, dot4 = 24, dot5 = 25, dot6 = 26, dot7 = 27,
    // At the end of an activation group: scales of two pairs, or of a pair and a row; a pair's totals as its results
    // stand; results.
    pair0 = 28, pair1 = 29, row = 29, low_total = 20, high_total = 21, y0 = 24, y1 = 25,
}

/// A pair and a row by a strip of a block.
macro_rules! strip_by_3 {
    ($next:literal $low0:ident $high0:ident $low1:ident $high1:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", $next),
            load_x_3!(x0 x1), load_x_3!(x2 x3),
            split!(byte0 byte1),
            smmla_pair!(code0 code1 x0: $low0 $high0), smmla_pair!(code0 code1 x1: $low1 $high1),
            smmla_pair!(byte0 byte1 x2: $low0 $high0), smmla_pair!(byte0 byte1 x3: $low1 $high1),
            load_x_3!(x0 x1), load_x_3!(x2 x3 last),
            split!(byte2 byte3),
            smmla_pair!(code0 code1 x0: $low0 $high0), smmla_pair!(code0 code1 x1: $low1 $high1),
            smmla_pair!(byte2 byte3 x2: $low0 $high0), smmla_pair!(byte2 byte3 x3: $low1 $high1),
        )
    };
}

/// A block's products.
macro_rules! products_2 {
    ($parity:ident) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", "#64"),
            load_4!("16b" x0 x1 x2 x3, "x", "#64"),
            strip!(x0 x1 x2 x3: low0 high0, "#64"), strip!(x0 x1 x2 x3: low1 high1, "#64"),
            strip!(x0 x1 x2 x3: low2 high2, "{to_next}"), strip!(x0 x1 x2 x3: low3 high3),
        )
    };
}

macro_rules! products_3 {
    ($parity:ident) => {
        concat!(
            strip_by_3!("#64" low0 high0 low1 high1),
            "sub {x}, {x}, #96\n",
            strip_by_3!("{to_next}" low2 high2 low3 high3),
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

/// One line per strip and pair of rows: `$line!(low high, dot0 dot1, [total lane, total lane], steps, half offsets)`.
///
/// `low`, `high`: the strip's accumulators. `dot0`, `dot1`: integer sums of its two rows. `total lane`: a row's total,
/// and its lane among the activation sums. `steps`: the strip's scale differences. `half offsets`: its half of the
/// products of scales and zero points.
macro_rules! lines_2 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, dot0 dot1, [total0 0, total1 2], steps0, low offsets0),
            $line!(low1 high1, dot2 dot3, [total2 0, total3 2], steps1, high offsets0),
            $line!(low2 high2, dot4 dot5, [total4 0, total5 2], steps2, low offsets1),
            $line!(low3 high3, dot6 dot7, [total6 0, total7 2], steps3, high offsets1),
        )
    };
}

macro_rules! lines_3 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, dot0 dot1, [total0 0, total1 2], steps0, low offsets0),
            $line!(low1 high1, dot2 dot3, [total2 4], steps0, low offsets0),
            $line!(low2 high2, dot4 dot5, [total4 0, total5 2], steps1, high offsets0),
            $line!(low3 high3, dot6 dot7, [total6 4], steps1, high offsets0),
        )
    };
}

macro_rules! lines_4 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, dot0 dot1, [total0 0, total1 2], steps0, low offsets0),
            $line!(low1 high1, dot2 dot3, [total2 4, total3 6], steps0, low offsets0),
            $line!(low2 high2, dot4 dot5, [total4 0, total5 2], steps1, high offsets0),
            $line!(low3 high3, dot6 dot7, [total6 4, total7 6], steps1, high offsets0),
        )
    };
}

/// Makes sums zero, and totals what the first block's zeros take.
macro_rules! begin_sums {
    ($low:ident $high:ident, $dot0:ident $dot1:ident, [$($total:ident $lane:literal),*], $steps:ident, $half:ident $offsets:ident) => {
        concat!(
            clear_sums!($low $high),
            $(wide_by_lane!("smull" $half $total $offsets x_sums $lane),)*
        )
    };
}

/// Adds what the next block's zeros take.
macro_rules! add_zeros {
    ($low:ident $high:ident, $dot0:ident $dot1:ident, [$($total:ident $lane:literal),*], $steps:ident, $half:ident $offsets:ident) => {
        concat!($(wide_by_lane!("smlal" $half $total $offsets x_sums $lane),)*)
    };
}

/// Parts a pair's sums into its rows'.
macro_rules! part_sums {
    ($low:ident $high:ident, $dot0:ident $dot1:ident, [$a:ident $i:literal, $b:ident $j:literal], $($rest:tt)*) => {
        concat!(ints!("uzp1" $dot0 $low $high), ints!("uzp2" $dot1 $low $high))
    };
    ($low:ident $high:ident, $dot0:ident $dot1:ident, [$a:ident $i:literal], $($rest:tt)*) => {
        ints!("uzp1" $dot0 $low $high)
    };
}

/// Subtracts these.
macro_rules! subtract_sums {
    ($low:ident $high:ident, $dot0:ident $dot1:ident, [$a:ident $i:literal, $b:ident $j:literal],
     $steps:ident, $($rest:tt)*) => {
        concat!(ints!("mls" $a $dot0 $steps), ints!("mls" $b $dot1 $steps))
    };
    ($low:ident $high:ident, $dot0:ident $dot1:ident, [$a:ident $i:literal], $steps:ident, $($rest:tt)*) => {
        ints!("mls" $a $dot0 $steps)
    };
}

/// Loads a block's scales and sums of activations, and multiplies scales by zeros.
macro_rules! load_parameters_2 {
    ($scales:ident) => {
        concat!(
            "ldp q", r!($scales), ", q", r!(zeros), ", [{parameters}], #288\n",
            "ldr d", r!(x_sums), ", [{sums}], #8\n",
            bytes_to_8!("umull" offsets0 $scales zeros "8b"),
            bytes_to_8!("umull2" offsets1 $scales zeros "16b"),
        )
    };
}

/// Loads the parameters of two strips, and the activation sums of four rows.
macro_rules! load_parameters_4 {
    ($scales:ident) => {
        concat!("ldr q", r!(x_sums), ", [{sums}], #16\n", load_two_strips!($scales))
    };
}

/// Loads the parameters of two strips, and the activation sums of three rows.
macro_rules! load_parameters_3 {
    ($scales:ident) => {
        concat!(
            "ldr d",
            r!(x_sums),
            ", [{sums}], #8\n",
            "ld1 {{v",
            r!(x_sums),
            ".s}}[2], [{sums}], #4\n",
            load_two_strips!($scales),
        )
    };
}

macro_rules! load_two_strips {
    ($scales:ident) => {
        concat!(
            "ldr d", r!(zeros), ", [{parameters}, #16]\n",
            "ld1 {{v", r!($scales), ".8b}}, [{parameters}], {block_bytes}\n",
            bytes_to_8!("umull" offsets0 $scales zeros "8b"),
        )
    };
}

macro_rules! begin_2 {
    () => {
        concat!(load_parameters_2!(even), lines_2!(begin_sums))
    };
}

/// Begins an activation group, of two strips.
macro_rules! begin {
    ($load_parameters:ident $lines:ident) => {
        concat!($load_parameters!(even), $lines!(begin_sums))
    };
}

/// Makes steps of differences: of all strips, or of two.
macro_rules! steps_of_four_strips {
    () => {
        concat!(
            steps_of_two_strips!(),
            sixteen_times!("sshll" steps2 less1 "4h"), sixteen_times!("sshll2" steps3 less1 "8h"),
        )
    };
}

macro_rules! steps_of_two_strips {
    () => {
        concat!(
            sixteen_times!("sshll" steps0 less0 "4h"), sixteen_times!("sshll2" steps1 less0 "8h"),
        )
    };
}

/// Ends a block whose scales are in `$this`, and begins the next.
macro_rules! next_of_2 {
    ($this:ident $next:ident) => {
        concat!(
            load_parameters_2!($next),
            bytes_to_8!("usubl" less0 $this $next "8b"),
            bytes_to_8!("usubl2" less1 $this $next "16b"),
            lines_2!(add_zeros),
            steps_of_four_strips!(),
            lines_2!(part_sums),
            lines_2!(subtract_sums),
        )
    };
}

/// Ends a block of two strips whose scales are in `$this`, and begins the next.
macro_rules! next {
    ($load_parameters:ident $lines:ident $this:ident, $next:ident) => {
        concat!(
            $load_parameters!($next),
            bytes_to_8!("usubl" less0 $this $next "8b"),
            $lines!(add_zeros),
            steps_of_two_strips!(),
            $lines!(part_sums),
            $lines!(subtract_sums),
        )
    };
}

macro_rules! next_2 {
    (even) => {
        next_of_2!(even odd)
    };
    (odd) => {
        next_of_2!(odd even)
    };
}

macro_rules! last_2 {
    ($this:ident) => {
        concat!(
            widen_bytes!("ushll" less0 $this "8b"), widen_bytes!("ushll2" less1 $this "16b"),
            steps_of_four_strips!(),
            lines_2!(part_sums),
            lines_2!(subtract_sums),
        )
    };
}

/// Ends the last block of a group, of two strips.
macro_rules! last {
    ($load_parameters:ident $lines:ident $this:ident) => {
        concat!(
            widen_bytes!("ushll" less0 $this "8b"),
            steps_of_two_strips!(),
            $lines!(part_sums),
            $lines!(subtract_sums),
        )
    };
}

block_ends!(begin_3 next_3 last_3: load_parameters_3 lines_3, even, odd);
block_ends!(begin_4 next_4 last_4: load_parameters_4 lines_4, even, odd);

/// Subtracts totals of a pair, or of a row, times scales from a strip of `out`.
macro_rules! add_out {
    ($a:ident $b:ident $pair:ident $at:literal) => {
        concat!(
            load_out!(y0 y1 $at),
            ints!("zip1" low_total $a $b),
            ints!("zip2" high_total $a $b),
            to_floats!(low_total low_total),
            to_floats!(high_total high_total),
            floats!("fmls" y0 low_total $pair),
            floats!("fmls" y1 high_total $pair),
            store_out!(y0 y1 $at),
        )
    };
    ($a:ident $row:ident $at:literal) => {
        concat!(
            "ldr q", r!(y0), ", [{out}, #", $at, "]\n",
            to_floats!($a $a),
            floats!("fmls" y0 $a $row),
            "str q", r!(y0), ", [{out}, #", $at, "]\n",
        )
    };
}

macro_rules! add_out_2 {
    () => {
        concat!(
            load_pair!(pair0, "scales"),
            add_out!(total0 total1 pair0 0), add_out!(total2 total3 pair0 32),
            add_out!(total4 total5 pair0 64), add_out!(total6 total7 pair0 96),
        )
    };
}

macro_rules! add_out_3 {
    () => {
        concat!(
            load_pair!(pair0, "scales"), load_row!(row, "scales"),
            add_out!(total0 total1 pair0 0), add_out!(total2 row 32),
            add_out!(total4 total5 pair0 48), add_out!(total6 row 80),
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

gemm_few_b2!(gemm_q8_b2_f32_2x16c8: 2 by 4, nothing begin_2 products_2 next_2 last_2 add_out_2 nothing);
gemm_few_b2!(gemm_q8_b2_f32_3x16c8: 3 by 2, nothing begin_3 products_3 next_3 last_3 add_out_3 nothing);
gemm_few_b2!(gemm_q8_b2_f32_4x16c8: 4 by 2, nothing begin_4 products_4 next_4 last_4 add_out_4 nothing);
