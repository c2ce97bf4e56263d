//! Weights of BCML2. The sum of an activation group is one integer for each output: sums and totals are integers until
//! the group's end. Tiles of up to eight rows unpack codes as they go; higher tiles share what [`unpack`] unpacked.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::load_64;
use super::super::neon::registers::{floats, load_4, registers, to_floats};
use super::super::neondot::gemm::{block_of_32, gemm_q4, load_out, load_x, store_out};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::Q8Tile;
use super::pairs::{NR, PANEL_BLOCK_B2 as PANEL_BLOCK, STRIP as CODES};
use crate::quant::bcml1::BLOCK;
use crate::quant::bcml2::ZERO_PARTS;

/// An instruction from two registers of four integers to a third.
macro_rules! ints {
    ($name:literal $to:ident $a:ident $b:ident) => {
        concat!($name, " v", r!($to), ".4s, v", r!($a), ".4s, v", r!($b), ".4s\n")
    };
}

mod few;

/// Tiles by their rows; the last two take unpacked weights. Costs are millions of instructions of a pass of TinyLlama's
/// shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, few::gemv_q8_b2_f32_1x16c8, 205),
        TileKernel::new(2, few::gemm_q8_b2_f32_2x16c8, 247),
        TileKernel::new(3, few::gemm_q8_b2_f32_3x16c8, 409),
        TileKernel::new(4, few::gemm_q8_b2_f32_4x16c8, 414),
        TileKernel::new(5, few::gemm_q8_b2_f32_5x16c8, 579),
        TileKernel::new(6, few::gemm_q8_b2_f32_6x16c8, 575),
        TileKernel::new(7, few::gemm_q8_b2_f32_7x16c8, 718),
        TileKernel::new(8, few::gemm_q8_b2_f32_8x16c8, 713),
        TileKernel::new(8, gemm_q8_b2_f32_8x16c8, 608).unpacked(),
        TileKernel::new(12, gemm_q8_b2_f32_12x16c8, 878).unpacked(),
    ],
    230,
);

/// Bytes of an unpacked block: its strips one after the other.
pub(super) const UNPACKED_BLOCK: usize = 4 * STRIP;

/// Bytes of a strip of an unpacked block: codes of four rows, then steps (factors of sums of products) and offsets
/// (scales times zeros). Steps and offsets are stored twice, because sums have two activations for each.
const STRIP: usize = 4 * (BLOCK + 8 + 8);

const _: () = assert!(ZERO_PARTS == 1 << 4);

/// Unpacks panels in groups of `n` blocks.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks_exact(n);
    let out = out.as_chunks_mut::<STRIP>().0.as_chunks_mut::<4>().0;
    for (w, out) in groups.zip(out.chunks_exact_mut(n)) {
        for (b, (block, out)) in w.iter().zip(out).enumerate() {
            let (lines, codes) = block.split_at(2 * NR);
            let [scales, zeros] = [load_twice(lines, 0), load_twice(lines, 1)];
            let next = match w.get(b + 1) {
                Some(next) => load_twice(next, 0),
                None => [vdupq_n_u8(0); 2],
            };
            let codes = codes.as_chunks::<CODES>().0.as_chunks::<2>().0.iter();
            for (i, (codes, out)) in codes.zip(out.as_chunks_mut::<2>().0).enumerate() {
                let less = [
                    vsubl_u8(vget_low_u8(scales[i]), vget_low_u8(next[i])),
                    vsubl_high_u8(scales[i], next[i]),
                ];
                let offsets = [
                    vmull_u8(vget_low_u8(scales[i]), vget_low_u8(zeros[i])),
                    vmull_high_u8(scales[i], zeros[i]),
                ];
                for j in 0..2 {
                    unpack_strip(
                        &codes[j],
                        vreinterpretq_s16_u16(less[j]),
                        offsets[j],
                        &mut out[j],
                    );
                }
            }
        }
    }
}

/// The 16 bytes at index `index`, each twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn load_twice(lines: &[u8], index: usize) -> [uint8x16_t; 2] {
    let line = &lines.as_chunks::<16>().0[index];
    // SAFETY: `line` is 16 readable bytes.
    let line = unsafe { vld1q_u8(line.as_ptr()) };
    [vzip1q_u8(line, line), vzip2q_u8(line, line)]
}

/// Unpacks a strip of a block. Its rows' differences of scales, and offsets, are given twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn unpack_strip(codes: &[u8; CODES], less: int16x8_t, offsets: uint16x8_t, out: &mut [u8; STRIP]) {
    let out = out.as_chunks_mut::<64>().0;
    let [a, b, c, d] = load_64(codes);
    store_64(&mut out[0], [low(a), low(b), high(a), high(b)]);
    store_64(&mut out[1], [low(c), low(d), high(c), high(d)]);
    let steps = [vshll_n_s16::<4>(vget_low_s16(less)), vshll_high_n_s16::<4>(less)];
    let offsets = [vmovl_u16(vget_low_u16(offsets)), vmovl_high_u16(offsets)];
    let ([a, b], [c, d]) =
        (steps.map(|x| vreinterpretq_u8_s32(x)), offsets.map(|x| vreinterpretq_u8_u32(x)));
    store_64(&mut out[2], [a, b, c, d]);
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn low(bytes: uint8x16_t) -> uint8x16_t {
    vandq_u8(bytes, vdupq_n_u8(15))
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn high(bytes: uint8x16_t) -> uint8x16_t {
    vshrq_n_u8::<4>(bytes)
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn store_64(out: &mut [u8; 64], [a, b, c, d]: [uint8x16_t; 4]) {
    // SAFETY: `out` is 64 writable bytes, and the store needs no alignment.
    unsafe { vst1q_u8_x4(out.as_mut_ptr(), uint8x16x4_t(a, b, c, d)) };
}

tall_registers! {
    // At the end of a block: steps and offsets of its first two weight rows and of the others; `pair` has a pair's sums
    // of activations.
    low_steps = 28, high_steps = 29, low_offsets = 30, high_offsets = 31,
}

/// Begins the totals of a pair with a block: sums of products times the steps.
macro_rules! begin_products {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            ints!("mul" $low_total $low low_steps),
            ints!("mul" $high_total $high high_steps),
        )
    };
}

/// Adds sums of products times the steps to the totals of a pair.
macro_rules! add_products {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            ints!("mla" $low_total $low low_steps),
            ints!("mla" $high_total $high high_steps),
        )
    };
}

/// Subtracts the offsets times a pair's sums of activations from its totals.
macro_rules! subtract_zeros {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(pair, "sums"),
            ints!("mls" $low_total low_offsets pair),
            ints!("mls" $high_total high_offsets pair),
        )
    };
}

/// Ends a block in two passes over the rows, so that no total waits for its previous addition.
macro_rules! turns_12 {
    (begin_total) => {
        concat!(lines_12!(begin_products), lines_12!(subtract_zeros))
    };
    (add_total) => {
        concat!(lines_12!(add_products), lines_12!(subtract_zeros))
    };
    ($line:ident) => {
        lines_12!($line)
    };
}

macro_rules! turns_8 {
    (begin_total) => {
        concat!(lines_8!(begin_products), lines_8!(subtract_zeros))
    };
    (add_total) => {
        concat!(lines_8!(add_products), lines_8!(subtract_zeros))
    };
    ($line:ident) => {
        lines_8!($line)
    };
}

/// Converts the totals of a pair to floats, and adds them times the pair's scales to `out`.
macro_rules! add_ints_out {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            to_floats!($low_total $low_total),
            to_floats!($high_total $high_total),
            add_out!($low $high, $low_total $high_total, $at),
        )
    };
}

macro_rules! add_ints_out_12 {
    () => {
        lines_12!(add_ints_out)
    };
}

macro_rules! add_ints_out_8 {
    () => {
        lines_8!(add_ints_out)
    };
}

const _: () = assert!(UNPACKED_BLOCK == 2 * 64 + 32 + 608);

gemm_q4!("neon,i8mm" gemm_q8_b2_f32_12x16c8: 12 turns_12 smmla_12_rows load_parameters add_ints_out_12);
gemm_q4!("neon,i8mm" gemm_q8_b2_f32_8x16c8: 8 turns_8 smmla_8_rows load_parameters add_ints_out_8);
