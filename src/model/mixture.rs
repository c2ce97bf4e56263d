//! Feed-forward layers that are mixtures of experts: a router gives each row some of the experts.
//!
//! Rows are grouped by expert, so that each expert's weights are read once per batch, and weights of experts
//! without rows are not read. A row's sum over its experts is always in the order of the experts' numbers,
//! whatever the batch.

use std::ops::Range;

use super::activation::activate;
use super::buffers::Buffers;
use super::inputs::{Inputs, Prepared};
use super::matrix::Matrix;
use super::project::{Projector, Source};
use super::routes::Routes;
use super::team::{Columns, Team};
use super::watch::Watcher;
use crate::format::model::{EXPERTS_ACTIVE_MAX, Experts, LayerSpec, Slice, TensorKind};
use crate::kernels::{Kernels, MatrixDims};
use crate::pool::Chunks;

/// The mixture of experts of one layer, for one batch.
pub(super) struct Mixture<'a> {
    pub(super) projector: Projector<'a>,
    /// Observer of the experts' inputs, for calibration; unused in a batch of one row.
    pub(super) watcher: Watcher<'a>,
    pub(super) experts: Experts,
    pub(super) rows: RowWork<'a>,
    /// Number of rows of the batch.
    pub(super) m: usize,
    /// Rows of each expert's matrices that this node computes.
    pub(super) slice: &'a Slice,
    /// Whether the matrices hold only these rows.
    pub(super) is_cut: bool,
    /// Whether the output is this node's part, in a team.
    pub(super) is_part: bool,
    pub(super) tensors: ExpertTensors<'a>,
}

/// Tensors of the router and of all experts.
pub(super) struct ExpertTensors<'a> {
    /// `[experts, dim]`.
    pub(super) router: &'a [f32],
    /// `[experts]`.
    pub(super) router_bias: Option<&'a [f32]>,
    /// Added to scores in the choice alone, `[experts]`.
    pub(super) choice_bias: Option<&'a [f32]>,
    /// `[experts * ffn_dim, dim]`.
    pub(super) gates: Matrix<'a>,
    /// `[experts * ffn_dim, dim]`.
    pub(super) ups: Matrix<'a>,
    /// `[experts * dim, ffn_dim]`.
    pub(super) downs: Matrix<'a>,
    /// `[experts, dim]`.
    pub(super) down_bias: Option<&'a [f32]>,
    /// Factors of the experts' outputs, `[experts]`.
    pub(super) scales: Option<&'a [f32]>,
}

/// Row-wise work between the matrix products.
#[derive(Clone, Copy)]
pub(super) struct RowWork<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) spec: LayerSpec,
    pub(super) dim: usize,
    /// FFN width of an expert.
    pub(super) ffn_dim: usize,
    /// Weights of the norm before the mixture, `[dim]`.
    pub(super) norm: &'a [f32],
    /// Weights of the norm before the router, if it has another, `[dim]`.
    pub(super) router_norm: Option<&'a [f32]>,
    /// Biases of gate and up, `[experts, ffn_dim]` each.
    pub(super) biases: Option<[&'a [f32]; 2]>,
}

impl Mixture<'_> {
    /// Writes the mixture's output for `x` to `delta`.
    pub(super) fn run(&self, buffers: &mut Buffers<'_>) {
        self.route(buffers);
        match self.m {
            1 => self.all_of_one_row(buffers),
            _ => (0..self.experts.n).for_each(|expert| self.expert(expert, buffers)),
        }
        self.add_up(buffers);
    }

    /// Chooses the rows' experts, and writes this node's inputs of their down projections to `part`:
    /// [`Mixture::n_uses`] rows.
    pub(super) fn gate(&self, buffers: &mut Buffers<'_>) {
        self.route(buffers);
        let (work, own) = (self.rows, self.slice.ffn.len());
        if own == 0 {
            return;
        }
        if self.m == 1 {
            self.gates_and_ups_of_one_row(buffers);
            let rows = buffers.gate_up.chunks_exact(2 * own).take(self.experts.n_active);
            for (row, out) in rows.zip(buffers.part.chunks_exact_mut(own)) {
                work.activate(row.split_at(own), out);
            }
            return;
        }
        for expert in 0..self.experts.n {
            let uses = buffers.routes.uses(expert);
            if !uses.is_empty() {
                self.gates_and_ups(expert, buffers);
                let (gate_up, part) = (&*buffers.gate_up, &mut buffers.part);
                let rows = Chunks::new(&mut part[uses.start * own..uses.end * own], own);
                self.projector.pool.run_chunks(rows, &|row, out| {
                    work.activate(gate_up[row * 2 * own..][..2 * own].split_at(own), out);
                });
            }
        }
    }

    /// Number of pairs of a row and one of its experts.
    pub(super) fn n_uses(&self) -> usize {
        self.m * self.experts.n_active
    }

    /// Writes the mixture's output to `part`, after `team` has gathered the inputs of all down projections in
    /// `acts`.
    pub(super) fn down_in_team(&self, team: &Team, buffers: &mut Buffers<'_>) {
        let Buffers { acts, inputs, routes, .. } = buffers;
        let given = team.given(Columns::Ffn, acts);
        if self.m == 1 {
            self.downs_of_one_row(&|index| Source::Given(given.from(index)), inputs, routes);
        } else if !self.slice.dim.is_empty() {
            for expert in 0..self.experts.n {
                let uses = routes.uses(expert);
                if !uses.is_empty() {
                    let source = Source::Given(given.from(uses.start));
                    self.project_down((expert, uses), source, inputs, routes.outputs);
                }
            }
        }
        self.add_up(buffers);
    }

    /// Chooses each row's experts.
    fn route(&self, buffers: &mut Buffers<'_>) {
        let router = Matrix::F32 { w: self.tensors.router, k: self.rows.dim };
        let (x, work) = (&*buffers.x, self.rows);
        let work = RowWork { norm: work.router_norm.unwrap_or(work.norm), ..work };
        let fill = |row: usize, out: &mut [f32]| work.normalise(x, row, out);
        let shape = MatrixDims { rows: self.m, k: work.dim };
        let inputs = self.projector.prepare(&mut buffers.inputs, shape, &router, Some(&fill));
        self.projector.project(inputs, &[router], buffers.routes.scores);
        if let Some(bias) = self.tensors.router_bias {
            for scores in buffers.routes.scores.chunks_exact_mut(self.experts.n).take(self.m) {
                self.rows.kernels.add(scores, bias);
            }
        }
        buffers.routes.choose(self.experts, self.m, self.tensors.choice_bias);
        if let Some(scales) = self.tensors.scales {
            buffers.routes.scale(self.experts, self.m, scales);
        }
    }

    /// Computes the outputs of one expert for all rows that use it.
    fn expert(&self, expert: usize, buffers: &mut Buffers<'_>) {
        let uses = buffers.routes.uses(expert);
        if uses.is_empty() {
            return;
        }
        self.gates_and_ups(expert, buffers);
        let (work, width) = (self.rows, 2 * self.rows.ffn_dim);
        let gate_up = &*buffers.gate_up;
        let fill = |row: usize, out: &mut [f32]| {
            let halves = gate_up[row * width..][..width].split_at(width / 2);
            work.activate(halves, out);
        };
        let (inputs, dims) =
            (&mut buffers.inputs, MatrixDims { rows: uses.len(), k: work.ffn_dim });
        let id = (TensorKind::W2, expert);
        let fill = self.watcher.tell(id, (inputs.f32, dims), self.projector.pool, Some(&fill));
        let source = fill.map_or(Source::Room, Source::Fill);
        self.project_down((expert, uses), source, inputs, buffers.routes.outputs);
    }

    /// Writes gate and up of one expert, with biases, to `gate_up`, for all rows that use it.
    fn gates_and_ups(&self, expert: usize, buffers: &mut Buffers<'_>) {
        let uses = buffers.routes.uses(expert);
        let (projector, work, m) = (self.projector, self.rows, uses.len());
        let gate_up = self.gate_up(expert);
        let (x, rows) = (&*buffers.x, &buffers.routes.rows[uses]);
        let fill = |index: usize, out: &mut [f32]| work.normalise(x, rows[index] as usize, out);
        let (inputs, dims) = (&mut buffers.inputs, MatrixDims { rows: m, k: work.dim });
        let id = (TensorKind::W1, expert);
        let fill = self.watcher.tell(id, (inputs.f32, dims), projector.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &gate_up[0], fill);
        projector.project(inputs, &gate_up, buffers.gate_up);
        if work.biases.is_some() {
            let own = &self.slice.ffn;
            let width = 2 * own.len();
            let rows = Chunks::new(&mut buffers.gate_up[..m * width], width);
            projector.pool.run_chunks(rows, &|_, row| work.add_biases(expert, own, row));
        }
    }

    /// Writes the outputs of an expert's `uses` for the rows of `source`.
    fn project_down(
        &self,
        (expert, uses): (usize, Range<usize>),
        source: Source<'_>,
        inputs: &mut Inputs<'_>,
        outputs: &mut [f32],
    ) {
        let (down, dim) = (self.down(expert), self.slice.dim.len());
        let dims = MatrixDims { rows: uses.len(), k: self.rows.ffn_dim };
        let inputs = self.projector.prepare_from(source, inputs, dims, &down);
        let out = &mut outputs[uses.start * dim..uses.end * dim];
        self.projector.project(inputs, &[down], out);
    }

    /// Computes the outputs of a batch of one row. Its experts are computed at once, because each alone is
    /// little work.
    fn all_of_one_row(&self, buffers: &mut Buffers<'_>) {
        self.gates_and_ups_of_one_row(buffers);
        let (work, width) = (self.rows, 2 * self.slice.ffn.len());
        let Buffers { gate_up, inputs, routes, .. } = buffers;
        let gate_up = &**gate_up;
        let fills: heapless::Vec<_, EXPERTS_ACTIVE_MAX> = (0..self.experts.n_active)
            .map(|index| {
                move |_: usize, out: &mut [f32]| {
                    work.activate(gate_up[index * width..][..width].split_at(width / 2), out);
                }
            })
            .collect();
        self.downs_of_one_row(&|index| Source::Fill(&fills[index]), inputs, routes);
    }

    /// Experts of a batch of one row.
    fn chosen<'r>(&self, routes: &'r Routes<'_>) -> impl Iterator<Item = usize> + use<'r> {
        routes.chosen[..self.experts.n_active].iter().map(|expert| *expert as usize)
    }

    /// Writes gate and up of all experts of a batch of one row, with biases, to `gate_up`.
    fn gates_and_ups_of_one_row(&self, buffers: &mut Buffers<'_>) {
        let (projector, work, own) = (self.projector, self.rows, self.slice.ffn.len());
        let gate_ups: heapless::Vec<Matrix<'_>, { 2 * EXPERTS_ACTIVE_MAX }> =
            self.chosen(&buffers.routes).flat_map(|expert| self.gate_up(expert)).collect();
        let x = &*buffers.x;
        let fill = |row: usize, out: &mut [f32]| work.normalise(x, row, out);
        let dims = MatrixDims { rows: 1, k: work.dim };
        let inputs = projector.prepare(&mut buffers.inputs, dims, &gate_ups[0], Some(&fill));
        projector.project(inputs, &gate_ups, buffers.gate_up);
        if own > 0 {
            let rows = buffers.gate_up.chunks_exact_mut(2 * own);
            let experts = self.chosen(&buffers.routes);
            experts.zip(rows).for_each(|(expert, row)| {
                work.add_biases(expert, &self.slice.ffn, row);
            });
        }
    }

    /// Writes the outputs of all experts of a batch of one row; `source` gives the input of each.
    fn downs_of_one_row<'s>(
        &self,
        source: &dyn Fn(usize) -> Source<'s>,
        inputs: &mut Inputs<'_>,
        routes: &mut Routes<'_>,
    ) {
        let downs: heapless::Vec<Matrix<'_>, EXPERTS_ACTIVE_MAX> =
            self.chosen(routes).map(|expert| self.down(expert)).collect();
        let dims = MatrixDims { rows: 1, k: self.rows.ffn_dim };
        let mut rooms = inputs.split(self.experts.n_active);
        let mut inputs = heapless::Vec::<Prepared<'_>, EXPERTS_ACTIVE_MAX>::new();
        for ((index, down), room) in downs.iter().enumerate().zip(&mut rooms) {
            // The vector has room for all active experts.
            let _ = inputs.push(self.projector.prepare_from(source(index), room, dims, down));
        }
        self.projector.project_each(&inputs, &downs, routes.outputs);
    }

    /// Writes the sum of each row's weighted outputs to `delta`, or this node's columns of it to `part`.
    fn add_up(&self, buffers: &mut Buffers<'_>) {
        let (own, Experts { n, n_active, .. }) = (self.slice.dim.clone(), self.experts);
        let dim = own.len();
        if dim == 0 {
            return;
        }
        let Routes { scores, chosen, places, outputs, .. } = &mut buffers.routes;
        if let Some(bias) = self.tensors.down_bias {
            let uses = chosen.iter().zip(&**places).take(self.m * n_active);
            for (expert, place) in uses {
                let output = &mut outputs[*place as usize * dim..][..dim];
                let bias = &bias[*expert as usize * self.rows.dim..][own.clone()];
                self.rows.kernels.add(output, bias);
            }
        }
        let (scores, chosen, places, outputs) = (&*scores, &*chosen, &*places, &*outputs);
        let delta = if self.is_part { &mut *buffers.part } else { &mut *buffers.delta };
        let delta = Chunks::new(&mut delta[..self.m * dim], dim);
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

    /// This node's rows of an expert's gate and up matrices.
    fn gate_up(&self, expert: usize) -> [Matrix<'_>; 2] {
        let rows = self.rows_of(expert, self.rows.ffn_dim, &self.slice.ffn);
        [self.tensors.gates.slice_rows(rows.clone()), self.tensors.ups.slice_rows(rows)]
    }

    /// This node's rows of an expert's down matrix.
    fn down(&self, expert: usize) -> Matrix<'_> {
        self.tensors.downs.slice_rows(self.rows_of(expert, self.rows.dim, &self.slice.dim))
    }

    /// Range, in the matrix of all experts, of the rows `own` out of an expert's `n` rows.
    fn rows_of(&self, expert: usize, n: usize, own: &Range<usize>) -> Range<usize> {
        match self.is_cut {
            true => expert * own.len()..(expert + 1) * own.len(),
            false => expert * n + own.start..expert * n + own.end,
        }
    }
}

impl RowWork<'_> {
    /// Writes the RMSNorm of row `row` of `x` to `out`.
    fn normalise(&self, x: &[f32], row: usize, out: &mut [f32]) {
        let x = &x[row * self.dim..][..self.dim];
        self.kernels.rms_norm(x, self.norm, self.spec.norm_eps, out);
    }

    /// Adds the biases of `expert` to the columns `own` of a row's gate and up.
    fn add_biases(&self, expert: usize, own: &Range<usize>, row: &mut [f32]) {
        let Some(biases) = self.biases else { return };
        for (half, bias) in row.chunks_exact_mut(own.len()).zip(biases) {
            self.kernels.add(half, &bias[expert * self.ffn_dim..][own.clone()]);
        }
    }

    /// Writes the activation of a row's gate and up to `out`.
    fn activate(&self, halves: (&[f32], &[f32]), out: &mut [f32]) {
        activate(self.kernels, self.spec.activation, halves, out);
    }
}
