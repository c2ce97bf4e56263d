//! The master's batches, from when they are submitted until their results are taken.

use std::collections::VecDeque;

use super::Sizes;
use super::batch;
use super::fetch::PagesToRead;
use super::pages::PAGES_OFTEN;
use crate::wire::frame::{FrameKeep, FramePage, FrameSpan};

/// Batches under way for each node: one computed, one waiting for it.
pub(super) const BATCHES_PER_NODE: usize = 2;
/// Rows of a batch from which on it shows what a row of a prompt takes.
const ROWS_MIN: usize = 8;
/// Smoothing factor of the time of a row.
const ROW_WEIGHT: f32 = 0.25;
/// Least number of frames that a link's receiver holds. Results never need more, so the last node can always
/// send them, whatever the master does.
const FRAMES_HELD: usize = 12;

/// Most batches in flight in a ring of `n_nodes` nodes.
pub(super) fn window(sizes: &Sizes, frame_bytes: usize, n_nodes: usize) -> usize {
    let frames = batch::frames_per_result(sizes, frame_bytes);
    (BATCHES_PER_NODE * n_nodes).min(FRAMES_HELD / frames).max(1)
}

/// Slots for results in a ring with up to `window` batches in flight: one for each, and one in the caller's hands.
pub(super) fn slots(window: usize) -> usize {
    window + 1
}

/// A batch as its user gave it.
#[derive(Default)]
struct KeptBatch {
    spans: Vec<FrameSpan>,
    /// Ids of all rows.
    tokens: Vec<u32>,
    /// Pages that are to be kept before it is begun, and pages that streams have from then on.
    keeps: Vec<FrameKeep>,
    pages: Vec<FramePage>,
    /// Pages to read, for a batch that is a FETCH instead of rows.
    fetch: Option<PagesToRead>,
    /// Whether its user went away: it still has to be computed, as later ones build on it.
    is_forgotten: bool,
    /// Slot of the results, once they are back.
    slot: usize,
}

/// A batch under way.
pub(super) struct Sent {
    pub(super) number: u32,
    pub(super) n_wanted: usize,
    pub(super) n_rows: usize,
    /// Time of the start.
    pub(super) begun_us: u64,
    /// Whether each of the batch's rows is a stream's next token.
    pub(super) is_decoding: bool,
    /// Whether it is about pages that are read.
    pub(super) is_fetch: bool,
}

/// The batches.
pub(super) struct Course {
    /// Batches without an answer, the oldest first.
    queue: VecDeque<KeptBatch>,
    /// Number of the queue's batches that have been begun in this epoch.
    n_begun: usize,
    /// Whether any has been begun since the nodes had forgotten everything.
    has_begun: bool,
    /// KV length of each stream.
    reached: Vec<usize>,
    /// Lost positions that still have to be recomputed.
    n_to_recompute: usize,
    /// Begun in this epoch and not answered, in order.
    sent: VecDeque<Sent>,
    free: Vec<KeptBatch>,
    current: KeptBatch,
    /// Batches whose results are back and have not been taken, the oldest first. There are several only if
    /// results came while no batch was begun.
    done: VecDeque<KeptBatch>,
    /// Most batches under way, however many nodes there are.
    window: usize,
    next_number: u32,
    /// Recent microseconds from the start of a prompt's batch to its result, for each of its rows; 0 if
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
            keeps: Vec::new(),
            pages: Vec::with_capacity(PAGES_OFTEN),
            fetch: None,
            is_forgotten: false,
            slot: 0,
        };
        Course {
            queue: VecDeque::with_capacity(window),
            n_begun: 0,
            has_begun: false,
            reached: vec![0; sizes.n_streams.into()],
            n_to_recompute: 0,
            sent: VecDeque::with_capacity(window),
            free: (0..window + 1).map(|_| batch()).collect(),
            current: batch(),
            done: VecDeque::with_capacity(slots(window)),
            window,
            next_number: 0,
            row_us: 0.0,
        }
    }

    /// Most batches under way, however many nodes there are.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Number of submitted batches, without the oldest one whose results are back.
    pub(super) fn n_submitted(&self) -> usize {
        self.queue.len() + self.done.len().saturating_sub(1)
    }

    /// Number of batches that were begun and are not answered.
    pub(super) fn n_sent(&self) -> usize {
        self.sent.len()
    }

    /// Whether one is to be begun.
    pub(super) fn is_behind(&self) -> bool {
        self.n_begun < self.queue.len()
    }

    /// Whether results are back and have not been taken.
    pub(super) fn is_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Spans of the batch to compute, or of the one whose results are back.
    pub(super) fn spans(&self) -> &[FrameSpan] {
        &self.done.front().unwrap_or(&self.current).spans
    }

    /// Slot of the results that are taken next.
    pub(super) fn slot(&self) -> usize {
        self.done.front().map_or(0, |batch| batch.slot)
    }

    /// Slot for the next results.
    pub(super) fn free_slot(&self) -> usize {
        let is_free = |slot: &usize| self.done.iter().all(|batch| batch.slot != *slot);
        (0..slots(self.window)).find(is_free).expect("no more are submitted than there are slots")
    }

    /// Spans and ids of the batch to compute.
    pub(super) fn current(&self) -> (&[FrameSpan], &[u32]) {
        (&self.current.spans, &self.current.tokens)
    }

    /// Pages that streams have from that batch on. They are told once, if it is begun twice.
    pub(super) fn pages(&self) -> &[FramePage] {
        &self.current.pages
    }

    /// Pages that are to be kept before that. They are told once, too.
    pub(super) fn keeps(&self) -> &[FrameKeep] {
        &self.current.keeps
    }

    /// Pages to read, if the batch is a FETCH.
    pub(super) fn fetch(&self) -> Option<&PagesToRead> {
        self.current.fetch.as_ref()
    }

    /// Number of pages that the oldest batch asks for.
    pub(super) fn n_asked(&self) -> usize {
        let fetch = self.queue.front().and_then(|batch| batch.fetch.as_ref());
        fetch.map_or(0, |fetch| fetch.pages.len())
    }

    /// Whether the caller waits for results of any that is submitted.
    pub(super) fn is_awaited(&self) -> bool {
        let wanted = |batch: &KeptBatch| batch.spans.iter().any(|span| span.n_wanted() > 0);
        self.queue.iter().any(|batch| !batch.is_forgotten && wanted(batch))
    }

    /// The one that was begun last.
    pub(super) fn last_sent(&self) -> Option<&Sent> {
        self.sent.back()
    }

    /// The one that is answered next.
    pub(super) fn first_sent(&self) -> Option<&Sent> {
        self.sent.front()
    }

    /// Submits a batch, with pages to keep before it, and pages that streams have from then on.
    pub(super) fn submit(
        &mut self,
        (spans, tokens): (&[FrameSpan], &[u32]),
        (keeps, pages): (&[FrameKeep], &[FramePage]),
        fetch: Option<PagesToRead>,
    ) {
        let mut batch = self.free.pop().unwrap_or_default();
        batch.spans.clear();
        batch.spans.extend_from_slice(spans);
        batch.tokens.clear();
        batch.tokens.extend_from_slice(tokens);
        batch.pages.clear();
        batch.pages.extend_from_slice(pages);
        batch.keeps.clear();
        batch.keeps.extend_from_slice(keeps);
        batch.fetch = fetch;
        batch.is_forgotten = false;
        self.queue.push_back(batch);
    }

    /// Marks all batches as forgotten: their results are dropped when they arrive.
    pub(super) fn forget(&mut self) {
        self.queue.iter_mut().for_each(|batch| batch.is_forgotten = true);
        self.free.extend(self.done.drain(..));
    }

    /// The results of the oldest that is done have been taken.
    pub(super) fn finish(&mut self) {
        self.free.extend(self.done.pop_front());
    }

    /// An epoch begins. Returns how many were under way, which are begun again.
    pub(super) fn restart(&mut self) -> usize {
        let n_sent = self.sent.len();
        self.sent.clear();
        self.n_begun = 0;
        n_sent
    }

    /// Drops all batches, which build on KV that the nodes have lost. `false` if there was none.
    pub(super) fn drop_streams(&mut self) -> bool {
        self.restart();
        let is_lost = std::mem::take(&mut self.has_begun);
        if is_lost {
            self.free.extend(self.queue.drain(..));
            self.n_to_recompute = self.reached.iter().sum();
            self.reached.fill(0);
        }
        is_lost
    }

    /// Expected microseconds for `n_nodes` to recompute all that has been answered, if known: they compute
    /// batches of several rows, each node another batch.
    pub(super) fn again_us(&self, n_nodes: usize) -> Option<u64> {
        let n_tokens: usize = self.reached.iter().sum();
        let us = self.row_us * n_tokens as f32 / n_nodes.max(1) as f32;
        (self.row_us > 0.0).then_some(us as u64)
    }

    /// Takes the results in `slot` for the oldest batch in flight. Returns what was sent, and whether the
    /// batch only recomputed lost positions; for a FETCH, whether it was forgotten.
    pub(super) fn answered(&mut self, now: u64, slot: usize) -> Option<(Sent, bool)> {
        let sent = self.sent.pop_front()?;
        if !sent.is_decoding && sent.n_rows >= ROWS_MIN {
            let row_us = now.saturating_sub(sent.begun_us) as f32 / sent.n_rows as f32;
            let weight = if self.row_us == 0.0 { 1.0 } else { ROW_WEIGHT };
            self.row_us += weight * (row_us - self.row_us);
        }
        let is_again = self.n_to_recompute > 0 && !sent.is_decoding;
        if is_again {
            self.n_to_recompute = self.n_to_recompute.saturating_sub(sent.n_rows);
        }
        let mut batch = self.queue.pop_front().expect("what is sent is in the queue");
        let is_again = if sent.is_fetch { batch.is_forgotten } else { is_again };
        self.n_begun -= 1;
        for span in &batch.spans {
            self.reached[usize::from(span.stream)] = span.pos as usize + usize::from(span.n_rows);
        }
        match sent.n_wanted == 0 || batch.is_forgotten {
            true => self.free.push(batch),
            false => {
                batch.slot = slot;
                self.done.push_back(batch);
            }
        }
        Some((sent, is_again))
    }

    /// Begins the next one. `false` if there is none.
    pub(super) fn begin_next(&mut self, now: u64) -> bool {
        let Some(batch) = self.queue.get_mut(self.n_begun) else { return false };
        self.current.spans.clone_from(&batch.spans);
        self.current.tokens.clone_from(&batch.tokens);
        self.current.pages.clear();
        self.current.pages.append(&mut batch.pages);
        self.current.keeps.clear();
        self.current.keeps.append(&mut batch.keeps);
        self.current.fetch.clone_from(&batch.fetch);
        self.n_begun += 1;
        self.has_begun = true;
        let spans = &self.current.spans;
        self.sent.push_back(Sent {
            number: self.next_number,
            n_wanted: spans.iter().map(FrameSpan::n_wanted).sum(),
            n_rows: self.current.tokens.len(),
            begun_us: now,
            is_decoding: spans.iter().all(FrameSpan::is_next_token),
            is_fetch: self.current.fetch.is_some(),
        });
        self.next_number = self.next_number.wrapping_add(1);
        true
    }

    /// Takes back the batch begun last, of which no node has heard: it is begun again. That holds for forgotten ones,
    /// too: the caller may already count on their positions.
    pub(super) fn take_back(&mut self) {
        if self.sent.pop_back().is_some() {
            self.next_number = self.next_number.wrapping_sub(1);
            self.n_begun -= 1;
        }
    }

    /// Bytes that it keeps on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let waiting = self.queue.iter().chain(&self.free).chain(&self.done);
        let batches = waiting.chain([&self.current]);
        batches.clone().map(|batch| batch.spans.capacity() * size_of::<FrameSpan>()).sum::<usize>()
            + batches.clone().map(|batch| batch.tokens.capacity() * 4).sum::<usize>()
            + batches
                .clone()
                .map(|batch| batch.pages.capacity() * size_of::<FramePage>())
                .sum::<usize>()
            + batches.map(|batch| batch.keeps.capacity() * size_of::<FrameKeep>()).sum::<usize>()
            + self.reached.capacity() * size_of::<usize>()
            + (self.queue.capacity() + self.done.capacity() + self.free.capacity())
                * size_of::<KeptBatch>()
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
            n_pages: 1,
            max_batch: 16,
            max_logits: 1,
            kv: KvType::F16,
            wire: Dtype::F32,
            dim: 4,
        };
        let mut course = Course::new(&sizes, 2);
        let mut run = |pos: u32, rows: u16, us: u64| {
            let span = FrameSpan {
                stream: 0,
                wants: FrameWants::None,
                pos,
                n_rows: rows,
                is_long: false,
                state: [None; 2],
            };
            course.submit((&[span], &vec![7; rows.into()]), (&[], &[]), None);
            assert!(course.begin_next(1000));
            course.answered(1000 + us, 0).unwrap();
            course.again_us(2)
        };
        assert_eq!(run(0, 1, 900), None);
        assert_eq!(run(1, 15, 1500), Some(16 * 100 / 2));
        // A token more tells nothing of rows.
        assert_eq!(run(16, 1, 90_000), Some(17 * 100 / 2));
        assert_eq!(run(17, 15, 3000), Some(32 * 125 / 2));
    }
}
