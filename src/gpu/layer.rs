//! One layer on a device: its weights, and the order of its shaders.

use bytemuck::{Pod, Zeroable};

use super::commands::{Commands, Recorder};
use super::error::GpuError;
use super::memory::Memory;
use super::mixture::Mixture;
use super::pipelines::{Pipelines, Shader};
use super::places::Places;
use super::room::Room;
use super::tensors::{Layout, PANEL_ROWS, Tensor, Transfer};
use crate::format::model::{Activation, Header, LayerSpec, TensorKind};
use crate::model::{KvKind, Model};

/// Weights of a layer.
pub(super) struct Layer {
    spec: LayerSpec,
    n_heads: usize,
    /// Queries, keys and values, attention's output.
    attention: [Tensor; 4],
    feed_forward: FeedForward,
    vectors: Vectors,
}

/// The second half of a layer.
enum FeedForward {
    /// Gate, up, down.
    Dense([Tensor; 3]),
    Mixture(Mixture),
}

/// Vectors of a layer in one piece of memory.
pub(super) struct Vectors {
    /// Holds them all.
    memory: Memory,
    /// Address of each that the layer has.
    places: Vec<(TensorKind, u64)>,
}

/// A device that records commands, and its buffers.
pub(super) struct On<'a, 'r> {
    pub(super) recorder: &'a mut Recorder<'r>,
    pub(super) room: &'a Room,
    /// Number of rows.
    pub(super) m: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct NormPush {
    x: u64,
    weight: u64,
    y: u64,
    n: u32,
    eps: f32,
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

/// Experts of the rows of a product.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct ExpertsPush {
    chosen: u64,
    share: u32,
    /// Panels of an expert.
    panels: u32,
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
struct HeadsPush {
    qkv: u64,
    angles: [u64; 2],
    bias: u64,
    norms: [u64; 2],
    growth: u64,
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    rotary: u32,
    features: u32,
    eps: f32,
}

/// Where a layer's keys and values lie.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct KvPush {
    tables: u64,
    rows: u64,
    kv: u64,
    page: u64,
    start: u64,
}

/// Sizes of a layer's heads and their places.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SizesPush {
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    table_len: u32,
    head: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StorePush {
    qkv: u64,
    kv: KvPush,
    sizes: SizesPush,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AttendPush {
    qkv: u64,
    y: u64,
    sinks: u64,
    kv: KvPush,
    sizes: SizesPush,
    window: u32,
    scale: f32,
    has_sinks: u32,
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

/// Bits of [`HeadsPush::features`].
const BIAS: u32 = 1;
const Q_NORM: u32 = 2;
const K_NORM: u32 = 4;
const GROWTH: u32 = 8;

/// A number of the activation shader, and the limit that it needs.
fn activation(activation: Activation) -> (u32, f32) {
    match activation {
        Activation::Silu | Activation::GeluErf => (0, 0.0),
        Activation::GeluTanh => (1, 0.0),
        Activation::ClampedSilu { limit } => (2, limit),
    }
}

/// Kinds of gate, up and down in `layer`.
pub(super) fn feed_forward_kinds(header: &Header, layer: usize) -> [TensorKind; 3] {
    match header.is_dense(layer) {
        true => [TensorKind::DenseW1, TensorKind::DenseW3, TensorKind::DenseW2],
        false => [TensorKind::W1, TensorKind::W3, TensorKind::W2],
    }
}

/// Kinds of queries, keys, values and attention's output.
pub(super) const ATTENTION: [TensorKind; 4] =
    [TensorKind::Wq, TensorKind::Wk, TensorKind::Wv, TensorKind::Wo];

impl Layer {
    /// Copies the weights of `layer` to the device.
    ///
    /// # Errors
    /// If there is no room on the device, or its driver fails.
    pub(super) fn new(
        transfer: &mut Transfer,
        (commands, pipelines): (&mut Commands, &Pipelines),
        model: &Model,
        layer: usize,
    ) -> Result<Layer, GpuError> {
        let header = model.header();
        let mut tensor = |kind| {
            let (_, k) = header.held_shape(kind);
            let matrix = model.matrix(kind, layer);
            Tensor::new(transfer, (&mut *commands, pipelines), &matrix, k)
        };
        let [wq, wk, wv, wo] = ATTENTION;
        let attention = [tensor(wq)?, tensor(wk)?, tensor(wv)?, tensor(wo)?];
        let [w1, w3, w2] = feed_forward_kinds(header, layer);
        let tensors = [tensor(w1)?, tensor(w3)?, tensor(w2)?];
        let experts = header.features.experts.filter(|_| !header.is_dense(layer));
        let feed_forward = match experts {
            None => FeedForward::Dense(tensors),
            Some(experts) => FeedForward::Mixture(Mixture { experts, tensors }),
        };
        let vectors = Vectors::new(transfer, (commands, pipelines), model, layer)?;
        let (spec, n_heads) = (header.layer(layer), header.n_heads);
        Ok(Layer { spec, n_heads, attention, feed_forward, vectors })
    }

    /// Makes the pipelines that the layer needs.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn prepare(&self, pipelines: &mut Pipelines, kv: KvKind) -> Result<(), GpuError> {
        let is_half = kv == KvKind::F16;
        let own = [
            Shader::Norm,
            Shader::Heads,
            Shader::Store { is_half },
            Shader::Attend { is_half },
            Shader::Activate(activation(self.spec.activation).0),
            Shader::Add { by_expert: false },
        ];
        own.into_iter().try_for_each(|shader| pipelines.prepare(shader).map(|_| ()))?;
        self.attention.iter().try_for_each(|tensor| tensor.prepare(pipelines, false))?;
        match &self.feed_forward {
            FeedForward::Dense(tensors) => {
                tensors.iter().try_for_each(|tensor| tensor.prepare(pipelines, false))
            }
            FeedForward::Mixture(mixture) => mixture.prepare(pipelines),
        }
    }

    /// Records the layer's work on the rows in `room.x`. `layer` is counted from the device's first.
    pub(super) fn record(&self, mut on: On<'_, '_>, places: &Places, layer: usize) {
        self.attend(&mut on, places, layer);
        let room = on.room;
        self.norm(&mut on, TensorKind::FfnNorm, (room.x.address, room.inputs.address));
        let activation = self.spec.activation;
        match &self.feed_forward {
            FeedForward::Dense([gate, up, down]) => {
                on.project(&[gate, up], room.gate_up.address, false);
                self.add_bias(&mut on, TensorKind::B1, room.gate_up.address, 2 * gate.rows);
                on.activate(activation, gate.rows, on.m);
                self.project_and_add(&mut on, down, [TensorKind::B2, TensorKind::FfnPostNorm]);
            }
            FeedForward::Mixture(mixture) => {
                mixture.record(&mut on, &self.vectors, activation);
                self.add_delta(&mut on, TensorKind::FfnPostNorm);
            }
        }
    }

    fn attend(&self, on: &mut On<'_, '_>, places: &Places, layer: usize) {
        let ([wq, wk, wv, wo], room, spec) = (&self.attention, on.room, &self.spec);
        self.norm(on, TensorKind::AttentionNorm, (room.x.address, room.inputs.address));
        on.project(&[wq, wk, wv], room.qkv.address, false);
        let sizes = [self.n_heads, spec.n_kv_heads, spec.head_dim].map(|size| size as u32);
        let [n_heads, n_kv_heads, head_dim] = sizes;
        self.shape_heads(on, sizes);
        let (of, tables) = places.of_layer(layer);
        let kv = KvPush {
            tables,
            rows: room.tables.rows(),
            kv: places.kv.address,
            page: of.page as u64,
            start: of.start as u64,
        };
        let (table_len, head) = (of.table_len as u32, of.head as u32);
        let sizes = SizesPush { n_heads, n_kv_heads, head_dim, table_len, head };
        let (qkv, is_half) = (room.qkv.address, places.unit_bytes == 2);
        let push = StorePush { qkv, kv, sizes, zero: 0 };
        on.recorder.dispatch(Shader::Store { is_half }, &push, [2 * spec.n_kv_heads, on.m]);
        let sinks = self.vectors.get(TensorKind::Sinks);
        let push = AttendPush {
            qkv,
            y: room.inputs.address,
            sinks: sinks.unwrap_or(0),
            kv,
            sizes,
            window: spec.window.map_or(0, |window| u32::try_from(window).unwrap_or(0)),
            scale: spec.attention_scale,
            has_sinks: u32::from(sinks.is_some()),
        };
        on.recorder.dispatch(Shader::Attend { is_half }, &push, [self.n_heads, on.m]);
        self.project_and_add(on, wo, [TensorKind::Bo, TensorKind::AttentionPostNorm]);
    }

    /// Biases, norms and rotation of queries and keys.
    fn shape_heads(&self, on: &mut On<'_, '_>, [n_heads, n_kv_heads, head_dim]: [u32; 3]) {
        let (room, spec) = (on.room, &self.spec);
        let [bias, q_norm, k_norm] = [TensorKind::Bq, TensorKind::QNorm, TensorKind::KNorm]
            .map(|kind| self.vectors.get(kind));
        let features = [
            (bias.is_some(), BIAS),
            (q_norm.is_some(), Q_NORM),
            (k_norm.is_some(), K_NORM),
            (spec.temperature.is_some(), GROWTH),
        ];
        let features = features.iter().filter(|(is_so, _)| *is_so).map(|(_, bit)| bit).sum();
        if features == 0 && spec.rope.is_none() {
            return;
        }
        let push = HeadsPush {
            qkv: room.qkv.address,
            angles: spec.rope.map_or([0; 2], |rope| room.tables.angles(rope)),
            bias: bias.unwrap_or(0),
            norms: [q_norm, k_norm].map(|norm| norm.unwrap_or(0)),
            growth: room.tables.growths(),
            n_heads,
            n_kv_heads,
            head_dim,
            rotary: spec.rope.map_or(0, |rope| rope.dim as u32),
            features,
            eps: spec.norm_eps,
        };
        let heads = (n_heads + 2 * n_kv_heads) as usize;
        on.recorder.dispatch(Shader::Heads, &push, [heads, on.m]);
    }

    fn norm(&self, on: &mut On<'_, '_>, kind: TensorKind, (x, y): (u64, u64)) {
        let weight = self.vectors.get(kind).unwrap_or(0);
        let n = self.attention[0].k as u32;
        let push = NormPush { x, weight, y, n, eps: self.spec.norm_eps };
        on.recorder.dispatch(Shader::Norm, &push, [on.m, 1]);
    }

    /// Adds the bias of `kind`, if the layer has it, to rows of `width` values.
    fn add_bias(&self, on: &mut On<'_, '_>, kind: TensorKind, x: u64, width: usize) {
        if let Some(bias) = self.vectors.get(kind) {
            on.add((x, bias), width, 0, 1.0);
        }
    }

    /// Multiplies the inputs by `matrix`, and adds the result to `x` after bias, norm and scale.
    fn project_and_add(&self, on: &mut On<'_, '_>, matrix: &Tensor, [bias, norm]: [TensorKind; 2]) {
        let (room, dim, factor) = (on.room, matrix.rows, self.spec.residual_scale);
        let is_plain =
            [bias, norm].iter().all(|kind| self.vectors.get(*kind).is_none()) && factor == 1.0;
        if is_plain {
            return on.project(&[matrix], room.x.address, true);
        }
        on.project(&[matrix], room.delta.address, false);
        self.add_bias(on, bias, room.delta.address, dim);
        self.add_delta(on, norm);
    }

    /// Adds `delta` to `x`, after norm and scale.
    fn add_delta(&self, on: &mut On<'_, '_>, norm: TensorKind) {
        let (room, dim) = (on.room, self.attention[0].k);
        let mut delta = room.delta.address;
        if self.vectors.get(norm).is_some() {
            self.norm(on, norm, (delta, room.inputs.address));
            delta = room.inputs.address;
        }
        on.add((room.x.address, delta), dim, dim, self.spec.residual_scale);
    }
}

impl Vectors {
    fn new(
        transfer: &mut Transfer,
        (commands, pipelines): (&mut Commands, &Pipelines),
        model: &Model,
        layer: usize,
    ) -> Result<Vectors, GpuError> {
        use TensorKind::{
            AttentionNorm, AttentionPostNorm, B1, B2, B3, Bk, Bo, Bq, Bv, ChoiceBias, ExpertScale,
            FfnNorm, FfnPostNorm, KNorm, QNorm, Router, RouterBias, Sinks,
        };
        let header = model.header();
        let has = |kind: &TensorKind| header.has(*kind) && header.has_in(*kind, layer);
        // Kinds in one group follow each other: shaders take them as one vector.
        let groups: [&[TensorKind]; 10] = [
            &[Bq, Bk, Bv],
            &[B1, B3],
            &[AttentionNorm],
            &[FfnNorm],
            &[QNorm],
            &[KNorm],
            &[Bo],
            &[B2],
            &[AttentionPostNorm],
            &[FfnPostNorm],
        ];
        let mut values: Vec<f32> = Vec::new();
        let mut places = Vec::new();
        let more: [&[TensorKind]; 5] =
            [&[Sinks], &[Router], &[RouterBias], &[ChoiceBias], &[ExpertScale]];
        for kinds in groups.into_iter().chain(more) {
            for kind in kinds.iter().filter(|kind| has(kind)) {
                places.push((*kind, 4 * values.len() as u64));
                values.extend_from_slice(model.vector(*kind, layer));
            }
        }
        let memory = transfer.place(4 * values.len() as u64)?;
        let bytes = bytemuck::cast_slice(&values);
        transfer.send((&mut *commands, pipelines), bytes, (&memory, 0))?;
        transfer.flush((commands, pipelines), &memory)?;
        places.iter_mut().for_each(|(_, at)| *at += memory.address);
        Ok(Vectors { memory, places })
    }

    /// Address of the vector of `kind`, if the layer has it.
    pub(super) fn get(&self, kind: TensorKind) -> Option<u64> {
        debug_assert!(self.memory.address != 0);
        self.places.iter().find(|(known, _)| *known == kind).map(|(_, address)| *address)
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
                        self.quantize(matrix.k, layout.group, n_inputs);
                        quantised = Some(layout.group);
                    }
                    self.multiply((matrix, layout), to, uses);
                }
            }
            to.column += rows(matrix);
        }
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
        let experts = uses.map(|Uses { chosen, share, .. }| ExpertsPush {
            chosen,
            share: share as u32,
            panels: panels as u32,
        });
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
            experts: experts.unwrap_or_default(),
        };
        let groups = [panels, uses.map_or(self.m.div_ceil(TILE), |uses| uses.n)];
        self.recorder.dispatch(layout.shader(uses.is_some()), &push, groups);
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
        self.recorder.dispatch(shader, &push, [rows.div_ceil(8), n]);
    }

    /// Writes the activations of `n_rows` rows of gate and up, each of `width` values, to the inputs.
    pub(super) fn activate(&mut self, kind: Activation, width: usize, n_rows: usize) {
        let (shader, limit) = activation(kind);
        let (gate_up, y) = (self.room.gate_up.address, self.room.inputs.address);
        let push = ActivatePush { gate_up, y, width: width as u32, limit };
        self.recorder.dispatch(Shader::Activate(shader), &push, [width.div_ceil(64), n_rows]);
    }

    /// Adds `factor` times rows at `y`, `stride` values apart, to the rows at `x`, of `width` values.
    fn add(&mut self, (x, y): (u64, u64), width: usize, stride: usize, factor: f32) {
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

/// Activation rows of a workgroup of `shaders/product.comp`.
const TILE: usize = 4;
