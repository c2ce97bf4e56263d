//! 4-bit weights. A byte holds codes of two neighbouring blocks of eight columns. Tiles of up to four rows unpack them
//! as they go; higher tiles share what [`unpack`] unpacked.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::registers::{floats, load_4, registers, to_floats};
use super::super::neon::{add_rows, load_64, widen_8};
use super::super::neondot::gemm::{block_of_32, gemm_q4, load_out, load_x, store_out};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::Q8Tile;
use super::pairs::{NR, PANEL_BLOCK, STRIP as CODES};
use crate::quant::bcml1::BLOCK;

mod few;

/// Tiles by their rows; the last two take unpacked weights. Costs are millions of instructions of a pass of TinyLlama's
/// shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q4_f32_1x16c8, 240),
        TileKernel::new(2, few::gemm_q8_q4_f32_2x16c8, 241),
        TileKernel::new(3, few::gemm_q8_q4_f32_3x16c8, 430),
        TileKernel::new(4, few::gemm_q8_q4_f32_4x16c8, 393),
        TileKernel::new(5, few::gemm_q8_q4_f32_5x16c8, 557),
        TileKernel::new(6, few::gemm_q8_q4_f32_6x16c8, 544),
        TileKernel::new(7, few::gemm_q8_q4_f32_7x16c8, 684),
        TileKernel::new(8, few::gemm_q8_q4_f32_8x16c8, 670),
        TileKernel::new(8, gemm_q8_q4_f32_8x16c8, 591).unpacked(),
        TileKernel::new(12, gemm_q8_q4_f32_12x16c8, 860).unpacked(),
    ],
    234,
);

/// Bytes of an unpacked block: its strips one after the other.
pub(super) const UNPACKED_BLOCK: usize = 4 * STRIP;

/// Bytes of a strip of an unpacked block: codes of four rows, then steps and offsets. These are stored twice, because
/// sums have two activations for each.
const STRIP: usize = 4 * (BLOCK + 8 + 8);

/// Unpacks panels in groups of `n` blocks.
#[target_feature(enable = "neon,i8mm")]
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
            let codes = block.as_chunks::<CODES>().0[1..].iter();
            for (strip, (codes, out)) in codes.zip(out).enumerate() {
                let [multiplier, offset] = parameters[strip];
                unpack_strip(codes, vsubq_f32(multiplier, next[strip][0]), offset, out);
            }
            parameters = next;
        }
    }
}

/// Unpacks a strip of a block.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn unpack_strip(
    codes: &[u8; CODES],
    step: float32x4_t,
    offset: float32x4_t,
    out: &mut [u8; STRIP],
) {
    let out = out.as_chunks_mut::<16>().0;
    let packed = load_64(codes);
    for (packed, out) in packed.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        for (i, bytes) in packed.iter().enumerate() {
            store(&mut out[i], vandq_u8(*bytes, vdupq_n_u8(15)));
            store(&mut out[2 + i], vshrq_n_u8::<4>(*bytes));
        }
    }
    let pairs = out[8..].as_chunks_mut::<2>().0;
    store_twice(&mut pairs[0], step);
    store_twice(&mut pairs[1], offset);
}

/// Writes each of four floats twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn store_twice(out: &mut [[u8; 16]; 2], x: float32x4_t) {
    // SAFETY: `out` is 32 writable bytes, and the store needs no alignment.
    unsafe { vst2q_f32(out.as_mut_ptr().cast(), float32x4x2_t(x, x)) };
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn store(out: &mut [u8; 16], x: uint8x16_t) {
    // SAFETY: `out` is 16 writable bytes, and the store needs no alignment.
    unsafe { vst1q_u8(out.as_mut_ptr(), x) };
}

/// Multipliers and offsets of each strip of a block.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn panel_parameters(block: &[u8; PANEL_BLOCK]) -> [[float32x4_t; 2]; 4] {
    let [a, b, c, d] = load_64(&block.as_chunks().0[0]).map(|strip| vreinterpretq_u16_u8(strip));
    [widen_8(a), widen_8(b), widen_8(c), widen_8(d)]
}

tall_registers! {
    // At the end of a block: steps and offsets of its first two weight rows and of the others, and sums of products as
    // floats; `pair` has a pair's sums of activations.
    low_steps = 28, high_steps = 29, low_offsets = 30, high_offsets = 31, low_dot = 25, high_dot = 26,
    // Single-row kernel: bytes of a strip, which become high codes; low codes.
    byte0 = 20, byte1 = 21, byte2 = 22, byte3 = 23, code0 = 28, code1 = 29, code2 = 30, code3 = 31,
}

/// Begins the totals of a pair with a block: the offsets times its sums of activations, and its sums of products times
/// the steps.
macro_rules! begin_total {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(pair, "sums"),
            to_floats!(low_dot $low),
            to_floats!(high_dot $high),
            floats!("fmul" $low_total low_offsets pair),
            floats!("fmul" $high_total high_offsets pair),
            floats!("fmla" $low_total low_dot low_steps),
            floats!("fmla" $high_total high_dot high_steps),
        )
    };
}

/// Adds a block to the totals of a pair.
macro_rules! add_total {
    ($low:ident $high:ident, $low_total:ident $high_total:ident, $at:literal) => {
        concat!(
            load_pair!(pair, "sums"),
            to_floats!(low_dot $low),
            to_floats!(high_dot $high),
            floats!("fmla" $low_total low_offsets pair),
            floats!("fmla" $high_total high_offsets pair),
            floats!("fmla" $low_total low_dot low_steps),
            floats!("fmla" $high_total high_dot high_steps),
        )
    };
}

const _: () = assert!(UNPACKED_BLOCK == 2 * 64 + 32 + 608);

gemm_q4!("neon,i8mm" gemm_q8_q4_f32_12x16c8: 12 lines_12 smmla_12_rows load_parameters add_out_12);
gemm_q4!("neon,i8mm" gemm_q8_q4_f32_8x16c8: 8 lines_8 smmla_8_rows load_parameters add_out_8);

/// One row of activations by a panel of 4-bit weights.
#[target_feature(enable = "neon,i8mm")]
fn gemv_q8_q4_f32_1x16c8(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let groups = panel.chunks_exact(PANEL_BLOCK * x.blocks());
    for (w, x) in groups.zip(x.summed_groups::<1, 8>()) {
        let mut dots = [vdupq_n_s32(0); 8];
        let mut totals = [vdupq_n_f32(-0.0); 4];
        let x_q = x.q.as_flattened().as_flattened().as_chunks::<BLOCK>().0;
        let blocks = w.as_chunks::<PANEL_BLOCK>().0.iter().zip(x_q.iter().zip(x.sums));
        // Multipliers of the previous block. Its sums count times the difference to this block's (summation by parts).
        let mut multipliers = [vdupq_n_f32(0.0); 4];
        for (b, (block, (x_q, [x_sum]))) in blocks.enumerate() {
            let (parameters, codes) = block.split_at(CODES);
            let parameters = load_64(&parameters.as_chunks().0[0]);
            for j in 0..4 {
                let [next, offsets] = widen_8(vreinterpretq_u16_u8(parameters[j]));
                if b != 0 {
                    let sums = vcvtq_f32_s32(vuzp1q_s32(dots[2 * j], dots[2 * j + 1]));
                    totals[j] = vfmaq_f32(totals[j], sums, vsubq_f32(multipliers[j], next));
                }
                totals[j] = vfmaq_n_f32(totals[j], offsets, *x_sum);
                multipliers[j] = next;
            }
            add_panel_codes(&mut dots, &codes.as_chunks().0.as_chunks().0[0], x_q);
        }
        for j in 0..4 {
            let sums = vcvtq_f32_s32(vuzp1q_s32(dots[2 * j], dots[2 * j + 1]));
            let total = vfmaq_f32(totals[j], sums, multipliers[j]);
            add_rows(out, j, &[total], x.scales);
        }
    }
}

/// Unpacks vectors of bytes: low codes go to registers of their own, high codes replace the bytes.
macro_rules! split_codes {
    ($($code:ident $byte:ident),*) => {
        concat!(
            $("and v", r!($code), ".16b, v", r!($byte), ".16b, {mask:v}.16b\n",)*
            $("ushr v", r!($byte), ".16b, v", r!($byte), ".16b, #4\n",)*
        )
    };
}

/// Eight `smmla`: a strip's low and high codes by 32 activations, with sums that are operands.
macro_rules! smmla_codes {
    ($low:literal $high:literal) => {
        concat!(
            load_4!("16b" byte0 byte1 byte2 byte3, "w", "#64"),
            split_codes!(code0 byte0, code1 byte1, code2 byte2, code3 byte3),
            smmla_to!($low code0 eight0), smmla_to!($high code1 eight0),
            smmla_to!($low byte0 eight1), smmla_to!($high byte1 eight1),
            smmla_to!($low code2 eight2), smmla_to!($high code3 eight2),
            smmla_to!($low byte2 eight3), smmla_to!($high byte3 eight3),
        )
    };
}

/// Adds the products of a row with the codes of a block, like [`add_panel`].
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_panel_codes(dots: &mut [int32x4_t; 8], w: &[[u8; CODES]; 4], x: &[u8; BLOCK]) {
    // SAFETY: this reads all of `x` and of `w`. Everything else is in named registers.
    unsafe {
        asm!(
            load_eights!(),
            smmla_codes!("low0" "high0"),
            smmla_codes!("low1" "high1"),
            smmla_codes!("low2" "high2"),
            smmla_codes!("low3" "high3"),
            w = inout(reg) w.as_ptr() => _, x = inout(reg) x.as_ptr() => _,
            mask = in(vreg) vdupq_n_u8(15),
            low0 = inout(vreg) dots[0], high0 = inout(vreg) dots[1], low1 = inout(vreg) dots[2],
            high1 = inout(vreg) dots[3], low2 = inout(vreg) dots[4], high2 = inout(vreg) dots[5],
            low3 = inout(vreg) dots[6], high3 = inout(vreg) dots[7],
            out("v20") _, out("v21") _, out("v22") _, out("v23") _, out("v24") _, out("v25") _,
            out("v26") _, out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack, readonly, preserves_flags)
        );
    }
}
