//! The backend of a ring's master: submitted batches go round the ring and return in order.

use super::{Goal, RingMaster};
use crate::engine::backend::{Backend, Logits};
use crate::engine::error::StepError;
use crate::engine::own_stage::OwnStage;
use crate::engine::prefix::{PAGES_MIN, PageToRead, PromptPage, Text};
use crate::engine::ring::frames;
use crate::model::{Batch, ForwardError, PageChange, Span, Stage};
use crate::ring::PagesToRead;

impl Backend for RingMaster {
    fn has_room(&self) -> bool {
        self.master.has_room()
    }

    fn n_nodes(&self) -> usize {
        match self.lines().len() {
            0 => self.n_nodes,
            n => n,
        }
    }

    fn depth(&self) -> usize {
        let (n, us) = (Backend::n_nodes(self), &self.times().compute_us);
        match us.iter().max() {
            None | Some(0) => n,
            Some(most) => {
                ((us.iter().sum::<u64>() as f64 / *most as f64).round() as usize).clamp(1, n)
            }
        }
    }

    /// Sends a batch; waits only if too many are in flight.
    fn submit(&mut self, stage: &mut OwnStage, batch: &Batch) -> Result<(), StepError> {
        let fits = frames::to_frames(batch.spans(), &mut self.next.spans);
        fits.ok_or(ForwardError::Plan)?;
        self.drive(stage, Goal::Room)?;
        let rows = (&self.next.spans[..], batch.tokens());
        self.master.submit(rows, (&self.next.keeps, &self.next.pages));
        self.next.pages.clear();
        self.next.keeps.clear();
        self.drive(stage, Goal::Room)
    }

    /// Polls `is_waiting` every millisecond.
    fn wait(
        &mut self,
        stage: &mut OwnStage,
        is_waiting: Option<&dyn Fn() -> bool>,
    ) -> Result<(), StepError> {
        self.drive_while(stage, Goal::Done, is_waiting)
    }

    fn collect<'a>(&'a mut self, stage: &'a mut OwnStage) -> Result<Logits<'a>, StepError> {
        self.drive(stage, Goal::Done)?;
        let spans = &mut self.results.spans;
        spans.clear();
        spans.extend(self.master.spans().iter().map(frames::from_frame));
        let wanted: usize = spans.iter().map(Span::n_wanted).sum();
        loop {
            let (precision, rows) = self.results.returned.rows(self.master.result_row(), wanted);
            match stage.classify(precision, rows).map(|_| ()) {
                Ok(()) => {
                    self.results.is_taken = true;
                    return Ok((&self.results.spans, stage.transformer.last_logits(wanted)));
                }
                // Nothing else is computed before the rows are taken.
                Err(ForwardError::Gather(_) | ForwardError::Device(_)) => {
                    self.begin_anew(stage)?;
                    self.drive(stage, Goal::Open)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn skip(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        self.drive(stage, Goal::Done)?;
        self.results.is_taken = true;
        Ok(())
    }

    /// Streams continue as if the results had been collected, unless these are lost.
    fn forget(&mut self) {
        self.results.is_taken = false;
        self.master.forget_pending();
    }

    fn change_page(&mut self, _: &mut OwnStage, change: &PageChange) {
        self.next.pages.push(frames::to_page(change));
    }

    /// Has all nodes keep a page of a prompt, which submitted batches compute, before the next batch. The
    /// nodes get all pages of a prompt, or none.
    fn keep(&mut self, stage: &mut OwnStage, page: &PromptPage<'_>) -> bool {
        if page.n_whole < PAGES_MIN {
            return true;
        }
        let may_keep = self.may_keep(stage);
        if may_keep {
            self.next.keeps.push(frames::to_keep(page));
        }
        may_keep
    }

    fn can_read(&mut self, stage: &OwnStage) -> bool {
        if std::mem::take(&mut self.results.is_taken) {
            self.master.finish();
        }
        !self.master.is_awaited() && self.may_keep(stage)
    }

    fn reads_together(&self, stage: &OwnStage) -> bool {
        self.keeps_prefixes(stage)
    }

    fn read_pages(&mut self, stage: &mut OwnStage, text: Text<'_>, pages: &[PageToRead]) -> usize {
        self.send_round(stage, frames::to_read(text, pages))
    }

    fn rest(&mut self, stage: &mut OwnStage) {
        if !self.next.keeps.is_empty() {
            self.send_round(stage, PagesToRead::default());
            self.next.keeps.clear();
        }
    }

    fn change(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        match self.look_for_changes(stage) {
            true => self.open(stage),
            false => Ok(()),
        }
    }

    #[cfg(feature = "serve")]
    fn reopen(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        self.master.ask_again();
        self.drive(stage, Goal::Open)
    }

    fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.user.is_interrupted = is_interrupted;
    }

    fn ring(&self) -> Option<&RingMaster> {
        Some(self)
    }

    fn ring_mut(&mut self) -> Option<&mut RingMaster> {
        Some(self)
    }
}
