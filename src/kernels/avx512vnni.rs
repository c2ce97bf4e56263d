//! AVX-512 with VNNI: products with packed weights, and attention's tiles in [`super::zmm`]; the
//! rest is [`super::avx2`]'s.
//!
//! `vpdpbusd` adds, in each of 16 lanes, four products of unsigned by signed bytes. A panel of 32
//! rows is two vectors for each four columns; by tiles of up to 8 rows of activations, whose four
//! bytes are broadcast from memory, that makes 16 sums, and as many results stay in registers.

use std::arch::x86_64::*;

use super::packed::{BLOCK_BYTES, Layout, PackedTable, Tile, TileFn, tiles_of};
use super::{Table, avx2, peak, zmm};

const NR: usize = Layout::AVX512_VNNI.panel_rows();

/// Bytes of a block of a 4-bit panel.
const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

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

/// `M` rows of activations by a panel, in `S` sums each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_q8_f32_mx32c4<const M: usize, const S: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    let (group, n) = (x.groups.w, x.steps());
    let group_bytes = NR * (4 + group);
    for (w, x) in panel.chunks_exact(group_bytes * n).zip(x.groups::<M, 4>()) {
        let mut dots = [[[_mm512_setzero_si512(); 2]; M]; S];
        // What a product is added to and stays the same, its zero signed.
        let mut totals = [[_mm512_set1_ps(-0.0); 2]; M];
        let groups = w.chunks_exact(group_bytes).zip(x.q.chunks_exact(group / 4));
        for ((w, x_q), biases) in groups.zip(x.biases) {
            let (steps, w) = w.split_at(NR * 4);
            let steps = &steps.as_chunks().0[0];
            if M == 1 {
                prefetch(steps);
            }
            for i in 0..M {
                let bias = _mm512_set1_epi32(biases[i]);
                for j in 0..2 {
                    dots[0][i][j] = _mm512_add_epi32(dots[0][i][j], bias);
                }
            }
            let (w, x_q) = (w.as_chunks::<{ 4 * NR }>().0, x_q.as_chunks::<S>().0);
            for (w, x_q) in w.as_chunks::<S>().0.iter().zip(x_q) {
                for s in 0..S {
                    if M == 1 {
                        prefetch(&w[s]);
                    }
                    add_products(&mut dots[s], load(&w[s]), &x_q[s]);
                }
            }
            let steps = load(steps);
            for i in 0..M {
                for j in 0..2 {
                    let mut sum = dots[0][i][j];
                    for s in 1..S {
                        sum = _mm512_add_epi32(sum, dots[s][i][j]);
                    }
                    let (sum, step) = (_mm512_cvtepi32_ps(sum), _mm512_castsi512_ps(steps[j]));
                    totals[i][j] = _mm512_fmadd_ps(sum, step, totals[i][j]);
                }
            }
        }
        add_scaled(out, &totals, x.scales);
    }
}

/// `M` rows of activations by a panel of 4-bit weights, low and high codes in `S` sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn gemm_q8_q4_f32_mx32c4<const M: usize, const S: usize>(
    panel: &[u8],
    x: &Tile<'_>,
    out: &mut [f32],
) {
    let groups = panel.chunks_exact(PANEL_BLOCK * x.steps());
    for (w, x) in groups.zip(x.summed_groups::<M, 4>()) {
        let mut dots = [[[_mm512_setzero_si512(); 2]; M]; S];
        let mut totals = [[_mm512_set1_ps(-0.0); 2]; M];
        let w = w.as_chunks::<PANEL_BLOCK>().0;
        let [mut multipliers, mut offsets] = parameters(w.first());
        let blocks = x.q.as_chunks::<8>().0.iter().zip(x.sums);
        for ((b, block), (x_q, x_sums)) in w.iter().enumerate().zip(blocks) {
            let lines = block.as_chunks::<{ 4 * NR }>().0;
            if M == 1 {
                lines.iter().for_each(|line| prefetch(line));
            }
            for (w, x_q) in lines[1..].iter().zip(x_q.as_chunks::<2>().0) {
                let [low, high] = codes::<S>(load(w));
                add_products(&mut dots[0], low, &x_q[0]);
                add_products(&mut dots[S - 1], high, &x_q[1]);
            }
            let [next_multipliers, next_offsets] = parameters(w.get(b + 1));
            for i in 0..M {
                let x_sum = _mm512_set1_ps(x_sums[i]);
                for j in 0..2 {
                    let mut sum = dots[0][i][j];
                    if S == 2 {
                        sum = _mm512_add_epi32(sum, _mm512_srai_epi32::<4>(dots[1][i][j]));
                    }
                    let total = _mm512_fmadd_ps(x_sum, offsets[j], totals[i][j]);
                    let step = _mm512_sub_ps(multipliers[j], next_multipliers[j]);
                    totals[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), step, total);
                }
            }
            (multipliers, offsets) = (next_multipliers, next_offsets);
        }
        add_scaled(out, &totals, x.scales);
    }
}

/// Adds the products of four columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_products<const M: usize>(dots: &mut [[__m512i; 2]; M], w: [__m512i; 2], x: &[[u8; 4]; M]) {
    for i in 0..M {
        let x = _mm512_set1_epi32(i32::from_ne_bytes(x[i]));
        for j in 0..2 {
            dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], w[j], x);
        }
    }
}

/// Adds each row's totals times its scale to `out`, `[M, 32]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_scaled<const M: usize>(out: &mut [f32], totals: &[[__m512; 2]; M], scales: &[f32; M]) {
    let (out, _) = out.as_chunks_mut::<16>();
    for i in 0..M {
        for j in 0..2 {
            let out = &mut out[2 * i + j];
            // SAFETY: `out` is 16 readable floats, and `loadu` needs no alignment.
            let sum = unsafe { _mm512_loadu_ps(out.as_ptr()) };
            let sum = _mm512_fmadd_ps(totals[i][j], _mm512_set1_ps(scales[i]), sum);
            // SAFETY: `out` is 16 writable floats, and `storeu` needs no alignment.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }
}

/// The low and the high codes of each byte; with `S` sums of two kinds the high ones times 16,
/// which costs less than to shift them one by one.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn codes<const S: usize>(both: [__m512i; 2]) -> [[__m512i; 2]; 2] {
    let (low, high) = (_mm512_set1_epi8(15), _mm512_set1_epi8(-16));
    let [a, b] = both;
    let shift = |x| if S == 2 { x } else { _mm512_srli_epi16::<4>(x) };
    let high = if S == 2 { high } else { low };
    [
        [_mm512_and_si512(a, low), _mm512_and_si512(b, low)],
        [_mm512_and_si512(shift(a), high), _mm512_and_si512(shift(b), high)],
    ]
}

/// Multipliers and offsets of a block, zeros if there is none.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn parameters(block: Option<&[u8; PANEL_BLOCK]>) -> [[__m512; 2]; 2] {
    match block {
        Some(block) => {
            let [multipliers, offsets] = load(&block.as_chunks().0[0]);
            [widen(multipliers), widen(offsets)]
        }
        None => [[_mm512_setzero_ps(); 2]; 2],
    }
}

/// f16 to f32, exact.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn widen(x: __m512i) -> [__m512; 2] {
    let (low, high) = (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    [_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]
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
