//! A team that has the whole model and no ring: when a node is lost it begins anew.

use std::time::Instant;

use crate::engine::error::StepError;
use crate::engine::seat::Seat;
use crate::model::{Batch, ForwardError, Span, Stage};

/// The batches of a team, as its lead's engine submits them.
pub(in crate::engine) struct TeamAlone {
    /// When the last pass ended, or the team became another one.
    progress: Instant,
    /// Whether the nodes have stored anything since they were ready, and whether they have lost that.
    has_stored: bool,
    is_lost: bool,
    /// Spans of the batch whose logits have still to be collected.
    spans: Vec<Span>,
    is_waiting: bool,
}

impl TeamAlone {
    /// For batches of up to `max_batch` spans.
    pub(in crate::engine) fn new(max_batch: usize) -> TeamAlone {
        TeamAlone {
            progress: Instant::now(),
            has_stored: false,
            is_lost: false,
            spans: Vec::with_capacity(max_batch),
            is_waiting: false,
        }
    }

    /// Waits until all nodes are ready.
    ///
    /// # Errors
    /// If a node is refused, or the wait is interrupted.
    pub(in crate::engine) fn open(&mut self, seat: &mut Seat<'_>) -> Result<(), StepError> {
        let n_changes = seat.n_team_changes();
        let is_intact = seat.assemble_team()?;
        if !is_intact {
            self.is_lost |= std::mem::take(&mut self.has_stored);
        }
        if seat.n_team_changes() != n_changes {
            // Other nodes are waited for as long again.
            self.progress = Instant::now();
        }
        Ok(())
    }

    /// Whether a batch can be submitted.
    pub(in crate::engine) fn has_room(&self) -> bool {
        !self.is_waiting
    }

    /// Has all nodes run `batch`. Once it has begun it is interrupted only where it waits for other nodes.
    ///
    /// # Errors
    /// [`StepError::Lost`] if a node was lost, once the team is ready again, unless that has been of no use for as long as
    /// it may be waited for. As [`TeamAlone::open`], or if the batch does not fit.
    pub(in crate::engine) fn submit(
        &mut self,
        seat: &mut Seat<'_>,
        batch: &Batch,
    ) -> Result<(), StepError> {
        if seat.is_interrupted() {
            return Err(StepError::Interrupted);
        }
        self.open(seat)?;
        if std::mem::take(&mut self.is_lost) {
            return Err(StepError::Lost);
        }
        self.has_stored = true;
        let ran = seat.embed(batch).and_then(|()| seat.run_layers(batch.spans()));
        if let Err(ForwardError::Gather(_)) = ran
            && seat.team_timeout().is_none_or(|timeout| self.progress.elapsed() <= timeout)
        {
            self.open(seat)?;
            self.is_lost = false;
            return Err(StepError::Lost);
        }
        ran?;
        self.progress = Instant::now();
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    /// The batch submitted that wants logits, and these.
    pub(in crate::engine) fn collect<'a>(
        &'a mut self,
        seat: Seat<'a>,
    ) -> (&'a [Span], &'a mut [f32]) {
        self.is_waiting = false;
        let n_wanted = self.spans.iter().map(Span::n_wanted).sum();
        (&self.spans, seat.into_logits(n_wanted))
    }

    /// Drops the logits of all submitted batches.
    pub(in crate::engine) fn forget(&mut self) {
        self.is_waiting = false;
    }
}
