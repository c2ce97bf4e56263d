//! The first node: it begins epochs, sends batches round, and repeats what was lost.

use std::collections::VecDeque;
use std::ops::Range;

use super::batch::{self, Broken, Figures, Incoming, Outgoing};
use super::options::{MasterOptions, MasterStep};
use super::patience::{Patience, Ups};
use super::replay::Replay;
use super::times::Times;
use super::topology::covers;
use super::{Event, Link, Member, NodeLine, Notice, Reason, RingError, Rows, Side, Status};
use crate::wire::frame::{self, Activations, Frame, FrameSpan, Repr, WorkFigures};

/// Between two OPENs while the ring is not complete.
const OPEN_EVERY_US: u64 = 300_000;
/// A master that was not asked for so long was computing, or stopped itself: nobody could answer.
const PAUSE_US: u64 = 1_000_000;
/// Batches under way for each node: one computed, one waiting for it.
const BATCHES_PER_NODE: usize = 2;
/// Frames that a link's receiver holds at least. Results never need more, so the last node can
/// always send them, whatever the master is doing.
const FRAMES_HELD: usize = 12;

/// A batch as its user gave it.
#[derive(Default)]
struct KeptBatch {
    spans: Vec<FrameSpan>,
    /// Ids of all rows.
    tokens: Vec<u32>,
    /// Whether its user went away: it still has to be computed, as later ones build on it.
    is_forgotten: bool,
}

/// A batch under way.
struct Sent {
    number: u32,
    n_wanted: usize,
    is_replay: bool,
    n_rows: usize,
    /// When it was begun, and whether each of its rows is a stream's next token.
    begun_us: u64,
    is_decoding: bool,
}

/// What the master does with `current`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MasterTask {
    Nothing,
    Computing,
    Sending,
}

enum Phase {
    /// OPEN goes out next at this time.
    Opening(u64),
    Open,
}

/// The master's part of the ring.
pub(crate) struct Master {
    options: MasterOptions,
    epoch: u32,
    phase: Phase,
    was_open: bool,
    lines: Vec<NodeLine>,
    /// Most batches under way, however many nodes there are.
    window: usize,
    /// Which layers the nodes have, this one first; empty if each has what its own user wants.
    assigned: Vec<Range<u32>>,
    /// Batches that have not been answered, the oldest first.
    queue: VecDeque<KeptBatch>,
    /// How many of them have been begun in this epoch.
    n_begun: usize,
    replay: Replay,
    /// Batches begun in this epoch and not answered, in order.
    sent: VecDeque<Sent>,
    free: Vec<KeptBatch>,
    current: KeptBatch,
    work: MasterTask,
    incoming: Incoming,
    outgoing: Outgoing,
    /// The oldest batch, whose results are back and have not been taken.
    done: Option<KeptBatch>,
    next_number: u32,
    patience: Patience,
    polled_us: u64,
    reopened_us: Option<u64>,
    failure: Option<RingError>,
    notices: VecDeque<Notice>,
    times: Times,
}

impl Master {
    /// A master whose ring is not open yet. Everything it needs later is allocated here.
    ///
    /// # Panics
    /// If one row does not fit a frame.
    pub(crate) fn new(mut options: MasterOptions) -> Master {
        let members = std::mem::take(&mut options.members);
        let sizes = options.sizes;
        assert!(batch::fits(&sizes, options.frame_bytes), "a frame holds a row");
        let frames = batch::frames_per_result(&sizes, options.frame_bytes);
        let window = (BATCHES_PER_NODE * options.n_nodes).min(FRAMES_HELD / frames).max(1);
        let rows = usize::from(sizes.max_batch);
        let batch = || KeptBatch {
            spans: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            is_forgotten: false,
        };
        let mut master = Master {
            epoch: options.epoch,
            phase: Phase::Opening(0),
            was_open: false,
            lines: Vec::new(),
            window,
            assigned: Vec::new(),
            queue: VecDeque::with_capacity(window),
            n_begun: 0,
            replay: Replay::new(&sizes),
            sent: VecDeque::with_capacity(window),
            free: (0..window + 1).map(|_| batch()).collect(),
            current: batch(),
            work: MasterTask::Nothing,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            done: None,
            next_number: 0,
            patience: Patience::new(members, options.n_nodes, options.timeout_us),
            polled_us: 0,
            reopened_us: None,
            failure: None,
            notices: VecDeque::with_capacity(16),
            times: Times::default(),
            options,
        };
        master.incoming.reserve(&sizes);
        master.outgoing.reserve(&sizes);
        master.start_times();
        master
    }

    /// Whether another batch can be submitted.
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.window()
    }

    /// Batches that may be under way among the nodes that there are.
    fn window(&self) -> usize {
        match self.lines.len() {
            0 => self.window,
            n => self.window.min(BATCHES_PER_NODE * n),
        }
    }

    /// Whether a batch waits to be begun, and could be.
    pub(crate) fn is_eager(&self) -> bool {
        let is_behind = self.n_begun < self.queue.len() || self.replay.is_due();
        self.work != MasterTask::Nothing || (is_behind && self.sent.len() < self.window())
    }

    /// Whether the ring is complete.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// The nodes get other layers, this one first, of which `line` tells; the ring is opened anew for
    /// that, and streams go on. Without any each node has what its own user wants.
    pub(crate) fn assign(&mut self, line: NodeLine, assigned: Vec<Range<u32>>) {
        (self.options.line, self.assigned, self.failure) = (line, assigned, None);
        self.patience.assigned(self.polled_us);
        self.reopen(self.polled_us);
    }

    /// Whoever is away is going to be replaced: the time for that begins anew.
    pub(crate) fn be_patient(&mut self) {
        self.patience.rest(self.polled_us);
    }

    /// What [`Master::assign`] was given last; empty if nothing.
    pub(crate) fn assigned(&self) -> &[Range<u32>] {
        &self.assigned
    }

    /// The ring has these nodes from now on, this one of which `line` tells first, with their layers; it is opened
    /// anew over a link to the second of them, and streams go on.
    pub(crate) fn rejoin(&mut self, line: NodeLine, members: Vec<Member>) {
        let layers = |member: &Member| member.layers.start as u32..member.layers.end as u32;
        let assigned = members.iter().map(layers).collect();
        let MasterOptions { n_nodes, timeout_us, .. } = self.options;
        self.patience = Patience::new(members, n_nodes, timeout_us);
        self.lines.clear();
        self.assign(line, assigned);
    }

    /// Nobody waits for the results of what has been submitted any more. Streams go on as if
    /// they had been taken.
    pub(crate) fn forget_pending(&mut self) {
        self.queue.iter_mut().for_each(|batch| batch.is_forgotten = true);
        self.finish();
        if self.work == MasterTask::Computing {
            // Nobody is going to say that it was computed: all of the epoch is done again.
            self.reopen(self.polled_us);
        }
    }

    /// The nodes as they told of themselves; empty before the ring is open.
    pub(crate) fn lines(&self) -> &[NodeLine] {
        &self.lines
    }

    /// The next thing to tell the user.
    pub(crate) fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Where time went since [`Master::start_times`].
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Forgets the times so far.
    pub(crate) fn start_times(&mut self) {
        self.times.start(self.options.n_nodes);
    }

    /// Submits a batch: tokens, and the spans they are in.
    ///
    /// # Panics
    /// If there is no room, or the spans do not fit the tokens and the sizes.
    pub(crate) fn submit(&mut self, spans: &[FrameSpan], tokens: &[u32]) {
        assert!(self.has_room());
        let rows: usize = spans.iter().map(|span| usize::from(span.n_rows)).sum();
        assert_eq!(rows, tokens.len());
        assert!(rows <= usize::from(self.options.sizes.max_batch));
        let mut batch = self.free.pop().unwrap_or_default();
        batch.spans.clear();
        batch.spans.extend_from_slice(spans);
        batch.tokens.clear();
        batch.tokens.extend_from_slice(tokens);
        batch.is_forgotten = false;
        self.queue.push_back(batch);
    }

    /// What to compute, or whose results are back: the spans of the batch.
    pub(crate) fn spans(&self) -> &[FrameSpan] {
        &self.done.as_ref().unwrap_or(&self.current).spans
    }

    /// The ids of the batch to compute.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.current.tokens
    }

    /// The batch that [`MasterStep::Compute`] asked for is computed, as `own` tells, and can be sent.
    pub(crate) fn computed(&mut self, own: WorkFigures) {
        let Some(sent) = self.sent.back() else { return };
        let mut figures = Figures::new();
        // The first figure has room.
        let _ = figures.push(own);
        // In a ring of one it is the last node, too.
        let is_last = self.lines.len() == 1;
        self.outgoing.begin((self.epoch, sent.number), &self.current.spans, &figures, is_last);
        self.work = MasterTask::Sending;
    }

    /// The results of [`MasterStep::Done`] have been taken.
    pub(crate) fn finish(&mut self) {
        self.free.extend(self.done.take());
    }

    /// Tells the other nodes that the master goes; best effort.
    pub(crate) fn close(&mut self, link: &mut impl Link) {
        if let Some(out) = link.reserve()
            && let Some(bytes) = frame::emit_close(self.epoch, out)
        {
            link.commit(bytes);
        }
    }

    /// Takes what the link has, sends what it takes, and says what comes next.
    pub(crate) fn poll(
        &mut self,
        now: u64,
        link: &mut impl Link,
        rows: &mut impl Rows,
    ) -> MasterStep {
        let pause_us = now.saturating_sub(std::mem::replace(&mut self.polled_us, now));
        if pause_us > PAUSE_US {
            self.patience.pause(pause_us);
        }
        self.take_events(now, link);
        while (self.done.is_none() || !self.is_open()) && self.receive(now, link, rows) {}
        if let Some(failure) = self.failure.clone() {
            return MasterStep::Failed(failure);
        }
        if self.work == MasterTask::Sending && self.outgoing.send(&self.options.sizes, link, rows) {
            self.work = MasterTask::Nothing;
        }
        match self.phase {
            Phase::Opening(at) => self.open(now, at, link),
            Phase::Open if self.done.is_some() => return MasterStep::Done,
            Phase::Open => {
                let has_room = self.work == MasterTask::Nothing && self.sent.len() < self.window();
                if has_room && self.begin_next(now) {
                    self.work = MasterTask::Computing;
                    return MasterStep::Compute;
                }
                if self.sent.is_empty() {
                    self.patience.rest(now);
                }
            }
        }
        self.wait(now, link)
    }

    /// Bytes that it keeps on the heap, but for names in notices.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        let waiting = self.queue.iter().chain(&self.free).chain(&self.done);
        let batches = waiting.chain([&self.current]);
        batches.clone().map(|batch| batch.spans.capacity() * size_of::<FrameSpan>()).sum::<usize>()
            + batches.map(|batch| batch.tokens.capacity() * 4).sum::<usize>()
            + self.replay.heap_bytes()
            + (self.queue.capacity() + self.free.capacity()) * size_of::<KeptBatch>()
            + self.sent.capacity() * size_of::<Sent>()
            + self.notices.capacity() * size_of::<Notice>()
            + self.lines.capacity() * size_of::<NodeLine>()
            + self.incoming.heap_bytes()
            + self.outgoing.heap_bytes()
    }

    /// There is nothing to do but to take results that are there; says so for as long as patience lasts.
    fn wait(&mut self, now: u64, link: &mut impl Link) -> MasterStep {
        let ups = match self.phase {
            Phase::Opening(_) => {
                Some(Ups { next: link.is_up(Side::Next), prev: link.is_up(Side::Prev) })
            }
            Phase::Open => None,
        };
        if let Some(error) = self.patience.failure(now, ups) {
            return MasterStep::Failed(error);
        }
        if let Some(notice) = self.patience.notice(now, ups) {
            self.tell(notice);
        }
        self.done.as_ref().map_or(MasterStep::Idle, |_| MasterStep::Done)
    }

    fn open(&mut self, now: u64, at: u64, link: &mut impl Link) {
        if now < at {
            return;
        }
        let line = super::with_link(self.options.line.clone(), link);
        let Some(out) = link.reserve() else { return };
        let bytes = frame::emit_open(self.epoch, &self.options.sizes, &self.assigned, &[line], out);
        link.commit(bytes.expect("a ring's shares and a line fit a frame"));
        self.phase = Phase::Opening(now + OPEN_EVERY_US);
    }

    fn take_events(&mut self, now: u64, link: &mut impl Link) {
        while let Some(event) = link.next_event() {
            match event {
                Event::Up(side) => {
                    let name = self.neighbour(side);
                    if self.patience.is_troubled() && matches!(self.phase, Phase::Open) {
                        self.tell(Notice::Back(name));
                    }
                }
                Event::Silent(side) => {
                    let name = self.neighbour(side);
                    self.trouble(&name);
                    self.tell(Notice::Silent(name));
                }
                Event::Reset(side) => {
                    let name = self.neighbour(side);
                    self.reset(now, name);
                }
                Event::Refused { what, is_final: true } if !self.was_open => {
                    self.failure = Some(RingError::Refused(what));
                }
                Event::Refused { what, .. } => {
                    self.patience.refuse(what.clone());
                    self.tell(Notice::Refused(what));
                }
            }
        }
    }

    /// The name of a neighbour, as far as it is known.
    fn neighbour(&self, side: Side) -> String {
        let (line, label, unknown) = match side {
            Side::Next => (self.lines.get(1), self.patience.label(1), "the next node"),
            Side::Prev => {
                let last = self.patience.last().and_then(|last| self.patience.label(last));
                (self.lines.last(), last, "the last node")
            }
        };
        let name = line.map(|line| line.name.as_str().to_owned());
        name.or(label).unwrap_or_else(|| unknown.to_owned())
    }

    fn trouble(&mut self, name: &str) {
        self.patience.blame(|| format!("nothing is heard of {name}"));
    }

    fn tell(&mut self, notice: Notice) {
        if self.notices.len() == self.notices.capacity() {
            self.notices.pop_front();
        }
        if self.notices.back() != Some(&notice) {
            self.notices.push_back(notice);
        }
    }

    /// A link lost frames: everything since the last OPEN is done again.
    fn reset(&mut self, now: u64, name: String) {
        if matches!(self.phase, Phase::Open) {
            self.trouble(&name);
            self.tell(Notice::Reset(name));
        }
        self.reopen(now);
    }

    fn reopen(&mut self, now: u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.patience.reopened(now);
        // A ring that breaks at once again is not opened in a frenzy.
        let is_recent = self.reopened_us.is_some_and(|at| now < at + OPEN_EVERY_US);
        self.phase = Phase::Opening(if is_recent { now + OPEN_EVERY_US } else { now });
        self.reopened_us = Some(now);
        self.sent.clear();
        self.n_begun = 0;
        self.replay.restart();
        self.incoming.clear();
        self.outgoing.clear();
        self.work = MasterTask::Nothing;
    }

    /// Handles the oldest frame; `false` if there is none.
    fn receive(&mut self, now: u64, link: &mut impl Link, rows: &mut impl Rows) -> bool {
        let Some(bytes) = link.front() else { return false };
        let heard = match Frame::parse(bytes) {
            Ok(frame) => self.take(now, &frame, rows),
            Err(_) => Err(Broken("a frame without meaning")),
        };
        link.release();
        if let Err(Broken(what)) = heard {
            self.tell(Notice::Broken(what));
            self.trouble("the last node");
            self.reopen(now);
        }
        true
    }

    fn take(&mut self, now: u64, frame: &Frame<'_>, rows: &mut impl Rows) -> Result<(), Broken> {
        match frame.repr() {
            Repr::Open { epoch, .. } if epoch == self.epoch => self.opened(now, frame),
            Repr::Activations(header) if header.epoch == self.epoch => {
                self.result(now, frame, &header, rows)
            }
            Repr::Down {
                reason: reason @ (Reason::Missing | Reason::Busy(_) | Reason::Packing(_)),
                ..
            } => {
                self.patience.hear(now, &frame.name(), reason);
                Ok(())
            }
            Repr::Down { epoch, reason } if epoch == self.epoch => {
                self.down(now, &frame.name(), reason);
                Ok(())
            }
            // Of an epoch that is over, or of another master.
            _ => Ok(()),
        }
    }

    /// OPEN has been round.
    fn opened(&mut self, now: u64, frame: &Frame<'_>) -> Result<(), Broken> {
        if matches!(self.phase, Phase::Open) {
            return Ok(());
        }
        let lines = frame.lines().collect::<Result<Vec<NodeLine>, _>>();
        let lines = lines.map_err(|_| Broken("a line without meaning"))?;
        if let Some(line) = lines.iter().find(|line| line.status != Status::Ready) {
            self.failure = Some(RingError::Node { line: Box::new(line.clone()) });
            return Ok(());
        }
        let n_layers = self.options.n_layers;
        let is_as_assigned =
            self.assigned.is_empty() || lines.iter().map(|line| &line.layers).eq(&self.assigned);
        if lines.len() > self.options.n_nodes || !is_as_assigned || !covers(&lines, n_layers) {
            let found: Vec<String> =
                lines.iter().map(|l| format!("{}..{}", l.layers.start, l.layers.end)).collect();
            let found = found.join(", ");
            self.failure = Some(RingError::Layers { found, n_layers });
            return Ok(());
        }
        self.lines = lines;
        self.phase = Phase::Open;
        self.patience.opened(now);
        log::debug!("epoch {} is open at {now} us", self.epoch);
        self.times.reopen();
        self.tell(Notice::Opened { again: self.was_open });
        self.was_open = true;
        Ok(())
    }

    fn down(&mut self, now: u64, reporter: &str, reason: Reason) {
        let index = self.lines.iter().position(|line| line.name == reporter);
        let before = index.and_then(|index| self.lines.get(index.checked_sub(1)?));
        let name = before.map_or("a node", |line| line.name.as_str()).to_owned();
        match reason {
            Reason::Silent => {
                self.trouble(&name);
                self.tell(Notice::Silent(name));
            }
            Reason::Back => self.tell(Notice::Back(name)),
            Reason::Reset => self.reset(now, name),
            // What is said again and again is the patience's.
            Reason::Missing | Reason::Busy(_) | Reason::Packing(_) => {}
        }
    }

    fn result(
        &mut self,
        now: u64,
        frame: &Frame<'_>,
        header: &Activations,
        rows: &mut impl Rows,
    ) -> Result<(), Broken> {
        let Some(sent) = self.sent.front() else { return Err(Broken("an unasked result")) };
        if header.batch != sent.number
            || usize::from(header.n_rows) != sent.n_wanted
            || header.n_spans > 0
        {
            return Err(Broken("a result of another batch"));
        }
        if self.incoming.take(frame, header, &self.options.sizes, rows)? {
            self.complete(now);
        }
        Ok(())
    }

    /// The oldest batch is answered.
    fn complete(&mut self, now: u64) {
        let Some(sent) = self.sent.pop_front() else { return };
        if sent.is_replay {
            return self.patience.replayed(now, sent.n_rows);
        }
        if let Some(notice) = self.patience.answered(now) {
            self.tell(notice);
        }
        let batch = self.queue.pop_front().expect("what is sent and no replay is in the queue");
        self.n_begun -= 1;
        let lap_us = now.saturating_sub(sent.begun_us);
        let n_decoded = sent.is_decoding.then_some(batch.tokens.len());
        self.times.add(now, lap_us, &self.incoming.figures, n_decoded);
        self.replay.record(&batch.spans, &batch.tokens);
        match sent.n_wanted == 0 || batch.is_forgotten {
            true => self.free.push(batch),
            false => self.done = Some(batch),
        }
    }

    /// Puts the next batch into `current`: what the nodes have forgotten first.
    fn begin_next(&mut self, now: u64) -> bool {
        let is_replay = self.begin_replay();
        if !is_replay {
            let Some(batch) = self.queue.get(self.n_begun) else { return false };
            self.current.spans.clone_from(&batch.spans);
            self.current.tokens.clone_from(&batch.tokens);
            self.n_begun += 1;
        }
        let spans = &self.current.spans;
        self.sent.push_back(Sent {
            number: self.next_number,
            n_wanted: spans.iter().map(FrameSpan::n_wanted).sum(),
            is_replay,
            n_rows: self.current.tokens.len(),
            begun_us: now,
            is_decoding: spans.iter().all(FrameSpan::is_next_token),
        });
        self.next_number = self.next_number.wrapping_add(1);
        true
    }

    fn begin_replay(&mut self) -> bool {
        let Some((span, ids)) = self.replay.next_batch() else { return false };
        self.current.spans.clear();
        self.current.spans.push(span);
        self.current.tokens.clear();
        self.current.tokens.extend_from_slice(ids);
        true
    }
}
