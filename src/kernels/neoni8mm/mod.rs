//! NEON with int8 matrix products: only those with packed weights differ from [`super::neondot`].
//!
//! `smmla` multiplies two rows of eight weights by two rows of eight activations. A sum holds the
//! four results of a pair of pairs, weight rows first: `[w0 x0, w0 x1, w1 x0, w1 x1]`. A strip of
//! four rows by 12 rows of activations is 12 sums, and 16 columns take 24 `smmla` for four loads of
//! four registers each. The last row of an odd tile is paired with itself. Tiles of 12 and of eight
//! rows have [`super::neondot`]'s loops and its map of registers, where v0 to v5 are the sums of pairs with
//! the first two rows of weights, v6 to v11 those with the others, and v12 to v23 their totals; results
//! wait as sums have them.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use std::arch::aarch64::*;
use std::ops::Range;

use super::neon::{load_floats, place_row};
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
        place,
        // With 24 KiB of a tile's activations no more than a small second level has, and little more
        // than a first level of 32 KiB if a strip's quarter is counted.
        part_bytes: 2 * PART_BYTES,
        unpack_q4: Some(Unpack {
            unpack: q4::unpack,
            packed_bytes: q4::PANEL_BLOCK,
            bytes: q4::UNPACKED_BLOCK,
        }),
    }),
    spin_int8,
    ..neondot::TABLE
};

/// Two `smmla`: a pair of activations in register `$x` by the first two rows of weights in `$low`,
/// added to `$a`, and by the others in `$high`, added to `$b`.
macro_rules! smmla_pair {
    ($low:literal $high:literal $x:literal: $a:literal $b:literal) => {
        concat!(
            "smmla v", $a, ".4s, v", $low, ".16b, v", $x, ".16b\n", "smmla v", $b, ".4s, v", $high,
            ".16b, v", $x, ".16b\n",
        )
    };
}

/// The products of sixteen columns of six pairs by weights in registers v24 to v27.
macro_rules! smmla_12_rows {
    () => {
        concat!(
            load_x!(),
            smmla_pair!(24 25 28: 0 6), smmla_pair!(24 25 29: 1 7),
            smmla_pair!(24 25 30: 2 8), smmla_pair!(24 25 31: 3 9),
            load_x!(),
            smmla_pair!(24 25 28: 4 10), smmla_pair!(24 25 29: 5 11),
            smmla_pair!(26 27 30: 0 6), smmla_pair!(26 27 31: 1 7),
            load_x!(),
            smmla_pair!(26 27 28: 2 8), smmla_pair!(26 27 29: 3 9),
            smmla_pair!(26 27 30: 4 10), smmla_pair!(26 27 31: 5 11),
        )
    };
}

/// The same of four pairs.
macro_rules! smmla_8_rows {
    () => {
        concat!(
            load_x!(),
            smmla_pair!(24 25 28: 0 6), smmla_pair!(24 25 29: 1 7),
            smmla_pair!(24 25 30: 2 8), smmla_pair!(24 25 31: 3 9),
            load_x!(),
            smmla_pair!(26 27 28: 0 6), smmla_pair!(26 27 29: 1 7),
            smmla_pair!(26 27 30: 2 8), smmla_pair!(26 27 31: 3 9),
        )
    };
}

/// A line for each of six pairs: the registers of its sums and of its totals, both for the first two
/// rows of weights and for the others, and where its results are in a strip of them, in bytes.
macro_rules! lines_12 {
    ($line:ident) => {
        concat!(
            $line!(0 6 12 18 0), $line!(1 7 13 19 32), $line!(2 8 14 20 64),
            $line!(3 9 15 21 96), $line!(4 10 16 22 128), $line!(5 11 17 23 160),
        )
    };
}

/// The same for four pairs.
macro_rules! lines_8 {
    ($line:ident) => {
        concat!(
            $line!(0 6 12 18 0), $line!(1 7 13 19 32), $line!(2 8 14 20 64),
            $line!(3 9 15 21 96),
        )
    };
}

/// Makes a pair's sums zero.
macro_rules! begin_sums {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        concat!("movi v", $low, ".2d, #0\nmovi v", $high, ".2d, #0\n")
    };
}

/// Takes results of a pair from a strip of `out` to its totals' registers.
macro_rules! load_results {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        load_out!($low_total $high_total $at)
    };
}

/// Puts them back.
macro_rules! store_results {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        store_out!($low_total $high_total $at)
    };
}

/// Adds the totals of a pair times its scales to `out`.
macro_rules! add_out {
    ($low:literal $high:literal $low_total:literal $high_total:literal $at:literal) => {
        concat!(
            "ld1r {{v24.2d}}, [{scales}], #8\n",
            load_out!(25 26 $at),
            floats!("fmla" 25 $low_total 24),
            floats!("fmla" 26 $high_total 24),
            store_out!(25 26 $at),
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

/// Loads 32 activations, each eight twice, to registers v24 to v27.
macro_rules! load_eights {
    () => {
        concat!(
            "ld1r {{v24.2d}}, [{x}], #8\n",
            "ld1r {{v25.2d}}, [{x}], #8\n",
            "ld1r {{v26.2d}}, [{x}], #8\n",
            "ld1r {{v27.2d}}, [{x}], #8\n",
        )
    };
}

mod pairs;
mod q4;
mod q8;

/// See [`PackedTable::place`]: a tile's results are four strips of `[t, 4]`, where two rows have
/// their values in turn; the last row of an odd tile is plain.
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

/// Parts the values of two rows in a strip.
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
