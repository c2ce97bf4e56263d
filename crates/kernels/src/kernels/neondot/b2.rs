//! 4-bit weights with scales in two levels. A byte holds codes of two rows, as in [`super::q4`]. The sum of an
//! activation group is one integer, to which a block adds two parts. One is the products of codes and activations times
//! its scale; because integer sums run on, each scale counts less the next block's. The other is the activations' sum
//! times scale and zero, which fit 16 bits. Sums may wrap on the way; the result fits 32 bits.
//!
//! Tiles of up to eight rows take packed weights. Higher tiles share weights that [`unpack`] unpacked.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::load_64;
use super::super::neon::registers::{floats_by_lane, load_2, load_4, registers, to_floats};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::Q8Tile;
use super::gemm::{
    NR, PANEL_BLOCK_B2 as PANEL_BLOCK, block_of_32, gemm_q4, load_out, load_x, store_out,
};
use super::q4::{store, store_64};
use crate::quant::bcml1::BLOCK;

mod few;

/// Tiles by their rows; the last two take unpacked weights. Costs are millions of instructions of a pass of TinyLlama's
/// shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, few::gemv_q8_b2_f32_1x16c4, 152),
        TileKernel::new(2, few::gemm_q8_b2_f32_2x16c4, 242),
        TileKernel::new(3, few::gemm_q8_b2_f32_3x16c4, 336),
        TileKernel::new(4, few::gemm_q8_b2_f32_4x16c4, 437),
        TileKernel::new(5, few::gemm_q8_b2_f32_5x16c4, 537),
        TileKernel::new(6, few::gemm_q8_b2_f32_6x16c4, 627),
        TileKernel::new(7, few::gemm_q8_b2_f32_7x16c4, 757),
        TileKernel::new(8, few::gemm_q8_b2_f32_8x16c4, 846),
        TileKernel::new(8, gemm_q8_b2_f32_8x16c4, 770).unpacked(),
        TileKernel::new(12, gemm_q8_b2_f32_12x16c4, 1125).unpacked(),
    ],
    162,
);

/// Bytes of an unpacked block: its strips one after the other.
pub(super) const UNPACKED_BLOCK: usize = 4 * STRIP;

/// Bytes of a strip of an unpacked block: codes, steps and zeros of four rows, and eight unused bytes.
const STRIP: usize = 4 * (BLOCK + 4 + 4);

/// Unpacks panels in groups of `n` blocks. High codes stay less 8.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks_exact(n);
    let out = out.as_chunks_mut::<STRIP>().0.as_chunks_mut::<4>().0;
    for (w, out) in groups.zip(out.chunks_exact_mut(n)) {
        for (b, (block, out)) in w.iter().zip(out).enumerate() {
            let [scales, zeros] = scales_and_zeros(block);
            let differences = match w.get(b + 1) {
                Some(next) => vsubq_s8(scales, scales_and_zeros(next)[0]),
                None => scales,
            };
            let (steps, zeros) = (steps(differences), scaled_zeros(scales, zeros));
            for strip in 0..4 {
                store(&mut out[strip], 8, vreinterpretq_u8_s32(steps[strip]));
                store(&mut out[strip], 9, vreinterpretq_u8_u16(zeros[strip]));
            }
            let codes = block[2 * NR..].as_chunks::<128>().0.iter();
            for (codes, [low_out, high_out]) in codes.zip(out.as_chunks_mut::<2>().0) {
                for (half, codes) in codes.as_chunks().0.iter().enumerate() {
                    let [low, high] = split_pair(load_64(codes));
                    store_64(&mut low_out.as_chunks_mut().0[half], low);
                    store_64(&mut high_out.as_chunks_mut().0[half], high);
                }
            }
        }
    }
}

/// The low codes of bytes, and the high codes less 8.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn split_pair(bytes: [uint8x16_t; 4]) -> [[uint8x16_t; 4]; 2] {
    let (mut low, mut high) = (bytes, bytes);
    for i in 0..4 {
        low[i] = vandq_u8(bytes[i], vdupq_n_u8(15));
        high[i] = vreinterpretq_u8_s8(vshrq_n_s8::<4>(vreinterpretq_s8_u8(bytes[i])));
    }
    [low, high]
}

/// A block's scales and zeros; those of strips with low codes come first.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn scales_and_zeros(block: &[u8; PANEL_BLOCK]) -> [int8x16_t; 2] {
    let (parameters, _) = block.as_chunks::<16>();
    // SAFETY: each is 16 readable bytes, and the load needs no alignment.
    [0, 1].map(|i| unsafe { vld1q_s8(parameters[i].as_ptr().cast()) })
}

/// 16 times the differences of scales, for each strip.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn steps(differences: int8x16_t) -> [int32x4_t; 4] {
    let low = vshll_n_s8::<4>(vget_low_s8(differences));
    let high = vshll_n_s8::<4>(vget_high_s8(differences));
    let first = [vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_low_s16(high))];
    [first[0], first[1], vmovl_high_s16(low), vmovl_high_s16(high)]
}

/// Scales times zeros of each strip, in the first four numbers. Zeros of rows with high codes are signed.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn scaled_zeros(scales: int8x16_t, zeros: int8x16_t) -> [uint16x8_t; 4] {
    let unsigned = [scales, zeros].map(|x| vget_low_u8(vreinterpretq_u8_s8(x)));
    let low = vmull_u8(unsigned[0], unsigned[1]);
    let high = vreinterpretq_u16_s16(vmull_high_s8(scales, zeros));
    [low, high, vextq_u16::<4>(low, low), vextq_u16::<4>(high, high)]
}

registers! {
    // Sums of rows 0 to 11 with a strip.
    sum0 = 0, sum1 = 1, sum2 = 2, sum3 = 3, sum4 = 4, sum5 = 5,
    sum6 = 6, sum7 = 7, sum8 = 8, sum9 = 9, sum10 = 10, sum11 = 11,
    // Activations: four columns of four rows each.
    x0 = 12, x1 = 13, x2 = 14, x3 = 15,
    // Totals of the rows.
    total0 = 16, total1 = 17, total2 = 18, total3 = 19, total4 = 20, total5 = 21,
    total6 = 22, total7 = 23, total8 = 24, total9 = 25, total10 = 26, total11 = 27,
    // Weights: 16 columns of a strip, four of them each.
    w0 = 28, w1 = 29, w2 = 30, w3 = 31,
    // At the end of a block: its steps and zeros, and the rows' sums of activations, in some of the first 16 registers,
    // as instructions on 16-bit lanes demand.
    steps = 28, zeros = 29, rows0 = 12, rows1 = 13, rows2 = 14,
    // Results of two rows, and of two others.
    y0 = 28, y1 = 29, y2 = 30, y3 = 31,
}

/// Makes sums zero.
macro_rules! begin_sums {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:tt $j:tt, $ya:ident $yb:ident $at:literal) => {
        concat!("movi v", r!($a), ".2d, #0\n", "movi v", r!($b), ".2d, #0\n")
    };
}

/// Begins the totals of two rows with a block: sums of products times the steps, less the zeros times the rows' sums of
/// activations.
macro_rules! begin_total {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:tt $j:tt, $ya:ident $yb:ident $at:literal) => {
        concat!(
            integers!("mul" $ta $a steps),
            integers!("mul" $tb $b steps),
            subtract_zeros!($ta $rows $i),
            subtract_zeros!($tb $rows $j),
        )
    };
}

/// Adds a block to the totals of two rows.
macro_rules! add_total {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:tt $j:tt, $ya:ident $yb:ident $at:literal) => {
        concat!(
            subtract_zeros!($ta $rows $i),
            subtract_zeros!($tb $rows $j),
            integers!("mla" $ta $a steps),
            integers!("mla" $tb $b steps),
        )
    };
}

macro_rules! subtract_zeros {
    ($total:ident $rows:ident $i:tt) => {
        concat!(
            "smlsl v",
            r!($total),
            ".4s, v",
            r!(zeros),
            ".4h, v",
            r!($rows),
            ".h[",
            low_half!($i),
            "]\n"
        )
    };
}

/// The 16-bit lane with the low half of a 32-bit lane. The high half of a sum of activations has only copies of its
/// sign.
macro_rules! low_half {
    (0) => {
        0
    };
    (1) => {
        2
    };
    (2) => {
        4
    };
    (3) => {
        6
    };
}

/// Loads a block's steps and zeros, and the sums of its activations.
macro_rules! load_12_parameters {
    () => {
        concat!("ldp q", r!(steps), ", q", r!(zeros), ", [{w}], #512\n", load_rows_12!("sums"))
    };
}

macro_rules! load_8_parameters {
    () => {
        concat!("ldp q", r!(steps), ", q", r!(zeros), ", [{w}], #512\n", load_2!(rows0 rows1, "sums"))
    };
}

/// Adds totals times the next 12 scales of rows to a strip of `out`.
macro_rules! end_group_12 {
    () => {
        concat!(load_rows_12!("scales"), lines_12!(totals_to_floats), lines_12!(add_out))
    };
}

macro_rules! end_group_8 {
    () => {
        concat!(load_2!(rows0 rows1, "scales"), lines_8!(totals_to_floats), lines_8!(add_out))
    };
}

macro_rules! totals_to_floats {
    ($a:ident $b:ident, $ta:ident $tb:ident, $rows:ident $i:tt $j:tt, $ya:ident $yb:ident $at:literal) => {
        concat!(to_floats!($ta $ta), to_floats!($tb $tb))
    };
}

gemm_q4!("neon,dotprod" gemm_q8_b2_f32_12x16c4: 12 lines_12 sdot_12_rows load_12_parameters end_group_12);
gemm_q4!("neon,dotprod" gemm_q8_b2_f32_8x16c4: 8 lines_8 sdot_8_rows load_8_parameters end_group_8);
