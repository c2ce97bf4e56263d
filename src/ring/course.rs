//! The master's batches, from when they are submitted until their results are taken.

use std::collections::VecDeque;

use super::Sizes;
use super::batch;
use super::replay::Replay;
use crate::wire::frame::FrameSpan;

/// Batches under way for each node: one computed, one waiting for it.
pub(super) const BATCHES_PER_NODE: usize = 2;
/// Rows of a batch from which on it shows what a row of a prompt takes.
const ROWS_MIN: usize = 8;
/// How fast what is known of that follows new times.
const ROW_WEIGHT: f32 = 0.25;
/// Frames that a link's receiver holds at least. Results never need more, so the last node can
/// always send them, whatever the master is doing.
const FRAMES_HELD: usize = 12;

/// Most batches of a ring of so many nodes that are under way.
pub(super) fn window(sizes: &Sizes, frame_bytes: usize, n_nodes: usize) -> usize {
    let frames = batch::frames_per_result(sizes, frame_bytes);
    (BATCHES_PER_NODE * n_nodes).min(FRAMES_HELD / frames).max(1)
}

/// A batch as its user gave it.
#[derive(Default)]
struct KeptBatch {
    spans: Vec<FrameSpan>,
    /// Ids of all rows.
    tokens: Vec<u32>,
    /// Whether its user went away: it still has to be computed, as later ones build on it.
    is_forgotten: bool,
}

/// A batch under way.
pub(super) struct Sent {
    pub(super) number: u32,
    pub(super) n_wanted: usize,
    pub(super) n_rows: usize,
    /// Whether it was answered in an earlier epoch.
    pub(super) is_replay: bool,
    /// When it was begun, and whether each of its rows is a stream's next token.
    pub(super) begun_us: u64,
    pub(super) is_decoding: bool,
}

/// The batches.
pub(super) struct Course {
    /// Those that have not been answered, the oldest first.
    queue: VecDeque<KeptBatch>,
    /// How many of them have been begun in this epoch.
    n_begun: usize,
    replay: Replay,
    /// Begun in this epoch and not answered, in order.
    sent: VecDeque<Sent>,
    free: Vec<KeptBatch>,
    current: KeptBatch,
    /// The oldest, whose results are back and have not been taken.
    done: Option<KeptBatch>,
    next_number: u32,
    /// Microseconds from the start of a prompt's batch to its result for each of its rows, as they were lately; 0 if
    /// unknown.
    row_us: f32,
}

impl Course {
    /// None yet, with room for `window` at a time.
    pub(super) fn new(sizes: &Sizes, window: usize) -> Course {
        let rows = usize::from(sizes.max_batch);
        let batch = || KeptBatch {
            spans: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            is_forgotten: false,
        };
        Course {
            queue: VecDeque::with_capacity(window),
            n_begun: 0,
            replay: Replay::new(sizes),
            sent: VecDeque::with_capacity(window),
            free: (0..window + 1).map(|_| batch()).collect(),
            current: batch(),
            done: None,
            next_number: 0,
            row_us: 0.0,
        }
    }

    /// How many are submitted and not answered.
    pub(super) fn n_submitted(&self) -> usize {
        self.queue.len()
    }

    /// How many are begun and not answered.
    pub(super) fn n_sent(&self) -> usize {
        self.sent.len()
    }

    /// Whether one is to be begun.
    pub(super) fn is_behind(&self) -> bool {
        self.n_begun < self.queue.len() || self.replay.is_due()
    }

    /// Whether nodes have forgotten what was answered.
    pub(super) fn is_replaying(&self) -> bool {
        self.replay.is_due()
    }

    /// Whether results are back and have not been taken.
    pub(super) fn is_done(&self) -> bool {
        self.done.is_some()
    }

    /// What to compute, or whose results are back: the spans of the batch.
    pub(super) fn spans(&self) -> &[FrameSpan] {
        &self.done.as_ref().unwrap_or(&self.current).spans
    }

    /// Spans and ids of the batch to compute.
    pub(super) fn current(&self) -> (&[FrameSpan], &[u32]) {
        (&self.current.spans, &self.current.tokens)
    }

    /// The one that was begun last.
    pub(super) fn last_sent(&self) -> Option<&Sent> {
        self.sent.back()
    }

    /// The one that is answered next.
    pub(super) fn first_sent(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Submits one.
    pub(super) fn submit(&mut self, spans: &[FrameSpan], tokens: &[u32]) {
        let mut batch = self.free.pop().unwrap_or_default();
        batch.spans.clear();
        batch.spans.extend_from_slice(spans);
        batch.tokens.clear();
        batch.tokens.extend_from_slice(tokens);
        batch.is_forgotten = false;
        self.queue.push_back(batch);
    }

    /// Nobody waits for the results of those there are.
    pub(super) fn forget(&mut self) {
        self.queue.iter_mut().for_each(|batch| batch.is_forgotten = true);
        self.finish();
    }

    /// The results of the one that is done have been taken.
    pub(super) fn finish(&mut self) {
        self.free.extend(self.done.take());
    }

    /// An epoch begins in which the nodes have forgotten everything.
    pub(super) fn restart(&mut self) {
        self.sent.clear();
        self.n_begun = 0;
        self.replay.restart();
    }

    /// The nodes have forgotten nothing that was answered.
    pub(super) fn skip_replay(&mut self) {
        self.replay.skip();
    }

    /// Microseconds in which `n_nodes` compute all again that has been answered, if that can be told: they compute batches
    /// of several rows, each another one.
    pub(super) fn again_us(&self, n_nodes: usize) -> Option<u64> {
        let us = self.row_us * self.replay.n_tokens() as f32 / n_nodes.max(1) as f32;
        (self.row_us > 0.0).then_some(us as u64)
    }

    /// The oldest one that was begun is answered. Returns what was sent, and how many tokens it had.
    pub(super) fn answered(&mut self, now: u64) -> Option<(Sent, usize)> {
        let sent = self.sent.pop_front()?;
        if !sent.is_decoding && sent.n_rows >= ROWS_MIN {
            let row_us = now.saturating_sub(sent.begun_us) as f32 / sent.n_rows as f32;
            let weight = if self.row_us == 0.0 { 1.0 } else { ROW_WEIGHT };
            self.row_us += weight * (row_us - self.row_us);
        }
        if sent.is_replay {
            let n_rows = sent.n_rows;
            return Some((sent, n_rows));
        }
        let batch = self.queue.pop_front().expect("what is sent and no replay is in the queue");
        self.n_begun -= 1;
        self.replay.record(&batch.spans, &batch.tokens);
        let n_tokens = batch.tokens.len();
        match sent.n_wanted == 0 || batch.is_forgotten {
            true => self.free.push(batch),
            false => self.done = Some(batch),
        }
        Some((sent, n_tokens))
    }

    /// Begins the next one: what the nodes have forgotten first. `false` if there is none.
    pub(super) fn begin_next(&mut self, now: u64) -> bool {
        let is_replay = self.begin_replay();
        if !is_replay {
            let Some(batch) = self.queue.get(self.n_begun) else { return false };
            self.current.spans.clone_from(&batch.spans);
            self.current.tokens.clone_from(&batch.tokens);
            self.n_begun += 1;
        }
        let spans = &self.current.spans;
        self.sent.push_back(Sent {
            number: self.next_number,
            n_wanted: spans.iter().map(FrameSpan::n_wanted).sum(),
            n_rows: self.current.tokens.len(),
            is_replay,
            begun_us: now,
            is_decoding: spans.iter().all(FrameSpan::is_next_token),
        });
        self.next_number = self.next_number.wrapping_add(1);
        true
    }

    fn begin_replay(&mut self) -> bool {
        let Some((span, ids)) = self.replay.next_batch() else { return false };
        self.current.spans.clear();
        self.current.spans.push(span);
        self.current.tokens.clear();
        self.current.tokens.extend_from_slice(ids);
        true
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let waiting = self.queue.iter().chain(&self.free).chain(&self.done);
        let batches = waiting.chain([&self.current]);
        batches.clone().map(|batch| batch.spans.capacity() * size_of::<FrameSpan>()).sum::<usize>()
            + batches.map(|batch| batch.tokens.capacity() * 4).sum::<usize>()
            + self.replay.heap_bytes()
            + (self.queue.capacity() + self.free.capacity()) * size_of::<KeptBatch>()
            + self.sent.capacity() * size_of::<Sent>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::FrameWants;
    use crate::wire::{Dtype, KvType};

    #[test]
    fn what_prompts_took_tells_how_long_all_takes_again() {
        let sizes = Sizes {
            ctx_len: 64,
            n_streams: 1,
            max_batch: 16,
            max_logits: 1,
            kv: KvType::F16,
            wire: Dtype::F32,
            dim: 4,
        };
        let mut course = Course::new(&sizes, 2);
        let mut run = |pos: u32, rows: u16, us: u64| {
            let span =
                FrameSpan { stream: 0, wants: FrameWants::None, pos, n_rows: rows, is_long: false };
            course.submit(&[span], &vec![7; rows.into()]);
            assert!(course.begin_next(1000));
            course.answered(1000 + us).unwrap();
            course.again_us(2)
        };
        assert_eq!(run(0, 1, 900), None);
        assert_eq!(run(1, 15, 1500), Some(16 * 100 / 2));
        // A token more tells nothing of rows.
        assert_eq!(run(16, 1, 90_000), Some(17 * 100 / 2));
        assert_eq!(run(17, 15, 3000), Some(32 * 125 / 2));
    }
}
