//! The runner of an engine's batches: this node alone ([`Local`]), or a group of nodes with it: a
//! ring ([`RingMaster`]), or a team that has the whole model ([`TeamAlone`](super::team::TeamAlone)).

use super::error::StepError;
use super::own_stage::OwnStage;
use super::prefix::{PageToRead, PromptPage, Text};
use super::ring::RingMaster;
use crate::model::{Batch, PageChange, Span, Stage};

/// Runs batches in the order of submission. `stage` is the compute of this node, the same in each call.
pub(super) trait Backend: Send {
    /// Whether a batch can be submitted without waiting for another one's result.
    fn has_room(&self) -> bool;

    /// How many nodes compute different batches at the same time.
    fn n_nodes(&self) -> usize {
        1
    }

    /// Pipeline depth for one stream: the time of all nodes divided by the slowest node's time.
    fn depth(&self) -> usize {
        1
    }

    /// Submits a batch, which fits the plan. Batches that want logits are collected in the same order.
    fn submit(&mut self, stage: &mut OwnStage, batch: &Batch) -> Result<(), StepError>;

    /// Waits until the oldest submitted batch that wants logits is back, or `is_waiting` returns false.
    fn wait(
        &mut self,
        _stage: &mut OwnStage,
        _is_waiting: Option<&dyn Fn() -> bool>,
    ) -> Result<(), StepError> {
        Ok(())
    }

    /// Waits for the oldest batch submitted that wants logits: its spans, and its logits, `[wanted, vocab_size]`.
    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError>;

    /// Waits for the oldest batch submitted that wants logits, and drops it.
    fn skip(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        self.forget();
        Ok(())
    }

    /// Drops the results of all submitted batches: the caller will not collect them.
    fn forget(&mut self);

    /// A stream has another page from the next batch on.
    fn change_page(&mut self, stage: &mut OwnStage, change: &PageChange) {
        let is_there = stage.change_page(change);
        assert!(is_there, "there is no {change:?}");
    }

    /// Keeps a page of a prompt in files; `false` if that is to be tried again.
    fn keep(&mut self, _stage: &mut OwnStage, _page: &PromptPage<'_>) -> bool {
        true
    }

    /// Whether pages can be read from files now: no batch is in flight.
    fn can_read(&mut self, _stage: &OwnStage) -> bool {
        false
    }

    /// Whether pages are read by several nodes, which have to be still for that.
    fn reads_together(&self, _stage: &OwnStage) -> bool {
        false
    }

    /// Has pages of a text read; returns how many, the first, are there.
    fn read_pages(
        &mut self,
        _stage: &mut OwnStage,
        _text: Text<'_>,
        _pages: &[PageToRead],
    ) -> usize {
        0
    }

    /// No batch is submitted for now: other nodes hear what they are to keep.
    fn rest(&mut self, _stage: &mut OwnStage) {}

    /// Waits until all that compute with this node are ready.
    fn assemble(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        Ok(())
    }

    /// Makes the change of the group that was asked for, if there is one, and opens it again.
    fn change(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        Ok(())
    }

    /// Waits again for a group that was given up. A team is waited for when the next batch is submitted.
    #[cfg(feature = "serve")]
    fn reopen(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        Ok(())
    }

    /// From now on `is_interrupted` is asked while nodes are waited for.
    fn interrupt_by(&mut self, _is_interrupted: fn() -> bool) {}

    /// The ring, if this is its master.
    fn ring(&self) -> Option<&RingMaster> {
        None
    }

    /// The ring, to change it.
    fn ring_mut(&mut self) -> Option<&mut RingMaster> {
        None
    }
}

/// Spans of a batch, and the logits that they want.
pub(super) type Logits<'a> = (&'a [Span], &'a mut [f32]);

/// This node alone, which has all layers.
pub(super) struct Local {
    /// Spans of the batch that was submitted last.
    spans: Vec<Span>,
    /// Whether its logits have still to be collected.
    is_waiting: bool,
}

impl Local {
    /// For batches of up to `max_batch` spans.
    pub(super) fn new(max_batch: usize) -> Local {
        Local { spans: Vec::with_capacity(max_batch), is_waiting: false }
    }
}

impl Backend for Local {
    fn has_room(&self) -> bool {
        !self.is_waiting
    }

    fn submit(&mut self, stage: &mut OwnStage, batch: &Batch) -> Result<(), StepError> {
        stage.transformer.embed(batch)?;
        stage.transformer.run_layers(batch.spans())?;
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError> {
        self.is_waiting = false;
        Ok((&self.spans, stage.transformer.logits(&self.spans)?))
    }

    fn forget(&mut self) {
        self.is_waiting = false;
    }

    fn keep(&mut self, stage: &mut OwnStage, page: &PromptPage<'_>) -> bool {
        let OwnStage { transformer, prefixes, .. } = stage;
        prefixes.as_mut().is_none_or(|prefixes| prefixes.keep(transformer, page))
    }

    fn can_read(&mut self, _: &OwnStage) -> bool {
        true
    }

    fn read_pages(&mut self, stage: &mut OwnStage, text: Text<'_>, pages: &[PageToRead]) -> usize {
        let OwnStage { transformer, prefixes, .. } = stage;
        prefixes.as_mut().map_or(0, |prefixes| prefixes.read(transformer, text, pages))
    }
}
