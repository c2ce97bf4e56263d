//! Feed-forward layers that are mixtures: a router gives each row some of the experts.
//!
//! Rows are grouped by expert, so that the weights of each are read once for a batch, and those of
//! experts that no row has are not touched. What the experts of a row give is added up in the order
//! of the experts' numbers, whatever the batch.

use super::activation::activate;
use super::buffers::Buffers;
use super::inputs::Prepared;
use super::matrix::Matrix;
use super::project::Projector;
use super::routes::Routes;
use super::watch::Watcher;
use crate::format::model::{EXPERTS_ACTIVE_MAX, Experts, LayerSpec, TensorKind};
use crate::kernels::{Kernels, MatrixDims};
use crate::pool::Chunks;

/// The mixture of one layer for one batch.
pub(super) struct Mixture<'a> {
    pub(super) projector: Projector<'a>,
    /// Who looks at the inputs of experts; not where the batch is one row.
    pub(super) watcher: Watcher<'a>,
    pub(super) experts: Experts,
    pub(super) rows: RowWork<'a>,
    /// Rows of the batch.
    pub(super) m: usize,
    /// `[experts, dim]`.
    pub(super) router: &'a [f32],
    /// `[experts]`.
    pub(super) router_bias: Option<&'a [f32]>,
    /// `[experts * ffn_dim, dim]`.
    pub(super) gates: Matrix<'a>,
    /// The same.
    pub(super) ups: Matrix<'a>,
    /// `[experts * dim, ffn_dim]`.
    pub(super) downs: Matrix<'a>,
    /// `[experts, dim]`.
    pub(super) down_bias: Option<&'a [f32]>,
}

/// What is done to a row between the products.
#[derive(Clone, Copy)]
pub(super) struct RowWork<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) spec: LayerSpec,
    pub(super) dim: usize,
    /// Width of an expert.
    pub(super) ffn_dim: usize,
    /// Weights of the norm before the layer, `[dim]`.
    pub(super) norm: &'a [f32],
    /// Biases of gates and ups, `[experts, ffn_dim]` each.
    pub(super) biases: Option<[&'a [f32]; 2]>,
}

impl Mixture<'_> {
    /// Writes what the layer gives for `x` to `delta`.
    pub(super) fn run(&self, buffers: &mut Buffers<'_>) {
        self.route(buffers);
        match self.m {
            1 => self.all_of_one_row(buffers),
            _ => (0..self.experts.n).for_each(|expert| self.expert(expert, buffers)),
        }
        self.add_up(buffers);
    }

    /// Chooses each row's experts.
    fn route(&self, buffers: &mut Buffers<'_>) {
        let router = Matrix::F32 { w: self.router, k: self.rows.dim };
        let projector = Projector { group: None, ..self.projector };
        let (x, work) = (&*buffers.x, self.rows);
        let fill = |row: usize, out: &mut [f32]| work.normalise(x, row, out);
        let shape = MatrixDims { rows: self.m, k: work.dim };
        let inputs = projector.prepare(&mut buffers.inputs, shape, &router, Some(&fill));
        projector.project(inputs, &[router], buffers.routes.scores);
        if let Some(bias) = self.router_bias {
            for scores in buffers.routes.scores.chunks_exact_mut(self.experts.n).take(self.m) {
                self.rows.kernels.add(scores, bias);
            }
        }
        buffers.routes.choose(self.experts, self.m);
    }

    /// The outputs of one expert for all rows that have it.
    fn expert(&self, expert: usize, buffers: &mut Buffers<'_>) {
        let uses = buffers.routes.uses(expert);
        if uses.is_empty() {
            return;
        }
        let (projector, work, m) = (self.projector, self.rows, uses.len());
        let RowWork { dim, ffn_dim, .. } = work;
        let gate_up = self.gate_up(expert);
        let (x, rows) = (&*buffers.x, &buffers.routes.rows[uses.clone()]);
        let fill = |index: usize, out: &mut [f32]| work.normalise(x, rows[index] as usize, out);
        let (inputs, dims) = (&mut buffers.inputs, MatrixDims { rows: m, k: dim });
        let id = (TensorKind::W1, expert);
        let fill = self.watcher.tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &gate_up[0], fill);
        projector.project(inputs, &gate_up, buffers.gate_up);
        let width = 2 * ffn_dim;
        if work.biases.is_some() {
            let rows = Chunks::new(&mut buffers.gate_up[..m * width], width);
            projector.pool.run_chunks(rows, &|_, row| work.add_biases(expert, row));
        }
        let down = self.down(expert);
        let gate_up = &*buffers.gate_up;
        let fill = |row: usize, out: &mut [f32]| {
            let halves = gate_up[row * width..][..width].split_at(ffn_dim);
            work.activate(halves, out);
        };
        let (inputs, dims) = (&mut buffers.inputs, MatrixDims { rows: m, k: ffn_dim });
        let id = (TensorKind::W2, expert);
        let fill = self.watcher.tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &down, fill);
        let out = &mut buffers.routes.outputs[uses.start * dim..uses.end * dim];
        projector.project(inputs, &[down], out);
    }

    /// The outputs of a batch of one row: all of its experts at once, as each alone is little work.
    fn all_of_one_row(&self, buffers: &mut Buffers<'_>) {
        let (projector, work) = (self.projector, self.rows);
        let RowWork { dim, ffn_dim, .. } = work;
        let chosen = &buffers.routes.chosen[..self.experts.n_active];
        let experts = || chosen.iter().map(|expert| *expert as usize);
        let gate_ups: heapless::Vec<Matrix<'_>, { 2 * EXPERTS_ACTIVE_MAX }> =
            experts().flat_map(|expert| self.gate_up(expert)).collect();
        let downs: heapless::Vec<Matrix<'_>, EXPERTS_ACTIVE_MAX> =
            experts().map(|expert| self.down(expert)).collect();

        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| work.normalise(x, row, out);
        let inputs = projector.prepare(
            &mut buffers.inputs,
            MatrixDims { rows: 1, k: dim },
            &gate_ups[0],
            Some(&fill),
        );
        projector.project(inputs, &gate_ups, buffers.gate_up);

        let rows = buffers.gate_up.chunks_exact_mut(2 * ffn_dim);
        let mut rooms = buffers.inputs.split(self.experts.n_active);
        let mut inputs = heapless::Vec::<Prepared<'_>, EXPERTS_ACTIVE_MAX>::new();
        for (((expert, down), row), room) in experts().zip(&downs).zip(rows).zip(&mut rooms) {
            work.add_biases(expert, row);
            let halves = row.split_at(ffn_dim);
            let fill = |_, out: &mut [f32]| work.activate(halves, out);
            // There are no more experts than the vector holds.
            let _ = inputs.push(projector.prepare(
                room,
                MatrixDims { rows: 1, k: ffn_dim },
                down,
                Some(&fill),
            ));
        }
        projector.project_each(&inputs, &downs, buffers.routes.outputs);
    }

    /// Writes the sum of each row's weighted outputs to `delta`.
    fn add_up(&self, buffers: &mut Buffers<'_>) {
        let (dim, Experts { n, n_active, .. }) = (self.rows.dim, self.experts);
        let Routes { scores, chosen, places, outputs, .. } = &mut buffers.routes;
        if let Some(bias) = self.down_bias {
            let uses = chosen.iter().zip(&**places).take(self.m * n_active);
            for (expert, place) in uses {
                let output = &mut outputs[*place as usize * dim..][..dim];
                self.rows.kernels.add(output, &bias[*expert as usize * dim..][..dim]);
            }
        }
        let (scores, chosen, places, outputs) = (&*scores, &*chosen, &*places, &*outputs);
        let delta = Chunks::new(&mut buffers.delta[..self.m * dim], dim);
        self.projector.pool.run_chunks(delta, &|row, delta| {
            delta.fill(0.0);
            for index in row * n_active..(row + 1) * n_active {
                let weight = scores[row * n + chosen[index] as usize];
                let output = &outputs[places[index] as usize * dim..][..dim];
                for (delta, output) in delta.iter_mut().zip(output) {
                    *delta += weight * output;
                }
            }
        });
    }

    fn gate_up(&self, expert: usize) -> [Matrix<'_>; 2] {
        let width = self.rows.ffn_dim;
        let rows = expert * width..(expert + 1) * width;
        [self.gates.slice_rows(rows.clone()), self.ups.slice_rows(rows)]
    }

    fn down(&self, expert: usize) -> Matrix<'_> {
        let width = self.rows.dim;
        self.downs.slice_rows(expert * width..(expert + 1) * width)
    }
}

impl RowWork<'_> {
    /// Writes the norm of row `row` of `x`.
    fn normalise(&self, x: &[f32], row: usize, out: &mut [f32]) {
        let x = &x[row * self.dim..][..self.dim];
        self.kernels.rms_norm(x, self.norm, self.spec.norm_eps, out);
    }

    /// Adds the biases of `expert` to a row's gate and up.
    fn add_biases(&self, expert: usize, row: &mut [f32]) {
        let Some(biases) = self.biases else { return };
        for (half, bias) in row.chunks_exact_mut(self.ffn_dim).zip(biases) {
            self.kernels.add(half, &bias[expert * self.ffn_dim..][..self.ffn_dim]);
        }
    }

    /// Writes the activation of a row's gate and up.
    fn activate(&self, halves: (&[f32], &[f32]), out: &mut [f32]) {
        activate(self.kernels, self.spec.activation, halves, out);
    }
}
