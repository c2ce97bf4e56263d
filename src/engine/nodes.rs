//! Who runs a batch: this node alone, a ring, or a team.

use super::error::StepError;
use super::prefix::{PageToRead, PromptPage, Store, Text};
use super::ring::RingMaster;
use super::seat::Seat;
use super::team::TeamAlone;
use crate::model::{Batch, PageChange, Span, Stage};

/// The nodes that run the model's layers, the first of them at the engine's own seat.
pub(super) enum Nodes {
    /// That one has all layers.
    Alone(Submitted),
    /// It is the master of a ring; its place may be a team.
    Ring(Box<RingMaster>),
    /// It is the lead of a team that has all layers.
    Team(Box<TeamAlone>),
}

/// The batch of a node alone whose logits have still to be collected, if there is one.
pub(super) struct Submitted {
    spans: Vec<Span>,
    is_waiting: bool,
}

impl Nodes {
    /// One node, for batches of up to `max_batch` spans.
    pub(super) fn alone(max_batch: usize) -> Nodes {
        Nodes::Alone(Submitted { spans: Vec::with_capacity(max_batch), is_waiting: false })
    }

    /// How many can compute at the same time.
    pub(super) fn count(&self) -> usize {
        match self {
            // A team's compute the same batch.
            Nodes::Alone(_) | Nodes::Team(_) => 1,
            Nodes::Ring(ring) => ring.n_nodes(),
        }
    }

    /// Pipeline depth for one stream: the time of all nodes divided by the slowest node's time.
    pub(super) fn in_a_lap(&self) -> usize {
        let Nodes::Ring(ring) = self else { return 1 };
        let (n, us) = (self.count(), &ring.times().compute_us);
        match us.iter().max() {
            None | Some(0) => n,
            Some(most) => {
                ((us.iter().sum::<u64>() as f64 / *most as f64).round() as usize).clamp(1, n)
            }
        }
    }

    /// Whether a batch can be submitted without waiting for another one's result.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Nodes::Alone(submitted) => !submitted.is_waiting,
            Nodes::Ring(ring) => ring.has_room(),
            Nodes::Team(team) => team.has_room(),
        }
    }

    /// A stream has another page from the next batch on.
    pub(super) fn change_page(&mut self, seat: &mut Seat<'_>, change: &PageChange) {
        match self {
            Nodes::Ring(ring) => ring.change_page(change),
            Nodes::Alone(_) | Nodes::Team(_) => {
                let is_there = seat.change_page(change);
                assert!(is_there, "there is no {change:?}");
            }
        }
    }

    /// Keeps a page of a prompt; `false` if that is to be tried again.
    pub(super) fn keep(&mut self, seat: &mut Seat<'_>, page: &PromptPage<'_>) -> bool {
        match self {
            Nodes::Alone(_) => seat.keep(page),
            Nodes::Ring(ring) => ring.keep(seat, page),
            Nodes::Team(_) => true,
        }
    }

    /// Whether pages can be read from files now: no batch is in flight.
    pub(super) fn can_read(&mut self, seat: &Seat<'_>) -> bool {
        match self {
            Nodes::Alone(_) => true,
            Nodes::Ring(ring) => ring.can_read(seat),
            Nodes::Team(_) => false,
        }
    }

    /// Whether that takes several nodes.
    pub(super) fn reads_together(&self, seat: &Seat<'_>) -> bool {
        matches!(self, Nodes::Ring(ring) if ring.keeps_prefixes(seat))
    }

    /// Has pages of a text read; returns how many, the first, are there.
    pub(super) fn read_pages(
        &mut self,
        (seat, prefixes): (&mut Seat<'_>, &mut Store),
        text: Text<'_>,
        pages: &[PageToRead],
    ) -> usize {
        match self {
            Nodes::Alone(_) => prefixes.read(seat, text, pages),
            Nodes::Ring(ring) => ring.read_pages((seat, prefixes), text, pages),
            Nodes::Team(_) => 0,
        }
    }

    /// Has other nodes hear what they are to keep, as no batch is submitted for now that would tell them.
    pub(super) fn rest(&mut self, seat: &mut Seat<'_>) {
        if let Nodes::Ring(ring) = self {
            ring.send_kept(seat);
        }
    }

    /// Starts a batch. Those that want logits are collected in the same order.
    pub(super) fn submit(&mut self, seat: &mut Seat<'_>, batch: &Batch) -> Result<(), StepError> {
        seat.about().check(batch)?;
        match self {
            Nodes::Alone(submitted) => {
                seat.embed(batch)?;
                seat.run_layers(batch.spans())?;
                submitted.is_waiting = batch.n_wanted() > 0;
                submitted.spans.clear();
                submitted.spans.extend_from_slice(batch.spans());
                Ok(())
            }
            Nodes::Ring(ring) => ring.submit(seat, batch),
            Nodes::Team(team) => team.submit(seat, batch),
        }
    }

    /// The oldest batch submitted that wants logits: its spans, and its logits,
    /// `[wanted, vocab_size]`.
    pub(super) fn collect<'a>(
        &'a mut self,
        seat: Seat<'a>,
    ) -> Result<(&'a [Span], &'a mut [f32]), StepError> {
        match self {
            Nodes::Alone(submitted) => {
                submitted.is_waiting = false;
                Ok((&submitted.spans, seat.transformer.logits(&submitted.spans)?))
            }
            Nodes::Ring(ring) => ring.collect(seat),
            Nodes::Team(team) => Ok(team.collect(seat)),
        }
    }

    /// Waits until the oldest batch submitted that wants logits is there.
    pub(super) fn wait(&mut self, seat: &mut Seat<'_>) -> Result<(), StepError> {
        match self {
            Nodes::Alone(_) | Nodes::Team(_) => Ok(()),
            Nodes::Ring(ring) => ring.wait(seat),
        }
    }

    /// Waits for the oldest batch submitted that wants logits as long as something else `is_waiting` too, if other
    /// nodes compute it.
    pub(super) fn wait_while(
        &mut self,
        seat: &mut Seat<'_>,
        is_waiting: &dyn Fn() -> bool,
    ) -> Result<(), StepError> {
        match self {
            Nodes::Alone(_) | Nodes::Team(_) => Ok(()),
            Nodes::Ring(ring) => ring.wait_while(seat, is_waiting),
        }
    }

    /// Waits for the oldest batch submitted that wants logits, and drops it.
    pub(super) fn skip(&mut self, seat: &mut Seat<'_>) -> Result<(), StepError> {
        match self {
            Nodes::Alone(submitted) => {
                submitted.is_waiting = false;
                Ok(())
            }
            Nodes::Ring(ring) => ring.skip(seat),
            Nodes::Team(team) => {
                team.forget();
                Ok(())
            }
        }
    }

    /// Drops these too, and waits anew until a ring that was given up is complete.
    #[cfg(feature = "serve")]
    pub(super) fn reopen(&mut self, seat: &mut Seat<'_>) -> Result<(), StepError> {
        self.forget();
        match self {
            // A team is waited for when the next batch is submitted.
            Nodes::Alone(_) | Nodes::Team(_) => Ok(()),
            Nodes::Ring(ring) => ring.reopen(seat),
        }
    }

    /// Drops the results of all submitted batches: the caller will not collect them.
    pub(super) fn forget(&mut self) {
        match self {
            Nodes::Alone(submitted) => submitted.is_waiting = false,
            Nodes::Ring(ring) => ring.forget(),
            Nodes::Team(team) => team.forget(),
        }
    }
}
