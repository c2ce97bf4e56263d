//! Attention: against f64, and bit for bit between tiers, cuts and batches.

use super::*;
use crate::kernels::scalar;
use crate::kernels::{Attended, HEAD_DIM_MAX, KvRun};

/// Attention in f64: `(output, Σ p·|v|)` for each query and column.
fn naive_attention(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    head_dim: usize,
    scale: f32,
) -> Vec<(f64, f64)> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let mut out = Vec::new();
    for q in q.chunks_exact(head_dim) {
        let scores: Vec<f64> =
            k.chunks_exact(head_dim).map(|k| dot(q, k) * f64::from(scale)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for column in 0..head_dim {
            let values = v.iter().skip(column).step_by(head_dim).map(|v| f64::from(*v));
            let terms = values.zip(&weights).map(|(v, w)| v * w / sum);
            out.push((terms.clone().sum(), terms.map(f64::abs).sum()));
        }
    }
    out
}

/// Positions of `kv`.
fn positions(kv: &[KvRun<'_>], head_dim: usize) -> usize {
    let len = |run: &KvRun<'_>| match run {
        KvRun::F32 { keys, .. } => keys.len(),
        KvRun::F16 { keys, .. } => keys.len(),
    };
    kv.iter().map(len).sum::<usize>() / head_dim
}

/// Attention of queries at the last position of `kv`.
fn attend(kernels: Kernels, q: &[f32], kv: &[KvRun<'_>], head_dim: usize, scale: f32) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    let pos = positions(kv, head_dim) - 1;
    let to = Attended { kv, start: 0, pos, window: usize::MAX, head_dim, scale, sinks: &[] };
    kernels.attend(&[q], &to, &mut [&mut out]);
    out
}

#[test]
fn a_sink_takes_a_weight_of_each_head_and_gives_nothing() {
    let (mut random, head_dim, len, scale) = (Random(12), 16, 70, 0.25);
    let sinks = [1.5, -4.0, 6.0];
    let q = random.floats(sinks.len() * head_dim);
    let (k, v) = (random.floats(len * head_dim), random.floats(len * head_dim));
    let kv = [KvRun::F32 { keys: &k, values: &v }];
    let with = |kernels: Kernels, sinks: &[f32]| {
        let (pos, window) = (len - 1, usize::MAX);
        let to = Attended { kv: &kv, start: 0, pos, window, head_dim, scale, sinks };
        let mut out = vec![f32::NAN; q.len()];
        kernels.attend(&[&q], &to, &mut [&mut out]);
        out
    };
    let found = with(scalar(), &sinks);
    let wanted = naive_attention(&q, &k, &v, head_dim, scale);
    for (head, sink) in sinks.iter().enumerate() {
        let of_head = head * head_dim..(head + 1) * head_dim;
        let score = |k: &[f32]| -> f64 {
            let terms = q[of_head.clone()].iter().zip(k).map(|(q, k)| f64::from(q * k));
            terms.sum::<f64>() * f64::from(scale)
        };
        let all: f64 = k.chunks_exact(head_dim).map(|k| score(k).exp()).sum();
        let part = all / (all + f64::from(*sink).exp());
        for (found, (wanted, bound)) in found[of_head.clone()].iter().zip(&wanted[of_head]) {
            assert!((f64::from(*found) - wanted * part).abs() <= 1e-5 * bound, "head {head}");
        }
    }
    for tier in tiers() {
        assert_eq!(bits(&with(tier, &sinks)), bits(&found), "{tier:?}");
    }
}

#[test]
fn attention_matches_f64_and_every_tier_matches_scalar() {
    let mut random = Random(11);
    for (head_dim, n_q) in
        [(2, 1), (16, 3), (32, 5), (48, 4), (64, 8), (80, 4), (100, 2), (128, 17)]
    {
        let scale = 4.0 / (head_dim as f32).sqrt();
        for len in [1, 2, 31, 32, 33, 64, 65, 100, 257] {
            let q = random.floats(n_q * head_dim);
            let (k16, v16) = (random.f16s(len * head_dim), random.f16s(len * head_dim));
            let (mut k, mut v) = (vec![0.0; k16.len()], vec![0.0; v16.len()]);
            scalar::widen(&k16, &mut k);
            scalar::widen(&v16, &mut v);
            let stored = [KvRun::F16 { keys: &k16, values: &v16 }];
            let computed = [KvRun::F32 { keys: &k, values: &v }];
            let found = attend(scalar(), &q, &computed, head_dim, scale);
            assert_eq!(bits(&attend(scalar(), &q, &stored, head_dim, scale)), bits(&found));
            for tier in tiers() {
                for kv in [&stored, &computed] {
                    let tier_found = attend(tier, &q, kv, head_dim, scale);
                    assert_eq!(bits(&tier_found), bits(&found), "{tier:?} {head_dim} {len}");
                }
            }
            let wanted = naive_attention(&q, &k, &v, head_dim, scale);
            for (found, (wanted, size)) in found.iter().zip(wanted) {
                assert_close(*found, wanted, 4e-6 * size);
            }
        }
    }
}

#[test]
fn attention_depends_neither_on_cuts_nor_on_other_queries() {
    let mut random = Random(12);
    let (head_dim, len, n_q) = (24, 71, 5);
    let q = random.floats(n_q * head_dim);
    let (k, v) = (random.f16s(len * head_dim), random.f16s(len * head_dim));
    let whole = [KvRun::F16 { keys: &k, values: &v }];
    for kernels in tiers().chain([scalar()]) {
        let wanted = attend(kernels, &q, &whole, head_dim, 0.3);
        for cut in 0..=len {
            let (k0, k1) = k.split_at(cut * head_dim);
            let (v0, v1) = v.split_at(cut * head_dim);
            let runs = [KvRun::F16 { keys: k0, values: v0 }, KvRun::F16 { keys: k1, values: v1 }];
            assert_eq!(bits(&attend(kernels, &q, &runs, head_dim, 0.3)), bits(&wanted), "{cut}");
        }
        for (q, wanted) in q.chunks_exact(head_dim).zip(wanted.chunks_exact(head_dim)) {
            assert_eq!(bits(&attend(kernels, q, &whole, head_dim, 0.3)), bits(wanted));
        }
    }
}

/// A stream's keys and values, and the queries of its positions.
struct Streamed {
    q: Vec<f32>,
    keys: Vec<f16>,
    values: Vec<f16>,
    n_q: usize,
    head_dim: usize,
    window: usize,
}

impl Streamed {
    /// Attention of the positions `rows`, with keys and values cut in two at position `cut`.
    fn attend(&self, kernels: Kernels, rows: std::ops::Range<usize>, cut: usize) -> Vec<f32> {
        let (width, head_dim) = (self.n_q * self.head_dim, self.head_dim);
        let start = (rows.start + 1).saturating_sub(self.window);
        let cut = cut.clamp(start, rows.end);
        let part = |x: &[f16], range: std::ops::Range<usize>| {
            x[range.start * head_dim..range.end * head_dim].to_vec()
        };
        let parts = [start..cut, cut..rows.end]
            .map(|range| (part(&self.keys, range.clone()), part(&self.values, range)));
        let runs = parts.each_ref().map(|(keys, values)| KvRun::F16 { keys, values });
        let q: Vec<&[f32]> = self.q[rows.start * width..rows.end * width].chunks(width).collect();
        let mut found = vec![f32::NAN; q.len() * width];
        let mut out: Vec<&mut [f32]> = found.chunks_mut(width).collect();
        let (pos, window, scale) = (rows.start, self.window, 0.3);
        let to = Attended { kv: &runs, start, pos, window, head_dim, scale, sinks: &[] };
        kernels.attend(&q, &to, &mut out);
        found
    }
}

#[test]
fn attention_of_a_batch_is_that_of_its_rows() {
    let mut random = Random(17);
    let len = if quick() { 70 } else { 200 };
    for (n_q, head_dim, window) in
        [(1, 64, usize::MAX), (8, 16, usize::MAX), (3, 20, 33), (4, 64, 7)]
    {
        let (keys, values) = (random.f16s(len * head_dim), random.f16s(len * head_dim));
        let q = random.floats(len * n_q * head_dim);
        let mut stream = Streamed { q, keys, values, n_q, head_dim, window };
        let width = n_q * head_dim;
        let wanted: Vec<f32> =
            (0..len).flat_map(|row| stream.attend(scalar(), row..row + 1, row)).collect();
        // What is no number only reaches those that look at it.
        let broken = len / 2;
        stream.values[broken * head_dim] = f16::NAN;
        for kernels in tiers().chain([scalar()]) {
            for (step, cut) in [(1, 0), (2, 40), (7, 65), (33, 31), (64, 64), (len, 50)] {
                for start in (0..len).step_by(step) {
                    let rows = start..len.min(start + step);
                    let found = stream.attend(kernels, rows.clone(), cut);
                    for (row, found) in rows.zip(found.chunks(width)) {
                        let is_hit = row >= broken && row - broken < window;
                        let column = |x: &[f32]| bits(x)[usize::from(is_hit)..].to_vec();
                        for (found, wanted) in
                            found.chunks(head_dim).zip(wanted[row * width..].chunks(head_dim))
                        {
                            assert_eq!(found[0].is_nan(), is_hit);
                            assert_eq!(column(found), column(wanted), "{kernels:?} {row} {step}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn longest_heads_are_served() {
    let mut random = Random(13);
    let (k, v) = (random.f16s(3 * HEAD_DIM_MAX), random.f16s(3 * HEAD_DIM_MAX));
    let q = random.floats(HEAD_DIM_MAX);
    let kv = [KvRun::F16 { keys: &k, values: &v }];
    let found = attend(Kernels::best(), &q, &kv, HEAD_DIM_MAX, 0.01);
    assert_eq!(bits(&found), bits(&attend(scalar(), &q, &kv, HEAD_DIM_MAX, 0.01)));
    assert!(found.iter().all(|x| x.is_finite()));
}

#[test]
fn attention_survives_scores_far_apart_and_not_numbers() {
    let (k, v) = ([-1e4, 1e4, 0.0, 5.0], [1.0, 2.0, 3.0, 4.0]);
    for kernels in tiers().chain([scalar()]) {
        let kv = [KvRun::F32 { keys: &k, values: &v }];
        assert_eq!(attend(kernels, &[1e4], &kv, 1, 1.0), [2.0]);
        assert_eq!(attend(kernels, &[-1e4], &kv, 1, 1.0), [1.0]);
        assert!(attend(kernels, &[f32::NAN], &kv, 1, 1.0)[0].is_nan());
        assert!(attend(kernels, &[1e38], &kv, 1, 1.0)[0].is_nan());
        // Together they do not see each other.
        let [a, b, c, d] = attend(kernels, &[1e4, f32::NAN, -1e4, 1e38], &kv, 1, 1.0)[..] else {
            panic!("an output for each query");
        };
        assert_eq!([a, c], [2.0, 1.0]);
        assert!(b.is_nan());
        assert!(d.is_nan());
    }
}
