//! The lead of a team: has all nodes run each batch, and begins anew when one of them is lost.

use std::time::{Duration, Instant};

use super::error::TeamStartError;
use super::passes::{Gathering, line};
use crate::engine::error::StepError;
use crate::engine::ring::{NodeError, frames};
use crate::model::{Batch, ForwardError, Span, Stage, TEAM_MAX, Team, Transformer};
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

/// Where the time of passes went, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamTimes {
    /// Passes.
    pub passes: u32,
    /// From the beginning of each to its end.
    pub whole: Duration,
    /// Computing: of what the nodes did before each gather the longest.
    pub slowest: Duration,
    /// Computing, by node.
    pub computing: [Duration; TEAM_MAX],
}

impl TeamTimes {
    /// Moving bytes.
    pub fn gathering(&self) -> Duration {
        self.whole.saturating_sub(self.slowest)
    }

    /// How long node `node` waited for those that still computed.
    pub fn waiting(&self, node: usize) -> Duration {
        self.slowest.saturating_sub(self.computing[node])
    }
}

/// A team as its lead's engine uses it.
pub struct TeamLead {
    lead: Lead,
    opening: Opening,
    options: TeamOptions,
    /// What it would say of itself as a member.
    line: TeamLine,
    is_open: bool,
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
            shares: options.shares.iter().copied().collect(),
            node: 0,
            lead: hello::name(&options.name),
        };
        let mut lead = Lead::new(mesh, options.epoch);
        lead.interrupt_by(options.is_interrupted);
        Ok(TeamLead {
            lead,
            opening,
            line: line(transformer, &options.name),
            progress: Instant::now(),
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
                Err(error) if is_lost(&error) => self.give_up_or_go_on(error)?,
                result => return result,
            }
        }
    }

    /// A node was lost in the middle of a pass: the team is opened again, unless that has been of no use for
    /// as long as it may be waited for.
    fn give_up_or_go_on(&mut self, error: StepError) -> Result<(), StepError> {
        self.is_open = false;
        let timeout = self.options.timeout;
        match timeout.is_some_and(|timeout| self.progress.elapsed() > timeout) {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Sends again what the streams hold.
    fn repeat(&mut self, transformer: &mut Transformer) -> Result<(), StepError> {
        self.replay.restart();
        while let Some((span, tokens)) = self.replay.next_batch() {
            frames::batch(&[span], tokens, &mut self.again);
            let pass = Pass { lead: &mut self.lead, times: &mut self.times };
            pass.run(transformer, &[span], &self.again)?;
            self.progress = Instant::now();
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
        self.lead.interrupt_by(is_interrupted);
    }

    /// The nodes, the lead first.
    pub fn lines(&self) -> impl Iterator<Item = &TeamLine> {
        std::iter::once(&self.line).chain(self.lead.lines())
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

    /// Has all nodes run `batch`. Once it has begun it is interrupted only where it waits for other nodes.
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
            let pass = Pass { lead: &mut self.lead, times: &mut self.times };
            match pass.run(transformer, &self.submitted, batch) {
                Ok(()) => break,
                Err(error) if is_lost(&error) => self.give_up_or_go_on(error)?,
                Err(error) => return Err(error),
            }
        }
        self.progress = Instant::now();
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
struct Pass<'a> {
    lead: &'a mut Lead,
    times: &'a mut TeamTimes,
}

impl Pass<'_> {
    fn run(
        self,
        transformer: &mut Transformer,
        spans: &[FrameSpan],
        batch: &Batch,
    ) -> Result<(), StepError> {
        transformer.about().check(batch)?;
        let (start, before) = (Instant::now(), self.lead.figures());
        self.lead.start(spans, batch.tokens()).map_err(step_error)?;
        transformer.run_in_team(batch, &mut Gathering(self.lead))?;
        self.times.whole += start.elapsed();
        let (after, since) =
            (self.lead.figures(), |after, before| Duration::from_micros(after - before));
        self.times.slowest += since(after.slowest_us, before.slowest_us);
        let nodes = after.compute_us.iter().zip(&before.compute_us);
        for (sum, (after, before)) in self.times.computing.iter_mut().zip(nodes) {
            *sum += since(*after, *before);
        }
        self.times.passes += 1;
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
