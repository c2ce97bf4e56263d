//! The decode loop.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Engine, Logits, StepError, StopStrings, Stream};
use crate::model::ForwardError;
use crate::sampler::Sampler;
use crate::tokenizer::{Decoder, Tokenizer};

/// What to generate.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Ids to append to the stream before the first token is chosen; at least one.
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub n_predict: usize,
    /// Ids that end the answer.
    pub stop_ids: &'a [u32],
    /// Whether the answer's first token begins a text, rather than going on with the prompt's.
    pub starts_text: bool,
    /// Asked between batches and tokens; `true` ends the answer.
    pub is_interrupted: &'a dyn Fn() -> bool,
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
    /// The caller asked for it.
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
    /// A batch could not be run.
    Step(StepError),
    /// The model's logits are not numbers: its weights are damaged.
    NotANumber,
    /// There is no prompt to begin with.
    EmptyPrompt,
}

impl fmt::Display for GenerateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GenerateError::Step(e) => e.fmt(f),
            GenerateError::NotANumber => {
                write!(f, "the model's output is not a number: its weights are damaged")
            }
            GenerateError::EmptyPrompt => write!(f, "the prompt is empty"),
        }
    }
}

impl std::error::Error for GenerateError {}

impl From<StepError> for GenerateError {
    fn from(error: StepError) -> GenerateError {
        GenerateError::Step(error)
    }
}

/// Everything but the model that answers need. Allocates only when made, as long as no
/// answer is longer than the context.
pub struct Generator<'t> {
    tokenizer: &'t Tokenizer,
    sampler: Sampler,
    stop_strings: StopStrings,
    decoder: Decoder<'t>,
    /// Ids of the last answer.
    answer: Vec<u32>,
    /// Text of one token.
    text: String,
    figures: Figures,
    start: Instant,
    first_token: Instant,
}

impl<'t> Generator<'t> {
    /// A generator for contexts of up to `ctx_len` tokens.
    pub fn new(
        tokenizer: &'t Tokenizer,
        sampler: Sampler,
        stop_strings: StopStrings,
        ctx_len: usize,
    ) -> Generator<'t> {
        let now = Instant::now();
        Generator {
            tokenizer,
            sampler,
            stop_strings,
            decoder: Decoder::new(tokenizer, false),
            answer: Vec::with_capacity(ctx_len + 1),
            text: String::with_capacity(1024),
            figures: Figures::default(),
            start: now,
            first_token: now,
        }
    }

    /// The ids of the last answer, with the stop id that ended it. The last of them has not
    /// been through the model.
    pub fn answer(&self) -> &[u32] {
        &self.answer
    }

    /// Appends the prompt to `stream`, then token after token, and gives the text to `show`
    /// as it becomes complete.
    ///
    /// # Errors
    /// If the prompt is empty, does not fit or holds an unknown id, if the ring is lost, or if
    /// the model's output is not a number.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        stream: &mut Stream,
        request: &Request<'_>,
        show: &mut dyn FnMut(&str),
    ) -> Result<Outcome, GenerateError> {
        self.begin(request);
        let reason = match self.answer_all(engine, stream, request, show) {
            Err(GenerateError::Step(StepError::Interrupted)) => StopReason::Interrupted,
            reason => reason?,
        };
        Ok(self.finish(reason, show))
    }

    fn answer_all(
        &mut self,
        engine: &mut Engine,
        stream: &mut Stream,
        request: &Request<'_>,
        show: &mut dyn FnMut(&str),
    ) -> Result<StopReason, GenerateError> {
        let Some(logits) = prefill(engine, stream, request)? else {
            return Ok(StopReason::Interrupted);
        };
        let mut reason = self.accept(logits, request, show)?;
        while reason.is_none() {
            if stream.pos() == engine.ctx_len() {
                return Ok(StopReason::ContextFull);
            }
            if (request.is_interrupted)() {
                return Ok(StopReason::Interrupted);
            }
            let next = self.answer.last().copied();
            let next = next.expect("`accept` has chosen a token");
            let logits = engine.push_batch(stream, &[next], Logits::Last)?;
            reason = self.accept(logits, request, show)?;
        }
        Ok(reason.unwrap_or(StopReason::Length))
    }

    /// Starts a new answer.
    pub(super) fn begin(&mut self, request: &Request<'_>) {
        self.answer.clear();
        self.stop_strings.reset();
        self.decoder = match request.starts_text {
            true => Decoder::new(self.tokenizer, false),
            false => Decoder::continuing(self.tokenizer, false),
        };
        self.figures = Figures { prompt_tokens: request.prompt.len(), ..Figures::default() };
        self.start = Instant::now();
    }

    /// Chooses the next token, shows what it completes, and says why the answer ends with it,
    /// if it does.
    ///
    /// # Errors
    /// If the logits are not numbers.
    pub(super) fn accept(
        &mut self,
        logits: &[f32],
        request: &Request<'_>,
        show: &mut dyn FnMut(&str),
    ) -> Result<Option<StopReason>, GenerateError> {
        let next = self.sampler.sample(logits).ok_or(GenerateError::NotANumber)?;
        if self.answer.is_empty() {
            self.first_token = Instant::now();
            self.figures.ttft = self.first_token - self.start;
        }
        self.answer.push(next);
        Ok(self.take(next, request, show))
    }

    /// Shows what has been held back, and sums up.
    pub(super) fn finish(&mut self, reason: StopReason, show: &mut dyn FnMut(&str)) -> Outcome {
        self.figures.generated_tokens = self.answer.len();
        if !self.answer.is_empty() {
            self.figures.decode = self.first_token.elapsed();
            if reason != StopReason::StopString {
                self.show_rest(show);
            }
        }
        Outcome { reason, figures: self.figures }
    }

    /// Shows what `id` completes; says why the answer ends with it, if it does.
    fn take(
        &mut self,
        id: u32,
        request: &Request<'_>,
        show: &mut dyn FnMut(&str),
    ) -> Option<StopReason> {
        if request.stop_ids.contains(&id) {
            return Some(StopReason::StopId(id));
        }
        self.text.clear();
        self.decoder.push(id, &mut self.text);
        let shown = self.stop_strings.push(&self.text);
        if shown.len > 0 {
            show(&self.stop_strings.held()[..shown.len]);
            self.stop_strings.consume(shown.len);
        }
        if shown.is_stop {
            return Some(StopReason::StopString);
        }
        (self.answer.len() >= request.n_predict).then_some(StopReason::Length)
    }

    /// Shows what was held back for a stop string or a character that never came.
    fn show_rest(&mut self, show: &mut dyn FnMut(&str)) {
        self.text.clear();
        self.decoder.flush(&mut self.text);
        self.stop_strings.push(&self.text);
        if !self.stop_strings.held().is_empty() {
            show(self.stop_strings.held());
        }
        self.stop_strings.reset();
    }
}

/// Runs the prompt; returns the logits after it, or nothing if interrupted.
fn prefill<'e>(
    engine: &'e mut Engine,
    stream: &mut Stream,
    request: &Request<'_>,
) -> Result<Option<&'e mut [f32]>, GenerateError> {
    if stream.pos() + request.prompt.len() > engine.ctx_len() {
        return Err(StepError::from(ForwardError::ContextFull { ctx_len: engine.ctx_len() }).into());
    }
    let max_batch = engine.max_batch();
    let Some(last_at) = request.prompt.len().checked_sub(1) else {
        return Err(GenerateError::EmptyPrompt);
    };
    let (first, last) = request.prompt.split_at(last_at / max_batch * max_batch);
    for batch in first.chunks(max_batch) {
        if (request.is_interrupted)() {
            return Ok(None);
        }
        engine.push_batch(stream, batch, Logits::None)?;
    }
    if (request.is_interrupted)() {
        return Ok(None);
    }
    Ok(Some(engine.push_batch(stream, last, Logits::Last)?))
}
