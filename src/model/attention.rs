//! Attention of a batch: each row attends to the stored positions of its stream.

use std::ops::Range;

use heapless::Vec;

use super::batch::{self, Span};
use super::buffers::{Buffers, KvValues, RowTables};
use super::inputs::{Inputs, Prepared};
use super::interrupt::Interrupt;
use super::kv::{KvLane, KvShape};
use super::matrix::Matrix;
use super::project::Projector;
use super::rope::AnglePlace;
use super::team::gcd;
use super::units::Units;
use super::zeros::zeros;
use crate::format::model::{HEAD_DIM_MAX, LayerSpec, Temperature};
use crate::kernels::{ATTEND_QUERIES, Attended, Kernels};
use crate::numerics::ln;
use crate::pool::{Chunks, ColumnChunks, Pool, TILE_ROWS};

/// Maximum number of rows in a piece of work, which share keys and values.
const BLOCK_ROWS: usize = if ATTEND_QUERIES < TILE_ROWS { ATTEND_QUERIES } else { TILE_ROWS };

/// The attention of one batch in one layer: its rows, shapes and tools.
#[derive(Clone, Copy)]
pub(super) struct Attention<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) kv: &'a KvShape,
    pub(super) spec: LayerSpec,
    pub(super) heads: HeadSpec<'a>,
    /// Whether the layer computes keys and values; otherwise those of an earlier layer are used.
    pub(super) is_own: bool,
    /// Whether rows attend to no later positions. Otherwise a span is a whole text.
    pub(super) is_causal: bool,
    pub(super) interrupt: &'a Interrupt,
    /// Spans of the batch.
    pub(super) spans: &'a [Span],
    /// First row of the batch to compute, and number of rows.
    pub(super) first: usize,
    pub(super) m: usize,
}

/// Norms, rotation and numbers of a layer's heads.
#[derive(Clone, Copy)]
pub(super) struct HeadSpec<'a> {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// Number of the model's query heads per KV head.
    pub(super) group: usize,
    /// Index in the model of this node's first query head and first KV head.
    pub(super) first: (usize, usize),
    pub(super) head_dim: usize,
    /// Whether each head's output has a gate, behind the values of a row.
    pub(super) is_gated: bool,
    /// Where the layer's angles lie in a row of the tables.
    pub(super) angles: AnglePlace,
    /// Epsilon: added to the mean square in norms.
    pub(super) norm_eps: f32,
    /// Biases of queries, keys and values.
    pub(super) biases: Option<[&'a [f32]; 3]>,
    /// Weights of the norms of each query and key, `[head_dim]`.
    pub(super) norms: [Option<&'a [f32]>; 2],
    /// Whether each value is normalised, without weights.
    pub(super) value_norm: bool,
    /// Attention sinks: one more score for each head.
    pub(super) sinks: Option<&'a [f32]>,
}

impl HeadSpec<'_> {
    /// Adds biases to a row of queries, keys and values, and normalises and rotates queries and keys. Queries are
    /// multiplied by `growth`.
    fn shape(&self, kernels: &Kernels, qkv: &mut [f32], (angles, growth): (Angles<'_>, f32)) {
        let (q, kv) = qkv.split_at_mut(self.n_heads * self.head_dim);
        self.shape_queries(kernels, (q, 0), (angles, growth));
        // Layers that use others' keys have none here.
        if let Some(kv) = kv.get_mut(..2 * self.n_kv_heads * self.head_dim) {
            self.shape_keys(kernels, kv, angles);
        }
    }

    /// Adds bias, normalises and rotates a row of queries, and multiplies them by `growth`. `q` begins at `column` of
    /// the row.
    fn shape_queries(
        &self,
        kernels: &Kernels,
        (q, column): (&mut [f32], usize),
        (angles, growth): (Angles<'_>, f32),
    ) {
        if let Some([bias, ..]) = self.biases {
            kernels.add(q, &bias[column..][..q.len()]);
        }
        if let [Some(weight), _] = self.norms {
            self.normalise(kernels, q, weight);
        }
        self.rotate(kernels, q, angles);
        if growth != 1.0 {
            q.iter_mut().for_each(|q| *q *= growth);
        }
    }

    /// Adds biases to a row of keys and values, normalises and rotates the keys.
    fn shape_keys(&self, kernels: &Kernels, kv: &mut [f32], angles: Angles<'_>) {
        let (k, v) = kv.split_at_mut(self.n_kv_heads * self.head_dim);
        if let Some([_, of_k, of_v]) = self.biases {
            kernels.add(k, of_k);
            kernels.add(v, of_v);
        }
        if let [_, Some(weight)] = self.norms {
            self.normalise(kernels, k, weight);
        }
        if self.value_norm {
            self.normalise(kernels, v, &[1.0; HEAD_DIM_MAX][..self.head_dim]);
        }
        self.rotate(kernels, k, angles);
    }

    fn normalise(&self, kernels: &Kernels, x: &mut [f32], weight: &[f32]) {
        let mut normed = zeros::<HEAD_DIM_MAX>();
        let normed = &mut normed[..self.head_dim];
        for head in x.chunks_exact_mut(self.head_dim) {
            kernels.rms_norm(head, weight, self.norm_eps, normed);
            head.copy_from_slice(normed);
        }
    }

    fn rotate(&self, kernels: &Kernels, x: &mut [f32], (cos, sin): Angles<'_>) {
        let (head_dim, rotary_dim) = (self.head_dim, 2 * self.angles.n);
        if rotary_dim == head_dim {
            kernels.rope(x, head_dim, cos, sin);
        } else if rotary_dim > 0 {
            for head in x.chunks_exact_mut(head_dim) {
                kernels.rope(&mut head[..rotary_dim], rotary_dim, cos, sin);
            }
        }
    }
}

/// Cosines and sines of a row's position.
type Angles<'a> = (&'a [f32], &'a [f32]);

/// Factor of the queries at `pos`.
pub(crate) fn growth(Temperature { slope, original_ctx }: Temperature, pos: usize) -> f32 {
    let contexts = (pos / original_ctx) as f64;
    (1.0 + f64::from(slope) * ln(1.0 + contexts)) as f32
}

impl Attention<'_> {
    fn q_dim(&self) -> usize {
        self.heads.n_heads * self.heads.head_dim
    }

    /// Width of the keys that are computed; 0 if those of another layer are used.
    fn kv_dim(&self) -> usize {
        if self.is_own { self.heads.n_kv_heads * self.heads.head_dim } else { 0 }
    }

    /// Width of a row of queries, keys, values and gates.
    fn width(&self) -> usize {
        let gates = if self.heads.is_gated { self.q_dim() } else { 0 };
        self.q_dim() + 2 * self.kv_dim() + gates
    }

    /// Rotates the queries and keys in `buffers.qkv` if the layer has RoPE, and stores keys and values.
    /// Writes attention's result to `buffers.inputs.f32`, or to `buffers.part` on a team's node;
    /// `[m, q_dim]`.
    pub(super) fn run(&self, pool: &Pool, layer: usize, buffers: &mut Buffers<'_>) {
        let (q_dim, kv_dim) = (self.q_dim(), self.kv_dim());
        if q_dim == 0 {
            return;
        }
        let width = self.width();
        let Buffers { tables: RowTables { angles: [cos, sin], .. }, kv, .. } = buffers;
        let qkv = &mut buffers.qkv[..self.m * width];
        let (heads, kernels) = (&self.heads, self.kernels);
        let is_shaped = heads.angles.n > 0 || heads.biases.is_some() || heads.norms[0].is_some();
        if is_shaped || self.spec.temperature.is_some() {
            pool.run_chunks(Chunks::new(qkv, width), &|row, qkv| {
                heads.shape(kernels, qkv, (self.angles(row, (cos, sin)), self.growth(row)));
            });
        }
        self.store(layer, qkv, kv);
        let out = match buffers.part.is_empty() {
            true => &mut buffers.inputs.f32[..self.m * q_dim],
            false => &mut buffers.part[..self.m * q_dim],
        };
        let heads = self.heads_step() * self.heads.head_dim;
        let rows_step = self.rows_step(heads);
        let (qkv, kv) = (&*qkv, &*kv);
        pool.run_tiles(out, q_dim, (rows_step, heads), &|block, columns, out| {
            let q = |row: usize| &qkv[row * width..][columns.clone()];
            self.attend(layer, (block.clone(), columns.clone()), &q, kv, out);
            if self.heads.is_gated {
                let gates = q_dim + 2 * kv_dim..width;
                for (row, out) in block.zip(out) {
                    let gates = &qkv[row * width..][gates.clone()];
                    kernels.gate(&gates[columns.clone()], out);
                }
            }
        });
    }

    /// Rotates keys like [`Attention::run`] and stores them and the values, without attending to any.
    pub(super) fn store_all(&self, pool: &Pool, layer: usize, buffers: &mut Buffers<'_>) {
        let (q_dim, width) = (self.q_dim(), self.width());
        let Buffers { tables: RowTables { angles: [cos, sin], .. }, kv, .. } = buffers;
        let qkv = &mut buffers.qkv[..self.m * width];
        pool.run_chunks(Chunks::new(qkv, width), &|row, qkv| {
            let kv = &mut qkv[q_dim..][..2 * self.kv_dim()];
            self.heads.shape_keys(self.kernels, kv, self.angles(row, (cos, sin)));
        });
        self.store(layer, qkv, kv);
    }

    /// Attention of few rows, fused with quantising its result as the input of `wo`: the thread that computes the
    /// query heads of a KV head also quantises them. Returns `None`, with nothing computed, if the rows or weights
    /// do not allow that.
    pub(super) fn run_few<'i>(
        &self,
        layer: usize,
        (projector, wo): (Projector<'_>, &Matrix<'_>),
        (qkv, (cos, sin)): (&mut [f32], Angles<'_>),
        kv: &mut KvValues<'_>,
        inputs: &'i mut Inputs<'_>,
    ) -> Option<Prepared<'i>> {
        let (q_dim, kernels) = (self.q_dim(), self.kernels);
        let width = self.width();
        let step = self.heads_step() * self.heads.head_dim;
        let units = Units::new(projector, (wo, q_dim), self.m, step)?;
        if self.m > self.rows_step(step) {
            return None;
        }
        let qkv = &mut qkv[..self.m * width];
        for (row, qkv) in qkv.chunks_exact_mut(width).enumerate() {
            let angles = self.angles(row, (cos, sin));
            if self.is_own {
                self.heads.shape_keys(kernels, &mut qkv[q_dim..], angles);
            }
        }
        self.store(layer, qkv, kv);
        let (out, room) = inputs.split_f32();
        let out = ColumnChunks::new(&mut out[..self.m * q_dim], q_dim, q_dim, step);
        let q = ColumnChunks::new(qkv, width, q_dim, step);
        let kv = &*kv;
        let prepared = units.write(room, |chunks| {
            projector.pool.run_chunks((q, (out, chunks)), &|piece, (mut q, (mut out, unit))| {
                for (row, q) in q.iter_mut().enumerate() {
                    let turn = (self.angles(row, (cos, sin)), self.growth(row));
                    self.heads.shape_queries(kernels, (q, piece * step), turn);
                }
                let (q, columns) = (|row: usize| &*q[row], piece * step..(piece + 1) * step);
                self.attend(layer, (0..self.m, columns), &q, kv, &mut out);
                units.quantize(kernels, unit, |row, give| give(out[row]));
            });
        });
        Some(prepared)
    }

    fn angles<'t>(&self, row: usize, (cos, sin): Angles<'t>) -> Angles<'t> {
        let AnglePlace { start, n, width } = self.heads.angles;
        let at = row * width + start;
        (&cos[at..at + n], &sin[at..at + n])
    }

    /// Factor of a row's queries.
    fn growth(&self, row: usize) -> f32 {
        let Some(temperature) = self.spec.temperature else { return 1.0 };
        let row = self.first + row;
        let pos = batch::part(self.spans, row..row + 1).next().map_or(0, |span| span.pos);
        growth(temperature, pos)
    }

    /// Stores the keys and values of all rows, if the layer computes them.
    fn store(&self, layer: usize, qkv: &[f32], kv: &mut KvValues<'_>) {
        if !self.is_own {
            return;
        }
        let (q_dim, kv_dim, width) = (self.q_dim(), self.kv_dim(), self.width());
        let lane = |span: &Span| KvLane { stream: span.stream, layer };
        let spans = batch::part(self.spans, self.first..self.first + self.m);
        let places = spans.flat_map(|s| s.positions().map(move |pos| (lane(&s), pos)));
        for (place, qkv) in places.zip(qkv.chunks_exact(width)) {
            let (k, v) = qkv[q_dim..][..2 * kv_dim].split_at(kv_dim);
            kv.store(self.kv, place, (k, v), self.kernels);
        }
    }

    /// Number of query heads in one piece of work: neighbours with one KV head, so that they share its keys
    /// and values.
    fn heads_step(&self) -> usize {
        let HeadSpec { n_heads, group, first: (first, _), .. } = self.heads;
        gcd(gcd(group, first), n_heads)
    }

    /// Number of rows in one piece of work, if its heads have `columns` columns: successive rows share keys
    /// and values, too.
    fn rows_step(&self, columns: usize) -> usize {
        (ATTEND_QUERIES * self.heads.head_dim / columns).clamp(1, BLOCK_ROWS)
    }

    /// Attention of some query heads of one KV head: `columns` of the rows in `block`.
    fn attend<'q>(
        &self,
        layer: usize,
        (block, columns): (Range<usize>, Range<usize>),
        q: &dyn Fn(usize) -> &'q [f32],
        kv: &KvValues<'_>,
        out: &mut [&mut [f32]],
    ) {
        if self.interrupt.ask() {
            return;
        }
        let (scale, sinks, head_dim) =
            (self.spec.attention_scale, self.heads.sinks, self.heads.head_dim);
        let window = self.spec.window.unwrap_or(usize::MAX);
        let HeadSpec { group, first: (first, first_kv), .. } = self.heads;
        let head = (first + columns.start / head_dim) / group - first_kv;
        let of_heads = columns.start / head_dim..columns.end / head_dim;
        let sinks = sinks.map_or(&[][..], |sinks| &sinks[of_heads]);
        let of_batch = self.first + block.start..self.first + block.end;
        let (mut rows, mut out) = (block, out);
        for span in batch::part(self.spans, of_batch) {
            let of_span = rows.by_ref().take(span.n_rows);
            let q: Vec<&[f32], BLOCK_ROWS> = of_span.map(q).collect();
            let (results, rest) = out.split_at_mut(span.n_rows);
            out = rest;
            let pos = span.pos;
            let end = self.spans.iter().find(|whole| whole.stream == span.stream);
            let end = end.filter(|_| !self.is_causal).map(|whole| whole.positions().end);
            let kv = kv.pages(self.kv, KvLane { stream: span.stream, layer }, head);
            let to = Attended { kv, pos, window, end, head_dim, scale, sinks };
            self.kernels.attend(&q, &to, results);
        }
    }
}
