//! NEON with int8 matrix products: only products with packed weights differ from [`super::neondot`].
//!
//! `smmla` multiplies two rows of eight weights by two rows of eight activations. A sum holds the four results of two
//! pairs, weight rows first: `[w0 x0, w0 x1, w1 x0, w1 x1]`. A strip of four rows by 12 rows of activations has 12
//! sums, and 16 columns take 24 `smmla` for four loads of four registers each. The last row of an odd tile is paired
//! with itself, or with whatever follows it. Tiles of 12 and of eight rows, and of fewer rows of 4-bit weights, have
//! [`super::neondot`]'s loops. Results lie in the order of sums.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::ops::Range;

use super::neon::{self, load_floats, place_row};
use super::packed::layout::Layout;
use super::packed::table::{PART_BYTES, PackedTable, Unpack};
use super::table::Table;
use super::{neondot, peak};
use pairs::smmla;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    packed: Some(PackedTable {
        layout: Layout::NEON_I8MM,
        tiles_q8: &q8::TILES,
        tiles_q4: &q4::TILES,
        tiles_b2: &b2::TILES,
        run_tiles: runs::tiles,
        unpack_ggml: neon::unpack_ggml,
        place,
        // With 24 KiB of a tile's activations, as much as a small L2 has, and little more than an L1 of 32 KiB if only
        // a strip's quarter counts.
        part_bytes: 2 * PART_BYTES,
        unpack_b2: Some(Unpack {
            unpack: b2::unpack,
            packed_bytes: pairs::PANEL_BLOCK_B2,
            bytes: b2::UNPACKED_BLOCK,
        }),
        unpack_q4: Some(Unpack {
            unpack: q4::unpack,
            packed_bytes: pairs::PANEL_BLOCK,
            bytes: q4::UNPACKED_BLOCK,
        }),
    }),
    spin_int8,
    ..neondot::TABLE
};

/// The registers of tall tiles; a file may add other names for some of them.
macro_rules! tall_registers {
    ($($name:ident = $number:literal),* $(,)?) => {
        registers! {
            // Sums of six pairs of rows with the first two weight rows, then with the others.
            low0 = 0, low1 = 1, low2 = 2, low3 = 3, low4 = 4, low5 = 5,
            high0 = 6, high1 = 7, high2 = 8, high3 = 9, high4 = 10, high5 = 11,
            // Totals of the same pairs.
            low_total0 = 12, low_total1 = 13, low_total2 = 14, low_total3 = 15, low_total4 = 16, low_total5 = 17,
            high_total0 = 18, high_total1 = 19, high_total2 = 20, high_total3 = 21, high_total4 = 22,
            high_total5 = 23,
            // Weights: each register has eight columns of two rows; all four have 16 columns.
            w0 = 24, w1 = 25, w2 = 26, w3 = 27,
            // Activations: each register has eight columns of a pair.
            x0 = 28, x1 = 29, x2 = 30, x3 = 31,
            // For a single row of activations: each register has eight columns, twice.
            eight0 = 24, eight1 = 25, eight2 = 26, eight3 = 27,
            // At the end of an activation group: a pair's scales, twice, and its results.
            pair = 24, low_y = 25, high_y = 26,
            $($name = $number,)*
        }
    };
}

/// Adds products of two rows of weights with a pair of rows, eight columns each.
macro_rules! smmla {
    ($sum:ident $w:ident $x:ident) => {
        concat!("smmla v", r!($sum), ".4s, v", r!($w), ".16b, v", r!($x), ".16b\n")
    };
}

/// Two `smmla`: a pair of activations by the first two rows of weights and by the others.
macro_rules! smmla_pair {
    ($low_w:ident $high_w:ident $x:ident: $low:ident $high:ident) => {
        concat!(smmla!($low $low_w $x), smmla!($high $high_w $x))
    };
}

/// The products of sixteen columns of six pairs.
macro_rules! smmla_12_rows {
    ($next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            load_x!(),
            smmla_pair!(w0 w1 x0: low0 high0), smmla_pair!(w0 w1 x1: low1 high1),
            smmla_pair!(w0 w1 x2: low2 high2), smmla_pair!(w0 w1 x3: low3 high3),
            load_x!(),
            smmla_pair!(w0 w1 x0: low4 high4), smmla_pair!(w0 w1 x1: low5 high5),
            smmla_pair!(w2 w3 x2: low0 high0), smmla_pair!(w2 w3 x3: low1 high1),
            load_x!(),
            smmla_pair!(w2 w3 x0: low2 high2), smmla_pair!(w2 w3 x1: low3 high3),
            smmla_pair!(w2 w3 x2: low4 high4), smmla_pair!(w2 w3 x3: low5 high5),
        )
    };
}

/// Multiplies and adds the products of four pairs of rows.
macro_rules! smmla_8_rows {
    ($next:literal) => {
        concat!(
            load_4!("16b" w0 w1 w2 w3, "w", $next),
            load_x!(),
            smmla_pair!(w0 w1 x0: low0 high0), smmla_pair!(w0 w1 x1: low1 high1),
            smmla_pair!(w0 w1 x2: low2 high2), smmla_pair!(w0 w1 x3: low3 high3),
            load_x!(),
            smmla_pair!(w2 w3 x0: low0 high0), smmla_pair!(w2 w3 x1: low1 high1),
            smmla_pair!(w2 w3 x2: low2 high2), smmla_pair!(w2 w3 x3: low3 high3),
        )
    };
}

/// Arguments of `$line`, once for each of six pairs: its sums and its totals, each for the first two weight rows and
/// for the others, and the offset of its results in a strip, in bytes.
macro_rules! lines_12 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, 0),
            $line!(low1 high1, low_total1 high_total1, 32),
            $line!(low2 high2, low_total2 high_total2, 64),
            $line!(low3 high3, low_total3 high_total3, 96),
            $line!(low4 high4, low_total4 high_total4, 128),
            $line!(low5 high5, low_total5 high_total5, 160),
        )
    };
}

/// Arguments of `$line`, once for each of four pairs of rows.
macro_rules! lines_8 {
    ($line:ident) => {
        concat!(
            $line!(low0 high0, low_total0 high_total0, 0),
            $line!(low1 high1, low_total1 high_total1, 32),
            $line!(low2 high2, low_total2 high_total2, 64),
            $line!(low3 high3, low_total3 high_total3, 96),
        )
    };
}

/// Clears a pair's sums.
macro_rules! begin_sums {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!("movi v", r!($low), ".2d, #0\nmovi v", r!($high), ".2d, #0\n")
    };
}

/// Loads results of a pair from a strip of `out` into its totals' registers.
macro_rules! load_results {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        load_out!($low_total $high_total $at)
    };
}

/// Stores results of a pair from its totals' registers.
macro_rules! store_results {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        store_out!($low_total $high_total $at)
    };
}

/// Adds the totals of a pair times its scales to `out`.
macro_rules! add_out {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(pair, "scales"),
            load_out!(low_y high_y $at),
            floats!("fmla" low_y $low_total pair),
            floats!("fmla" high_y $high_total pair),
            store_out!(low_y high_y $at),
        )
    };
}

macro_rules! add_out_12 {
    () => {
        lines_12!(add_out)
    };
}

macro_rules! add_out_8 {
    () => {
        lines_8!(add_out)
    };
}

/// Loads an unpacked block's steps and offsets, and advances to the next block's codes.
macro_rules! load_parameters {
    () => {
        concat!(
            "ldp q",
            r!(low_steps),
            ", q",
            r!(high_steps),
            ", [{w}], #32\n",
            "ldp q",
            r!(low_offsets),
            ", q",
            r!(high_offsets),
            ", [{w}], #608\n",
        )
    };
}

/// `smmla` whose sums are an operand.
macro_rules! smmla_to {
    ($sum:literal $w:ident $x:ident) => {
        concat!("smmla {", $sum, ":v}.4s, v", r!($w), ".16b, v", r!($x), ".16b\n")
    };
}

/// Loads eight bytes twice: a pair's scales or sums, or eight activations of a single row.
macro_rules! load_pair {
    ($to:ident, $from:literal) => {
        concat!("ld1r {{v", r!($to), ".2d}}, [{", $from, "}], #8\n")
    };
}

/// Loads 32 activations of a single row.
macro_rules! load_eights {
    () => {
        concat!(
            load_pair!(eight0, "x"),
            load_pair!(eight1, "x"),
            load_pair!(eight2, "x"),
            load_pair!(eight3, "x"),
        )
    };
}

#[macro_use]
mod codes;

mod b2;
mod pairs;
mod q4;
mod q8;
mod runs;

/// See [`PackedTable::place`]: a tile's results are four strips of `[t, 4]`. Values of two rows alternate; the last row
/// of an odd tile stands alone.
#[target_feature(enable = "neon,i8mm")]
fn place(y: &[f32], columns: Range<usize>, out: &mut [&mut [f32]]) {
    let (y, t) = (y.as_chunks::<4>().0, out.len());
    let strip = |i: usize| y[i * t..][..t].as_chunks::<2>().0;
    let (pairs, odd) = out.as_chunks_mut::<2>();
    let strips = strip(0).iter().zip(strip(1)).zip(strip(2)).zip(strip(3));
    for (out, (((a, b), c), d)) in pairs.iter_mut().zip(strips) {
        let ([a0, a1], [b0, b1], [c0, c1], [d0, d1]) = (part(a), part(b), part(c), part(d));
        place_row([a0, b0, c0, d0], &mut out[0][columns.clone()]);
        place_row([a1, b1, c1, d1], &mut out[1][columns.clone()]);
    }
    if let [out] = odd {
        let last = |i: usize| load_floats(&y[(i + 1) * t - 1]);
        place_row([last(0), last(1), last(2), last(3)], &mut out[columns]);
    }
}

/// Separates the values of two rows in a strip.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn part([low, high]: &[[f32; 4]; 2]) -> [float32x4_t; 2] {
    let (low, high) = (load_floats(low), load_floats(high));
    [vuzp1q_f32(low, high), vuzp2q_f32(low, high)]
}

/// See [`super::Kernels::spin_int8`]: 32 products an instruction.
#[target_feature(enable = "neon,i8mm")]
fn spin_int8(rounds: usize) -> i32 {
    let x = vdupq_n_s8(std::hint::black_box(3));
    let step = |sums: &mut [int32x4_t; 16]| {
        for sum in sums {
            *sum = smmla(*sum, x, x);
        }
    };
    peak::spin(rounds, 32, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
