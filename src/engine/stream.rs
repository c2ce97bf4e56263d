//! Sequences of tokens, and the slots and KV pages that they hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::pages::{Held, PageCopy, PageFigures, Pages};
use crate::format::model::Header;
use crate::model::{KV_PAGE, KvPlan, PageChange, PagePair, Span, StateUse, Wants};

/// A sequence of tokens with its KV cache. Belongs to the engine that made it. Dropping it frees its slot.
#[derive(Debug)]
pub struct Stream {
    index: usize,
    places: Arc<Places>,
    /// The ids whose keys and values are stored.
    pub(super) ids: Vec<u32>,
    /// Most positions stored at once since the stream was empty. With a sliding window, later positions
    /// overwrite earlier ones.
    pub(super) reached: usize,
    /// Pages that hold the keys and values of `ids`.
    held: Held,
    /// Value of [`PlacesState::n_losses`] when the stream was last empty.
    n_losses: u64,
    /// Number of ids from which on, exclusively, a text is a long one.
    long_from: usize,
    /// The checkpoint that the state behind these ids comes from, until later ids have been computed.
    continued: Option<(usize, u32)>,
    /// Checkpoints that the state behind these ids goes to.
    kept: heapless::Vec<(usize, u32), KEPT_MAX>,
}

/// Most checkpoints that one batch adds to a stream.
const KEPT_MAX: usize = 8;

impl Stream {
    /// An empty stream in a free slot of `places`, for the model of `header`, with capacity for `ctx_len`
    /// ids. `None` if no slot is free.
    pub(super) fn new(places: &Arc<Places>, header: &Header, ctx_len: usize) -> Option<Stream> {
        let (index, n_losses) = {
            let mut state = places.lock();
            (state.free.pop()?, state.n_losses)
        };
        let held = Held::with_capacity(places.ctx_pages);
        let ids = Vec::with_capacity(ctx_len);
        let long_from = header.features.long_rope.as_ref().map(|long| long.original_ctx);
        let long_from = long_from.unwrap_or(usize::MAX);
        let places = Arc::clone(places);
        Some(Stream {
            index,
            places,
            ids,
            reached: 0,
            held,
            n_losses,
            long_from,
            continued: None,
            kept: heapless::Vec::new(),
        })
    }

    /// Ids of the stream's tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Empties the stream.
    pub fn clear(&mut self) {
        let places = Arc::clone(&self.places);
        let mut state = places.lock();
        let n_losses = std::mem::replace(&mut self.n_losses, state.n_losses);
        let is_lost = n_losses != state.n_losses;
        match is_lost {
            false => {
                self.settle_checkpoints(&mut state.pages, true);
                state.pages.release(&mut self.held, &self.ids);
            }
            true => self.held.forget(),
        }
        drop(state);
        (self.continued, self.kept) = (None, heapless::Vec::new());
        self.ids.clear();
        self.reached = 0;
        self.held.is_long = false;
    }

    /// Notes that the stream's ids have been computed: its new checkpoints can be found, and the one that it continued
    /// is needed no longer, unless the stream still has no later ids. Checkpoints behind ids that it no longer has are
    /// freed.
    fn settle_checkpoints(&mut self, pages: &mut Pages, is_over: bool) {
        for (pos, index) in std::mem::take(&mut self.kept) {
            match pos <= self.ids.len() {
                true => pages.end_checkpoint(&self.held, index, pos),
                false => pages.drop_checkpoint(index),
            }
        }
        let is_used = |(pos, _): &mut (usize, u32)| is_over || self.ids.len() > *pos;
        if let Some((_, index)) = self.continued.take_if(is_used) {
            pages.drop_checkpoint(index);
        }
    }

    /// Has the state behind the last of `span`, which this stream has just begun, kept in a checkpoint.
    pub(super) fn keep_state(&mut self, span: &mut Span) {
        if self.kept.is_full() {
            return;
        }
        span.state.to = self.places.lock().pages.take_checkpoint();
        if let Some(index) = span.state.to {
            let _ = self.kept.push((span.pos + span.n_rows, index));
        }
    }

    /// Whether the stored KV of its ids was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.n_losses != self.places.lock().n_losses
    }

    /// Whether the stored KV can be part of a text of `n_ids` ids.
    pub(super) fn serves(&self, n_ids: usize) -> bool {
        self.held.is_long == self.is_long(n_ids)
    }

    /// Whether `n_ids` ids turn the text, so far not a long one, into a long one.
    pub(super) fn crosses(&self, n_ids: usize) -> bool {
        self.is_long(n_ids) && !self.held.is_long
    }

    /// Most ids that the text may have before all of it has to be recomputed.
    pub(super) fn len_max(&self) -> usize {
        if self.held.is_long { usize::MAX } else { self.long_from }
    }

    /// Whether a text of `n_ids` ids is a long one.
    pub(super) fn is_long(&self, n_ids: usize) -> bool {
        n_ids > self.long_from
    }

    /// Notes that the text will have `n_ids` ids. True if that makes it a long one, for which the stored KV
    /// is invalid: the stream is then empty.
    pub(super) fn grow_to(&mut self, n_ids: usize) -> bool {
        let crosses = self.crosses(n_ids);
        if crosses {
            self.clear();
            self.held.is_long = true;
        }
        crosses
    }

    /// Number of tokens in the context.
    pub fn pos(&self) -> usize {
        self.ids.len()
    }

    /// Index of the stream's slot.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Whether the stream's slot is one of `places`.
    pub(super) fn is_of(&self, places: &Arc<Places>) -> bool {
        Arc::ptr_eq(&self.places, places)
    }

    /// The span of the next `n_rows` rows, whose positions count as stored.
    pub(super) fn span(&mut self, n_rows: usize, wants: Wants) -> Span {
        self.reached = self.reached.max(self.pos() + n_rows);
        let (stream, pos, is_long) = (self.index(), self.pos(), self.held.is_long);
        let from = self.continued.filter(|(at, _)| *at == pos).map(|(_, index)| index);
        Span { stream, pos, n_rows, wants, is_long, state: StateUse { from, to: None } }
    }

    /// A span at the position of the next row, which is not stored.
    pub(super) fn span_of_guess(&self) -> Span {
        Span { stream: self.index(), pos: self.pos(), is_long: self.held.is_long, ..Span::EMPTY }
    }

    /// Positions that the stream's pages have room for.
    pub(super) fn room(&self) -> usize {
        self.held.room()
    }

    /// Takes pages for positions up to `end`, or as many as there are. Reports changed pages to `tell`.
    pub(super) fn extend(&mut self, end: usize, tell: &mut dyn FnMut(&PageChange)) {
        let places = Arc::clone(&self.places);
        let mut state = places.lock();
        if self.n_losses == state.n_losses {
            self.settle_checkpoints(&mut state.pages, false);
            let first = state.pages.extend(&mut self.held, &self.ids, end);
            let pairs = state.pages.pairs(&self.held, first);
            pairs.for_each(|(index, to)| tell(&self.change(index, to, None)));
        }
    }

    /// Empties the stream, then takes the pages with the longest stored beginning of `ids`. Reports them to
    /// `tell`.
    pub(super) fn adopt(&mut self, ids: &[u32], tell: &mut dyn FnMut(&PageChange)) {
        self.clear();
        self.held.is_long = self.is_long(ids.len());
        let places = Arc::clone(&self.places);
        let pages = &mut places.lock().pages;
        let (n, copy, checkpoint) = pages.adopt(&mut self.held, ids);
        self.continued = checkpoint.map(|index| (n, index));
        self.ids.extend_from_slice(&ids[..n]);
        for (index, to) in pages.pairs(&self.held, 0) {
            let from =
                copy.filter(|copy| copy.to.page == to.page).map(|PageCopy { from, .. }| from);
            tell(&self.change(index, to, from));
        }
    }

    fn change(&self, index: usize, to: PagePair, from: Option<PagePair>) -> PageChange {
        PageChange { stream: self.index, index, to, from }
    }

    /// Whether there is room, beside what other streams hold, for a text of `len` ids that begins with `ids`.
    pub(super) fn has_room_for(&self, ids: &[u32], len: usize) -> bool {
        let is_long = self.is_long(ids.len());
        self.places.lock().pages.has_room_for((ids, is_long), len)
    }

    /// Positions whose keys and values other streams can share.
    pub(super) fn shared_len(&self) -> usize {
        self.held.shared_len()
    }

    /// Page `index` of the stream, if it has that many.
    pub(super) fn page(&self, index: usize) -> Option<PagePair> {
        self.places.lock().pages.pair(&self.held, index)
    }

    /// The checkpoint of the state behind the stream's first `pos` ids, if there is one.
    pub(super) fn checkpoint(&self, pos: usize) -> Option<u32> {
        self.places.lock().pages.checkpoint_at(&self.held, pos)
    }

    /// Whether the stored KV is that of a long text.
    pub(super) fn is_of_long(&self) -> bool {
        self.held.is_long
    }

    /// Whether a page has become full since the last [`Stream::extend`], or there are checkpoints to settle.
    pub(super) fn has_new_page(&self) -> bool {
        let has_checkpoint = self.continued.is_some() || !self.kept.is_empty();
        has_checkpoint || self.held.room() > 0 && self.held.shared_len() + KV_PAGE <= self.ids.len()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.clear();
        self.places.lock().free.push(self.index);
    }
}

/// Free stream slots of an engine, and the pages of its KV cache. Streams may be dropped on any thread.
#[derive(Debug)]
pub(super) struct Places {
    ctx_pages: usize,
    state: Mutex<PlacesState>,
}

#[derive(Debug)]
struct PlacesState {
    free: Vec<usize>,
    pages: Pages,
    /// How often the contents of all pages were lost.
    n_losses: u64,
}

impl Places {
    /// `n` free slots for streams that share pages.
    pub(super) fn new(n: usize, plan: &KvPlan) -> Arc<Places> {
        let (free, pages) = ((0..n).rev().collect(), Pages::new(plan));
        let state = PlacesState { free, pages, n_losses: 0 };
        Arc::new(Places { ctx_pages: plan.ctx_pages, state: Mutex::new(state) })
    }

    /// Forgets the contents of all pages.
    pub(super) fn forget(&self) {
        let mut state = self.lock();
        state.n_losses += 1;
        state.pages.forget();
    }

    /// Number and use of the pages.
    pub(super) fn figures(&self) -> PageFigures {
        self.lock().pages.figures()
    }

    /// Calls `use_them` with the pages.
    pub(super) fn with_pages<R>(&self, use_them: impl FnOnce(&mut Pages) -> R) -> R {
        use_them(&mut self.lock().pages)
    }

    /// Locks the state, which is valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, PlacesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    use crate::engine::{Engine, EngineError, Options, StepError};

    fn engine(n_streams: usize) -> Engine {
        let options =
            Options { n_streams: Some(n_streams), ctx_len: Some(16), ..Options::default() };
        Engine::open("models/demo.bin".as_ref(), &options).unwrap()
    }

    #[test]
    fn a_dropped_stream_gives_its_place_back() {
        let mut engine = engine(2);
        let (mut first, second) = (engine.stream().unwrap(), engine.stream().unwrap());
        let logits = engine.push(&mut first, &[1, 2, 3]).unwrap().to_vec();
        assert!(matches!(engine.stream(), Err(EngineError::NoStream)));
        drop(second);
        let mut third = engine.stream().unwrap();
        engine.push(&mut third, &[7; 9]).unwrap();
        drop((first, third));
        for _ in 0..5 {
            let mut next = engine.stream().unwrap();
            assert_eq!(
                engine.push(&mut next, &[1, 2, 3]).unwrap(),
                logits,
                "what others left shows"
            );
        }
    }

    #[test]
    fn a_stream_of_another_engine_is_refused() {
        let (mut one, mut other) = (engine(1), engine(1));
        let mut stream = one.stream().unwrap();
        assert_eq!(other.push(&mut stream, &[1]).unwrap_err(), StepError::Stranger);
        assert_eq!(stream.pos(), 0);
        one.push(&mut stream, &[1]).unwrap();
    }
}
