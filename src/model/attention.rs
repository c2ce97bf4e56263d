//! Attention of a batch: each row against what its stream has stored.

use heapless::Vec;

use super::batch::{self, Span};
use super::buffers::{Buffers, KvValues};
use super::interrupt::Interrupt;
use super::kv::{KvLane, KvShape};
use super::team::gcd;
use crate::format::model::{HEAD_DIM_MAX, LayerSpec};
use crate::kernels::{ATTEND_QUERIES, Attended, Kernels};
use crate::pool::{Chunks, Pool, TILE_ROWS};

/// Most rows that share keys and values.
const BLOCK_ROWS: usize = if ATTEND_QUERIES < TILE_ROWS { ATTEND_QUERIES } else { TILE_ROWS };

/// The attention of one batch in one layer: its rows, shapes and tools.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) kv: &'a KvShape,
    pub(super) spec: LayerSpec,
    pub(super) heads: HeadSpec<'a>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) spans: &'a [Span],
    /// Rows of all spans.
    pub(super) m: usize,
}

/// What a layer does with its heads before they look at others.
#[derive(Clone, Copy)]
pub(super) struct HeadSpec<'a> {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// Query heads of the model that look at the same KV head.
    pub(super) group: usize,
    /// Where in the model the first query head and the first KV head stand.
    pub(super) first: (usize, usize),
    pub(super) head_dim: usize,
    /// Whether queries and keys are rotated.
    pub(super) is_rotated: bool,
    /// How many values of a head are, its first.
    pub(super) rotary_dim: usize,
    /// Added to the mean square in norms.
    pub(super) norm_eps: f32,
    /// Added to queries, keys and values.
    pub(super) biases: Option<[&'a [f32]; 3]>,
    /// Weights of the norms of each query and key, `[head_dim]`.
    pub(super) norms: Option<[&'a [f32]; 2]>,
    /// One more score for each head.
    pub(super) sinks: Option<&'a [f32]>,
}

impl HeadSpec<'_> {
    /// Adds biases to a row of queries, keys and values, and normalises and rotates queries and keys.
    fn shape(&self, kernels: &Kernels, qkv: &mut [f32], (cos, sin): (&[f32], &[f32])) {
        let HeadSpec { n_heads, n_kv_heads, head_dim, rotary_dim, .. } = *self;
        let (q, kv) = qkv.split_at_mut(n_heads * head_dim);
        let (k, v) = kv.split_at_mut(n_kv_heads * head_dim);
        if let Some([of_q, of_k, of_v]) = self.biases {
            for (x, bias) in [(&mut *q, of_q), (&mut *k, of_k), (v, of_v)] {
                kernels.add(x, bias);
            }
        }
        if let Some([of_q, of_k]) = self.norms {
            for (x, weight) in [(q, of_q), (k, of_k)] {
                for head in x.chunks_exact_mut(head_dim) {
                    let mut normed = [0.0; HEAD_DIM_MAX];
                    let normed = &mut normed[..head_dim];
                    kernels.rms_norm(head, weight, self.norm_eps, normed);
                    head.copy_from_slice(normed);
                }
            }
        }
        let qk = &mut qkv[..(n_heads + n_kv_heads) * head_dim];
        if self.is_rotated && rotary_dim == head_dim {
            kernels.rope(qk, head_dim, cos, sin);
        } else if self.is_rotated {
            for head in qk.chunks_exact_mut(head_dim) {
                kernels.rope(&mut head[..rotary_dim], rotary_dim, cos, sin);
            }
        }
    }
}

impl Attention<'_> {
    fn q_dim(&self) -> usize {
        self.heads.n_heads * self.kv.head_dim
    }

    fn kv_dim(&self) -> usize {
        self.kv.n_kv_heads * self.kv.head_dim
    }

    /// Rotates the queries and keys in `buffers.qkv` if the layer does, stores keys and values, and writes the
    /// attention's result to `buffers.inputs.f32`, or to `buffers.part` of a team's node; `[m, q_dim]`.
    pub(super) fn run(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let (q_dim, kv_dim) = (self.q_dim(), self.kv_dim());
        if q_dim == 0 {
            return;
        }
        let width = q_dim + 2 * kv_dim;
        let half = self.heads.rotary_dim / 2;
        let (cos, sin) = (&*buffers.cos, &*buffers.sin);
        let qkv = &mut buffers.qkv[..self.m * width];
        let (heads, kernels) = (&self.heads, self.kernels);
        if heads.is_rotated || heads.biases.is_some() || heads.norms.is_some() {
            self.pool.run_chunks(Chunks::new(qkv, width), &|row, qkv| {
                let angles = row * half..(row + 1) * half;
                heads.shape(kernels, qkv, (&cos[angles.clone()], &sin[angles]));
            });
        }
        let lane = |span: &Span| KvLane { stream: span.stream, layer };
        let places = self.spans.iter().flat_map(|s| s.positions().map(move |pos| (lane(s), pos)));
        for (place, qkv) in places.zip(qkv.chunks_exact(width)) {
            let (k, v) = qkv[q_dim..].split_at(kv_dim);
            buffers.kv.store(self.kv, place, (k, v), self.kernels);
        }
        let out = match buffers.part.is_empty() {
            true => &mut buffers.inputs.f32[..self.m * q_dim],
            false => &mut buffers.part[..self.m * q_dim],
        };
        self.attend(layer, qkv, &buffers.kv, out);
    }

    fn attend(&self, layer: usize, qkv: &[f32], kv: &KvValues<'_>, out: &mut [f32]) {
        let q_dim = self.q_dim();
        let width = q_dim + 2 * self.kv_dim();
        let (scale, sinks, head_dim) =
            (self.spec.attention_scale, self.heads.sinks, self.kv.head_dim);
        let window = self.spec.window.unwrap_or(usize::MAX);
        // The query heads of one kv head are neighbours and share its keys and values, and so do
        // rows that follow each other.
        let HeadSpec { n_heads, group, first: (first, first_kv), .. } = self.heads;
        let heads = gcd(gcd(group, first), n_heads) * head_dim;
        let rows_step = (ATTEND_QUERIES * self.kv.head_dim / heads).clamp(1, BLOCK_ROWS);
        self.pool.run_tiles(out, q_dim, (rows_step, heads), &|block, columns, out| {
            if self.interrupt.ask() {
                return;
            }
            let head = (first + columns.start / head_dim) / group - first_kv;
            let of_heads = columns.start / head_dim..columns.end / head_dim;
            let sinks = sinks.map_or(&[][..], |sinks| &sinks[of_heads]);
            let (mut rows, mut out) = (block.clone(), out);
            for span in batch::part(self.spans, block) {
                let of_span = rows.by_ref().take(span.n_rows);
                let q: Vec<&[f32], BLOCK_ROWS> =
                    of_span.map(|row| &qkv[row * width..][columns.clone()]).collect();
                let (results, rest) = out.split_at_mut(span.n_rows);
                out = rest;
                let pos = span.pos;
                let kv = kv.pages(self.kv, KvLane { stream: span.stream, layer }, head);
                let to = Attended { kv, pos, window, head_dim, scale, sinks };
                self.kernels.attend(&q, &to, results);
            }
        });
    }
}
