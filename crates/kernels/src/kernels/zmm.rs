//! Attention's tiles in vectors of 64 bytes: one vector holds all [`LANES`] running sums of a dot product. 16 of the 32
//! registers hold the sums of four queries with four keys, or 64 columns of four queries' outputs. For many queries,
//! whole blocks of keys are transposed: a vector then holds one running sum of 16 keys. Recurrent layers' kernels are
//! those of all tiers, compiled for these vectors.

use std::arch::x86_64::*;

use super::float::{self, BLOCK, LANES, ScoresMut4, Softmax};
use super::recurrence::{self, Convolution, DeltaStep, ScanStep};

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

/// Dot products of four rows with four others, row by row of `x`; see [`float::dots`].
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

/// Transposes a block's keys, `[BLOCK, head_dim]`, for [`score_block`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn transpose(keys: &[f32], out: &mut [[f32; BLOCK]]) {
    let halves = keys.split_at(keys.len() / 2);
    for (half, keys) in [halves.0, halves.1].into_iter().enumerate() {
        for (c, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut rows = [_mm512_setzero_ps(); LANES];
            for (row, key) in rows.iter_mut().zip(keys.chunks_exact(keys.len() / LANES)) {
                *row = load(&float::chunks(key)[c]);
            }
            for (out, column) in out.iter_mut().zip(transposed(rows)) {
                store(&mut out.as_chunks_mut().0[half], column);
            }
        }
    }
}

/// Transposes rows and columns. Each round rotates the bits of every element's index, those of the row before those of
/// the column, by one.
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn transposed(mut rows: [__m512; LANES]) -> [__m512; LANES] {
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for _ in 0..LANES.ilog2() {
        let before = rows;
        for i in 0..LANES / 2 {
            let (a, b) = (before[i], before[i + LANES / 2]);
            rows[2 * i] = _mm512_permutex2var_ps(a, low, b);
            rows[2 * i + 1] = _mm512_permutex2var_ps(a, high, b);
        }
    }
    rows
}

/// Scores of four queries for a block of transposed keys: [`float::score_4`] with a lane for each key, so no sum goes
/// across lanes.
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn score_block(q: [&[f32]; 4], keys: &[[f32; BLOCK]], scale: f32, out: ScoresMut4<'_>) {
    let q = float::chunks_of(q, keys.len());
    let keys = keys.as_chunks::<LANES>().0;
    // Additions in the order of `float::dots`.
    let first = pair_sums(q, keys, 0, []);
    let first = pair_sums(q, keys, 4, [&first]);
    let second = pair_sums(q, keys, 1, []);
    let first = pair_sums(q, keys, 5, [&second, &first]);
    let second = pair_sums(q, keys, 2, []);
    let second = pair_sums(q, keys, 6, [&second]);
    let third = pair_sums(q, keys, 3, []);
    let totals = pair_sums(q, keys, 7, [&third, &second, &first]);
    for (out, totals) in out.into_iter().zip(totals) {
        for (out, total) in out.as_chunks_mut().0.iter_mut().zip(totals) {
            store(out, _mm512_mul_ps(total, _mm512_set1_ps(scale)));
        }
    }
}

/// Scores of four queries for a block, or parts of them.
type Scores4 = [[__m512; BLOCK / LANES]; 4];

/// Adds running sums `lane` and `lane + 8` of each dot product, then adds the result to each of `parts`. Two are added
/// at once, because one chain of additions would wait for itself. Not inlined: the compiler would delay all additions
/// of pairs, and keep their operands in memory until then.
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline(never)]
fn pair_sums<const N: usize>(
    q: [&[[f32; LANES]]; 4],
    keys: &[[[f32; BLOCK]; LANES]],
    lane: usize,
    parts: [&Scores4; N],
) -> Scores4 {
    let mut sums = [[[_mm512_setzero_ps(); BLOCK / LANES]; 4]; 2];
    let [a, b, c, d] = q;
    for ((keys, (a, b)), (c, d)) in keys.iter().zip(a.iter().zip(b)).zip(c.iter().zip(d)) {
        for (sums, lane) in sums.iter_mut().zip([lane, lane + 8]) {
            let keys = keys[lane].as_chunks().0;
            let keys = [load(&keys[0]), load(&keys[1])];
            for (sums, q) in sums.iter_mut().zip([a, b, c, d]) {
                let q = _mm512_set1_ps(q[lane]);
                for j in 0..keys.len() {
                    sums[j] = _mm512_fmadd_ps(q, keys[j], sums[j]);
                }
            }
        }
    }
    let [low, high] = sums;
    let mut sum = add(low, high);
    for part in parts {
        sum = add(*part, sum);
    }
    sum
}

#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn add(mut a: Scores4, b: Scores4) -> Scores4 {
    for i in 0..a.len() {
        for j in 0..a[i].len() {
            a[i][j] = _mm512_add_ps(a[i][j], b[i][j]);
        }
    }
    a
}

/// The totals of the sums, added in the order of [`float::dots`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn join(sums: [[__m512; 4]; 4]) -> __m512 {
    // Four lanes for each query and key.
    let mut fours = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        let [a, b, c, d] = sums[i];
        let (ab, cd) = (fold_halves(a, b), fold_halves(c, d));
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
        fours[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
    }
    let [a, b, c, d] = fours;
    let totals = add_neighbours(add_neighbours(a, b), add_neighbours(c, d));
    // Lanes are ordered by key, then query; callers want query, then key.
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

/// [`weigh_4`] for [`COLUMNS`] columns from `at` on.
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
        let correction = _mm512_set1_ps(corrections[i]);
        let (columns, _) = out[i][at..][..COLUMNS].as_chunks_mut();
        for c in 0..COLUMNS / 16 {
            let joined = _mm512_fmadd_ps(load(&columns[c]), correction, sums[i][c]);
            store(&mut columns[c], joined);
        }
    }
}

/// See [`float::soften`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn soften(scores: &mut [f32; BLOCK], state: &mut Softmax) -> f32 {
    float::soften::<true>(scores, state)
}

/// See [`recurrence::convolve`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn convolve(inputs: &[&[f32]], convolution: Convolution<'_>, out: &mut [f32]) {
    recurrence::convolve::<true>(inputs, convolution, out);
}

/// See [`recurrence::delta_rule`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn delta_rule(steps: &[DeltaStep<'_>], state: &mut [f32], out: &mut [f32]) {
    recurrence::delta_rule::<true>(steps, state, out);
}

/// See [`recurrence::scan`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn scan(
    steps: &[ScanStep<'_>],
    factors: (f32, f32),
    state: &mut [f32],
    out: &mut [f32],
) {
    recurrence::scan::<true>(steps, factors, state, out);
}

/// See [`float::soften_4`]; operations across lanes serve all four queries at once.
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn soften_4(scores: [&mut [f32; BLOCK]; 4], states: [&mut Softmax; 4]) -> [f32; 4] {
    let mut largest = [_mm512_set1_ps(f32::NEG_INFINITY); 4];
    for (largest, scores) in largest.iter_mut().zip(&scores) {
        for scores in scores.as_chunks().0 {
            // If either operand is a NaN, it returns the second.
            *largest = _mm512_max_ps(load(scores), *largest);
        }
    }
    let before = states.each_ref().map(|state| state.max);
    let (largest, mut max, mut corrections) = (lanes_of(across::<true>(largest)), before, before);
    for i in 0..4 {
        max[i] = if largest[i] > before[i] { largest[i] } else { before[i] };
        corrections[i] = float::exp_to_one::<true>(before[i] - max[i]);
    }
    let mut sums = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        for score in scores[i].iter_mut() {
            *score = float::exp_to_one::<true>(*score - max[i]);
        }
        let (halves, _) = scores[i].as_chunks();
        sums[i] = _mm512_add_ps(load(&halves[0]), load(&halves[1]));
    }
    let sums = lanes_of(across::<false>(sums));
    for i in 0..4 {
        let sum = states[i].sum.mul_add(corrections[i], sums[i]);
        *states[i] = Softmax { max: max[i], sum };
    }
    corrections
}

/// The total of each vector's lanes, added in the order of [`float::dots`]; or the largest lane.
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn across<const LARGEST: bool>([a, b, c, d]: [__m512; 4]) -> __m128 {
    let ab = both::<LARGEST>(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
    );
    let cd = both::<LARGEST>(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
    );
    // Four lanes of each vector.
    let fours = both::<LARGEST>(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
    );
    let twos = both::<LARGEST>(fours, _mm512_permute_ps::<0b10_11_00_01>(fours));
    let ones = both::<LARGEST>(twos, _mm512_permute_ps::<0b01_00_11_10>(twos));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    _mm512_castps512_ps128(_mm512_permutexvar_ps(order, ones))
}

/// Sums of lanes, or the larger lanes.
#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn both<const LARGEST: bool>(a: __m512, b: __m512) -> __m512 {
    if LARGEST { _mm512_max_ps(a, b) } else { _mm512_add_ps(a, b) }
}

#[target_feature(enable = "avx512f,avx512vl,fma")]
#[inline]
fn lanes_of(x: __m128) -> [f32; 4] {
    let mut lanes = [0.0; 4];
    // SAFETY: `lanes` is four writable floats, and `storeu` needs no alignment.
    unsafe { _mm_storeu_ps(lanes.as_mut_ptr(), x) };
    lanes
}

/// See [`super::Kernels::gelu`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn gelu(x: &[f32], out: &mut [f32]) {
    float::gelu(x, out);
}

/// See [`super::Kernels::swiglu`].
#[target_feature(enable = "avx512f,avx512vl,fma")]
pub(super) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    float::swiglu::<true>(gate, up, out);
}

#[target_feature(enable = "avx512f,avx512vl,fma")]
fn load(x: &[f32; LANES]) -> __m512 {
    // SAFETY: `x` is 16 readable floats, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512vl,fma")]
fn store(out: &mut [f32; LANES], x: __m512) {
    // SAFETY: `out` is 16 writable floats, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) };
}
