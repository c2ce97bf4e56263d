//! Parts of layers that few families have: an input of each layer for each token, a feed-forward layer beside the mixture
//! or a shared expert, and a factor of the layer's output. And the cap of logits.

use std::f32::consts::FRAC_1_SQRT_2;

use super::activation::activate;
use super::buffers::Buffers;
use super::interrupt::Interrupt;
use super::pass::{Pass, scale};
use super::project::Projector;
use crate::format::model::{Activation, TensorKind};
use crate::kernels::{MatrixDims, sigmoids};
use crate::numerics::tanh;
use crate::pool::Chunks;

/// Values of logits that a thread caps at a time.
const CAP_PIECE: usize = 1024;

impl Pass<'_> {
    /// Fills all layers' inputs of the rows of `tokens`, whose embeddings are in `x`:
    /// `(norm(projection · x / sqrt(dim)) + table[token] · sqrt(layer_input_dim)) / sqrt(2)`, the norm for each layer.
    pub(super) fn fill_layer_inputs(&self, tokens: &[u32], buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let (dim, all) = (header.features.more.layer_input_dim, header.layer_inputs());
        if all == 0 {
            return;
        }
        // An embedding is not interrupted.
        let interrupt = Interrupt::new(None);
        let projector = Projector { interrupt: &interrupt, ..self.projector() };
        let m = tokens.len();
        let matrix = self.matrix(TensorKind::InputProjection, 0);
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| {
            out.copy_from_slice(&x[row * header.dim..][..header.dim]);
        };
        let dims = MatrixDims { rows: m, k: header.dim };
        let inputs = projector.prepare(&mut buffers.inputs, dims, &matrix, Some(&fill));
        let (rows, room) =
            buffers.tables.layer_inputs.split_at_mut(buffers.tables.layer_inputs.len() - all);
        projector.project(inputs, &[matrix], rows);
        let table = self.model.matrix(TensorKind::InputTable, 0);
        let weight = self.model.vector(TensorKind::InputNorm, 0);
        let [of_projection, of_table] = [1.0 / (header.dim as f32).sqrt(), (dim as f32).sqrt()];
        for (id, row) in tokens.iter().zip(rows.chunks_exact_mut(all)) {
            scale(row, of_projection);
            table.read_row(*id as usize, self.kernels, room);
            scale(room, of_table);
            for (part, own) in row.chunks_exact_mut(dim).zip(room.chunks_exact(dim)) {
                let normed = &mut buffers.gate_up[..dim];
                self.kernels.rms_norm(part, weight, header.norm_eps, normed);
                self.kernels.add(normed, own);
                scale(normed, FRAC_1_SQRT_2);
                part.copy_from_slice(normed);
            }
        }
    }

    /// Adds a layer's input to `x`: `norm(out · (gelu(gate · x) ⊙ input))`.
    pub(super) fn add_layer_input(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let (dim, all) = (header.features.more.layer_input_dim, header.layer_inputs());
        if all == 0 {
            return;
        }
        let (projector, kernels, m) = (self.projector(), self.kernels, self.m);
        let [gate, out] =
            [TensorKind::InputGate, TensorKind::InputOut].map(|kind| self.matrix(kind, layer));
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| {
            out.copy_from_slice(&x[row * header.dim..][..header.dim]);
        };
        let dims = MatrixDims { rows: m, k: header.dim };
        let inputs = projector.prepare(&mut buffers.inputs, dims, &gate, Some(&fill));
        projector.project(inputs, &[gate], buffers.gate_up);
        let (gates, own) = (&*buffers.gate_up, &*buffers.tables.layer_inputs);
        let fill = |row: usize, out: &mut [f32]| {
            let halves = (&gates[row * dim..][..dim], &own[row * all + layer * dim..][..dim]);
            activate(kernels, Activation::GeluTanh, halves, out);
        };
        let dims = MatrixDims { rows: m, k: dim };
        let inputs = projector.prepare(&mut buffers.inputs, dims, &out, Some(&fill));
        projector.project(inputs, &[out], buffers.delta);
        let norm = self.vector(TensorKind::InputPostNorm, layer);
        self.add_delta([None, norm], self.spec(layer), buffers);
    }

    /// Multiplies `x` by the layer's factor, if it has one.
    pub(super) fn scale_layer(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let Some(&[factor]) = self.vector(TensorKind::LayerScale, layer) else { return };
        scale(&mut buffers.x[..self.m * self.model.header().dim], factor);
    }

    /// Computes the feed-forward layer beside the mixture of `layer`, if there is one.
    pub(super) fn compute_beside(&self, layer: usize, buffers: &mut Buffers<'_>) {
        if self.model.header().features.more.parallel_ffn.is_none() {
            return;
        }
        self.dense(layer, buffers);
        match self.has_norm_beside(layer) {
            true => self.normalise_beside(layer, buffers),
            false => self.gate_shared(layer, buffers),
        }
    }

    /// Whether the layer beside the mixture of `layer` has norms of its own.
    pub(super) fn has_norm_beside(&self, layer: usize) -> bool {
        self.vector(TensorKind::DensePostNorm, layer).is_some()
    }

    /// Normalises the output of the layer beside a mixture, which is in `delta`, and keeps it.
    pub(super) fn normalise_beside(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let norm = self.model.vector(TensorKind::DensePostNorm, layer);
        let dim = self.model.header().dim;
        let (eps, delta) = (self.spec(layer).norm_eps, &*buffers.delta);
        let rows = Chunks::new(&mut buffers.routes.beside[..self.m * dim], dim);
        self.pool.run_chunks(rows, &|row, out| {
            self.kernels.rms_norm(&delta[row * dim..][..dim], norm, eps, out);
        });
    }

    /// Copies a shared expert's output from `delta`, times the sigmoid of its gate if it has one; in a team, this node's
    /// columns from `part`.
    pub(super) fn gate_shared(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let (dim, width) = (self.model.header().dim, self.slice.dim.len());
        let Buffers { x, delta, part, routes, inputs, .. } = buffers;
        if width == 0 {
            return;
        }
        let (x, output) = (&**x, if self.team.is_some() { &**part } else { &**delta });
        let gate = self.vector(TensorKind::SharedGate, layer);
        let norm = self.norm((TensorKind::FfnNorm, layer), self.spec(layer).norm_eps);
        let rows = (
            Chunks::new(&mut routes.beside[..self.m * width], width),
            Chunks::new(&mut inputs.f32[..self.m * dim], dim),
        );
        self.pool.run_chunks(rows, &|row, (out, normed)| {
            out.copy_from_slice(&output[row * width..][..width]);
            if let Some(gate) = gate {
                norm(x, row, normed);
                let mut factor = [0.0];
                self.kernels.matmul_f32(gate, dim, normed, &mut [&mut factor]);
                sigmoids(&mut factor);
                scale(out, factor[0]);
            }
        });
    }

    /// Adds a shared expert's output to the mixture's, in `delta`; in a team, this node's columns in `part`.
    pub(super) fn add_shared(&self, buffers: &mut Buffers<'_>) {
        let width = self.slice.dim.len();
        let Buffers { delta, part, routes, .. } = buffers;
        let beside = &*routes.beside;
        if beside.is_empty() || width == 0 {
            return;
        }
        let output = if self.team.is_some() { part } else { delta };
        let rows = Chunks::new(&mut output[..self.m * width], width);
        self.pool.run_chunks(rows, &|row, output| {
            self.kernels.add(output, &beside[row * width..][..width]);
        });
    }

    /// Adds the output of the layer beside a mixture to the mixture's, in `delta`.
    pub(super) fn add_beside(&self, layer: usize, buffers: &mut Buffers<'_>) {
        let dim = self.model.header().dim;
        let Some(norm) = self.vector(TensorKind::MixturePostNorm, layer) else {
            return self.add_shared(buffers);
        };
        let (eps, beside) = (self.spec(layer).norm_eps, &*buffers.routes.beside);
        let rows = (
            Chunks::new(&mut buffers.delta[..self.m * dim], dim),
            Chunks::new(&mut buffers.inputs.f32[..self.m * dim], dim),
        );
        self.pool.run_chunks(rows, &|row, (delta, normed)| {
            self.kernels.rms_norm(delta, norm, eps, normed);
            self.kernels.add(normed, &beside[row * dim..][..dim]);
            delta.copy_from_slice(normed);
        });
    }

    /// Caps logits as the model says.
    pub(super) fn cap_logits(&self, logits: &mut [f32]) {
        let Some(cap) = self.model.header().features.more.logit_cap else { return };
        let pieces = Chunks::new(logits, CAP_PIECE);
        self.pool.run_chunks(pieces, &|_, piece| {
            let cap = f64::from(cap);
            for logit in piece {
                *logit = (cap * tanh(f64::from(*logit) / cap)) as f32;
            }
        });
    }
}
