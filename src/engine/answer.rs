//! An answer while it is generated: its text, and when it ends.

use std::time::{Duration, Instant};

use super::job::{Job, JobFigures, Outcome, StopReason};
use super::stop::StopStrings;
use crate::tokenizer::{Decoder, Tokenizer};

/// State of a job's answer, without the model and the stream. Allocates only in [`Answer::new`].
pub(super) struct Answer<'t> {
    /// `None` if no text is wanted.
    decoder: Option<Decoder<'t>>,
    stop_strings: StopStrings,
    stop_ids: Vec<u32>,
    n_predict: usize,
    figures: JobFigures,
    start: Instant,
    first_token: Option<Instant>,
}

impl<'t> Answer<'t> {
    /// The answer of `job`. The model computes `n_computed` ids of the prompt; the stream holds the others.
    pub(super) fn new(tokenizer: Option<&'t Tokenizer>, job: Job, n_computed: usize) -> Answer<'t> {
        let decoder = tokenizer.map(|tokenizer| match job.starts_text {
            true => Decoder::new(tokenizer, job.names_special),
            false => Decoder::continuing(tokenizer, job.names_special),
        });
        Answer {
            decoder,
            stop_strings: StopStrings::new(job.stop_strings),
            stop_ids: job.stop_ids,
            n_predict: job.n_predict,
            figures: JobFigures { prompt_tokens: n_computed, ..JobFigures::NONE },
            start: Instant::now(),
            first_token: None,
        }
    }

    /// Counts a pass that gives tokens and tests `n_drafted` draft tokens.
    pub(super) fn count_pass(&mut self, n_drafted: usize) {
        self.figures.passes += 1;
        self.figures.drafted += n_drafted;
    }

    /// Counts `n_drafted` draft tokens that were known to be wrong before their pass had ended.
    pub(super) fn count_wasted(&mut self, n_drafted: usize) {
        self.figures.drafted += n_drafted;
    }

    /// Adds the time that drafting took.
    pub(super) fn count_drafting(&mut self, seconds: f32) {
        self.figures.drafting += Duration::from_secs_f32(seconds);
    }

    /// Number of tokens that may still be generated.
    pub(super) fn n_left(&self) -> usize {
        self.n_predict - self.figures.generated_tokens
    }

    /// Whether no token is wanted.
    pub(super) fn is_empty(&self) -> bool {
        self.n_predict == 0
    }

    /// Shows the text that the chosen `id` completes; returns the reason if the answer ends with it. `text`
    /// is scratch.
    pub(super) fn take(
        &mut self,
        id: u32,
        text: &mut String,
        show: &mut dyn FnMut(&str),
    ) -> Option<StopReason> {
        if self.first_token.is_none() {
            self.first_token = Some(Instant::now());
            self.figures.ttft = self.start.elapsed();
        }
        self.figures.generated_tokens += 1;
        if self.stop_ids.contains(&id) {
            return Some(StopReason::StopId(id));
        }
        text.clear();
        if let Some(decoder) = &mut self.decoder {
            decoder.push(id, text);
        }
        let shown = self.stop_strings.push(text);
        if shown.len > 0 {
            show(&self.stop_strings.held()[..shown.len]);
            self.stop_strings.consume(shown.len);
        }
        if shown.is_stop {
            return Some(StopReason::StopString);
        }
        (self.figures.generated_tokens >= self.n_predict).then_some(StopReason::Length)
    }

    /// Token counts and times of the job so far.
    pub(super) fn figures(&self) -> JobFigures {
        let decode = self.first_token.map_or(self.figures.decode, |first| first.elapsed());
        JobFigures { decode, ..self.figures }
    }

    /// Shows the text held back for a stop string or an incomplete character, and returns the outcome.
    pub(super) fn end(
        mut self,
        reason: StopReason,
        text: &mut String,
        show: &mut dyn FnMut(&str),
    ) -> Outcome {
        self.figures = self.figures();
        if reason != StopReason::StopString {
            text.clear();
            if let Some(decoder) = &mut self.decoder {
                decoder.flush(text);
            }
            self.stop_strings.push(text);
            if !self.stop_strings.held().is_empty() {
                show(self.stop_strings.held());
            }
        }
        Outcome { reason, figures: self.figures }
    }
}
