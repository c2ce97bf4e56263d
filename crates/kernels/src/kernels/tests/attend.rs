//! Attention: against f64, and bit for bit between tiers, cuts and batches.

use super::*;
use crate::kernels::scalar;
use crate::kernels::{Attended, HEAD_DIM_MAX, KvPages, KvStored};

/// Attention in f64: `(output, Σ p·|v|)` for each query and column.
pub(super) fn naive_attention(
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

/// Keys and values in pages of any order.
struct Paged<T> {
    stored: Vec<T>,
    table: Vec<u32>,
    page_shift: u32,
    head_dim: usize,
}

impl<T: Copy + Default> Paged<T> {
    /// Pages of `1 << page_shift` positions, the last one first, with other data between keys and values.
    fn new((keys, values): (&[T], &[T]), head_dim: usize, page_shift: u32) -> Paged<T> {
        let page = head_dim << page_shift;
        let pages = keys.chunks(page).zip(values.chunks(page));
        let n_pages = pages.len();
        let mut stored = vec![T::default(); 3 * page * n_pages];
        for ((keys, values), to) in pages.zip(stored.rchunks_exact_mut(3 * page)) {
            to[..keys.len()].copy_from_slice(keys);
            to[2 * page..][..values.len()].copy_from_slice(values);
        }
        Paged { stored, table: (0..n_pages as u32).rev().collect(), page_shift, head_dim }
    }

    fn pages<'a>(&'a self, stored: impl Fn(&'a [T]) -> KvStored<'a>) -> KvPages<'a> {
        let page = self.head_dim << self.page_shift;
        KvPages {
            stored: stored(&self.stored),
            table: &self.table,
            page_shift: self.page_shift,
            page_step: 3 * page,
            keys_at: 0,
            values_at: 2 * page,
        }
    }
}

/// Attention of queries at the last position of `kv`, in pages of `1 << page_shift` positions.
fn attend_paged(
    kernels: Kernels,
    q: &[f32],
    kv: (&[f16], &[f16]),
    (head_dim, page_shift, scale): (usize, u32, f32),
) -> Vec<f32> {
    let pos = kv.0.len() / head_dim - 1;
    let paged = Paged::new(kv, head_dim, page_shift);
    attend_at(kernels, q, pos, paged.pages(KvStored::F16), (head_dim, scale))
}

fn attend_at(
    kernels: Kernels,
    q: &[f32],
    pos: usize,
    kv: KvPages<'_>,
    (head_dim, scale): (usize, f32),
) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    let to = Attended { kv, pos, window: usize::MAX, end: None, head_dim, scale, sinks: &[] };
    kernels.attend(&[q], &to, &mut [&mut out]);
    out
}

/// Attention of queries at the last position, with keys and values as floats.
fn attend_floats(
    kernels: Kernels,
    q: &[f32],
    kv: (&[f32], &[f32]),
    head_dim: usize,
    scale: f32,
) -> Vec<f32> {
    let pos = kv.0.len() / head_dim - 1;
    let paged = Paged::new(kv, head_dim, 6);
    attend_at(kernels, q, pos, paged.pages(KvStored::F32), (head_dim, scale))
}

#[test]
fn a_sink_takes_a_weight_of_each_head_and_gives_nothing() {
    let (mut random, head_dim, len, scale) = (Random(12), 16, 70, 0.25);
    let sinks = [1.5, -4.0, 6.0];
    let q = random.floats(sinks.len() * head_dim);
    let (k, v) = (random.floats(len * head_dim), random.floats(len * head_dim));
    let paged = Paged::new((&k, &v), head_dim, 6);
    let with = |kernels: Kernels, sinks: &[f32]| {
        let (pos, window, kv) = (len - 1, usize::MAX, paged.pages(KvStored::F32));
        let to = Attended { kv, pos, window, end: None, head_dim, scale, sinks };
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
            let found = attend_floats(scalar(), &q, (&k, &v), head_dim, scale);
            for tier in tiers().chain([scalar()]) {
                let stored = attend_paged(tier, &q, (&k16, &v16), (head_dim, 6, scale));
                let computed = attend_floats(tier, &q, (&k, &v), head_dim, scale);
                for tier_found in [stored, computed] {
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
fn attention_depends_neither_on_pages_nor_on_other_queries() {
    let mut random = Random(12);
    let (head_dim, len, n_q) = (24, 171, 5);
    let q = random.floats(n_q * head_dim);
    let (k, v) = (random.f16s(len * head_dim), random.f16s(len * head_dim));
    let attend = |kernels: Kernels, q: &[f32], page_shift: u32| {
        bits(&attend_paged(kernels, q, (&k, &v), (head_dim, page_shift, 0.3)))
    };
    for kernels in tiers().chain([scalar()]) {
        let wanted = attend(kernels, &q, 8);
        for page_shift in 5..8 {
            assert_eq!(attend(kernels, &q, page_shift), wanted, "{page_shift}");
        }
        for (q, wanted) in q.chunks_exact(head_dim).zip(wanted.chunks_exact(head_dim)) {
            assert_eq!(attend(kernels, q, 6), wanted);
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
    /// Attention of the positions `rows`, with keys and values in pages of `1 << page_shift` positions; only the pages
    /// that a window needs exist.
    fn attend(&self, kernels: Kernels, rows: std::ops::Range<usize>, page_shift: u32) -> Vec<f32> {
        let (width, head_dim) = (self.n_q * self.head_dim, self.head_dim);
        let seen = (rows.start + 1).saturating_sub(self.window) >> page_shift;
        let (end, page) = (((rows.end - 1) >> page_shift) + 1, head_dim << page_shift);
        let part = |x: &[f16]| {
            let mut of_pages: Vec<f16> = x[seen * page..x.len().min(end * page)].to_vec();
            of_pages.resize((end - seen) * page, f16::ZERO);
            of_pages
        };
        let mut paged = Paged::new((&part(&self.keys), &part(&self.values)), head_dim, page_shift);
        // The table's beginning follows its end.
        let n_pages = paged.table.len();
        paged.table.rotate_right(seen % n_pages);
        let q: Vec<&[f32]> = self.q[rows.start * width..rows.end * width].chunks(width).collect();
        let mut found = vec![f32::NAN; q.len() * width];
        let mut out: Vec<&mut [f32]> = found.chunks_mut(width).collect();
        let (kv, pos, window) = (paged.pages(KvStored::F16), rows.start, self.window);
        let to = Attended { kv, pos, window, end: None, head_dim, scale: 0.3, sinks: &[] };
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
            (0..len).flat_map(|row| stream.attend(scalar(), row..row + 1, 5)).collect();
        // A NaN only reaches queries that look at it.
        let broken = len / 2;
        stream.values[broken * head_dim] = f16::NAN;
        for kernels in tiers().chain([scalar()]) {
            for (step, page_shift) in [(1, 6), (2, 5), (7, 6), (33, 5), (64, 7), (len, 6)] {
                for start in (0..len).step_by(step) {
                    let rows = start..len.min(start + step);
                    let found = stream.attend(kernels, rows.clone(), page_shift);
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
    let attend = |kernels| attend_paged(kernels, &q, (&k, &v), (HEAD_DIM_MAX, 6, 0.01));
    let found = attend(Kernels::best());
    assert_eq!(bits(&found), bits(&attend(scalar())));
    assert!(found.iter().all(|x| x.is_finite()));
}

#[test]
fn attention_survives_scores_far_apart_and_not_numbers() {
    let (k, v) = ([-1e4, 1e4, 0.0, 5.0], [1.0, 2.0, 3.0, 4.0]);
    for kernels in tiers().chain([scalar()]) {
        let attend = |q: &[f32]| attend_floats(kernels, q, (&k, &v), 1, 1.0);
        assert_eq!(attend(&[1e4]), [2.0]);
        assert_eq!(attend(&[-1e4]), [1.0]);
        assert!(attend(&[f32::NAN])[0].is_nan());
        assert!(attend(&[1e38])[0].is_nan());
        // Queries of one tile do not affect each other.
        let [a, b, c, d] = attend(&[1e4, f32::NAN, -1e4, 1e38])[..] else {
            panic!("an output for each query");
        };
        assert_eq!([a, c], [2.0, 1.0]);
        assert!(b.is_nan());
        assert!(d.is_nan());
    }
}
