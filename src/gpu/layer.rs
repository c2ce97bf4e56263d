//! One layer on a device: its weights, and the order of its shaders.

use bytemuck::{Pod, Zeroable};

use super::error::GpuError;
use super::mixture::Mixture;
use super::pipelines::{GateForm, Pipelines, Shader};
use super::places::Places;
use super::record::{Gates, On, activation};
use super::recurrent::{self, Recurrence};
use super::states::DeviceStates;
use super::tensors::{Loading, Tensor};
use super::vectors::Vectors;
use crate::format::model::{Header, LayerSpec, TensorKind};
use crate::model::{KvKind, Model};

/// Keys and values, and states of recurrent layers if the model has any.
type Kept<'a> = (&'a Places, Option<&'a DeviceStates>);

/// Weights of a layer.
pub(super) struct Layer {
    spec: LayerSpec,
    n_heads: usize,
    dim: usize,
    first: FirstHalf,
    feed_forward: FeedForward,
    vectors: Vectors,
}

/// The first half of a layer.
enum FirstHalf {
    Attention {
        /// Queries, keys and values, attention's output.
        tensors: Box<[Tensor; 4]>,
        /// Gates of attention's output.
        gates: Option<Tensor>,
    },
    Recurrence(Recurrence),
}

/// The second half of a layer.
enum FeedForward {
    /// Gate, up, down.
    Dense([Tensor; 3]),
    Mixture {
        mixture: Box<Mixture>,
        /// A shared expert's gate, up and down.
        shared: Option<[Tensor; 3]>,
    },
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
    /// Memory of attention in parts, and the blocks of a lane there.
    scratch: u64,
    blocks: u32,
    zero: u32,
}

/// Parts of `shaders/attend_parts.comp`, in order.
const ATTEND_PARTS: [u32; 4] = [0, 1, 2, 3];

/// Fewest blocks of positions for which attention is computed in parts.
const BLOCKS_MIN: usize = 4;

/// Bits of [`HeadsPush::features`].
const BIAS: u32 = 1;
const Q_NORM: u32 = 2;
const K_NORM: u32 = 4;
const GROWTH: u32 = 8;

/// Kinds of gate, up and down in a dense layer of a model of mixtures, and in a shared expert.
const DENSE: [TensorKind; 3] = [TensorKind::DenseW1, TensorKind::DenseW3, TensorKind::DenseW2];

/// Kinds of gate, up and down in `layer`.
fn feed_forward_kinds(header: &Header, layer: usize) -> [TensorKind; 3] {
    match header.is_dense(layer) {
        true => DENSE,
        false => [TensorKind::W1, TensorKind::W3, TensorKind::W2],
    }
}

/// Kinds of queries, keys, values and attention's output.
const ATTENTION: [TensorKind; 4] = [TensorKind::Wq, TensorKind::Wk, TensorKind::Wv, TensorKind::Wo];

/// Kinds of all matrices in `layer`.
pub(super) fn matrix_kinds(header: &Header, layer: usize) -> Vec<TensorKind> {
    let first = match header.mixer(layer) {
        Some(_) => recurrent::matrix_kinds(header),
        None => {
            let gates = header.features.output_gate.then_some(TensorKind::OutputGate);
            ATTENTION.into_iter().chain(gates).collect()
        }
    };
    let shared = if has_shared_expert(header, layer) { &DENSE[..] } else { &[] };
    let all = first.into_iter().chain(feed_forward_kinds(header, layer));
    all.chain(shared.iter().copied()).collect()
}

/// Whether `layer` has a shared expert beside others.
fn has_shared_expert(header: &Header, layer: usize) -> bool {
    header.features.more.parallel_ffn.is_some() && !header.is_dense(layer)
}

impl Layer {
    /// Copies the weights of `layer` to the device.
    ///
    /// # Errors
    /// If there is no room on the device, or its driver fails.
    pub(super) fn new(
        loading: &mut Loading<'_>,
        model: &Model,
        layer: usize,
    ) -> Result<Layer, GpuError> {
        let header = model.header();
        let mut tensor = |kind| {
            let (_, k) = header.held_shape(kind);
            Tensor::new(loading, &model.matrix(kind, layer), k)
        };
        let first = match header.mixer(layer) {
            Some(mixer) => {
                let kinds = recurrent::matrix_kinds(header).into_iter();
                let matrices = kinds.map(&mut tensor).collect::<Result<_, _>>()?;
                FirstHalf::Recurrence(Recurrence::new(header, mixer, matrices))
            }
            None => {
                let [wq, wk, wv, wo] = ATTENTION;
                let tensors = Box::new([tensor(wq)?, tensor(wk)?, tensor(wv)?, tensor(wo)?]);
                let gates = header.features.output_gate.then_some(TensorKind::OutputGate);
                FirstHalf::Attention { tensors, gates: gates.map(&mut tensor).transpose()? }
            }
        };
        let mut all = |[w1, w3, w2]: [TensorKind; 3]| -> Result<[Tensor; 3], GpuError> {
            Ok([tensor(w1)?, tensor(w3)?, tensor(w2)?])
        };
        let tensors = all(feed_forward_kinds(header, layer))?;
        let experts = header.features.experts.filter(|_| !header.is_dense(layer));
        let feed_forward = match experts {
            None => FeedForward::Dense(tensors),
            Some(experts) => FeedForward::Mixture {
                mixture: Box::new(Mixture { experts, tensors }),
                shared: has_shared_expert(header, layer).then(|| all(DENSE)).transpose()?,
            },
        };
        let vectors = Vectors::new(loading, model, layer)?;
        let (spec, n_heads, dim) = (header.layer(layer), header.n_heads, header.dim);
        Ok(Layer { spec, n_heads, dim, first, feed_forward, vectors })
    }

    /// Makes the pipelines that the layer needs.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn prepare(&self, pipelines: &mut Pipelines, kv: KvKind) -> Result<(), GpuError> {
        let own = [
            Shader::Norm,
            Shader::Activate(activation(self.spec.activation).0),
            Shader::Add { by_expert: false },
        ];
        own.into_iter().try_for_each(|shader| pipelines.prepare(shader).map(|_| ()))?;
        match &self.first {
            FirstHalf::Recurrence(recurrence) => recurrence.prepare(pipelines)?,
            FirstHalf::Attention { tensors, gates } => {
                let own = [Shader::Heads, Shader::Store { kv }, Shader::Attend { kv }];
                let parts = ATTEND_PARTS.map(|part| Shader::AttendPart { kv, part });
                let gate = gates.is_some().then_some(Shader::Gate(GateForm::Sigmoid));
                let mut all = own.into_iter().chain(parts).chain(gate);
                all.try_for_each(|shader| pipelines.prepare(shader).map(|_| ()))?;
                let mut tensors = tensors.iter().chain(gates);
                tensors.try_for_each(|tensor| tensor.prepare(pipelines, false))?;
            }
        }
        let dense = match &self.feed_forward {
            FeedForward::Dense(tensors) => Some(tensors),
            FeedForward::Mixture { mixture, shared } => {
                mixture.prepare(pipelines)?;
                shared.as_ref()
            }
        };
        if self.vectors.get(TensorKind::SharedGate).is_some() {
            pipelines.prepare(Shader::Gate(GateForm::OfRow))?;
        }
        let mut dense = dense.into_iter().flatten();
        dense.try_for_each(|tensor| tensor.prepare(pipelines, false))
    }

    /// Records the layer's work on the rows in `room.x`. `layer` is counted from the device's first.
    pub(super) fn record(&self, mut on: On<'_, '_>, (places, states): Kept<'_>, layer: usize) {
        match (&self.first, states) {
            (FirstHalf::Attention { tensors, gates }, _) => {
                self.attend(&mut on, (tensors, gates.as_ref()), places, layer);
            }
            (FirstHalf::Recurrence(recurrence), Some(states)) => {
                self.norm_x(&mut on, TensorKind::AttentionNorm);
                recurrence.record(&mut on, &self.vectors, states.on(layer));
                let ends = [TensorKind::Bo, TensorKind::AttentionPostNorm];
                self.project_and_add(&mut on, &recurrence.out, ends);
            }
            (FirstHalf::Recurrence(_), None) => unreachable!("recurrent layers have states"),
        }
        let room = on.room;
        self.norm_x(&mut on, TensorKind::FfnNorm);
        let activation = self.spec.activation;
        match &self.feed_forward {
            FeedForward::Dense([gate, up, down]) => {
                on.project(&[gate, up], room.gate_up.address, false);
                self.add_bias(&mut on, TensorKind::B1, room.gate_up.address, 2 * gate.rows);
                on.activate(activation, gate.rows, on.m);
                self.project_and_add(&mut on, down, [TensorKind::B2, TensorKind::FfnPostNorm]);
            }
            FeedForward::Mixture { mixture, shared } => {
                if let Some(shared) = shared {
                    self.record_shared(&mut on, shared);
                    self.norm_x(&mut on, TensorKind::FfnNorm);
                }
                mixture.record(&mut on, &self.vectors, activation);
                if shared.is_some() {
                    let rows = (room.delta.address, room.experts.shared.address);
                    on.add(rows, self.dim, self.dim, 1.0);
                }
                self.add_delta(&mut on, TensorKind::FfnPostNorm);
            }
        }
    }

    /// Records the update of the layer's states by rows of journals, if it is recurrent.
    pub(super) fn replay(&self, mut on: On<'_, '_>, states: &DeviceStates, layer: usize) {
        if let FirstHalf::Recurrence(recurrence) = &self.first {
            recurrence.replay(&mut on, &self.vectors, states.on(layer));
        }
    }

    /// Writes a shared expert's output, times the sigmoid of its gate if it has one, to its room.
    fn record_shared(&self, on: &mut On<'_, '_>, [gate, up, down]: &[Tensor; 3]) {
        let (room, dim) = (on.room, self.dim);
        let (shared, gates) = (&room.experts.shared, &room.experts.shared_gates);
        let factors = self.vectors.get(TensorKind::SharedGate);
        if let Some(row) = factors {
            on.project_f32((row, [1, dim]), gates.address);
        }
        on.project(&[gate, up], room.gate_up.address, false);
        on.activate(self.spec.activation, gate.rows, on.m);
        on.project(&[down], shared.address, false);
        if factors.is_some() {
            let x = (shared.address, dim, 0);
            on.gate(GateForm::OfRow, Gates { x, gates: (gates.address, 1, 0), y: x }, dim);
        }
    }

    fn attend(
        &self,
        on: &mut On<'_, '_>,
        ([wq, wk, wv, wo], gates): (&[Tensor; 4], Option<&Tensor>),
        places: &Places,
        layer: usize,
    ) {
        let (room, spec) = (on.room, &self.spec);
        self.norm_x(on, TensorKind::AttentionNorm);
        on.project(&[wq, wk, wv], room.mix.projected.address, false);
        if let Some(gates) = gates {
            on.project(&[gates], room.mix.gates.address, false);
        }
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
        let (qkv, kind) = (room.mix.projected.address, places.kind);
        let push = StorePush { qkv, kv, sizes, zero: 0 };
        on.recorder.dispatch(Shader::Store { kv: kind }, &push, [2 * spec.n_kv_heads, on.m]);
        self.attend_to(on, &self.attend_push(on, (kv, sizes)), kind);
        if gates.is_some() {
            let width = self.n_heads * spec.head_dim;
            let row = |address| (address, width, 0);
            let (x, gates) = (row(room.inputs.address), row(room.mix.gates.address));
            on.gate(GateForm::Sigmoid, Gates { x, gates, y: x }, width);
        }
        self.project_and_add(on, wo, [TensorKind::Bo, TensorKind::AttentionPostNorm]);
    }

    fn attend_push(&self, on: &On<'_, '_>, (kv, sizes): (KvPush, SizesPush)) -> AttendPush {
        let (room, spec) = (on.room, &self.spec);
        let sinks = self.vectors.get(TensorKind::Sinks);
        AttendPush {
            qkv: room.mix.projected.address,
            y: room.inputs.address,
            sinks: sinks.unwrap_or(0),
            kv,
            sizes,
            window: spec.window.map_or(0, |window| u32::try_from(window).unwrap_or(0)),
            scale: spec.attention_scale,
            has_sinks: u32::from(sinks.is_some()),
            scratch: room.attention.memory.address,
            blocks: room.attention.blocks as u32,
            zero: 0,
        }
    }

    /// Attention: of many rows beside each other, of few rows to many positions with blocks beside each other.
    fn attend_to(&self, on: &mut On<'_, '_>, push: &AttendPush, kv: KvKind) {
        if on.m > on.room.attention.rows || on.blocks < BLOCKS_MIN {
            on.recorder.dispatch(Shader::Attend { kv }, push, [self.n_heads, on.m]);
            return;
        }
        let lanes = self.n_heads * on.m;
        for (part, groups) in ATTEND_PARTS.into_iter().zip([true, false, true, false]) {
            let groups = if groups { [on.blocks, lanes] } else { [lanes, 1] };
            on.recorder.dispatch(Shader::AttendPart { kv, part }, push, groups);
        }
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
            qkv: room.mix.projected.address,
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

    /// Writes the norm of the rows in `room.x` to the inputs.
    fn norm_x(&self, on: &mut On<'_, '_>, kind: TensorKind) {
        self.norm(on, kind, (on.room.x.address, on.room.inputs.address));
    }

    fn norm(&self, on: &mut On<'_, '_>, kind: TensorKind, (x, y): (u64, u64)) {
        let weight = self.vectors.get(kind).unwrap_or(0);
        on.norm((x, weight, y), (self.dim, self.spec.norm_eps), ([on.m, 1], 0));
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
        let (room, dim) = (on.room, self.dim);
        let mut delta = room.delta.address;
        if self.vectors.get(norm).is_some() {
            self.norm(on, norm, (delta, room.inputs.address));
            delta = room.inputs.address;
        }
        on.add((room.x.address, delta), dim, dim, self.spec.residual_scale);
    }
}
