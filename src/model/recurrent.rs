//! Recurrent layers of a batch: each row updates its stream's state, in the order of positions.
//!
//! Rows are independent up to the convolution, and again behind the recurrence. In between, a state's columns are: one
//! thread takes a unit of columns through all rows of the batch.

use std::ops::Range;

use super::Matrix;
use super::batch::Span;
use super::buffers::Buffers;
use super::inputs::Inputs;
use super::pass::Pass;
use super::project::{Fill, MATRICES_MAX, Projector};
use super::recurrent_buffers::{MixBuffers, RecurrentBuffers};
use super::state::{HalfRun, Replay, Run, StateShape, States};
use super::zeros::zeros;
use crate::format::model::{MixRows, Mixer, TAPS_MAX, TensorKind};
use crate::kernels::{Convolution, DeltaStep, Kernels, MatrixDims, ScanStep};
use crate::pool::{Chunks, Pool};

/// Added to the sum of squares of a key or query before it is normalised.
const NORM_EPS: f32 = 1e-6;

/// Largest width of a key, query or value.
const HEAD_MAX: usize = 512;

/// Tokens that go to a kernel at a time.
const STEPS: usize = 32;

/// The recurrent layer of one batch, or of a replay.
struct Recurrence<'a> {
    kernels: &'a Kernels,
    shape: StateShape,
    weights: MixWeights<'a>,
    /// Rows of the batch, or of the journal.
    rows: Rows<'a>,
    runs: &'a [Run],
    spans: &'a [Span],
    /// Rows of the batch that are computed: a half, or all.
    half: Range<usize>,
}

/// Weights of the convolution and of the recurrence, for all channels and heads of the layer.
#[derive(Clone, Copy)]
struct MixWeights<'a> {
    convolution: Convolution<'a>,
    /// Decay and skip of each head of a state space; empty for other forms.
    factors: [&'a [f32]; 2],
}

/// Inputs of the convolution, and controls, row by row.
#[derive(Clone, Copy)]
struct Rows<'a> {
    inputs: &'a [f32],
    /// Values of a row of `inputs`, and the first of its channels.
    width: usize,
    at: usize,
    controls: &'a [f32],
    /// Values of a row of `controls`, and the first of the controls in it.
    controls_width: usize,
    controls_at: usize,
}

impl<'a> Rows<'a> {
    fn inputs(&self, row: usize, channels: usize) -> &'a [f32] {
        &self.inputs[row * self.width + self.at..][..channels]
    }

    fn controls(&self, row: usize, n: usize) -> &'a [f32] {
        &self.controls[row * self.controls_width + self.controls_at..][..n]
    }
}

impl Pass<'_> {
    /// Makes the states that the batch continues from and that are not there yet.
    pub(super) fn replay(&self, states: &States, buffers: &mut Buffers<'_>) {
        if states.replays().is_empty() || states.shape.channels == 0 {
            return;
        }
        for layer in self.model.share().layers.clone() {
            if self.model.header().mixer(layer).is_some() {
                states
                    .replays()
                    .iter()
                    .for_each(|replay| self.replay_in(layer, *replay, states, buffers));
            }
        }
    }

    fn replay_in(&self, layer: usize, replay: Replay, states: &States, buffers: &mut Buffers<'_>) {
        let Replay { stream, from, to, n_rows } = replay;
        let (shape, index) = (states.shape, states.index(layer - self.model.share().layers.start));
        let RecurrentBuffers { rows: mix, matrices, histories, journal } = &mut buffers.recurrent;
        let at = index * shape.journals_of_layer() + stream * shape.journal_len();
        let (width, n) = (shape.journal_width(), shape.n_controls());
        let inputs = &journal[at..][..shape.journal_len()];
        let rows = Rows {
            inputs,
            width,
            at: 0,
            controls: inputs,
            controls_width: width,
            controls_at: width - n,
        };
        let run = Run { stream, spans: 0..1, rows: 0..n_rows, from, to, is_journaled: false };
        let span = Span { n_rows, ..Span::EMPTY };
        let recurrence = Recurrence {
            kernels: self.kernels,
            shape,
            weights: self.mix_weights(layer, shape.mixer),
            rows,
            runs: &[run],
            spans: &[span],
            half: 0..n_rows,
        };
        let values = (index, &mut **matrices, &mut **histories);
        recurrence.run(self.pool, values, (mix.convolved, mix.outputs));
    }

    /// Computes a recurrent layer, and adds its output to `x`.
    pub(super) fn recur(&self, layer: usize, states: &States, buffers: &mut Buffers<'_>) {
        self.project_mix(layer, states.shape, buffers);
        self.advance(layer, states, buffers);
        self.project_mixed(layer, states.shape, buffers);
        self.add_attention(layer, buffers);
    }

    /// Takes the states of a recurrent layer through the rows, from their projections to the recurrence's outputs.
    pub(super) fn advance(&self, layer: usize, states: &States, buffers: &mut Buffers<'_>) {
        let shape = states.shape;
        if shape.channels == 0 {
            return;
        }
        let index = states.index(layer - self.model.share().layers.start);
        let RecurrentBuffers { rows: mix, matrices, histories, journal } = &mut buffers.recurrent;
        let (width, channels) = (shape.in_width(), shape.channels);
        let at = match shape.mixer {
            Mixer::ShortConv { .. } => {
                let rows = Chunks::new(&mut mix.projected[..self.m * width], width);
                self.pool.run_chunks(rows, &|_, row| {
                    let (gates, x) = row.split_at_mut(2 * channels);
                    x.iter_mut().zip(gates).for_each(|(x, gate)| *x *= *gate);
                });
                2 * channels
            }
            Mixer::DeltaRule(_) | Mixer::StateSpace(_) => 0,
        };
        let rows = Rows {
            inputs: mix.projected,
            width,
            at,
            controls: mix.controls,
            controls_width: shape.n_controls(),
            controls_at: 0,
        };
        let recurrence = Recurrence {
            kernels: self.kernels,
            shape,
            weights: self.mix_weights(layer, shape.mixer),
            rows,
            runs: states.runs(),
            spans: self.spans,
            half: self.first..self.first + self.m,
        };
        let values = (index, &mut **matrices, &mut **histories);
        recurrence.run(self.pool, values, (mix.convolved, mix.outputs));
        recurrence.write_journal(index, journal);
    }

    fn mix_weights(&self, layer: usize, mixer: Mixer) -> MixWeights<'_> {
        let vector = |kind| self.model.vector(kind, layer);
        let is_space = matches!(mixer, Mixer::StateSpace(_));
        let kinds = [TensorKind::MixDecay, TensorKind::MixSkip];
        MixWeights {
            convolution: Convolution {
                taps: vector(TensorKind::MixConv),
                stride: self.model.header().shape(TensorKind::MixConv).1,
                bias: is_space.then(|| vector(TensorKind::MixConvBias)),
                is_activated: !matches!(mixer, Mixer::ShortConv { .. }),
            },
            factors: if is_space { kinds.map(vector) } else { [&[]; 2] },
        }
    }

    /// Projects the outputs of the recurrence to `delta`.
    fn project_mixed(&self, layer: usize, shape: StateShape, buffers: &mut Buffers<'_>) {
        let ends = self.mix_ends(layer, shape);
        let Buffers { recurrent, inputs, delta, .. } = buffers;
        let fill = |row: usize, out: &mut [f32]| {
            ends.write(&recurrent.rows, row, out);
            ends.normalise(out);
        };
        let (projector, out) = (self.projector(), self.rows(TensorKind::MixOut, layer));
        let dims = MatrixDims { rows: self.m, k: shape.out_width() };
        let id = (TensorKind::MixOut, 0);
        let fill = self.watcher(layer).tell(id, (inputs.f32, dims), self.pool, Some(&fill));
        let inputs = projector.prepare(inputs, dims, &out, fill);
        projector.project(inputs, &[out], delta);
    }

    /// Writes the inputs of the output projection that follow from this node's parts of a recurrent layer to `part`. In a
    /// state space their norm is missing: it takes values of all nodes.
    pub(super) fn end_parts(&self, layer: usize, shape: StateShape, buffers: &mut Buffers<'_>) {
        let width = shape.out_width();
        if width == 0 {
            return;
        }
        let (ends, Buffers { recurrent, part, .. }) = (self.mix_ends(layer, shape), buffers);
        let rows = Chunks::new(&mut part[..self.m * width], width);
        self.pool.run_chunks(rows, &|row, out| ends.write(&recurrent.rows, row, out));
    }

    /// Normalises the gathered inputs of a state space's output projection.
    pub(super) fn normalise_mixed(
        &self,
        layer: usize,
        shape: StateShape,
        buffers: &mut Buffers<'_>,
    ) {
        let Mixer::StateSpace(space) = shape.parts.whole() else { return };
        let ends = self.mix_ends(layer, shape);
        let rows = Chunks::new(&mut buffers.acts[..self.m * space.inner()], space.inner());
        self.pool.run_chunks(rows, &|_, row| ends.normalise(row));
    }

    fn mix_ends(&self, layer: usize, shape: StateShape) -> MixEnds<'_> {
        let header = self.model.header();
        let norm = header.has(TensorKind::MixNorm).then_some(TensorKind::MixNorm);
        MixEnds {
            kernels: self.kernels,
            shape,
            in_width: shape.in_width(),
            norm: norm.map(|kind| self.model.vector(kind, layer)),
            norm_eps: header.norm_eps,
            m: self.m,
        }
    }

    /// Projects the rows to the inputs of the convolution, to the output's gate, and to controls; in a team, to those of
    /// this node's parts, and to all controls.
    pub(super) fn project_mix(&self, layer: usize, shape: StateShape, buffers: &mut Buffers<'_>) {
        let header = self.model.header();
        let projector = self.projector();
        let norm = self.norm((TensorKind::AttentionNorm, layer), header.norm_eps);
        let dims = MatrixDims { rows: self.m, k: header.dim };
        let Buffers { x, inputs, recurrent: RecurrentBuffers { rows: mix, .. }, .. } = buffers;
        let x = &**x;
        let fill = |row: usize, out: &mut [f32]| norm(x, row, out);
        let kinds = [TensorKind::MixIn, TensorKind::MixGate];
        let kinds = kinds.into_iter().filter(|kind| header.has(*kind));
        let matrices: heapless::Vec<Matrix<'_>, MATRICES_MAX> =
            kinds.flat_map(|kind| self.row_ranges(kind, layer)).collect();
        // A node of a team may have no parts.
        let Some(first) = matrices.first().filter(|_| shape.channels > 0) else { return };
        let id = (TensorKind::MixIn, 0);
        let told = self.watcher(layer).tell(id, (inputs.f32, dims), self.pool, Some(&fill));
        let prepared = projector.prepare(inputs, dims, first, told);
        projector.project(prepared, &matrices, mix.projected);
        if shape.n_controls() > 0 {
            self.project_controls(layer, (projector, &fill), (inputs, mix.controls));
        }
    }

    fn project_controls(
        &self,
        layer: usize,
        (projector, fill): (Projector<'_>, Fill<'_>),
        (inputs, controls): (&mut Inputs<'_>, &mut [f32]),
    ) {
        let dims = MatrixDims { rows: self.m, k: self.model.header().dim };
        let vector = |kind| self.model.vector(kind, layer);
        let matrix = Matrix::F32 { w: vector(TensorKind::MixControls), k: dims.k };
        let prepared = projector.prepare(inputs, dims, &matrix, Some(fill));
        projector.project(prepared, &[matrix], controls);
        let (decay, bias) = (vector(TensorKind::MixDecay), vector(TensorKind::MixStepBias));
        let n = self.model.header().shape(TensorKind::MixControls).0;
        for row in controls[..self.m * n].chunks_exact_mut(n) {
            match n == bias.len() {
                true => self.kernels.steps(row, bias),
                false => self.kernels.delta_controls(row, decay, bias),
            }
        }
    }
}

impl Recurrence<'_> {
    /// Parts of the runs in the rows that are computed.
    fn half_runs(&self) -> impl Iterator<Item = HalfRun<'_>> {
        self.runs.iter().filter_map(|run| run.in_half(&self.half))
    }

    /// Convolves the rows, and takes each run's state from its slot `from` to its slot `to`.
    fn run(
        &self,
        pool: &Pool,
        (index, matrices, histories): (usize, &mut [f32], &mut [f32]),
        (convolved, outputs): (&mut [f32], &mut [f32]),
    ) {
        let of_layer = self.shape.histories_of_layer();
        let histories = &mut histories[index * of_layer..][..of_layer];
        self.convolve(pool, histories, convolved);
        self.write_histories(histories);
        if self.shape.mixer.state_heads() == 0 {
            return;
        }
        let of_layer = self.shape.matrices_of_layer();
        let matrices = &mut matrices[index * of_layer..][..of_layer];
        self.update(pool, (matrices, convolved, outputs));
    }

    fn convolve(&self, pool: &Pool, histories: &[f32], convolved: &mut [f32]) {
        let channels = self.shape.channels;
        let rows = Chunks::new(&mut convolved[..self.half.len() * channels], channels);
        pool.run_chunks(rows, &|row, out| {
            let Some(of_half) = self.half_runs().find(|of_half| of_half.rows.contains(&row)) else {
                return;
            };
            let n = self.shape.mixer.taps();
            let input =
                |tap: usize| self.input(&of_half, histories, (row + tap + 1).wrapping_sub(n));
            let inputs: heapless::Vec<&[f32], TAPS_MAX> = (0..n).map(input).collect();
            self.convolve_row(&inputs, out);
            let Mixer::DeltaRule(rule) = self.shape.mixer else { return };
            let (queries, keys) = out[..2 * rule.keys()].split_at_mut(rule.keys());
            let root = (rule.key_dim as f32).sqrt();
            normalise(self.kernels, queries, rule.key_dim, 1.0 / (root * root));
            normalise(self.kernels, keys, rule.key_dim, 1.0 / root);
        });
    }

    /// Convolves `inputs`, the oldest first, of this node's channels.
    fn convolve_row(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let convolution @ Convolution { taps, bias, .. } = self.weights.convolution;
        let mut first = 0;
        for channels in self.shape.parts.ranges(MixRows::Channels) {
            let own = first..first + channels.len();
            let inputs = inputs.iter().map(|x| &x[own.clone()]);
            let inputs: heapless::Vec<&[f32], TAPS_MAX> = inputs.collect();
            let (taps, bias) = (&taps[channels.start..], bias.map(|bias| &bias[channels]));
            let own = &mut out[own];
            first += own.len();
            self.kernels.convolve(&inputs, Convolution { taps, bias, ..convolution }, own);
        }
    }

    /// The inputs of the convolution in `row`, which is a row of `of_half` or, wrapping below 0, one before it.
    fn input<'s>(&'s self, of_half: &HalfRun<'_>, histories: &'s [f32], row: usize) -> &'s [f32] {
        let channels = self.shape.channels;
        let after_first = row.wrapping_sub(of_half.rows.start) as isize;
        if after_first >= 0 {
            return self.rows.inputs(row, channels);
        }
        let kept = self.shape.mixer.taps() as isize - 1;
        // The slot behind the others has the zeros before a text.
        let slot = of_half.from.unwrap_or(self.shape.n_slots());
        let at = slot * self.shape.history_len() + (kept + after_first) as usize * channels;
        &histories[at..][..channels]
    }

    /// Writes the histories behind each run, and those of its checkpoints.
    fn write_histories(&self, histories: &mut [f32]) {
        let (channels, len) = (self.shape.channels, self.shape.history_len());
        let kept = self.shape.mixer.taps() - 1;
        for of_half in self.half_runs() {
            let HalfRun { run, ref rows, from, .. } = of_half;
            let parts = of_half.parts(self.spans, &self.shape);
            let parts = parts.filter_map(|(end, slot)| slot.map(|slot| (end, slot)));
            // A run's own history comes last: it may lie where the old one does.
            for (end, slot) in parts.chain([(rows.end, run.to)]) {
                for index in 0..kept {
                    let row = (end + index).wrapping_sub(kept);
                    let to = slot * len + index * channels;
                    let before = rows.start.wrapping_sub(row) as isize;
                    if before <= 0 {
                        histories[to..to + channels]
                            .copy_from_slice(self.rows.inputs(row, channels));
                        continue;
                    }
                    let slot = from.unwrap_or(self.shape.n_slots());
                    let from = slot * len + (kept - before as usize) * channels;
                    histories.copy_within(from..from + channels, to);
                }
            }
        }
    }

    /// Updates the matrices, and writes the outputs of the recurrence.
    fn update(&self, pool: &Pool, values: (&mut [f32], &[f32], &mut [f32])) {
        let (matrices, convolved, outputs) = values;
        let columns = self.shape.columns();
        let of_rows = (self.half.len() * columns).max(1);
        let units = Chunks::new(matrices, self.shape.slots_of_unit());
        if self.half.is_empty() {
            // Only copies are asked for.
            return pool.run_chunks(units, &|_, slots| self.copy_unit(slots));
        }
        let outputs = Chunks::new(&mut outputs[..self.shape.units() * of_rows], of_rows);
        pool.run_chunks((units, outputs), &|unit, (slots, out)| {
            self.copy_unit(slots);
            let unit = self.unit(unit, convolved);
            self.half_runs().for_each(|of_half| self.update_unit(&unit, &of_half, slots, out));
        });
    }

    fn unit<'u>(&'u self, index: usize, convolved: &'u [f32]) -> Unit<'u> {
        let of_head = self.shape.units_of_head();
        let (head, first) = (index / of_head, index % of_head * self.shape.columns());
        let places = match self.shape.mixer {
            Mixer::ShortConv { .. } => Places::default(),
            Mixer::DeltaRule(rule) => {
                let query = rule.key_head(head) * rule.key_dim;
                let value = 2 * rule.keys() + head * rule.value_dim + first;
                Places { value, rows: [query, rule.keys() + query] }
            }
            Mixer::StateSpace(space) => {
                let write = space.inner() + self.shape.parts.group(head) * space.state_dim;
                let read = write + space.groups * space.state_dim;
                Places { value: head * space.head_dim + first, rows: [write, read] }
            }
        };
        Unit { head: self.shape.parts.head(head), places, convolved }
    }

    /// Copies each run's old state, or zeros at a text's beginning, to where the new one will be.
    fn copy_unit(&self, slots: &mut [f32]) {
        let len = self.shape.unit_len();
        for HalfRun { run, from, .. } in self.half_runs() {
            match from {
                None => slots[run.to * len..][..len].fill(0.0),
                Some(from) if from == run.to => {}
                Some(from) => slots.copy_within(from * len..(from + 1) * len, run.to * len),
            }
        }
    }

    fn update_unit(
        &self,
        unit: &Unit<'_>,
        of_half: &HalfRun<'_>,
        slots: &mut [f32],
        out: &mut [f32],
    ) {
        let (len, columns) = (self.shape.unit_len(), self.shape.columns());
        let (run, mut first) = (of_half.run, of_half.rows.start);
        for (end, checkpoint) in of_half.parts(self.spans, &self.shape) {
            while first < end {
                let n = (end - first).min(STEPS);
                let out = &mut out[first * columns..][..n * columns];
                let state = &mut slots[run.to * len..][..len];
                self.step(unit, first..first + n, state, out);
                first += n;
            }
            if let Some(checkpoint) = checkpoint {
                slots.copy_within(run.to * len..(run.to + 1) * len, checkpoint * len);
            }
        }
    }

    /// Takes a unit through up to [`STEPS`] rows.
    fn step(&self, unit: &Unit<'_>, rows: Range<usize>, state: &mut [f32], out: &mut [f32]) {
        let [n_rows, _] = self.shape.mixer.state_dims();
        let Unit { head, places: Places { value, rows: [one, other] }, convolved } = *unit;
        let (channels, columns) = (self.shape.channels, self.shape.columns());
        let part = |row: usize, at: usize, n: usize| &convolved[row * channels + at..][..n];
        let n_controls = self.shape.n_controls();
        let controls = |row: usize| self.rows.controls(row, n_controls);
        match self.shape.mixer {
            Mixer::ShortConv { .. } => {}
            Mixer::DeltaRule(_) => {
                let steps = rows.map(|row| DeltaStep {
                    query: part(row, one, n_rows),
                    key: part(row, other, n_rows),
                    value: part(row, value, columns),
                    strength: controls(row)[head],
                    decay: controls(row)[n_controls / 2 + head],
                });
                let steps: heapless::Vec<DeltaStep<'_>, STEPS> = steps.collect();
                self.kernels.delta_rule(&steps, state, out);
            }
            Mixer::StateSpace(_) => {
                let steps = rows.map(|row| ScanStep {
                    input: part(row, value, columns),
                    write: part(row, one, n_rows),
                    read: part(row, other, n_rows),
                    step: controls(row)[head],
                });
                let steps: heapless::Vec<ScanStep<'_>, STEPS> = steps.collect();
                let [decay, skip] = self.weights.factors.map(|factors| factors[head]);
                self.kernels.scan(&steps, (decay, skip), state, out);
            }
        }
    }

    /// Writes the rows of the runs that may be taken back to the journal.
    fn write_journal(&self, index: usize, journal: &mut [f32]) {
        let (channels, n) = (self.shape.channels, self.shape.n_controls());
        for HalfRun { run, rows, n_before, .. } in self.half_runs().filter(|of| of.run.is_journaled)
        {
            let at = index * self.shape.journals_of_layer() + run.stream * self.shape.journal_len();
            let kept = journal[at..].chunks_exact_mut(self.shape.journal_width());
            for (row, kept) in rows.zip(kept.skip(n_before)) {
                let (inputs, controls) = kept.split_at_mut(channels);
                inputs.copy_from_slice(self.rows.inputs(row, channels));
                controls.copy_from_slice(self.rows.controls(row, n));
            }
        }
    }
}

/// A unit of columns of a head's state.
struct Unit<'a> {
    /// The head's number in the layer, of which this node may have a part.
    head: usize,
    places: Places,
    convolved: &'a [f32],
}

/// Where a unit's vectors lie in a row of the convolution's output.
#[derive(Clone, Copy, Default)]
struct Places {
    /// The columns' values.
    value: usize,
    /// Vectors with a value for each row of the state: query and key, or write and read.
    rows: [usize; 2],
}

/// Gives each of the heads in `x` the length `scale * sqrt(dim)`.
fn normalise(kernels: &Kernels, x: &mut [f32], dim: usize, scale: f32) {
    let [mut weight, mut normed] = [zeros::<HEAD_MAX>(), zeros()];
    let (weight, normed) = (&mut weight[..dim], &mut normed[..dim]);
    weight.fill(scale);
    for head in x.chunks_exact_mut(dim) {
        kernels.rms_norm(head, weight, NORM_EPS / dim as f32, normed);
        head.copy_from_slice(normed);
    }
}

/// The end of a recurrent layer: from the recurrence to the inputs of the output projection.
struct MixEnds<'a> {
    kernels: &'a Kernels,
    shape: StateShape,
    /// Values of a row of first projections.
    in_width: usize,
    norm: Option<&'a [f32]>,
    norm_eps: f32,
    m: usize,
}

impl MixEnds<'_> {
    /// Writes row `row` of the output projection's inputs, before the norm of a state space.
    fn write(&self, mix: &MixBuffers<'_>, row: usize, out: &mut [f32]) {
        let (mixer, channels) = (self.shape.mixer, self.shape.channels);
        let projected = &mix.projected[row * self.in_width..][..self.in_width];
        if let Mixer::ShortConv { .. } = mixer {
            let convolved = &mix.convolved[row * channels..][..channels];
            let gates = &projected[channels..][..channels];
            let both = convolved.iter().zip(gates);
            return out.iter_mut().zip(both).for_each(|(out, (x, gate))| *out = x * gate);
        }
        let gates = &projected[channels..];
        match mixer {
            Mixer::ShortConv { .. } => {}
            Mixer::DeltaRule(rule) => self.write_normed(mix, row, (rule.value_dim, gates), out),
            Mixer::StateSpace(space) => {
                let mut values = zeros::<HEAD_MAX>();
                let values = &mut values[..space.head_dim];
                let heads = out.chunks_exact_mut(space.head_dim);
                for (head, (out, gate)) in heads.zip(gates.chunks_exact(space.head_dim)).enumerate()
                {
                    self.read(mix, row, head, values);
                    self.kernels.swiglu(gate, values, out);
                }
            }
        }
    }

    /// The delta rule normalises each head, and then multiplies it by its gate.
    fn write_normed(
        &self,
        mix: &MixBuffers<'_>,
        row: usize,
        (width, gates): (usize, &[f32]),
        out: &mut [f32],
    ) {
        let [mut values, mut normed] = [zeros::<HEAD_MAX>(), zeros()];
        let (values, normed) = (&mut values[..width], &mut normed[..width]);
        let heads = out.chunks_exact_mut(width).zip(gates.chunks_exact(width));
        for (head, (out, gate)) in heads.enumerate() {
            self.read(mix, row, head, values);
            self.kernels.rms_norm(values, self.norm.unwrap_or_default(), self.norm_eps, normed);
            self.kernels.swiglu(gate, normed, out);
        }
    }

    /// Normalises a state space's groups of heads in a row of the output projection's inputs: RMSNorm.
    fn normalise(&self, row: &mut [f32]) {
        let Mixer::StateSpace(space) = self.shape.parts.whole() else { return };
        let (width, weights) = (space.inner() / space.groups, self.norm.unwrap_or_default());
        for (x, weight) in row.chunks_exact_mut(width).zip(weights.chunks_exact(width)) {
            let mut square = [0.0];
            self.kernels.matmul_f32(x, width, x, &mut [&mut square]);
            let factor = 1.0 / (square[0] / width as f32 + self.norm_eps).sqrt();
            x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * factor * weight);
        }
    }

    /// Reads a head's part of row `row` of the recurrence's output.
    fn read(&self, mix: &MixBuffers<'_>, row: usize, head: usize, out: &mut [f32]) {
        let columns = self.shape.columns();
        for (part, out) in out.chunks_exact_mut(columns).enumerate() {
            let unit = head * self.shape.units_of_head() + part;
            out.copy_from_slice(&mix.outputs[(unit * self.m + row) * columns..][..columns]);
        }
    }
}
