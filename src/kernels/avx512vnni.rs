//! AVX-512 with VNNI: products with packed weights, and attention's tiles in [`super::zmm`]; the
//! rest is [`super::avx2`]'s.
//!
//! `vpdpbusd` adds, in each of 16 lanes, four products of unsigned by signed bytes. A panel of 32
//! rows is two vectors for each four columns; by tiles of up to 8 rows of activations, whose four
//! bytes are broadcast from memory, that makes 16 sums, and as many results stay in registers.

use std::arch::x86_64::*;

use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn, tiles_of};
use super::{Table, avx2, peak, zmm};
use crate::quant::bcml1::BLOCK;

const NR: usize = Layout::AVX512_VNNI.panel_rows();

/// How far ahead of the weights in use others are asked for, into the second level of cache: a
/// step takes so many lines that those on their way to the first would hold up loads.
const PREFETCH_BYTES: usize = 8192;

/// The tier's functions.
pub(super) static TABLE: Table = Table {
    packed: Some(PackedTable {
        layout: Layout::AVX512_VNNI,
        tiles_q8: &TILES_Q8,
        tiles_q4: &TILES_Q4,
    }),
    score_4: zmm::score_4,
    weigh_4: zmm::weigh_4,
    spin_int8,
    ..avx2::TABLE
};

static TILES_Q8: [TileFn; 8] = tiles_of!(gemm_q8_q8_f32_mx32c4: 1 2 3 4 5 6 7 8);
static TILES_Q4: [TileFn; 8] = tiles_of!(gemm_q8_q4_f32_mx32c4: 1 2 3 4 5 6 7 8);

/// `M` rows of activations by a panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_q8_f32_mx32c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let mut sums = [[_mm512_setzero_ps(); 2]; M];
    for (w, x) in panel.chunks_exact(NR * (4 + x.group)).zip(x.groups::<M, 4>()) {
        let (w_scales, w) = w.split_at(NR * 4);
        let w_scales = &w_scales.as_chunks().0[0];
        if M == 1 {
            prefetch(w_scales);
        }
        let mut dots = [[_mm512_setzero_si512(); 2]; M];
        for (dots, bias) in dots.iter_mut().zip(x.biases) {
            *dots = [_mm512_set1_epi32(*bias); 2];
        }
        for (w, x) in w.as_chunks::<{ 4 * NR }>().0.iter().zip(x.q) {
            if M == 1 {
                prefetch(w);
            }
            let w = load(w);
            for i in 0..M {
                let x = _mm512_set1_epi32(i32::from_ne_bytes(x[i]));
                for j in 0..2 {
                    dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], w[j], x);
                }
            }
        }
        let w_scales = load(w_scales);
        for i in 0..M {
            for j in 0..2 {
                let scales =
                    _mm512_mul_ps(_mm512_castsi512_ps(w_scales[j]), _mm512_set1_ps(x.scales[i]));
                sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][j]), scales, sums[i][j]);
            }
        }
    }
    store(out, sums.as_flattened());
}

/// `M` rows of activations by a panel of 4-bit weights.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_q4_f32_mx32c4<const M: usize>(panel: &[u8], x: &Tile<'_>, out: &mut [f32]) {
    let mut sums = [[_mm512_setzero_ps(); 2]; M];
    let groups = panel.chunks_exact(NR * BLOCK_BYTES * (x.group / BLOCK));
    for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
        // What a product is added to and stays the same, its zero signed.
        let mut totals = [[_mm512_set1_ps(-0.0); 2]; M];
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for (w, (x_q, x_sums)) in w.as_chunks::<{ NR * BLOCK_BYTES }>().0.iter().zip(blocks) {
            let lines = w.as_chunks::<{ 4 * NR }>().0;
            let mut dots = [[_mm512_setzero_si512(); 2]; M];
            if M == 1 {
                lines.iter().for_each(|line| prefetch(line));
            }
            for (w, x_q) in lines[1..].iter().zip(x_q.as_chunks::<2>().0) {
                let both = load(w);
                for (half, x_q) in x_q.iter().enumerate() {
                    let w = codes(both, half);
                    for i in 0..M {
                        let x = _mm512_set1_epi32(i32::from_ne_bytes(x_q[i]));
                        for j in 0..2 {
                            dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], w[j], x);
                        }
                    }
                }
            }
            let [multipliers, offsets] = load(&lines[0]);
            let (multipliers, offsets) = (widen(multipliers), widen(offsets));
            for i in 0..M {
                let x_sum = _mm512_set1_ps(x_sums[i]);
                for j in 0..2 {
                    let total = _mm512_fmadd_ps(x_sum, offsets[j], totals[i][j]);
                    let dots = _mm512_cvtepi32_ps(dots[i][j]);
                    totals[i][j] = _mm512_fmadd_ps(dots, multipliers[j], total);
                }
            }
        }
        for i in 0..M {
            for j in 0..2 {
                sums[i][j] = _mm512_fmadd_ps(totals[i][j], _mm512_set1_ps(x.scales[i]), sums[i][j]);
            }
        }
    }
    store(out, sums.as_flattened());
}

/// The low (`half` 0) or high (1) codes of each byte.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn codes(both: [__m512i; 2], half: usize) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(15);
    let [a, b] = both;
    match half {
        0 => [_mm512_and_si512(a, mask), _mm512_and_si512(b, mask)],
        _ => [
            _mm512_and_si512(_mm512_srli_epi16::<4>(a), mask),
            _mm512_and_si512(_mm512_srli_epi16::<4>(b), mask),
        ],
    }
}

/// f16 to f32, exact.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn widen(x: __m512i) -> [__m512; 2] {
    let (low, high) = (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    [_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn store(out: &mut [f32], sums: &[__m512]) {
    for (out, sums) in out.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        // SAFETY: `out` is 16 writable floats, and `storeu` needs no alignment.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sums) };
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load(x: &[u8; 4 * NR]) -> [__m512i; 2] {
    let (vectors, _) = x.as_chunks::<64>();
    let mut loaded = [_mm512_setzero_si512(); 2];
    for j in 0..2 {
        // SAFETY: `vectors[j]` is 64 readable bytes, and `loadu` needs no alignment.
        loaded[j] = unsafe { _mm512_loadu_si512(vectors[j].as_ptr().cast()) };
    }
    loaded
}

/// Asks for both lines that are [`PREFETCH_BYTES`] behind `w`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn prefetch(w: &[u8; 4 * NR]) {
    for line in [0, 64] {
        let ahead = w.as_ptr().wrapping_add(PREFETCH_BYTES + line);
        _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
    }
}

/// See [`super::Kernels::spin_int8`]: 64 products an instruction.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn spin_int8(rounds: usize) -> i32 {
    let x = _mm512_set1_epi8(std::hint::black_box(3));
    let step = |sums: &mut [__m512i; 16]| {
        for sum in sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, x);
        }
    };
    peak::spin(rounds, 64, _mm512_setzero_si512(), step, |sums| {
        _mm_cvtsi128_si32(_mm512_castsi512_si128(sums))
    })
}
