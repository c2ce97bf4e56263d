//! Recording of the steps that layers consist of.

use bytemuck::{Pod, Zeroable};

use super::commands::Recorder;
use super::error::GpuError;
use super::pipelines::{GateForm, Pipelines, Shader};
use super::room::Room;
use super::tensors::{Layout, PANEL_ROWS, Tensor};
use crate::format::model::Activation;

/// Activation rows of a workgroup of `shaders/product.comp`.
const TILE: usize = 4;

/// A device that records commands, and its buffers.
pub(super) struct On<'a, 'r> {
    pub(super) recorder: &'a mut Recorder<'r>,
    pub(super) room: &'a Room,
    /// Number of rows.
    pub(super) m: usize,
    /// Blocks of 32 positions that the row furthest on in its text attends to.
    pub(super) blocks: usize,
}

/// Matrices of experts: a row of a product has that of its expert.
#[derive(Clone, Copy)]
pub(super) struct Uses {
    /// Address of the experts of all rows of the product.
    pub(super) chosen: u64,
    /// Number of these rows.
    pub(super) n: usize,
    /// Number of them for each row of the inputs.
    pub(super) share: usize,
    /// Rows of an expert's matrix.
    pub(super) rows: usize,
}

/// Where products are written.
#[derive(Clone, Copy)]
struct Target {
    y: u64,
    /// Width of a row.
    width: usize,
    /// Column of a row where the product begins.
    column: usize,
    adds: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct QuantizePush {
    x: u64,
    q: u64,
    scales: u64,
    sums: u64,
    groups: u32,
    group: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProductPush {
    weights: [u64; 3],
    /// Codes, scales and sums.
    inputs: [u64; 3],
    y: u64,
    m: u32,
    k: u32,
    group: u32,
    rows: u32,
    width: u32,
    column: u32,
    bias: i32,
    adds: u32,
    experts: ExpertsPush,
}

/// Panels of a product, and the experts of its rows.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ExpertsPush {
    chosen: u64,
    share: u32,
    /// Panels of an expert.
    panels: u32,
    /// Bytes of a panel.
    stride: u32,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct F32Push {
    w: u64,
    x: u64,
    y: u64,
    k: u32,
    rows: u32,
    width: u32,
    column: u32,
    adds: u32,
    share: u32,
    chosen: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ActivatePush {
    gate_up: u64,
    y: u64,
    width: u32,
    limit: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AddPush {
    x: u64,
    y: u64,
    chosen: u64,
    columns: u32,
    width: u32,
    column: u32,
    stride: u32,
    factor: f32,
    zero: u32,
}

/// Rows, their gates, and where the products go: an address, the width of rows, and the first column.
#[derive(Clone, Copy)]
pub(super) struct Gates {
    pub(super) x: (u64, usize, usize),
    pub(super) gates: (u64, usize, usize),
    pub(super) y: (u64, usize, usize),
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct GatePush {
    addresses: [u64; 3],
    columns: u32,
    /// Widths and first columns of rows, gates and products.
    rows: [[u32; 2]; 3],
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct NormPush {
    x: u64,
    weight: u64,
    y: u64,
    n: u32,
    eps: f32,
    weight_step: u32,
    zero: u32,
}

/// A number of the activation shader, and the limit that it needs.
pub(super) fn activation(activation: Activation) -> (u32, f32) {
    match activation {
        Activation::Silu | Activation::GeluErf => (0, 0.0),
        Activation::GeluTanh => (1, 0.0),
        Activation::ClampedSilu { limit } => (2, limit),
    }
}

impl Tensor {
    /// Makes the pipelines that products with the matrix need.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn prepare(
        &self,
        pipelines: &mut Pipelines,
        by_expert: bool,
    ) -> Result<(), GpuError> {
        match self.layout {
            None => pipelines.prepare(Shader::ProductF32 { by_expert }).map(|_| ()),
            Some(layout) => {
                pipelines.prepare(Shader::Quantize)?;
                pipelines.prepare(layout.shader(by_expert)).map(|_| ())
            }
        }
    }
}

impl On<'_, '_> {
    /// Multiplies the rows of `room.inputs` by `matrices`, whose results stand side by side at `y`, or are added there.
    pub(super) fn project(&mut self, matrices: &[&Tensor], y: u64, adds: bool) {
        self.project_with(matrices, (y, adds), self.m, None);
    }

    /// Multiplies rows of `room.inputs` by the matrices of their experts.
    pub(super) fn project_uses(&mut self, matrices: &[&Tensor], y: u64, uses: Uses) {
        self.project_with(matrices, (y, false), uses.n / uses.share, Some(uses));
    }

    fn project_with(
        &mut self,
        matrices: &[&Tensor],
        (y, adds): (u64, bool),
        n_inputs: usize,
        uses: Option<Uses>,
    ) {
        let rows = |matrix: &Tensor| uses.map_or(matrix.rows, |uses| uses.rows);
        let width: usize = matrices.iter().map(|matrix| rows(matrix)).sum();
        let mut quantised = None;
        let mut to = Target { y, width, column: 0, adds };
        for matrix in matrices {
            match matrix.layout {
                None => self.multiply_f32(matrix, to, uses),
                Some(layout) => {
                    if quantised != Some(layout.group) {
                        // Products beside this one may still read other codes.
                        if quantised.is_some() {
                            self.recorder.barrier();
                        }
                        self.quantize(matrix.k, layout.group, n_inputs);
                        quantised = Some(layout.group);
                    }
                    self.multiply((matrix, layout), to, uses);
                }
            }
            to.column += rows(matrix);
        }
        // The products read the same inputs, and write columns of their own.
        self.recorder.barrier();
    }

    fn quantize(&mut self, k: usize, group: usize, n_rows: usize) {
        let Room { inputs, codes, scales, sums, .. } = self.room;
        let groups = k / group;
        let push = QuantizePush {
            x: inputs.address,
            q: codes.address,
            scales: scales.address,
            sums: sums.address,
            groups: groups as u32,
            group: group as u32,
        };
        self.recorder.dispatch(Shader::Quantize, &push, [groups.div_ceil(64), n_rows]);
    }

    fn multiply(&mut self, (matrix, layout): (&Tensor, Layout), to: Target, uses: Option<Uses>) {
        let Room { codes, scales, sums, .. } = self.room;
        let rows = uses.map_or(matrix.rows, |uses| uses.rows);
        let panels = rows.div_ceil(PANEL_ROWS);
        let experts = ExpertsPush {
            chosen: uses.map_or(0, |uses| uses.chosen),
            share: uses.map_or(1, |uses| uses.share as u32),
            panels: panels as u32,
            stride: layout.stride(matrix.k) as u32,
            zero: 0,
        };
        let push = ProductPush {
            weights: matrix.addresses(),
            inputs: [codes.address, scales.address, sums.address],
            y: to.y,
            m: self.m as u32,
            k: matrix.k as u32,
            group: layout.group as u32,
            rows: rows as u32,
            width: to.width as u32,
            column: to.column as u32,
            bias: layout.bias.into(),
            adds: u32::from(to.adds),
            experts,
        };
        let groups = [panels, uses.map_or(self.m.div_ceil(TILE), |uses| uses.n)];
        self.recorder.dispatch_beside(layout.shader(uses.is_some()), &push, groups);
    }

    fn multiply_f32(&mut self, matrix: &Tensor, to: Target, uses: Option<Uses>) {
        let [w, ..] = matrix.addresses();
        let rows = uses.map_or(matrix.rows, |uses| uses.rows);
        self.multiply_f32_at((w, [rows, matrix.k]), to, uses);
    }

    /// Multiplies the rows of `room.inputs` by an f32 matrix `[rows, k]` at an address.
    pub(super) fn project_f32(&mut self, (w, [rows, k]): (u64, [usize; 2]), y: u64) {
        let to = Target { y, width: rows, column: 0, adds: false };
        self.multiply_f32_at((w, [rows, k]), to, None);
        self.recorder.barrier();
    }

    fn multiply_f32_at(
        &mut self,
        (w, [rows, k]): (u64, [usize; 2]),
        to: Target,
        uses: Option<Uses>,
    ) {
        let push = F32Push {
            w,
            x: self.room.inputs.address,
            y: to.y,
            k: k as u32,
            rows: rows as u32,
            width: to.width as u32,
            column: to.column as u32,
            adds: u32::from(to.adds),
            share: uses.map_or(1, |uses| uses.share as u32),
            chosen: uses.map_or(0, |uses| uses.chosen),
        };
        let shader = Shader::ProductF32 { by_expert: uses.is_some() };
        let n = uses.map_or(self.m, |uses| uses.n);
        self.recorder.dispatch_beside(shader, &push, [rows.div_ceil(8), n]);
    }

    /// Multiplies `columns` columns of rows by their gates.
    pub(super) fn gate(&mut self, form: GateForm, Gates { x, gates, y }: Gates, columns: usize) {
        let all = [x, gates, y];
        let push = GatePush {
            addresses: all.map(|(address, ..)| address),
            columns: columns as u32,
            rows: all.map(|(_, width, column)| [width as u32, column as u32]),
            zero: 0,
        };
        self.recorder.dispatch(Shader::Gate(form), &push, [columns.div_ceil(64), self.m]);
    }

    /// Writes the RMSNorm of rows `x`, each of groups of `n` values, to `y`. Weights of a group follow those of the one
    /// before it by `weight_step` values.
    pub(super) fn norm(
        &mut self,
        (x, weight, y): (u64, u64, u64),
        (n, eps): (usize, f32),
        ([rows, groups], weight_step): ([usize; 2], usize),
    ) {
        let (n, weight_step) = (n as u32, weight_step as u32);
        let push = NormPush { x, weight, y, n, eps, weight_step, zero: 0 };
        self.recorder.dispatch(Shader::Norm, &push, [rows, groups]);
    }

    /// Writes the activations of `n_rows` rows of gate and up, each of `width` values, to the inputs.
    pub(super) fn activate(&mut self, kind: Activation, width: usize, n_rows: usize) {
        let (shader, limit) = activation(kind);
        let (gate_up, y) = (self.room.gate_up.address, self.room.inputs.address);
        let push = ActivatePush { gate_up, y, width: width as u32, limit };
        self.recorder.dispatch(Shader::Activate(shader), &push, [width.div_ceil(64), n_rows]);
    }

    /// Adds `factor` times rows at `y`, `stride` values apart, to the rows at `x`, of `width` values.
    pub(super) fn add(&mut self, (x, y): (u64, u64), width: usize, stride: usize, factor: f32) {
        let push = AddPush {
            x,
            y,
            chosen: 0,
            columns: width as u32,
            width: width as u32,
            column: 0,
            stride: stride as u32,
            factor,
            zero: 0,
        };
        let groups = [width.div_ceil(64), self.m];
        self.recorder.dispatch(Shader::Add { by_expert: false }, &push, groups);
    }

    /// Adds the rows at `y` that belong to the uses' experts to `columns` columns, from `column` on, of rows of `width`
    /// values at `x`.
    pub(super) fn add_of_experts(
        &mut self,
        (x, y): (u64, u64),
        [columns, width, column]: [usize; 3],
        uses: Uses,
    ) {
        let push = AddPush {
            x,
            y,
            chosen: uses.chosen,
            columns: columns as u32,
            width: width as u32,
            column: column as u32,
            stride: columns as u32,
            factor: 1.0,
            zero: 0,
        };
        let groups = [columns.div_ceil(64), uses.n];
        self.recorder.dispatch(Shader::Add { by_expert: true }, &push, groups);
    }
}
