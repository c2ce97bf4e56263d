//! Speed of a model: decoding at several depths, prompts of several lengths.

use std::fmt;
use std::time::Instant;

use super::machine::{MachineLimits, MeasuredMachine, RUNS};
use crate::cli::Failure;
use crate::engine::{Engine, Stream};
use crate::format::model::{Header, TensorKind};

/// Tokens decoded in one run.
const DECODED: usize = 16;

/// One measurement.
pub(super) struct ModelFigure {
    pub(super) what: What,
    pub(super) tokens_per_s: f64,
    /// Weights read per second, in bytes.
    pub(super) bytes_per_s: f64,
    /// Multiplications and additions of the projections per second.
    pub(super) ops_per_s: f64,
    /// What the machine did in turn with it.
    pub(super) limits: MachineLimits,
}

/// What is measured.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// Tokens one by one after a context of that many.
    Decode(usize),
    /// A prompt of that many tokens.
    Prefill(usize),
}

impl What {
    /// Its name and its number of tokens.
    pub(super) fn parts(&self) -> (&'static str, usize) {
        match *self {
            What::Decode(depth) => ("decode", depth),
            What::Prefill(len) => ("prefill", len),
        }
    }

    /// The context it takes, in tokens.
    pub(super) fn ctx_len(&self) -> usize {
        match *self {
            What::Decode(depth) => depth.saturating_add(DECODED * RUNS),
            What::Prefill(len) => len,
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, tokens) = self.parts();
        write!(f, "{name} {tokens}")
    }
}

/// Measures `engine` in turn with `machine`, and gives each figure to `show`.
pub(super) fn measure(
    mut engine: Engine,
    machine: &MeasuredMachine,
    workload: &[What],
    mut show: impl FnMut(&ModelFigure) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    for &what in workload {
        let figure = match what {
            What::Decode(depth) => decode(&mut engine, machine, &mut stream, depth)?,
            What::Prefill(len) => prefill(&mut engine, machine, &mut stream, len)?,
        };
        show(&figure)?;
    }
    Ok(())
}

fn decode(
    engine: &mut Engine,
    machine: &MeasuredMachine,
    stream: &mut Stream,
    depth: usize,
) -> Result<ModelFigure, Failure> {
    stream.clear();
    push(engine, stream, depth)?;
    let mut best = f64::INFINITY;
    let limits = machine.reading_beside(|| {
        let start = Instant::now();
        for _ in 0..DECODED {
            push(engine, stream, 1)?;
        }
        best = best.min(start.elapsed().as_secs_f64());
        Ok(())
    })?;
    let tokens_per_s = DECODED as f64 / best;
    let model = engine.model();
    Ok(ModelFigure {
        what: What::Decode(depth),
        tokens_per_s,
        bytes_per_s: tokens_per_s * model.bytes_per_token() as f64,
        ops_per_s: tokens_per_s * ops(engine, 1),
        limits,
    })
}

fn prefill(
    engine: &mut Engine,
    machine: &MeasuredMachine,
    stream: &mut Stream,
    len: usize,
) -> Result<ModelFigure, Failure> {
    let mut best = f64::INFINITY;
    let limits = machine.multiplying_beside(|| {
        stream.clear();
        let start = Instant::now();
        push(engine, stream, len)?;
        best = best.min(start.elapsed().as_secs_f64());
        Ok(())
    })?;
    let batches = len.div_ceil(engine.max_batch());
    let model = engine.model();
    Ok(ModelFigure {
        what: What::Prefill(len),
        tokens_per_s: len as f64 / best,
        bytes_per_s: model.bytes_per_token() as f64 * batches as f64 / best,
        ops_per_s: ops(engine, len) / best,
        limits,
    })
}

/// Operations of the projections of `n` tokens of which one wants logits.
fn ops(engine: &Engine, n: usize) -> f64 {
    let header = engine.header();
    let macs = |in_layers: bool| -> f64 {
        let tensors = header.tensors().filter(|t| header.is_multiplied(t.id.kind));
        let tensors = tensors.filter(|t| t.id.kind.is_per_layer() == in_layers);
        tensors.map(|t| t.rows as f64 * t.cols as f64 * active_part(header, t.id.kind)).sum()
    };
    2.0 * (macs(true) * n as f64 + macs(false))
}

/// How much of tensors of `kind` a token is multiplied by: of experts those that it uses.
fn active_part(header: &Header, kind: TensorKind) -> f64 {
    let experts = header.features.experts.filter(|_| kind.is_per_expert());
    experts.map_or(1.0, |experts| experts.n_active as f64 / experts.n as f64)
}

fn push(engine: &mut Engine, stream: &mut Stream, n: usize) -> Result<(), Failure> {
    let vocab_size = engine.header().vocab_size;
    // Some ids, far apart, that exist.
    let ids: Vec<u32> = (0..n).map(|i| ((stream.pos() + i) * 7919 % vocab_size) as u32).collect();
    engine.push(stream, &ids).map_err(|e| Failure::runtime(&e))?;
    Ok(())
}
