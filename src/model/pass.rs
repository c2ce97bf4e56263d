//! The forward pass: a batch of tokens in, logits out.
//!
//! Each step reads one layer's weights once for all rows of the batch. A chunk of a prompt, the next token of
//! one stream, and those of several streams are the same call.

use std::ops::Range;

use super::activation::activate;
use super::attention::{Attention, HeadSpec};
use super::batch::{self, ForwardError, Span};
use super::buffers::Buffers;
use super::gated::Gating;
use super::gather::{Gather, To};
use super::interrupt::Interrupt;
use super::kv::KvShape;
use super::mixture::{ExpertTensors, Mixture, RowWork};
use super::packed::PackedWeights;
use super::project::{FEW_ROWS, Projector};
use super::rope::{self, AnglePlace, Frequencies};
use super::state::States;
use super::team::{Columns, Team};
use super::watch::{Watch, Watcher};
use super::{Matrix, Model};
use crate::format::model::{LayerSpec, Rope, Slice, TensorId, TensorKind};
use crate::kernels::{Kernels, MatrixDims};
use crate::pool::{Chunks, Pool};

/// One forward pass over the rows of `spans`.
pub(super) struct Pass<'a> {
    pub(super) model: &'a Model,
    pub(super) packed: Option<&'a PackedWeights>,
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) positions: Positions<'a>,
    pub(super) interrupt: Interrupt,
    /// Observer of the matrices' inputs, for calibration.
    pub(super) watch: Option<&'a Watch>,
    /// Spans of the batch.
    pub(super) spans: &'a [Span],
    /// First row of the batch to compute, and number of rows. The buffers begin with these rows.
    pub(super) first: usize,
    pub(super) m: usize,
    /// Rows of matrices that this node computes.
    pub(super) slice: Slice,
    /// The team whose part this node computes; `None` if it computes alone.
    pub(super) team: Option<&'a Team>,
}

/// Data on positions that attention and recurrence need.
#[derive(Clone, Copy)]
pub(super) struct Positions<'a> {
    pub(super) kv: &'a KvShape,
    pub(super) frequencies: &'a Frequencies,
    /// The streams' states; `None` if the model has no recurrent layers.
    pub(super) states: Option<&'a States>,
}

/// A feed-forward layer that is no mixture of experts.
pub(super) struct Ffn {
    /// Gate and up.
    gate_up: [TensorKind; 2],
    pub(super) down: TensorKind,
    /// Width of gate and up.
    pub(super) width: usize,
    /// Columns of gate and up that this node computes.
    own: Range<usize>,
    pub(super) columns: Columns,
}

impl Pass<'_> {
    /// A pass over only `rows` of the batch, which cannot be interrupted.
    pub(super) fn of_rows(&self, rows: Range<usize>) -> Pass<'_> {
        let (first, m, interrupt) = (rows.start, rows.len(), Interrupt::new(None));
        Pass { first, m, interrupt, slice: self.slice.clone(), ..*self }
    }

    pub(super) fn projector(&self) -> Projector<'_> {
        let (kernels, pool, interrupt) = (self.kernels, self.pool, &self.interrupt);
        Projector { kernels, pool, interrupt }
    }

    pub(super) fn watcher(&self, layer: usize) -> Watcher<'_> {
        Watcher { watch: self.watch, layer }
    }

    /// The matrix of `kind` in `layer`, in packed form if there is one.
    pub(super) fn matrix(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let header = self.model.header();
        let packed = self.packed.and_then(|packed| packed.matrix(TensorId { kind, layer }, header));
        packed.unwrap_or_else(|| self.model.matrix(kind, layer))
    }

    /// This node's rows of the matrix of `kind` in `layer`, which are one range.
    pub(super) fn rows(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let none = || self.matrix(kind, layer).slice_rows(0..0);
        self.row_ranges(kind, layer).next().unwrap_or_else(none)
    }

    /// This node's rows of the matrix of `kind` in `layer`.
    pub(super) fn row_ranges(
        &self,
        kind: TensorKind,
        layer: usize,
    ) -> impl Iterator<Item = Matrix<'_>> {
        let (matrix, header) = (self.matrix(kind, layer), self.model.header());
        // A file for a team's node holds only this node's rows.
        let is_cut = self.team.is_some() && header.slice().is_none();
        let ranges = is_cut.then(|| self.slice.rows(kind, header));
        let cut = ranges.into_iter().flatten().map(move |rows| matrix.slice_rows(rows));
        cut.chain((!is_cut).then_some(matrix))
    }

    /// Fills `x` with the embeddings of `tokens`.
    pub(super) fn embed(&self, tokens: &[u32], buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let embedding = match header.packing_of(TensorKind::Embedding) {
            // The file's pages may have been dropped after a move to huge pages.
            Some(_) => self.matrix(TensorKind::Embedding, 0),
            None => self.model.matrix(TensorKind::Embedding, 0),
        };
        for (id, x) in tokens.iter().zip(buffers.x.chunks_exact_mut(header.dim)) {
            embedding.read_row(*id as usize, self.kernels, x);
            scale(x, header.features.embedding_scale);
        }
        self.place_embeddings(buffers);
        self.fill_layer_inputs(tokens, buffers);
    }

    /// Computes `layers` on all rows of `x`, on a node that has all of the matrices' rows.
    pub(super) fn each_layer(
        &self,
        layers: Range<usize>,
        buffers: &mut Buffers<'_>,
    ) -> Result<(), ForwardError> {
        let mut filled = 0;
        for layer in layers {
            self.turn(layer, &mut filled, buffers);
            match self.positions.states.filter(|_| self.spec(layer).mixer.is_some()) {
                Some(states) => self.recur(layer, states, buffers),
                None => self.attention(layer, buffers),
            }
            self.feed_forward(layer, buffers);
            self.add_layer_input(layer, buffers);
            self.scale_layer(layer, buffers);
            if self.interrupt.ask() {
                return Err(ForwardError::Interrupted);
            }
        }
        Ok(())
    }

    /// Fills the tables of cosines and sines of the rows' positions for the RoPE of `layer`, if the RoPE's bit in `filled`
    /// is not set.
    pub(super) fn turn(&self, layer: usize, filled: &mut u64, buffers: &mut Buffers<'_>) {
        let Some(rope) = self.spec(layer).rope else { return };
        let bit = 1 << self.positions.frequencies.index(rope);
        if *filled & bit == 0 {
            self.fill_angles(rope, buffers);
            *filled |= bit;
        }
    }

    fn fill_angles(&self, rope: Rope, buffers: &mut Buffers<'_>) {
        let AnglePlace { start, n, width } = self.angle_place(rope);
        let frequencies = self.positions.frequencies;
        let tables = buffers.tables.angles.each_mut();
        let [cos, sin] = tables.map(|table| Chunks::new(&mut table[..self.m * width], width));
        self.pool.run_chunks((cos, sin), &|row, (cos, sin)| {
            let Some((span, pos)) = batch::position(self.spans, row) else { return };
            let of = (frequencies.of(rope, span.is_long), rope.magnitude);
            rope::angles(of, pos, &mut cos[start..start + n], &mut sin[start..start + n]);
        });
    }

    /// Where the angles of `rope` lie in a row of the tables.
    fn angle_place(&self, rope: Rope) -> AnglePlace {
        self.positions.frequencies.place(rope, self.model.header().angles_max())
    }

    pub(super) fn spec(&self, layer: usize) -> LayerSpec {
        self.model.header().layer(layer)
    }

    fn attention(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let [_, _, _, wo] = self.attention_kinds(layer);
        let (projector, wo) = (self.projector(), self.rows(wo, layer));
        let dims = MatrixDims { rows: self.m, k: self.q_dim(layer) };
        let at_once = self.adds_at_once(self.attention_ends(layer), layer);
        let is_gated = self.model.header().features.output_gate;
        let (attention, own_layer) = self.prepare_attention(layer, buffers);
        if at_once && self.watch.is_none() && !is_gated {
            let Buffers { qkv, tables, kv, inputs, .. } = buffers;
            let [cos, sin] = &tables.angles;
            let of = (&mut **qkv, (&**cos, &**sin));
            if let Some(inputs) = attention.run_few(own_layer, (projector, &wo), of, kv, inputs) {
                projector.add_projected(inputs, &wo, buffers.x);
                return;
            }
        }
        attention.run(self.pool, own_layer, buffers);
        let inputs = &mut buffers.inputs;
        let id = (self.attention_kinds(layer)[3], 0);
        self.watcher(layer).tell(id, (inputs.f32, dims), self.pool, None);
        let inputs = projector.prepare(inputs, dims, &wo, None);
        if at_once {
            projector.add_projected(inputs, &wo, buffers.x);
            return;
        }
        projector.project(inputs, &[wo], buffers.delta);
        self.add_attention(layer, buffers);
    }

    /// Computes queries, keys and values, and writes attention's output for this node's heads to `part`.
    pub(super) fn attend(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let (attention, own_layer) = self.prepare_attention(layer, buffers);
        attention.run(self.pool, own_layer, buffers);
    }

    /// Computes queries, keys and values. Returns the attention to run on them, and the layer's index in the
    /// share.
    pub(super) fn prepare_attention(
        &self,
        layer: usize,
        buffers: &mut Buffers<'_>,
    ) -> (Attention<'_>, usize) {
        let (header, spec) = (self.model.header(), self.spec(layer));
        let (m, dim, projector) = (self.m, header.dim, self.projector());
        let is_own = spec.kv_layer == layer;
        let [wq, wk, wv, _] = self.attention_kinds(layer);
        let kinds = [wq, wk, wv].into_iter().take(if is_own { 3 } else { 1 });
        let gate = header.has(TensorKind::OutputGate).then_some(TensorKind::OutputGate);
        let wqkv: heapless::Vec<Matrix<'_>, 4> =
            kinds.chain(gate).map(|kind| self.rows(kind, layer)).collect();
        let norm = self.norm((TensorKind::AttentionNorm, layer), spec.norm_eps);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let (inputs, dims) = (&mut buffers.inputs, MatrixDims { rows: m, k: dim });
        let id = (wq, 0);
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &wqkv[0], fill);
        projector.project(inputs, &wqkv, buffers.qkv);

        let (kernels, kv, interrupt) = (self.kernels, self.positions.kv, &self.interrupt);
        let (heads, spans, first) = (self.heads(layer, spec), self.spans, self.first);
        let is_causal = !header.is_bidirectional();
        let attention =
            Attention { kernels, kv, spec, heads, is_own, is_causal, interrupt, spans, first, m };
        // Places of keys and values are those of the layer that computes them.
        (attention, layer - self.model.share().layers.start)
    }

    /// Projections to queries, keys and values, and of attention's output.
    pub(super) fn attention_kinds(&self, layer: usize) -> [TensorKind; 4] {
        use TensorKind::{FullWk, FullWo, FullWq, FullWv, Wk, Wo, Wq, Wv};
        match self.spec(layer).has_full_heads {
            true => [FullWq, FullWk, FullWv, FullWo],
            false => [Wq, Wk, Wv, Wo],
        }
    }

    /// Width of all of the model's query heads in `layer`.
    pub(super) fn q_dim(&self, layer: usize) -> usize {
        self.model.header().n_heads * self.spec(layer).head_dim
    }

    /// Bias and post-norm of attention's output, if the model has them.
    fn attention_ends(&self, layer: usize) -> [Option<&[f32]>; 2] {
        [TensorKind::Bo, TensorKind::AttentionPostNorm].map(|kind| self.vector(kind, layer))
    }

    /// Adds attention's output, in `delta`, to `x`.
    pub(super) fn add_attention(&self, layer: usize, buffers: &mut Buffers<'_>) {
        self.add_delta(self.attention_ends(layer), self.spec(layer), buffers);
        let norm = [TensorKind::AttentionNorm, TensorKind::AttentionNormBias];
        self.normalise_encoded(norm, layer, buffers);
    }

    /// Biases, norms, rotation and numbers of this node's heads in `layer`.
    fn heads(&self, layer: usize, spec: LayerSpec) -> HeadSpec<'_> {
        let header = self.model.header();
        let Slice { heads, kv_heads, full_kv_heads, .. } = &self.slice;
        let vector = |kind| {
            let rows = self.slice.rows(kind, header).next()?;
            self.vector(kind, layer).map(|vector| &vector[rows])
        };
        let kv_heads = if spec.has_full_heads { full_kv_heads } else { kv_heads };
        let norms = match spec.has_full_heads {
            true => [TensorKind::FullQNorm, TensorKind::FullKNorm],
            false => [TensorKind::QNorm, TensorKind::KNorm],
        };
        HeadSpec {
            n_heads: heads.len(),
            n_kv_heads: kv_heads.len(),
            group: header.n_heads / spec.n_kv_heads,
            first: (heads.start, kv_heads.start),
            head_dim: spec.head_dim,
            is_gated: header.features.output_gate,
            angles: spec.rope.map_or_else(AnglePlace::default, |rope| self.angle_place(rope)),
            norm_eps: spec.norm_eps,
            biases: all([TensorKind::Bq, TensorKind::Bk, TensorKind::Bv].map(vector)),
            norms: norms.map(|kind| self.vector(kind, layer)),
            value_norm: header.features.more.value_norm,
            sinks: vector(TensorKind::Sinks),
        }
    }

    /// The vector of `kind` in `layer`, if the layer has it.
    pub(super) fn vector(&self, kind: TensorKind, layer: usize) -> Option<&[f32]> {
        let header = self.model.header();
        let is_there = header.has(kind) && header.has_in(kind, layer);
        is_there.then(|| self.model.vector(kind, layer))
    }

    /// The feed-forward layer of `layer`, which is no mixture of experts.
    pub(super) fn ffn(&self, layer: usize) -> Ffn {
        let (header, slice) = (self.model.header(), &self.slice);
        match header.is_dense(layer) || header.features.more.parallel_ffn.is_some() {
            true => Ffn {
                gate_up: [TensorKind::DenseW1, TensorKind::DenseW3],
                down: TensorKind::DenseW2,
                width: header.dense_ffn_dim(),
                own: slice.dense_ffn.clone(),
                columns: Columns::DenseFfn,
            },
            false => Ffn {
                gate_up: [TensorKind::W1, TensorKind::W3],
                down: TensorKind::W2,
                width: header.ffn_dim,
                own: slice.ffn.clone(),
                columns: Columns::Ffn,
            },
        }
    }

    fn feed_forward(&self, layer: usize, buffers: &mut Buffers<'_>) {
        match self.mixture(layer) {
            Some(mixture) => {
                self.compute_beside(layer, buffers);
                mixture.run(buffers);
                self.add_beside(layer, buffers);
            }
            None if self.adds_at_once(self.feed_forward_ends(layer), layer)
                && self.gated(layer, buffers) =>
            {
                return;
            }
            None => self.dense(layer, buffers),
        }
        self.add_feed_forward(layer, buffers);
    }

    /// Bias and post-norm of the feed-forward layer's output, if the model has them.
    fn feed_forward_ends(&self, layer: usize) -> [Option<&[f32]>; 2] {
        // Experts have biases of their own, which are scaled by the experts' weights.
        let has_bias = self.model.header().features.ffn_bias;
        let bias = has_bias.then(|| self.model.vector(TensorKind::B2, layer));
        [bias, self.vector(TensorKind::FfnPostNorm, layer)]
    }

    /// Adds the feed-forward layer's output, in `delta`, to `x`.
    pub(super) fn add_feed_forward(&self, layer: usize, buffers: &mut Buffers<'_>) {
        self.add_delta(self.feed_forward_ends(layer), self.spec(layer), buffers);
        let norm = [TensorKind::FfnNorm, TensorKind::FfnNormBias];
        self.normalise_encoded(norm, layer, buffers);
    }

    /// Whether the residual add can be fused into the projection: few rows, and no bias, post-norm or scale, nor a norm
    /// of the sum.
    fn adds_at_once(&self, ends: [Option<&[f32]>; 2], layer: usize) -> bool {
        let is_plain = ends.iter().all(Option::is_none)
            && self.spec(layer).residual_scale == 1.0
            && self.model.header().encoder().is_none();
        self.m <= FEW_ROWS && is_plain
    }

    /// The mixture of experts of `layer`, if it has one.
    pub(super) fn mixture(&self, layer: usize) -> Option<Mixture<'_>> {
        let (header, spec) = (self.model.header(), self.spec(layer));
        let experts = header.features.experts.filter(|_| !header.is_dense(layer))?;
        let matrix = |kind| self.matrix(kind, layer);
        let vector = |kind| self.vector(kind, layer);
        Some(Mixture {
            projector: self.projector(),
            watcher: self.watcher(layer),
            experts,
            rows: RowWork {
                kernels: self.kernels,
                spec,
                dim: header.dim,
                ffn_dim: header.ffn_dim,
                norm: vector(TensorKind::MixtureNorm)
                    .unwrap_or_else(|| self.model.vector(TensorKind::FfnNorm, layer)),
                router_norm: vector(TensorKind::RouterNorm),
                biases: all([TensorKind::B1, TensorKind::B3].map(vector)),
            },
            m: self.m,
            slice: &self.slice,
            is_cut: header.slice().is_some(),
            is_part: self.team.is_some(),
            tensors: ExpertTensors {
                router: self.model.vector(TensorKind::Router, layer),
                router_bias: vector(TensorKind::RouterBias),
                choice_bias: vector(TensorKind::ChoiceBias),
                gates: matrix(TensorKind::W1),
                ups: matrix(TensorKind::W3),
                downs: matrix(TensorKind::W2),
                down_bias: vector(TensorKind::B2),
                scales: vector(TensorKind::ExpertScale),
            },
        })
    }

    /// Computes the feed-forward layer of few rows with gate, up and down fused, and adds it to `x`. Returns
    /// false, with nothing computed, if the weights are not packed, the number of rows does not fit, or
    /// calibration watches the inputs.
    fn gated(&self, layer: usize, buffers: &mut Buffers<'_>) -> bool {
        let (header, spec) = (self.model.header(), self.spec(layer));
        let Ffn { gate_up: [gate, up], down, width, .. } = self.ffn(layer);
        let [w1, w3, w2] = [gate, up, down].map(|kind| self.matrix(kind, layer));
        let projector = self.projector();
        let gating = Gating::new(projector, (&w2, width), self.m);
        let has_room = 2 * self.m * header.dim <= buffers.x.len();
        let is_seen = self.watch.is_some();
        let Some(gating) = gating.filter(|_| has_room && !is_seen) else { return false };
        // The inputs of gate and up, and those of down, exist at the same time.
        let mut rooms = buffers.inputs.split(2);
        let (Some(room_down), Some(mut room)) = (rooms.pop(), rooms.pop()) else { return false };
        let norm = self.norm((TensorKind::FfnNorm, layer), spec.norm_eps);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let dims = MatrixDims { rows: self.m, k: header.dim };
        let inputs = projector.prepare(&mut room, dims, &w1, Some(&fill));
        let both = (inputs, [w1, w3]);
        let inputs = gating.run(projector, both, spec.activation, buffers.gate_up, room_down);
        projector.add_projected(inputs, &w2, buffers.x);
        true
    }

    /// Computes the feed-forward layer and writes its output to `delta`.
    pub(super) fn dense(&self, layer: usize, buffers: &mut Buffers<'_>) {
        self.project_gate_up(layer, buffers);
        let Ffn { down, width, .. } = self.ffn(layer);
        let dims = MatrixDims { rows: self.m, k: width };
        let (projector, w2) = (self.projector(), self.rows(down, layer));
        let fill = self.activation(layer, buffers.gate_up);
        let (inputs, id) = (&mut buffers.inputs, (down, 0));
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &w2, fill);
        projector.project(inputs, &[w2], buffers.delta);
    }

    /// Writes this node's inputs of the down projection to `part`.
    pub(super) fn gate(&self, layer: usize, buffers: &mut Buffers<'_>) {
        self.project_gate_up(layer, buffers);
        let own = self.ffn(layer).own.len();
        if own > 0 {
            let fill = self.activation(layer, buffers.gate_up);
            let rows = Chunks::new(&mut buffers.part[..self.m * own], own);
            self.pool.run_chunks(rows, &|row, out| fill(row, out));
        }
    }

    /// Number of parts of a row of `gate_up`: gate and up, or one without gates.
    fn n_gate_up(&self) -> usize {
        1 + usize::from(self.model.header().has_gates())
    }

    /// Writes this node's gate and up, with biases, to `gate_up`.
    fn project_gate_up(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let Ffn { gate_up: kinds, own, .. } = self.ffn(layer);
        let gate_up: heapless::Vec<Matrix<'_>, 2> =
            kinds.into_iter().take(self.n_gate_up()).map(|kind| self.rows(kind, layer)).collect();
        let norm = self.norm((TensorKind::FfnNorm, layer), self.spec(layer).norm_eps);
        let (projector, x) = (self.projector(), &*buffers.x);
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let dims = MatrixDims { rows: self.m, k: self.model.header().dim };
        let (inputs, id) = (&mut buffers.inputs, (kinds[0], 0));
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &gate_up[0], fill);
        projector.project(inputs, &gate_up, buffers.gate_up);
        if self.model.header().features.ffn_bias && !own.is_empty() {
            let biases = [TensorKind::B1, TensorKind::B3].map(|kind| self.vector(kind, layer));
            let width = self.n_gate_up() * own.len();
            let rows = Chunks::new(&mut buffers.gate_up[..self.m * width], width);
            self.pool.run_chunks(rows, &|_, row| {
                let parts = row.chunks_exact_mut(own.len()).zip(biases.into_iter().flatten());
                parts.for_each(|(part, bias)| self.kernels.add(part, &bias[own.clone()]));
            });
        }
    }

    /// A function that writes the activations of one row of this node's `gate_up`.
    fn activation<'g>(
        &self,
        layer: usize,
        gate_up: &'g [f32],
    ) -> impl Fn(usize, &mut [f32]) + Sync + use<'_, 'g> {
        let (kernels, own) = (self.kernels, self.ffn(layer).own.len());
        let (activation, width) = (self.spec(layer).activation, self.n_gate_up() * own);
        move |row, out| {
            let row = gate_up[row * width..][..width].split_at(own);
            activate(kernels, activation, row, out);
        }
    }

    /// Adds `delta` to `x`, after bias, post-norm and scale.
    pub(super) fn add_delta(
        &self,
        [bias, norm]: [Option<&[f32]>; 2],
        spec: LayerSpec,
        buffers: &mut Buffers<'_>,
    ) {
        let (dim, kernels) = (self.model.header().dim, self.kernels);
        if bias.is_some() || norm.is_some() || spec.residual_scale != 1.0 {
            let rows = (
                Chunks::new(&mut buffers.delta[..self.m * dim], dim),
                Chunks::new(&mut buffers.inputs.f32[..self.m * dim], dim),
            );
            self.pool.run_chunks(rows, &|_, (delta, normed)| {
                if let Some(bias) = bias {
                    kernels.add(delta, bias);
                }
                if let Some(weight) = norm {
                    kernels.rms_norm(delta, weight, spec.norm_eps, normed);
                    delta.copy_from_slice(normed);
                }
                scale(delta, spec.residual_scale);
            });
        }
        let (x, delta) = (&mut *buffers.x, &*buffers.delta);
        let rows = Chunks::new(&mut x[..self.m * dim], dim);
        self.pool.run_chunks(rows, &|row, x| {
            self.kernels.add(x, &delta[row * dim..][..dim]);
        });
    }

    /// A function that writes the RMSNorm of one row; in an encoder the row itself.
    pub(super) fn norm(
        &self,
        (kind, layer): (TensorKind, usize),
        eps: f32,
    ) -> impl Fn(&[f32], usize, &mut [f32]) + Sync + use<'_> {
        let (header, kernels) = (self.model.header(), self.kernels);
        let (dim, is_plain) = (header.dim, header.encoder().is_some());
        let weight = self.model.vector(kind, layer);
        move |x, row, out| match is_plain {
            true => out.copy_from_slice(&x[row * dim..][..dim]),
            false => kernels.rms_norm(&x[row * dim..][..dim], weight, eps, out),
        }
    }

    /// Writes the final norm of the rows of `x` that want logits to the classifier's inputs. Returns their
    /// number.
    pub(super) fn normalise_wanted(&self, buffers: &mut Buffers<'_>) -> usize {
        let dim = self.model.header().dim;
        let x = &*buffers.x;
        let wanted = batch::wanted_rows(self.spans).map(|row| &x[row * dim..][..dim]);
        self.normalise(wanted, buffers.inputs.f32)
    }

    /// Writes the final norm of the rows `x` to `out`. Returns their number.
    pub(super) fn normalise<'x>(
        &self,
        x: impl Iterator<Item = &'x [f32]>,
        out: &mut [f32],
    ) -> usize {
        let header = self.model.header();
        let weight = self.model.vector(TensorKind::FinalNorm, 0);
        let mut m = 0;
        for (x, out) in x.zip(out.chunks_exact_mut(header.dim)) {
            self.kernels.rms_norm(x, weight, header.norm_eps, out);
            m += 1;
        }
        m
    }

    /// Logits of the `m` rows that have been through the final norm, `[m, vocab_size]`. In a team only the
    /// lead gets them.
    pub(super) fn classify<'b>(
        &self,
        m: usize,
        buffers: Buffers<'b>,
        gather: Option<&mut dyn Gather>,
    ) -> Result<&'b mut [f32], ForwardError> {
        let header = self.model.header();
        let Buffers { mut inputs, logits, part, .. } = buffers;
        // Logits that were asked for are not interrupted.
        let interrupt = Interrupt::new(None);
        let projector = Projector { interrupt: &interrupt, ..self.projector() };
        let classifier = self.rows(self.model.header().classifier(), 0);
        let inputs = projector.prepare(
            &mut inputs,
            MatrixDims { rows: m, k: header.dim },
            &classifier,
            None,
        );
        let logits = &mut logits[..m * header.vocab_size];
        match self.team.zip(gather) {
            None => projector.project(inputs, &[classifier], logits),
            Some((team, gather)) => {
                projector.project(inputs, &[classifier], part);
                team.gather(Columns::Vocab, part, logits, To::Lead, gather)?;
            }
        }
        self.cap_logits(logits);
        Ok(logits)
    }
}

/// Multiplies each of `x` by `factor`. The result is rounded alike everywhere.
pub(super) fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// All vectors, or `None` if one is missing.
fn all<const N: usize>(vectors: [Option<&[f32]>; N]) -> Option<[&[f32]; N]> {
    vectors.iter().all(Option::is_some).then(|| vectors.map(Option::unwrap_or_default))
}
