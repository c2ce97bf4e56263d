//! A stream of a scheduler, and the job that it runs.

use std::time::Instant;

use super::answer::Answer;
use super::choice::Chooser;
use super::drafts::{DRAFTS_MAX, LaneDrafts};
use super::forks::Forks;
use super::job::JobId;
use super::prefix::Kept;
use super::ready::Engine;
use super::stream::Stream;
use crate::model::{Batch, KV_PAGE, REWIND_ROWS, Span, Wants};

/// A stream of a scheduler, with its job.
pub(super) struct Lane<'t> {
    pub(super) stream: Stream,
    /// Ids that the stream shall hold, stored or not yet submitted, up to `[ctx_len + 1]`.
    pub(super) ids: Vec<u32>,
    /// Draft tokens that may follow `ids`.
    pub(super) drafts: LaneDrafts,
    /// `None` if the lane has nothing to do.
    pub(super) work: Option<RunningJob<'t>>,
    pub(super) flight: LaneFlight,
    /// Whether the job waits for KV pages: it was preempted and has given up its own.
    pub(super) is_parked: bool,
    /// Positions that the stream has memory for.
    pub(super) room: usize,
    prompt: LanePrompt,
    /// Whether the job has ended and its pages are to be freed.
    pub(super) is_over: bool,
    /// When the lane got its last job: the number of jobs begun by then.
    pub(super) used: u64,
    /// Time of the last token, and prompt rows submitted by then; `None` before a job's first token.
    pub(super) last_token: Option<(Instant, usize)>,
}

/// The prompt of a lane's current or last job.
struct LanePrompt {
    /// Number of ids.
    len: usize,
    /// How much of it was handed to the prefix files.
    kept: Kept,
    /// Where the state of recurrent layers is kept; `None` if the model has none.
    forks: Option<Forks>,
}

/// Batches of the lane that are in flight.
pub(super) struct LaneFlight {
    /// Position of the first row whose results have not been seen.
    since: usize,
    /// Batches in flight whose results this lane takes.
    pub(super) n_under_way: usize,
    /// Number of wasted batches in flight, which are the oldest ones: they began with rejected drafts, or
    /// their job has ended.
    n_wasted: usize,
}

/// A job that runs in a lane.
pub(super) struct RunningJob<'t> {
    pub(super) id: JobId,
    pub(super) chooser: Chooser,
    pub(super) prompt_len: usize,
    /// Whether the logits of the prompt are wanted.
    pub(super) wants_logits: bool,
    /// Ids of the prompt whose logits have been reported.
    pub(super) n_told: usize,
    pub(super) is_cancelled: bool,
    pub(super) answer: Answer<'t>,
}

/// Room left in a batch.
pub(super) struct BatchRoom {
    pub(super) rows: usize,
    pub(super) logits: usize,
    /// Lanes after this one that want a row for their next token.
    pub(super) n_decoding: usize,
    /// Rows that prompts may take.
    pub(super) prompt_rows: usize,
}

/// A batch in flight.
#[derive(Default)]
pub(super) struct UnderWay {
    pub(super) n_rows: usize,
    /// Time of submission. `None` if the batch does not show the cost of rows: it has prompt rows, or drafts
    /// after drafts.
    pub(super) begun: Option<Instant>,
    /// The lane, if the batch has rows of only this one.
    pub(super) lane: Option<usize>,
}

impl<'t> Lane<'t> {
    /// A lane for `stream`, with room for contexts of `ctx_len` ids and batches of `max_batch`.
    pub(super) fn new(
        stream: Stream,
        (ctx_len, max_batch): (usize, usize),
        has_state: bool,
    ) -> Lane<'t> {
        let ids = Vec::with_capacity(ctx_len + 1);
        let forks = has_state.then(|| Forks::with_capacity(ctx_len));
        Lane {
            stream,
            ids,
            drafts: LaneDrafts::new(max_batch),
            work: None,
            flight: LaneFlight { since: 0, n_under_way: 0, n_wasted: 0 },
            is_parked: false,
            room: 0,
            prompt: LanePrompt { len: 0, kept: Kept::default(), forks },
            is_over: false,
            used: 0,
            last_token: None,
        }
    }

    /// Whether the lane can take a job: the last one has ended, and none of its batches is in flight.
    pub(super) fn is_free(&self) -> bool {
        self.work.is_none() && self.flight.n_under_way == 0 && !self.is_over
    }

    /// Whether the lane has rows to submit.
    pub(super) fn is_ready(&self) -> bool {
        self.work.is_some() && self.flight.n_under_way == self.flight.n_wasted && !self.is_parked
    }

    /// Whether the lane is ready and has only one token to submit.
    pub(super) fn is_decoding(&self) -> bool {
        self.is_ready() && self.stream.pos() + 1 == self.ids.len()
    }

    /// Whether the job has got a token and waits for more.
    pub(super) fn is_answering(&self) -> bool {
        self.work.is_some() && self.last_token.is_some()
    }

    /// Notes a token, after `prompt_rows` submitted prompt rows in all. Returns the seconds since the last
    /// token, and the prompt rows submitted in between.
    pub(super) fn token_came(&mut self, prompt_rows: usize) -> Option<(f32, usize)> {
        let now = Instant::now();
        let (then, before) = self.last_token.replace((now, prompt_rows))?;
        Some(((now - then).as_secs_f32(), prompt_rows - before))
    }

    /// Begins a job with `prompt`; `used` is the number of jobs begun. `stop_ids` end the prompt's turns.
    pub(super) fn begin(
        &mut self,
        prompt: &[u32],
        stop_ids: &[u32],
        work: RunningJob<'t>,
        used: u64,
    ) {
        if let Some(forks) = &mut self.prompt.forks {
            forks.find(prompt, stop_ids);
        }
        self.ids.clear();
        self.ids.extend_from_slice(prompt);
        (self.prompt.len, self.prompt.kept) = (prompt.len(), Kept::default());
        self.work = Some(work);
        self.used = used;
        self.last_token = None;
        self.drafts.begin();
        self.go_on();
    }

    /// Continues from the positions that the stream holds.
    pub(super) fn go_on(&mut self) {
        self.flight.since = self.stream.pos();
        self.is_parked = false;
    }

    /// Preempts the job: gives up the stream's memory. Recomputing yields the same values.
    pub(super) fn park(&mut self) {
        self.stream.clear();
        self.flight.since = 0;
        self.is_parked = true;
        // This pause is not caused by a prompt, so it is no gap between tokens.
        self.last_token = None;
    }

    /// Forgets the stream's KV and its batches in flight: the ring has lost both.
    pub(super) fn forget_kv(&mut self) {
        self.take_back();
        // New nodes may lack the prefix files that others have written.
        self.prompt.kept = Kept::default();
        match self.work {
            Some(_) => self.park(),
            None => self.stream.clear(),
        }
    }

    /// Tells the stream its new length. If that makes it a long text, all of it is recomputed.
    pub(super) fn grow(&mut self) {
        if let Some(work) = &mut self.work
            && self.stream.grow_to(self.ids.len())
            && self.ids.len() > work.prompt_len
        {
            // The logits were reported already.
            work.wants_logits = false;
        }
    }

    /// Takes memory for positions up to `end`, or for as many as there is. All positions of the stream so far
    /// must have been computed.
    pub(super) fn reserve(&mut self, engine: &mut Engine, end: usize) {
        self.flight.since = self.stream.pos();
        self.room = engine.reserve(&mut self.stream, end);
        self.keep(engine);
    }

    /// Has the computed pages of the prompt kept in files.
    fn keep(&mut self, engine: &mut Engine) {
        let LanePrompt { len, kept, forks } = &mut self.prompt;
        engine.keep(&self.stream, kept, (&self.ids[..*len], forks.as_ref()));
    }

    /// Whether the model has recurrent layers.
    fn has_state(&self) -> bool {
        self.prompt.forks.is_some()
    }

    /// Frees the stream's pages if its job has ended.
    pub(super) fn free_pages(&mut self, engine: &mut Engine) {
        if std::mem::take(&mut self.is_over) {
            let pos = self.stream.pos();
            engine.reserve(&mut self.stream, pos);
            self.keep(engine);
            self.stream.clear();
        }
    }

    /// Whether a lane that wants `ids` should wait because this lane computes more of their beginning.
    pub(super) fn computes_for(&self, ids: &[u32]) -> bool {
        let Some(work) = self.work.as_ref().filter(|_| !self.is_parked) else { return false };
        let pairs = self.ids[..work.prompt_len].iter().zip(&ids[..ids.len() - 1]);
        let common = pairs.take_while(|(a, b)| a == b).count();
        let will_have = match &self.prompt.forks {
            Some(forks) => forks.next(self.flight.since, common).is_some(),
            None => common / KV_PAGE * KV_PAGE > self.stream.shared_len(),
        };
        self.stream.serves(ids.len()) && will_have
    }

    /// Most draft tokens that the batch's `room`, the context and the answer allow.
    pub(super) fn n_drafts_max(&self, room: &BatchRoom, ctx_len: usize) -> usize {
        let n_left = self.work.as_ref().map_or(0, |work| work.answer.n_left());
        let len_max = self.room.min(ctx_len).min(self.stream.len_max());
        let of_batch = room.rows.min(room.logits).saturating_sub(room.n_decoding + 1);
        // Only so many rows can be taken back from a state.
        let of_batch = if self.has_state() { of_batch.min(REWIND_ROWS - 1) } else { of_batch };
        of_batch.min(len_max.saturating_sub(self.ids.len())).min(n_left.saturating_sub(1))
    }

    /// The rows to submit next, limited by `room`; `None` if there is not enough.
    fn next_rows(&self, room: &BatchRoom) -> Option<(usize, Wants)> {
        let work = self.work.as_ref().filter(|_| self.is_ready())?;
        let (pos, left) = (self.stream.pos(), self.ids.len() - self.stream.pos());
        let free = self.room.saturating_sub(pos);
        if pos + 1 == self.ids.len() && free > 0 && room.rows > 0 && room.logits > 0 {
            let n_drafts = self.drafts.n_sent;
            return Some((1 + n_drafts, if n_drafts == 0 { Wants::Last } else { Wants::All }));
        }
        // A prompt leaves one row to each decoding stream, but always gets at least one itself.
        let n_rows = left.min(room.rows.saturating_sub(room.n_decoding).max(1)).min(room.rows);
        let n_rows = n_rows.min(room.prompt_rows).min(free);
        // Logits that were reported before the lane was preempted are not reported again.
        let n_rows = if pos < work.n_told { n_rows.min(work.n_told - pos) } else { n_rows };
        let is_told = (work.n_told..work.prompt_len).contains(&pos);
        let (n_rows, wants) = match (work.wants_logits && is_told, room.logits) {
            (true, n_logits) => (n_rows.min(n_logits), Wants::All),
            (false, 0) => (n_rows.min(left - 1), Wants::None),
            (false, _) if n_rows == left => (n_rows, Wants::Last),
            (false, _) => (n_rows, Wants::None),
        };
        (n_rows > 0).then_some((n_rows, wants))
    }

    /// Adds the lane's next rows to a batch, limited by `room`; `false` if there is not enough.
    pub(super) fn submit(&mut self, room: &mut BatchRoom, batch: &mut Batch) -> bool {
        let Some((n_rows, wants)) = self.next_rows(room) else { return false };
        if !self.is_decoding() {
            room.prompt_rows -= n_rows;
        }
        let n_ids = self.ids.len();
        self.ids.extend_from_slice(&self.drafts.ids[..self.drafts.n_sent]);
        let since = self.stream.pos();
        let end = since + n_rows;
        while self.stream.pos() < end {
            let pos = self.stream.pos();
            // Results are for whole submissions: one whose every row is wanted is not cut.
            let forks = self.prompt.forks.as_ref().filter(|_| wants != Wants::All);
            let fork = forks.and_then(|forks| forks.next(pos, end));
            let n_rows = fork.unwrap_or(end) - pos;
            let wants = if pos + n_rows == end { wants } else { Wants::None };
            let mut span = self.stream.span(n_rows, wants);
            if fork.is_some() {
                self.stream.keep_state(&mut span);
            }
            let ids = &self.ids[pos..][..n_rows];
            batch.push(span, ids);
            self.stream.ids.extend_from_slice(ids);
            room.logits -= span.n_wanted();
        }
        self.ids.truncate(n_ids);
        self.flight.since = since;
        self.flight.n_under_way += usize::from(wants != Wants::None);
        room.rows -= n_rows;
        true
    }

    /// Most ids that may be drafted after those in flight, in batches of up to `rows` rows. If all rows of a
    /// batch are rejected, layers with a window must still hold the positions that are needed then.
    pub(super) fn n_ahead_max(&self, rows: usize, ctx_len: usize) -> usize {
        // The state before rejected ids would be lost.
        let is_under_way = self.is_answering()
            && self.flight.n_under_way > self.flight.n_wasted
            && !self.has_state();
        let Some(work) = self.work.as_ref().filter(|_| is_under_way) else { return 0 };
        let pos_max =
            self.room.min(ctx_len).min(self.stream.len_max()).min(self.flight.since + rows);
        let n_left = work.answer.n_left().saturating_sub(1 + self.drafts.n_sent);
        pos_max.saturating_sub(self.stream.pos()).min(n_left).min(DRAFTS_MAX)
    }

    /// Has `ask` draft ids after those in flight, and puts the chosen ones into a batch of their own; `false`
    /// if there are none.
    pub(super) fn go_ahead(
        &mut self,
        batch: &mut Batch,
        ask: impl FnOnce(&mut LaneDrafts, &[u32]) -> (usize, f32),
    ) -> bool {
        let n_ids = self.ids.len();
        self.ids.extend_from_slice(&self.drafts.ids[..self.drafts.n_sent]);
        let (n, seconds) = ask(&mut self.drafts, &self.ids);
        self.ids.truncate(n_ids);
        self.count_drafting(seconds);
        if n == 0 {
            return false;
        }
        let ids = &self.drafts.ids[self.drafts.n_sent - n..];
        batch.push(self.stream.span(n, Wants::All), ids);
        self.stream.ids.extend_from_slice(ids);
        self.flight.n_under_way += 1;
        true
    }

    /// Adds the time that drafting took.
    pub(super) fn count_drafting(&mut self, seconds: f32) {
        if let Some(work) = &mut self.work {
            work.answer.count_drafting(seconds);
        }
    }

    /// Notes that the results of a batch with the lane's `span` have arrived. Returns whether they are valid.
    pub(super) fn collected(&mut self, span: &Span) -> bool {
        let is_of_use = !self.skipped(span.n_rows);
        if is_of_use {
            self.flight.n_under_way -= 1;
            self.flight.since = span.pos + span.n_rows;
        }
        is_of_use
    }

    /// If the oldest batch in flight is wasted, notes its end and returns true. `n_rows` is the lane's number
    /// of rows in it.
    pub(super) fn skipped(&mut self, n_rows: usize) -> bool {
        let is_wasted = self.flight.n_wasted > 0;
        if is_wasted {
            self.flight.n_wasted -= 1;
            self.flight.n_under_way -= 1;
            if let Some(work) = &mut self.work {
                work.answer.count_wasted(n_rows);
            }
        }
        is_wasted
    }

    /// Whether the oldest batch in flight is wasted.
    pub(super) fn is_wasted(&self) -> bool {
        self.flight.n_wasted > 0
    }

    /// Drops the rejected drafts; the stream then holds only the text.
    pub(super) fn settle(&mut self) {
        self.stream.ids.truncate(self.ids.len() - 1);
        self.flight.since = self.stream.pos();
        self.flight.n_wasted = self.flight.n_under_way;
        self.drafts.clear();
    }

    /// Ends the job and returns it.
    pub(super) fn finish(&mut self) -> Option<RunningJob<'t>> {
        let work = self.work.take()?;
        self.is_over = true;
        self.flight.n_wasted = self.flight.n_under_way;
        Some(work)
    }

    /// Forgets the batches in flight, whose results are dropped.
    pub(super) fn forget(&mut self) {
        (self.flight.n_under_way, self.flight.n_wasted) = (0, 0);
        self.drafts.clear();
    }

    /// Takes back the last submission, which may not have been computed and brings no results. It is
    /// submitted again.
    pub(super) fn take_back(&mut self) {
        self.forget();
        self.stream.ids.truncate(self.flight.since);
    }
}
