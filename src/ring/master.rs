//! The first node: it begins epochs, sends batches round, and says what was lost.

mod changes;
mod events;

use std::ops::Range;

use super::batch::{self, Figures, Incoming, Outgoing};
use super::course::{self, BATCHES_PER_NODE, Course};
use super::error::{misfit, strangers};
use super::fetch::PagesToRead;
use super::moving::{self, Earlier, Moves};
use super::options::{MasterOptions, MasterStep};
use super::pages::PageBook;
use super::times::Times;
use super::{Link, Member, NodeLine, RingError, Rows, Side, Sizes};
use crate::group::{Broken, Expected, Membership, Moving, Notice, Overdue, Phase, Roll, Ups};
use crate::wire::frame::{
    self, Activations, BoardsReport, Fetch, Frame, FrameKeep, FramePage, FrameSpan, Parts, Repr,
    WorkFigures,
};

/// Time between two OPENs while the ring is not complete.
const OPEN_EVERY_US: u64 = 300_000;
/// Time without a poll after which a master was computing or suspended: it could not hear any answer.
const PAUSE_US: u64 = 1_000_000;

/// The master's task with `current`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MasterTask {
    Nothing,
    Computing,
    Sending,
    /// Sending FETCH on; this node has read this number of its pages.
    Fetching(usize),
}

/// The master's part of the ring.
pub(crate) struct Master {
    options: MasterOptions,
    /// The epoch, the members, and the notices to the user.
    group: Membership,
    nodes: Nodes,
    moves: Moves,
    course: Course,
    pages: PageBook,
    traffic: Traffic,
    /// Whether the caller has to be told that its batches in flight, and the KV of the streams, are lost.
    is_lost: bool,
    polled_us: u64,
    failure: Option<RingError>,
    times: Times,
}

/// The nodes of the ring, as they answered last.
#[derive(Default)]
struct Nodes {
    /// Lines of the nodes, the master first; empty before the ring is open.
    lines: Vec<NodeLine>,
    /// Reports of places that are teams, about their boards.
    reports: Vec<BoardsReport>,
    /// Layers of the nodes, the master's first; empty if each node has those that its own user wants.
    assigned: Vec<Range<u32>>,
    /// The request for which the ring is opened.
    asked: Asked,
}

/// A request for which a ring is opened.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    /// No request, or one that is done.
    #[default]
    Nothing,
    /// Other layers for the same nodes. The client hears of a node that cannot take them, and the nodes get their former
    /// layers.
    Layers,
    /// Other nodes. A node that cannot take its part fails the request; its caller may ask again without that node.
    Nodes,
}

/// The batch in progress, with its incoming and outgoing frames.
struct Traffic {
    work: MasterTask,
    incoming: Incoming,
    outgoing: Outgoing,
    /// A frame that goes on to the next node, while it is written.
    scratch: Vec<u8>,
}

impl Traffic {
    fn new(sizes: &Sizes) -> Traffic {
        let (mut incoming, mut outgoing) = (Incoming::default(), Outgoing::default());
        incoming.reserve(sizes);
        outgoing.reserve(sizes);
        let scratch = vec![0; frame::HEADER_LEN + moving::KV_BYTES];
        Traffic { work: MasterTask::Nothing, incoming, outgoing, scratch }
    }

    /// Drops what has come of batches and what has not been sent.
    fn clear(&mut self) {
        self.incoming.clear();
        self.outgoing.clear();
        self.work = MasterTask::Nothing;
    }
}

/// The roll of these nodes, as a ring's master knows them before they answer.
fn roll(members: &[Member], options: &MasterOptions) -> Roll {
    let expected =
        |member: &Member| Expected { name: member.name.clone(), at: member.address.to_string() };
    let roll = Roll::new(members.iter().map(expected).collect(), options.n_nodes);
    match has_all_layers(members, options.n_layers as usize) {
        true => roll.whole(),
        false => roll,
    }
}

/// Whether these have the model's layers, one node after the other.
fn has_all_layers(members: &[Member], n_layers: usize) -> bool {
    let mut end = 0;
    let joins = |member: &Member| {
        let joins = member.layers.start == end;
        end = member.layers.end;
        joins
    };
    members.iter().all(joins) && end == n_layers
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
        let window = course::window(&sizes, options.frame_bytes, options.n_nodes);
        let roll = roll(&members, &options);
        let mut master = Master {
            group: Membership::new(options.epoch, roll, options.timeout_us),
            nodes: Nodes::default(),
            moves: Moves::default(),
            course: Course::new(&sizes, window),
            pages: PageBook::new(&sizes),
            traffic: Traffic::new(&sizes),
            is_lost: false,
            polled_us: 0,
            failure: None,
            times: Times::default(),
            options,
        };
        master.start_times();
        master
    }

    /// Whether another batch can be submitted.
    pub(crate) fn has_room(&self) -> bool {
        self.course.n_submitted() < self.window()
    }

    /// Whether another batch may be begun.
    fn may_begin(&self) -> bool {
        self.moves.held_us.is_none() && self.course.n_sent() < self.window()
    }

    /// Batches that may be under way among the nodes that there are.
    fn window(&self) -> usize {
        let window = self.course.window();
        match self.nodes.lines.len() {
            0 => window,
            n => window.min(BATCHES_PER_NODE * n),
        }
    }

    /// Whether a batch waits to be begun, and could be.
    pub(crate) fn is_eager(&self) -> bool {
        self.traffic.work != MasterTask::Nothing || (self.course.is_behind() && self.may_begin())
    }

    /// Whether the ring is complete.
    pub(crate) fn is_open(&self) -> bool {
        self.group.is_open()
    }

    /// Whether more than results may come.
    fn is_opening(&self) -> bool {
        !self.is_open() || self.moves.all_moved == Some(false)
    }

    /// Whether frames are taken: results one at a time while batches are begun, and all of them while the
    /// nodes are to get other layers.
    fn is_listening(&self) -> bool {
        !self.course.is_done() || self.is_opening() || self.moves.held_us.is_some()
    }

    /// Whether all batches that were begun have been round.
    fn is_still(&self) -> bool {
        let is_idle = self.traffic.work == MasterTask::Nothing && self.course.n_sent() == 0;
        is_idle && !self.pages.out.has_copies()
    }

    /// Starts a new epoch after this node lost its KV: all nodes drop theirs.
    pub(crate) fn begin_anew(&mut self) {
        self.moves.earlier = None;
        self.group.setbacks.failures += 1;
        self.reopen(self.polled_us);
    }

    /// Drops the results of all submitted batches. Streams go on as if the results had been taken, unless the
    /// batches are lost.
    pub(crate) fn forget_pending(&mut self) {
        self.course.forget();
        if self.traffic.work == MasterTask::Computing {
            // The caller no longer reports it as computed.
            self.course.take_back();
            self.traffic.work = MasterTask::Nothing;
        }
    }

    /// The nodes as they told of themselves; empty before the ring is open.
    pub(crate) fn lines(&self) -> &[NodeLine] {
        &self.nodes.lines
    }

    /// The next thing to tell the user.
    pub(crate) fn notice(&mut self) -> Option<Notice> {
        self.group.notice()
    }

    /// Measured times since [`Master::start_times`].
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Forgets the times so far.
    pub(crate) fn start_times(&mut self) {
        self.times.start(self.options.n_nodes);
    }

    /// Submits a batch: tokens, the spans they are in, pages to keep before, and pages that streams have from
    /// then on. A stream's pages are given in order, and after a changed one all that follow it.
    ///
    /// # Panics
    /// If there is no room, or the spans do not fit the tokens and the sizes.
    pub(crate) fn submit(
        &mut self,
        (spans, tokens): (&[FrameSpan], &[u32]),
        pages: (&[FrameKeep], &[FramePage]),
    ) {
        // A ring that has become smaller meanwhile takes what was promised.
        assert!(self.course.n_submitted() < self.course.window());
        let rows: usize = spans.iter().map(|span| usize::from(span.n_rows)).sum();
        assert_eq!(rows, tokens.len());
        assert!(rows <= usize::from(self.options.sizes.max_batch));
        // The caller does not know yet: the batch is lost with what it builds on.
        if !self.is_lost {
            self.course.submit((spans, tokens), pages, None);
        }
    }

    /// The epoch of the batch to compute.
    pub(crate) fn epoch(&self) -> u32 {
        self.group.epoch()
    }

    /// Spans of the batch to compute, or of the one whose results are back.
    pub(crate) fn spans(&self) -> &[FrameSpan] {
        self.course.spans()
    }

    /// The ids of the batch to compute.
    pub(crate) fn tokens(&self) -> &[u32] {
        self.course.current().1
    }

    /// Notes that the batch of [`MasterStep::Compute`] is computed, with the figures `own`, and can be sent.
    pub(crate) fn computed(&mut self, own: WorkFigures) {
        let Some(sent) = self.course.last_sent() else { return };
        let figures = Figures::from_iter([own]);
        // In a ring of one it is the last node, too.
        let is_last = self.nodes.lines.len() == 1;
        let (spans, _) = self.course.current();
        self.traffic.outgoing.begin((self.group.epoch(), sent.number), spans, &figures, is_last);
        self.traffic.work = MasterTask::Sending;
    }

    /// The first of the stored rows that are the results of [`MasterStep::Done`].
    pub(crate) fn result_row(&self) -> usize {
        self.course.slot() * usize::from(self.options.sizes.max_logits)
    }

    /// Largest number of result rows.
    pub(crate) fn n_result_rows(&self) -> usize {
        course::slots(self.course.window()) * usize::from(self.options.sizes.max_logits)
    }

    /// The results of [`MasterStep::Done`] have been taken.
    pub(crate) fn finish(&mut self) {
        self.course.finish();
    }

    /// Tells the other nodes that the master goes; best effort.
    pub(crate) fn close(&mut self, link: &mut impl Link) {
        if let Some(out) = link.reserve()
            && let Some(bytes) = frame::emit_close(self.group.epoch(), out)
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
            self.group.pause(pause_us);
            self.moves.held_us = self.moves.held_us.map(|since| since + pause_us);
        }
        self.take_events(now, link);
        while self.is_listening() && self.receive(now, link, rows) {}
        if let Some(failure) = self.failure.clone() {
            return MasterStep::Failed(failure);
        }
        if self.is_lost && !self.course.is_done() {
            self.is_lost = false;
            return MasterStep::Lost;
        }
        let are_pages_told = self.is_open() && self.pages.out.send(self.group.epoch(), link);
        let is_sent = are_pages_told
            && match self.traffic.work {
                MasterTask::Sending => self.traffic.outgoing.send(&self.options.sizes, link, rows),
                MasterTask::Fetching(n_found) => self.send_fetch(n_found, link),
                MasterTask::Nothing | MasterTask::Computing => false,
            };
        if is_sent {
            self.traffic.work = MasterTask::Nothing;
        }
        match self.group.phase {
            Phase::Opening(at) => self.open(now, at, link),
            Phase::Moving(..) => self.move_on(now, link, rows),
            Phase::Open if self.course.is_done() => return MasterStep::Done,
            Phase::Open => {
                let is_free = self.traffic.work == MasterTask::Nothing && self.may_begin();
                if is_free && self.course.begin_next(now) {
                    self.change_pages(rows);
                    self.traffic.work = MasterTask::Computing;
                    return match self.course.fetch() {
                        None => MasterStep::Compute,
                        Some(_) => MasterStep::Fetch,
                    };
                }
                if self.course.n_sent() == 0 {
                    self.group.rest(now);
                }
            }
        }
        self.wait(now, link)
    }

    /// Bytes that it keeps on the heap, but for names in notices.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.course.heap_bytes()
            + self.pages.heap_bytes()
            + self.group.heap_bytes()
            + self.nodes.lines.capacity() * size_of::<NodeLine>()
            + self.traffic.incoming.heap_bytes()
            + self.traffic.outgoing.heap_bytes()
    }

    /// The step while only results can be taken; a notice if the wait lasts, and a failure at its deadline.
    fn wait(&mut self, now: u64, link: &mut impl Link) -> MasterStep {
        let ups = self
            .group
            .is_opening()
            .then(|| Ups { next: link.is_up(Side::Next), prev: link.is_up(Side::Prev) });
        if let Some(Overdue { seconds, what }) = self.group.failure(now, ups) {
            return MasterStep::Failed(RingError::Timeout { seconds, what });
        }
        self.group.look(now, ups);
        if self.course.is_done() { MasterStep::Done } else { MasterStep::Idle }
    }

    fn open(&mut self, now: u64, at: u64, link: &mut impl Link) {
        if now < at {
            return;
        }
        let line = super::with_link(self.options.line.clone(), link);
        let Some(out) = link.reserve() else { return };
        let epochs = (self.group.epoch(), self.moves.earlier.as_ref().map(Earlier::epoch));
        let parts = Parts::Layers(&self.nodes.assigned);
        let bytes = frame::emit_open(epochs, &self.options.sizes, parts, &[line], out);
        link.commit(bytes.expect("a ring's shares and a line fit a frame"));
        self.group.phase = Phase::Opening(now + OPEN_EVERY_US);
    }

    /// A link lost frames: everything since the last OPEN is lost.
    fn reset(&mut self, now: u64, name: String) {
        if self.group.is_open() {
            self.trouble(&name);
            self.group.tell(Notice::Reset(name));
        }
        self.reopen(now);
    }

    fn reopen(&mut self, now: u64) {
        if !self.group.is_opening() {
            self.moves.earlier = None;
        }
        self.restart(now);
    }

    fn restart(&mut self, now: u64) {
        self.group.restart(now, OPEN_EVERY_US);
        self.moves.all_moved = None;
        self.group.setbacks.batches_lost += self.course.restart() as u64;
        if self.moves.earlier.is_none() {
            self.drop_streams();
        }
        self.pages.out.clear();
        self.traffic.clear();
    }

    /// Handles the oldest frame; `false` if there is none.
    fn receive(&mut self, now: u64, link: &mut impl Link, rows: &mut impl Rows) -> bool {
        let Some(bytes) = link.front() else { return false };
        let heard = match Frame::parse(bytes).map(|frame| (frame.repr(), frame)) {
            Err(_) => Err(Broken("a frame without meaning")),
            Ok((Repr::Kv { epoch, piece }, frame)) if self.sees_move(epoch, now) => {
                let MasterOptions { sizes, n_layers, .. } = &self.options;
                moving::take(&piece, frame.kv(), (sizes, *n_layers), rows)
            }
            Ok((_, frame)) => self.take(now, &frame, rows).map(|()| false),
        };
        if let Ok(true) = heard {
            let copy = &mut self.traffic.scratch[..bytes.len()];
            copy.copy_from_slice(bytes);
            if !moving::forward(copy, link) {
                return false;
            }
        }
        link.release();
        if let Err(Broken(what)) = heard {
            self.group.tell(Notice::Broken(what));
            self.trouble("the last node");
            self.reopen(now);
        }
        true
    }

    fn take(&mut self, now: u64, frame: &Frame<'_>, rows: &mut impl Rows) -> Result<(), Broken> {
        match frame.repr() {
            Repr::Open { epoch, .. } if epoch == self.group.epoch() => self.opened(now, frame),
            Repr::Activations(header) if header.epoch == self.group.epoch() => {
                self.result(now, frame, &header, rows)
            }
            Repr::Report { reason, .. } if reason.is_repeated() => {
                self.group.hear(now, &frame.name(), reason);
                Ok(())
            }
            Repr::Report { epoch, reason } if epoch == self.group.epoch() => {
                self.down(now, &frame.name(), reason);
                Ok(())
            }
            Repr::Moved { epoch, is_over: false } if self.sees_move(epoch, now) => {
                self.group.phase.end_waiting();
                Ok(())
            }
            Repr::Moved { epoch, is_over: true } if epoch == self.group.epoch() => {
                self.moves.all_moved = self.moves.all_moved.map(|_| true);
                Ok(())
            }
            Repr::Fetch(fetch) if fetch.epoch == self.group.epoch() => {
                self.heard_found(now, &fetch)
            }
            Repr::Boards(_) => {
                frame.boards().into_iter().for_each(|report| self.hear_of_boards(report));
                Ok(())
            }
            repr if repr.is_of_others() => Err(Broken("a frame of no ring")),
            // A frame of an epoch that is over, or of another master.
            _ => Ok(()),
        }
    }

    /// OPEN has been round.
    fn opened(&mut self, now: u64, frame: &Frame<'_>) -> Result<(), Broken> {
        if !self.group.is_opening() {
            return Ok(());
        }
        let lines = frame.lines().collect::<Result<Vec<NodeLine>, _>>();
        let lines = lines.map_err(|_| Broken("a line without meaning"))?;
        let MasterOptions { n_nodes, n_layers, .. } = self.options;
        if let Some(what) = strangers(&lines, &self.nodes.assigned) {
            // They go, or are told: it is asked again.
            if self.group.refuse(what.clone()) {
                self.group.tell(Notice::Refused(what));
            }
            return Ok(());
        }
        if let Some(error) = misfit(&lines, &self.nodes.assigned, n_nodes, n_layers) {
            self.does_not_fit(error);
            return Ok(());
        }
        (self.nodes.lines, self.failure, self.nodes.asked) = (lines, None, Asked::Nothing);
        self.group.opened(now);
        let earlier = self.moves.earlier.take();
        match earlier.is_some_and(|earlier| earlier.is_kept_by(&self.nodes.lines)) {
            true => {
                log::debug!("epoch {}: what layers have stored moves", self.group.epoch());
                self.group.phase = Phase::moving(now, self.course.again_us(self.nodes.lines.len()));
                self.moves.all_moved = Some(false);
            }
            false => {
                self.drop_streams();
                self.begin(now);
            }
        }
        Ok(())
    }

    /// Batches flow from now on.
    fn begin(&mut self, now: u64) {
        log::debug!("epoch {} is open at {now} us", self.group.epoch());
        self.times.reopen();
        let again = self.group.begin();
        self.group.tell(Notice::Opened { again });
    }

    /// Sends the KV of moved layers to the nodes that have these layers now.
    fn move_on(&mut self, now: u64, link: &mut impl Link, rows: &mut impl Rows) {
        let Phase::Moving(moving, patience) = &self.group.phase else { return };
        match moving {
            Moving::Sending if moving::send(self.group.epoch(), link, rows) => {
                self.group.phase.sent(now)
            }
            _ if patience.is_over(now) => {
                self.group.setbacks.moves_given_up += 1;
                self.reopen(now);
            }
            Moving::Sending | Moving::Waiting => {}
            Moving::Ending => {
                let Some(out) = link.reserve() else { return };
                let bytes = frame::emit_moved(self.group.epoch(), true, out);
                link.commit(bytes.expect("a header fits a frame"));
                rows.moved(self.group.epoch(), &self.options.sizes);
                self.tell_tables(rows);
                self.begin(now);
            }
        }
    }

    /// Whether something of this epoch's move has been seen.
    fn sees_move(&mut self, epoch: u32, now: u64) -> bool {
        let is_seen = epoch == self.group.epoch() && self.group.phase.see(now);
        if is_seen {
            self.group.rest(now);
        }
        is_seen
    }

    fn result(
        &mut self,
        now: u64,
        frame: &Frame<'_>,
        header: &Activations,
        rows: &mut impl Rows,
    ) -> Result<(), Broken> {
        let Some(sent) = self.course.first_sent() else { return Err(Broken("an unasked result")) };
        if header.batch != sent.number
            || sent.is_fetch
            || usize::from(header.n_rows) != sent.n_wanted
            || header.n_spans > 0
        {
            return Err(Broken("a result of another batch"));
        }
        let sizes = &self.options.sizes;
        self.traffic.incoming.put_from(self.course.free_slot() * usize::from(sizes.max_logits));
        if self.traffic.incoming.take(frame, header, sizes, rows)? {
            self.complete(now);
        }
        Ok(())
    }

    /// The oldest batch is answered.
    fn complete(&mut self, now: u64) {
        let slot =
            self.traffic.incoming.first_row() / usize::from(self.options.sizes.max_logits).max(1);
        let Some((sent, is_again)) = self.course.answered(now, slot) else { return };
        if is_again && !sent.is_fetch {
            return self.group.replayed(now, sent.n_rows);
        }
        self.group.answered(now);
        if sent.is_fetch {
            // A forgotten FETCH reports no result.
            self.pages.found = self.pages.found.filter(|_| !is_again);
            return;
        }
        let lap_us = now.saturating_sub(sent.begun_us);
        let n_decoded = sent.is_decoding.then_some(sent.n_rows);
        self.times.add(now, lap_us, &self.traffic.incoming.figures, n_decoded);
    }

    /// The batch that is begun has the pages that it needs.
    fn change_pages(&mut self, rows: &mut impl Rows) {
        for page in self.course.keeps() {
            assert!(rows.keep(page, &self.options.sizes), "there is no {page:?}");
        }
        for page in self.course.pages() {
            self.pages.tables.apply(page);
            assert!(rows.set_page(page, &self.options.sizes), "there is no {page:?}");
        }
        if self.nodes.lines.len() > 1 {
            self.pages.out.keep(self.course.keeps());
            self.pages.out.add(self.course.pages().iter().copied());
        }
    }

    /// Sends the page tables after layers have moved: this node's streams have no pages yet, and neither do
    /// those of new nodes.
    fn tell_tables(&mut self, rows: &mut impl Rows) {
        for page in self.pages.tables.all() {
            assert!(rows.set_page(&page, &self.options.sizes), "there is no {page:?}");
        }
        if self.nodes.lines.len() > 1 {
            self.pages.out.add(self.pages.tables.all());
        }
    }

    /// Drops all streams, whose KV the nodes have lost.
    fn drop_streams(&mut self) {
        let is_lost = self.course.drop_streams();
        self.group.setbacks.streams_lost += u64::from(is_lost);
        self.is_lost |= is_lost;
        self.pages.tables.clear();
    }

    /// Has all nodes read pages, in order with the batches: pages are kept and changed before as by
    /// [`Master::submit`]. [`Master::take_found`] returns the result.
    ///
    /// # Panics
    /// If there is no room, or it does not fit a frame.
    pub(crate) fn submit_fetch(&mut self, fetch: PagesToRead, pages: (&[FrameKeep], &[FramePage])) {
        assert!(
            self.course.n_submitted() < self.course.window()
                && fetch.fits(self.options.frame_bytes)
        );
        self.pages.found = None;
        if !self.is_lost {
            self.course.submit((&[], &[]), pages, Some(fetch));
        }
    }

    /// Pages that [`MasterStep::Fetch`](MasterStep) asks for.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn fetch(&self) -> &PagesToRead {
        self.course.fetch().expect("it is asked for")
    }

    /// Notes that this node has read the first `n_found` of the pages.
    pub(crate) fn fetched(&mut self, n_found: usize) {
        self.traffic.work = MasterTask::Fetching(n_found);
    }

    /// Whether the number of pages that all nodes have read is known.
    pub(crate) fn has_found(&self) -> bool {
        self.pages.found.is_some()
    }

    /// Takes the number of pages that all nodes have read.
    pub(crate) fn take_found(&mut self) -> usize {
        self.pages.found.take().unwrap_or(0)
    }

    /// Whether the caller waits for results of a batch, and has to take them first.
    pub(crate) fn is_awaited(&self) -> bool {
        self.course.is_done() || self.course.is_awaited()
    }

    fn send_fetch(&mut self, n_found: usize, link: &mut impl Link) -> bool {
        let (Some(fetch), Some(sent)) = (self.course.fetch(), self.course.last_sent()) else {
            return true;
        };
        let is_last = self.nodes.lines.len() == 1;
        let result = fetch.send((self.group.epoch(), sent.number), (n_found, is_last), link);
        result.expect("it fits a frame")
    }

    /// FETCH has been round: all nodes have read what they could.
    fn heard_found(&mut self, now: u64, fetch: &Fetch) -> Result<(), Broken> {
        match self.course.first_sent() {
            Some(sent) if sent.is_fetch && sent.number == fetch.batch => {
                let n_asked = self.course.n_asked();
                self.pages.found = Some(usize::from(fetch.n_found).min(n_asked));
                self.complete(now);
                Ok(())
            }
            _ => Err(Broken("pages that were not asked for")),
        }
    }
}
