//! 4-bit weights. A byte holds codes of two neighbouring blocks of eight columns. A single row takes
//! them apart as it goes; more rows share what [`unpack`] made of them.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::registers::{floats, load_4, registers, to_floats};
use super::super::neon::{add_rows, load_64, load_halves, split_codes, widen_8};
use super::super::neondot::gemm::{block_of_32, gemm_q4, load_out, load_x, store_out};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::Q8Tile;
use super::pairs::{
    NR, PairSums, STRIP as CODES, add_pairs, by_rows, eight_columns, load_pairs, of_pair, pair_of,
    store_pairs, twice,
};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};

/// Tiles of so many rows, the last two of which take unpacked weights; costs are millions of instructions
/// of a pass by TinyLlama's shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q4_f32_1x16c8, 240),
        TileKernel::new(2, gemm_q8_q4_f32_mx16c8::<2, 1>, 356),
        TileKernel::new(3, gemm_q8_q4_f32_mx16c8::<3, 2>, 573),
        TileKernel::new(4, gemm_q8_q4_f32_mx16c8::<4, 2>, 531),
        TileKernel::new(8, gemm_q8_q4_f32_8x16c8, 591).unpacked(),
        TileKernel::new(12, gemm_q8_q4_f32_12x16c8, 860).unpacked(),
    ],
    261,
);

/// Bytes of a block of a panel.
pub(super) const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Bytes that [`unpack`] makes of it: its strips one after the other.
pub(super) const UNPACKED_BLOCK: usize = 4 * STRIP;

/// Bytes of a strip of an unpacked block: codes of four rows, then their steps and offsets, each
/// twice, as sums have two activations for each.
const STRIP: usize = 4 * (BLOCK + 8 + 8);

/// Takes panels apart, groups of `n` blocks.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks(n);
    let out = out.as_chunks_mut::<STRIP>().0.as_chunks_mut::<4>().0;
    for (w, out) in groups.zip(out.chunks_mut(n)) {
        for (b, out) in out.iter_mut().enumerate() {
            for (strip, out) in out.iter_mut().enumerate() {
                unpack_strip(&w[b..], strip, out);
            }
        }
    }
}

/// Takes a strip of the first of `blocks` apart, those that are left of an activation group.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn unpack_strip(blocks: &[[u8; PANEL_BLOCK]], strip: usize, out: &mut [u8; STRIP]) {
    let [mut step, offset] = strip_parameters(&blocks[0], strip);
    if let Some(next) = blocks.get(1) {
        step = vsubq_f32(step, strip_parameters(next, strip)[0]);
    }
    let out = out.as_chunks_mut::<16>().0;
    let packed = blocks[0].as_chunks::<CODES>().0[1 + strip].as_chunks::<16>().0;
    for (packed, out) in packed.as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        let ([a, a_high], [b, b_high]) = (split_codes(&packed[0]), split_codes(&packed[1]));
        store(&mut out[0], vreinterpretq_u8_s8(a));
        store(&mut out[1], vreinterpretq_u8_s8(b));
        store(&mut out[2], vreinterpretq_u8_s8(a_high));
        store(&mut out[3], vreinterpretq_u8_s8(b_high));
    }
    let ([a, b], [c, d]) = (twice(step), twice(offset));
    store(&mut out[8], vreinterpretq_u8_f32(a));
    store(&mut out[9], vreinterpretq_u8_f32(b));
    store(&mut out[10], vreinterpretq_u8_f32(c));
    store(&mut out[11], vreinterpretq_u8_f32(d));
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn store(out: &mut [u8; 16], x: uint8x16_t) {
    // SAFETY: `out` is 16 writable bytes, and the store needs no alignment.
    unsafe { vst1q_u8(out.as_mut_ptr(), x) };
}

/// Multipliers and offsets of a strip of a block.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn strip_parameters(block: &[u8; PANEL_BLOCK], strip: usize) -> [float32x4_t; 2] {
    widen_8(load_halves(&block.as_chunks().0[strip]))
}

/// `M` rows of activations in `PAIRS` pairs by a panel as it is packed, two strips at a time.
#[target_feature(enable = "neon,i8mm")]
fn gemm_q8_q4_f32_mx16c8<const M: usize, const PAIRS: usize>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let n = x.blocks();
    let x_q = bytemuck::cast_slice::<i8, [u8; 8]>(x.q).as_chunks::<M>().0.as_chunks::<4>().0;
    let x_sums = x.sums.as_chunks::<M>().0;
    let strips = out.as_chunks_mut::<4>().0.as_chunks_mut::<M>().0.as_chunks_mut::<2>().0;
    for (i, out) in strips.iter_mut().enumerate() {
        let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks_exact(n).zip(x_q.chunks_exact(n));
        let x_rest = x_sums.chunks_exact(n).zip(x.scales.as_chunks::<M>().0);
        for ((w, x_q), (x_sums, x_scales)) in groups.zip(x_rest) {
            let mut dots = [[[vdupq_n_s32(0); 2]; PAIRS]; 2];
            let mut totals = [[[vdupq_n_f32(-0.0); 2]; PAIRS]; 2];
            let mut parameters = pair_parameters(&w[0], i);
            for (b, (block, (x_q, x_sums))) in w.iter().zip(x_q.iter().zip(x_sums)).enumerate() {
                let mut steps = [parameters[0][0], parameters[1][0]];
                let offsets = [parameters[0][1], parameters[1][1]];
                if let Some(next) = w.get(b + 1) {
                    parameters = pair_parameters(next, i);
                    steps[0] = vsubq_f32(steps[0], parameters[0][0]);
                    steps[1] = vsubq_f32(steps[1], parameters[1][0]);
                }
                for s in 0..2 {
                    let codes = &block.as_chunks::<CODES>().0[1 + 2 * i + s];
                    add_codes(&mut dots[s], codes, x_q);
                    let sums = by_rows::<M, PAIRS>(&dots[s]);
                    for pair in 0..PAIRS {
                        let x_sums = pair_of(x_sums, pair);
                        let step = of_pair::<M>(pair, steps[s]);
                        let offset = of_pair::<M>(pair, offsets[s]);
                        for h in 0..2 {
                            let total = vfmaq_f32(totals[s][pair][h], offset[h], x_sums);
                            let sum = vcvtq_f32_s32(sums[pair][h]);
                            totals[s][pair][h] = vfmaq_f32(total, sum, step[h]);
                        }
                    }
                }
            }
            for (out, totals) in out.iter_mut().zip(&totals) {
                let mut y = load_pairs(out);
                add_pairs(&mut y, totals, x_scales);
                store_pairs(out, &y);
            }
        }
    }
}

/// The same of strips `2 * pair` and the next.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn pair_parameters(block: &[u8; PANEL_BLOCK], pair: usize) -> [[float32x4_t; 2]; 2] {
    [strip_parameters(block, 2 * pair), strip_parameters(block, 2 * pair + 1)]
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn low_codes(bytes: uint8x16_t) -> int8x16_t {
    vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)))
}

#[target_feature(enable = "neon,i8mm")]
#[inline]
fn high_codes(bytes: uint8x16_t) -> int8x16_t {
    vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes))
}

/// Adds the products of `M` rows with a block's codes of a strip.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_codes<const M: usize, const PAIRS: usize>(
    dots: &mut PairSums<PAIRS>,
    codes: &[u8; CODES],
    x: &[[[u8; 8]; M]; 4],
) {
    let [a, b, c, d] = load_64(codes);
    eight_columns(dots, [low_codes(a), low_codes(b)], &x[0]);
    eight_columns(dots, [high_codes(a), high_codes(b)], &x[1]);
    eight_columns(dots, [low_codes(c), low_codes(d)], &x[2]);
    eight_columns(dots, [high_codes(c), high_codes(d)], &x[3]);
}

tall_registers! {
    // At the end of a block: steps and offsets of its first two rows of weights and of the others, and
    // sums of products as floats; a pair's sums of activations are in `pair`.
    low_steps = 28, high_steps = 29, low_offsets = 30, high_offsets = 31, low_dot = 25, high_dot = 26,
    // Of a single row: bytes of a strip, which become high codes, and low codes.
    byte0 = 20, byte1 = 21, byte2 = 22, byte3 = 23, code0 = 28, code1 = 29, code2 = 30, code3 = 31,
}

/// Makes totals of a pair a block's: the offsets times its sums of activations, and its sums of products
/// times the steps.
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

/// Adds the same to the totals.
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

/// Loads a block's steps and offsets, and goes on to the next block's codes.
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
        // Of the block before, whose products count by how much its multipliers are larger.
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

/// Four low codes' vectors of four of bytes, which become the high codes'.
macro_rules! split_codes {
    ($($code:ident $byte:ident),*) => {
        concat!(
            $("and v", r!($code), ".16b, v", r!($byte), ".16b, {mask:v}.16b\n",)*
            $("ushr v", r!($byte), ".16b, v", r!($byte), ".16b, #4\n",)*
        )
    };
}

/// Eight `smmla`: a strip's low and high codes by 32 activations, for sums that are operands.
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

/// Adds the products of a row with the codes of a block, as [`add_panel`] does.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn add_panel_codes(dots: &mut [int32x4_t; 8], w: &[[u8; CODES]; 4], x: &[u8; BLOCK]) {
    // SAFETY: this reads all of `x` and of `w`; everything else is registers that are named.
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
