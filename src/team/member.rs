//! A member: a node that follows the lead.

use std::time::Duration;

use super::error::TeamError;
use super::exchange::{Ended, Exchange};
use super::incoming::Incoming;
use super::mesh::{Mesh, PeerLinks, Sessions};
use super::opening::Opening;
use super::parts::Gathered;
use crate::group::{Broken, Every, MISSING_EVERY_US, Notice};
use crate::transport::Micros;
use crate::wire::frame::{
    self, Frame, FramePage, FrameSpan, NodeLine, Reason, Repr, TEAM_NODES_MAX as NODES_MAX, Why,
    Work,
};
use crate::wire::hello::{Name, name};

/// Sleep on the lead's link between two looks whether to go on.
const NAP: Duration = Duration::from_millis(50);
/// Sleep on the lead's link while the member has a message that it cannot send yet.
const SHORT_NAP: Duration = Duration::from_millis(2);
/// Time in which links must come up that all nodes were said to have.
const LINKED_WITHIN_US: Micros = 1_000_000;

/// An order of the lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Be ready for this: [`Member::ready`], or [`Member::refuse`].
    Open(Opening),
    /// Do this with [`Member::spans`] and [`Member::tokens`], and gather as all do.
    Pass(Work),
    /// Give streams [`Member::pages`].
    Pages,
    /// Stop, until the next opening.
    Close,
}

/// The answer to an OPEN, kept until it can be sent.
enum Answer {
    Ready(NodeLine),
    Refused(Why),
}

/// A member of a team: node 1 or a later one.
pub struct Member {
    exchange: Exchange,
    name: Name,
    /// Request of the last OPEN, with its epoch.
    opening: Option<(u32, Opening)>,
    /// Kept until the first batch comes.
    answer: Option<Answer>,
    /// Sessions with the lead over which the answer was sent. If new ones replace them, the answer is lost,
    /// and sent again.
    answered_over: Option<Sessions>,
    /// Repetition of the report that another member is missing.
    missing: Every,
    incoming: Incoming,
    /// Reports that this node has given up an epoch, still to be sent, by node.
    unsent: [Option<Failure>; NODES_MAX],
}

impl Member {
    /// The member over `mesh`, called `own_name`.
    ///
    /// # Panics
    /// If the mesh is node 0's, which is the lead.
    pub fn new(mesh: Mesh, own_name: &str) -> Member {
        assert!(mesh.own() != 0, "node 0 is the lead");
        Member {
            exchange: Exchange::new(mesh),
            name: name(own_name),
            opening: None,
            answer: None,
            answered_over: None,
            missing: Every::default(),
            incoming: Incoming::default(),
            unsent: [None; NODES_MAX],
        }
    }

    /// The mesh again.
    pub fn into_mesh(self) -> Mesh {
        self.exchange.mesh
    }

    /// Has [`Member::gather`] poll this function, and end with [`TeamError::Interrupted`] if it returns true.
    pub fn interrupt_by(&mut self, is_interrupted: fn() -> bool) {
        self.exchange.is_interrupted = is_interrupted;
    }

    /// Waits, asleep, for an order of the lead; also sends frames that are still due. Tells by `tell` which
    /// nodes do not fit this one.
    ///
    /// # Errors
    /// [`TeamError::Interrupted`].
    pub fn next(
        &mut self,
        is_interrupted: &dyn Fn() -> bool,
        tell: &mut dyn FnMut(&Notice),
    ) -> Result<Order, TeamError> {
        loop {
            let lacks_room = self.send_failures();
            self.reply();
            if let Some(order) = self.hear() {
                return Ok(order);
            }
            if is_interrupted() {
                return Err(TeamError::Interrupted);
            }
            self.check_links();
            for node in self.exchange.mesh.peers() {
                if let Some(unfit) = self.exchange.mesh.lock(node).refusal() {
                    tell(&unfit);
                }
            }
            let is_waiting = self.answer.is_some() && self.answered_over.is_none();
            let mut links = self.exchange.mesh.lock(0);
            links.service(if is_waiting || lacks_room { SHORT_NAP } else { NAP });
        }
    }

    /// Accepts the last OPEN: READY is sent as soon as this member has links to all nodes, which
    /// [`Member::next`] waits for. The name in `line` is replaced by the member's.
    pub fn ready(&mut self, line: NodeLine) {
        let Some((_, opening)) = &self.opening else { return };
        self.incoming.reserve(opening);
        self.answer = Some(Answer::Ready(NodeLine { name: self.name.clone(), ..line }));
        self.answered_over = None;
        self.reply();
    }

    /// Refuses the last OPEN, with as much of `why` as 200 bytes hold.
    pub fn refuse(&mut self, why: &str) {
        self.answer = self.opening.as_ref().map(|_| Answer::Refused(shortened(why)));
        self.answered_over = None;
        self.reply();
    }

    /// Gives the epoch up, as this node cannot go on: the lead opens another.
    pub fn fail(&mut self) {
        self.answer = None;
        if let Some(epoch) = self.exchange.epoch.take() {
            self.give_up(epoch, self.exchange.mesh.own(), true);
        }
    }

    /// The spans of the batch to run.
    pub fn spans(&self) -> &[FrameSpan] {
        &self.incoming.spans
    }

    /// The ids of the batch's rows.
    pub fn tokens(&self) -> &[u32] {
        &self.incoming.tokens
    }

    /// The pages that streams have from the next batch on.
    pub fn pages(&self) -> &[FramePage] {
        &self.incoming.pages
    }

    /// Nodes of the team, this one included.
    pub fn n_nodes(&self) -> usize {
        self.exchange.mesh.n_nodes()
    }

    /// Sends this node's columns of `rows` to the lead, or to all nodes, and takes theirs.
    ///
    /// # Errors
    /// [`TeamError::Superseded`], [`TeamError::Lost`], [`TeamError::NotOpen`], [`TeamError::Interrupted`]; the
    /// epoch is over then, and [`Member::next`] has the next one.
    ///
    /// # Panics
    /// If another gather is under way, there is not one part for each node, a part is outside of a row, or one is
    /// 4 GiB or longer.
    pub fn gather(&mut self, mut rows: Gathered<'_>) -> Result<(), TeamError> {
        let epoch = self.exchange.epoch;
        let ended = self.exchange.gather(&mut rows);
        self.end(epoch, ended)
    }

    /// Starts a gather like [`Lead::start_gather`](super::Lead::start_gather).
    ///
    /// # Errors
    /// See [`Member::gather`].
    ///
    /// # Panics
    /// See [`Member::gather`].
    pub fn start_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        let epoch = self.exchange.epoch;
        let ended = self.exchange.start(rows);
        self.end(epoch, ended)
    }

    /// Finishes a gather like [`Lead::finish_gather`](super::Lead::finish_gather).
    ///
    /// # Errors
    /// See [`Member::gather`].
    ///
    /// # Panics
    /// See [`Member::gather`].
    pub fn finish_gather(&mut self, rows: &mut [Gathered<'_>]) -> Result<(), TeamError> {
        let epoch = self.exchange.epoch;
        let ended = self.exchange.finish(rows);
        self.end(epoch, ended)
    }

    /// Handles the end of a gather of `epoch`; tells the other nodes if the epoch failed.
    fn end(&mut self, epoch: Option<u32>, ended: Result<(), Ended>) -> Result<(), TeamError> {
        let Err(ended) = ended else { return Ok(()) };
        let (error, because_of, tells_lead) = match ended {
            Ended::Superseded => (TeamError::Superseded, 0, false),
            // It may have been silent for a while, and wait for this node.
            Ended::Lost(0) => (TeamError::Superseded, 0, true),
            Ended::Lost(node) => (TeamError::Lost { node }, node, true),
            Ended::Interrupted => (TeamError::Interrupted, self.exchange.mesh.own(), true),
            Ended::NotOpen => return Err(TeamError::NotOpen),
        };
        if let Some(epoch) = epoch {
            self.give_up(epoch, because_of, tells_lead);
        }
        Err(error)
    }

    // Sending

    /// Gives up `epoch`, and tells the nodes that may wait for this one.
    fn give_up(&mut self, epoch: u32, because_of: usize, tells_lead: bool) {
        for node in self.exchange.mesh.peers().filter(|node| *node != 0 || tells_lead) {
            let because_of = because_of as u32;
            self.unsent[node] = Some(Failure { epoch, because_of, said_over: None });
        }
        self.send_failures();
    }

    /// Gives the epoch up if one of its links was reset: frames in flight may be lost, and other nodes may
    /// wait for them while this one, which has completed its gathers, waits for the next batch.
    fn check_links(&mut self) {
        let Some(epoch) = self.exchange.epoch.filter(|_| self.answer.is_none()) else { return };
        let Exchange { mesh, sessions, .. } = &self.exchange;
        let lost = mesh.peers().find(|node| {
            let mut links = mesh.lock(*node);
            links.drop_events();
            links.sessions() != sessions[*node]
        });
        if let Some(node) = lost {
            self.exchange.epoch = None;
            self.give_up(epoch, node, true);
        }
    }

    /// Reports the epochs that were given up, where that is due; true if links lack room for some.
    fn send_failures(&mut self) -> bool {
        let mut lacks_room = false;
        for node in self.exchange.mesh.peers() {
            let Some(Failure { epoch, because_of, said_over }) = &mut self.unsent[node] else {
                continue;
            };
            let mut links = self.exchange.mesh.lock(node);
            links.drop_events();
            let sessions = links.sessions();
            if sessions.is_none() || sessions == *said_over {
                continue;
            }
            let reason = Reason::GivenUp(*because_of);
            match links.send(|room| frame::emit_report(*epoch, reason, &self.name, room)) {
                true => *said_over = sessions,
                false => lacks_room = true,
            }
            links.service(Duration::ZERO);
        }
        lacks_room
    }

    /// Answers the lead's OPEN, if that can be done.
    fn reply(&mut self) {
        let (Some((epoch, _)), Some(answer)) = (&self.opening, &self.answer) else { return };
        let (mesh, epoch) = (&self.exchange.mesh, *epoch);
        let over = mesh.lock(0).sessions();
        if over.is_none() || over == self.answered_over {
            return;
        }
        let missing = match answer {
            Answer::Ready(_) => mesh.peers().filter(|node| *node != 0).find(|node| {
                let mut links = mesh.lock(*node);
                drop_all(&mut links);
                links.service(Duration::ZERO);
                links.sessions().is_none()
            }),
            Answer::Refused(_) => None,
        };
        let mut links = mesh.lock(0);
        if let Some(missing) = missing {
            let now = mesh.now();
            if self.missing.is_due(now) {
                self.missing.said(now, MISSING_EVERY_US);
                let reason = Reason::Missing(missing as u32);
                links.send(|room| frame::emit_report(epoch, reason, &self.name, room));
            }
            return;
        }
        let is_sent = links.send(|room| match answer {
            Answer::Ready(line) => frame::emit_ready(epoch, line, room),
            Answer::Refused(why) => frame::emit_refuse(epoch, why, room),
        });
        if !is_sent {
            return;
        }
        links.service(Duration::ZERO);
        drop(links);
        self.answered_over = over;
        if let Answer::Ready(_) = answer {
            self.exchange.begin(epoch);
        }
    }

    // Receiving

    /// Takes what the lead has said, up to an order.
    fn hear(&mut self) -> Option<Order> {
        let mesh = &self.exchange.mesh;
        let mut links = mesh.lock(0);
        links.drop_events();
        while let Some(frame) = links.front() {
            let (opening, epoch) = (&mut self.opening, self.exchange.epoch);
            let heard = match Frame::parse(frame).map(|frame| (frame.repr(), frame)) {
                Ok((Repr::Open { epoch: of, .. }, frame)) => match Opening::read(&frame) {
                    Ok(asked) => Heard::Open(of, asked),
                    Err(Broken(what)) => Heard::Broken(what),
                },
                Ok((Repr::Close { epoch: of }, _))
                    if opening.as_ref().is_some_and(|o| o.0 == of) =>
                {
                    Heard::Close
                }
                Ok((Repr::Pass(pass), frame)) if epoch == Some(pass.epoch) => {
                    match opening.as_ref().map(|(_, o)| self.incoming.take(&frame, &pass, o)) {
                        Some(Ok(true)) => Heard::Pass(pass.epoch),
                        Some(Err(Broken(what))) => Heard::Broken(what),
                        Some(Ok(false)) | None => Heard::Nothing,
                    }
                }
                Ok((Repr::Pages { epoch: of, .. }, frame)) if epoch == Some(of) => {
                    match self.incoming.take_pages(&frame) {
                        Ok(()) => Heard::Pages(of),
                        Err(Broken(what)) => Heard::Broken(what),
                    }
                }
                Ok((repr, _)) if repr.is_of_ring() => Heard::Broken("a frame of a ring"),
                // Parts of a gather that this node has left, or of an epoch before.
                Ok(_) => Heard::Nothing,
                Err(_) => Heard::Broken("what is no frame"),
            };
            links.release();
            drop(links);
            if let Some(order) = self.follow(heard) {
                return Some(order);
            }
            links = self.exchange.mesh.lock(0);
        }
        None
    }

    /// The order to carry out, if the message is one.
    fn follow(&mut self, heard: Heard) -> Option<Order> {
        match heard {
            Heard::Nothing => None,
            Heard::Open(epoch, opening) => self.asked(epoch, opening),
            Heard::Close => {
                self.leave_epoch();
                self.opening = None;
                Some(Order::Close)
            }
            Heard::Pass(epoch) => {
                self.begin_batch(epoch).then_some(Order::Pass(self.incoming.work))
            }
            Heard::Pages(epoch) => self.begin_batch(epoch).then_some(Order::Pages),
            Heard::Broken(what) => {
                log::warn!("the team's lead sends {what}");
                self.fail();
                None
            }
        }
    }

    fn asked(&mut self, epoch: u32, opening: Opening) -> Option<Order> {
        self.leave_epoch();
        let mesh = &self.exchange.mesh;
        let place = (mesh.own(), mesh.n_nodes());
        let (node, n_nodes) = (usize::from(opening.node), opening.shares.len());
        self.opening = Some((epoch, opening.clone()));
        if place == (node, n_nodes) {
            return Some(Order::Open(opening));
        }
        let (own, nodes) = place;
        self.refuse(&format!(
            "the lead takes it for node {node} of {n_nodes}, and it is node {own} of {nodes}"
        ));
        None
    }

    fn leave_epoch(&mut self) {
        self.exchange.epoch = None;
        (self.answer, self.answered_over, self.missing) = (None, None, Every::default());
        self.incoming.forget();
    }

    /// Begins a batch; true if it can be run. The first of an epoch settles the sessions.
    fn begin_batch(&mut self, epoch: u32) -> bool {
        self.exchange.mesh.drive();
        self.exchange.begin_batch();
        if self.answer.take().is_none() {
            return true;
        }
        // All members were ready: earlier epochs are over.
        self.unsent = [None; NODES_MAX];
        let end = self.exchange.mesh.now() + LINKED_WITHIN_US;
        for node in self.exchange.mesh.peers() {
            let sessions = self.sessions_by(node, end);
            self.exchange.sessions[node] = sessions;
            if sessions.is_none() {
                self.exchange.epoch = None;
                self.give_up(epoch, node, true);
                return false;
            }
        }
        true
    }

    /// The sessions with a node, once both links are up, which it may know a moment earlier than this node.
    fn sessions_by(&self, node: usize, end: Micros) -> Option<Sessions> {
        loop {
            let mut links = self.exchange.mesh.lock(node);
            links.drop_events();
            let sessions = links.sessions();
            if sessions.is_some() || self.exchange.mesh.now() >= end {
                return sessions;
            }
            links.leave();
            links.service(SHORT_NAP);
        }
    }
}

/// A report that is still to be sent: this node gave an epoch up.
#[derive(Clone, Copy)]
struct Failure {
    epoch: u32,
    because_of: u32,
    /// Sessions over which it was sent last. New sessions may have lost it, and the other node may have begun
    /// the epoch over them.
    said_over: Option<Sessions>,
}

/// A message of the lead.
enum Heard {
    Nothing,
    Open(u32, Opening),
    Pass(u32),
    Pages(u32),
    Close,
    Broken(&'static str),
}

/// Drops all frames of a member that came before this one was ready: they belong to an earlier epoch.
fn drop_all(links: &mut PeerLinks<'_>) {
    links.drop_events();
    while links.front().is_some() {
        links.release();
    }
}

/// The part of `text` that fits.
fn shortened(text: &str) -> Why {
    let mut out = Why::new();
    for c in text.chars() {
        if out.push(c).is_err() {
            break;
        }
    }
    out
}
