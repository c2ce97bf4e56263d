//! AVX2 with FMA and F16C.
//!
//! Int8 tiles hold one sum of 8 × i32 for each pair of rows, in up to 8 of the 16 registers. At the end of each group,
//! horizontal adds join the sums of four weight rows.

use std::arch::asm;
use std::arch::x86_64::*;

use half::f16;

use self::kv8::{score_i8, score_i8_4, weigh_i8, weigh_i8_4};
use self::q4::{
    UNPACKED_BLOCK, gemm_q8_b2_f32_1x16c4, gemm_q8_b2_f32_1x16c4_past_l2, gemm_q8_b2_f32_2x16c4,
    gemm_q8_b2_f32_3x16c4, gemm_q8_b2_f32_4x16c4, gemm_q8_b2_f32_4x16c4_unpacked,
    gemm_q8_b2_f32_5x16c4, gemm_q8_b2_f32_6x16c4_unpacked, gemm_q8_q4_f32_1x16c4,
    gemm_q8_q4_f32_1x16c4_past_l2, gemm_q8_q4_f32_2x16c4, gemm_q8_q4_f32_3x16c4,
    gemm_q8_q4_f32_4x16c4, gemm_q8_q4_f32_4x16c4_unpacked, gemm_q8_q4_f32_5x16c4,
    gemm_q8_q4_f32_6x16c4_unpacked, unpacked_parameters_b2,
};
use self::vectors::{add_products, largest, load, load_8, load_32, load_lanes, widen};
use super::matmul::{chunks, level, level_blocks, level_weights, scales};
use super::packed::cut::{TileKernel, TileSet};
use super::packed::ggml::{self, Unpacked};
use super::packed::layout::Layout;
use super::packed::matmul::place_rows;
use super::packed::table::{PART_BYTES, PackedTable, Unpack};
use super::packed::tile::TileFn;
use super::stream::{INTO_L1, INTO_L2, PAST_L2, prefetch_ahead};
use super::table::{Blocks4, SummedRow, Table};
use super::ymm::{PANEL_BLOCK, PANEL_BLOCK_B2, PARAMETERS_B2, ymm_tiles};
use super::{float, peak, scalar, tier};
use crate::quant::Q8Row;
use crate::quant::bcml1::{BLOCK, Block};
use crate::quant::ggml::Form;

pub(super) mod kv8;
mod q4;
mod runs;
pub(super) mod vectors;

tier::float_kernels!(true, PACKED, #[target_feature(enable = "avx2,fma,f16c")]);
tier::tile_kernels!(true, #[target_feature(enable = "avx2,fma,f16c")]);

/// The tier's functions for processors that prefetch better by [`PAST_L2`].
pub(super) static TABLE_PAST_L2: Table =
    Table { read_all: read_all_past_l2, packed: PACKED_PAST_L2, ..TABLE };

const PACKED: Option<PackedTable> = packed::<INTO_L1>([&TILES_Q8, &TILES_Q4, &TILES_B2]);
const PACKED_PAST_L2: Option<PackedTable> =
    packed::<PAST_L2>([&TILES_Q8_PAST_L2, &TILES_Q4_PAST_L2, &TILES_B2_PAST_L2]);

const fn packed<const HINT: i32>(
    [tiles_q8, tiles_q4, tiles_b2]: [&'static TileSet; 3],
) -> Option<PackedTable> {
    Some(PackedTable {
        layout: Layout::AVX2,
        tiles_q8,
        tiles_q4,
        tiles_b2,
        run_tiles: runs::tiles::<HINT>,
        byte_tiles: runs::byte_tiles,
        unpack_ggml,
        place: place_rows,
        part_bytes: PART_BYTES,
        unpack_q4: Some(Unpack {
            unpack: unpack_q4,
            packed_bytes: PANEL_BLOCK,
            bytes: UNPACKED_BLOCK,
        }),
        unpack_b2: Some(Unpack {
            unpack: unpack_b2,
            packed_bytes: PANEL_BLOCK_B2,
            bytes: UNPACKED_BLOCK,
        }),
    })
}

/// See [`ggml::unpack`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_ggml(layout: Layout, form: Form, blocks: &[u8], out: &mut Unpacked<'_>) {
    ggml::unpack::<32>(layout, form, blocks, out);
}

static TILES_Q8: TileSet = tiles_q8::<INTO_L1>();
static TILES_Q8_PAST_L2: TileSet = tiles_q8::<PAST_L2>();

/// Costs are hundredths of a millisecond of two layers of TinyLlama's shape, measured on Zen 5.
const fn tiles_q8<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemm_q8_q8_f32_mx16c4::<1, 2, HINT>, 370),
        TileKernel::new(2, gemm_q8_q8_f32_mx16c4::<2, 1, INTO_L1>, 250),
        TileKernel::new(3, gemm_q8_q8_f32_mx16c4::<3, 1, INTO_L1>, 330),
        TileKernel::new(4, gemm_q8_q8_f32_mx16c4::<4, 1, INTO_L1>, 430),
    ];
    TileSet::new(&tiles, 0)
}

static TILES_Q4: TileSet = tiles_q4(gemm_q8_q4_f32_1x16c4);
static TILES_Q4_PAST_L2: TileSet = tiles_q4(gemm_q8_q4_f32_1x16c4_past_l2);

/// Tiles for 4-bit weights. Costs are instructions per block of a panel.
const fn tiles_q4(single: TileFn) -> TileSet {
    let tiles = [
        TileKernel::new(1, single, 122),
        TileKernel::new(2, gemm_q8_q4_f32_2x16c4, 180),
        TileKernel::new(3, gemm_q8_q4_f32_3x16c4, 240),
        TileKernel::new(4, gemm_q8_q4_f32_4x16c4, 295),
        TileKernel::new(4, gemm_q8_q4_f32_4x16c4_unpacked, 270).unpacked(),
        TileKernel::new(5, gemm_q8_q4_f32_5x16c4, 355),
        TileKernel::new(6, gemm_q8_q4_f32_6x16c4_unpacked, 385).unpacked(),
    ];
    TileSet::new(&tiles, 80)
}

static TILES_B2: TileSet = tiles_b2(gemm_q8_b2_f32_1x16c4);
static TILES_B2_PAST_L2: TileSet = tiles_b2(gemm_q8_b2_f32_1x16c4_past_l2);

/// Tiles for weights of BCML2. Costs are hundredths of a microsecond per 64 rows of 2048 weights, measured on Zen 4.
const fn tiles_b2(single: TileFn) -> TileSet {
    let tiles = [
        TileKernel::new(1, single, 171),
        TileKernel::new(2, gemm_q8_b2_f32_2x16c4, 283),
        TileKernel::new(3, gemm_q8_b2_f32_3x16c4, 368),
        TileKernel::new(4, gemm_q8_b2_f32_4x16c4, 447),
        TileKernel::new(4, gemm_q8_b2_f32_4x16c4_unpacked, 375).unpacked(),
        TileKernel::new(5, gemm_q8_b2_f32_5x16c4, 535),
        TileKernel::new(6, gemm_q8_b2_f32_6x16c4_unpacked, 557).unpacked(),
    ];
    TileSet::new(&tiles, 190)
}

ymm_tiles!("avx2,fma,f16c", add_products, false);

/// Unpacks codes and parameters of panels, once for many tiles, in groups of `n` blocks.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_q4(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks_exact(n);
    let out = out.as_chunks_mut::<UNPACKED_BLOCK>().0.chunks_exact_mut(n);
    for (w, out) in groups.zip(out) {
        let [mut multipliers, mut offsets] = block_parameters(w.first());
        for (b, (block, out)) in w.iter().zip(out).enumerate() {
            let [next_multipliers, next_offsets] = block_parameters(w.get(b + 1));
            let (parameters_out, codes_out) = out.as_chunks_mut::<64>().0.split_at_mut(2);
            for j in 0..2 {
                let step = _mm256_sub_ps(multipliers[j], next_multipliers[j]);
                store_floats(&mut parameters_out[0].as_chunks_mut().0[j], step);
                store_floats(&mut parameters_out[1].as_chunks_mut().0[j], offsets[j]);
            }
            let codes = &block.as_chunks::<64>().0[1..];
            for (codes, out) in codes.iter().zip(codes_out.as_chunks_mut::<2>().0) {
                let both = load_pair(codes);
                for (half, out) in out.iter_mut().enumerate() {
                    store_pair(out, half_codes(both, half));
                }
            }
            (multipliers, offsets) = (next_multipliers, next_offsets);
        }
    }
}

/// Unpacks a panel of BCML2. The first of two blocks holds the zeros of both.
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack_b2(panel: &[u8], n: usize, out: &mut [u8]) {
    let groups = panel.as_chunks::<PANEL_BLOCK_B2>().0.chunks_exact(n);
    let out = out.as_chunks_mut::<UNPACKED_BLOCK>().0.chunks_exact_mut(n);
    for (w, out) in groups.zip(out) {
        for (b, out) in out.iter_mut().enumerate() {
            let (parameters_out, codes_out) = out.as_chunks_mut::<64>().0.split_at_mut(2);
            let parameters = unpacked_parameters_b2(&w[b], w.get(b + 1));
            for (out, parameters) in parameters_out.iter_mut().zip(parameters) {
                store_pair(out, parameters);
            }
            let codes = w[b][PARAMETERS_B2..].as_chunks::<64>().0;
            for (codes, out) in codes.iter().zip(codes_out.as_chunks_mut::<2>().0) {
                let both = load_pair(codes);
                for (half, out) in out.iter_mut().enumerate() {
                    store_pair(out, half_codes(both, half));
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn store_pair(out: &mut [u8; 64], x: [__m256i; 2]) {
    for (out, x) in out.as_chunks_mut::<32>().0.iter_mut().zip(x) {
        // SAFETY: `out` is 32 writable bytes, and `storeu` needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) };
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn store_floats(out: &mut [u8; 32], x: __m256) {
    // SAFETY: `out` is 32 writable bytes, and `storeu` needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), x) };
}

/// One activation row by four weight rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_q8_q8_f32_1x4(x: &Q8Row<'_>, w: &[Q8Row<'_>; 4], group: usize) -> [f32; 4] {
    let [y] = tile_q8([x], w, group);
    y
}

/// Four activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_q8_q8_f32_4x4(
    x: &[Q8Row<'_>; 4],
    w: &[Q8Row<'_>; 4],
    group: usize,
) -> [[f32; 4]; 4] {
    let [a, b, c, d] = x;
    let ([a, b], [c, d]) = (tile_q8([a, b], w, group), tile_q8([c, d], w, group));
    [a, b, c, d]
}

/// `M` activation rows by four weight rows: `[activation][weight]`.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_q8<const M: usize>(x: [&Q8Row<'_>; M], w: &[Q8Row<'_>; 4], group: usize) -> [[f32; 4]; M] {
    let mut out = [_mm_setzero_ps(); M];
    let k = x[0].q.len();
    let (x, w) = (level(x, k, group), level(w.each_ref(), k, group));
    for g in 0..k / group {
        let (x_chunks, w_chunks) = (chunks(&x, g, group), chunks(&w, g, group));
        let mut sums = [[_mm256_setzero_si256(); 4]; M];
        for c in 0..group / 32 {
            let mut x = [_mm256_setzero_si256(); M];
            for i in 0..M {
                x[i] = load(&x_chunks[i][c]);
            }
            for j in 0..4 {
                let w = load(&w_chunks[j][c]);
                for i in 0..M {
                    sums[i][j] = add_products(sums[i][j], x[i], w);
                }
            }
        }
        let [a, b, c, d] = scales(&w, g);
        for i in 0..M {
            let dots = _mm_cvtepi32_ps(join(sums[i]));
            let total = _mm_mul_ps(dots, _mm_setr_ps(a, b, c, d));
            out[i] = _mm_fmadd_ps(total, _mm_set1_ps(x[i].scales[g]), out[i]);
        }
    }
    let mut y = [[0.0; 4]; M];
    for i in 0..M {
        store(&mut y[i], out[i]);
    }
    y
}

/// One activation row by four weight rows of 4 bits.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_q8_q4_f32_1x4(x: &SummedRow<'_>, w: &Blocks4<'_>, group: usize) -> [f32; 4] {
    let [y] = tile_q4([x], w, group);
    y
}

/// Four activation rows by four weight rows of 4 bits: `[activation][weight]`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_q8_q4_f32_4x4(
    x: &[SummedRow<'_>; 4],
    w: &Blocks4<'_>,
    group: usize,
) -> [[f32; 4]; 4] {
    let [a, b, c, d] = x;
    let ([a, b], [c, d]) = (tile_q4([a, b], w, group), tile_q4([c, d], w, group));
    [a, b, c, d]
}

/// `M` activation rows by four weight rows of 4 bits: `[activation][weight]`.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_q4<const M: usize>(x: [&SummedRow<'_>; M], w: &Blocks4<'_>, group: usize) -> [[f32; 4]; M] {
    let mut out = [_mm_setzero_ps(); M];
    let (blocks, group_blocks) = (w[0].len(), group / BLOCK);
    let (x_blocks, w) = (level_blocks(x, blocks), level_weights(w, blocks));
    let mut totals = [_mm_setzero_ps(); M];
    let mut sums = [[_mm256_setzero_si256(); 4]; M];
    for b in 0..blocks {
        if b % group_blocks == 0 {
            (sums, totals) = ([[_mm256_setzero_si256(); 4]; M], [_mm_set1_ps(-0.0); M]);
        }
        let (mut multipliers, offsets) = parameters([&w[0][b], &w[1][b], &w[2][b], &w[3][b]]);
        if (b + 1) % group_blocks != 0 {
            let next = [&w[0][b + 1], &w[1][b + 1], &w[2][b + 1], &w[3][b + 1]];
            multipliers = _mm_sub_ps(multipliers, parameters(next).0);
        }
        for j in 0..4 {
            let codes = codes(&w[j][b]);
            for i in 0..M {
                // A pair of products is at most `2 * 15 * 127` and does not saturate.
                let pairs = _mm256_maddubs_epi16(codes, load(&x_blocks[i].0[b]));
                let products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                sums[i][j] = _mm256_add_epi32(sums[i][j], products);
            }
        }
        for i in 0..M {
            let x_sum = _mm_set1_ps(x_blocks[i].1[b] as f32);
            let total = _mm_fmadd_ps(x_sum, offsets, totals[i]);
            totals[i] = _mm_fmadd_ps(_mm_cvtepi32_ps(join(sums[i])), multipliers, total);
        }
        if (b + 1) % group_blocks == 0 {
            for i in 0..M {
                let x_scale = _mm_set1_ps(x[i].row.scales[b / group_blocks]);
                out[i] = _mm_fmadd_ps(totals[i], x_scale, out[i]);
            }
        }
    }
    let mut y = [[0.0; 4]; M];
    for i in 0..M {
        store(&mut y[i], out[i]);
    }
    y
}

/// The codes of a block, a byte each, in the order of its values.
#[target_feature(enable = "avx2,fma,f16c")]
fn codes(block: &Block) -> __m256i {
    // SAFETY: `codes` is 16 readable bytes, and `loadu` needs no alignment.
    let low = unsafe { _mm_loadu_si128(block.codes.as_ptr().cast()) };
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// Multipliers and offsets of four rows' blocks.
#[target_feature(enable = "avx2,fma,f16c")]
fn parameters(blocks: [&Block; 4]) -> (__m128, __m128) {
    let [a, b, c, d] = blocks.map(Block::parameters);
    let pairs = _mm256_cvtph_ps(_mm_setr_epi32(a as i32, b as i32, c as i32, d as i32));
    let (ab, cd) = (_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
    (_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm_shuffle_ps::<0b11_01_11_01>(ab, cd))
}

/// The totals of four sums.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn join(sums: [__m256i; 4]) -> __m128i {
    let [a, b, c, d] = sums;
    let halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves))
}

/// Dot products of `x` with up to four rows of its length; see [`float::dots`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dots<const N: usize>(x: &[f32], rows: [&[f32]; N]) -> [f32; 4] {
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let (x_chunks, rows_chunks) = (float::chunks(x), float::chunks_of(rows, x.len()));
    for c in 0..x_chunks.len() {
        let x = load_lanes(&x_chunks[c]);
        for i in 0..N {
            sums[i] = add_lanes(sums[i], x, load_lanes(&rows_chunks[i][c]));
        }
    }
    if !x.len().is_multiple_of(float::LANES) {
        let x = load_lanes(&float::last_chunk(x));
        for i in 0..N {
            sums[i] = add_lanes(sums[i], x, load_lanes(&float::last_chunk(rows[i])));
        }
    }
    let mut fours = [_mm_setzero_ps(); 4];
    for i in 0..N {
        let eight = _mm256_add_ps(sums[i][0], sums[i][1]);
        fours[i] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    }
    let [a, b, c, d] = fours;
    let mut y = [0.0; 4];
    store(&mut y, _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d)));
    y
}

#[target_feature(enable = "avx2,fma,f16c")]
fn add_lanes(sums: [__m256; 2], a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
    [_mm256_fmadd_ps(a[0], b[0], sums[0]), _mm256_fmadd_ps(a[1], b[1], sums[1])]
}

/// Computes [`dots`] of four rows by four.
#[target_feature(enable = "avx2,fma,f16c")]
fn dots44(x: [&[f32]; 4], rows: [&[f32]; 4]) -> [[f32; 4]; 4] {
    let ([a, b, c, d], [e, f, g, h]) = (x, rows);
    let ([a_ef, b_ef], [a_gh, b_gh]) = (dots22([a, b], [e, f]), dots22([a, b], [g, h]));
    let ([c_ef, d_ef], [c_gh, d_gh]) = (dots22([c, d], [e, f]), dots22([c, d], [g, h]));
    let mut y = [[0.0; 4]; 4];
    let halves = [[a_ef, a_gh], [b_ef, b_gh], [c_ef, c_gh], [d_ef, d_gh]];
    for (y, [low, high]) in y.iter_mut().zip(halves) {
        store(y, _mm_hadd_ps(low, high));
    }
    y
}

/// Dot products of two rows with two others, without the last addition: for each of `x`, two halves with the first row
/// and two with the second.
#[target_feature(enable = "avx2,fma,f16c")]
fn dots22(x: [&[f32]; 2], rows: [&[f32]; 2]) -> [__m128; 2] {
    let mut sums = [[[_mm256_setzero_ps(); 2]; 2]; 2];
    let len = x[0].len();
    let (x_chunks, rows_chunks) = (float::chunks_of(x, len), float::chunks_of(rows, len));
    for c in 0..x_chunks[0].len() {
        let rows = [load_lanes(&rows_chunks[0][c]), load_lanes(&rows_chunks[1][c])];
        for i in 0..2 {
            let x = load_lanes(&x_chunks[i][c]);
            for j in 0..2 {
                sums[i][j] = add_lanes(sums[i][j], x, rows[j]);
            }
        }
    }
    if !len.is_multiple_of(float::LANES) {
        let rows = rows.map(float::last_chunk);
        let rows = [load_lanes(&rows[0]), load_lanes(&rows[1])];
        for i in 0..2 {
            let x = load_lanes(&float::last_chunk(x[i]));
            for j in 0..2 {
                sums[i][j] = add_lanes(sums[i][j], x, rows[j]);
            }
        }
    }
    let mut y = [_mm_setzero_ps(); 2];
    for i in 0..2 {
        let [a, b] = [
            _mm256_add_ps(sums[i][0][0], sums[i][0][1]),
            _mm256_add_ps(sums[i][1][0], sums[i][1][1]),
        ];
        let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let b = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps::<1>(b));
        y[i] = _mm_hadd_ps(a, b);
    }
    y
}

/// Nearest integers, ties to even, of values times `factor`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn round(x: &[[f32; 32]], factor: f32, q: &mut [[i8; 32]]) {
    let factor = _mm256_set1_ps(factor);
    // Packing works in each 128-bit half; this puts the groups of four bytes back in order.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (x, q) in x.iter().zip(q) {
        let [a, b, c, d] = load_32(x);
        let (a, b) = (_mm256_mul_ps(a, factor), _mm256_mul_ps(b, factor));
        let (c, d) = (_mm256_mul_ps(c, factor), _mm256_mul_ps(d, factor));
        let ab = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
        let cd = _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d));
        let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
        // SAFETY: `q` is 32 writable bytes, and `storeu` needs no alignment.
        unsafe { _mm256_storeu_si256(q.as_mut_ptr().cast(), bytes) };
    }
}

/// See [`super::Kernels::store_kv`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn narrow(x: &[f32], out: &mut [f16]) {
    let (min, max) = (_mm256_set1_ps(-scalar::F16_MAX), _mm256_set1_ps(scalar::F16_MAX));
    let ((x, x_tail), (out, out_tail)) = (x.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, out) in x.iter().zip(out) {
        // Given a number and a NaN, these return the second operand: a NaN stays.
        let x = _mm256_max_ps(min, _mm256_min_ps(max, load_8(x)));
        let x = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
        // SAFETY: `out` is 16 writable bytes, and `storeu` needs no alignment.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), x) };
    }
    scalar::narrow(x_tail, out_tail);
}

/// See [`super::Kernels::read_all`].
#[target_feature(enable = "avx2,fma,f16c")]
fn read_all(bytes: &[u8]) -> u64 {
    peak::read_all(bytes, prefetch_ahead::<INTO_L2>)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn read_all_past_l2(bytes: &[u8]) -> u64 {
    peak::read_all(bytes, prefetch_ahead::<PAST_L2>)
}

/// See [`super::Kernels::spin_int8`]: 32 products in four instructions.
#[target_feature(enable = "avx2,fma,f16c")]
fn spin_int8(rounds: usize) -> i32 {
    let w = _mm256_set1_epi8(std::hint::black_box(3));
    let mut x = w;
    let step = |sums: &mut [__m256i; 8]| {
        for sum in sums {
            // SAFETY: no instructions. The compiler cannot assume that `x`, and with it all products, stays the same.
            unsafe { asm!("/* {x} */", x = inout(ymm_reg) x, options(nomem, nostack)) };
            *sum = add_products(*sum, x, w);
        }
    };
    let zero = _mm256_setzero_si256();
    peak::spin(rounds, 32, zero, step, |sums| _mm256_extract_epi32::<0>(sums))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn store(out: &mut [f32; 4], x: __m128) {
    // SAFETY: `out` is four writable floats, and `storeu` needs no alignment.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), x) };
}
