//! Computes many texts at the same time, one batch per step.
//!
//! A batch holds the next tokens of decoding streams, and as many prompt rows as there is room for. On a ring
//! several batches are in flight, each with the share of the streams that keeps all nodes busy. A row's
//! results do not depend on its batch, so each job's text is the same as if it ran alone.

mod memory;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Instant;

use super::answer::Answer;
use super::choice::{ChoiceScratch, Chooser, Chosen};
use super::drafts::{self, Beside, DraftControl, DraftMode, Drafter, Guess, LaneDrafts};
use super::job::{
    Job, JobError, JobEvent, JobFigures, JobId, Outcome, QueueEnd, Queued, StopReason,
};
use super::lane::{BatchRoom, Lane, RunningJob, UnderWay};
use super::pace::{Gap, Pace, StallLimit};
use super::{Engine, EngineError, StepError};
use crate::model::{Batch, Span};
use crate::tokenizer::Tokenizer;

/// Callback for the events of jobs.
pub type TellJob<'a> = &'a mut dyn FnMut(JobId, JobEvent<'_>);

/// Answers jobs on some of an engine's streams, and keeps further jobs in a queue.
///
/// A waiting job costs its prompt, its stop ids and strings, and less than a kilobyte; the rest of the memory
/// belongs to the streams or is shared. A running job allocates nothing.
///
/// While jobs run, batches are in flight: the engine must not be used for anything else then.
pub struct Scheduler<'t> {
    tokenizer: Option<&'t Tokenizer>,
    /// Lanes in the order of their streams' indices.
    lanes: Vec<Lane<'t>>,
    queue: VecDeque<Queued>,
    /// Index of the lane that is served first.
    turn: usize,
    counts: Counts,
    pace: Pace,
    drafting: Drafting,
    /// Batches in flight whose logits are wanted.
    under_way: VecDeque<UnderWay>,
    /// Whether nothing is submitted until no batch is in flight, because files hold more of a text, which can
    /// only be loaded then.
    is_held: bool,
    ctx_len: usize,
    vocab_size: usize,
    scratch: Scratch,
}

/// Totals since the scheduler was made.
struct Counts {
    /// Number of jobs submitted so far.
    submitted: u64,
    /// Number of jobs that got a stream so far.
    begun: u64,
    /// Number of prompt rows submitted so far.
    prompt_rows: usize,
}

/// The drafter, and the control of its number of drafts.
struct Drafting {
    drafter: Option<Box<dyn Drafter>>,
    drafts: DraftControl,
}

/// Buffers that every step reuses.
struct Scratch {
    /// For choosing tokens, for the text of one token, and for the next batch.
    choice: ChoiceScratch,
    text: String,
    batch: Batch,
    /// Running jobs, the oldest first, with their lanes.
    order: Vec<(JobId, usize)>,
}

impl<'t> Scheduler<'t> {
    /// A scheduler for up to `n` streams, or as many as `engine` has left. Without `tokenizer` jobs yield ids
    /// but no text.
    ///
    /// # Errors
    /// If the engine has no stream left.
    pub fn new(
        engine: &mut Engine,
        n: usize,
        tokenizer: Option<&'t Tokenizer>,
    ) -> Result<Scheduler<'t>, EngineError> {
        let ctx_len = engine.ctx_len();
        let max_batch = engine.max_batch();
        let has_state = engine.header().has_state();
        let mut lanes = vec![Lane::new(engine.stream()?, (ctx_len, max_batch), has_state)];
        while lanes.len() < n
            && let Ok(stream) = engine.stream()
        {
            lanes.push(Lane::new(stream, (ctx_len, max_batch), has_state));
        }
        lanes.sort_by_key(|lane| lane.stream.index());
        let vocab_size = engine.header().vocab_size;
        Ok(Scheduler {
            tokenizer,
            pace: Pace::new(StallLimit::None, lanes.len()),
            drafting: Drafting { drafter: None, drafts: DraftControl::new(DraftMode::Auto) },
            under_way: VecDeque::with_capacity(lanes.len() + engine.n_nodes()),
            is_held: false,
            queue: VecDeque::new(),
            turn: 0,
            counts: Counts { prompt_rows: 0, submitted: 0, begun: 0 },
            ctx_len,
            vocab_size,
            scratch: Scratch {
                order: Vec::with_capacity(lanes.len()),
                choice: ChoiceScratch::new(vocab_size),
                text: String::with_capacity(1024),
                batch: Batch::with_capacity(max_batch),
            },
            lanes,
        })
    }

    /// Has prompts come in smaller batches while other engines wait for the same cores. Texts stay the same.
    #[cfg(feature = "serve")]
    pub(crate) fn share(&mut self, is_shared: bool) {
        self.pace.share(is_shared);
    }

    /// Limits the time that a decoding stream waits while prompts are computed.
    pub fn limit_stalls(&mut self, limit: StallLimit) {
        self.pace = Pace::new(limit, self.lanes.len());
    }

    /// Sets the drafter; `mode` says how many drafts are tried. Texts stay the same. The drafter's lanes are
    /// numbered from 0 on, up to [`Scheduler::n_streams`].
    pub fn draft(&mut self, drafter: Box<dyn Drafter>, mode: DraftMode) {
        self.drafting.drafter = Some(drafter);
        self.drafting.drafts = DraftControl::new(mode);
    }

    /// Puts `job` into the queue. A job that [`Scheduler::check`] refuses fails with the next step.
    pub fn submit(&mut self, job: Job) -> JobId {
        let id = JobId(self.counts.submitted);
        self.counts.submitted += 1;
        let end = self.check(&job).err().map(QueueEnd::Refused);
        self.queue.push_back(Queued { id, job, end });
        id
    }

    /// Checks whether `job` can be answered.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, or if it or the logit bias holds an unknown id.
    pub fn check(&self, job: &Job) -> Result<(), JobError> {
        job.check(self.ctx_len, self.vocab_size)
    }

    /// Ends a job: the next step reports it done, with its figures. Its results in flight are dropped when
    /// they arrive, and its stream is free then. Does nothing if the job has ended.
    pub fn cancel(&mut self, id: JobId) {
        self.cancel_if(|other| other == id);
    }

    /// Ends all jobs, like [`Scheduler::cancel`].
    pub fn cancel_all(&mut self) {
        self.cancel_if(|_| true);
    }

    fn cancel_if(&mut self, is_meant: impl Fn(JobId) -> bool) {
        let running = self.lanes.iter_mut().filter_map(|lane| lane.work.as_mut());
        running.filter(|work| is_meant(work.id)).for_each(|work| work.is_cancelled = true);
        let queued = self.queue.iter_mut().filter(|queued| is_meant(queued.id));
        queued.for_each(|queued| queued.end = Some(QueueEnd::Cancelled));
    }

    /// Whether every job has ended.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.lanes.iter().all(|lane| lane.work.is_none())
    }

    /// Number of jobs that can run at the same time.
    pub fn n_streams(&self) -> usize {
        self.lanes.len()
    }

    /// Number of jobs that wait for a stream; the caller limits it.
    pub fn n_queued(&self) -> usize {
        self.queue.len()
    }

    /// Token counts and times so far of the running jobs.
    pub fn running(&self) -> impl Iterator<Item = JobFigures> {
        self.lanes.iter().filter_map(|lane| lane.work.as_ref()).map(|work| work.answer.figures())
    }

    /// Gives free streams to jobs. Then submits a batch if there is room for one; otherwise waits for the
    /// oldest results and reports their tokens.
    ///
    /// If the engine's user interrupts a batch, the next step submits it again; to end its jobs, cancel them.
    /// If the engine cannot go on, all running jobs fail.
    pub fn step(&mut self, engine: &mut Engine, tell: TellJob<'_>) {
        self.end_unwanted(tell);
        self.lanes.iter_mut().for_each(|lane| lane.free_pages(engine));
        self.assign(engine);
        match self.advance(engine, tell) {
            Ok(()) => {}
            Err(StepError::Interrupted) => {
                self.lanes.iter_mut().for_each(Lane::take_back);
                self.under_way.clear();
            }
            Err(StepError::Lost) => self.recompute_all(),
            Err(error) => self.fail_all(&error, tell),
        }
        self.lanes.iter_mut().for_each(|lane| lane.free_pages(engine));
        self.rest(engine);
    }

    /// Once no job runs, drops the batches in flight and lets the engine rest.
    fn rest(&mut self, engine: &mut Engine) {
        if self.lanes.iter().any(|lane| lane.work.is_some()) {
            return;
        }
        if !self.under_way.is_empty() {
            engine.forget();
            self.under_way.clear();
            self.lanes.iter_mut().for_each(Lane::forget);
        }
        engine.rest();
    }

    fn advance(&mut self, engine: &mut Engine, tell: TellJob<'_>) -> Result<(), StepError> {
        if !self.lanes.iter().all(|lane| engine.is_own(&lane.stream)) {
            return Err(StepError::Stranger);
        }
        // If no results are in flight, nothing else would make room, so submitting waits for it.
        let may_submit = !self.is_held && engine.has_room();
        if may_submit || self.under_way.is_empty() {
            self.make_room(engine);
            if self.submit_next(engine)? && engine.has_room() {
                return Ok(());
            }
        }
        match self.under_way.is_empty() {
            true => Ok(()),
            false if drafts::wait(self.drafting.drafter.as_deref(), engine)? => Ok(()),
            false => self.collect(engine, tell),
        }
    }

    /// Submits the next batch; `false` if there is none.
    fn submit_next(&mut self, engine: &mut Engine) -> Result<bool, StepError> {
        let prompt_rows = self.counts.prompt_rows;
        self.trade_threads(engine);
        let is_ahead = !self.gather(engine);
        let is_something = !is_ahead || self.gather_ahead(engine);
        self.trade_threads(engine);
        if !is_something {
            return Ok(false);
        }
        let begun = Instant::now();
        engine.submit(&self.scratch.batch)?;
        if self.scratch.batch.n_wanted() > 0 {
            let has_prompt = self.counts.prompt_rows != prompt_rows;
            let begun = (!has_prompt && !is_ahead).then_some(begun);
            let lane = match self.scratch.batch.spans() {
                [span] => self.lane_of(span),
                _ => None,
            };
            self.under_way.push_back(UnderWay {
                n_rows: self.scratch.batch.tokens().len(),
                begun,
                lane,
            });
        }
        Ok(true)
    }

    /// Lends the engine's threads to the drafter, or takes them back; the calls alternate.
    fn trade_threads(&mut self, engine: &mut Engine) {
        if let Some(drafter) = &mut self.drafting.drafter {
            drafter.trade_threads(engine);
        }
    }

    /// Index of the lane that `span` belongs to.
    fn lane_of(&self, span: &Span) -> Option<usize> {
        self.lanes.binary_search_by_key(&span.stream, |lane| lane.stream.index()).ok()
    }

    /// Ends jobs that were cancelled or refused.
    fn end_unwanted(&mut self, tell: TellJob<'_>) {
        for index in 0..self.lanes.len() {
            if self.lanes[index].work.as_ref().is_some_and(|work| work.is_cancelled) {
                self.end(index, StopReason::Interrupted, tell);
            }
        }
        while let Some(at) = self.queue.iter().position(|queued| queued.end.is_some())
            && let Some(Queued { id, end, .. }) = self.queue.remove(at)
        {
            let event = match end {
                Some(QueueEnd::Refused(error)) => JobEvent::Failed(error),
                _ => JobEvent::Done { outcome: Outcome::INTERRUPTED, ids: &[] },
            };
            tell(id, event);
        }
    }

    /// Gives free lanes to the jobs that have waited longest, once there are pages for their prompts.
    /// Preempted jobs come first.
    fn assign(&mut self, engine: &mut Engine) {
        self.is_held = false;
        if !self.resume(engine) {
            return;
        }
        while let Some(queued) = self.queue.front() {
            let prompt: &[u32] = if queued.job.wants_logits { &[] } else { &queued.job.prompt };
            if !self.may_begin(prompt, queued.job.prompt.len()) {
                return;
            }
            let free = self.lanes.iter_mut().filter(|lane| lane.is_free());
            // The lane that has been unused longest.
            let Some(lane) = free.max_by_key(|lane| Reverse(lane.used)) else { return };
            self.is_held = !self.under_way.is_empty() && engine.has_to_read(&lane.stream, prompt);
            if self.is_held {
                return;
            }
            let n_kept = engine.rewind(&mut lane.stream, prompt);
            let Some(Queued { id, mut job, .. }) = self.queue.pop_front() else { return };
            let prompt = std::mem::take(&mut job.prompt);
            let n_max = job.n_predict.min(self.ctx_len);
            let work = RunningJob {
                id,
                chooser: Chooser::new(
                    (&mut job, &prompt),
                    (n_max, self.vocab_size),
                    &mut self.scratch.choice,
                ),
                prompt_len: prompt.len(),
                wants_logits: job.wants_logits,
                n_told: 0,
                is_cancelled: false,
                answer: Answer::new(self.tokenizer, job, prompt.len() - n_kept),
            };
            self.counts.begun += 1;
            lane.begin(&prompt, &engine.header().stop_ids, work, self.counts.begun);
            let index = lane.stream.index();
            let index = self.lanes.partition_point(|lane| lane.stream.index() < index);
            if let Some(drafter) = &mut self.drafting.drafter {
                drafter.begin(index, &self.lanes[index].ids);
            }
        }
    }

    /// Assembles the next batch from the lanes in turn; `false` if there is nothing to submit.
    fn gather(&mut self, engine: &mut Engine) -> bool {
        self.scratch.batch.clear();
        let n = self.lanes.len();
        let n_active = self.lanes.iter().filter(|lane| lane.work.is_some()).count();
        if n_active == 0 {
            return false;
        }
        let share = n_active.div_ceil(engine.n_nodes());
        let mut n_decoding = self.lanes.iter().filter(|lane| lane.is_decoding()).count();
        let n_answering = self.lanes.iter().filter(|lane| lane.is_answering()).count();
        // While every stream recomputes lost KV there is no stall to limit.
        let is_anyone_next = n_decoding > 0 || !self.under_way.is_empty();
        let n_waiting = if is_anyone_next { n_answering } else { 0 };
        let prompt_rows = self.pace.prompt_rows(n_waiting).min(engine.max_batch());
        let has_prompts = self.lanes.iter().any(|lane| lane.is_ready() && !lane.is_decoding());
        let (rows, logits) = (engine.max_batch(), engine.max_logits());
        let mut room = BatchRoom { rows, logits, n_decoding, prompt_rows };
        let (mut draft_seconds, mut n_lanes) = (0.0, 0);
        for index in (self.turn..n).chain(0..self.turn) {
            n_decoding -= usize::from(self.lanes[index].is_decoding());
            room.n_decoding = n_decoding.min(share - n_lanes - 1);
            // Prompt rows are worth more than drafts, so nothing is drafted beside prompts.
            let n_nodes = engine.n_nodes() as f32 / n_active as f32;
            let before = (draft_seconds, n_nodes);
            draft_seconds += self.draft_for((engine, index), (&room, before), has_prompts);
            let lane = &mut self.lanes[index];
            if lane.submit(&mut room, &mut self.scratch.batch) {
                self.turn = (index + 1) % n;
                n_lanes += 1;
                if n_lanes == share {
                    break;
                }
            }
        }
        self.counts.prompt_rows += prompt_rows - room.prompt_rows;
        n_lanes > 0
    }

    /// Drafts the next tokens of a lane, for a batch with `room` whose drafts took `before` seconds so far.
    /// `n_nodes` is the number of nodes per text. Returns the seconds of drafting.
    fn draft_for(
        &mut self,
        (engine, index): (&mut Engine, usize),
        (room, (before, n_nodes)): (&BatchRoom, (f32, f32)),
        has_prompts: bool,
    ) -> f32 {
        let guesses = engine.guesses();
        let lane = &mut self.lanes[index];
        let Some(drafter) = self.drafting.drafter.as_mut().filter(|_| lane.is_decoding()) else {
            return 0.0;
        };
        let beside = Beside {
            rows: self.scratch.batch.tokens().len() + room.n_decoding,
            tokens: self.scratch.batch.spans().len() + room.n_decoding,
            seconds: before,
            n_nodes,
        };
        let n_max = if has_prompts { 0 } else { lane.n_drafts_max(room, self.ctx_len) };
        let text = (index, &lane.ids[..], self.vocab_size);
        let stream = &lane.stream;
        let mut guess = |n: usize, out: &mut Vec<u32>| {
            if let Err(error) = engine.guess(stream, (&lane.ids, n), out) {
                log::debug!("no guesses: {error}");
            }
        };
        let guess: Guess<'_> = if guesses { Some(&mut guess) } else { None };
        let (drafts, control) = (&mut lane.drafts, &mut self.drafting.drafts);
        let seconds = drafts.ask((&mut **drafter, guess), control, text, (beside, n_max));
        lane.count_drafting(seconds);
        seconds
    }

    /// Assembles a batch of drafts after drafts in flight, for idle nodes of a ring; `false` if no such
    /// drafts are worth it.
    fn gather_ahead(&mut self, engine: &Engine) -> bool {
        let (n, under_way) = (self.lanes.len(), self.under_way.len());
        let nodes = (engine.n_nodes(), under_way < engine.batches_in_a_lap());
        let Some(drafter) = self.drafting.drafter.as_mut().filter(|_| under_way < nodes.0) else {
            return false;
        };
        for index in (self.turn..n).chain(0..self.turn) {
            let (lane, drafts) = (&mut self.lanes[index], &mut self.drafting.drafts);
            let n_max = lane.n_ahead_max(engine.max_batch(), self.ctx_len).min(engine.max_logits());
            let ask = |lane: &mut LaneDrafts, ids: &[u32]| {
                let text = (index, ids, self.vocab_size);
                lane.ask_ahead(&mut **drafter, drafts, text, (nodes, n_max))
            };
            if n_max > 0 && lane.go_ahead(&mut self.scratch.batch, ask) {
                self.turn = (index + 1) % n;
                return true;
            }
        }
        false
    }

    /// Waits for the oldest results, and chooses the next tokens.
    fn collect(&mut self, engine: &mut Engine, tell: TellJob<'_>) -> Result<(), StepError> {
        let n_decoding = self.lanes.iter().filter(|lane| lane.is_answering()).count();
        let mut longest: Option<(f32, usize)> = None;
        let UnderWay { n_rows, begun, lane } = self.under_way.pop_front().unwrap_or_default();
        if let Some(lane) = lane.filter(|lane| self.lanes[*lane].is_wasted()) {
            engine.skip()?;
            self.lanes[lane].skipped(n_rows);
            return Ok(());
        }
        let (spans, mut logits) = engine.collect()?;
        if let Some(begun) = begun {
            self.drafting.drafts.saw(n_rows, begun.elapsed().as_secs_f32());
        }
        for span in spans.iter().filter(|span| span.n_wanted() > 0) {
            let (rows, rest) =
                std::mem::take(&mut logits).split_at_mut(span.n_wanted() * self.vocab_size);
            logits = rest;
            if let Some(index) = self.lane_of(span) {
                let gap = self.take((index, span), rows, tell);
                longest = gap.filter(|gap| longest.is_none_or(|other| other.0 < gap.0)).or(longest);
            }
        }
        if let Some((seconds, prompt_rows)) = longest {
            self.pace.saw(Gap { seconds, n_decoding, prompt_rows });
        }
        Ok(())
    }

    /// Takes the rows of logits that lane `index` wanted with `span`. Returns the value of
    /// [`Lane::token_came`].
    fn take(
        &mut self,
        (index, span): (usize, &Span),
        rows: &mut [f32],
        tell: TellJob<'_>,
    ) -> Option<(f32, usize)> {
        let lane = &mut self.lanes[index];
        let is_of_use = lane.collected(span);
        let work = lane.work.as_mut().filter(|_| is_of_use)?;
        let (first, end) = (span.pos, span.pos + span.n_rows);
        if work.wants_logits && (work.n_told..work.prompt_len).contains(&first) {
            let n_rows = end.min(work.prompt_len) - first;
            let logits = &rows[..n_rows * self.vocab_size];
            tell(work.id, JobEvent::Logits { pos: first, logits });
            work.n_told = first + n_rows;
        }
        if end < lane.ids.len() {
            return None;
        }
        if work.answer.is_empty() {
            self.end(index, StopReason::Length, tell);
            return None;
        }
        // The tokens after the text's last one are drafts.
        let n_drafts = end - lane.ids.len();
        work.answer.count_pass(n_drafts);
        let first = rows.len() - (1 + n_drafts) * self.vocab_size;
        let mut goes_on = true;
        for (n, row) in rows[first..].chunks_exact_mut(self.vocab_size).enumerate() {
            let id = self.take_token(index, row, tell)?;
            goes_on = self.lanes[index].drafts.test(n, id);
            if !goes_on {
                break;
            }
        }
        let lane = &mut self.lanes[index];
        match goes_on {
            true => lane.drafts.go_on(1 + n_drafts),
            false => lane.settle(),
        }
        lane.token_came(self.counts.prompt_rows)
    }

    /// Chooses a lane's next token from its logits; `None` if the job has ended.
    fn take_token(&mut self, index: usize, logits: &mut [f32], tell: TellJob<'_>) -> Option<u32> {
        let lane = &mut self.lanes[index];
        let (work, pos) = (lane.work.as_mut()?, lane.ids.len());
        let chosen = work.chooser.choose(pos, logits, &mut self.scratch.choice);
        let Chosen { id, is_complete, odds } = match chosen {
            Ok(chosen) => chosen,
            Err(error) => {
                self.fail(index, error, tell);
                return None;
            }
        };
        lane.ids.push(id);
        if let Some(odds) = odds {
            tell(work.id, JobEvent::Token { id, odds });
        }
        let show = &mut |text: &str| tell(work.id, JobEvent::Text(text));
        let reason = work.answer.take(id, &mut self.scratch.text, show);
        let reason = reason.or(is_complete.then_some(StopReason::Complete));
        let is_full = pos == self.ctx_len;
        if let Some(reason) = reason.or(is_full.then_some(StopReason::ContextFull)) {
            self.end(index, reason, tell);
            return None;
        }
        Some(id)
    }

    fn end(&mut self, index: usize, reason: StopReason, tell: TellJob<'_>) {
        let lane = &mut self.lanes[index];
        let Some(work) = lane.finish() else { return };
        let show = &mut |text: &str| tell(work.id, JobEvent::Text(text));
        let outcome = work.answer.end(reason, &mut self.scratch.text, show);
        if let Some(drafter) = &mut self.drafting.drafter {
            drafter.end(index, &lane.ids);
        }
        tell(work.id, JobEvent::Done { outcome, ids: &lane.ids[work.prompt_len..] });
    }

    fn fail(&mut self, index: usize, error: JobError, tell: TellJob<'_>) {
        if let Some(work) = self.lanes[index].finish() {
            tell(work.id, JobEvent::Failed(error));
        }
    }

    /// Fails all running jobs: the engine cannot go on, and the batches in flight bring no results.
    fn fail_all(&mut self, error: &StepError, tell: TellJob<'_>) {
        self.under_way.clear();
        for index in 0..self.lanes.len() {
            self.lanes[index].take_back();
            self.lanes[index].stream.clear();
            self.fail(index, JobError::Step(error.clone()), tell);
        }
    }
}
