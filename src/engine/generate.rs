//! The decode loop.

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{Engine, StopStrings, Stream};
use crate::model::ForwardError;
use crate::sampler::Sampler;
use crate::tokenizer::{Decoder, Tokenizer};

/// What to generate.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Ids to append to the stream before the first token is chosen; at least one.
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub n_predict: usize,
    /// Ids that end the answer.
    pub stop_ids: &'a [u32],
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model chose a stop id.
    StopId(u32),
    /// The text reached a stop string.
    StopString,
    /// As many tokens as asked for.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The receiver of the text asked for it.
    Interrupted,
}

impl StopReason {
    /// The name used in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::StopId(_) => "stop_id",
            StopReason::StopString => "stop_string",
            StopReason::Length => "length",
            StopReason::ContextFull => "context_full",
            StopReason::Interrupted => "interrupted",
        }
    }
}

/// Counts and times of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Tokens of the prompt that went through the model.
    pub prompt_tokens: usize,
    /// Time from the start to the first chosen token.
    pub ttft: Duration,
    /// Tokens chosen, the one that stopped the answer included.
    pub generated_tokens: usize,
    /// Time from the first chosen token to the last.
    pub decode: Duration,
}

impl Figures {
    /// Prompt tokens per second.
    pub fn prompt_tokens_per_s(&self) -> f64 {
        rate(self.prompt_tokens, self.ttft)
    }

    /// Tokens per second of decoding; the first token belongs to the prompt.
    pub fn generated_tokens_per_s(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    match time.as_secs_f64() {
        seconds if seconds > 0.0 => n as f64 / seconds,
        _ => 0.0,
    }
}

/// A finished answer.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Why it ended.
    pub reason: StopReason,
    /// Counts and times.
    pub figures: Figures,
}

/// Why generating failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GenerateError {
    /// The model refused a batch.
    Forward(ForwardError),
    /// The model's logits are not numbers: its weights are damaged.
    NotANumber,
}

impl fmt::Display for GenerateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GenerateError::Forward(e) => e.fmt(f),
            GenerateError::NotANumber => {
                write!(f, "the model's output is not a number: its weights are damaged")
            }
        }
    }
}

impl std::error::Error for GenerateError {}

/// Everything but the model that an answer needs; used again for the next answer.
pub struct Generator<'a> {
    tokenizer: &'a Tokenizer,
    sampler: Sampler,
    stop_strings: StopStrings,
    decoder: Decoder,
}
