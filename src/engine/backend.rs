//! The runner of an engine's batches: this node alone ([`Local`]), or a group that it leads. The group is a
//! ring ([`RingMaster`]), or a team that has the whole model ([`TeamAlone`](super::team::TeamAlone)).

use super::error::StepError;
use super::own_stage::OwnStage;
use super::prefix::{PageToRead, PromptPage, Text};
use super::ring::RingMaster;
use crate::model::{Batch, ForwardError, PageChange, Span, Stage};

/// Computes batches in the order of submission. `stage` is the compute of this node, the same in each call.
pub(super) trait Backend: Send {
    /// Whether a batch can be submitted without waiting for the result of another.
    fn has_room(&self) -> bool;

    /// Number of nodes that compute different batches at the same time.
    fn n_nodes(&self) -> usize {
        1
    }

    /// Pipeline depth for one stream: the time of all nodes divided by the slowest node's time.
    fn depth(&self) -> usize {
        1
    }

    /// Submits a batch, which must fit the plan. Batches that want logits are collected in the order of
    /// submission.
    fn submit(&mut self, stage: &mut OwnStage, batch: &Batch) -> Result<(), StepError>;

    /// Waits for the oldest submitted batch that wants logits, or until `is_waiting` returns false.
    fn wait(
        &mut self,
        _stage: &mut OwnStage,
        _is_waiting: Option<&dyn Fn() -> bool>,
    ) -> Result<(), StepError> {
        Ok(())
    }

    /// Waits for the oldest submitted batch that wants logits. Returns its spans and logits,
    /// `[wanted, vocab_size]`.
    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError>;

    /// Waits for the oldest submitted batch that wants logits, and drops its result.
    fn skip(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        self.forget();
        Ok(())
    }

    /// Drops the results of all submitted batches: the caller will not collect them.
    fn forget(&mut self);

    /// Changes a page of a stream. The change holds from the next batch on.
    fn change_page(&mut self, stage: &mut OwnStage, change: &PageChange) {
        let is_there = stage.change_page(change);
        assert!(is_there, "there is no {change:?}");
    }

    /// Keeps a page of a prompt in files; `false` if the caller should try again later.
    fn keep(&mut self, _stage: &mut OwnStage, _page: &PromptPage<'_>) -> bool {
        true
    }

    /// Whether pages can be read from files: no batch may be in flight.
    fn can_read(&mut self, _stage: &OwnStage) -> bool {
        false
    }

    /// Whether several nodes read pages together, for which no batch may be in flight.
    fn reads_together(&self, _stage: &OwnStage) -> bool {
        false
    }

    /// Has pages of a text read. Returns how many, from the first on, were read.
    fn read_pages(
        &mut self,
        _stage: &mut OwnStage,
        _text: Text<'_>,
        _pages: &[PageToRead],
    ) -> usize {
        0
    }

    /// Notes that no batch follows for the moment. Other nodes then get the pages that they are to keep.
    fn rest(&mut self, _stage: &mut OwnStage) {}

    /// Waits until all nodes that compute with this one are ready.
    fn assemble(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        Ok(())
    }

    /// Applies a requested change to the group, if there is one, and opens the group again.
    fn change(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        Ok(())
    }

    /// Waits again for a group that was given up.
    #[cfg(feature = "serve")]
    fn reopen(&mut self, _stage: &mut OwnStage) -> Result<(), StepError> {
        Ok(())
    }

    /// Polls `is_interrupted` during waits for nodes.
    fn interrupt_by(&mut self, _is_interrupted: fn() -> bool) {}

    /// The ring, if this node is its master.
    fn ring(&self) -> Option<&RingMaster> {
        None
    }

    /// Mutable access to the ring.
    fn ring_mut(&mut self) -> Option<&mut RingMaster> {
        None
    }
}

/// Spans of a batch, and their wanted logits.
pub(super) type Logits<'a> = (&'a [Span], &'a mut [f32]);

/// This node alone, with all layers.
pub(super) struct Local {
    /// Spans of the last submitted batch.
    spans: Vec<Span>,
    /// Whether the batch's logits must still be collected.
    is_waiting: bool,
}

impl Local {
    /// A backend for batches of up to `max_batch` spans.
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
        let computed = stage.transformer.run_layers(batch.spans());
        computed.map_err(|error| without_device(stage, error))?;
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError> {
        self.is_waiting = false;
        let found = stage.transformer.logits(&self.spans).map(|logits| logits.len());
        let len = found.map_err(|error| without_device(stage, error))?;
        let n = len / stage.transformer.model().header().vocab_size;
        Ok((&self.spans, stage.transformer.last_logits(n)))
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

/// Gives the layers of a device that failed back to the CPU, which has to compute the streams' KV again.
fn without_device(stage: &mut OwnStage, error: ForwardError) -> StepError {
    match error {
        ForwardError::Device(_) => stage.assemble_parts().err().unwrap_or(StepError::Lost),
        other => other.into(),
    }
}
