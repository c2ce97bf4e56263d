//! The forward pass: a batch of tokens in, logits out.
//!
//! Each step reads one layer's weights once for all rows of the batch. A prompt's chunk, the
//! next token of one stream and those of several streams are the same call.

use super::activation::activate;
use super::attention::{Attention, HeadSpec};
use super::batch::{self, ForwardError, Span};
use super::buffers::Buffers;
use super::gated::Gating;
use super::gather::{Gather, To};
use super::interrupt::Interrupt;
use super::kv::KvShape;
use super::mixture::{Mixture, RowWork};
use super::packed::PackedWeights;
use super::project::{FEW_ROWS, Projector, Source};
use super::rope::{self, Frequencies};
use super::team::{Columns, Team};
use super::watch::{Watch, Watcher};
use super::{Matrix, Model};
use crate::format::model::{Experts, LayerSpec, Rope, Slice, TensorId, TensorKind};
use crate::kernels::{Kernels, MatrixDims};
use crate::pool::{Chunks, Pool};

/// One forward pass over the rows of `spans`.
pub(super) struct Pass<'a> {
    pub(super) model: &'a Model,
    pub(super) packed: Option<&'a PackedWeights>,
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) kv: &'a KvShape,
    pub(super) frequencies: &'a Frequencies,
    pub(super) interrupt: Interrupt,
    /// Who looks at the inputs of matrices.
    pub(super) watch: Option<&'a Watch>,
    pub(super) spans: &'a [Span],
    /// How many rows they are.
    pub(super) m: usize,
    /// Which rows of matrices this node computes.
    pub(super) slice: Slice,
    /// The team that it does so in.
    pub(super) team: Option<&'a Team>,
}

impl Pass<'_> {
    fn projector(&self) -> Projector<'_> {
        let (kernels, pool, interrupt) = (self.kernels, self.pool, &self.interrupt);
        Projector { kernels, pool, group: self.model.header().weights.group(), interrupt }
    }

    fn watcher(&self, layer: usize) -> Watcher<'_> {
        Watcher { watch: self.watch, layer }
    }

    /// The matrix of `kind` in `layer`, packed if it is.
    fn matrix(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let header = self.model.header();
        let packed = self.packed.and_then(|packed| packed.matrix(TensorId { kind, layer }, header));
        packed.unwrap_or_else(|| self.model.matrix(kind, layer))
    }

    /// This node's rows of the matrix of `kind` in `layer`.
    fn rows(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let matrix = self.matrix(kind, layer);
        let header = self.model.header();
        match self.team {
            Some(_) if header.slice().is_none() => {
                matrix.slice_rows(self.slice.rows(kind, header.head_dim))
            }
            // A file may have no others.
            Some(_) | None => matrix,
        }
    }

    /// Fills `x` with the embeddings of `tokens`.
    pub(super) fn embed(&self, tokens: &[u32], buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let embedding = self.model.matrix(TensorKind::Embedding, 0);
        for (id, x) in tokens.iter().zip(buffers.x.chunks_exact_mut(header.dim)) {
            embedding.read_row(*id as usize, self.kernels, x);
            scale(x, header.features.embedding_scale);
        }
    }

    /// Takes `x` through the share's layers. Nobody is asked to `gather` where there is no team.
    pub(super) fn layers(
        &self,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let mut rope = None;
        for layer in self.model.share().layers.clone() {
            let spec = self.model.header().layer(layer);
            if let Some(next) = spec.rope.filter(|next| rope != Some(*next)) {
                self.fill_angles(next, buffers);
                rope = Some(next);
            }
            self.attention(layer, spec, buffers, gather)?;
            self.feed_forward(layer, spec, buffers, gather)?;
            if self.interrupt.ask() {
                return Err(ForwardError::Interrupted);
            }
        }
        Ok(())
    }

    /// Fills the tables of cosines and sines for the rows' positions.
    fn fill_angles(&self, rope: Rope, buffers: &mut Buffers<'_>) {
        let half = self.model.header().rotary_dim() / 2;
        let tables = buffers.cos.chunks_exact_mut(half).zip(buffers.sin.chunks_exact_mut(half));
        let rows = self.spans.iter().flat_map(|span| {
            let frequencies = self.frequencies.of(rope, span.is_long);
            span.positions().map(move |pos| (frequencies, pos))
        });
        for ((frequencies, pos), (cos, sin)) in rows.zip(tables) {
            rope::angles((frequencies, rope.magnitude), pos, cos, sin);
        }
    }

    fn attention(
        &self,
        layer: usize,
        spec: LayerSpec,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let header = self.model.header();
        let (m, dim, q_dim) = (self.m, header.dim, header.q_dim());
        let rows = |kind| self.rows(kind, layer);
        let projector = self.projector();

        let wqkv = [rows(TensorKind::Wq), rows(TensorKind::Wk), rows(TensorKind::Wv)];
        let norm = self.norm((TensorKind::AttentionNorm, layer), spec.norm_eps);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let (inputs, dims) = (&mut buffers.inputs, MatrixDims { rows: m, k: dim });
        let id = (TensorKind::Wq, 0);
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &wqkv[0], fill);
        projector.project(inputs, &wqkv, buffers.qkv);

        let (kernels, pool, kv) = (self.kernels, self.pool, self.kv);
        let own_layer = layer - self.model.share().layers.start;
        let (interrupt, spans) = (&self.interrupt, self.spans);
        let heads = self.heads(layer, spec);
        let attention = Attention { kernels, kv, spec, heads, interrupt, spans, m };
        let (wo, dims) = (rows(TensorKind::Wo), MatrixDims { rows: m, k: q_dim });
        let ends = [TensorKind::Bo, TensorKind::AttentionPostNorm];
        let ends = ends.map(|kind| self.vector(kind, layer));
        let at_once = self.adds_at_once(ends, spec);
        if at_once && self.watch.is_none() {
            let Buffers { qkv, cos, sin, kv, inputs, .. } = buffers;
            let of = (&mut **qkv, (&**cos, &**sin));
            if let Some(inputs) = attention.run_few(own_layer, (projector, &wo), of, kv, inputs) {
                projector.add_projected(inputs, &wo, buffers.x);
                return Ok(());
            }
        }
        attention.run(pool, own_layer, buffers);
        match self.team {
            None => {
                let inputs = &mut buffers.inputs;
                self.watcher(layer).tell((TensorKind::Wo, 0), (inputs.f32, dims), pool, None);
                let inputs = projector.prepare(inputs, dims, &wo, None);
                if at_once {
                    projector.add_projected(inputs, &wo, buffers.x);
                    return Ok(());
                }
                projector.project(inputs, &[wo], buffers.delta);
            }
            Some(team) => {
                self.project_gathered((team, Columns::Heads), &wo, dims, buffers, gather)?
            }
        }
        self.gather_delta(buffers, gather)?;
        self.add_delta(ends, spec, buffers);
        Ok(())
    }

    /// Brings the inputs of `matrix` together, of which this node has its columns in `part`, and writes there what it
    /// gives.
    fn project_gathered(
        &self,
        (team, columns): (&Team, Columns),
        matrix: &Matrix<'_>,
        dims: MatrixDims,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let Buffers { part, acts, inputs, .. } = buffers;
        let with = (self.kernels, self.pool);
        let given = team.gather_inputs(columns, dims.rows, with, part, acts, gather)?;
        let projector = self.projector();
        let inputs = projector.prepare_from(Source::Given(given), inputs, dims, matrix);
        projector.project(inputs, &[*matrix], part);
        Ok(())
    }

    /// In a team, brings the parts of `delta` together.
    fn gather_delta(
        &self,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let Some(team) = self.team else { return Ok(()) };
        let all = &mut buffers.delta[..self.m * self.model.header().dim];
        team.gather_added(buffers.part, buffers.acts, all, gather)
    }

    /// What layer `layer` does with its heads.
    fn heads(&self, layer: usize, spec: LayerSpec) -> HeadSpec<'_> {
        let header = self.model.header();
        let Slice { heads, kv_heads, .. } = &self.slice;
        let vector = |kind| {
            let rows = self.slice.rows(kind, header.head_dim);
            self.vector(kind, layer).map(|vector| &vector[rows])
        };
        HeadSpec {
            n_heads: heads.len(),
            n_kv_heads: kv_heads.len(),
            group: header.n_heads / header.n_kv_heads,
            first: (heads.start, kv_heads.start),
            head_dim: header.head_dim,
            is_rotated: spec.rope.is_some(),
            rotary_dim: header.rotary_dim(),
            norm_eps: spec.norm_eps,
            biases: all([TensorKind::Bq, TensorKind::Bk, TensorKind::Bv].map(vector)),
            norms: all([TensorKind::QNorm, TensorKind::KNorm].map(|kind| self.vector(kind, layer))),
            sinks: vector(TensorKind::Sinks),
        }
    }

    /// The vector of `kind` in `layer` if the model has it.
    fn vector(&self, kind: TensorKind, layer: usize) -> Option<&[f32]> {
        self.model.header().has(kind).then(|| self.model.vector(kind, layer))
    }

    fn feed_forward(
        &self,
        layer: usize,
        spec: LayerSpec,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let ends = [None, self.vector(TensorKind::FfnPostNorm, layer)];
        match self.model.header().features.experts {
            Some(experts) => self.mixture(layer, spec, experts).run(buffers, gather)?,
            None if self.adds_at_once(ends, spec) && self.gated(layer, spec, buffers) => {
                return Ok(());
            }
            None => self.dense(layer, spec, buffers, gather)?,
        }
        self.gather_delta(buffers, gather)?;
        self.add_delta(ends, spec, buffers);
        Ok(())
    }

    /// Whether what a layer's half gives is added to `x` as it is, where it is computed: few rows, nothing that a
    /// family does to it, and nobody else who has a part of it.
    fn adds_at_once(&self, ends: [Option<&[f32]>; 2], spec: LayerSpec) -> bool {
        let is_plain = ends.iter().all(Option::is_none) && spec.residual_scale == 1.0;
        self.m <= FEW_ROWS && self.team.is_none() && is_plain
    }

    /// The mixture that layer `layer` is.
    fn mixture(&self, layer: usize, spec: LayerSpec, experts: Experts) -> Mixture<'_> {
        let header = self.model.header();
        let matrix = |kind| self.matrix(kind, layer);
        let vector = |kind| self.vector(kind, layer);
        Mixture {
            projector: self.projector(),
            watcher: self.watcher(layer),
            experts,
            rows: RowWork {
                kernels: self.kernels,
                spec,
                dim: header.dim,
                ffn_dim: header.ffn_dim,
                norm: self.model.vector(TensorKind::FfnNorm, layer),
                biases: all([TensorKind::B1, TensorKind::B3].map(vector)),
            },
            m: self.m,
            slice: &self.slice,
            is_cut: header.slice().is_some(),
            team: self.team,
            router: self.model.vector(TensorKind::Router, layer),
            router_bias: vector(TensorKind::RouterBias),
            gates: matrix(TensorKind::W1),
            ups: matrix(TensorKind::W3),
            downs: matrix(TensorKind::W2),
            down_bias: vector(TensorKind::B2),
        }
    }

    /// Adds to `x` what the feed-forward layer gives for few rows whose down projection has packed weights, if nobody looks
    /// at its inputs. Whether that was so.
    fn gated(&self, layer: usize, spec: LayerSpec, buffers: &mut Buffers<'_>) -> bool {
        let header = self.model.header();
        let matrix = |kind| self.matrix(kind, layer);
        let [w1, w3, w2] = [TensorKind::W1, TensorKind::W3, TensorKind::W2].map(matrix);
        let projector = self.projector();
        let gating = Gating::new(projector, (&w2, header.ffn_dim), self.m);
        let has_room = 2 * self.m * header.dim <= buffers.x.len();
        let is_seen = self.watch.is_some();
        let Some(gating) = gating.filter(|_| has_room && !is_seen) else { return false };
        // What gate and up are multiplied by and what down is are there at the same time.
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

    /// The feed-forward layer up to `delta`, or this node's part of it.
    fn dense(
        &self,
        layer: usize,
        spec: LayerSpec,
        buffers: &mut Buffers<'_>,
        gather: &mut dyn Gather,
    ) -> Result<(), ForwardError> {
        let header = self.model.header();
        let (m, dim, ffn_dim) = (self.m, header.dim, header.ffn_dim);
        let rows = |kind| self.rows(kind, layer);
        let projector = self.projector();

        let gate_up = [rows(TensorKind::W1), rows(TensorKind::W3)];
        let norm = self.norm((TensorKind::FfnNorm, layer), spec.norm_eps);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let (inputs, dims) = (&mut buffers.inputs, MatrixDims { rows: m, k: dim });
        let id = (TensorKind::W1, 0);
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &gate_up[0], fill);
        projector.project(inputs, &gate_up, buffers.gate_up);

        let (w2, dims) = (rows(TensorKind::W2), MatrixDims { rows: m, k: ffn_dim });
        let (kernels, gate_up, own) = (self.kernels, &*buffers.gate_up, self.slice.ffn.len());
        let fill = |row: usize, out: &mut [f32]| {
            let row = gate_up[row * 2 * own..][..2 * own].split_at(own);
            activate(kernels, spec.activation, row, out);
        };
        if let Some(team) = self.team {
            if own > 0 {
                let rows = Chunks::new(&mut buffers.part[..m * own], own);
                self.pool.run_chunks(rows, &|row, out| fill(row, out));
            }
            return self.project_gathered((team, Columns::Ffn), &w2, dims, buffers, gather);
        }
        let inputs = &mut buffers.inputs;
        let id = (TensorKind::W2, 0);
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &w2, fill);
        projector.project(inputs, &[w2], buffers.delta);
        Ok(())
    }

    /// Adds `delta` to `x`, once what a family does to it is done.
    fn add_delta(
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

    /// What writes the RMSNorm of a row of some activations.
    fn norm(
        &self,
        (kind, layer): (TensorKind, usize),
        eps: f32,
    ) -> impl Fn(&[f32], usize, &mut [f32]) + Sync + use<'_> {
        let (dim, kernels) = (self.model.header().dim, self.kernels);
        let weight = self.model.vector(kind, layer);
        move |x, row, out| kernels.rms_norm(&x[row * dim..][..dim], weight, eps, out)
    }

    /// Final norm of the rows of `x` that want logits into the classifier's inputs; returns
    /// how many those are.
    pub(super) fn normalise_wanted(&self, buffers: &mut Buffers<'_>) -> usize {
        let dim = self.model.header().dim;
        let x = &*buffers.x;
        let wanted = batch::wanted_rows(self.spans).map(|row| &x[row * dim..][..dim]);
        self.normalise(wanted, buffers.inputs.f32)
    }

    /// Final norm of the rows `x` to `out`; returns how many those are.
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

    /// Logits of the `m` rows that have been through the final norm, `[m, vocab_size]`; of a team on the lead
    /// alone.
    pub(super) fn classify<'b>(
        &self,
        m: usize,
        buffers: Buffers<'b>,
        gather: &mut dyn Gather,
    ) -> Result<&'b mut [f32], ForwardError> {
        let header = self.model.header();
        let Buffers { mut inputs, logits, part, .. } = buffers;
        // Whoever asked for logits gets them.
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
        match self.team {
            None => projector.project(inputs, &[classifier], logits),
            Some(team) => {
                projector.project(inputs, &[classifier], part);
                team.gather(Columns::Vocab, part, logits, To::Lead, gather)?;
            }
        }
        Ok(logits)
    }
}

/// Multiplies each of `x` by `factor`, rounded alike everywhere.
fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// All of them, if there are all.
fn all<const N: usize>(vectors: [Option<&[f32]>; N]) -> Option<[&[f32]; N]> {
    vectors.iter().all(Option::is_some).then(|| vectors.map(Option::unwrap_or_default))
}
