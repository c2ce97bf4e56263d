//! Sequences of tokens, and the places of the KV cache that they hold.

use std::sync::{Arc, Mutex, PoisonError};

use crate::format::model::Header;
use crate::model::{Span, Wants};

/// One sequence of tokens with its KV cache. Belongs to the engine that made it, and gives its place back when
/// it is dropped.
#[derive(Debug)]
pub struct Stream {
    slot: Slot,
    /// The ids whose keys and values are stored.
    pub(super) ids: Vec<u32>,
    /// Most positions that were stored at once since it was empty: with a sliding window, later ones
    /// took the places of earlier ones.
    pub(super) reached: usize,
    /// Ids of the longest text that is not a long one.
    long_from: usize,
    /// Whether what is stored is part of a long text, and of no use to others.
    is_long: bool,
}

impl Stream {
    /// An empty stream in a place of `slots` for the model of `header`, with room for `ctx_len` ids; `None`
    /// if all places are taken.
    pub(super) fn new(slots: &Arc<Slots>, header: &Header, ctx_len: usize) -> Option<Stream> {
        let slot = Slot { index: slots.take()?, slots: Arc::clone(slots) };
        let ids = Vec::with_capacity(ctx_len);
        let long_from = header.features.long_rope.as_ref().map(|long| long.original_ctx);
        let long_from = long_from.unwrap_or(usize::MAX);
        Some(Stream { slot, ids, reached: 0, long_from, is_long: false })
    }

    /// The ids that have been through the model.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Empties the stream.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.reached = 0;
        self.is_long = false;
    }

    /// Whether what is stored can be part of a text of `n_ids` ids.
    pub(super) fn serves(&self, n_ids: usize) -> bool {
        self.is_long == (n_ids > self.long_from)
    }

    /// Whether `n_ids` ids make its text a long one, which it is not.
    pub(super) fn crosses(&self, n_ids: usize) -> bool {
        n_ids > self.long_from && !self.is_long
    }

    /// Its text is to have `n_ids` ids. If that makes it a long one, nothing that is stored can be used:
    /// the stream is empty then, and this says so.
    pub(super) fn grow_to(&mut self, n_ids: usize) -> bool {
        let crosses = self.crosses(n_ids);
        if crosses {
            self.clear();
            self.is_long = true;
        }
        crosses
    }

    /// Number of tokens in the context.
    pub fn pos(&self) -> usize {
        self.ids.len()
    }

    /// Its place.
    pub(super) fn index(&self) -> usize {
        self.slot.index
    }

    /// Whether its place is one of `slots`.
    pub(super) fn is_of(&self, slots: &Arc<Slots>) -> bool {
        Arc::ptr_eq(&self.slot.slots, slots)
    }

    /// The next `n_rows` rows. From now on they may be stored.
    pub(super) fn span(&mut self, n_rows: usize, wants: Wants) -> Span {
        self.reached = self.reached.max(self.pos() + n_rows);
        let (stream, pos, is_long) = (self.index(), self.pos(), self.is_long);
        Span { stream, pos, n_rows, wants, is_long }
    }
}

/// A place that is taken.
#[derive(Debug)]
struct Slot {
    index: usize,
    slots: Arc<Slots>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free().push(self.index);
    }
}

/// The places of an engine's KV cache that nobody has. Streams may be dropped on any thread.
#[derive(Debug)]
pub(super) struct Slots {
    free: Mutex<Vec<usize>>,
}

impl Slots {
    /// `n` free places.
    pub(super) fn new(n: usize) -> Arc<Slots> {
        Arc::new(Slots { free: Mutex::new((0..n).rev().collect()) })
    }

    fn take(&self) -> Option<usize> {
        self.free().pop()
    }

    /// Numbers are valid whatever a thread was doing that panicked.
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
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
