//! 4-bit weights. A byte holds codes of two rows: the low one of a row of an even strip, and the high one, less 8, of
//! the same row of the next strip. Tiles of up to six rows multiply by the whole byte, which is 16 times the high code
//! plus the low code, and by the low code: one instruction for two products. Higher tiles share codes that [`unpack`]
//! unpacked. Their sums are floats by their bits, like those of flipped weights: an activation group's sums stay below
//! `256 * 15 * 127`.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::registers::{floats, floats_by_lane, load_2, load_4, registers};
use super::super::neon::{load_64, widen_8};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{Q8Tile, ZERO};
use super::gemm::{NR, block_of_32, gemm_q4, load_out, load_x, store_out};
use crate::quant::bcml1::BLOCK;
pub(super) use single::PANEL_BLOCK;

mod few;
mod single;

/// Tiles by their rows; the last two take unpacked weights. Costs are millions of instructions of a pass of TinyLlama's
/// shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, single::gemv_q8_q4_f32_1x16c4, 172),
        TileKernel::new(2, few::gemm_q8_q4_f32_2x16c4, 266),
        TileKernel::new(3, few::gemm_q8_q4_f32_3x16c4, 368),
        TileKernel::new(4, few::gemm_q8_q4_f32_4x16c4, 456),
        TileKernel::new(5, few::gemm_q8_q4_f32_5x16c4, 588),
        TileKernel::new(6, few::gemm_q8_q4_f32_6x16c4, 696),
        TileKernel::new(8, gemm_q8_q4_f32_8x16c4, 805).unpacked(),
        TileKernel::new(12, gemm_q8_q4_f32_12x16c4, 1176).unpacked(),
    ],
    212,
);

/// Bytes of an unpacked block: its strips one after the other.
pub(super) const UNPACKED_BLOCK: usize = 4 * STRIP;

/// Bytes of a strip of an unpacked block: codes, steps and offsets of four rows.
const STRIP: usize = 4 * (BLOCK + 4 + 4);

/// Unpacks panels in groups of `n` blocks.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks_exact(n);
    let out = out.as_chunks_mut::<STRIP>().0.as_chunks_mut::<4>().0;
    for (w, out) in groups.zip(out.chunks_exact_mut(n)) {
        let mut parameters = panel_parameters(&w[0]);
        for (b, (block, out)) in w.iter().zip(out).enumerate() {
            let next = match w.get(b + 1) {
                Some(next) => panel_parameters(next),
                None => [[vdupq_n_f32(0.0); 2]; 4],
            };
            for strip in 0..4 {
                let [multiplier, offset] = parameters[strip];
                let step = vsubq_f32(multiplier, next[strip][0]);
                store(&mut out[strip], 8, vreinterpretq_u8_f32(step));
                store(&mut out[strip], 9, vreinterpretq_u8_f32(offset));
            }
            parameters = next;
            let codes = block.as_chunks::<64>().0[1..].as_chunks::<2>().0;
            for (codes, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
                let [low_out, high_out] = out;
                for half in 0..2 {
                    let [low, high] = split_pair(load_64(&codes[half]));
                    store_64(&mut low_out.as_chunks_mut().0[half], low);
                    store_64(&mut high_out.as_chunks_mut().0[half], high);
                }
            }
        }
    }
}

/// The low and the high codes of bytes.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn split_pair(bytes: [uint8x16_t; 4]) -> [[uint8x16_t; 4]; 2] {
    let (mut low, mut high) = (bytes, bytes);
    for i in 0..4 {
        low[i] = vandq_u8(bytes[i], vdupq_n_u8(15));
        high[i] = veorq_u8(vshrq_n_u8::<4>(bytes[i]), vdupq_n_u8(8));
    }
    [low, high]
}

/// Writes four vectors. A single instruction would need them in neighbouring registers.
#[target_feature(enable = "neon,dotprod")]
#[inline]
pub(super) fn store_64(out: &mut [u8; 64], [a, b, c, d]: [uint8x16_t; 4]) {
    for (out, x) in out.as_chunks_mut::<16>().0.iter_mut().zip([a, b, c, d]) {
        // SAFETY: `out` is 16 writable bytes, and the store needs no alignment.
        unsafe { vst1q_u8(out.as_mut_ptr(), x) };
    }
}

/// Multipliers and offsets of each strip of a block.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn panel_parameters(block: &[u8; PANEL_BLOCK]) -> [[float32x4_t; 2]; 4] {
    let [a, b, c, d] = load_64(&block.as_chunks().0[0]).map(|strip| vreinterpretq_u16_u8(strip));
    [widen_8(a), widen_8(b), widen_8(c), widen_8(d)]
}

tall_registers! {
    // At the end of a block: its steps and offsets, sums of activations of 12 rows, the zero of sums, and two sums of
    // products.
    steps = 24, offsets = 31, dot_zero = 29, dot0 = 25, dot1 = 30,
}

/// Begins the totals of two rows with a block: the offsets times the rows' sums of activations, and sums of products,
/// less zero, times the steps.
macro_rules! begin_total {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        concat!(
            floats_by_lane!("fmul" $ta offsets $rows $i),
            floats_by_lane!("fmul" $tb offsets $rows $j),
            floats!("fsub" dot0 $a dot_zero),
            floats!("fsub" dot1 $b dot_zero),
            floats!("fmla" $ta dot0 steps),
            floats!("fmla" $tb dot1 steps),
        )
    };
}

/// Adds a block to the totals of two rows.
macro_rules! add_total {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:literal $j:literal,
     $ya:ident $yb:ident $at:literal) => {
        concat!(
            floats_by_lane!("fmla" $ta offsets $rows $i),
            floats_by_lane!("fmla" $tb offsets $rows $j),
            floats!("fsub" dot0 $a dot_zero),
            floats!("fsub" dot1 $b dot_zero),
            floats!("fmla" $ta dot0 steps),
            floats!("fmla" $tb dot1 steps),
        )
    };
}

/// Loads a block's steps and offsets, the sums of its activations, and the zero of sums.
macro_rules! load_12_parameters {
    () => {
        concat!(
            "ldp q",
            r!(steps),
            ", q",
            r!(offsets),
            ", [{w}], #512\n",
            load_rows_12!("sums"),
            "dup v",
            r!(dot_zero),
            ".4s, {zero:w}\n",
        )
    };
}

macro_rules! load_8_parameters {
    () => {
        concat!(
            "ldp q", r!(steps), ", q", r!(offsets), ", [{w}], #512\n",
            load_2!(rows0 rows1, "sums"),
            "dup v", r!(dot_zero), ".4s, {zero:w}\n",
        )
    };
}

gemm_q4!("neon,dotprod" gemm_q8_q4_f32_12x16c4: 12 lines_12 sdot_12_rows load_12_parameters add_out_12,
    zero = in(reg) ZERO.to_bits());
gemm_q4!("neon,dotprod" gemm_q8_q4_f32_8x16c4: 8 lines_8 sdot_8_rows load_8_parameters add_out_8,
    zero = in(reg) ZERO.to_bits());

/// Writes the 16 bytes at index `i` of `out`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
pub(super) fn store(out: &mut [u8; STRIP], i: usize, x: uint8x16_t) {
    let out = &mut out.as_chunks_mut::<16>().0[i];
    // SAFETY: `out` is 16 writable bytes, and the store needs no alignment.
    unsafe { vst1q_u8(out.as_mut_ptr(), x) };
}
