//! Drafts of a smaller model.

use super::drafts::{DRAFTS_MAX, DraftKind, Drafter};
use super::ngrams::NgramDrafter;
use super::stream::Stream;
use super::{Engine, EngineError, StepError};
use crate::sampler::argmax;

/// Most ids of one text that the draft model reads per token, so that other texts are not delayed for long.
const READ_MAX: usize = 32;

/// Drafts by long n-grams, or else by a smaller model with the same vocabulary.
pub struct ModelDrafter {
    engine: Engine,
    /// Whether the small model uses the threads of the large one.
    wants_threads: bool,
    /// Streams of the small model, by lane.
    streams: Vec<Stream>,
    ngrams: NgramDrafter,
    /// Scratch: ids that the small model chose.
    said: Vec<u32>,
}

impl ModelDrafter {
    /// A drafter with `engine`, which runs the smaller model. It drafts for as many texts at a time as
    /// `engine` has streams; texts longer than its context are drafted by n-grams alone. With `wants_threads`
    /// it uses the threads of the larger model, and needs only one of its own.
    ///
    /// # Errors
    /// If there is no stream.
    pub fn new(mut engine: Engine, wants_threads: bool) -> Result<ModelDrafter, EngineError> {
        let mut streams = vec![engine.stream()?];
        while let Ok(stream) = engine.stream() {
            streams.push(stream);
        }
        let ngrams = NgramDrafter::new(streams.len(), engine.ctx_len());
        let said = Vec::with_capacity(DRAFTS_MAX);
        Ok(ModelDrafter { engine, wants_threads, streams, ngrams, said })
    }

    /// Drafts up to `n` ids after `ids`; none while the model has not read all of `ids`.
    fn say(&mut self, lane: usize, ids: &[u32], n: usize) -> Result<(), StepError> {
        self.said.clear();
        let stream = &mut self.streams[lane];
        self.engine.go_back(stream, ids);
        let rest = &ids[stream.pos()..];
        if rest.len() > READ_MAX {
            return self.engine.push(stream, &rest[..READ_MAX]).map(|_| ());
        }
        let mut next = argmax(self.engine.push_and_keep(stream, rest)?);
        while let Some(id) = next {
            self.said.push(id);
            if self.said.len() >= n {
                break;
            }
            next = argmax(self.engine.push(stream, &[id])?);
        }
        Ok(())
    }
}

impl Drafter for ModelDrafter {
    fn trade_threads(&mut self, engine: &mut Engine) {
        if self.wants_threads {
            engine.trade_threads(&mut self.engine);
        }
    }

    fn begin(&mut self, lane: usize, prompt: &[u32]) {
        self.ngrams.begin(lane, prompt);
    }

    fn draft(
        &mut self,
        lane: usize,
        ids: &[u32],
        worth: &dyn Fn(DraftKind) -> usize,
        drafts: &mut Vec<u32>,
    ) -> DraftKind {
        let kind = self.ngrams.draft(lane, ids, worth, drafts);
        let n = worth(DraftKind::Model).min(self.engine.ctx_len().saturating_sub(ids.len()));
        if n == 0 || kind == DraftKind::LongNgram && worth(kind) > 0 {
            return kind;
        }
        if let Err(e) = self.say(lane, ids, n) {
            log::debug!("no draft: {e}");
        }
        if self.said.is_empty() {
            return kind;
        }
        drafts.clear();
        drafts.extend_from_slice(&self.said);
        DraftKind::Model
    }

    fn end(&mut self, lane: usize, ids: &[u32]) {
        self.ngrams.end(lane, ids);
    }
}
