//! 4-bit weights. A byte holds codes of two rows: the low one of a row of an even strip, and the high
//! one, less 8, of the same row of the next strip. A single row multiplies the byte as it is, which
//! is 16 times the high code and the low one too much, and the low code, which takes one instruction
//! for two products; more rows share what [`unpack`] made of both. Their sums are floats by their
//! bits, as those of flipped weights are: an activation group's stay below `256 * 15 * 127`.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{self, load, load_64, load_floats, load_halves, widen_8};
use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{Tile, ZERO};
use super::by_lane::{NR, four_columns};
use super::gemm::{block_of_32, floats, floats_by_lane, gemm_q4, load_out, load_x, store_out};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};

/// Tiles of so many rows, the last two of which take unpacked weights; costs are millions of instructions
/// of a pass by TinyLlama's shape, counted.
pub(super) static TILES: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemv_q8_q4_f32_1x16c4, 172),
        TileKernel::new(2, gemm_q8_q4_f32_mx16c4::<2>, 374),
        TileKernel::new(3, gemm_q8_q4_f32_mx16c4::<3>, 518),
        TileKernel::new(4, gemm_q8_q4_f32_mx16c4::<4>, 611),
        TileKernel::new(8, gemm_q8_q4_f32_8x16c4, 805).unpacked(),
        TileKernel::new(12, gemm_q8_q4_f32_12x16c4, 1176).unpacked(),
    ],
    218,
);

/// Bytes of a block of a panel.
pub(super) const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Bytes that [`unpack`] makes of it: its strips one after the other.
pub(super) const UNPACKED_BLOCK: usize = 4 * STRIP;

/// Bytes of a strip of an unpacked block: codes, steps and offsets of four rows.
const STRIP: usize = 4 * (BLOCK + 4 + 4);

/// Takes panels apart, groups of `n` blocks.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks(n);
    let out = out.as_chunks_mut::<STRIP>().0.as_chunks_mut::<4>().0;
    for (w, out) in groups.zip(out.chunks_mut(n)) {
        for (b, out) in out.iter_mut().enumerate() {
            for (strip, out) in out.iter_mut().enumerate() {
                let [mut step, offset] = strip_parameters(&w[b], strip);
                if let Some(next) = w.get(b + 1) {
                    step = vsubq_f32(step, strip_parameters(next, strip)[0]);
                }
                store(out, 8, vreinterpretq_u8_f32(step));
                store(out, 9, vreinterpretq_u8_f32(offset));
            }
            let codes = w[b].as_chunks::<64>().0[1..].as_chunks::<2>().0;
            for (codes, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
                for (half, codes) in codes.iter().enumerate() {
                    let mut high = load_64(codes);
                    store_64(&mut out[0].as_chunks_mut().0[half], low_codes(high));
                    for high in &mut high {
                        *high = veorq_u8(vshrq_n_u8::<4>(*high), vdupq_n_u8(8));
                    }
                    store_64(&mut out[1].as_chunks_mut().0[half], high);
                }
            }
        }
    }
}

/// The low codes of bytes.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn low_codes(mut bytes: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    for bytes in &mut bytes {
        *bytes = vandq_u8(*bytes, vdupq_n_u8(15));
    }
    bytes
}

/// Writes four vectors by one instruction.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn store_64(out: &mut [u8; 64], [a, b, c, d]: [uint8x16_t; 4]) {
    // SAFETY: `out` is 64 writable bytes.
    unsafe { vst1q_u8_x4(out.as_mut_ptr(), uint8x16x4_t(a, b, c, d)) };
}

/// Multipliers and offsets of a strip of a block.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn strip_parameters(block: &[u8; PANEL_BLOCK], strip: usize) -> [float32x4_t; 2] {
    widen_8(load_halves(&block.as_chunks().0[strip]))
}

/// `M` rows of activations by a panel as it is packed, two strips at a time. As with a single row, one
/// sum is of low codes and one of bytes as they are.
#[target_feature(enable = "neon,dotprod")]
fn gemm_q8_q4_f32_mx16c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let n = x.blocks();
    let x_q = bytemuck::cast_slice::<i8, [i8; 16]>(x.q).as_chunks::<M>().0.as_chunks::<2>().0;
    let x_sums = x.sums.as_chunks::<M>().0;
    let pairs = out.as_chunks_mut::<4>().0.as_chunks_mut::<M>().0.as_chunks_mut::<2>().0;
    for (pair, out) in pairs.iter_mut().enumerate() {
        let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks_exact(n).zip(x_q.chunks_exact(n));
        let x_rest = x_sums.chunks_exact(n).zip(x.scales.as_chunks::<M>().0);
        for ((w, x_q), (x_sums, x_scales)) in groups.zip(x_rest) {
            let mut dots = [[vdupq_n_s32(0); M]; 2];
            let mut totals = [[vdupq_n_f32(-0.0); M]; 2];
            let mut parameters = pair_parameters(&w[0], pair);
            for (b, (block, (x_q, x_sums))) in w.iter().zip(x_q.iter().zip(x_sums)).enumerate() {
                let x_sums = load_rows(x_sums);
                let biases = vcvtq_n_s32_f32::<7>(x_sums);
                for row in 0..M {
                    for s in 0..2 {
                        let offsets = parameters[s][1];
                        totals[s][row] = add_by_lane(totals[s][row], offsets, x_sums, row);
                    }
                    dots[1][row] = vaddq_s32(dots[1][row], lane_of(biases, row));
                }
                let codes = &block.as_chunks::<64>().0[1..].as_chunks::<2>().0[pair];
                add_codes(&mut dots, codes, x_q);
                let mut steps = [parameters[0][0], parameters[1][0]];
                if let Some(next) = w.get(b + 1) {
                    parameters = pair_parameters(next, pair);
                    steps[0] = vsubq_f32(steps[0], parameters[0][0]);
                    steps[1] = vsubq_f32(steps[1], parameters[1][0]);
                }
                for row in 0..M {
                    // The high codes' sum, times 16.
                    let high = vsubq_s32(dots[1][row], dots[0][row]);
                    let (low, high) = (vcvtq_f32_s32(dots[0][row]), vcvtq_n_f32_s32::<4>(high));
                    totals[0][row] = vfmaq_f32(totals[0][row], low, steps[0]);
                    totals[1][row] = vfmaq_f32(totals[1][row], high, steps[1]);
                }
            }
            let x_scales = load_rows(x_scales);
            for (out, totals) in out.iter_mut().zip(totals) {
                for row in 0..M {
                    let y = add_by_lane(load_floats(&out[row]), totals[row], x_scales, row);
                    neon::store(&mut out[row], y);
                }
            }
        }
    }
}

/// Adds the products of `M` rows with a block's codes of two strips: the low ones' to the first sums,
/// the bytes' to the others.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_codes<const M: usize>(
    dots: &mut [[int32x4_t; M]; 2],
    codes: &[[u8; 64]; 2],
    x: &[[[i8; 16]; M]; 2],
) {
    for (codes, x) in codes.iter().zip(x) {
        let mut x_fours = [vdupq_n_s8(0); M];
        for (fours, x) in x_fours.iter_mut().zip(x) {
            *fours = load(x);
        }
        let bytes = load_64(codes);
        let low = low_codes(bytes);
        let [low_dots, byte_dots] = &mut *dots;
        four_columns::<M, 0>(low_dots, low[0], &x_fours);
        four_columns::<M, 0>(byte_dots, bytes[0], &x_fours);
        four_columns::<M, 1>(low_dots, low[1], &x_fours);
        four_columns::<M, 1>(byte_dots, bytes[1], &x_fours);
        four_columns::<M, 2>(low_dots, low[2], &x_fours);
        four_columns::<M, 2>(byte_dots, bytes[2], &x_fours);
        four_columns::<M, 3>(low_dots, low[3], &x_fours);
        four_columns::<M, 3>(byte_dots, bytes[3], &x_fours);
    }
}

/// Multipliers and offsets of each of two strips of a block.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn pair_parameters(block: &[u8; PANEL_BLOCK], pair: usize) -> [[float32x4_t; 2]; 2] {
    let strips = block.as_chunks::<16>().0;
    [widen_8(load_halves(&strips[2 * pair])), widen_8(load_halves(&strips[2 * pair + 1]))]
}

/// A value of each of up to four rows.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn load_rows<const M: usize>(x: &[f32; M]) -> float32x4_t {
    let (pairs, rest) = x.as_chunks::<2>();
    let mut halves = [vdup_n_f32(0.0); 2];
    for (half, pair) in halves.iter_mut().zip(pairs) {
        // SAFETY: `pair` is two readable floats.
        *half = unsafe { vld1_f32(pair.as_ptr()) };
    }
    if let [third] = rest {
        halves[1] = vdup_n_f32(*third);
    }
    vcombine_f32(halves[0], halves[1])
}

/// `total + a * b[lane]`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_by_lane(total: float32x4_t, a: float32x4_t, b: float32x4_t, lane: usize) -> float32x4_t {
    match lane {
        0 => vfmaq_laneq_f32::<0>(total, a, b),
        1 => vfmaq_laneq_f32::<1>(total, a, b),
        2 => vfmaq_laneq_f32::<2>(total, a, b),
        _ => vfmaq_laneq_f32::<3>(total, a, b),
    }
}

/// Four times `x[lane]`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn lane_of(x: int32x4_t, lane: usize) -> int32x4_t {
    match lane {
        0 => vdupq_laneq_s32::<0>(x),
        1 => vdupq_laneq_s32::<1>(x),
        2 => vdupq_laneq_s32::<2>(x),
        _ => vdupq_laneq_s32::<3>(x),
    }
}

/// Makes totals of two rows a block's: the offsets in v31 times the rows' sums of activations, and
/// products' sums less the zero in v29 times the steps in v24.
macro_rules! begin_total {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!(
            floats_by_lane!("fmul" $ta 31 $x $i),
            floats_by_lane!("fmul" $tb 31 $x $j),
            floats!("fsub" 25 $a 29),
            floats!("fsub" 30 $b 29),
            floats!("fmla" $ta 25 24),
            floats!("fmla" $tb 30 24),
        )
    };
}

/// Adds the same to the totals.
macro_rules! add_total {
    ($a:literal $b:literal $ta:literal $tb:literal $x:literal $i:literal $j:literal
     $y:literal $z:literal $at:literal) => {
        concat!(
            floats_by_lane!("fmla" $ta 31 $x $i),
            floats_by_lane!("fmla" $tb 31 $x $j),
            floats!("fsub" 25 $a 29),
            floats!("fsub" 30 $b 29),
            floats!("fmla" $ta 25 24),
            floats!("fmla" $tb 30 24),
        )
    };
}

/// Loads a block's steps and offsets, the sums of its activations, and the products' zero.
macro_rules! load_12_parameters {
    () => {
        concat!(
            "ldp q24, q31, [{w}], #512\n",
            "ld1 {{v26.4s, v27.4s, v28.4s}}, [{sums}], #48\n",
            "dup v29.4s, {zero:w}\n",
        )
    };
}

macro_rules! load_8_parameters {
    () => {
        concat!(
            "ldp q24, q31, [{w}], #512\n",
            "ldp q26, q27, [{sums}], #32\n",
            "dup v29.4s, {zero:w}\n",
        )
    };
}

gemm_q4!("neon,dotprod" gemm_q8_q4_f32_12x16c4: 12 lines_12 sdot_12_rows load_12_parameters add_out_12,
    zero = in(reg) ZERO.to_bits());
gemm_q4!("neon,dotprod" gemm_q8_q4_f32_8x16c4: 8 lines_8 sdot_8_rows load_8_parameters add_out_8,
    zero = in(reg) ZERO.to_bits());

/// Eight `sdot`: sixteen columns of two strips, whose bytes as they are go to `$bytes` and whose low
/// codes to `$low`, by the activations in `$x`; v26 is a mask.
macro_rules! sdot_codes {
    ($low:literal $bytes:literal $x:literal) => {
        concat!(
            "ld1 {{v20.16b, v21.16b, v22.16b, v23.16b}}, [{w}], #64\n",
            "and v16.16b, v20.16b, v26.16b\n",
            "and v17.16b, v21.16b, v26.16b\n",
            "and v18.16b, v22.16b, v26.16b\n",
            "and v19.16b, v23.16b, v26.16b\n",
            "sdot v",
            $bytes,
            ".4s, v20.16b, v",
            $x,
            ".4b[0]\n",
            "sdot v",
            $low,
            ".4s, v16.16b, v",
            $x,
            ".4b[0]\n",
            "sdot v",
            $bytes,
            ".4s, v21.16b, v",
            $x,
            ".4b[1]\n",
            "sdot v",
            $low,
            ".4s, v17.16b, v",
            $x,
            ".4b[1]\n",
            "sdot v",
            $bytes,
            ".4s, v22.16b, v",
            $x,
            ".4b[2]\n",
            "sdot v",
            $low,
            ".4s, v18.16b, v",
            $x,
            ".4b[2]\n",
            "sdot v",
            $bytes,
            ".4s, v23.16b, v",
            $x,
            ".4b[3]\n",
            "sdot v",
            $low,
            ".4s, v19.16b, v",
            $x,
            ".4b[3]\n",
        )
    };
}

/// Loads a block's parameters: multipliers to `$a` to `$d`, offsets to v28 to v31.
macro_rules! load_parameters {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "ld1 {{v28.8h, v29.8h, v30.8h, v31.8h}}, [{w}], #64\n",
            "fcvtl v",
            $a,
            ".4s, v28.4h\n",
            "fcvtl v",
            $b,
            ".4s, v29.4h\n",
            "fcvtl v",
            $c,
            ".4s, v30.4h\n",
            "fcvtl v",
            $d,
            ".4s, v31.4h\n",
            "fcvtl2 v28.4s, v28.8h\n",
            "fcvtl2 v29.4s, v29.8h\n",
            "fcvtl2 v30.4s, v30.8h\n",
            "fcvtl2 v31.4s, v31.8h\n",
        )
    };
}

/// Adds the codes' sums times `$a` to `$d` to the totals v4 to v7. The sums of high codes, times 16,
/// are what those of bytes have above those of low codes.
macro_rules! add_code_totals {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "sub v17.4s, v1.4s, v0.4s\n",
            "sub v19.4s, v3.4s, v2.4s\n",
            "scvtf v16.4s, v0.4s\n",
            "scvtf v17.4s, v17.4s, #4\n",
            "scvtf v18.4s, v2.4s\n",
            "scvtf v19.4s, v19.4s, #4\n",
            add_products_4!($a $b $c $d),
        )
    };
}

/// Ends the block before, whose multipliers are in v8 to v11 or in v12 to v15, with those of the
/// next in the others.
macro_rules! end_block {
    ($a:literal $b:literal $c:literal $d:literal, $e:literal $f:literal $g:literal $h:literal) => {
        concat!(
            load_parameters!($e $f $g $h),
            "fsub v", $a, ".4s, v", $a, ".4s, v", $e, ".4s\n",
            "fsub v", $b, ".4s, v", $b, ".4s, v", $f, ".4s\n",
            "fsub v", $c, ".4s, v", $c, ".4s, v", $g, ".4s\n",
            "fsub v", $d, ".4s, v", $d, ".4s, v", $h, ".4s\n",
            add_code_totals!($a $b $c $d),
        )
    };
}

/// Offsets times a lane of v27, and the products of a block. High codes stand in their bytes less 8,
/// which is 128 for each activation.
macro_rules! add_block {
    ($lane:literal) => {
        concat!(
            "fmla v4.4s, v28.4s, v27.s[", $lane, "]\n",
            "fmla v5.4s, v29.4s, v27.s[", $lane, "]\n",
            "fmla v6.4s, v30.4s, v27.s[", $lane, "]\n",
            "fmla v7.4s, v31.4s, v27.s[", $lane, "]\n",
            "ld1 {{v24.16b, v25.16b}}, [{x}], #32\n",
            "fcvtzs v28.4s, v27.4s, #7\n",
            "dup v28.4s, v28.s[", $lane, "]\n",
            "add v1.4s, v1.4s, v28.4s\n",
            "add v3.4s, v3.4s, v28.4s\n",
            sdot_codes!(0 1 24),
            sdot_codes!(0 1 25),
            sdot_codes!(2 3 24),
            sdot_codes!(2 3 25),
        )
    };
}

/// One row of activations by a panel.
#[target_feature(enable = "neon,dotprod")]
fn gemv_q8_q4_f32_1x16c4(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let (n, steps) = (x.scales.len(), x.blocks());
    assert!(n != 0);
    assert!(steps != 0);
    assert_eq!(panel.len(), n * steps * PANEL_BLOCK);
    assert_eq!(x.q.len(), n * steps * BLOCK);
    assert_eq!(x.sums.len(), n * steps);
    assert_eq!(out.len(), NR);
    // SAFETY: for each of `n` groups this reads a scale and writes what it read of `out`, all of it;
    // for each of its `steps` blocks it reads one of `panel`, 32 bytes of `x` and a sum. So many were
    // found to be there. Everything else is registers that are named.
    unsafe {
        asm!(
            "movi v26.16b, #15",
            "2:",
            concat!(clear!(0 4), clear!(1 5), clear!(2 6), clear!(3 7)),
            load_parameters!(8 9 10 11),
            "lsr {pair}, {steps}, #1",
            "cbnz {pair}, 4f",
            "b 6f",
            "3:",
            end_block!(12 13 14 15, 8 9 10 11),
            "4:",
            "ldr d27, [{sums}], #8",
            add_block!(0),
            end_block!(8 9 10 11, 12 13 14 15),
            add_block!(1),
            "subs {pair}, {pair}, #1",
            "b.ne 3b",
            "tbz {steps}, #0, 5f",
            end_block!(12 13 14 15, 8 9 10 11),
            "6:",
            "ldr s27, [{sums}], #4",
            add_block!(0),
            add_code_totals!(8 9 10 11),
            "b 7f",
            "5:",
            add_code_totals!(12 13 14 15),
            "7:",
            add_out_single!(),
            "subs {n}, {n}, #1",
            "b.ne 2b",
            w = inout(reg) panel.as_ptr() => _, x = inout(reg) x.q.as_ptr() => _,
            sums = inout(reg) x.sums.as_ptr() => _, scales = inout(reg) x.scales.as_ptr() => _,
            out = in(reg) out.as_mut_ptr(), n = inout(reg) n => _, steps = in(reg) steps,
            pair = out(reg) _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _,
            out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack)
        );
    }
}

/// Writes 16 bytes number `i` of `out`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn store(out: &mut [u8; STRIP], i: usize, x: uint8x16_t) {
    let out = &mut out.as_chunks_mut::<16>().0[i];
    // SAFETY: `out` is 16 writable bytes, and the store needs no alignment.
    unsafe { vst1q_u8(out.as_mut_ptr(), x) };
}
