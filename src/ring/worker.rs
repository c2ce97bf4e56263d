//! Every node but the first: it takes what comes, computes, and sends it on.

use std::ops::Range;

use super::batch::{self, Incoming, Outgoing};
use super::error::refusal;
use super::fetch::PagesToRead;
use super::moving;
use super::{Event, Link, NodeLine, Reason, Rows, Side, Sizes, Status};
use crate::group::{Broken, Every, MISSING_EVERY_US, Notice, Notices};
use crate::wire::frame::{
    self, ASSIGNED_LEN, Activations, BoardsReport, Fetch, Frame, FrameSpan, HEADER_LEN, KEEP_IDS,
    KvPiece, LINE_LEN, NODES_MAX, Parts, Repr, WorkFigures,
};
use crate::wire::{Dtype, KvType};

/// Period of reports about the boards of a place that is a team.
const REPORTED_EVERY_US: u64 = 500_000;
/// Bytes of the longest frame that goes on to the next node as it came.
const SCRATCH: usize = {
    let (open, kv) = (NODES_MAX * (ASSIGNED_LEN + LINE_LEN), moving::KV_BYTES);
    HEADER_LEN + if open > kv { open } else { kv }
};

/// The master's request to get ready, before batches flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// Sizes of the streams to be ready for; they are empty from now on, unless they go on.
    pub(crate) sizes: Sizes,
    /// The layers that it is to take; `None` if neither the master nor its own user says which.
    pub(crate) layers: Option<Range<u32>>,
    /// The epoch whose streams go on with what this node has stored of them, if it has.
    pub(crate) from: Option<u32>,
    epoch: u32,
    /// Bytes of the frame, which is in `scratch` until it goes on.
    len: usize,
}

/// The next step that a worker asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerStep {
    /// Nothing before the link has something new.
    Idle,
    /// This node is to get ready for what [`Worker::opening`] says; then [`Worker::opened`].
    Open,
    /// The rows are to be taken through the own layers as [`Worker::spans`] say; then
    /// [`Worker::computed`].
    Compute,
    /// The pages of [`Worker::fetch`] are to be read; then [`Worker::fetched`].
    Fetch,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerTask {
    Receiving,
    /// Getting ready.
    Opening,
    /// Answering the OPEN.
    Answering,
    Computing,
    Sending,
    /// Sending the KV of the former layers, in this epoch.
    Moving(u32),
    /// Pages are read, or sent on.
    Fetching,
    SendingFetch,
}

/// A worker's part of the ring.
pub(crate) struct Worker {
    own: Own,
    model: ModelSize,
    opening: Option<Opening>,
    /// Reason why this node could not get ready, once the user has it.
    refusal: Option<String>,
    /// The epoch and what was agreed for it.
    epoch: Option<(u32, Sizes)>,
    traffic: Traffic,
    /// Pages that are to be read, and how many have been.
    fetch: (PagesToRead, usize),
    says: Says,
    notices: Notices,
}

/// A worker's line and its user's wishes.
struct Own {
    line: NodeLine,
    /// The layers that its user wants it to have.
    wish: Option<Range<u32>>,
    is_last: bool,
}

/// Size of the ring's model, for frames.
struct ModelSize {
    dim: u32,
    n_layers: u32,
    frame_bytes: usize,
}

/// The batch in progress, with its incoming and outgoing frames.
struct Traffic {
    work: WorkerTask,
    /// Epoch and number of the batch being computed or sent, and what was agreed for it.
    batch: (u32, u32, Sizes),
    incoming: Incoming,
    outgoing: Outgoing,
    /// A frame that goes on to the next node, while it is written.
    scratch: Vec<u8>,
}

/// Messages due to the master, about this node and the one before it.
#[derive(Default)]
struct Says {
    /// Loss of the node before in this epoch: the epoch and the reason.
    down: Option<(u32, Reason)>,
    /// The epoch that was not begun here, and of which a batch came nevertheless.
    stray_epoch: Option<u32>,
    is_prev_silent: bool,
    /// Repetition of the report that the node before is missing.
    missing: Every,
    /// Report on this node's boards, and when it may be sent again.
    report: Option<BoardsReport>,
    reported: Every,
}

impl Worker {
    /// A worker that has not heard of a master yet: `line` describes it, `wish` are the layers that its user
    /// wants. `dim` is the width of the model's rows, `n_layers` its layers.
    pub(crate) fn new(
        (line, wish): (NodeLine, Option<Range<u32>>),
        (dim, n_layers): (u32, u32),
        frame_bytes: usize,
    ) -> Worker {
        let nothing = Sizes {
            ctx_len: 0,
            n_streams: 0,
            n_pages: 0,
            max_batch: 0,
            max_logits: 0,
            kv: KvType::F32,
            wire: Dtype::F32,
            dim,
        };
        Worker {
            own: Own { is_last: line.layers.end == n_layers, line, wish },
            model: ModelSize { dim, n_layers, frame_bytes },
            opening: None,
            refusal: None,
            epoch: None,
            traffic: Traffic {
                work: WorkerTask::Receiving,
                batch: (0, 0, nothing),
                incoming: Incoming::default(),
                outgoing: Outgoing::default(),
                scratch: vec![0; SCRATCH],
            },
            fetch: Default::default(),
            says: Says::default(),
            notices: Notices::new(),
        }
    }

    /// The next thing to tell the user.
    pub(crate) fn notice(&mut self) -> Option<Notice> {
        self.notices.next()
    }

    /// Gives up the batch of [`WorkerStep::Compute`], which cannot be computed; the KV so far is of no use.
    pub(crate) fn discard(&mut self) {
        self.traffic.work = WorkerTask::Receiving;
        self.give_up_epoch(Reason::Lost);
    }

    /// Whether the master is to hear again what this node's boards do, if it is a team.
    pub(crate) fn is_report_due(&self, now: u64) -> bool {
        self.says.reported.is_due(now)
    }

    /// Reports on this node's boards, as soon as a frame can be sent.
    pub(crate) fn report(&mut self, now: u64, report: BoardsReport) {
        self.says.report = Some(report);
        self.says.reported.said(now, REPORTED_EVERY_US);
    }

    /// The epoch of the batch of [`WorkerStep::Compute`], and its sizes.
    pub(crate) fn epoch(&self) -> (u32, Sizes) {
        (self.traffic.batch.0, self.traffic.batch.2)
    }

    /// Spans of the batch to compute.
    pub(crate) fn spans(&self) -> &[FrameSpan] {
        &self.traffic.incoming.spans
    }

    /// The batch that [`WorkerStep::Compute`] asked for has been computed, as `own` tells.
    pub(crate) fn computed(&mut self, own: WorkFigures) {
        let (epoch, number, _) = self.traffic.batch;
        // A batch with figures of a whole ring loses one; it is not from a sound node.
        let _ = self.traffic.incoming.figures.push(own);
        let Incoming { spans, figures, .. } = &self.traffic.incoming;
        self.traffic.outgoing.begin((epoch, number), spans, figures, self.own.is_last);
        self.traffic.work = WorkerTask::Sending;
    }

    /// The opening that [`WorkerStep::Open`] asks for.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn opening(&self) -> &Opening {
        self.opening.as_ref().expect("it is asked for")
    }

    /// Answers [`WorkerStep::Open`] with `line`, which says whether this node is ready. `is_intact` if this
    /// node has not lost its KV since it was asked last.
    pub(crate) fn opened(&mut self, line: NodeLine, is_intact: bool) {
        self.own.line = line;
        self.traffic.work = WorkerTask::Answering;
        let asked = self.opening.as_ref().map(|opening| opening.epoch);
        if !is_intact && asked == self.epoch.map(|(epoch, _)| epoch) {
            // An earlier OPEN of the same epoch may have been answered: the master relies on the KV of then.
            (self.opening, self.traffic.work) = (None, WorkerTask::Receiving);
            self.give_up_epoch(Reason::Lost);
        }
    }

    /// Takes what the link has, sends what it takes, and says what comes next.
    pub(crate) fn poll(
        &mut self,
        now: u64,
        link: &mut impl Link,
        rows: &mut impl Rows,
    ) -> WorkerStep {
        self.take_events(link);
        self.say_missing(now, link);
        loop {
            let is_sent = match self.traffic.work {
                WorkerTask::Computing => return WorkerStep::Compute,
                WorkerTask::Opening => return WorkerStep::Open,
                WorkerTask::Fetching => return WorkerStep::Fetch,
                WorkerTask::SendingFetch => self.send_fetch(link),
                WorkerTask::Receiving => true,
                WorkerTask::Answering => self.answer(link),
                WorkerTask::Sending => {
                    self.traffic.outgoing.send(&self.traffic.batch.2, link, rows)
                }
                WorkerTask::Moving(epoch) => moving::send(epoch, link, rows),
            };
            self.send_down(link);
            self.send_report(link);
            if !is_sent {
                link.leave();
                return WorkerStep::Idle;
            }
            self.traffic.work = WorkerTask::Receiving;
            if !self.receive(link, rows) {
                return WorkerStep::Idle;
            }
        }
    }

    /// Bytes that it keeps on the heap, but for names in notices.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.traffic.scratch.capacity()
            + self.notices.heap_bytes()
            + self.traffic.incoming.heap_bytes()
            + self.traffic.outgoing.heap_bytes()
            + self.fetch.0.heap_bytes()
    }

    fn take_events(&mut self, link: &mut impl Link) {
        while let Some(event) = link.next_event() {
            match event {
                Event::Silent(Side::Prev) if self.epoch.is_some() => {
                    self.says.is_prev_silent = true;
                    self.say_down(Reason::Silent);
                    self.tell(Notice::Silent("the node before".to_owned()));
                }
                Event::Up(Side::Prev) if self.says.is_prev_silent => {
                    self.says.is_prev_silent = false;
                    self.say_down(Reason::Back);
                    self.tell(Notice::Back("the node before".to_owned()));
                }
                Event::Reset(Side::Prev) => {
                    if self.epoch.is_some() {
                        self.tell(Notice::Reset("the node before".to_owned()));
                    }
                    self.give_up_epoch(Reason::Reset);
                    if matches!(self.traffic.work, WorkerTask::Opening | WorkerTask::Answering) {
                        // The sender of that OPEN is gone, and the node in its place does not know
                        // of it.
                        (self.opening, self.traffic.work) = (None, WorkerTask::Receiving);
                    }
                }
                Event::Silent(Side::Next) if self.epoch.is_some() => {
                    self.tell(Notice::Silent("the next node".to_owned()));
                }
                Event::Reset(Side::Next) if self.epoch.is_some() => {
                    self.tell(Notice::Reset("the next node".to_owned()));
                }
                Event::Refused { what, .. } => self.tell(Notice::Refused(what)),
                _ => {}
            }
        }
    }

    /// Gives up the epoch, in which nothing more can be computed, and tells the master.
    fn give_up_epoch(&mut self, reason: Reason) {
        self.say_down(reason);
        self.epoch = None;
        self.says.is_prev_silent = false;
        self.traffic.incoming.clear();
    }

    fn say_down(&mut self, reason: Reason) {
        if let Some((epoch, _)) = self.epoch {
            self.says.down = Some((epoch, reason));
        }
    }

    /// Tells the master of a node that it cannot hear of otherwise: the one before is missing.
    fn say_missing(&mut self, now: u64, link: &mut impl Link) {
        if !self.says.missing.is_due(now) || link.is_up(Side::Prev) || !link.is_up(Side::Next) {
            return;
        }
        self.says.missing.said(now, MISSING_EVERY_US);
        if let Some(out) = link.reserve()
            && let Some(bytes) = frame::emit_report(0, Reason::Missing(0), &self.own.line.name, out)
        {
            link.commit(bytes);
        }
    }

    fn send_down(&mut self, link: &mut impl Link) {
        let Some((epoch, reason)) = self.says.down else { return };
        let Some(out) = link.reserve() else { return };
        if let Some(bytes) = frame::emit_report(epoch, reason, &self.own.line.name, out) {
            link.commit(bytes);
        }
        self.says.down = None;
    }

    fn send_report(&mut self, link: &mut impl Link) {
        if self.says.report.is_none() || !link.is_up(Side::Next) {
            return;
        }
        let Some(out) = link.reserve() else { return };
        if let Some(bytes) = self.says.report.take().and_then(|of| frame::emit_boards(&of, out)) {
            link.commit(bytes);
        }
    }

    fn tell(&mut self, notice: Notice) {
        self.notices.tell(notice);
    }

    /// Handles the oldest frame; `false` if there is none, or it has to wait for the next node.
    fn receive(&mut self, link: &mut impl Link, rows: &mut impl Rows) -> bool {
        let Some(bytes) = link.front() else { return false };
        let heard = match Frame::parse(bytes).map(|frame| (frame.repr(), frame)) {
            Err(_) => Err(Broken("a frame without meaning")),
            Ok((Repr::Activations(header), frame)) => {
                self.activations(&frame, &header, rows).map(|()| None)
            }
            Ok((Repr::Fetch(fetch), frame)) => self.take_fetch(&frame, &fetch).map(|()| None),
            Ok((repr @ Repr::Kv { epoch, piece }, frame)) => {
                let goes_on = self.piece((epoch, &piece), frame.kv(), rows);
                goes_on.map(|goes_on| goes_on.then_some(repr))
            }
            Ok((Repr::Moved { epoch, is_over }, _)) => {
                Ok(self.moved((epoch, is_over), rows).then_some(Repr::Moved { epoch, is_over }))
            }
            Ok((repr, _)) if repr.is_of_others() => Err(Broken("a frame of no ring")),
            Ok((repr, _)) => Ok(Some(repr)),
        };
        let heard = match heard {
            Ok(Some(repr)) => {
                // A frame that goes on to the next node is copied, as the link is needed to send it.
                let len = bytes.len();
                self.traffic.scratch[..len].copy_from_slice(bytes);
                self.control(repr, len, (link, rows))
            }
            heard => heard.map(|_| true),
        };
        if let Ok(false) = heard {
            link.leave();
            return false;
        }
        link.release();
        if let Err(Broken(what)) = heard {
            self.tell(Notice::Broken(what));
            self.give_up_epoch(Reason::Reset);
        }
        true
    }

    /// Takes a piece of keys and values; `true` if it is another node's.
    fn piece(
        &mut self,
        (epoch, piece): (u32, &KvPiece),
        bytes: &[u8],
        rows: &mut impl Rows,
    ) -> Result<bool, Broken> {
        match self.epoch {
            Some((own, sizes)) if own == epoch => {
                moving::take(piece, bytes, (&sizes, self.model.n_layers), rows)
            }
            // A frame of an epoch that is over.
            _ => Ok(false),
        }
    }

    /// MOVED has come; `true` if it goes on to the next node as it is.
    fn moved(&mut self, (epoch, is_over): (u32, bool), rows: &mut impl Rows) -> bool {
        let Some((_, sizes)) = self.epoch.filter(|(own, _)| *own == epoch) else { return false };
        match is_over {
            true => rows.moved(epoch, &sizes),
            false => self.traffic.work = WorkerTask::Moving(epoch),
        }
        is_over
    }

    /// Sends a frame other than ACTIVATIONS on; `Ok(false)` if it has to wait.
    fn control(
        &mut self,
        repr: Repr,
        len: usize,
        (link, rows): (&mut impl Link, &mut impl Rows),
    ) -> Result<bool, Broken> {
        let is_repeated = match repr {
            Repr::Report { reason, .. } => reason.is_repeated(),
            repr => matches!(repr, Repr::Boards(_)),
        };
        if is_repeated && !link.is_up(Side::Next) {
            // It is said again, and is old when the next node is back.
            return Ok(true);
        }
        if link.reserve().is_none() {
            // The master's leave must not wait for a node that may have gone with it.
            return match repr {
                Repr::Close { .. } => {
                    self.left();
                    Ok(true)
                }
                _ => Ok(false),
            };
        }
        match repr {
            Repr::Open { epoch, from, sizes, .. } => self.open((epoch, from, sizes), len)?,
            Repr::Close { .. } => {
                self.left();
                if !self.own.is_last {
                    self.forward(len, link);
                }
            }
            Repr::Pages { epoch, .. } => {
                // Once, as there is room to send it on.
                self.change_pages(epoch, len, rows)?;
                if !self.own.is_last {
                    self.forward(len, link);
                }
            }
            Repr::Keep { epoch, .. } => {
                self.keep_pages(epoch, len, rows)?;
                if !self.own.is_last {
                    self.forward(len, link);
                }
            }
            _ => self.forward(len, link),
        }
        Ok(true)
    }

    fn left(&mut self) {
        if self.epoch.take().is_some() {
            self.tell(Notice::MasterLeft);
        }
        self.traffic.incoming.clear();
    }

    fn forward(&mut self, len: usize, link: &mut impl Link) {
        if let Some(out) = link.reserve().and_then(|out| out.get_mut(..len)) {
            out.copy_from_slice(&self.traffic.scratch[..len]);
            link.commit(len);
        }
    }

    /// An OPEN has come, and is in `scratch`.
    fn open(
        &mut self,
        (epoch, from, sizes): (u32, Option<u32>, Sizes),
        len: usize,
    ) -> Result<(), Broken> {
        if sizes.dim != self.model.dim || !batch::fits(&sizes, self.model.frame_bytes) {
            return Err(Broken("an OPEN that does not fit the model"));
        }
        let frame = Frame::parse(&self.traffic.scratch[..len]).map_err(|_| Broken("an OPEN"))?;
        let assigned = frame.assigned().nth(frame.lines().count()).transpose();
        let assigned = assigned.map_err(|_| Broken("a share without meaning"))?;
        let layers = assigned.or_else(|| self.own.wish.clone());
        if layers.as_ref().is_some_and(|layers| layers.end > self.model.n_layers) {
            return Err(Broken("an OPEN that does not fit the model"));
        }
        self.traffic.incoming.clear();
        self.opening = Some(Opening { sizes, layers, from, epoch, len });
        self.traffic.work = WorkerTask::Opening;
        Ok(())
    }

    /// Sends the OPEN on with the own line; `false` if it has to wait.
    fn answer(&mut self, link: &mut impl Link) -> bool {
        if link.reserve().is_none() {
            return false;
        }
        if let Some(opening) = self.opening.take()
            && let Err(Broken(what)) = self.send_open(&opening, link)
        {
            self.tell(Notice::Broken(what));
            self.give_up_epoch(Reason::Reset);
        }
        true
    }

    fn send_open(&mut self, opening: &Opening, link: &mut impl Link) -> Result<(), Broken> {
        let Opening { sizes, epoch, from, .. } = opening;
        let frame =
            Frame::parse(&self.traffic.scratch[..opening.len]).map_err(|_| Broken("an OPEN"))?;
        let assigned = frame.assigned().collect::<Result<Vec<_>, _>>();
        let assigned = assigned.map_err(|_| Broken("a share without meaning"))?;
        let lines = frame.lines().collect::<Result<Vec<NodeLine>, _>>();
        let mut lines = lines.map_err(|_| Broken("a line without meaning"))?;
        lines.push(super::with_link(self.own.line.clone(), link));
        self.begin((*epoch, sizes));
        let out = link.reserve().ok_or(Broken("no room for OPEN"))?;
        let bytes = frame::emit_open((*epoch, *from), sizes, Parts::Layers(&assigned), &lines, out);
        link.commit(bytes.ok_or(Broken("an OPEN that has been through too many nodes"))?);
        Ok(())
    }

    /// The epoch begins here, if this node is ready for it.
    fn begin(&mut self, (epoch, sizes): (u32, &Sizes)) {
        (self.says.down, self.says.is_prev_silent) = (None, false);
        if self.own.line.status != Status::Ready {
            self.epoch = None;
            let refusal = Some(refusal(&self.own.line));
            if self.refusal != refusal {
                self.refusal.clone_from(&refusal);
                if let Some(what) = refusal {
                    self.tell(Notice::Refused(what));
                }
            }
            return;
        }
        self.refusal = None;
        self.own.is_last = self.own.line.layers.end == self.model.n_layers;
        self.traffic.incoming.reserve(sizes);
        self.traffic.outgoing.reserve(sizes);
        if self.epoch.replace((epoch, *sizes)).is_none() {
            self.tell(Notice::Opened { again: false });
        }
    }

    fn activations(
        &mut self,
        frame: &Frame<'_>,
        header: &Activations,
        rows: &mut impl Rows,
    ) -> Result<(), Broken> {
        let Some((epoch, sizes)) = self.epoch.filter(|(epoch, _)| *epoch == header.epoch) else {
            // A frame of an epoch that is over; or the master takes this node for an earlier one.
            if self.says.stray_epoch.replace(header.epoch) != Some(header.epoch) {
                self.says.down = Some((header.epoch, Reason::Reset));
            }
            return Ok(());
        };
        if header.n_spans == 0 {
            return Err(Broken("rows without a stream"));
        }
        if self.own.line.layers.is_empty() {
            return Err(Broken("rows for a node without layers"));
        }
        if self.traffic.incoming.take(frame, header, &sizes, rows)? {
            self.traffic.batch = (epoch, header.batch, sizes);
            self.traffic.work = WorkerTask::Computing;
        }
        Ok(())
    }

    /// Pages that [`WorkerStep::Fetch`](WorkerStep) asks for, and how many of them, from the first,
    /// are of use.
    pub(crate) fn fetch(&self) -> (&PagesToRead, usize) {
        (&self.fetch.0, self.fetch.1)
    }

    /// Reports that the first `n_found` pages have been read.
    pub(crate) fn fetched(&mut self, n_found: usize) {
        self.fetch.1 = self.fetch.1.min(n_found);
        self.traffic.work = WorkerTask::SendingFetch;
    }

    /// FETCH has come.
    fn take_fetch(&mut self, frame: &Frame<'_>, fetch: &Fetch) -> Result<(), Broken> {
        let Some((epoch, sizes)) = self.epoch.filter(|(epoch, _)| *epoch == fetch.epoch) else {
            // A frame of an epoch that is over.
            return Ok(());
        };
        // A page of a longer text may begin like the last one of this.
        let ids_max = sizes.ctx_len.saturating_add(KEEP_IDS as u32);
        if fetch.n_found > fetch.n_pages || fetch.n_ids > ids_max {
            return Err(Broken("pages of no text"));
        }
        self.fetch = (PagesToRead::of(frame, fetch), fetch.n_found.into());
        self.traffic.batch = (epoch, fetch.batch, sizes);
        self.traffic.work = WorkerTask::Fetching;
        Ok(())
    }

    /// Sends it on; `false` if it has to wait.
    fn send_fetch(&mut self, link: &mut impl Link) -> bool {
        let ((epoch, batch, _), (pages, n_found)) = (self.traffic.batch, &self.fetch);
        match pages.send((epoch, batch), (*n_found, self.own.is_last), link) {
            Ok(is_sent) => is_sent,
            // Pages that came in a frame fit one.
            Err(_) => {
                self.give_up_epoch(Reason::Reset);
                true
            }
        }
    }

    /// Pages are to be kept, as a frame in `scratch` says.
    fn keep_pages(&mut self, epoch: u32, len: usize, rows: &mut impl Rows) -> Result<(), Broken> {
        self.told_of_pages(epoch, len, |frame, sizes| {
            frame.keeps().all(|page| page.is_ok_and(|page| rows.keep(&page, sizes)))
        })
    }

    /// Streams have other pages, as a frame in `scratch` says.
    fn change_pages(&mut self, epoch: u32, len: usize, rows: &mut impl Rows) -> Result<(), Broken> {
        self.told_of_pages(epoch, len, |frame, sizes| {
            frame.pages().all(|page| page.is_ok_and(|page| rows.set_page(&page, sizes)))
        })
    }

    /// Has `take` carry out a frame, unless its epoch is over; `take` says whether that was possible.
    fn told_of_pages(
        &self,
        epoch: u32,
        len: usize,
        take: impl FnOnce(&Frame<'_>, &Sizes) -> bool,
    ) -> Result<(), Broken> {
        let Some((_, sizes)) = self.epoch.filter(|(own, _)| *own == epoch) else { return Ok(()) };
        let frame = Frame::parse(&self.traffic.scratch[..len]).map_err(|_| Broken("pages"))?;
        if take(&frame, &sizes) { Ok(()) } else { Err(Broken("pages that there are not")) }
    }
}
