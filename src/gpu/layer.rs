//! One layer on a device: its weights, and the order of its shaders.

use bytemuck::{Pod, Zeroable};

use super::error::GpuError;
use super::mixture::Mixture;
use super::pipelines::{Pipelines, Shader};
use super::places::Places;
use super::record::{On, activation};
use super::tensors::{Loading, Tensor};
use super::vectors::Vectors;
use crate::format::model::{Header, LayerSpec, TensorKind};
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
        loading: &mut Loading<'_>,
        model: &Model,
        layer: usize,
    ) -> Result<Layer, GpuError> {
        let header = model.header();
        let mut tensor = |kind| {
            let (_, k) = header.held_shape(kind);
            Tensor::new(loading, &model.matrix(kind, layer), k)
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
        let vectors = Vectors::new(loading, model, layer)?;
        let (spec, n_heads) = (header.layer(layer), header.n_heads);
        Ok(Layer { spec, n_heads, attention, feed_forward, vectors })
    }

    /// Makes the pipelines that the layer needs.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn prepare(&self, pipelines: &mut Pipelines, kv: KvKind) -> Result<(), GpuError> {
        let own = [
            Shader::Norm,
            Shader::Heads,
            Shader::Store { kv },
            Shader::Attend { kv },
            Shader::Activate(activation(self.spec.activation).0),
            Shader::Add { by_expert: false },
        ];
        let parts = ATTEND_PARTS.map(|part| Shader::AttendPart { kv, part });
        let mut all = own.into_iter().chain(parts);
        all.try_for_each(|shader| pipelines.prepare(shader).map(|_| ()))?;
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
        let (qkv, kind) = (room.qkv.address, places.kind);
        let push = StorePush { qkv, kv, sizes, zero: 0 };
        on.recorder.dispatch(Shader::Store { kv: kind }, &push, [2 * spec.n_kv_heads, on.m]);
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
            scratch: room.attention.memory.address,
            blocks: room.attention.blocks as u32,
            zero: 0,
        };
        self.attend_to(on, &push, kind);
        self.project_and_add(on, wo, [TensorKind::Bo, TensorKind::AttentionPostNorm]);
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
