//! Jobs of a scheduler: their requests and their events.

use std::fmt;
use std::time::Duration;

use super::StepError;
use super::rules::{LogitRules, Odds, TokenFilter};
use crate::sampler::Sampling;

/// A text to continue, and how.
#[derive(Clone, Debug)]
pub struct Job {
    /// Ids to continue from; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Changes to the logits before a token is chosen.
    pub rules: LogitRules,
    /// Form that the text must have.
    pub filter: Option<Box<dyn TokenFilter>>,
    /// Number of likely tokens that [`JobEvent::Token`] reports for each chosen one; `None` for no report.
    pub n_likeliest: Option<usize>,
    /// Most tokens to generate.
    pub n_predict: usize,
    /// Ids that end the answer.
    pub stop_ids: Vec<u32>,
    /// Texts that end the answer and do not belong to it.
    pub stop_strings: Vec<String>,
    /// Whether the answer's first token begins a text, rather than continuing the prompt's.
    pub starts_text: bool,
    /// Whether control tokens appear in the text by name; otherwise they add no text.
    pub names_special: bool,
    /// Whether the logits after every id of the prompt are wanted. All of the prompt is then computed.
    pub wants_logits: bool,
}

impl Job {
    /// Continues `prompt` with the most likely tokens, to the end of the context.
    pub fn new(prompt: Vec<u32>) -> Job {
        Job {
            prompt,
            sampling: Sampling::GREEDY,
            rules: LogitRules::default(),
            filter: None,
            n_likeliest: None,
            n_predict: usize::MAX,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            starts_text: false,
            names_special: false,
            wants_logits: false,
        }
    }

    /// Checks that an engine with a context of `ctx_len` tokens and a vocabulary of `vocab_size` ids can
    /// answer the job.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, or if it or the logit bias holds an unknown id.
    pub fn check(&self, ctx_len: usize, vocab_size: usize) -> Result<(), JobError> {
        match self.prompt.len() {
            0 => return Err(JobError::EmptyPrompt),
            n_ids if n_ids > ctx_len => return Err(JobError::TooLong { n_ids, ctx_len }),
            _ => {}
        }
        let ids = self.prompt.iter().copied().chain(self.rules.bias.iter().map(|(id, _)| *id));
        match { ids }.find(|&id| id as usize >= vocab_size) {
            Some(id) => Err(JobError::UnknownId { id, vocab_size }),
            None => Ok(()),
        }
    }
}

/// Identifies a job; unique within its scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) u64);

/// An event of a job.
#[derive(Debug)]
pub enum JobEvent<'a> {
    /// A token was chosen, and [`Job::n_likeliest`] asks for a report.
    Token {
        /// Id of the token.
        id: u32,
        /// Likelihood of the token and of others.
        odds: Odds<'a>,
    },
    /// A further part of the answer's text.
    Text(&'a str),
    /// Logits after ids of the prompt, requested by [`Job::wants_logits`].
    Logits {
        /// Position of the first of these ids.
        pos: usize,
        /// One row of the vocabulary's size for each of these ids.
        logits: &'a [f32],
    },
    /// The job has ended; no more events follow.
    Done {
        /// Reason of the end, with counts and times.
        outcome: Outcome,
        /// Ids of the answer, including the stop id that ended it.
        ids: &'a [u32],
    },
    /// The job has failed; no more events follow.
    Failed(JobError),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model chose a stop id.
    StopId(u32),
    /// The text reached a stop string.
    StopString,
    /// The text has the required form, and nothing may follow.
    Complete,
    /// The answer reached the requested number of tokens.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The caller asked for it.
    Interrupted,
}

impl StopReason {
    /// The name used in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::StopId(_) => "stop_id",
            StopReason::StopString => "stop_string",
            StopReason::Complete => "complete",
            StopReason::Length => "length",
            StopReason::ContextFull => "context_full",
            StopReason::Interrupted => "interrupted",
        }
    }
}

/// Counts and times of one answer.
#[derive(Clone, Copy, Debug)]
pub struct JobFigures {
    /// Tokens of the prompt that went through the model: those that its stream did not hold yet.
    pub prompt_tokens: usize,
    /// Time from when the job got a stream to the first chosen token.
    pub ttft: Duration,
    /// Tokens chosen, including the one that stopped the answer.
    pub generated_tokens: usize,
    /// Time from the first chosen token to the last.
    pub decode: Duration,
    /// Passes through the model that gave tokens.
    pub passes: usize,
    /// Tokens of drafts that were tried.
    pub drafted: usize,
    /// Time that making drafts took.
    pub drafting: Duration,
}

impl JobFigures {
    /// Figures of an answer that has not begun.
    pub(super) const NONE: JobFigures = JobFigures {
        prompt_tokens: 0,
        ttft: Duration::ZERO,
        generated_tokens: 0,
        decode: Duration::ZERO,
        passes: 0,
        drafted: 0,
        drafting: Duration::ZERO,
    };

    /// Draft tokens that were accepted: all tokens of a pass but one.
    pub fn accepted(&self) -> usize {
        self.generated_tokens.saturating_sub(self.passes)
    }

    /// Mean number of tokens per pass.
    pub fn tokens_per_pass(&self) -> f64 {
        self.generated_tokens as f64 / self.passes.max(1) as f64
    }

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
    pub figures: JobFigures,
}

impl Outcome {
    /// Outcome of an answer that was given up before it began.
    pub const INTERRUPTED: Outcome =
        Outcome { reason: StopReason::Interrupted, figures: JobFigures::NONE };

    /// Whether the answer would have gone on.
    pub fn is_cut(&self) -> bool {
        match self.reason {
            StopReason::Length | StopReason::ContextFull | StopReason::Interrupted => true,
            StopReason::StopId(_) | StopReason::StopString | StopReason::Complete => false,
        }
    }
}

/// Why a job is refused or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobError {
    /// The prompt is empty.
    EmptyPrompt,
    /// The prompt is longer than the context.
    TooLong {
        /// Ids of the prompt.
        n_ids: usize,
        /// Length of the context.
        ctx_len: usize,
    },
    /// The prompt or the logit bias holds an id that is not in the vocabulary.
    UnknownId {
        /// The id.
        id: u32,
        /// Ids below this exist.
        vocab_size: usize,
    },
    /// The model's logits are not numbers: its weights are damaged.
    NotANumber,
    /// The required form cannot be followed.
    Filter(String),
    /// The engine cannot go on.
    Step(StepError),
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::EmptyPrompt => write!(f, "the prompt is empty"),
            JobError::TooLong { n_ids, ctx_len } => {
                write!(f, "the prompt has {n_ids} tokens, the context {ctx_len}")
            }
            JobError::UnknownId { id, vocab_size } => {
                write!(f, "token id {id} is not below the vocabulary's size {vocab_size}")
            }
            JobError::NotANumber => {
                write!(f, "the model's output is not a number: its weights are damaged")
            }
            JobError::Filter(problem) => write!(f, "the wanted form cannot be followed: {problem}"),
            JobError::Step(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for JobError {}

/// A job that waits for a stream.
pub(super) struct Queued {
    pub(super) id: JobId,
    pub(super) job: Job,
    /// Why the job left the queue without a stream; `None` while it waits.
    pub(super) end: Option<QueueEnd>,
}

/// Why a job left the queue without a stream.
pub(super) enum QueueEnd {
    Cancelled,
    Refused(JobError),
}
