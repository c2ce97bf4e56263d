//! Speed of a model: decoding at several depths, prompts of several lengths.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Instant;

use super::drafts::{self, DraftsFigure, RowsFigure};
use super::machine::{MachineLimits, MeasuredMachine, RUNS};
use super::text::push;
use crate::cli::Failure;
use crate::engine::{Engine, Stream};

/// Tokens decoded in one run.
const DECODED: usize = 16;

/// Prompt lengths that are passes of few rows, as several streams or drafts make them.
const FEW_ROWS: RangeInclusive<usize> = 2..=16;

/// Tokens of the long prompt that prompts of few rows are compared with.
const LONG_PROMPT: usize = 128;

/// One measurement.
pub(super) enum Figure {
    Speed(ModelFigure),
    Rows(RowsFigure),
    Drafts(DraftsFigure),
}

/// Speed of tokens or of a prompt.
pub(super) struct ModelFigure {
    pub(super) what: What,
    pub(super) tokens_per_s: f64,
    /// Weights read per second, in bytes.
    pub(super) bytes_per_s: f64,
    /// Multiplications and additions of the projections per second.
    pub(super) ops_per_s: f64,
    /// Limits of the machine, measured in turn with the model.
    pub(super) limits: MachineLimits,
    /// Time of a pass of few rows, over that of one row's pass or of as many rows of a long prompt, whichever is
    /// longer.
    pub(super) of_rows_bound: Option<f64>,
}

/// A measurement of the model.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// Decoding one token at a time after a context of this many tokens.
    Decode(usize),
    /// A prompt of this many tokens.
    Prefill(usize),
    /// Passes of a token and its drafts, and texts with drafts, after a context of this many tokens.
    Draft(usize),
}

impl What {
    /// Name and number of tokens.
    pub(super) fn parts(&self) -> (&'static str, usize) {
        match *self {
            What::Decode(depth) => ("decode", depth),
            What::Prefill(len) => ("prefill", len),
            What::Draft(depth) => ("draft", depth),
        }
    }

    /// Context length that the measurement takes, in tokens.
    pub(super) fn ctx_len(&self) -> usize {
        match *self {
            What::Decode(depth) => depth.saturating_add(DECODED * RUNS),
            What::Prefill(len) => len,
            What::Draft(depth) => drafts::ctx_len(depth),
        }
    }

    /// Context length with the long prompt that few rows are compared with, at most `max_len` tokens.
    pub(super) fn compared_ctx_len(&self, max_len: usize) -> usize {
        match *self {
            What::Prefill(len) if FEW_ROWS.contains(&len) => LONG_PROMPT.min(max_len).max(len),
            _ => self.ctx_len(),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, tokens) = self.parts();
        write!(f, "{name} {tokens}")
    }
}

/// Measures `engine` in turn with `machine`, and gives each figure to `show`. `device_read` is the bytes a second that
/// the device beside the CPUs reads, if there is one.
pub(super) fn measure(
    engine: &mut Engine,
    (machine, device_read): (&MeasuredMachine, Option<f64>),
    workload: &[What],
    mut show: impl FnMut(Figure) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut long_row_s = None;
    for &what in workload {
        match what {
            What::Decode(depth) => {
                let mut figure = decode(engine, machine, depth)?;
                let cpu_read = figure.limits.read_bytes_per_s;
                let part = engine.device_part();
                figure.limits.read_bytes_per_s = read_by_both(cpu_read, device_read, part);
                show(Figure::Speed(figure))?;
            }
            What::Prefill(len) => {
                if FEW_ROWS.contains(&len) && long_row_s.is_none() {
                    long_row_s = Some(long_row(engine)?);
                }
                let long_row_s = long_row_s.filter(|_| FEW_ROWS.contains(&len));
                show(Figure::Speed(prefill(engine, machine, len, long_row_s)?))?;
            }
            What::Draft(depth) => {
                show(Figure::Rows(drafts::rows(engine, depth)?))?;
                let figures = drafts::texts(engine, depth)?;
                figures.into_iter().try_for_each(|figure| show(Figure::Drafts(figure)))?;
            }
        }
    }
    Ok(())
}

/// Bytes a second of CPUs and a device that read one after the other, the device `part` of the bytes.
fn read_by_both(cpu: f64, device: Option<f64>, part: f64) -> f64 {
    device.map_or(cpu, |device| 1.0 / ((1.0 - part) / cpu + part / device))
}

fn decode(
    engine: &mut Engine,
    machine: &MeasuredMachine,
    depth: usize,
) -> Result<ModelFigure, Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    push(engine, &mut stream, depth)?;
    let mut best = f64::INFINITY;
    let limits = machine.reading_beside(|| {
        let start = Instant::now();
        for _ in 0..DECODED {
            push(engine, &mut stream, 1)?;
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
        of_rows_bound: None,
    })
}

/// With `long_row_s`, the seconds of a row of a long prompt, one row's pass is measured in turn.
fn prefill(
    engine: &mut Engine,
    machine: &MeasuredMachine,
    len: usize,
    long_row_s: Option<f64>,
) -> Result<ModelFigure, Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    let (mut best, mut best_single) = (f64::INFINITY, f64::INFINITY);
    let limits = machine.multiplying_beside(|| {
        if long_row_s.is_some() {
            best_single = best_single.min(pass_s(engine, &mut stream, 1)?);
        }
        best = best.min(pass_s(engine, &mut stream, len)?);
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
        of_rows_bound: long_row_s.map(|row_s| best / best_single.max(len as f64 * row_s)),
    })
}

/// Seconds per row of a long prompt, or of the longest prompt that the context holds.
fn long_row(engine: &mut Engine) -> Result<f64, Failure> {
    let mut stream = engine.stream().map_err(|e| Failure::runtime(&e))?;
    let len = LONG_PROMPT.min(engine.ctx_len());
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        best = best.min(pass_s(engine, &mut stream, len)?);
    }
    Ok(best / len as f64)
}

/// Seconds of `len` tokens at an empty context.
fn pass_s(engine: &mut Engine, stream: &mut Stream, len: usize) -> Result<f64, Failure> {
    stream.clear();
    let start = Instant::now();
    push(engine, stream, len)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Operations of the projections of `n` tokens of which one wants logits.
fn ops(engine: &Engine, n: usize) -> f64 {
    let header = engine.header();
    let macs = |in_layers: bool| -> f64 {
        let tensors = header.tensors().filter(|t| header.is_multiplied(t.id.kind));
        let tensors = tensors.filter(|t| !header.is_of_next(t.id));
        let tensors = tensors.filter(|t| t.id.kind.is_per_layer() == in_layers);
        tensors.map(|t| t.rows as f64 * t.cols as f64 * header.active_part(t.id.kind)).sum()
    };
    2.0 * (macs(true) * n as f64 + macs(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_two_readers_is_that_of_their_turns() {
        assert_eq!(read_by_both(10e9, None, 0.0), 10e9);
        assert_eq!(read_by_both(10e9, Some(40e9), 1.0), 40e9);
        // A fifth of a second for the CPUs' gigabytes, and a tenth for the device's.
        assert!((read_by_both(10e9, Some(40e9), 4.0 / 6.0) - 6e9 / 0.3).abs() < 1.0);
    }
}
