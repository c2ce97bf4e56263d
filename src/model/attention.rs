//! Attention of a batch: each row against what its stream has stored.

use std::ops::Range;

use heapless::Vec;

use super::buffers::{Buffers, KvValues};
use super::forward::Row;
use super::interest::Interest;
use super::kv::KvShape;
use crate::kernels::{ATTEND_QUERIES, Attended, Kernels};
use crate::pool::{Pool, TILE_ROWS};

/// Most rows that share keys and values.
const BLOCK_ROWS: usize = if ATTEND_QUERIES < TILE_ROWS { ATTEND_QUERIES } else { TILE_ROWS };

/// Shapes and tools of the attention of one model.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) kv: &'a KvShape,
    pub(super) n_heads: usize,
    pub(super) interest: &'a Interest,
}

impl Attention<'_> {
    fn q_dim(&self) -> usize {
        self.n_heads * self.kv.head_dim
    }

    fn kv_dim(&self) -> usize {
        self.kv.n_kv_heads * self.kv.head_dim
    }

    /// Rotates the queries and keys in `buffers.qkv`, stores keys and values, and writes the
    /// attention's result to `buffers.inputs.f32`, `[rows, q_dim]`.
    pub(super) fn run(&self, rows: &[Row], layer: usize, buffers: &mut Buffers<'_>) {
        let (q_dim, kv_dim) = (self.q_dim(), self.kv_dim());
        let width = q_dim + 2 * kv_dim;
        let half = self.kv.head_dim / 2;
        let (cos, sin) = (&*buffers.cos, &*buffers.sin);
        let qkv = &mut buffers.qkv[..rows.len() * width];
        self.pool.run_chunks(qkv, width, &|row, qkv| {
            let angles = row * half..(row + 1) * half;
            let qk = &mut qkv[..q_dim + kv_dim];
            self.kernels.rope(qk, self.kv.head_dim, &cos[angles.clone()], &sin[angles]);
        });
        for (row, qkv) in rows.iter().zip(qkv.chunks_exact(width)) {
            let (k, v) = qkv[q_dim..].split_at(kv_dim);
            buffers.kv.store(self.kv, (row.stream, layer, row.pos), (k, v), self.kernels);
        }
        let out = &mut buffers.inputs.f32[..rows.len() * q_dim];
        self.attend(rows, layer, qkv, &buffers.kv, out);
    }

    fn attend(&self, rows: &[Row], layer: usize, qkv: &[f32], kv: &KvValues<'_>, out: &mut [f32]) {
        let q_dim = self.q_dim();
        let width = q_dim + 2 * self.kv_dim();
        let scale = 1.0 / (self.kv.head_dim as f32).sqrt();
        // The query heads of one kv head are neighbours and share its keys and values, and so do
        // rows that follow each other.
        let heads = q_dim / self.kv.n_kv_heads;
        let rows_step = (ATTEND_QUERIES * self.kv.head_dim / heads).clamp(1, BLOCK_ROWS);
        self.pool.run_tiles(out, q_dim, (rows_step, heads), &|block, columns, out| {
            if self.interest.is_lost() {
                return;
            }
            let head = columns.start / heads;
            for part in streaks(&rows[block.clone()]) {
                let q: Vec<&[f32], BLOCK_ROWS> = block
                    .clone()
                    .skip(part.start)
                    .take(part.len())
                    .map(|row| &qkv[row * width..][columns.clone()])
                    .collect();
                let Row { stream, pos, .. } = rows[block.start + part.start];
                let (start, runs) = kv.runs(self.kv, (stream, layer), head, pos..pos + part.len());
                let window = self.kv.sliding_window.unwrap_or(usize::MAX);
                let head_dim = self.kv.head_dim;
                let to = Attended { kv: &runs, start, pos, window, head_dim, scale };
                self.kernels.attend(&q, &to, &mut out[part]);
            }
        });
    }
}

/// The ranges of `rows` that are consecutive positions of one stream.
fn streaks(rows: &[Row]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    let follows = |a: &Row, b: &Row| a.stream == b.stream && a.pos + 1 == b.pos;
    rows.chunk_by(follows).map(move |streak| {
        start += streak.len();
        start - streak.len()..start
    })
}
