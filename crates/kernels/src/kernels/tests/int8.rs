//! Attention to int8 keys and values: against f64, and bit for bit between tiers, cuts and batches.

use super::attend::naive_attention;
use super::*;
use crate::kernels::kv8::{self, KEY_LINES, TILE_LINES, VALUE_LINES};
use crate::kernels::{Attended, HEAD_DIM_MAX, KV_BLOCK, KvLine, KvPages, KvStored, kv_block_lines};

/// Keys and values in pages, the last one first, with other data before and between them.
struct Paged {
    stored: Vec<KvLine>,
    table: Vec<u32>,
    page_shift: u32,
    head_dim: usize,
}

/// Bytes where nothing was stored; as scales they are NaN.
const JUNK: KvLine = KvLine([0xff; 64]);

impl Paged {
    /// Keys and values stored by `kernels` in pages of `1 << page_shift` positions.
    fn new(
        kernels: Kernels,
        (keys, values): (&[f32], &[f32]),
        head_dim: usize,
        page_shift: u32,
    ) -> Paged {
        let page = head_dim << page_shift;
        let n_pages = keys.len().div_ceil(page);
        let mut paged = Paged { stored: vec![], table: vec![], page_shift, head_dim };
        let [of_keys, of_values] = paged.part_lines();
        paged.table = (0..n_pages as u32).rev().collect();
        paged.stored = vec![JUNK; n_pages * paged.page_step()];
        let pages = keys.chunks(page).zip(values.chunks(page));
        let step = paged.page_step();
        for ((keys, values), to) in pages.zip(paged.stored.rchunks_exact_mut(step)) {
            let rows = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
            for (position, (key, value)) in rows.enumerate() {
                kernels.store_key_i8(key, &mut to[1..][..of_keys], position);
                kernels.store_value_i8(value, &mut to[3 + of_keys..][..of_values], position);
            }
        }
        paged
    }

    fn part_lines(&self) -> [usize; 2] {
        kv_block_lines(self.head_dim).map(|n| n * ((1 << self.page_shift) / KV_BLOCK))
    }

    fn page_step(&self) -> usize {
        let [of_keys, of_values] = self.part_lines();
        of_keys + of_values + 3
    }

    fn pages(&self) -> KvPages<'_> {
        KvPages {
            stored: KvStored::Int8(&self.stored),
            table: &self.table,
            page_shift: self.page_shift,
            page_step: self.page_step(),
            keys_at: 1,
            values_at: 3 + self.part_lines()[0],
        }
    }

    /// Attention of the heads of `q`, rows of `width` values, from position `pos` on.
    fn attend(
        &self,
        kernels: Kernels,
        (q, width): (&[f32], usize),
        (pos, window): (usize, usize),
        scale: f32,
    ) -> Vec<f32> {
        let mut found = vec![f32::NAN; q.len()];
        let rows: Vec<&[f32]> = q.chunks(width).collect();
        let mut out: Vec<&mut [f32]> = found.chunks_mut(width).collect();
        let (kv, head_dim) = (self.pages(), self.head_dim);
        let to = Attended { kv, pos, window, end: None, head_dim, scale, sinks: &[] };
        kernels.attend(&rows, &to, &mut out);
        found
    }
}

/// Attention of queries at the last position.
fn attend_last(
    kernels: Kernels,
    q: &[f32],
    kv: (&[f32], &[f32]),
    head_dim: usize,
    scale: f32,
) -> Vec<f32> {
    let paged = Paged::new(kernels, kv, head_dim, 6);
    let pos = kv.0.len() / head_dim - 1;
    paged.attend(kernels, (q, q.len()), (pos, usize::MAX), scale)
}

/// Values of stored keys and values, as [`kv8`] describes them.
fn stand_for(paged: &Paged, len: usize) -> (Vec<f32>, Vec<f32>) {
    let (head_dim, step) = (paged.head_dim, paged.page_step());
    let [n_key, n_value] = kv_block_lines(head_dim);
    let byte = |line: &KvLine, at: usize| f32::from(line.0[at] as i8);
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for pos in 0..len {
        let page = paged.table[pos >> paged.page_shift] as usize * step;
        let block = pos % (1 << paged.page_shift) / KV_BLOCK;
        let key = &paged.stored[page + 1 + block * n_key..][..n_key];
        let value = &paged.stored[page + 3 + paged.part_lines()[0] + block * n_value..][..n_value];
        let p = pos % KV_BLOCK;
        for c in 0..head_dim {
            let (group, x) = (&key[c / 32 * KEY_LINES..], c % 32);
            let line = &group[1 + x / 4 * 2 + p / 16];
            keys.push(byte(line, p % 16 * 4 + x % 4) * group[0].scales()[p].to_f32());
            let (group, x) = (&value[c / 128 * VALUE_LINES..], c % 128);
            let line = &group[1 + x / 16 * TILE_LINES + p / 4];
            values.push(byte(line, x % 16 * 4 + p % 4) * group[0].scales()[p].to_f32());
        }
    }
    (keys, values)
}

const HEADS: [(usize, usize); 9] =
    [(2, 1), (16, 3), (32, 5), (48, 4), (64, 8), (80, 4), (100, 2), (128, 17), (256, 5)];

#[test]
fn what_is_stored_is_near_and_every_tier_stores_the_same() {
    let mut random = Random(21);
    for (head_dim, _) in HEADS {
        let len = 70;
        let (k, v) = (random.floats(len * head_dim), random.floats(len * head_dim));
        let stored = Paged::new(scalar(), (&k, &v), head_dim, 6);
        for tier in tiers() {
            let found = Paged::new(tier, (&k, &v), head_dim, 6);
            assert!(
                bytemuck::cast_slice::<_, u8>(&found.stored)
                    == bytemuck::cast_slice::<_, u8>(&stored.stored),
                "{tier:?} {head_dim}"
            );
        }
        let (near_k, near_v) = stand_for(&stored, len);
        for (x, near, group) in [(&k, near_k, 32), (&v, near_v, 128)] {
            for (x, near) in x.chunks(head_dim).zip(near.chunks(head_dim)) {
                for (x, near) in x.chunks(group).zip(near.chunks(group)) {
                    let max = x.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                    let bound = max / 127.0 * 0.501;
                    assert!(x.iter().zip(near).all(|(x, near)| (x - near).abs() <= bound));
                }
            }
        }
    }
}

#[test]
fn int8_attention_is_near_and_every_tier_matches_scalar() {
    let mut random = Random(22);
    for (head_dim, n_q) in HEADS {
        let scale = 1.0 / (head_dim as f32).sqrt();
        for len in [1, 2, 31, 32, 33, 64, 65, 100, 257] {
            let q = random.floats(n_q * head_dim);
            let (k, v) = (random.floats(len * head_dim), random.floats(len * head_dim));
            let found = attend_last(scalar(), &q, (&k, &v), head_dim, scale);
            for tier in tiers() {
                let tier_found = attend_last(tier, &q, (&k, &v), head_dim, scale);
                assert_eq!(bits(&tier_found), bits(&found), "{tier:?} {head_dim} {len}");
            }
            let paged = Paged::new(scalar(), (&k, &v), head_dim, 6);
            let (k, v) = stand_for(&paged, len);
            let wanted = naive_attention(&q, &k, &v, head_dim, scale);
            for (found, (wanted, size)) in found.iter().zip(wanted) {
                // Queries have 7 bits, which bounds the error.
                assert_close(*found, wanted, 0.02 * size);
            }
        }
    }
}

#[test]
fn values_lose_nothing_to_their_weights_codes() {
    let (mut random, head_dim, len) = (Random(23), 128, 100);
    // Queries of zeros give all positions the same weight.
    let (q, k) = (vec![0.0; head_dim], random.floats(len * head_dim));
    let v = random.floats(len * head_dim);
    let found = attend_last(Kernels::best(), &q, (&k, &v), head_dim, 1.0);
    let (k, v) = stand_for(&Paged::new(scalar(), (&k, &v), head_dim, 6), len);
    let wanted = naive_attention(&q, &k, &v, head_dim, 1.0);
    for (found, (wanted, size)) in found.iter().zip(wanted) {
        assert_close(*found, wanted, 4e-5 * size);
    }
}

#[test]
fn int8_attention_depends_neither_on_pages_nor_on_other_queries() {
    let (mut random, len) = (Random(24), 171);
    for (head_dim, n_q, window) in
        [(24, 5, usize::MAX), (64, 1, usize::MAX), (64, 8, 33), (16, 4, 7), (128, 3, 64)]
    {
        let width = n_q * head_dim;
        let q = random.floats(len * width);
        let (k, v) = (random.floats(len * head_dim), random.floats(len * head_dim));
        let paged = Paged::new(scalar(), (&k, &v), head_dim, 6);
        let wanted: Vec<f32> = (0..len)
            .flat_map(|row| {
                let q = &q[row * width..][..width];
                paged.attend(scalar(), (q, width), (row, window), 0.3)
            })
            .collect();
        for kernels in tiers().chain([scalar()]) {
            for (step, page_shift) in [(1, 7), (2, 5), (7, 6), (33, 8), (64, 6), (len, 5)] {
                let paged = Paged::new(kernels, (&k, &v), head_dim, page_shift);
                for (start, wanted) in (0..len).step_by(step).zip(wanted.chunks(step * width)) {
                    let q = &q[start * width..][..wanted.len()];
                    let found = paged.attend(kernels, (q, width), (start, window), 0.3);
                    assert_eq!(bits(&found), bits(wanted), "{kernels:?} {head_dim} {start} {step}");
                }
            }
        }
    }
}

#[test]
fn longest_int8_heads_are_served() {
    let mut random = Random(25);
    let (k, v) = (random.floats(3 * HEAD_DIM_MAX), random.floats(3 * HEAD_DIM_MAX));
    let q = random.floats(9 * HEAD_DIM_MAX);
    let attend = |kernels| attend_last(kernels, &q, (&k, &v), HEAD_DIM_MAX, 0.01);
    let found = attend(Kernels::best());
    assert_eq!(bits(&found), bits(&attend(scalar())));
    assert!(found.iter().all(|x| x.is_finite()));
}

#[test]
fn int8_keeps_what_is_far_outside_f16_and_shows_what_is_no_number() {
    let head_dim = 160;
    let of = |x: f32| {
        let mut values = vec![0.5; head_dim];
        values[3] = x;
        values
    };
    for kernels in tiers().chain([scalar()]) {
        let value = |x: f32| {
            let (q, keys) = (vec![0.0; head_dim], vec![0.0; head_dim]);
            attend_last(kernels, &q, (&keys, &of(x)), head_dim, 1.0)
        };
        for x in [f32::INFINITY, 1e30, -65504.0, f32::NEG_INFINITY] {
            let found = value(x);
            assert!((found[3] - x.clamp(-65504.0, 65504.0)).abs() < 40.0, "{}", found[3]);
            assert!(found.iter().all(|x| x.is_finite()));
        }
        // A NaN makes all values NaN that share its scale, and no others.
        let found = value(f32::NAN);
        assert!(found[..128].iter().all(|x| x.is_nan()));
        assert!(found[128..].iter().all(|x| (x - 0.5).abs() < 1e-3));
        let score = |q: f32, k: f32| {
            attend_last(kernels, &of(q), (&of(k), &vec![0.5; head_dim]), head_dim, 1.0)
        };
        assert!(score(f32::NAN, 1.0).iter().all(|x| x.is_nan()));
        assert!(score(1.0, f32::NAN).iter().all(|x| x.is_nan()));
        assert!(score(f32::INFINITY, 1.0).iter().all(|x| x.is_nan()));
        assert!(score(1.0, f32::INFINITY).iter().all(|x| x.is_finite()));
        // Values too small to have a scale are zero.
        assert!(value(1e-30)[3].abs() < 1e-2);
    }
}

#[test]
fn cleared_positions_are_zeros_and_others_stay() {
    let mut random = Random(26);
    for head_dim in [16, 100, 160] {
        let (k, v) = (random.floats(32 * head_dim), random.floats(32 * head_dim));
        for n in [0, 1, 15, 16, 17, 31, 32] {
            let all = Paged::new(scalar(), (&k, &v), head_dim, 5);
            let some = (&k[..n * head_dim], &v[..n * head_dim]);
            let mut wanted = Paged::new(scalar(), (&k, &v), head_dim, 5);
            wanted.stored.fill(KvLine::ZERO);
            let [of_keys, of_values] = kv_block_lines(head_dim);
            let rows = some.0.chunks_exact(head_dim).zip(some.1.chunks_exact(head_dim));
            for (position, (key, value)) in rows.enumerate() {
                scalar().store_key_i8(key, &mut wanted.stored[1..][..of_keys], position);
                let to = &mut wanted.stored[3 + of_keys..][..of_values];
                scalar().store_value_i8(value, to, position);
            }
            for (from, len, is_key) in [(1, of_keys, true), (3 + of_keys, of_values, false)] {
                let mut part = all.stored[from..][..len].to_vec();
                kv8::clear_block(bytemuck::cast_slice_mut(&mut part), is_key, n);
                let wanted = &wanted.stored[from..][..len];
                assert!(
                    bytemuck::cast_slice::<_, u8>(&part) == bytemuck::cast_slice::<_, u8>(wanted),
                    "{head_dim} {n} {is_key}"
                );
            }
        }
    }
}
