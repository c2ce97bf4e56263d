//! What lead and members have in common: an epoch, its gathers, and how they end.

use std::ops::Range;
use std::time::Duration;

use super::mesh::{Mesh, PeerLinks, Sessions};
use super::patience::Patience;
use crate::transport::Micros;
use crate::wire::team::{self, NODES_MAX, PartPiece, TeamFrame};

/// Longest sleep on the links that something is missing on. Then the others are looked at, too, and what is missing is asked
/// for if it is time: who asks as soon as that has what a slow wire still carries sent again.
const NAP: Duration = Duration::from_millis(1);

/// A node's columns of rows: bytes of a row in two ranges, either of which may be empty.
pub type Part = [Range<usize>; 2];

/// Rows whose columns are spread over the nodes.
#[derive(Debug)]
pub struct Gathered<'a> {
    /// The rows, `[m, row_bytes]`: this node's columns are filled, those of the others will be.
    pub bytes: &'a mut [u8],
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Each node's columns.
    pub parts: &'a [Part],
    /// Who gets them.
    pub to: To,
}

/// Who gets what all nodes computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// All nodes.
    All,
    /// The lead alone; members only send.
    Lead,
}

/// What a node's gathers came to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamFigures {
    /// Gathers.
    pub gathers: u64,
    /// Of what the nodes computed before each, the longest: microseconds, added up. Only the lead knows, as what
    /// follows.
    pub slowest_us: u64,
    /// What each node computed, in microseconds.
    pub compute_us: [u64; NODES_MAX],
}

/// Why a gather ended before it was done. The epoch is over then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Because of this node.
    Lost(usize),
    /// The lead said so.
    Superseded,
    /// The caller was interrupted.
    Interrupted,
    /// It never began: there is no epoch.
    NotOpen,
}

/// What a gather sends to one node and takes from it, in bytes of their parts.
#[derive(Clone, Copy, Default)]
struct Progress {
    to_send: usize,
    sent: usize,
    to_take: usize,
    taken: usize,
    /// How long the node says that it has computed.
    compute_us: u32,
    /// Number of the frame behind the last one that was sent.
    sent_end: u32,
}

impl Progress {
    fn is_pending(&self) -> bool {
        self.sent < self.to_send || self.taken < self.to_take
    }
}

/// What becomes of the oldest frame of a link.
enum Judged {
    Take { at: usize, bytes: usize, compute_us: u32 },
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
    /// Asked now and then.
    pub(super) is_interrupted: fn() -> bool,
    pub(super) figures: TeamFigures,
    /// Number of the next gather.
    seq: u32,
    progress: [Progress; NODES_MAX],
    /// Number of the frame behind the last one that a node has taken in a gather of this epoch that is done.
    given_end: [Option<u32>; NODES_MAX],
    patience: Patience,
    /// When this node began to compute, and how long it had since its last part.
    since: Micros,
    compute_us: u32,
}

impl Exchange {
    pub(super) fn new(mesh: Mesh) -> Exchange {
        Exchange {
            since: mesh.now(),
            mesh,
            epoch: None,
            sessions: [None; NODES_MAX],
            is_interrupted: || false,
            figures: TeamFigures::default(),
            seq: 0,
            progress: [Progress::default(); NODES_MAX],
            given_end: [None; NODES_MAX],
            patience: Patience::default(),
            compute_us: 0,
        }
    }

    /// Begins an epoch.
    pub(super) fn begin(&mut self, epoch: u32) {
        (self.epoch, self.seq) = (Some(epoch), 0);
        self.given_end = [None; NODES_MAX];
    }

    /// A batch begins: this node computes from now on.
    pub(super) fn begin_batch(&mut self) {
        (self.since, self.compute_us) = (self.mesh.now(), 0);
    }

    /// Sends this node's columns of `rows` and takes the others'.
    ///
    /// # Panics
    /// If there is not one part for each node, a part is outside of a row, or one is 4 GiB or longer.
    pub(super) fn gather(&mut self, rows: &mut Gathered<'_>) -> Result<(), Ended> {
        let epoch = self.epoch.ok_or(Ended::NotOpen)?;
        self.plan(rows);
        self.compute_us = self.compute_us.saturating_add(self.elapsed_us());
        self.mesh.drive();
        match self.exchange(epoch, rows) {
            Ok(()) => {
                self.count();
                for (end, progress) in self.given_end.iter_mut().zip(&self.progress) {
                    *end = if progress.to_send > 0 { Some(progress.sent_end) } else { *end };
                }
                self.seq = self.seq.wrapping_add(1);
                Ok(())
            }
            Err(ended) => {
                self.epoch = None;
                Err(ended)
            }
        }
    }

    fn plan(&mut self, rows: &Gathered<'_>) {
        assert!(rows.parts.len() == self.mesh.n_nodes());
        assert!(rows.parts.iter().flatten().all(|range| range.end <= rows.row_bytes));
        let m = rows.bytes.len().checked_div(rows.row_bytes).unwrap_or(0);
        assert!(rows.bytes.len() == m * rows.row_bytes);
        let own = self.mesh.own();
        let part_bytes = |node: usize| m * rows.parts[node].iter().map(Range::len).sum::<usize>();
        for node in self.mesh.peers() {
            let (to_send, to_take) = match rows.to {
                To::All => (part_bytes(own), part_bytes(node)),
                To::Lead if own == 0 => (0, part_bytes(node)),
                To::Lead if node == 0 => (part_bytes(own), 0),
                To::Lead => (0, 0),
            };
            assert!(u32::try_from(to_send).is_ok() && u32::try_from(to_take).is_ok());
            self.progress[node] = Progress { to_send, to_take, ..Progress::default() };
        }
    }

    /// Since this node began to compute.
    fn elapsed_us(&self) -> u32 {
        u32::try_from(self.mesh.now() - self.since).unwrap_or(u32::MAX)
    }

    /// Notes how long the nodes computed before a gather that is done.
    fn count(&mut self) {
        // No node has computed for longer than since the last one.
        let most = self.elapsed_us();
        let mut slowest_us = 0;
        for node in 0..self.mesh.n_nodes() {
            let us = match node == self.mesh.own() {
                true => self.compute_us,
                false => self.progress[node].compute_us,
            };
            self.figures.compute_us[node] += u64::from(us.min(most));
            slowest_us = slowest_us.max(us.min(most));
        }
        self.figures.slowest_us += u64::from(slowest_us);
        self.figures.gathers += 1;
        let has_told = self.mesh.peers().any(|node| self.progress[node].sent > 0);
        let us = if has_told || self.mesh.own() == 0 { 0 } else { self.compute_us };
        (self.since, self.compute_us) = (self.mesh.now(), us);
    }

    fn exchange(&mut self, epoch: u32, rows: &mut Gathered<'_>) -> Result<(), Ended> {
        self.patience.begin(self.mesh.now());
        loop {
            let (mut has_moved, mut is_done) = (false, true);
            for node in self.mesh.peers() {
                if self.progress[node].is_pending() {
                    has_moved |= self.turn(epoch, node, rows)?;
                    is_done &= !self.progress[node].is_pending();
                }
            }
            let now = self.mesh.now();
            if has_moved {
                self.patience.on_come(now);
            }
            if is_done {
                self.patience.end();
                return Ok(());
            }
            if self.patience.asks(now) {
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

    /// Asks for what is missing: it may be lost, and nothing that follows shows it where nothing follows.
    fn ask(&self) {
        for node in self.mesh.peers() {
            if self.progress[node].taken < self.progress[node].to_take {
                let mut links = self.mesh.lock(node);
                links.ask();
                links.service(Duration::ZERO);
            }
        }
    }

    /// Sleeps until something comes on a link that something is missing on.
    fn rest(&mut self, epoch: u32, rows: &mut Gathered<'_>) -> Result<(), Ended> {
        if (self.is_interrupted)() {
            return Err(Ended::Interrupted);
        }
        // The others may have said that they go on without waiting for this one, or who is missed.
        for other in self.mesh.peers() {
            if !self.progress[other].is_pending() {
                self.turn(epoch, other, rows)?;
            }
        }
        let pending = self.mesh.peers().filter(|node| self.progress[*node].is_pending());
        self.mesh.sleep(pending, NAP);
        Ok(())
    }

    /// Sends to a node what there is room for, and takes what has come. Says whether anything was sent or taken.
    fn turn(&mut self, epoch: u32, node: usize, rows: &mut Gathered<'_>) -> Result<bool, Ended> {
        let own = self.mesh.own();
        let id = (epoch, self.seq);
        let progress = &mut self.progress[node];
        let mut links = self.mesh.lock(node);
        links.drop_events();
        if links.sessions() != self.sessions[node] || self.sessions[node].is_none() {
            return Err(Ended::Lost(node));
        }
        let us = self.compute_us;
        let is_first = progress.sent == 0;
        let mut has_moved = send(&mut links, id, rows, (own, us), progress);
        if is_first && has_moved {
            // As this node begins another gather, it has what the peer gave to those before.
            links.imply_released();
        }
        let before = progress.taken;
        let n_nodes = self.mesh.n_nodes();
        let named = |ended| match ended {
            // Who names nobody else means itself.
            Ended::Lost(lost) if lost == own || lost >= n_nodes => Ended::Lost(node),
            ended => ended,
        };
        has_moved |= take(&mut links, id, rows, node, progress).map_err(named)?;
        links.service(Duration::ZERO);
        // What comes behind the end is no matter of this gather.
        if progress.is_pending() {
            has_moved |= take(&mut links, id, rows, node, progress).map_err(named)?;
        }
        if let (0, true, Some(end)) = (before, progress.taken > 0, self.given_end[node]) {
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
        let to_send = progress.to_send as u32;
        let part = team::emit_part(id, progress.sent, to_send, compute_us, room);
        let Some(part) = part else { break };
        let bytes = part.len();
        pack(rows.bytes, rows.row_bytes, &rows.parts[own], progress.sent, part);
        links.commit(team::PART_AT + bytes);
        progress.sent += bytes;
        progress.sent_end = links.head();
    }
    progress.sent > before
}

/// Takes what has come of a node's part.
fn take(
    links: &mut PeerLinks<'_>,
    id: (u32, u32),
    rows: &mut Gathered<'_>,
    node: usize,
    progress: &mut Progress,
) -> Result<bool, Ended> {
    let mut has_moved = false;
    // What follows a part's end is looked at if this node still waits for others.
    while !(has_moved && progress.taken == progress.to_take)
        && let Some(frame) = links.front()
    {
        match judge(frame, id, node, progress) {
            Judged::Take { at, bytes, compute_us } => {
                progress.compute_us = compute_us;
                let piece = &frame[frame.len() - bytes..];
                unpack(piece, at, rows.row_bytes, &rows.parts[node], rows.bytes);
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

/// What becomes of a frame from `node`, in the gather that `id` is of.
fn judge(frame: &[u8], id: (u32, u32), node: usize, progress: &Progress) -> Judged {
    let is_complete = progress.taken == progress.to_take;
    match TeamFrame::parse(frame) {
        Err(_) => Judged::Broken("what is no frame"),
        Ok(TeamFrame::Part(epoch, ..)) if epoch != id.0 => Judged::Drop,
        Ok(TeamFrame::Part(_, seq, part)) => judge_part(seq.wrapping_sub(id.1), &part, progress),
        // Left where it is: it belongs to who ends the gather.
        Ok(TeamFrame::Open(..) | TeamFrame::Close(_)) if node == 0 => {
            Judged::End(Ended::Superseded)
        }
        Ok(TeamFrame::Pass(epoch, ..)) if node == 0 && epoch == id.0 => match is_complete {
            true => Judged::Later,
            false => Judged::Broken("the next batch in the middle of one"),
        },
        Ok(TeamFrame::Failed(epoch, lost)) if epoch == id.0 => {
            Judged::End(Ended::Lost(lost.into()))
        }
        Ok(TeamFrame::Refused(epoch, _)) if epoch == id.0 => Judged::End(Ended::Lost(node)),
        Ok(_) => Judged::Drop,
    }
}

/// What becomes of a part of the gather `ahead` of this one.
fn judge_part(ahead: u32, part: &PartPiece<'_>, progress: &Progress) -> Judged {
    let is_complete = progress.taken == progress.to_take;
    match ahead {
        0 if part.part_bytes as usize != progress.to_take => {
            Judged::Broken("a part of another size")
        }
        0 if part.offset as usize != progress.taken || is_complete => {
            Judged::Broken("a part that does not go on where it was")
        }
        // It ends within the part, as it was parsed.
        0 => {
            let (at, bytes, compute_us) = (progress.taken, part.bytes.len(), part.compute_us);
            Judged::Take { at, bytes, compute_us }
        }
        0x8000_0000.. => Judged::Drop,
        _ if is_complete => Judged::Later,
        _ => Judged::Broken("the next part before this one's end"),
    }
}

/// Where byte `at` of a part lies in the rows, and how many of its bytes stand there.
fn place(columns: &Part, row_bytes: usize, at: usize) -> (usize, usize) {
    let [first, second] = columns;
    let width = first.len() + second.len();
    let (row, column) = (at / width * row_bytes, at % width);
    match column.checked_sub(first.len()) {
        None => (row + first.start + column, first.len() - column),
        Some(column) => (row + second.start + column, second.len() - column),
    }
}

/// Copies the part `columns` of the rows, from its byte `at`, to `out`.
fn pack(rows: &[u8], row_bytes: usize, columns: &Part, at: usize, out: &mut [u8]) {
    let (mut at, mut out) = (at, out);
    while !out.is_empty() {
        let (start, n) = place(columns, row_bytes, at);
        let (piece, rest) = out.split_at_mut(n.min(out.len()));
        piece.copy_from_slice(&rows[start..start + piece.len()]);
        (at, out) = (at + piece.len(), rest);
    }
}

/// Copies `bytes` to the part `columns` of the rows, from its byte `at`.
fn unpack(bytes: &[u8], at: usize, row_bytes: usize, columns: &Part, rows: &mut [u8]) {
    let (mut at, mut bytes) = (at, bytes);
    while !bytes.is_empty() {
        let (start, n) = place(columns, row_bytes, at);
        let (piece, rest) = bytes.split_at(n.min(bytes.len()));
        rows[start..start + piece.len()].copy_from_slice(piece);
        (at, bytes) = (at + piece.len(), rest);
    }
}
