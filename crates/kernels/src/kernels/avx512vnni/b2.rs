//! 4-bit weights with scales in two levels. Sums of a block's products fit 16 bits, so one instruction multiplies two
//! of them by their scales and adds.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::packed::cut::{TileKernel, TileSet};
use super::super::packed::tile::{AHEAD_COLUMNS, Q8Tile};
use super::super::stream::prefetch_ahead;
use super::super::ymm::for_pairs;
use super::totals::Totals;
use super::vectors::{
    NR, add_products, add_scaled, add_scaled_to, and, in_order, load, prefetch_both, shift, store,
};
use crate::quant::bcml2::{BLOCK, BLOCK_BYTES};

/// Bytes of a block of a panel.
pub(super) const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Bytes of a block's scales and zeros.
const PARAMETERS: usize = 2 * NR;

/// Bytes of an unpacked block: two integers for each row, and a byte for each code.
pub(super) const UNPACKED_BLOCK: usize = NR * (8 + BLOCK);

/// Steps of four columns that a loop takes at once.
const STEPS: usize = AHEAD_COLUMNS / 4;

/// Costs are tenths of a microsecond for 640 rows of 2048 weights in cache, measured on Zen 5. Zen 4 masks codes beside
/// products and gains nothing by unpacking; processors that cannot do both at once gain.
pub(super) const fn tiles<const HINT: i32>() -> TileSet {
    let tiles = [
        TileKernel::new(1, gemv_q8_b2_f32_1x32c4::<HINT>, 65),
        TileKernel::new(2, gemm_packed_q8_b2_f32_mx32c4::<2, 2, HINT>, 93),
        TileKernel::new(3, gemm_packed_q8_b2_f32_mx32c4::<3, 3, HINT>, 119),
        TileKernel::new(4, gemm_packed_q8_b2_f32_mx32c4::<4, 4, HINT>, 150),
        TileKernel::new(5, gemm_packed_q8_b2_f32_mx32c4::<5, 5, HINT>, 180),
        TileKernel::new(6, gemm_packed_q8_b2_f32_mx32c4::<6, 6, HINT>, 218),
        TileKernel::new(7, gemm_packed_q8_b2_f32_mx32c4::<7, 6, HINT>, 240),
        TileKernel::new(8, gemm_packed_q8_b2_f32_mx32c4::<8, 4, HINT>, 290),
        TileKernel::new(8, gemm_q8_b2_f32_mx32c4::<8>, 250).unpacked(),
    ];
    TileSet::new(&tiles, 80)
}

/// One row of activations by a panel of BCML2, with a sum of its own for the high codes times 16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemv_q8_b2_f32_1x32c4<const HINT: i32>(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let (low, high) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-16));
    let groups = panel.chunks_exact(PANEL_BLOCK * x.blocks());
    for (w, x) in groups.zip(x.summed_groups::<1, 4>()) {
        let w = w.as_chunks::<PANEL_BLOCK>().0;
        let mut totals = totals_of_zeros(w, x.sums);
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for (block, (x_q, x_sums)) in w.iter().zip(blocks) {
            prefetch_ahead::<HINT>(block.as_ptr());
            let mut dots = [sums_around_zero(x_sums), [[_mm512_setzero_si512(); 2]; 1]];
            for (w, x_q) in codes_b2(block).iter().zip(x_q.as_chunks::<2>().0) {
                prefetch_both::<HINT>(w);
                add_products(&mut dots[0], and(load(w), low), &x_q[0]);
                add_products(&mut dots[1], and(load(w), high), &x_q[1]);
            }
            let [mut dots, high] = dots;
            for j in 0..2 {
                dots[0][j] = _mm512_add_epi32(dots[0][j], _mm512_srai_epi32::<4>(high[0][j]));
            }
            add_multiples(&mut totals, &dots, scales_b2(block));
        }
        add_scaled_ints(out, &totals, x.scales);
    }
}

/// Unpacks panels of BCML2 in groups of `n` blocks: the factors of their sums, and codes of 32 columns. The first block
/// of a pair holds the zeros of both.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn unpack(panel: &[u8], n: usize, out: &mut [u8]) {
    let mask = _mm512_set1_epi8(15);
    let groups = panel.as_chunks::<PANEL_BLOCK>().0.chunks(n);
    for (w, out) in groups.zip(out.as_chunks_mut::<UNPACKED_BLOCK>().0.chunks_mut(n)) {
        for (b, out) in out.iter_mut().enumerate() {
            let out = out.as_chunks_mut::<{ 4 * NR }>().0;
            let (scales, zeros) = (scales_b2(&w[b]), zeros_b2(&w[b], w.get(b + 1)));
            for j in 0..2 {
                store(&mut out[0], j, scales[j]);
                store(&mut out[1], j, zeros[j]);
            }
            for (line, out) in codes_b2(&w[b]).iter().zip(out[2..].as_chunks_mut::<2>().0) {
                let both = load(line);
                let (low, high) = (and(both, mask), and(shift(both), mask));
                for j in 0..2 {
                    store(&mut out[0], j, low[j]);
                    store(&mut out[1], j, high[j]);
                }
            }
        }
    }
}

/// `M` rows of activations by a panel that [`unpack`] unpacked.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_b2_f32_mx32c4<const M: usize>(panel: &[u8], x: &Q8Tile<'_>, out: &mut [f32]) {
    let (n, mut ahead) = (x.blocks(), x.ahead);
    let groups = x.scales.len() / M;
    for (i, x) in x.summed_groups::<M, 4>().enumerate() {
        ahead.prefetch_rows(NR / 16, i, groups);
        let w = &panel.as_chunks::<UNPACKED_BLOCK>().0[i * n..][..n];
        let mut totals = [[_mm512_setzero_si512(); 2]; M];
        for_pairs!((w, _next) in w, (sums, next_sums) in x.sums, M => {
            add_zeros(&mut totals, load(&w.as_chunks().0[1]), [sums, next_sums]);
        });
        for ((w, x_q), x_sums) in w.iter().zip(x.q.as_chunks::<8>().0).zip(x.sums) {
            let lines = w.as_chunks::<{ 4 * NR }>().0;
            ahead.prefetch_weights(BLOCK);
            let mut dots = sums_around_zero(x_sums);
            for (w, x_q) in lines[2..].as_chunks::<STEPS>().0.iter().zip(x_q.as_chunks::<STEPS>().0)
            {
                for s in 0..STEPS {
                    add_products(&mut dots, load(&w[s]), &x_q[s]);
                }
            }
            add_multiples(&mut totals, &dots, load(&lines[0]));
        }
        add_scaled_ints(out, &totals, x.scales);
    }
}

gemm_packed!(gemm_packed_q8_b2_f32_mx32c4);

/// The loop over blocks, which prefetches `LINES` cache lines of weights with every two vectors of codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
#[expect(
    clippy::needless_range_loop,
    reason = "by iterators, it keeps what they go over in memory"
)]
fn gemm_blocks<const M: usize, const HELD: usize, const LINES: usize>(
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let (mask, mut ahead) = (_mm512_set1_epi8(15), x.ahead);
    let groups = panel.chunks_exact(PANEL_BLOCK * x.blocks());
    let out = &mut out.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0[..M];
    ahead.prefetch_rows(NR / 16, 0, 1);
    for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
        let w = w.as_chunks::<PANEL_BLOCK>().0;
        let mut totals = Totals::<__m512i, M, HELD>::of(_mm512_setzero_si512());
        for_pairs!((w, next) in w, (sums, next_sums) in x.sums, M => {
            let zeros = zeros_b2(w, next);
            for i in 0..M {
                let pair = pair_of_sums(sums[i], next_sums[i]);
                for j in 0..2 {
                    totals.set(i, j, add_pairs(totals.get(i, j), zeros[j], pair));
                }
            }
        });
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for (block, (x_q, x_sums)) in w.iter().zip(blocks) {
            match LINES {
                0 => ahead.prefetch_weights(BLOCK),
                // Half of a block's nine lines: four beside its codes, and half a line here.
                1 => ahead.prefetch_lines::<1>(32),
                _ => ahead.prefetch_lines::<1>(64),
            }
            let mut dots = sums_around_zero(x_sums);
            for (w, x_q) in codes_b2(block).iter().zip(x_q.as_chunks::<2>().0) {
                ahead.prefetch_lines::<LINES>(64 * LINES);
                let both = load(w);
                add_products(&mut dots, and(both, mask), &x_q[0]);
                add_products(&mut dots, and(shift(both), mask), &x_q[1]);
                in_order(&mut dots);
            }
            let scales = scales_b2(block);
            for i in 0..M {
                for j in 0..2 {
                    totals.set(i, j, add_pairs(totals.get(i, j), scales[j], dots[i][j]));
                }
            }
        }
        for i in 0..M {
            for j in 0..2 {
                let total = _mm512_cvtepi32_ps(totals.get(i, j));
                add_scaled_to(&mut out[i][j], total, x.scales[i]);
            }
        }
    }
}

/// Codes of a block, two to a byte.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn codes_b2(block: &[u8; PANEL_BLOCK]) -> &[[u8; 4 * NR]] {
    block[PARAMETERS..].as_chunks().0
}

/// Sums of a block's products that begin at -8 times the sum of its activations, which makes them sums for codes less
/// 8. At most `8 * 32 * 127` from 0, they fit 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn sums_around_zero<const M: usize>(x_sums: &[f32; M]) -> [[__m512i; 2]; M] {
    let mut sums = [[_mm512_setzero_si512(); 2]; M];
    for i in 0..M {
        sums[i] = [_mm512_set1_epi32(-8 * (x_sums[i].to_bits() as i32)); 2];
    }
    sums
}

/// Factors of a block's sums around zero: 16 times its scales, 16 bits in each 32.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn scales_b2(block: &[u8; PANEL_BLOCK]) -> [__m512i; 2] {
    let mut scales = [_mm512_setzero_si512(); 2];
    for (scales, rows) in scales.iter_mut().zip(block.as_chunks::<16>().0) {
        // SAFETY: `rows` is 16 readable bytes, and `loadu` needs no alignment.
        let rows = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(rows.as_ptr().cast()) });
        *scales = _mm512_slli_epi16::<4>(rows);
    }
    scales
}

/// Factors of the sums of activations of a block and the next one; those of the next are the upper 16 bits of each 32.
///
/// ```text
/// scale * (16 * d - zero * s) = 16 * scale * (d - 8 * s) + scale * (128 - zero) * s
/// ```
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn zeros_b2(block: &[u8; PANEL_BLOCK], next: Option<&[u8; PANEL_BLOCK]>) -> [__m512i; 2] {
    let zeros = block_zeros(block);
    let next = match next {
        Some(next) => block_zeros(next),
        None => _mm512_setzero_si512(),
    };
    [_mm512_unpacklo_epi16(zeros, next), _mm512_unpackhi_epi16(zeros, next)]
}

/// Zeros of one block in 16 bits, in the order for joining two blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn block_zeros(block: &[u8; PANEL_BLOCK]) -> __m512i {
    let mut parameters = [_mm512_setzero_si512(); 2];
    for (parameters, rows) in parameters.iter_mut().zip(block.as_chunks::<NR>().0) {
        // SAFETY: `rows` is 32 readable bytes, and `loadu` needs no alignment.
        *parameters = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(rows.as_ptr().cast()) });
    }
    let [scales, zeros] = parameters;
    let products = _mm512_mullo_epi16(scales, _mm512_sub_epi16(_mm512_set1_epi16(128), zeros));
    // Joining works in each 128-bit quarter: each wants four of the first 16 rows, then four of the others.
    _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), products)
}

/// Totals of a group that begin with the products of zeros and sums of activations.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn totals_of_zeros<const M: usize>(
    w: &[[u8; PANEL_BLOCK]],
    x_sums: &[[f32; M]],
) -> [[__m512i; 2]; M] {
    let mut totals = [[_mm512_setzero_si512(); 2]; M];
    for_pairs!((w, next) in w, (sums, next_sums) in x_sums, M => {
        add_zeros(&mut totals, zeros_b2(w, next), [sums, next_sums]);
    });
    totals
}

/// Two sums of activations, stored as the bits of integers, as a pair of 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn pair_of_sums(sum: f32, next: f32) -> __m512i {
    _mm512_set1_epi32(((sum.to_bits() & 0xffff) | next.to_bits() << 16) as i32)
}

/// Adds the products of two blocks' zeros and sums of activations, stored as the bits of integers, to totals.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_zeros<const M: usize>(
    totals: &mut [[__m512i; 2]; M],
    zeros: [__m512i; 2],
    [sums, next_sums]: [&[f32; M]; 2],
) {
    for i in 0..M {
        let pair = pair_of_sums(sums[i], next_sums[i]);
        for j in 0..2 {
            totals[i][j] = add_pairs(totals[i][j], zeros[j], pair);
        }
    }
}

/// Adds a block's sums around zero times their scales to totals.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_multiples<const M: usize>(
    totals: &mut [[__m512i; 2]; M],
    dots: &[[__m512i; 2]; M],
    scales: [__m512i; 2],
) {
    for i in 0..M {
        for j in 0..2 {
            totals[i][j] = add_pairs(totals[i][j], scales[j], dots[i][j]);
        }
    }
}

/// Adds, in each of 16 lanes, two products of 16 bits. The compiler would use two instructions, which shortens the
/// chain of additions; but nothing waits for that chain here.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_pairs(mut total: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction is part of AVX-512 VNNI, which the function requires, and uses only the three registers.
    unsafe {
        asm!("vpdpwssd {}, {}, {}", inout(zmm_reg) total, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    total
}

/// Adds each row's totals, integers, times its scale to `out`, `[M, 32]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_scaled_ints<const M: usize>(out: &mut [f32], totals: &[[__m512i; 2]; M], scales: &[f32; M]) {
    let mut floats = [[_mm512_setzero_ps(); 2]; M];
    for i in 0..M {
        for j in 0..2 {
            floats[i][j] = _mm512_cvtepi32_ps(totals[i][j]);
        }
    }
    add_scaled(out, &floats, scales);
}
