//! Attention of a batch: each row against what its stream has stored.

use super::buffers::{Buffers, KvValues};
use super::forward::Row;
use super::kv::KvShape;
use crate::kernels::Kernels;
use crate::pool::Pool;

/// Shapes and tools of the attention of one model.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) kv: &'a KvShape,
    pub(super) n_heads: usize,
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
        // The query heads of one kv head are neighbours and share its keys and values.
        let chunk = q_dim / self.kv.n_kv_heads;
        self.pool.run_chunks(out, chunk, &|index, out| {
            let (row, head) = (index / self.kv.n_kv_heads, index % self.kv.n_kv_heads);
            let q = &qkv[row * width + head * chunk..][..chunk];
            let at = (rows[row].stream, layer, rows[row].pos);
            let runs = kv.runs(self.kv, at, head);
            self.kernels.attend(q, &runs, self.kv.head_dim, scale, out);
        });
    }
}
