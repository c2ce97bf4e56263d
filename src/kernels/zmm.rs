//! Attention's tiles in vectors of 64 bytes: one holds all [`LANES`] running sums of a dot product,
//! and 16 of the 32 registers hold those of four queries with four keys, or four times 16 columns of
//! four queries' outputs.

use std::arch::x86_64::*;

use super::float::{self, BLOCK, LANES, Softmax};

/// Columns of values taken at once.
const COLUMNS: usize = 64;

/// See [`float::score_4`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn score_4(q: [&[f32]; 4], keys: &[f32], scale: f32, mut out: [&mut [f32]; 4]) {
    let head_dim = q[0].len();
    let tiles = keys.chunks_exact(4 * head_dim);
    let rest = tiles.remainder();
    for (tile, keys) in tiles.enumerate() {
        let (ab, cd) = keys.split_at(2 * head_dim);
        let ((a, b), (c, d)) = (ab.split_at(head_dim), cd.split_at(head_dim));
        let scores = _mm512_mul_ps(dots44(q, [a, b, c, d]), _mm512_set1_ps(scale));
        let mut put = |i: usize, scores: __m128| {
            let out = &mut out[i][4 * tile..][..4];
            // SAFETY: `out` is four writable floats, and `storeu` needs no alignment.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), scores) };
        };
        put(0, _mm512_extractf32x4_ps::<0>(scores));
        put(1, _mm512_extractf32x4_ps::<1>(scores));
        put(2, _mm512_extractf32x4_ps::<2>(scores));
        put(3, _mm512_extractf32x4_ps::<3>(scores));
    }
    let done = (keys.len() - rest.len()) / head_dim;
    for (at, key) in (done..).zip(rest.chunks_exact(head_dim)) {
        let scores = _mm512_mul_ps(dots44(q, [key; 4]), _mm512_set1_ps(scale));
        let mut all = [[0.0; 4]; 4];
        // SAFETY: `all` is 16 writable floats, and `storeu` needs no alignment.
        unsafe { _mm512_storeu_ps(all.as_mut_ptr().cast(), scores) };
        for i in 0..4 {
            out[i][at] = all[i][0];
        }
    }
}

/// Dot products of four rows with four others, four of each row after the other; see
/// [`float::dots`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn dots44(x: [&[f32]; 4], rows: [&[f32]; 4]) -> __m512 {
    let len = x[0].len();
    let mut sums = [[_mm512_setzero_ps(); 4]; 4];
    let (x_chunks, row_chunks) = (float::chunks_of(x, len), float::chunks_of(rows, len));
    for c in 0..len / LANES {
        let rows = [
            load(&row_chunks[0][c]),
            load(&row_chunks[1][c]),
            load(&row_chunks[2][c]),
            load(&row_chunks[3][c]),
        ];
        for i in 0..4 {
            let x = load(&x_chunks[i][c]);
            for j in 0..4 {
                sums[i][j] = _mm512_fmadd_ps(x, rows[j], sums[i][j]);
            }
        }
    }
    if !len.is_multiple_of(LANES) {
        for i in 0..4 {
            let x = load(&float::last_chunk(x[i]));
            for j in 0..4 {
                let row = load(&float::last_chunk(rows[j]));
                sums[i][j] = _mm512_fmadd_ps(x, row, sums[i][j]);
            }
        }
    }
    join(sums)
}

/// The total of each sum, added as [`float::dots`] does.
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn join(sums: [[__m512; 4]; 4]) -> __m512 {
    // Of each query, four lanes for each key.
    let mut fours = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        let [a, b, c, d] = sums[i];
        let (ab, cd) = (fold_halves(a, b), fold_halves(c, d));
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
        fours[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
    }
    let [a, b, c, d] = fours;
    let totals = add_neighbours(add_neighbours(a, b), add_neighbours(c, d));
    // Of each key, a lane for each query; wanted the other way round.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(order, totals)
}

/// The sums of `a`'s halves, then those of `b`'s.
#[target_feature(enable = "avx512f,avx512vl,fma")]
fn fold_halves(a: __m512, b: __m512) -> __m512 {
    let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
    _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
}

/// In each four lanes, the sums of `a`'s neighbours, then those of `b`'s.
#[target_feature(enable = "avx512f,avx512vl,fma")]
fn add_neighbours(a: __m512, b: __m512) -> __m512 {
    let even = _mm512_shuffle_ps::<0b10_00_10_00>(a, b);
    _mm512_add_ps(even, _mm512_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// See [`float::weigh_4`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn weigh_4(
    weights: [&[f32]; 4],
    values: &[f32],
    corrections: [f32; 4],
    mut out: [&mut [f32]; 4],
) {
    let whole = out[0].len() / COLUMNS * COLUMNS;
    for at in (0..whole).step_by(COLUMNS) {
        weigh_columns(weights, values, corrections, at, &mut out);
    }
    float::weigh_4::<true, 16>(weights, values, corrections, whole, out);
}

/// [`COLUMNS`] columns from `at` on.
#[target_feature(enable = "avx512f,avx512vl,fma")]
fn weigh_columns(
    weights: [&[f32]; 4],
    values: &[f32],
    corrections: [f32; 4],
    at: usize,
    out: &mut [&mut [f32]; 4],
) {
    let head_dim = out[0].len();
    let mut sums = [[_mm512_setzero_ps(); COLUMNS / 16]; 4];
    for i in 0..4 {
        let (columns, _) = out[i][at..][..COLUMNS].as_chunks();
        for c in 0..COLUMNS / 16 {
            sums[i][c] = _mm512_mul_ps(load(&columns[c]), _mm512_set1_ps(corrections[i]));
        }
    }
    let [a, b, c, d] = weights;
    let weights = a.iter().zip(b).zip(c.iter().zip(d));
    for (((a, b), (c, d)), values) in weights.zip(values.chunks_exact(head_dim)) {
        let (columns, _) = values[at..][..COLUMNS].as_chunks();
        let weights = [*a, *b, *c, *d];
        for c in 0..COLUMNS / 16 {
            let column = load(&columns[c]);
            for i in 0..4 {
                sums[i][c] = _mm512_fmadd_ps(_mm512_set1_ps(weights[i]), column, sums[i][c]);
            }
        }
    }
    for i in 0..4 {
        let (columns, _) = out[i][at..][..COLUMNS].as_chunks_mut::<16>();
        for c in 0..COLUMNS / 16 {
            // SAFETY: `columns[c]` is 16 writable floats, and `storeu` needs no alignment.
            unsafe { _mm512_storeu_ps(columns[c].as_mut_ptr(), sums[i][c]) };
        }
    }
}

/// See [`float::soften`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn soften(scores: &mut [f32; BLOCK], state: &mut Softmax) -> f32 {
    float::soften::<true>(scores, state)
}

/// See [`super::Kernels::swiglu`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn swiglu(gate: &mut [f32], up: &[f32]) {
    float::swiglu::<true>(gate, up);
}

#[target_feature(enable = "avx512f,avx512vl,fma")]
fn load(x: &[f32; LANES]) -> __m512 {
    // SAFETY: `x` is 16 readable floats, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}
