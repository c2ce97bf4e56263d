//! The forward pass: a batch of tokens in, logits out.
//!
//! Each step reads one layer's weights once for all rows of the batch. A prompt's chunk, the
//! next token of one stream and those of several streams are the same call.

use super::attention::Attention;
use super::batch::{self, ForwardError, Span};
use super::buffers::Buffers;
use super::interrupt::Interrupt;
use super::kv::KvShape;
use super::packed::PackedWeights;
use super::project::Projector;
use super::rope::{self, Frequencies};
use super::{Matrix, Model};
use crate::format::model::{Activation, LayerSpec, Rope, TensorId, TensorKind};
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
    pub(super) spans: &'a [Span],
    /// How many rows they are.
    pub(super) m: usize,
}

impl Pass<'_> {
    fn projector(&self) -> Projector<'_> {
        let (kernels, pool, interrupt) = (self.kernels, self.pool, &self.interrupt);
        Projector { kernels, pool, group: self.model.header().weights.group(), interrupt }
    }

    /// The matrix of `kind` in `layer`, packed if it is.
    fn matrix(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let header = self.model.header();
        let packed = self.packed.and_then(|packed| packed.matrix(TensorId { kind, layer }, header));
        packed.unwrap_or_else(|| self.model.matrix(kind, layer))
    }

    /// Fills `x` with the embeddings of `tokens`.
    pub(super) fn embed(&self, tokens: &[u32], buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let embedding = self.model.matrix(TensorKind::Embedding, 0);
        for (id, x) in tokens.iter().zip(buffers.x.chunks_exact_mut(header.dim)) {
            embedding.read_row(*id as usize, self.kernels, x);
        }
    }

    /// Takes `x` through the share's layers.
    pub(super) fn layers(&self, buffers: &mut Buffers<'_>) -> Result<(), ForwardError> {
        let mut rope = None;
        for layer in self.model.share().layers.clone() {
            let spec = self.model.header().layer(layer);
            if let Some(next) = spec.rope.filter(|next| rope != Some(*next)) {
                self.fill_angles(next, buffers);
                rope = Some(next);
            }
            self.attention(layer, spec, buffers);
            self.feed_forward(layer, spec, buffers);
            if self.interrupt.ask() {
                return Err(ForwardError::Interrupted);
            }
        }
        Ok(())
    }

    /// Fills the tables of cosines and sines for the rows' positions.
    fn fill_angles(&self, rope: Rope, buffers: &mut Buffers<'_>) {
        let frequencies = self.frequencies.of(rope);
        let half = self.model.header().head_dim / 2;
        let tables = buffers.cos.chunks_exact_mut(half).zip(buffers.sin.chunks_exact_mut(half));
        for (pos, (cos, sin)) in self.spans.iter().flat_map(Span::positions).zip(tables) {
            rope::angles(frequencies, pos, cos, sin);
        }
    }

    fn attention(&self, layer: usize, spec: LayerSpec, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let (m, dim, q_dim) = (self.m, header.dim, header.q_dim());
        let matrix = |kind| self.matrix(kind, layer);
        let projector = self.projector();

        let wqkv = [matrix(TensorKind::Wq), matrix(TensorKind::Wk), matrix(TensorKind::Wv)];
        let norm = self.norm((TensorKind::AttentionNorm, layer), spec.norm_eps);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let inputs = projector.prepare(
            &mut buffers.inputs,
            MatrixDims { rows: m, k: dim },
            &wqkv[0],
            Some(&fill),
        );
        projector.project(inputs, &wqkv, buffers.qkv);

        let (kernels, pool, kv) = (self.kernels, self.pool, self.kv);
        let own_layer = layer - self.model.share().layers.start;
        let (n_heads, interrupt, spans) = (header.n_heads, &self.interrupt, self.spans);
        let attention = Attention { kernels, pool, kv, n_heads, spec, interrupt, spans, m };
        attention.run(own_layer, buffers);

        let wo = matrix(TensorKind::Wo);
        let inputs =
            projector.prepare(&mut buffers.inputs, MatrixDims { rows: m, k: q_dim }, &wo, None);
        projector.project(inputs, &[wo], buffers.delta);
        self.add_delta(buffers);
    }

    fn feed_forward(&self, layer: usize, spec: LayerSpec, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let (m, dim, ffn_dim) = (self.m, header.dim, header.ffn_dim);
        let matrix = |kind| self.matrix(kind, layer);
        let projector = self.projector();

        let gate_up = [matrix(TensorKind::W1), matrix(TensorKind::W3)];
        let norm = self.norm((TensorKind::FfnNorm, layer), spec.norm_eps);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let inputs = projector.prepare(
            &mut buffers.inputs,
            MatrixDims { rows: m, k: dim },
            &gate_up[0],
            Some(&fill),
        );
        projector.project(inputs, &gate_up, buffers.gate_up);

        let w2 = matrix(TensorKind::W2);
        let (kernels, gate_up) = (self.kernels, &*buffers.gate_up);
        let fill = |row: usize, out: &mut [f32]| {
            let (gate, up) = gate_up[row * 2 * ffn_dim..][..2 * ffn_dim].split_at(ffn_dim);
            match spec.activation {
                Activation::Silu => kernels.swiglu(gate, up, out),
            }
        };
        let inputs = projector.prepare(
            &mut buffers.inputs,
            MatrixDims { rows: m, k: ffn_dim },
            &w2,
            Some(&fill),
        );
        projector.project(inputs, &[w2], buffers.delta);
        self.add_delta(buffers);
    }

    /// Adds `delta` to `x`.
    fn add_delta(&self, buffers: &mut Buffers<'_>) {
        let dim = self.model.header().dim;
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
        let weight = self.model.norm(kind, layer);
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
        let weight = self.model.norm(TensorKind::FinalNorm, 0);
        let mut m = 0;
        for (x, out) in x.zip(out.chunks_exact_mut(header.dim)) {
            self.kernels.rms_norm(x, weight, header.norm_eps, out);
            m += 1;
        }
        m
    }

    /// Logits of the `m` rows that have been through the final norm, `[m, vocab_size]`.
    pub(super) fn classify<'b>(&self, m: usize, buffers: Buffers<'b>) -> &'b mut [f32] {
        let header = self.model.header();
        let Buffers { mut inputs, logits, .. } = buffers;
        // Whoever asked for logits gets them.
        let interrupt = Interrupt::new(None);
        let projector = Projector { interrupt: &interrupt, ..self.projector() };
        let classifier = self.matrix(self.model.header().classifier(), 0);
        let inputs = projector.prepare(
            &mut inputs,
            MatrixDims { rows: m, k: header.dim },
            &classifier,
            None,
        );
        projector.project(inputs, &[classifier], logits);
        &mut logits[..m * header.vocab_size]
    }
}
