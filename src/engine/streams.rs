//! Several answers at the same time.
//!
//! On a ring each stream's next token is a batch of its own as long as there are no more
//! streams than nodes, so that every node has one to compute; with more streams, several share
//! a batch. On one node all streams share every batch.

use super::{Engine, EngineError, GenerateError, Generator, Outcome, Request, StopReason, Stream};
use crate::engine::StepError;
use crate::model::ForwardError;
use crate::wire::frame::{Span, Wants};

/// A text to go on from.
pub struct Prompt {
    /// Its ids; at least one.
    pub ids: Vec<u32>,
    /// Whether the answer's first token begins a text.
    pub starts_text: bool,
}

/// What became of a prompt.
pub struct Answer {
    /// Which prompt, counted from 0 in the order they came.
    pub index: usize,
    /// The text that goes on from it.
    pub text: String,
    /// Why it ended, counts and times.
    pub outcome: Outcome,
}

/// Streams that answer prompts side by side.
pub struct Streams<'t> {
    lanes: Vec<Lane<'t>>,
    /// The lane that is served first.
    turn: usize,
    /// Prompts taken so far.
    taken: usize,
    spans: Vec<Span>,
    tokens: Vec<u32>,
}

struct Lane<'t> {
    stream: Stream,
    job: Option<Job<'t>>,
}

/// A prompt being answered.
struct Job<'t> {
    index: usize,
    prompt: Prompt,
    /// Ids of the prompt that have been submitted.
    fed: usize,
    /// Whether the logits after the last token are under way.
    is_waiting: bool,
    generator: Generator<'t>,
    text: String,
}

impl Job<'_> {
    /// The tokens to submit next: a part of the prompt, or the token chosen last.
    fn is_ready(&self) -> bool {
        !self.is_waiting
    }

    fn is_decoding(&self) -> bool {
        self.fed == self.prompt.ids.len()
    }
}

impl<'t> Streams<'t> {
    /// As many streams as `engine` has left, up to `n`.
    ///
    /// # Errors
    /// If there is none.
    pub fn new(engine: &mut Engine, n: usize) -> Result<Streams<'t>, EngineError> {
        let mut lanes = vec![Lane { stream: engine.stream()?, job: None }];
        while lanes.len() < n
            && let Ok(stream) = engine.stream()
        {
            lanes.push(Lane { stream, job: None });
        }
        Ok(Streams { lanes, turn: 0, taken: 0, spans: Vec::new(), tokens: Vec::new() })
    }

    /// Answers every prompt that `next` gives, each with a generator that `begin` makes, and
    /// gives the answers to `done` as they end. `request` is the same for all; its prompt is
    /// not looked at.
    ///
    /// # Errors
    /// If a prompt is empty, does not fit or holds an unknown id, if the ring is lost, or if
    /// the model's output is not a number.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        request: &Request<'_>,
        next: &mut dyn FnMut() -> Option<Prompt>,
        begin: &dyn Fn() -> Generator<'t>,
        done: &mut dyn FnMut(Answer),
    ) -> Result<(), GenerateError> {
        loop {
            if (request.is_interrupted)() {
                self.end_all(done);
                return Ok(());
            }
            self.assign(request, next, begin)?;
            while engine.has_room() && self.submit_next(engine)? {}
            if self.lanes.iter().all(|lane| lane.job.is_none()) {
                return Ok(());
            }
            match self.collect(engine, request, done) {
                Err(GenerateError::Step(StepError::Interrupted)) => {
                    self.end_all(done);
                    return Ok(());
                }
                result => result?,
            }
        }
    }

    fn end_all(&mut self, done: &mut dyn FnMut(Answer)) {
        for job in self.lanes.iter_mut().filter_map(|lane| lane.job.take()) {
            done(end(job, StopReason::Interrupted));
        }
    }

    /// Gives idle lanes the next prompts.
    fn assign(
        &mut self,
        request: &Request<'_>,
        next: &mut dyn FnMut() -> Option<Prompt>,
        begin: &dyn Fn() -> Generator<'t>,
    ) -> Result<(), GenerateError> {
        for lane in self.lanes.iter_mut().filter(|lane| lane.job.is_none()) {
            let Some(prompt) = next() else { return Ok(()) };
            if prompt.ids.is_empty() {
                return Err(GenerateError::EmptyPrompt);
            }
            let mut generator = begin();
            let starts_text = prompt.starts_text;
            generator.begin(&Request { prompt: &prompt.ids, starts_text, ..*request });
            lane.stream.clear();
            let (index, text) = (self.taken, String::new());
            lane.job = Some(Job { index, prompt, fed: 0, is_waiting: false, generator, text });
            self.taken += 1;
        }
        Ok(())
    }

    /// Submits the next batch; `false` if no lane has anything to submit.
    fn submit_next(&mut self, engine: &mut Engine) -> Result<bool, GenerateError> {
        let n = self.lanes.len();
        let is_ready = |lane: &Lane<'_>| lane.job.as_ref().is_some_and(Job::is_ready);
        let order = (0..n).map(|offset| (self.turn + offset) % n);
        let Some(first) = order.into_iter().find(|&lane| is_ready(&self.lanes[lane])) else {
            return Ok(false);
        };
        self.spans.clear();
        self.tokens.clear();
        let is_decoding = self.lanes[first].job.as_ref().is_some_and(Job::is_decoding);
        if is_decoding {
            self.gather(first, engine);
        } else {
            self.feed(first, engine)?;
        }
        self.turn = (first + 1) % n;
        engine.submit(&self.spans, &self.tokens)?;
        Ok(true)
    }

    /// Takes the last tokens of `first` and of as many lanes after it as share a batch.
    fn gather(&mut self, first: usize, engine: &Engine) {
        let n = self.lanes.len();
        let active = self.lanes.iter().filter(|lane| lane.job.is_some()).count();
        let plan = engine.transformer().plan();
        let share = active.div_ceil(engine.n_nodes()).min(plan.max_logits).min(plan.max_batch);
        for offset in 0..n {
            let lane = &mut self.lanes[(first + offset) % n];
            let Some(job) = lane.job.as_mut().filter(|job| job.is_ready() && job.is_decoding())
            else {
                continue;
            };
            let Some(&token) = job.generator.answer().last() else { continue };
            self.spans.push(lane.stream.span(1, Wants::Last));
            self.tokens.push(token);
            lane.stream.ids.push(token);
            job.is_waiting = true;
            if self.spans.len() == share {
                return;
            }
        }
    }

    /// Takes the next part of a prompt.
    fn feed(&mut self, lane: usize, engine: &Engine) -> Result<(), GenerateError> {
        let Lane { stream, job: Some(job) } = &mut self.lanes[lane] else { return Ok(()) };
        if job.prompt.ids.len() > engine.ctx_len() {
            let error = ForwardError::ContextFull { ctx_len: engine.ctx_len() };
            return Err(StepError::from(error).into());
        }
        let end = job.prompt.ids.len().min(job.fed + engine.max_batch());
        let ids = &job.prompt.ids[job.fed..end];
        let is_last = end == job.prompt.ids.len();
        let wants = if is_last { Wants::Last } else { Wants::None };
        self.spans.push(stream.span(ids.len(), wants));
        self.tokens.extend_from_slice(ids);
        stream.ids.extend_from_slice(ids);
        (job.fed, job.is_waiting) = (end, is_last);
        Ok(())
    }

    /// Waits for the oldest results and chooses the next tokens.
    fn collect(
        &mut self,
        engine: &mut Engine,
        request: &Request<'_>,
        done: &mut dyn FnMut(Answer),
    ) -> Result<(), GenerateError> {
        let (ctx_len, vocab_size) = (engine.ctx_len(), engine.header().vocab_size);
        let (spans, logits) = engine.collect()?;
        for (span, logits) in spans.iter().zip(logits.chunks_exact(vocab_size)) {
            let lane = self.lanes.iter_mut().find(|lane| lane.stream.index() == span.stream);
            let Some(lane) = lane else { continue };
            let Some(job) = &mut lane.job else { continue };
            job.is_waiting = false;
            let text = &mut job.text;
            let reason = job.generator.accept(logits, request, &mut |part| text.push_str(part))?;
            let is_full = lane.stream.pos() == ctx_len;
            let reason = reason.or(is_full.then_some(StopReason::ContextFull));
            if let Some(reason) = reason
                && let Some(job) = lane.job.take()
            {
                done(end(job, reason));
            }
        }
        Ok(())
    }
}

fn end(mut job: Job<'_>, reason: StopReason) -> Answer {
    let text = &mut job.text;
    let outcome = job.generator.finish(reason, &mut |part| text.push_str(part));
    Answer { index: job.index, text: job.text, outcome }
}
