//! A team that has the whole model, without a ring. When a node is lost, the team starts again.
//!
//! All nodes compute the same batch at the same time, and its logits are ready at the end. So there are never
//! batches in flight as in a ring, and collecting a result never waits.

use super::TeamLead;
use crate::engine::backend::{Backend, Logits};
use crate::engine::error::StepError;
use crate::engine::own_stage::OwnStage;
use crate::model::{Batch, ForwardError, Span, Transformer};
use crate::team::TeamError;

/// The backend of a team's lead.
pub(in crate::engine) struct TeamAlone {
    /// Whether the nodes have stored KV since they were ready; and whether they have lost it.
    has_stored: bool,
    is_lost: bool,
    /// Whether the loss is counted already, with the batch that it interrupted.
    is_counted: bool,
    /// Spans of the batch whose logits must still be collected.
    spans: Vec<Span>,
    is_waiting: bool,
}

impl TeamAlone {
    /// A backend for batches of up to `max_batch` spans.
    pub(in crate::engine) fn new(max_batch: usize) -> TeamAlone {
        TeamAlone {
            has_stored: false,
            is_lost: false,
            is_counted: false,
            spans: Vec::with_capacity(max_batch),
            is_waiting: false,
        }
    }

    /// Waits until all nodes are ready.
    ///
    /// # Errors
    /// If a node is refused, or the wait is interrupted.
    pub(in crate::engine) fn open(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        let (team, transformer) = led(stage)?;
        let is_intact = team.assemble(transformer)?;
        if !is_intact {
            self.is_lost |= std::mem::take(&mut self.has_stored);
        }
        Ok(())
    }
}

/// The team that this node leads, and the transformer that it computes with.
fn led(stage: &mut OwnStage) -> Result<(&mut TeamLead, &mut Transformer), StepError> {
    let team = stage.team.as_deref_mut().ok_or(StepError::Team(TeamError::NotOpen))?;
    Ok((team, &mut stage.transformer))
}

impl Backend for TeamAlone {
    fn has_room(&self) -> bool {
        !self.is_waiting
    }

    /// Has all nodes compute `batch`. After the start only a long silence of other nodes can interrupt it.
    ///
    /// # Errors
    /// [`StepError::Lost`] if a node was lost, after the team is ready again. Errors of [`TeamAlone::open`],
    /// which gives up after the longest wait for nodes if opening keeps failing. Or if the batch does not
    /// fit.
    fn submit(&mut self, stage: &mut OwnStage, batch: &Batch) -> Result<(), StepError> {
        if led(stage)?.0.is_interrupted() {
            return Err(StepError::Interrupted);
        }
        self.open(stage)?;
        if std::mem::take(&mut self.is_lost) {
            if !std::mem::take(&mut self.is_counted) {
                led(stage)?.0.lost(0);
            }
            return Err(StepError::Lost);
        }
        self.has_stored = true;
        let (team, transformer) = led(stage)?;
        let embedded = team.embed(transformer, batch);
        let ran = embedded.and_then(|()| team.run_layers(transformer, batch.spans()));
        if let Err(ForwardError::Gather(_)) = ran {
            team.lost(1);
            // If this fails, the next batch reports the loss.
            self.is_counted = true;
            self.open(stage)?;
            (self.is_lost, self.is_counted) = (false, false);
            return Err(StepError::Lost);
        }
        ran?;
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError> {
        self.is_waiting = false;
        let n_wanted = self.spans.iter().map(Span::n_wanted).sum();
        Ok((&self.spans, stage.transformer.last_logits(n_wanted)))
    }

    fn forget(&mut self) {
        self.is_waiting = false;
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
        match self.has_room() && led(stage)?.0.is_to_change() {
            true => self.open(stage),
            false => Ok(()),
        }
    }
}
