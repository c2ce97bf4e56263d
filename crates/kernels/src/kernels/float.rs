//! Float kernels, written once: each tier inlines these bodies into functions compiled for its features, where the
//! compiler vectorises their loops. A tier writes the loops that it does not vectorise by hand, and passes them in.
//!
//! `FMA` is true if the tier has a fused multiply-add instruction; the result is the same.

use crate::quant::bcml1;

/// Running sums of a dot product. A multiple of every vector length in use.
pub const LANES: usize = 16;

/// Positions of a softmax block.
pub(super) const BLOCK: usize = 2 * LANES;

pub(super) type F32Lanes = [f32; LANES];

/// Scores of four queries for a block.
pub(super) type ScoresMut4<'a> = [&'a mut [f32; BLOCK]; 4];

/// Adding this to a float below `2^22` leaves its nearest integer, ties to even, in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// State of an online softmax.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// The largest score.
    pub(super) max: f32,
    /// Sum of `exp(score - max)`.
    pub(super) sum: f32,
}

impl Softmax {
    /// The state before the first score.
    pub(super) const EMPTY: Softmax = Softmax { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Dot products of `x` with up to four rows of its length, as [`super`] describes.
#[inline(always)]
pub(super) fn dots<const FMA: bool, const N: usize>(x: &[f32], rows: [&[f32]; N]) -> [f32; 4] {
    let mut y = [0.0; 4];
    for (y, row) in y.iter_mut().zip(rows) {
        *y = dot::<FMA>(x, row);
    }
    y
}

#[inline(always)]
fn dot<const FMA: bool>(x: &[f32], row: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (x, row) in chunks(x).iter().zip(chunks(row)) {
        sums = add_lanes::<FMA>(sums, x, row);
    }
    if !x.len().is_multiple_of(LANES) {
        sums = add_lanes::<FMA>(sums, &last_chunk(x), &last_chunk(row));
    }
    join(sums)
}

/// See [`super::Kernels::quantize_q8`]. The tier passes in two functions: `largest` gives the bits of a group's largest
/// magnitude, `round` a group's values times a factor as nearest integers, ties to even.
///
/// `|x * (1 / s)|` stays below 127.5 because each of the three roundings is off by `2^-22` at most: no clamp is needed.
#[inline(always)]
pub(super) fn quantize_q8(
    x: &[f32],
    group: usize,
    q: &mut [i8],
    scales: &mut [f32],
    largest: impl Fn(&[[f32; 32]]) -> u32,
    round: impl Fn(&[[f32; 32]], f32, &mut [[i8; 32]]),
) {
    let groups = x.chunks_exact(group).zip(q.chunks_exact_mut(group));
    for ((x, q), scale) in groups.zip(scales) {
        let (x, q) = (x.as_chunks().0, q.as_chunks_mut().0);
        // Without the sign bit, floats compare like their bits, with infinity and NaN on top.
        let max = f32::from_bits(largest(x));
        *scale = max / 127.0;
        let inverse = 1.0 / *scale;
        if max.is_finite() && inverse.is_finite() {
            round(x, inverse, q);
        } else {
            *scale = if max.is_finite() { 0.0 } else { f32::NAN };
            q.as_flattened_mut().fill(0);
        }
    }
}

/// `-128 * Σ q` of each group; see [`super::packed`].
#[inline(always)]
pub(super) fn biases(q: &[i8], group: usize, biases: &mut [i32]) {
    for (q, bias) in q.chunks_exact(group).zip(biases) {
        *bias = -128 * q.as_chunks().0.iter().map(sum_of).sum::<i32>();
    }
}

/// See [`super::Kernels::sum_q8`].
#[inline(always)]
pub(super) fn sum_q8(q: &[i8], sums: &mut [i32]) {
    for (q, sum) in q.as_chunks::<{ bcml1::BLOCK }>().0.iter().zip(sums) {
        *sum = sum_of(q);
    }
}

/// The sum of 32 values; it fits 16 bits.
#[inline(always)]
fn sum_of(q: &[i8; 32]) -> i32 {
    i32::from(q.iter().map(|q| i16::from(*q)).sum::<i16>())
}

/// See [`super::Kernels::rms_norm`]; `dots` is the tier's.
#[inline(always)]
pub(super) fn rms_norm(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
    dots: impl Fn(&[f32], [&[f32]; 1]) -> [f32; 4],
) {
    let [sum, ..] = dots(x, [x]);
    let factor = 1.0 / (sum / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

/// See [`super::Kernels::rope`].
#[inline(always)]
pub(super) fn rope<const FMA: bool>(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    for head in x.chunks_exact_mut(head_dim) {
        for (([a, b], cos), sin) in head.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
            (*a, *b) = (fma::<FMA>(*a, *cos, -(*b * sin)), fma::<FMA>(*a, *sin, *b * cos));
        }
    }
}

/// See [`super::Kernels::swiglu`].
#[inline(always)]
pub(super) fn swiglu<const FMA: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        // Where exp is clamped, the sum is 1, or so large that the result vanishes.
        *out = gate / (1.0 + exp_within::<FMA>(-gate)) * up;
    }
}

/// See [`super::Kernels::add`].
#[inline(always)]
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Scores of a query against consecutive keys `[n, head_dim]`, one in `out` for each; `dots` and `dots4` are the
/// tier's.
#[inline(always)]
pub(super) fn score(
    q: &[f32],
    keys: &[f32],
    scale: f32,
    out: &mut [f32],
    dots: impl Fn(&[f32], [&[f32]; 1]) -> [f32; 4],
    dots4: impl Fn(&[f32], [&[f32]; 4]) -> [f32; 4],
) {
    let (tiles, rest) = out.as_chunks_mut::<4>();
    let mut keys = keys.chunks_exact(q.len());
    for out in tiles {
        let mut key = || keys.next().unwrap_or(&[]);
        let scores = dots4(q, [key(), key(), key(), key()]);
        for (out, score) in out.iter_mut().zip(scores) {
            *out = score * scale;
        }
    }
    for (out, key) in rest.iter_mut().zip(keys) {
        *out = dots(q, [key])[0] * scale;
    }
}

/// Computes [`score`] for four queries; `dots44` is the tier's.
#[inline(always)]
pub(super) fn score_4(
    q: [&[f32]; 4],
    keys: &[f32],
    scale: f32,
    out: [&mut [f32]; 4],
    dots: impl Fn(&[f32], [&[f32]; 1]) -> [f32; 4],
    dots44: impl Fn([&[f32]; 4], [&[f32]; 4]) -> [[f32; 4]; 4],
) {
    let head_dim = q[0].len();
    let (tiles, rest) = keys.split_at(keys.len() / (4 * head_dim) * (4 * head_dim));
    let mut at = 0;
    for keys in tiles.chunks_exact(4 * head_dim) {
        let (ab, cd) = keys.split_at(2 * head_dim);
        let ((a, b), (c, d)) = (ab.split_at(head_dim), cd.split_at(head_dim));
        let scores = dots44(q, [a, b, c, d]);
        for i in 0..4 {
            for (out, score) in out[i][at..][..4].iter_mut().zip(scores[i]) {
                *out = score * scale;
            }
        }
        at += 4;
    }
    for key in rest.chunks_exact(head_dim) {
        for i in 0..4 {
            out[i][at] = dots(q[i], [key])[0] * scale;
        }
        at += 1;
    }
}

/// Softmax of a block: turns its scores into weights `exp(score - max)`, adds these to `state`, and returns the
/// correction of earlier sums, `exp(old max - max)`.
#[inline(always)]
pub(super) fn soften<const FMA: bool>(scores: &mut [f32; BLOCK], state: &mut Softmax) -> f32 {
    let (low, high) = scores.split_at_mut(LANES);
    let mut max = [f32::NEG_INFINITY; LANES];
    for i in 0..LANES {
        max[i] = larger(larger(max[i], low[i]), high[i]);
    }
    let max = larger(state.max, largest(max));
    let mut sums = [0.0; LANES];
    for i in 0..LANES {
        low[i] = exp_to_one::<FMA>(low[i] - max);
        high[i] = exp_to_one::<FMA>(high[i] - max);
        sums[i] = low[i] + high[i];
    }
    let correction = exp_to_one::<FMA>(state.max - max);
    *state = Softmax { max, sum: fma::<FMA>(state.sum, correction, join(sums)) };
    correction
}

/// [`soften`] of four queries.
#[inline(always)]
pub(super) fn soften_4<const FMA: bool>(
    scores: ScoresMut4<'_>,
    states: [&mut Softmax; 4],
) -> [f32; 4] {
    let mut corrections = [0.0; 4];
    for (correction, (scores, state)) in corrections.iter_mut().zip(scores.into_iter().zip(states))
    {
        *correction = soften::<FMA>(scores, state);
    }
    corrections
}

/// The largest of `x`, none of which is NaN.
#[inline(always)]
fn largest(x: F32Lanes) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for i in 0..8 {
        eight[i] = larger(x[i], x[i + 8]);
    }
    for i in 0..4 {
        four[i] = larger(eight[i], eight[i + 4]);
    }
    larger(larger(four[0], four[2]), larger(four[1], four[3]))
}

/// `out = out * correction + Σ weights[j] * values[j]`, with `values` `[n, head_dim]` of one block of positions.
///
/// The sum begins at 0 and is added to `out` by one fused multiply-add, so blocks can be summed independently.
#[inline(always)]
pub(super) fn weigh<const FMA: bool>(
    weights: &[f32],
    values: &[f32],
    correction: f32,
    out: &mut [f32],
) {
    let head_dim = out.len();
    let (wide, rest) = out.as_chunks_mut::<64>();
    let mut at = 0;
    for out in wide {
        weigh_columns::<FMA, 64>(weights, values, head_dim, at, correction, out);
        at += 64;
    }
    let (narrow, rest) = rest.as_chunks_mut::<16>();
    for out in narrow {
        weigh_columns::<FMA, 16>(weights, values, head_dim, at, correction, out);
        at += 16;
    }
    for out in rest.as_chunks_mut::<1>().0 {
        weigh_columns::<FMA, 1>(weights, values, head_dim, at, correction, out);
        at += 1;
    }
}

#[inline(always)]
fn weigh_columns<const FMA: bool, const N: usize>(
    weights: &[f32],
    values: &[f32],
    head_dim: usize,
    at: usize,
    correction: f32,
    out: &mut [f32; N],
) {
    let mut sums = [0.0; N];
    for (weight, values) in weights.iter().zip(values.chunks_exact(head_dim)) {
        let values: &[f32] = &values[at..][..N];
        for i in 0..N {
            sums[i] = fma::<FMA>(*weight, values[i], sums[i]);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = fma::<FMA>(*out, correction, sum);
    }
}

/// [`weigh`] for four queries and the columns from `from` on, `N` at a time: as many as registers have sums for.
#[inline(always)]
pub(super) fn weigh_4<const FMA: bool, const N: usize>(
    weights: [&[f32]; 4],
    values: &[f32],
    corrections: [f32; 4],
    from: usize,
    out: [&mut [f32]; 4],
) {
    let head_dim = out[0].len();
    let whole = from + (head_dim - from) / N * N;
    for at in (from..whole).step_by(N) {
        let mut sums = [[0.0; N]; 4];
        for (j, values) in values.chunks_exact(head_dim).enumerate() {
            let values = &values[at..][..N];
            for i in 0..4 {
                for c in 0..N {
                    sums[i][c] = fma::<FMA>(weights[i][j], values[c], sums[i][c]);
                }
            }
        }
        for i in 0..4 {
            for (out, sum) in out[i][at..][..N].iter_mut().zip(sums[i]) {
                *out = fma::<FMA>(*out, corrections[i], sum);
            }
        }
    }
    for (i, out) in out.into_iter().enumerate() {
        for (column, out) in out.as_chunks_mut::<1>().0.iter_mut().enumerate().skip(whole) {
            weigh_columns::<FMA, 1>(weights[i], values, head_dim, column, corrections[i], out);
        }
    }
}

/// See [`super::Kernels::gelu`]. Products and sums are rounded one by one on every tier.
#[inline(always)]
pub(super) fn gelu(x: &[f32], out: &mut [f32]) {
    for (x, out) in x.iter().zip(out) {
        *out = gelu_of(*x);
    }
}

/// `x · (1 + erf(x / sqrt(2))) / 2` (arXiv:1606.08415).
#[inline(always)]
fn gelu_of(x: f32) -> f32 {
    let value = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
    // Below this the true value is 0 within 5e-8. A NaN is not below.
    if x < -5.65 { 0.0 } else { value }
}

/// The error function: a quotient of polynomials up to ±4, where it is nearly ±1; off by 3e-7 at most.
#[inline(always)]
fn erf(x: f32) -> f32 {
    const ABOVE: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const BELOW: [f32; 5] =
        [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_3e-3, -1.426_473_9e-2];
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    let above = ABOVE[1..].iter().fold(ABOVE[0], |sum, c| sum * square + c);
    let below = BELOW[1..].iter().fold(BELOW[0], |sum, c| sum * square + c);
    x * above / below
}

/// `exp(min(x, EXP_MOST))` within `1e-7` relative; 0 below -86.99; NaN for NaN.
#[inline(always)]
pub(super) fn exp_within<const FMA: bool>(x: f32) -> f32 {
    // A NaN passes this comparison.
    exp_to_one::<FMA>(if x > EXP_MOST { EXP_MOST } else { x })
}

/// Computes `exp(x)` for `x` not above [`EXP_MOST`], or NaN: `exp(x) = 2^(n-1) * (2 * exp(r))` with `|r| <= ln(2) / 2`.
/// `2 * exp(r)` is a polynomial of degree 6 through Chebyshev nodes (off by `1.1e-8` relative).
///
/// `n + 126` in the exponent's bits is `2^(n-1)`, and 0 for the least `n`, -126. No subnormal number arises, which
/// could slow a CPU down many times.
#[inline(always)]
pub(super) fn exp_to_one<const FMA: bool>(x: f32) -> f32 {
    let x = if x < EXP_LEAST { EXP_LEAST } else { x };
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, EXP_ROUND);
    let n = shifted - EXP_ROUND;
    let r = fma::<FMA>(n, -LN2[1], fma::<FMA>(n, -LN2[0], x));
    let [mut p, rest @ ..] = EXP_POLYNOMIAL;
    for c in rest {
        p = fma::<FMA>(p, r, c);
    }
    p * f32::from_bits(shifted.to_bits() << 23)
}

/// Least `x`: `n` is -126.
pub(super) const EXP_LEAST: f32 = -87.3;

/// Largest `x`: `n` is at most 127.
pub(super) const EXP_MOST: f32 = 88.0;

/// [`ROUND`] with `n + 126` in the low bits.
pub(super) const EXP_ROUND: f32 = ROUND + 126.0;

/// `ln(2)` in two parts; the first has 15 bits, so its product with `n` is exact.
pub(super) const LN2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];

/// Coefficients, from the highest degree down.
pub(super) const EXP_POLYNOMIAL: [f32; 7] =
    [2.785_25e-3, 1.672_646_6e-2, 8.333_310_4e-2, 0.333_331_52, 1.0, 2.0, 2.0];

/// The larger of two; `a` if `b` is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// All whole vectors of [`LANES`].
#[inline(always)]
pub(super) fn chunks(x: &[f32]) -> &[F32Lanes] {
    x.as_chunks().0
}

/// The whole vectors in the first `len` of each row.
#[inline(always)]
pub(super) fn chunks_of<const N: usize>(rows: [&[f32]; N], len: usize) -> [&[F32Lanes]; N] {
    rows.map(|row| chunks(&row[..len]))
}

/// The rest of [`chunks`], padded with zeros.
#[inline(never)]
pub(super) fn last_chunk(x: &[f32]) -> F32Lanes {
    let (_, tail) = x.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    lanes[..tail.len()].copy_from_slice(tail);
    lanes
}

#[inline(always)]
fn add_lanes<const FMA: bool>(mut sums: F32Lanes, a: &F32Lanes, b: &F32Lanes) -> F32Lanes {
    for i in 0..LANES {
        sums[i] = fma::<FMA>(a[i], b[i], sums[i]);
    }
    sums
}

/// Adds the lanes: halves onto each other down to four, then neighbours, like vector instructions.
#[inline(always)]
fn join(sums: F32Lanes) -> f32 {
    let mut four = [0.0; 4];
    for i in 0..4 {
        four[i] = (sums[i] + sums[i + 8]) + (sums[i + 4] + sums[i + 12]);
    }
    (four[0] + four[1]) + (four[2] + four[3])
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub(super) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { fma_by_f64(a, b, c) }
}

/// `a * b + c` by f64: the product is exact, and Knuth's two-sum gives the sum's error. Rounding an inexact sum to odd
/// keeps the second rounding, to f32, correct (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums",
/// 2008).
#[inline(always)]
fn fma_by_f64(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    let bits = sum.to_bits();
    let inexact = (error < 0.0) | (error > 0.0); // false for NaN
    let outwards = (error > 0.0) == (sum > 0.0);
    let odd = if outwards { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact & (bits & 1 == 0) { odd } else { bits }) as f32
}
