//! The lead of a team: has all nodes run each batch, and begins anew when one of them is lost.

use std::time::{Duration, Instant};

use super::error::TeamStartError;
use super::passes::{Gathering, TeamTimes};
use crate::engine::error::StepError;
use crate::engine::ring::{NodeError, frames};
use crate::model::{Batch, ForwardError, Plan, Span, Stage, Team, Transformer};
use crate::ring::Replay;
use crate::team::{Lead, Mesh, Opening, TeamError, TeamLine, TeamNotice};
use crate::wire::Dtype;
use crate::wire::frame::FrameSpan;
use crate::wire::hello;

/// Told what happens to the team.
pub type TellTeam = Box<dyn FnMut(&TeamNotice) + Send>;

/// How a lead works.
pub struct TeamOptions {
    /// What it is called.
    pub name: String,
    /// What each node computes in proportion to the others, the lead first.
    pub shares: Vec<u16>,
    /// Longest wait for the other nodes; `None` to wait for ever.
    pub timeout: Option<Duration>,
    /// A random number.
    pub epoch: u32,
    /// Asked while waiting; `true` ends the wait.
    pub is_interrupted: fn() -> bool,
    /// Told what happens.
    pub tell: TellTeam,
}

/// A team as its lead's engine uses it.
pub struct TeamLead {
    lead: Lead,
    opening: Opening,
    options: TeamOptions,
    is_open: bool,
    /// What the nodes have to be told again.
    replay: Replay,
    /// The batch being submitted, and one of the replay.
    submitted: Vec<FrameSpan>,
    again: Batch,
    /// Spans of the batch whose logits have still to be collected.
    spans: Vec<Span>,
    is_waiting: bool,
    times: TeamTimes,
}

impl TeamLead {
    /// A lead that has `transformer` compute its part, over `mesh`.
    ///
    /// # Errors
    /// If the model cannot be shared so, or there is no memory for it.
    pub fn new(
        transformer: &mut Transformer,
        mesh: Mesh,
        options: TeamOptions,
    ) -> Result<TeamLead, TeamStartError> {
        let (plan, header) = (*transformer.about().plan, transformer.model().header());
        let sizes = frames::sizes(&plan, header.dim, Dtype::F32);
        let sizes = sizes.ok_or(TeamStartError::Node(NodeError::Counts))?;
        let team = Team::new(header, &options.shares, 0).map_err(TeamStartError::Shares)?;
        transformer.set_team(Some(team), plan).map_err(TeamStartError::Start)?;
        let opening = Opening {
            ctx_len: sizes.ctx_len,
            n_streams: sizes.n_streams,
            max_batch: sizes.max_batch,
            max_logits: sizes.max_logits,
            kv: sizes.kv,
            kv_pages: 0,
            shares: options.shares.iter().copied().collect(),
            node: 0,
            lead: hello::name(&options.name),
        };
        Ok(TeamLead {
            lead: Lead::new(mesh, options.epoch),
            opening,
            options,
            is_open: false,
            replay: Replay::new(&sizes),
            submitted: Vec::with_capacity(plan.max_batch),
            again: Batch::with_capacity(plan.max_batch),
            spans: Vec::with_capacity(plan.max_batch),
            is_waiting: false,
            times: TeamTimes::default(),
        })
    }

    /// Waits until all nodes are ready, and have again what the streams hold.
    ///
    /// # Errors
    /// If they are not, or nobody wants it any more.
    pub fn open(&mut self, transformer: &mut Transformer) -> Result<(), StepError> {
        loop {
            let TeamOptions { is_interrupted, tell, timeout, .. } = &mut self.options;
            self.lead.open(&self.opening, is_interrupted, tell, *timeout).map_err(step_error)?;
            self.is_open = true;
            match self.repeat(transformer) {
                Err(error) if is_lost(&error) => self.is_open = false,
                result => return result,
            }
        }
    }

    /// Sends again what the streams hold.
    fn repeat(&mut self, transformer: &mut Transformer) -> Result<(), StepError> {
        self.replay.restart();
        while let Some((span, tokens)) = self.replay.next_batch() {
            frames::batch(&[span], tokens, &mut self.again);
            let run = Run { lead: &mut self.lead, times: &mut self.times };
            run.run(transformer, &[span], &self.again)?;
            if (self.options.is_interrupted)() {
                // What is missing is sent when there is something to do again.
                self.is_open = false;
                return Err(StepError::Interrupted);
            }
        }
        Ok(())
    }

    /// From now on `is_interrupted` is asked while waiting.
    pub(crate) fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.options.is_interrupted = is_interrupted;
    }

    /// The other nodes.
    pub fn lines(&self) -> &[TeamLine] {
        self.lead.lines()
    }

    /// How many nodes there are.
    pub fn n_nodes(&self) -> usize {
        self.options.shares.len()
    }

    /// Where the time of passes went.
    pub fn times(&self) -> &TeamTimes {
        &self.times
    }

    /// Forgets the times so far.
    pub fn start_times(&mut self) {
        self.times = TeamTimes::default();
    }

    /// Whether a batch can be submitted.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_waiting
    }

    /// Has all nodes run `batch`. It is not interrupted once it has begun.
    pub(crate) fn submit(
        &mut self,
        transformer: &mut Transformer,
        batch: &Batch,
    ) -> Result<(), StepError> {
        if (self.options.is_interrupted)() {
            return Err(StepError::Interrupted);
        }
        let fits = frames::to_frames(batch.spans(), &mut self.submitted);
        fits.ok_or(ForwardError::Plan)?;
        loop {
            if !self.is_open {
                self.open(transformer)?;
            }
            let run = Run { lead: &mut self.lead, times: &mut self.times };
            match run.run(transformer, &self.submitted, batch) {
                Err(error) if is_lost(&error) => self.is_open = false,
                result => {
                    result?;
                    break;
                }
            }
        }
        self.replay.record(&self.submitted, batch.tokens());
        self.is_waiting = batch.n_wanted() > 0;
        self.spans.clear();
        self.spans.extend_from_slice(batch.spans());
        Ok(())
    }

    /// The batch submitted that wants logits, and these.
    pub(crate) fn collect<'a>(
        &'a mut self,
        transformer: &'a mut Transformer,
    ) -> (&'a [Span], &'a mut [f32]) {
        self.is_waiting = false;
        let n_wanted = self.spans.iter().map(Span::n_wanted).sum();
        (&self.spans, transformer.team_logits(n_wanted))
    }

    /// Nobody wants the logits of what has been submitted.
    pub(crate) fn forget(&mut self) {
        self.is_waiting = false;
    }
}

impl Drop for TeamLead {
    fn drop(&mut self) {
        self.lead.close();
    }
}

/// One pass of all nodes.
struct Run<'a> {
    lead: &'a mut Lead,
    times: &'a mut TeamTimes,
}

impl Run<'_> {
    fn run(
        self,
        transformer: &mut Transformer,
        spans: &[FrameSpan],
        batch: &Batch,
    ) -> Result<(), StepError> {
        transformer.about().check(batch)?;
        let start = Instant::now();
        self.lead.start(spans, batch.tokens()).map_err(step_error)?;
        let mut gathering = Gathering { node: self.lead, times: &mut *self.times };
        transformer.run_in_team(batch, &mut gathering)?;
        self.times.whole += start.elapsed();
        self.times.passes += 1;
        self.times.rows += batch.tokens().len() as u64;
        Ok(())
    }
}

fn step_error(error: TeamError) -> StepError {
    match error {
        TeamError::Interrupted => StepError::Interrupted,
        error => StepError::Team(error),
    }
}

/// Whether the team has to be opened anew.
fn is_lost(error: &StepError) -> bool {
    match error {
        StepError::Team(error) => matches!(error, TeamError::Lost { .. } | TeamError::NotOpen),
        StepError::Forward(error) => matches!(error, ForwardError::Gather(_)),
        _ => false,
    }
}

/// What a member is to be ready for.
pub(super) fn plan(opening: &Opening) -> Plan {
    frames::plan(&crate::wire::frame::Sizes {
        ctx_len: opening.ctx_len,
        n_streams: opening.n_streams,
        max_batch: opening.max_batch,
        max_logits: opening.max_logits,
        kv: opening.kv,
        wire: Dtype::F32,
        dim: 0,
    })
}
