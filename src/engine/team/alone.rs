//! A team that has the whole model and no ring: it begins anew when a node is lost.

use std::time::Instant;

use super::replay::Replay;
use crate::engine::error::StepError;
use crate::engine::ring::{NodeError, frames};
use crate::engine::seat::Seat;
use crate::model::{Batch, ForwardError, Span, Stage, StageInfo};
use crate::wire::Dtype;
use crate::wire::frame::FrameSpan;

/// The batches of a team, as its lead's engine submits them.
pub(in crate::engine) struct TeamAlone {
    /// When the last pass ended.
    progress: Instant,
    /// What the nodes have to be told again.
    replay: Replay,
    /// The batch being submitted, and one of the replay.
    submitted: Vec<FrameSpan>,
    again: Batch,
    /// Spans of the batch whose logits have still to be collected.
    spans: Vec<Span>,
    is_waiting: bool,
}

impl TeamAlone {
    /// For the team of `seat`.
    ///
    /// # Errors
    /// If frames cannot number what there is to be.
    pub(in crate::engine) fn new(seat: &Seat<'_>) -> Result<TeamAlone, NodeError> {
        let StageInfo { plan, header, .. } = seat.about();
        let sizes = frames::sizes(plan, header.dim, Dtype::F32).ok_or(NodeError::Counts)?;
        Ok(TeamAlone {
            progress: Instant::now(),
            replay: Replay::new(&sizes),
            submitted: Vec::with_capacity(plan.max_batch),
            again: Batch::with_capacity(plan.max_batch),
            spans: Vec::with_capacity(plan.max_batch),
            is_waiting: false,
        })
    }

    /// Waits until all nodes are ready, and have what the streams hold.
    ///
    /// # Errors
    /// If they will not be, or nobody waits for it any more.
    pub(in crate::engine) fn open(&mut self, seat: &mut Seat<'_>) -> Result<(), StepError> {
        self.run(seat, None)
    }

    /// Whether a batch can be submitted.
    pub(in crate::engine) fn has_room(&self) -> bool {
        !self.is_waiting
    }

    /// Has all nodes run `batch`. Once it has begun it is interrupted only where it waits for other nodes.
    ///
    /// # Errors
    /// As [`TeamAlone::open`], or if the batch does not fit.
    pub(in crate::engine) fn submit(
        &mut self,
        seat: &mut Seat<'_>,
        batch: &Batch,
    ) -> Result<(), StepError> {
        if seat.is_interrupted() {
            return Err(StepError::Interrupted);
        }
        let fits = frames::to_frames(batch.spans(), &mut self.submitted);
        fits.ok_or(ForwardError::Plan)?;
        self.run(seat, Some(batch))?;
        self.progress = Instant::now();
        self.replay.record(&self.submitted, batch.tokens());
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    /// Has the nodes run `batch`, as often as one of them is lost: the team is opened again then, unless that has been of
    /// no use for as long as it may be waited for.
    fn run(&mut self, seat: &mut Seat<'_>, batch: Option<&Batch>) -> Result<(), StepError> {
        let timeout = seat.team_timeout();
        loop {
            match self.try_run(seat, batch) {
                Err(StepError::Forward(ForwardError::Gather(_)))
                    if timeout.is_none_or(|timeout| self.progress.elapsed() <= timeout) => {}
                result => return result,
            }
        }
    }

    fn try_run(&mut self, seat: &mut Seat<'_>, batch: Option<&Batch>) -> Result<(), StepError> {
        let n_changes = seat.n_team_changes();
        if !seat.assemble_team()? {
            self.replay.restart();
        }
        if seat.n_team_changes() != n_changes {
            // Other nodes are waited for as long again.
            self.progress = Instant::now();
        }
        while let Some((span, tokens)) = self.replay.next_batch() {
            frames::batch(&[span], tokens, &mut self.again);
            run_batch(seat, &self.again)?;
            self.progress = Instant::now();
            // What is missing is sent when there is something to do again.
            if seat.is_interrupted() {
                return Err(StepError::Interrupted);
            }
        }
        batch.map_or(Ok(()), |batch| Ok(run_batch(seat, batch)?))
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

    /// Nobody wants the logits of what has been submitted.
    pub(in crate::engine) fn forget(&mut self) {
        self.is_waiting = false;
    }
}

fn run_batch(seat: &mut Seat<'_>, batch: &Batch) -> Result<(), ForwardError> {
    seat.embed(batch)?;
    seat.run_layers(batch.spans())
}
