//! The lead of a team: computes passes together with all members.

mod changes;

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::error::TeamStartError;
use super::passes::{Gathering, forward_error, line};
use crate::engine::error::StepError;
use crate::engine::ring::{NodeError, Setbacks, frames};
use crate::group::Notice;
use crate::model::{
    Batch, ForwardError, PageChange, Plan, Precision, Share, Span, Stage, StageInfo, TEAM_MAX,
    Team, Transformer, check_spans,
};
use crate::team::{Lead, Mesh, NodeLine, Opening, TeamError, Work};
use crate::wire::Dtype;
use crate::wire::frame::{BOARDS_MAX, BoardReport, BoardsReport, FramePage, FrameSpan};
use crate::wire::hello;

// A report of a node that is a team has room for all of its boards.
const _: () = assert!(BOARDS_MAX == TEAM_MAX);

/// Pause before a lead asks a member again that has refused.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Callback for notices of the team.
pub type TellTeam = Box<dyn FnMut(&Notice) + Send>;

/// Number of changed pages for which memory is reserved: more change in a pass only when a text begins.
const PAGES_OFTEN: usize = 8;

/// Options of a team's lead.
pub struct TeamOptions {
    /// Name of the lead.
    pub name: String,
    /// Share of each node in proportion to the others, the lead first.
    pub shares: Vec<u16>,
    /// Type in which values for the residual stream are gathered. f16 gives other bits than f32, but the same
    /// in every team.
    pub wire: Dtype,
    /// Longest wait for the other nodes; `None` to wait forever.
    pub timeout: Option<Duration>,
    /// Called at each timeout: true extends the wait, because a member has made progress with its preparations since
    /// the last call.
    pub is_coming: Box<dyn FnMut() -> bool + Send>,
    /// First epoch: a random number.
    pub epoch: u32,
    /// Polled during waits; `true` ends the wait.
    pub is_interrupted: fn() -> bool,
    /// Callback for notices of the team.
    pub tell: TellTeam,
    /// Requests for another team.
    pub changes: Option<Receiver<OtherTeam>>,
}

/// Opens a lead's links, or returns the reason why they cannot open.
pub type LinkTeam = Box<dyn FnMut() -> Result<Mesh, String> + Send>;

/// Another team of the same model and lead. The change happens when no batch is in flight.
pub struct OtherTeam {
    /// Share of each node in proportion to the others, the lead first. The lead may be alone.
    pub shares: Vec<u16>,
    /// Tells the members, or returns the names of those that could not be told.
    pub tell: Box<dyn FnOnce() -> Result<(), String> + Send>,
    /// Opens the links, after those of the former team are closed.
    pub link: LinkTeam,
    /// Callback for notices of the new team.
    pub notices: TellTeam,
    /// Gets the outcome: the change is made, or the reason why not.
    pub done: Sender<Result<(), String>>,
}

/// Sums of the times of passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamTimes {
    /// Number of passes.
    pub passes: u32,
    /// Tokens of those passes in which each row is a stream's next token.
    pub tokens: u64,
    /// Time from beginning to end of each pass.
    pub whole: Duration,
    /// Computing time: for each gather, that of the slowest node before it.
    pub slowest: Duration,
    /// Computing time by node.
    pub computing: [Duration; TEAM_MAX],
}

impl TeamTimes {
    /// Time of the gathers themselves.
    pub fn gathering(&self) -> Duration {
        self.whole.saturating_sub(self.slowest)
    }

    /// Number of passes since `before`, and each node's computing time for them; `None` if the times were
    /// reset since then.
    pub fn since(&self, before: &TeamTimes) -> Option<(u32, [Duration; TEAM_MAX])> {
        let passes = self.passes.checked_sub(before.passes)?;
        let mut computing = self.computing;
        for (time, before) in computing.iter_mut().zip(&before.computing) {
            *time = time.checked_sub(*before)?;
        }
        Some((passes, computing))
    }

    /// Time that `node` waited for slower nodes to finish computing.
    pub fn waiting(&self, node: usize) -> Duration {
        self.slowest.saturating_sub(self.computing[node])
    }
}

/// A team, in the form that its lead uses. It has the layers of its lead's transformer.
pub struct TeamLead {
    lead: Lead,
    options: TeamOptions,
    /// The lead's description of itself.
    line: NodeLine,
    /// Whether the nodes are ready for the transformer's plan; a node may have been lost since.
    is_open: bool,
    /// Ids that were embedded; empty if rows were put instead.
    ids: Vec<u32>,
    /// Spans of a pass, converted for frames.
    spans: Vec<FrameSpan>,
    /// Changed pages of streams, valid from the next pass on.
    pages: Vec<FramePage>,
    times: TeamTimes,
    /// The next change of the team.
    waiting: RefCell<Option<OtherTeam>>,
    /// Opens the links of the next team; `None` if there is no change.
    link: Option<LinkTeam>,
}

impl TeamLead {
    /// A lead that has `transformer` compute its part, over `mesh`.
    ///
    /// # Errors
    /// If the model cannot be shared with these shares, or there is no memory for this part.
    pub fn new(
        transformer: &mut Transformer,
        mesh: Mesh,
        options: TeamOptions,
    ) -> Result<TeamLead, TeamStartError> {
        let (plan, header) = (*transformer.about().plan, transformer.model().header());
        let sizes = frames::sizes(&plan, header.dim, Dtype::F32);
        sizes.ok_or(TeamStartError::Node(NodeError::Counts))?;
        let team = Team::new(header, &options.shares, 0).map_err(TeamStartError::Shares)?;
        if header.slice().is_some_and(|slice| slice != team.own()) {
            return Err(TeamStartError::Rows);
        }
        let team = team.with_wire(frames::precision(options.wire));
        transformer.set_team(Some(team), plan).map_err(TeamStartError::Start)?;
        let mut lead = Lead::new(mesh, options.epoch);
        lead.interrupt_by(options.is_interrupted);
        Ok(TeamLead {
            lead,
            line: line(transformer, &options.name),
            options,
            is_open: false,
            ids: Vec::with_capacity(plan.max_batch),
            spans: Vec::with_capacity(plan.max_batch),
            pages: Vec::with_capacity(PAGES_OFTEN),
            times: TeamTimes::default(),
            waiting: RefCell::default(),
            link: None,
        })
    }

    /// Waits until all nodes are ready, those of another team if one is requested. `false` if the nodes were
    /// not ready without a break since the last call, so that the streams' KV is lost.
    ///
    /// # Errors
    /// If a node is refused, or the wait is interrupted.
    pub(in crate::engine) fn assemble(
        &mut self,
        transformer: &mut Transformer,
    ) -> Result<bool, StepError> {
        let began = Instant::now();
        loop {
            self.change(transformer)?;
            if self.is_open && self.lead.is_open() {
                return Ok(true);
            }
            self.is_open = false;
            let opening = self.opening(transformer).ok_or(ForwardError::Plan)?;
            let TeamOptions { is_interrupted, tell, timeout, is_coming, changes, .. } =
                &mut self.options;
            let waiting = &self.waiting;
            let is_over = || is_interrupted() || is_asked_for(waiting, changes.as_ref());
            match self.lead.open(&opening, &is_over, tell, *timeout) {
                Ok(()) => break,
                Err(TeamError::Timeout { .. }) if is_coming() => {}
                Err(TeamError::Interrupted) if !is_interrupted() => {}
                // A change of the team may leave out the member.
                Err(TeamError::Refused { .. })
                    if changes.is_some() && timeout.is_none_or(|limit| began.elapsed() < limit) =>
                {
                    thread::sleep(ASKED_AGAIN_AFTER);
                }
                Err(error) => return Err(step_error(error)),
            }
        }
        self.is_open = true;
        self.pages.clear();
        Ok(false)
    }

    /// The opening for which members prepare.
    fn opening(&self, transformer: &Transformer) -> Option<Opening> {
        let StageInfo { plan, header, share, .. } = transformer.about();
        let sizes = frames::sizes(plan, header.dim, self.options.wire)?;
        Some(Opening {
            sizes,
            layers: share.layers.start as u32..share.layers.end as u32,
            has_ends: share.has_ends,
            shares: self.options.shares.iter().copied().collect(),
            node: 0,
            lead: hello::name(&self.options.name),
        })
    }

    /// Notes that the transformer has another plan. The nodes are then asked again.
    pub(in crate::engine) fn replan(&mut self, plan: &Plan) {
        self.is_open = false;
        self.ids.reserve(plan.max_batch);
        self.spans.reserve(plan.max_batch);
    }

    /// Polls `is_interrupted` during waits.
    pub(in crate::engine) fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.options.is_interrupted = is_interrupted;
        self.lead.interrupt_by(is_interrupted);
    }

    /// Whether the work is to end.
    pub(in crate::engine) fn is_interrupted(&self) -> bool {
        (self.options.is_interrupted)()
    }

    /// Records that the streams lost their KV, and `n_batches` batches.
    pub(in crate::engine) fn lost(&mut self, n_batches: u64) {
        self.lead.lost(n_batches);
    }

    /// Counts of losses since the team was formed; all are 0 if nothing failed.
    pub fn setbacks(&self) -> &Setbacks {
        self.lead.setbacks()
    }

    /// The nodes, the lead first; members only after they have been ready.
    pub fn lines(&self) -> impl Iterator<Item = &NodeLine> {
        std::iter::once(&self.line).chain(self.lead.lines())
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.options.shares.len()
    }

    /// Share of each node in proportion to the others, the lead first.
    pub fn shares(&self) -> &[u16] {
        &self.options.shares
    }

    /// Sums of the times of passes.
    pub fn times(&self) -> &TeamTimes {
        &self.times
    }

    /// Work and times of the boards, reported for the node called `name` of a ring.
    pub(in crate::engine) fn report(&self, name: &str) -> BoardsReport {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let board = |((line, share), time): ((&NodeLine, &u16), &Duration)| BoardReport {
            name: line.name.clone(),
            isa: line.isa.clone(),
            bytes_per_token: line.bytes_per_token,
            compute_us: us(*time),
            rtt_us: line.way.rtt_us,
            threads: line.threads,
            share: *share,
        };
        let TeamTimes { passes, whole, slowest, computing, .. } = &self.times;
        BoardsReport {
            name: hello::name(name),
            passes: *passes,
            whole_us: us(*whole),
            slowest_us: us(*slowest),
            boards: self.lines().zip(&self.options.shares).zip(computing).map(board).collect(),
        }
    }

    /// Resets the measured times.
    pub fn start_times(&mut self) {
        self.times = TeamTimes::default();
    }

    /// Embeds the batch, see [`Stage::embed`].
    pub(in crate::engine) fn embed(
        &mut self,
        transformer: &mut Transformer,
        batch: &Batch,
    ) -> Result<(), ForwardError> {
        transformer.embed(batch)?;
        self.ids.clear();
        // If a member lacks the embedding, all members are sent rows instead of ids.
        if self.lead.lines().iter().all(|line| line.embeds) {
            self.ids.extend_from_slice(batch.tokens());
        }
        Ok(())
    }

    /// Stores rows that came from the ring, see [`Stage::put_rows`].
    pub(in crate::engine) fn put_rows(
        &mut self,
        transformer: &mut Transformer,
        first: usize,
        (precision, bytes): (Precision, &[u8]),
    ) {
        self.ids.clear();
        transformer.put_rows(first, precision, bytes);
    }

    /// Changes a page, see [`Stage::change_page`]. The members get the change before the next pass.
    pub(in crate::engine) fn change_page(&mut self, change: &PageChange) {
        self.pages.push(frames::to_page(change));
    }

    /// Computes the layers, see [`Stage::run_layers`]. If these are the whole model, also computes the wanted
    /// logits.
    pub(in crate::engine) fn run_layers(
        &mut self,
        transformer: &mut Transformer,
        spans: &[Span],
    ) -> Result<(), ForwardError> {
        check_spans(spans, transformer.about().plan)?;
        frames::to_frames(spans, &mut self.spans).ok_or(ForwardError::Plan)?;
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        let work = if self.ids.len() == n_rows { Work::Ids } else { Work::Rows };
        let is_whole = has_whole(transformer);
        self.pass(work, &mut |node| {
            let gather = &mut Gathering(node);
            if work == Work::Rows {
                transformer.share_rows(n_rows, gather)?;
            }
            transformer.run_layers_in_team(spans, gather)?;
            if is_whole {
                transformer.logits_in_team(spans, gather)?;
            }
            Ok(())
        })?;
        self.times.passes += 1;
        if n_rows == spans.len() {
            self.times.tokens += n_rows as u64;
        }
        Ok(())
    }

    /// Computes the logits of the first rows, see [`Stage::classify`].
    pub(in crate::engine) fn classify(
        &mut self,
        transformer: &mut Transformer,
        n: usize,
        rows: (Precision, &[u8]),
    ) -> Result<(), ForwardError> {
        let StageInfo { plan, .. } = transformer.about();
        if n > plan.max_logits.min(plan.max_batch) {
            return Err(ForwardError::Plan);
        }
        self.spans.clear();
        self.ids.clear();
        // The plan's number of logits fits into a frame.
        self.pass(Work::Logits(n as u16), &mut |node| {
            transformer.classify_in_team(n, Some(rows), &mut Gathering(node)).map(|_| ())
        })
    }

    /// Announces a pass to the members, and computes this node's part of it.
    fn pass(
        &mut self,
        work: Work,
        run: &mut dyn FnMut(&mut Lead) -> Result<(), ForwardError>,
    ) -> Result<(), ForwardError> {
        let (start, before) = (Instant::now(), self.lead.figures());
        if !self.pages.is_empty() {
            self.lead.change_pages(&self.pages).map_err(forward_error)?;
            self.pages.clear();
        }
        let ids = if work == Work::Ids { &self.ids[..] } else { &[] };
        self.lead.start(work, &self.spans, ids).map_err(forward_error)?;
        run(&mut self.lead)?;
        self.lead.answered();
        self.times.whole += start.elapsed();
        let (after, since) =
            (self.lead.figures(), |after, before| Duration::from_micros(after - before));
        self.times.slowest += since(after.slowest_us, before.slowest_us);
        let nodes = after.compute_us.iter().zip(&before.compute_us);
        for (sum, (after, before)) in self.times.computing.iter_mut().zip(nodes) {
            *sum += since(*after, *before);
        }
        Ok(())
    }
}

impl Drop for TeamLead {
    fn drop(&mut self) {
        self.lead.close();
    }
}

/// Whether another team is requested; `waiting` then holds the request.
fn is_asked_for(
    waiting: &RefCell<Option<OtherTeam>>,
    changes: Option<&Receiver<OtherTeam>>,
) -> bool {
    let mut waiting = waiting.borrow_mut();
    *waiting = waiting.take().or_else(|| changes?.try_recv().ok());
    waiting.is_some()
}

/// Whether the transformer has all layers and both ends.
pub(super) fn has_whole(transformer: &Transformer) -> bool {
    let StageInfo { header, share, .. } = transformer.about();
    *share == Share::whole(header)
}

fn step_error(error: TeamError) -> StepError {
    match error {
        TeamError::Interrupted => StepError::Interrupted,
        error => StepError::Team(error),
    }
}
