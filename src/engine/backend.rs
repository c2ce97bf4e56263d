//! The runner of an engine's batches: this node or the team that it leads ([`Local`]), or a ring ([`RingMaster`]).

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

/// This node alone, or the team that it leads, with all layers. A team's nodes compute the same batch at the same time,
/// and its logits are ready at the end, so that collecting a result never waits.
pub(super) struct Local {
    /// Spans of the last submitted batch.
    spans: Vec<Span>,
    /// Whether the batch's logits must still be collected.
    is_waiting: bool,
    /// Whether KV was stored since all boards and devices were ready; and whether it is lost.
    has_stored: bool,
    is_lost: bool,
    /// Whether the loss is counted already, with the batch that it interrupted.
    is_counted: bool,
}

impl Local {
    /// A backend for batches of up to `max_batch` spans.
    pub(super) fn new(max_batch: usize) -> Local {
        Local {
            spans: Vec::with_capacity(max_batch),
            is_waiting: false,
            has_stored: false,
            is_lost: false,
            is_counted: false,
        }
    }

    /// Waits until the boards of the team, or the device, are ready.
    fn open(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        if !stage.assemble_parts()? {
            self.is_lost |= std::mem::take(&mut self.has_stored);
        }
        Ok(())
    }

    /// The error of a batch that `error` ended: [`StepError::Lost`] once a board or device that was lost is replaced.
    fn ended(&mut self, stage: &mut OwnStage, error: ForwardError) -> StepError {
        if !matches!(error, ForwardError::Gather(_) | ForwardError::Device(_)) {
            return error.into();
        }
        stage.count_loss(1);
        // If this fails, the next batch reports the loss.
        self.is_counted = true;
        if let Err(error) = self.open(stage) {
            return error;
        }
        (self.is_lost, self.is_counted) = (false, false);
        StepError::Lost
    }
}

impl Backend for Local {
    fn has_room(&self) -> bool {
        !self.is_waiting
    }

    /// Computes `batch`. In a team, only a long silence of other nodes can interrupt it after the start.
    ///
    /// # Errors
    /// [`StepError::Lost`] if a node or device was lost, after the team is ready again. Errors of the wait for it, which
    /// gives up after the longest wait for nodes if opening keeps failing. Or if the batch does not fit.
    fn submit(&mut self, stage: &mut OwnStage, batch: &Batch) -> Result<(), StepError> {
        if stage.team.as_ref().is_some_and(|team| team.is_interrupted()) {
            return Err(StepError::Interrupted);
        }
        self.open(stage)?;
        if std::mem::take(&mut self.is_lost) {
            if !std::mem::take(&mut self.is_counted) {
                stage.count_loss(0);
            }
            return Err(StepError::Lost);
        }
        self.has_stored = true;
        let ran = stage.embed(batch).and_then(|()| stage.run_layers(batch.spans()));
        ran.map_err(|error| self.ended(stage, error))?;
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError> {
        self.is_waiting = false;
        // A team has computed them with the batch.
        if stage.team.is_none() {
            let found = stage.transformer.logits(&self.spans).map(drop);
            found.map_err(|error| self.ended(stage, error))?;
        }
        let n_wanted = self.spans.iter().map(Span::n_wanted).sum();
        Ok((&self.spans, stage.transformer.last_logits(n_wanted)))
    }

    fn forget(&mut self) {
        self.is_waiting = false;
    }

    fn keep(&mut self, stage: &mut OwnStage, page: &PromptPage<'_>) -> bool {
        let OwnStage { transformer, prefixes, team } = stage;
        // In a team no board has whole pages.
        let prefixes = prefixes.as_mut().filter(|_| team.is_none());
        prefixes.is_none_or(|prefixes| prefixes.keep(transformer, page))
    }

    fn can_read(&mut self, stage: &OwnStage) -> bool {
        stage.team.is_none()
    }

    fn read_pages(&mut self, stage: &mut OwnStage, text: Text<'_>, pages: &[PageToRead]) -> usize {
        let OwnStage { transformer, prefixes, .. } = stage;
        prefixes.as_mut().map_or(0, |prefixes| prefixes.read(transformer, text, pages))
    }

    fn assemble(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        self.open(stage)
    }

    #[cfg(feature = "serve")]
    fn reopen(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        self.open(stage)
    }

    /// Changes the team after the last batch's result is collected: another pass would overwrite its logits.
    fn change(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        let is_to_change = stage.team.as_ref().is_some_and(|team| team.is_to_change());
        if self.has_room() && is_to_change { self.open(stage) } else { Ok(()) }
    }
}
