//! ARMv8.0 Advanced SIMD.
//!
//! Int8 products of 16 + 16 values take three instructions: one multiplies the lower halves to eight i16, one adds the
//! products of the upper halves, and one adds neighbours to four i32. Packed weights are multiplied by the same four
//! activations all along a vector: each half of a vector holds two rows, and of four i32 sums two belong to each row.

use std::arch::aarch64::*;
use std::arch::asm;

use half::f16;

use self::attend::{score_4, weigh_4};
use self::exp::{soften_4, swiglu};
use self::kv8::{score_i8, score_i8_4, weigh_i8, weigh_i8_4};
use self::vectors::{dots, load_four, load_lanes};
pub(super) use self::vectors::{largest, load, load_32, load_floats, store, widen, widen_8};
use super::matmul::{chunks, level, level_blocks, level_weights, scales};
use super::packed::cut::{TileKernel, TileSet};
use super::packed::ggml::{self, Unpacked};
use super::packed::layout::Layout;
use super::packed::matmul::place_rows;
use super::packed::table::{PART_BYTES, PackedTable};
use super::packed::tile::Q8Tile;
use super::table::{Blocks4, SummedRow};
use super::{peak, scalar, tier};
use crate::quant::Q8Row;
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES, Block};
use crate::quant::ggml::Form;

mod attend;
mod b2;
mod exp;
pub(super) mod kv8;
pub(super) mod registers;
pub(super) mod runs;
pub(super) mod vectors;

tier::float_kernels!(true, PACKED, #[target_feature(enable = "neon")]);

const PACKED: Option<PackedTable> = Some(PackedTable {
    layout: Layout::NEON,
    tiles_q8: &TILES_Q8,
    tiles_q4: &TILES_Q4,
    tiles_b2: &b2::TILES,
    run_tiles: runs::tiles,
    unpack_ggml,
    place: place_rows,
    part_bytes: PART_BYTES,
    unpack_b2: None,
    unpack_q4: None,
});

static TILES_Q8: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemm_q8_q8_f32_mx8c4::<1>, 20),
        TileKernel::new(2, gemm_q8_q8_f32_mx8c4::<2>, 30),
        TileKernel::new(3, gemm_q8_q8_f32_mx8c4::<3>, 40),
        TileKernel::new(4, gemm_q8_q8_f32_mx8c4::<4>, 50),
    ],
    0,
);
static TILES_Q4: TileSet = TileSet::new(
    &[
        TileKernel::new(1, gemm_q8_q4_f32_mx8c4::<1>, 20),
        TileKernel::new(2, gemm_q8_q4_f32_mx8c4::<2>, 30),
        TileKernel::new(3, gemm_q8_q4_f32_mx8c4::<3>, 40),
        TileKernel::new(4, gemm_q8_q4_f32_mx8c4::<4>, 50),
    ],
    0,
);

/// See [`ggml::unpack`].
#[target_feature(enable = "neon")]
pub(super) fn unpack_ggml(layout: Layout, form: Form, blocks: &[u8], out: &mut Unpacked<'_>) {
    ggml::unpack::<32>(layout, form, blocks, out);
}

/// Rows of a panel.
const NR: usize = Layout::NEON.panel_rows();

/// Prefetch distance of [`read_all`].
const READ_AHEAD_BYTES: usize = 8192;

/// `M` rows of activations by a panel.
#[target_feature(enable = "neon")]
fn gemm_q8_q8_f32_mx8c4<const M: usize>(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let group_bytes = NR * (4 + x.group);
    for (w, x) in panel.chunks_exact(group_bytes).zip(x.groups::<M, 4>()) {
        // Sums of four rows: of the first two, and of the other two.
        let mut dots = [[[vdupq_n_s32(0); 2]; 2]; M];
        let (scales, w) = w.split_at(NR * 4);
        let w = bytemuck::cast_slice::<u8, i8>(w).as_chunks::<16>().0.as_chunks::<4>().0;
        for (w, x) in w.iter().zip(x.q.as_chunks::<2>().0) {
            let w = w.as_flattened().as_chunks::<8>().0;
            for i in 0..M {
                let x = [load_four(&x[0][i]), load_four(&x[1][i])];
                for j in 0..2 {
                    for h in 0..2 {
                        let (w0, w1) = (load_half(&w[2 * j + h]), load_half(&w[4 + 2 * j + h]));
                        let pairs = vmlal_s8(vmull_s8(w0, x[0]), w1, x[1]);
                        dots[i][j][h] = vpadalq_s16(dots[i][j][h], pairs);
                    }
                }
            }
        }
        let scales = scales.as_chunks::<16>().0;
        let mut totals = [[vdupq_n_f32(0.0); 2]; M];
        for i in 0..M {
            for j in 0..2 {
                let dots = vcvtq_f32_s32(vpaddq_s32(dots[i][j][0], dots[i][j][1]));
                totals[i][j] = vmulq_f32(dots, load_scales(&scales[j]));
            }
        }
        add_tile::<M, 8>(out, &totals, x.scales);
    }
}

/// `M` rows of activations by a panel of 4-bit weights. Until the end of a block, sums are eight i16, four for each of
/// two rows: at most `8 * 15 * 127 = 15240`.
#[target_feature(enable = "neon")]
fn gemm_q8_q4_f32_mx8c4<const M: usize>(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    const PANEL_BLOCK: usize = NR * BLOCK_BYTES;
    for (w, x) in panel.chunks_exact(PANEL_BLOCK * x.blocks()).zip(x.summed_groups::<M, 4>()) {
        let mut sums = [[vdupq_n_s32(0); 2]; M];
        let mut totals = [[vdupq_n_f32(-0.0); 2]; M];
        let w = w.as_chunks::<PANEL_BLOCK>().0;
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for ((b, block), (x_q, x_sums)) in w.iter().enumerate().zip(blocks) {
            let lines = block.as_chunks::<16>().0;
            // Sums of four rows: of the first two, and of the other two.
            let mut dots = [[[vdupq_n_s16(0); 2]; 2]; M];
            for (w, x_q) in lines[2..].as_chunks::<2>().0.iter().zip(x_q.as_chunks::<2>().0) {
                let w = [split_codes(&w[0]), split_codes(&w[1])];
                for i in 0..M {
                    for half in 0..2 {
                        let x = load_four(&x_q[half][i]);
                        for j in 0..2 {
                            let [low, high] = dots[i][j];
                            let w = w[j][half];
                            dots[i][j] = [
                                vmlal_s8(low, vget_low_s8(w), x),
                                vmlal_s8(high, vget_high_s8(w), x),
                            ];
                        }
                    }
                }
            }
            let mut multipliers = widen_8(load_halves(&lines[0]));
            let offsets = widen_8(load_halves(&lines[1]));
            if let Some(next) = w.get(b + 1) {
                let next = widen_8(load_halves(&next.as_chunks().0[0]));
                multipliers =
                    [vsubq_f32(multipliers[0], next[0]), vsubq_f32(multipliers[1], next[1])];
            }
            for i in 0..M {
                for j in 0..2 {
                    let [low, high] = dots[i][j];
                    let dots = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
                    sums[i][j] = vaddq_s32(sums[i][j], dots);
                    let total = vfmaq_n_f32(totals[i][j], offsets[j], x_sums[i]);
                    totals[i][j] = vfmaq_f32(total, vcvtq_f32_s32(sums[i][j]), multipliers[j]);
                }
            }
        }
        add_tile::<M, 4>(out, &totals, x.scales);
    }
}

/// Adds each row's totals times its scale to `out`, `[M, 8]`. Kernels of weights of other `BITS` have another function:
/// the compiler takes one with a single caller into that, however large it is.
#[target_feature(enable = "neon")]
#[inline]
fn add_tile<const M: usize, const BITS: usize>(
    out: &mut [f32],
    totals: &[[float32x4_t; 2]; M],
    scales: &[f32; M],
) {
    let (out, _) = out.as_chunks_mut::<4>();
    for i in 0..M {
        for j in 0..2 {
            let out = &mut out[2 * i + j];
            store(out, vfmaq_n_f32(load_floats(out), totals[i][j], scales[i]));
        }
    }
}

/// Adds each row's totals times its scale to a strip of `out`, `[4, M, 4]`.
#[target_feature(enable = "neon")]
pub(super) fn add_rows<const M: usize>(
    out: &mut [f32],
    strip: usize,
    totals: &[float32x4_t; M],
    scales: &[f32; M],
) {
    let out = &mut out.as_chunks_mut::<4>().0[strip * M..][..M];
    for i in 0..M {
        let out = &mut out[i];
        store(out, vfmaq_n_f32(load_floats(out), totals[i], scales[i]));
    }
}

/// Writes a row of up to 16 results.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn place_row(y: [float32x4_t; 4], out: &mut [f32]) {
    if let [out] = out.as_chunks_mut::<16>().0 {
        return store_16(out, y);
    }
    let mut part = [0.0; 16];
    store_16(&mut part, y);
    out.copy_from_slice(&part[..out.len()]);
}

#[target_feature(enable = "neon")]
#[inline]
fn store_16(out: &mut [f32; 16], y: [float32x4_t; 4]) {
    for (out, y) in out.as_chunks_mut().0.iter_mut().zip(y) {
        store(out, y);
    }
}

/// The low and the high codes of 16 bytes.
#[target_feature(enable = "neon")]
pub(super) fn split_codes(x: &[u8; 16]) -> [int8x16_t; 2] {
    // SAFETY: `x` is 16 readable bytes.
    let both = unsafe { vld1q_u8(x.as_ptr()) };
    let (low, high) = (vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both));
    [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)]
}

/// Eight f16 as bits.
#[target_feature(enable = "neon")]
pub(super) fn load_halves(x: &[u8; 16]) -> uint16x8_t {
    // SAFETY: `x` is 16 readable bytes.
    vreinterpretq_u16_u8(unsafe { vld1q_u8(x.as_ptr()) })
}

/// Loads four vectors with one instruction.
#[target_feature(enable = "neon")]
pub(super) fn load_64(x: &[u8; 64]) -> [uint8x16_t; 4] {
    // SAFETY: `x` is 64 readable bytes.
    let uint8x16x4_t(a, b, c, d) = unsafe { vld1q_u8_x4(x.as_ptr()) };
    [a, b, c, d]
}

/// Four scales of a panel.
#[target_feature(enable = "neon")]
pub(super) fn load_scales(x: &[u8; 16]) -> float32x4_t {
    // SAFETY: `x` is 16 readable bytes.
    vreinterpretq_f32_u8(unsafe { vld1q_u8(x.as_ptr()) })
}

#[target_feature(enable = "neon")]
fn load_half(x: &[i8; 8]) -> int8x8_t {
    // SAFETY: `x` is eight readable bytes.
    unsafe { vld1_s8(x.as_ptr()) }
}

/// Defines the dot products of unpacked weights, of 8 and of 4 bits: `$add_q8` adds products of 16 values to four sums,
/// `$add_q4` those of a block.
macro_rules! dots_of_rows {
    ($visible:vis, $features:literal, $add_q8:ident $add_q4:ident) => {
        /// One activation row by four weight rows.
        #[target_feature(enable = $features)]
        $visible fn dot_q8_q8_f32_1x4(x: &Q8Row<'_>, w: &[Q8Row<'_>; 4], group: usize) -> [f32; 4] {
            let [y] = tile_q8([x], w, group);
            y
        }

        /// Four activation rows by four weight rows: `[activation][weight]`.
        #[target_feature(enable = $features)]
        $visible fn dot_q8_q8_f32_4x4(
            x: &[Q8Row<'_>; 4],
            w: &[Q8Row<'_>; 4],
            group: usize,
        ) -> [[f32; 4]; 4] {
            tile_q8(x.each_ref(), w, group)
        }

        /// `M` activation rows by four weight rows: `[activation][weight]`.
        #[target_feature(enable = $features)]
        fn tile_q8<const M: usize>(x: [&Q8Row<'_>; M], w: &[Q8Row<'_>; 4], group: usize) -> [[f32; 4]; M] {
            let mut out = [vdupq_n_f32(0.0); M];
            let k = x[0].q.len();
            let (x, w) = (level(x, k, group), level(w.each_ref(), k, group));
            for g in 0..k / group {
                let (x_chunks, w_chunks) = (chunks(&x, g, group), chunks(&w, g, group));
                let mut sums = [[vdupq_n_s32(0); 4]; M];
                for c in 0..group / 16 {
                    let w = [
                        load(&w_chunks[0][c]),
                        load(&w_chunks[1][c]),
                        load(&w_chunks[2][c]),
                        load(&w_chunks[3][c]),
                    ];
                    for i in 0..M {
                        let x = load(&x_chunks[i][c]);
                        for j in 0..4 {
                            sums[i][j] = $add_q8(sums[i][j], x, w[j]);
                        }
                    }
                }
                let scales = scales(&w, g);
                for i in 0..M {
                    out[i] = vfmaq_n_f32(out[i], scaled(sums[i], &scales), x[i].scales[g]);
                }
            }
            let mut y = [[0.0; 4]; M];
            for i in 0..M {
                store(&mut y[i], out[i]);
            }
            y
        }

        /// One activation row by four weight rows of 4 bits.
        #[target_feature(enable = $features)]
        $visible fn dot_q8_q4_f32_1x4(x: &SummedRow<'_>, w: &Blocks4<'_>, group: usize) -> [f32; 4] {
            let [y] = tile_q4([x], w, group);
            y
        }

        /// Four activation rows by four weight rows of 4 bits: `[activation][weight]`.
        #[target_feature(enable = $features)]
        $visible fn dot_q8_q4_f32_4x4(
            x: &[SummedRow<'_>; 4],
            w: &Blocks4<'_>,
            group: usize,
        ) -> [[f32; 4]; 4] {
            tile_q4(x.each_ref(), w, group)
        }

        /// `M` activation rows by four weight rows of 4 bits: `[activation][weight]`.
        #[target_feature(enable = $features)]
        fn tile_q4<const M: usize>(x: [&SummedRow<'_>; M], w: &Blocks4<'_>, group: usize) -> [[f32; 4]; M] {
            let (mut out, mut totals) = ([vdupq_n_f32(0.0); M], [vdupq_n_f32(0.0); M]);
            let (blocks, group_blocks) = (w[0].len(), group / BLOCK);
            let (x_blocks, w) = (level_blocks(x, blocks), level_weights(w, blocks));
            let mut sums = [[vdupq_n_s32(0); 4]; M];
            for b in 0..blocks {
                if b % group_blocks == 0 {
                    (sums, totals) = ([[vdupq_n_s32(0); 4]; M], [vdupq_n_f32(-0.0); M]);
                }
                let block = [&w[0][b], &w[1][b], &w[2][b], &w[3][b]];
                let codes = [codes(block[0]), codes(block[1]), codes(block[2]), codes(block[3])];
                let [mut multipliers, offsets] = parameters(block);
                if (b + 1) % group_blocks != 0 {
                    let next = [&w[0][b + 1], &w[1][b + 1], &w[2][b + 1], &w[3][b + 1]];
                    multipliers = vsubq_f32(multipliers, parameters(next)[0]);
                }
                for i in 0..M {
                    let x = load_32(&x_blocks[i].0[b]);
                    for j in 0..4 {
                        sums[i][j] = $add_q4(sums[i][j], x, codes[j]);
                    }
                    let total = vfmaq_n_f32(totals[i], offsets, x_blocks[i].1[b] as f32);
                    totals[i] = vfmaq_f32(total, vcvtq_f32_s32(total_of(sums[i])), multipliers);
                }
                if (b + 1) % group_blocks == 0 {
                    for i in 0..M {
                        out[i] = vfmaq_n_f32(out[i], totals[i], x[i].row.scales[b / group_blocks]);
                    }
                }
            }
            let mut y = [[0.0; 4]; M];
            for i in 0..M {
                store(&mut y[i], out[i]);
            }
            y
        }
    };
}

pub(super) use dots_of_rows;

dots_of_rows! { pub(super), "neon", add_products add_products_q4 }

/// Adds the products of a block to four sums. Four products are at most `4 * 15 * 127`, which fits an `i16`.
#[target_feature(enable = "neon")]
fn add_products_q4(sums: int32x4_t, x: [int8x16_t; 2], codes: [int8x16_t; 2]) -> int32x4_t {
    let pairs = vmull_s8(vget_low_s8(x[0]), vget_low_s8(codes[0]));
    let pairs = vmlal_high_s8(pairs, x[0], codes[0]);
    let pairs = vmlal_s8(pairs, vget_low_s8(x[1]), vget_low_s8(codes[1]));
    vpadalq_s16(sums, vmlal_high_s8(pairs, x[1], codes[1]))
}

/// The totals of four sums.
#[target_feature(enable = "neon")]
pub(super) fn total_of(sums: [int32x4_t; 4]) -> int32x4_t {
    let [a, b, c, d] = sums;
    vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
}

/// The codes of a block, a byte each, in the order of its values.
#[target_feature(enable = "neon")]
pub(super) fn codes(block: &Block) -> [int8x16_t; 2] {
    // SAFETY: `codes` is 16 readable bytes.
    let both = unsafe { vld1q_u8(block.codes.as_ptr()) };
    let (low, high) = (vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both));
    [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)]
}

/// Multipliers and offsets of four rows' blocks.
#[target_feature(enable = "neon")]
pub(super) fn parameters(blocks: [&Block; 4]) -> [float32x4_t; 2] {
    let pairs = blocks.map(Block::parameters);
    // SAFETY: `pairs` is four readable integers.
    let pairs = vreinterpretq_u16_u32(unsafe { vld1q_u32(pairs.as_ptr()) });
    // All multipliers, and all offsets.
    let (multipliers, offsets) = (vuzp1q_u16(pairs, pairs), vuzp2q_u16(pairs, pairs));
    widen_8(vcombine_u16(vget_low_u16(multipliers), vget_low_u16(offsets)))
}

/// Adds 16 products to four sums. A pair of products is at most `2 * 128 * 127 = 32512`, which fits an `i16`, because
/// `|w| <= 128` and `|x| <= 127`.
#[target_feature(enable = "neon")]
fn add_products(sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(x), vget_low_s8(w));
    vpadalq_s16(sums, vmlal_high_s8(low, x, w))
}

/// Dot products of one activation row with four weight rows, times the weights' scales.
#[target_feature(enable = "neon")]
pub(super) fn scaled(sums: [int32x4_t; 4], scales: &[f32; 4]) -> float32x4_t {
    vmulq_f32(vcvtq_f32_s32(total_of(sums)), load_floats(scales))
}

/// Nearest integers, ties to even, of values times `factor`.
#[target_feature(enable = "neon")]
#[inline]
fn round(x: &[[f32; 32]], factor: f32, q: &mut [[i8; 32]]) {
    for (x, q) in x.iter().zip(q) {
        for (x, q) in x.as_chunks().0.iter().zip(q.as_chunks_mut::<16>().0) {
            let [a, b, c, d] = load_lanes(x)
                .map(|x| vreinterpretq_s16_s32(vcvtnq_s32_f32(vmulq_n_f32(x, factor))));
            let (ab, cd) = (vuzp1q_s16(a, b), vuzp1q_s16(c, d));
            let bytes = vuzp1q_s8(vreinterpretq_s8_s16(ab), vreinterpretq_s8_s16(cd));
            // SAFETY: `q` is 16 writable bytes.
            unsafe { vst1q_s8(q.as_mut_ptr(), bytes) };
        }
    }
}

/// See [`super::Kernels::store_kv`].
#[target_feature(enable = "neon")]
pub(super) fn narrow(x: &[f32], out: &mut [f16]) {
    let ((x, x_tail), (out, out_tail)) = (x.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, out) in x.iter().zip(out) {
        let [low, high] = [clamped(x, 0), clamped(x, 4)];
        let halves: uint16x8_t;
        // SAFETY: `fcvtn` is in ARMv8.0, uses only registers, and rounds as FPCR says, which Rust keeps at nearest,
        // ties to even.
        unsafe {
            asm!("fcvtn {halves:v}.4h, {low:v}.4s", "fcvtn2 {halves:v}.8h, {high:v}.4s",
                low = in(vreg) low, high = in(vreg) high, halves = out(vreg) halves,
                options(pure, nomem, nostack, preserves_flags));
        }
        // SAFETY: `out` is 16 writable bytes, aligned as its elements are.
        unsafe { vst1q_u16(out.as_mut_ptr().cast(), halves) };
    }
    scalar::narrow(x_tail, out_tail);
}

/// Four of eight floats, clamped to the range of f16; a NaN stays.
#[target_feature(enable = "neon")]
fn clamped(x: &[f32; 8], from: usize) -> float32x4_t {
    let x = &x[from..][..4];
    // SAFETY: `x` is four readable floats.
    let x = unsafe { vld1q_f32(x.as_ptr()) };
    vmaxq_f32(vdupq_n_f32(-scalar::F16_MAX), vminq_f32(vdupq_n_f32(scalar::F16_MAX), x))
}

/// See [`super::Kernels::read_all`].
#[target_feature(enable = "neon")]
fn read_all(bytes: &[u8]) -> u64 {
    peak::read_all(bytes, |line| {
        // SAFETY: `prfm` only hints, at any address.
        unsafe {
            asm!("prfm pldl1keep, [{line}]", line = in(reg) line.wrapping_add(READ_AHEAD_BYTES),
                options(nostack, preserves_flags, readonly));
        }
    })
}

/// See [`super::Kernels::spin_int8`]: 16 products a step.
#[target_feature(enable = "neon")]
fn spin_int8(rounds: usize) -> i32 {
    let w = vdupq_n_s8(std::hint::black_box(3));
    let mut x = w;
    let step = |sums: &mut [int32x4_t; 16]| {
        for sum in sums {
            // SAFETY: no instructions. The compiler cannot assume that `x`, and with it all products, stays the same.
            unsafe { asm!("// {x:v}", x = inout(vreg) x, options(nomem, nostack)) };
            *sum = add_products(*sum, x, w);
        }
    };
    peak::spin(rounds, 16, vdupq_n_s32(0), step, |sums| vgetq_lane_s32::<0>(sums))
}
