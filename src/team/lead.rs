//! The node that begins epochs and batches.

mod opening;

use std::time::Duration;

use super::error::TeamError;
use super::exchange::{Ended, Exchange, TeamFigures};
use super::mesh::Mesh;
use super::opening::Opening;
use super::parts::Gathered;
use super::patience::SILENT_US;
use crate::group::{Membership, Notice, Roll, Setbacks};
use crate::transport::Micros;
use crate::wire::frame::{self, FramePage, FrameSpan, NodeLine, Work};
use opening::Gathering;

/// Sleep on a link that has no room.
const NAP: Duration = Duration::from_millis(1);
/// Time in which members must confirm a CLOSE.
const CLOSE_WITHIN_US: Micros = 300_000;

/// Writes a frame of an epoch into a buffer, after what was sent; returns its length, and what is sent with it.
type Emit<'e> = &'e dyn Fn(u32, (usize, usize), &mut [u8]) -> Option<(usize, (usize, usize))>;

/// Node 0 of a team.
pub struct Lead {
    exchange: Exchange,
    /// The epoch, and how long the members are waited for.
    group: Membership,
    /// Since when no batch is under way and no member is waited for.
    idle_since: Option<Micros>,
    /// Number of the next batch.
    seq: u32,
    /// The members' lines, by index - 1.
    lines: Vec<NodeLine>,
}

impl Lead {
    /// The lead over `mesh`. Its epochs follow `epoch_seed`, which must differ between runs: a member may
    /// remember epochs of an earlier run.
    ///
    /// # Panics
    /// If the mesh is not node 0's.
    pub fn new(mesh: Mesh, epoch_seed: u32) -> Lead {
        assert!(mesh.own() == 0, "the lead is node 0");
        // The members are known by their links.
        let group = Membership::new(epoch_seed, Roll::new(Vec::new(), mesh.n_nodes()), None);
        let exchange = Exchange::new(mesh);
        Lead { exchange, group, idle_since: None, seq: 0, lines: Vec::new() }
    }

    /// The lead of another team, over `mesh`, which goes on with this one's counts and is interrupted as it is.
    pub(crate) fn over(&self, mesh: Mesh, epoch_seed: u32) -> Lead {
        let mut lead = Lead::new(mesh, epoch_seed);
        lead.group.setbacks = self.group.setbacks;
        lead.exchange.is_interrupted = self.exchange.is_interrupted;
        lead
    }

    /// Has [`Lead::start`] and [`Lead::gather`] poll this function while members are silent for long, and end with
    /// [`TeamError::Interrupted`] if it returns true. Members at work are waited for: the streams keep their KV.
    pub fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.exchange.is_interrupted = is_interrupted;
    }

    /// Begins an epoch: asks all members to be ready for `opening`, as they come up, and waits until they
    /// are, at most for `timeout` without progress; opening again without any answered batch in between is no
    /// progress. A member that goes meanwhile is waited for. Calls `tell` once for each member that is waited
    /// for, comes, is ready or refuses.
    ///
    /// # Errors
    /// [`TeamError::Refused`], [`TeamError::Timeout`], [`TeamError::Interrupted`].
    ///
    /// # Panics
    /// If `opening` has not one share for each node.
    pub fn open(
        &mut self,
        opening: &Opening,
        is_interrupted: &dyn Fn() -> bool,
        tell: &mut dyn FnMut(&Notice),
        timeout: Option<Duration>,
    ) -> Result<(), TeamError> {
        assert!(opening.shares.len() == self.exchange.mesh.n_nodes());
        if self.exchange.epoch.is_some() && !self.is_open() {
            self.group.trouble(|| "a member's links began anew".to_owned());
        }
        self.exchange.epoch = None;
        self.seq = 0;
        self.end_idling();
        self.group.limit(timeout.map(|timeout| timeout.as_micros() as u64));
        self.group.waits(self.exchange.mesh.now());
        let mut gathering = Gathering::new(&self.exchange.mesh, opening, tell);
        let waited = gathering.wait(&mut self.group, is_interrupted);
        let now = self.exchange.mesh.now();
        self.idle_since = Some(now);
        if waited.is_err() {
            self.group.give_up(now);
            return waited;
        }
        (self.lines, self.exchange.sessions) = gathering.finish();
        self.group.opened(now);
        self.group.begin();
        self.exchange.begin(self.group.epoch());
        Ok(())
    }

    /// A batch is through, which is progress.
    pub fn answered(&mut self) {
        let now = self.exchange.mesh.now();
        self.group.answered(now);
        self.idle_since = Some(now);
    }

    /// The time in which nothing was waited for does not count as time without progress.
    fn end_idling(&mut self) {
        if let Some(since) = self.idle_since.take() {
            self.group.pause(self.exchange.mesh.now().saturating_sub(since));
        }
    }

    /// Records that the streams lost their KV, and `n_batches` batches, which are recomputed.
    pub fn lost(&mut self, n_batches: u64) {
        self.group.setbacks.streams_lost += 1;
        self.group.setbacks.batches_lost += n_batches;
    }

    /// Counts of what the team lost since it was formed.
    pub fn setbacks(&self) -> &Setbacks {
        &self.group.setbacks
    }

    /// The members' lines of the last [`Lead::open`] that succeeded, in the order of their indices, without
    /// the lead.
    pub fn lines(&self) -> &[NodeLine] {
        &self.lines
    }

    /// Whether the epoch is open, and no link of it was started again.
    pub fn is_open(&self) -> bool {
        let Exchange { mesh, sessions, epoch, .. } = &self.exchange;
        let is_up = |node: usize| {
            let mut links = mesh.lock(node);
            links.drop_events();
            links.sessions() == sessions[node]
        };
        epoch.is_some() && mesh.peers().all(is_up)
    }

    /// Sends the next batch to all members: spans, and the ids of all their rows if these are embedded.
    ///
    /// # Errors
    /// [`TeamError::Lost`], [`TeamError::NotOpen`], [`TeamError::Interrupted`]; the epoch is over then.
    ///
    /// # Panics
    /// If a batch has more than 65,535 ids or spans.
    pub fn start(
        &mut self,
        work: Work,
        spans: &[FrameSpan],
        tokens: &[u32],
    ) -> Result<(), TeamError> {
        let seq = self.seq;
        self.seq = seq.wrapping_add(1);
        self.tell_all((spans.len(), tokens.len()), &|epoch, n_sent, room| {
            frame::emit_pass((epoch, seq), work, spans, tokens, n_sent, room)
        })
    }

    /// Tells all members that streams have these pages from the next batch on.
    ///
    /// # Errors
    /// See [`Lead::start`].
    pub fn change_pages(&mut self, pages: &[FramePage]) -> Result<(), TeamError> {
        self.tell_all((pages.len(), 0), &|epoch, (n_sent, _), room| {
            let (bytes, n) = frame::emit_pages(epoch, &pages[n_sent..], room)?;
            Some((bytes, (n_sent + n, 0)))
        })
    }

    /// Sends all members the frames that `emit` writes, until it has written `n_all`.
    fn tell_all(&mut self, n_all: (usize, usize), emit: Emit<'_>) -> Result<(), TeamError> {
        let epoch = self.exchange.epoch.ok_or(TeamError::NotOpen)?;
        self.exchange.mesh.drive();
        self.end_idling();
        self.group.begins_batch(self.exchange.mesh.now());
        for node in self.exchange.mesh.peers() {
            if let Err(error) = self.tell(node, epoch, n_all, emit) {
                self.exchange.epoch = None;
                return self.ended(Err(error));
            }
        }
        self.exchange.begin_batch();
        Ok(())
    }

    fn tell(
        &self,
        node: usize,
        epoch: u32,
        n_all: (usize, usize),
        emit: Emit<'_>,
    ) -> Result<(), TeamError> {
        let exchange = &self.exchange;
        let mut n_sent = (0, 0);
        let (mut is_begun, mut moved_us) = (false, exchange.mesh.now());
        while !is_begun || n_sent != n_all {
            let mut links = exchange.mesh.lock(node);
            links.drop_events();
            let sessions = exchange.sessions[node];
            if sessions.is_none() || links.sessions() != sessions {
                return Err(TeamError::Lost { node });
            }
            let sent = links.send(|room| {
                let (bytes, end) = emit(epoch, n_sent, room)?;
                (n_sent, is_begun) = (end, true);
                Some(bytes)
            });
            if sent {
                links.service(Duration::ZERO);
                moved_us = exchange.mesh.now();
                continue;
            }
            links.leave();
            links.service(NAP);
            let is_silent = exchange.mesh.now() >= moved_us + SILENT_US;
            if is_silent && (exchange.is_interrupted)() {
                return Err(TeamError::Interrupted);
            }
        }
        Ok(())
    }

    /// Nodes of the team, the lead included.
    pub fn n_nodes(&self) -> usize {
        self.exchange.mesh.n_nodes()
    }

    /// Sends the lead's columns of `rows` to all members, unless only the lead gets the result, and receives
    /// theirs.
    ///
    /// # Errors
    /// [`TeamError::Lost`], [`TeamError::NotOpen`], [`TeamError::Interrupted`]; the epoch is over then.
    ///
    /// # Panics
    /// If another gather is under way, there is not one part for each node, a part is outside of a row, or one is
    /// 4 GiB or longer.
    pub fn gather(&mut self, mut rows: Gathered<'_>) -> Result<(), TeamError> {
        let done = self.exchange.gather(&mut rows).map_err(error);
        self.ended(done)
    }

    /// Begins a gather of the last of `rows`, whose parts are no longer than
    /// [`started_max`](super::started_max): the lead may compute while parts arrive. Rows before it are those
    /// of the open gather, if there is one.
    ///
    /// # Errors
    /// See [`Lead::gather`].
    ///
    /// # Panics
    /// See [`Lead::gather`]; but one gather may be under way, and its rows must be there.
    pub fn start_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        let done = self.exchange.start(rows).map_err(error);
        self.ended(done)
    }

    /// Takes what is missing of the first of `rows`; they are those of all gathers under way.
    ///
    /// # Errors
    /// See [`Lead::gather`].
    ///
    /// # Panics
    /// If they are not.
    pub fn finish_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        let done = self.exchange.finish(rows).map_err(error);
        self.ended(done)
    }

    /// Notes the end of a call.
    fn ended(&mut self, ended: Result<(), TeamError>) -> Result<(), TeamError> {
        if ended.is_err() {
            self.idle_since = Some(self.exchange.mesh.now());
        }
        if let Err(TeamError::Lost { node }) = ended {
            self.group.trouble(|| TeamError::Lost { node }.to_string());
        }
        ended
    }

    /// Tells the members that the lead goes, and waits for a moment until they know.
    pub fn close(&mut self) {
        self.exchange.epoch = None;
        let mesh = &self.exchange.mesh;
        let end = mesh.now() + CLOSE_WITHIN_US;
        for node in mesh.peers() {
            let mut links = mesh.lock(node);
            links.send(|room| frame::emit_close(self.group.epoch(), room));
            links.service(Duration::ZERO);
        }
        for node in mesh.peers() {
            let mut links = mesh.lock(node);
            while links.in_flight() > 0 && links.sessions().is_some() && mesh.now() < end {
                links.drop_events();
                links.leave();
                links.service(NAP);
            }
        }
    }

    /// The mesh again.
    pub fn into_mesh(self) -> Mesh {
        self.exchange.mesh
    }

    /// Totals of the gathers so far.
    pub fn figures(&self) -> TeamFigures {
        self.exchange.figures
    }
}

fn error(ended: Ended) -> TeamError {
    match ended {
        Ended::Lost(node) => TeamError::Lost { node },
        Ended::Interrupted => TeamError::Interrupted,
        Ended::Superseded | Ended::NotOpen => TeamError::NotOpen,
    }
}
