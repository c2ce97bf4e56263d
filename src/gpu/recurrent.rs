//! A recurrent layer on a device, in the order of `model/recurrent.rs`: from the layer's norm to the inputs of the output
//! projection.

use bytemuck::{Pod, Zeroable};

use super::error::GpuError;
use super::pipelines::{GateForm, Pipelines, Shader};
use super::record::{Gates, On};
use super::states::StatesOn;
use super::tensors::Tensor;
use super::vectors::Vectors;
use crate::format::model::{DeltaRule, Header, Mixer, StateSpace, TensorKind};
use crate::model::REWIND_ROWS;

/// Added to the sum of squares of a key or query before it is normalised.
const NORM_EPS: f32 = 1e-6;

/// The projections of a recurrent layer.
pub(super) struct Recurrence {
    mixer: Mixer,
    dim: usize,
    norm_eps: f32,
    /// To the inputs of the convolution, and to the gate of the output if there is one.
    inputs: Vec<Tensor>,
    /// The output projection.
    pub(super) out: Tensor,
}

/// Where the inputs of the convolution and the controls lie.
#[derive(Clone, Copy)]
struct Source {
    inputs: u64,
    /// Values of a row of inputs, and the first of its channels.
    width: usize,
    column: usize,
    controls: u64,
    controls_width: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct ControlsPush {
    pub(super) x: u64,
    pub(super) decay: u64,
    pub(super) bias: u64,
    pub(super) n: u32,
    pub(super) n_strengths: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ConvolvePush {
    inputs: u64,
    states: u64,
    tables: [u64; 2],
    taps: u64,
    bias: u64,
    y: u64,
    channels: u32,
    width: u32,
    column: u32,
    slot_len: u32,
    n_taps: u32,
    features: u32,
}

/// Bits of [`ConvolvePush::features`].
const BIAS: u32 = 1;
const ACTIVATED: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct KeepPush {
    inputs: u64,
    controls: u64,
    journals: u64,
    states: StatesPush,
    channels: u32,
    width: u32,
    column: u32,
    slot_len: u32,
    n_kept: u32,
    n_controls: u32,
    journal_rows: u32,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct KeysPush {
    x: u64,
    overlaps: u64,
    channels: u32,
    heads: u32,
    head_dim: u32,
    eps: f32,
    query_scale: f32,
    key_scale: f32,
}

/// Where a layer's states lie, and the tables of runs.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StatesPush {
    states: u64,
    tables: [u64; 2],
}

/// Sizes of rows, slots and units.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct SizesPush {
    channels: u32,
    controls_width: u32,
    slot_len: u32,
    history_len: u32,
    columns: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct DeltaPush {
    convolved: u64,
    controls: u64,
    overlaps: u64,
    outputs: u64,
    states: StatesPush,
    sizes: SizesPush,
    key_heads: u32,
    key_dim: u32,
    heads: u32,
    value_dim: u32,
    is_tiled: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ScanPush {
    convolved: u64,
    controls: u64,
    decays: u64,
    skips: u64,
    outputs: u64,
    states: StatesPush,
    sizes: SizesPush,
    heads: u32,
    head_dim: u32,
    groups: u32,
    state_dim: u32,
    zero: u32,
}

/// Kinds of the matrices of a recurrent layer: its inputs and gate, as far as it has them, and its output.
pub(super) fn matrix_kinds(header: &Header) -> Vec<TensorKind> {
    let kinds = [TensorKind::MixIn, TensorKind::MixGate, TensorKind::MixOut];
    kinds.into_iter().filter(|kind| header.has(*kind)).collect()
}

impl Recurrence {
    /// A layer with these matrices, in the order of [`matrix_kinds`].
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn new(header: &Header, mixer: Mixer, mut matrices: Vec<Tensor>) -> Recurrence {
        let out = matrices.pop().expect("every recurrent layer has an output projection");
        let Header { dim, norm_eps, .. } = *header;
        Recurrence { mixer, dim, norm_eps, inputs: matrices, out }
    }

    /// Makes the pipelines that the layer needs.
    ///
    /// # Errors
    /// If the driver fails.
    pub(super) fn prepare(&self, pipelines: &mut Pipelines) -> Result<(), GpuError> {
        let own: &[Shader] = match self.mixer {
            Mixer::ShortConv { .. } => &[Shader::Gate(GateForm::Plain)],
            Mixer::DeltaRule(_) => &[Shader::Keys, Shader::Delta, Shader::Gate(GateForm::Silu)],
            Mixer::StateSpace(_) => &[Shader::Scan, Shader::Gate(GateForm::Silu)],
        };
        let controls = Shader::ProductF32 { by_expert: false };
        let all = [Shader::Convolve, Shader::Keep, Shader::Controls, controls];
        let mut all = all.iter().chain(own);
        all.try_for_each(|shader| pipelines.prepare(*shader).map(|_| ()))?;
        let mut tensors = self.inputs.iter().chain([&self.out]);
        tensors.try_for_each(|tensor| tensor.prepare(pipelines, false))
    }

    /// Records the layer's work on the normalised rows in `room.inputs`, and writes the inputs of the output projection
    /// there.
    pub(super) fn record(&self, on: &mut On<'_, '_>, vectors: &Vectors, states: StatesOn<'_>) {
        let (mix, dim) = (&on.room.mix, self.dim);
        let all: Vec<&Tensor> = self.inputs.iter().collect();
        on.project(&all, mix.projected.address, false);
        self.control(on, vectors);
        let width = self.inputs.iter().map(|matrix| matrix.rows).sum();
        let mut column = 0;
        if let Mixer::ShortConv { .. } = self.mixer {
            let row = |column| (mix.projected.address, width, column);
            column = 2 * dim;
            on.gate(GateForm::Plain, Gates { x: row(column), gates: row(0), y: row(column) }, dim);
        }
        let source = Source {
            inputs: mix.projected.address,
            width,
            column,
            controls: mix.controls.address,
            controls_width: self.mixer.n_controls(),
        };
        self.update(on, vectors, states, source);
        self.end(on, vectors, width);
    }

    /// Records the update of states by rows of journals.
    pub(super) fn replay(&self, on: &mut On<'_, '_>, vectors: &Vectors, states: StatesOn<'_>) {
        let width = states.shape.journal_width();
        let source = Source {
            inputs: states.journals,
            width,
            column: 0,
            controls: states.journals + 4 * states.shape.channels as u64,
            controls_width: width,
        };
        self.update(on, vectors, states, source);
    }

    /// Computes the values that steer the updates.
    fn control(&self, on: &mut On<'_, '_>, vectors: &Vectors) {
        let n = self.mixer.n_controls();
        if n == 0 {
            return;
        }
        let address = |kind| vectors.get(kind).unwrap_or(0);
        let x = on.room.mix.controls.address;
        on.project_f32((address(TensorKind::MixControls), [n, self.dim]), x);
        let push = ControlsPush {
            x,
            decay: address(TensorKind::MixDecay),
            bias: address(TensorKind::MixStepBias),
            n: n as u32,
            n_strengths: (n - self.mixer.state_heads()) as u32,
        };
        on.recorder.dispatch(Shader::Controls, &push, [n.div_ceil(64), on.m]);
    }

    /// Convolves the rows of `source`, and takes each run's state from its slot to the next.
    fn update(&self, on: &mut On<'_, '_>, vectors: &Vectors, states: StatesOn<'_>, source: Source) {
        let StatesOn { shape, n_rows, n_runs, .. } = states;
        let (channels, slot_len) = (shape.channels, shape.part_len() as u32);
        let bias = vectors.get(TensorKind::MixConvBias);
        let is_activated = !matches!(self.mixer, Mixer::ShortConv { .. });
        let push = ConvolvePush {
            inputs: source.inputs,
            states: states.slots,
            tables: states.tables,
            taps: vectors.get(TensorKind::MixConv).unwrap_or(0),
            bias: bias.unwrap_or(0),
            y: on.room.mix.convolved.address,
            channels: channels as u32,
            width: source.width as u32,
            column: source.column as u32,
            slot_len,
            n_taps: self.mixer.taps() as u32,
            features: BIAS * u32::from(bias.is_some()) + ACTIVATED * u32::from(is_activated),
        };
        on.recorder.dispatch(Shader::Convolve, &push, [channels.div_ceil(64), n_rows]);
        let n_controls = self.mixer.n_controls();
        let push = KeepPush {
            inputs: source.inputs,
            controls: source.controls,
            journals: states.journals,
            states: StatesPush { states: states.slots, tables: states.tables },
            channels: channels as u32,
            width: source.width as u32,
            column: source.column as u32,
            slot_len,
            n_kept: self.mixer.taps() as u32 - 1,
            n_controls: n_controls as u32,
            journal_rows: REWIND_ROWS as u32,
            zero: 0,
        };
        let groups = [(channels + n_controls).div_ceil(64), n_runs];
        on.recorder.dispatch(Shader::Keep, &push, groups);
        match self.mixer {
            Mixer::ShortConv { .. } => {}
            Mixer::DeltaRule(rule) => self.update_by_delta(on, states, (rule, source)),
            Mixer::StateSpace(space) => self.scan(on, vectors, states, (space, source)),
        }
    }

    fn update_by_delta(
        &self,
        on: &mut On<'_, '_>,
        states: StatesOn<'_>,
        (rule, source): (DeltaRule, Source),
    ) {
        let (mix, DeltaRule { key_heads, key_dim, .. }) = (&on.room.mix, rule);
        let root = (key_dim as f32).sqrt();
        let push = KeysPush {
            x: mix.convolved.address,
            overlaps: mix.overlaps.address,
            channels: states.shape.channels as u32,
            heads: key_heads as u32,
            head_dim: key_dim as u32,
            eps: NORM_EPS / key_dim as f32,
            query_scale: 1.0 / (root * root),
            key_scale: 1.0 / root,
        };
        on.recorder.dispatch(Shader::Keys, &push, [key_heads, states.n_rows]);
        let push = DeltaPush {
            convolved: mix.convolved.address,
            controls: source.controls,
            overlaps: mix.overlaps.address,
            outputs: mix.outputs.address,
            states: StatesPush { states: states.slots, tables: states.tables },
            sizes: SizesPush::of(states, source),
            key_heads: key_heads as u32,
            key_dim: key_dim as u32,
            heads: rule.value_heads as u32,
            value_dim: rule.value_dim as u32,
            is_tiled: u32::from(rule.is_tiled),
        };
        on.recorder.dispatch(Shader::Delta, &push, [states.shape.units(), states.n_runs]);
    }

    fn scan(
        &self,
        on: &mut On<'_, '_>,
        vectors: &Vectors,
        states: StatesOn<'_>,
        (space, source): (StateSpace, Source),
    ) {
        let mix = &on.room.mix;
        let push = ScanPush {
            convolved: mix.convolved.address,
            controls: source.controls,
            decays: vectors.get(TensorKind::MixDecay).unwrap_or(0),
            skips: vectors.get(TensorKind::MixSkip).unwrap_or(0),
            outputs: mix.outputs.address,
            states: StatesPush { states: states.slots, tables: states.tables },
            sizes: SizesPush::of(states, source),
            heads: space.heads as u32,
            head_dim: space.head_dim as u32,
            groups: space.groups as u32,
            state_dim: space.state_dim as u32,
            zero: 0,
        };
        on.recorder.dispatch(Shader::Scan, &push, [states.shape.units(), states.n_runs]);
    }

    /// Norms and gates of the recurrence's outputs. `width` is that of a row of projections.
    fn end(&self, on: &mut On<'_, '_>, vectors: &Vectors, width: usize) {
        let (mix, inputs, m) = (&on.room.mix, on.room.inputs.address, on.m);
        let [projected, outputs] = [&mix.projected, &mix.outputs].map(|memory| memory.address);
        let (channels, out_cols) = (self.mixer.channels(self.dim), self.mixer.out_cols(self.dim));
        let weight = vectors.get(TensorKind::MixNorm).unwrap_or(0);
        let gates = (projected, width, channels);
        let (x, y) = ((outputs, out_cols, 0), (inputs, out_cols, 0));
        match self.mixer {
            Mixer::ShortConv { .. } => {
                let x = (mix.convolved.address, channels, 0);
                let gates = (projected, width, self.dim);
                on.gate(GateForm::Plain, Gates { x, gates, y }, out_cols);
            }
            Mixer::DeltaRule(DeltaRule { value_heads, value_dim, .. }) => {
                let of = (value_dim, self.norm_eps);
                on.norm((outputs, weight, outputs), of, ([m, value_heads], 0));
                on.gate(GateForm::Silu, Gates { x, gates, y }, out_cols);
            }
            Mixer::StateSpace(StateSpace { groups, .. }) => {
                on.gate(GateForm::Silu, Gates { x, gates, y }, out_cols);
                let n = out_cols / groups;
                on.norm((inputs, weight, inputs), (n, self.norm_eps), ([m, groups], n));
            }
        }
    }
}

impl SizesPush {
    fn of(StatesOn { shape, .. }: StatesOn<'_>, source: Source) -> SizesPush {
        SizesPush {
            channels: shape.channels as u32,
            controls_width: source.controls_width as u32,
            slot_len: shape.part_len() as u32,
            history_len: shape.history_len() as u32,
            columns: shape.columns() as u32,
        }
    }
}
