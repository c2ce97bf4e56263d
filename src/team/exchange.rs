//! Code that lead and members share: an epoch, its gathers, and how they end.

use std::time::Duration;

use super::mesh::{Mesh, PeerLinks, Sessions};
use super::parts::{Gathered, To, pack, unpack};
use super::patience::Patience;
use crate::transport::Micros;
use crate::wire::frame::{
    self, Frame, PART_AT, Part, Pass, Reason, Repr, TEAM_NODES_MAX as NODES_MAX,
};

/// Longest sleep while data is missing. Then poll the other links and request retransmission if due; asking
/// earlier would resend data that is still in flight.
const NAP: Duration = Duration::from_millis(1);
/// Most gathers that are under way at a time.
pub const UNDER_WAY_MAX: usize = 2;

/// Totals of a node's gathers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamFigures {
    /// Gathers.
    pub gathers: u64,
    /// Sum over gathers of the longest computation before each, in microseconds. Only the lead knows it, and
    /// the fields below.
    pub slowest_us: u64,
    /// Compute time of each node, in microseconds.
    pub compute_us: [u64; NODES_MAX],
}

/// Reason why a gather ended before it was done. The epoch is over then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Because of this node.
    Lost(usize),
    /// The lead said so.
    Superseded,
    /// The caller was interrupted.
    Interrupted,
    /// The gather never began: no epoch is open.
    NotOpen,
}

/// Progress of a gather with one other node, in bytes of their parts.
#[derive(Clone, Copy, Default)]
struct Progress {
    to_send: usize,
    sent: usize,
    to_take: usize,
    taken: usize,
    /// Compute time that the node reports, in microseconds.
    compute_us: u32,
    /// Number of the frame behind the last one that was sent.
    sent_end: u32,
}

impl Progress {
    fn is_sent(&self) -> bool {
        self.sent == self.to_send
    }

    fn is_taken(&self) -> bool {
        self.taken == self.to_take
    }

    fn is_pending(&self) -> bool {
        !self.is_sent() || !self.is_taken()
    }
}

/// A gather that has begun.
#[derive(Clone, Copy)]
struct UnderWay {
    /// True if no other gather was open: a peer's data for this one then acknowledges all earlier ones.
    is_alone: bool,
    /// Compute time of this node before the gather, in microseconds.
    compute_us: u32,
    nodes: [Progress; NODES_MAX],
}

const IDLE: UnderWay = UnderWay {
    is_alone: true,
    compute_us: 0,
    nodes: [Progress { to_send: 0, sent: 0, to_take: 0, taken: 0, compute_us: 0, sent_end: 0 };
        NODES_MAX],
};

/// Condition that ends a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Room for all of the newest gather.
    Sent,
    /// The oldest gather's end.
    Done,
}

/// Verdict on the oldest frame of a link.
enum Judged {
    /// Take it: a part of the gather that is `ahead` behind the oldest one in flight.
    Take {
        ahead: usize,
        bytes: usize,
        compute_us: u32,
    },
    Drop,
    Later,
    End(Ended),
    Broken(&'static str),
}

/// A node's links and its place in an epoch.
pub(super) struct Exchange {
    pub(super) mesh: Mesh,
    /// The epoch, while it is open.
    pub(super) epoch: Option<u32>,
    /// Sessions that the epoch is held over, by node.
    pub(super) sessions: [Option<Sessions>; NODES_MAX],
    /// Asked while others are silent.
    pub(super) is_interrupted: fn() -> bool,
    pub(super) figures: TeamFigures,
    /// Number of the oldest gather under way, or else of the next one.
    seq: u32,
    /// The gathers under way, the oldest first.
    under_way: [UnderWay; UNDER_WAY_MAX],
    n_under_way: usize,
    /// Number of the frame behind the last one that a node has taken in a finished gather of this epoch.
    given_end: [Option<u32>; NODES_MAX],
    patience: Patience,
    computing: Computing,
    /// Times when the last gathers were done, the latest first.
    done_at: [Micros; UNDER_WAY_MAX],
}

/// Compute time of this node.
struct Computing {
    /// Start of the computation.
    since: Micros,
    /// Microseconds before that, since the node's last part.
    us: u32,
}

impl Exchange {
    pub(super) fn new(mesh: Mesh) -> Exchange {
        Exchange {
            computing: Computing { since: mesh.now(), us: 0 },
            mesh,
            epoch: None,
            sessions: [None; NODES_MAX],
            is_interrupted: || false,
            figures: TeamFigures::default(),
            seq: 0,
            under_way: [IDLE; UNDER_WAY_MAX],
            n_under_way: 0,
            given_end: [None; NODES_MAX],
            patience: Patience::default(),
            done_at: [0; UNDER_WAY_MAX],
        }
    }

    /// Begins an epoch.
    pub(super) fn begin(&mut self, epoch: u32) {
        (self.epoch, self.seq, self.n_under_way) = (Some(epoch), 0, 0);
        self.given_end = [None; NODES_MAX];
    }

    /// A batch begins: this node computes from now on.
    pub(super) fn begin_batch(&mut self) {
        self.computing = Computing { since: self.mesh.now(), us: 0 };
        self.done_at = [self.computing.since; UNDER_WAY_MAX];
    }

    /// Sends this node's columns of `rows` and takes the others'.
    ///
    /// # Panics
    /// If another gather is under way, there is not one part for each node, a part is outside of a row, or one is
    /// 4 GiB or longer.
    pub(super) fn gather(&mut self, rows: &mut Gathered<'_>) -> Result<(), Ended> {
        let rows = std::slice::from_mut(rows);
        self.begin_gather(rows)?;
        self.finish(rows)
    }

    /// Sends this node's columns of the last of `rows`. The rows before are those of open gathers, and
    /// receive parts meanwhile.
    ///
    /// # Panics
    /// See [`Exchange::gather`]; and if there are not rows for each gather under way.
    pub(super) fn start(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), Ended> {
        self.begin_gather(rows)?;
        self.mesh.set_gathering(true);
        self.run(rows, Until::Sent)
    }

    /// Completes the first of `rows`, and receives parts of the others, which are those of the open gathers.
    ///
    /// # Panics
    /// If there are not rows for each gather under way, one or more.
    pub(super) fn finish(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), Ended> {
        assert!(rows.len() == self.n_under_way && self.n_under_way > 0);
        self.stop_computing();
        self.run(rows, Until::Done)?;
        let done = self.under_way[0];
        self.count(&done);
        for (end, progress) in self.given_end.iter_mut().zip(&done.nodes) {
            *end = if progress.to_send > 0 { Some(progress.sent_end) } else { *end };
        }
        self.under_way.rotate_left(1);
        self.n_under_way -= 1;
        self.mesh.set_gathering(self.n_under_way > 0);
        self.seq = self.seq.wrapping_add(1);
        Ok(())
    }

    fn begin_gather(&mut self, rows: &[Gathered<'_>]) -> Result<(), Ended> {
        if self.epoch.is_none() {
            return Err(Ended::NotOpen);
        }
        let n = self.n_under_way;
        assert!(rows.len() == n + 1 && n < UNDER_WAY_MAX);
        self.stop_computing();
        self.under_way[n] = self.plan(&rows[n], n == 0);
        self.n_under_way += 1;
        // A node that sends nothing in this gather reports its compute time in the next.
        let is_told = self.under_way[n].nodes.iter().any(|progress| progress.to_send > 0);
        if is_told || self.mesh.own() == 0 {
            self.computing.us = 0;
        }
        self.mesh.drive();
        Ok(())
    }

    fn plan(&self, rows: &Gathered<'_>, is_alone: bool) -> UnderWay {
        assert!(rows.parts.len() == self.mesh.n_nodes());
        assert!(rows.parts.iter().flatten().all(|range| range.end <= rows.row_bytes));
        let m = rows.bytes.len().checked_div(rows.row_bytes).unwrap_or(0);
        assert!(rows.bytes.len() == m * rows.row_bytes);
        let own = self.mesh.own();
        let part_bytes =
            |node: usize| m * rows.parts[node].iter().map(ExactSizeIterator::len).sum::<usize>();
        let mut planned = UnderWay { is_alone, compute_us: self.computing.us, ..IDLE };
        for node in self.mesh.peers() {
            let (to_send, to_take) = match rows.to {
                To::All => (part_bytes(own), part_bytes(node)),
                To::Lead if own == 0 => (0, part_bytes(node)),
                To::Lead if node == 0 => (part_bytes(own), 0),
                To::Lead => (0, 0),
            };
            assert!(u32::try_from(to_send).is_ok() && u32::try_from(to_take).is_ok());
            planned.nodes[node] = Progress { to_send, to_take, ..Progress::default() };
        }
        planned
    }

    /// Adds to what this node has computed since its last part.
    fn stop_computing(&mut self) {
        let now = self.mesh.now();
        let us = u32::try_from(now.saturating_sub(self.computing.since)).unwrap_or(u32::MAX);
        self.computing = Computing { since: now, us: self.computing.us.saturating_add(us) };
    }

    /// Notes how long the nodes computed before a gather that is done.
    fn count(&mut self, done: &UnderWay) {
        let now = self.mesh.now();
        // No node has computed for longer than since its last part, which came before this.
        let before = self.done_at[usize::from(!done.is_alone || self.n_under_way > 1)];
        let most = u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
        let mut slowest_us = 0;
        for node in 0..self.mesh.n_nodes() {
            let us = match node == self.mesh.own() {
                true => done.compute_us,
                false => done.nodes[node].compute_us,
            };
            self.figures.compute_us[node] += u64::from(us.min(most));
            slowest_us = slowest_us.max(us.min(most));
        }
        self.figures.slowest_us += u64::from(slowest_us);
        self.figures.gathers += 1;
        self.done_at = [now, self.done_at[0]];
    }

    /// Sends and receives until `until`. Any other end gives up the epoch.
    fn run(&mut self, rows: &mut [Gathered<'_>], until: Until) -> Result<(), Ended> {
        let epoch = self.epoch.ok_or(Ended::NotOpen)?;
        let ended = self.exchange(epoch, rows, until);
        self.computing.since = self.mesh.now();
        if ended.is_err() {
            self.mesh.set_gathering(false);
            self.epoch = None;
        }
        ended
    }

    /// Whether this node waits for what it sends to `node` or takes from it.
    fn waits(&self, node: usize, until: Until) -> bool {
        match until {
            Until::Sent => !self.under_way[self.n_under_way - 1].nodes[node].is_sent(),
            Until::Done => self.under_way[0].nodes[node].is_pending(),
        }
    }

    /// Whether there is still something to be sent to `node` or taken from it.
    fn is_pending(&self, node: usize) -> bool {
        self.under_way[..self.n_under_way]
            .iter()
            .any(|under_way| under_way.nodes[node].is_pending())
    }

    fn exchange(
        &mut self,
        epoch: u32,
        rows: &mut [Gathered<'_>],
        until: Until,
    ) -> Result<(), Ended> {
        self.patience.begin(self.mesh.now());
        loop {
            let (mut has_moved, mut is_done) = (false, true);
            for node in self.mesh.peers() {
                if self.is_pending(node) {
                    has_moved |= self.turn(epoch, node, rows)?;
                    is_done &= !self.waits(node, until);
                }
            }
            if is_done && until == Until::Sent {
                return Ok(());
            }
            let now = self.mesh.now();
            if has_moved {
                self.patience.on_come(now);
            }
            if is_done {
                self.patience.end();
                return Ok(());
            }
            if until == Until::Done && self.patience.asks(now) {
                self.ask();
            }
            if self.patience.spins(now) {
                // Where threads are more than cores the peer may wait for this one.
                self.mesh.pause();
            } else {
                self.rest(epoch, rows)?;
            }
        }
    }

    /// Requests retransmission of missing parts: at the end of a pass no later frame would show the loss.
    fn ask(&self) {
        for node in self.mesh.peers() {
            if !self.under_way[0].nodes[node].is_taken() {
                let mut links = self.mesh.lock(node);
                links.ask();
                links.service(Duration::ZERO);
            }
        }
    }

    /// Sleeps until something comes on a link that something is missing on.
    fn rest(&mut self, epoch: u32, rows: &mut [Gathered<'_>]) -> Result<(), Ended> {
        if self.patience.is_silent(self.mesh.now()) && (self.is_interrupted)() {
            return Err(Ended::Interrupted);
        }
        // The others may have said that they go on without waiting for this one, or which node is missing.
        for other in self.mesh.peers() {
            if !self.is_pending(other) {
                self.turn(epoch, other, rows)?;
            }
        }
        let pending = self.mesh.peers().filter(|node| self.is_pending(*node));
        self.mesh.sleep(pending, NAP);
        Ok(())
    }

    /// Sends to a node as much as it has room for, and takes its frames. True if anything was sent or taken.
    fn turn(&mut self, epoch: u32, node: usize, rows: &mut [Gathered<'_>]) -> Result<bool, Ended> {
        let own = self.mesh.own();
        let (n, id) = (self.n_under_way, (epoch, self.seq));
        let under_way = &mut self.under_way[..n];
        let mut links = self.mesh.lock(node);
        links.drop_events();
        if links.sessions() != self.sessions[node] || self.sessions[node].is_none() {
            return Err(Ended::Lost(node));
        }
        // Those before it have been sent.
        let newest = &mut under_way[n - 1];
        let (is_alone, us) = (newest.is_alone, newest.compute_us);
        let of_newest = (epoch, self.seq.wrapping_add(n as u32 - 1));
        let progress = &mut newest.nodes[node];
        let is_first = progress.sent == 0;
        let mut has_moved = send(&mut links, of_newest, &rows[n - 1], (own, us), progress);
        if is_first && has_moved && is_alone {
            // A node that begins another gather has what the peer gave to the earlier ones.
            links.imply_released();
        }
        let before = under_way[0].nodes[node].taken;
        let n_nodes = self.mesh.n_nodes();
        let named = |ended| match ended {
            // A REPORT without another node's index blames its sender.
            Ended::Lost(lost) if lost == own || lost >= n_nodes => Ended::Lost(node),
            ended => ended,
        };
        has_moved |= take(&mut links, id, rows, node, under_way).map_err(named)?;
        links.service(Duration::ZERO);
        // Frames after the end belong to other gathers.
        if under_way.iter().any(|under_way| under_way.nodes[node].is_pending()) {
            has_moved |= take(&mut links, id, rows, node, under_way).map_err(named)?;
        }
        let UnderWay { is_alone, nodes, .. } = &under_way[0];
        if let (0, true, true, Some(end)) =
            (before, nodes[node].taken > 0, *is_alone, self.given_end[node])
        {
            links.on_released(end);
        }
        Ok(has_moved)
    }
}

/// Sends as much of this node's part as there is room for.
fn send(
    links: &mut PeerLinks<'_>,
    id: (u32, u32),
    rows: &Gathered<'_>,
    (own, compute_us): (usize, u32),
    progress: &mut Progress,
) -> bool {
    let before = progress.sent;
    while progress.sent < progress.to_send {
        let Some(room) = links.reserve() else { break };
        let (offset, part_bytes) = (progress.sent as u32, progress.to_send as u32);
        let part = Part { epoch: id.0, gather: id.1, offset, part_bytes, compute_us };
        let Some(part) = frame::emit_part(part, room) else { break };
        let bytes = part.len();
        pack(rows.bytes, rows.row_bytes, &rows.parts[own], progress.sent, part);
        links.commit(PART_AT + bytes);
        progress.sent += bytes;
        progress.sent_end = links.head();
    }
    progress.sent > before
}

/// Takes what has come of a node's parts.
fn take(
    links: &mut PeerLinks<'_>,
    id: (u32, u32),
    rows: &mut [Gathered<'_>],
    node: usize,
    under_way: &mut [UnderWay],
) -> Result<bool, Ended> {
    let mut has_moved = false;
    // Frames after the last part are looked at only while this node waits for others.
    while !(has_moved && is_complete(under_way, node))
        && let Some(frame) = links.front()
    {
        match judge(frame, id, node, under_way) {
            Judged::Take { ahead, bytes, compute_us } => {
                let (progress, rows) = (&mut under_way[ahead].nodes[node], &mut rows[ahead]);
                progress.compute_us = compute_us;
                let piece = &frame[frame.len() - bytes..];
                unpack(piece, progress.taken, rows.row_bytes, &rows.parts[node], rows.bytes);
                progress.taken += bytes;
                has_moved = true;
            }
            Judged::Drop => {}
            Judged::Later => {
                links.leave();
                break;
            }
            Judged::End(ended) => return Err(ended),
            Judged::Broken(what) => {
                log::warn!("node {node} of the team sends {what}");
                links.release();
                return Err(Ended::Lost(node));
            }
        }
        links.release();
    }
    Ok(has_moved)
}

/// Whether a node has given its parts of all these gathers.
fn is_complete(under_way: &[UnderWay], node: usize) -> bool {
    under_way.iter().all(|under_way| under_way.nodes[node].is_taken())
}

/// Judges a frame from `node`, where `id` is of the oldest gather in flight.
fn judge(frame: &[u8], id: (u32, u32), node: usize, under_way: &[UnderWay]) -> Judged {
    let Ok(frame) = Frame::parse(frame) else { return Judged::Broken("what is no frame") };
    match frame.repr() {
        Repr::Part(part) if part.epoch != id.0 => Judged::Drop,
        Repr::Part(part) => {
            let ahead = part.gather.wrapping_sub(id.1);
            judge_part(ahead, (&part, frame.part().len()), node, under_way)
        }
        // Left where it is: it belongs to the caller that ends the gather.
        Repr::Open { .. } | Repr::Close { .. } if node == 0 => Judged::End(Ended::Superseded),
        Repr::Pass(Pass { epoch, .. }) | Repr::Pages { epoch, .. }
            if node == 0 && epoch == id.0 =>
        {
            match is_complete(under_way, node) {
                true => Judged::Later,
                false => Judged::Broken("the next batch in the middle of one"),
            }
        }
        Repr::Report { epoch, reason: Reason::GivenUp(lost) } if epoch == id.0 => {
            Judged::End(Ended::Lost(lost as usize))
        }
        Repr::Refuse { epoch } if epoch == id.0 => Judged::End(Ended::Lost(node)),
        repr if repr.is_of_ring() => Judged::Broken("a frame of a ring"),
        _ => Judged::Drop,
    }
}

/// Judges a part of the gather `ahead` of the oldest one in flight.
fn judge_part(
    ahead: u32,
    (part, bytes): (&Part, usize),
    node: usize,
    under_way: &[UnderWay],
) -> Judged {
    if ahead >= 0x8000_0000 {
        return Judged::Drop;
    }
    let ahead = ahead as usize;
    if !is_complete(&under_way[..ahead.min(under_way.len())], node) {
        return Judged::Broken("the next part before this one's end");
    }
    let Some(progress) = under_way.get(ahead).map(|under_way| &under_way.nodes[node]) else {
        return Judged::Later;
    };
    if part.part_bytes as usize != progress.to_take {
        return Judged::Broken("a part of another size");
    }
    if part.offset as usize != progress.taken || progress.is_taken() {
        return Judged::Broken("a part that does not go on where it was");
    }
    // It ends within the part, as it was parsed.
    Judged::Take { ahead, bytes, compute_us: part.compute_us }
}
