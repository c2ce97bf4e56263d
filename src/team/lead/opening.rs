//! The lead's part of an opening: it gets all members ready.

use std::time::Duration;

use crate::group::{Membership, Notice};
use crate::team::error::TeamError;
use crate::team::mesh::{Mesh, PeerLinks, Sessions};
use crate::team::opening::Opening;
use crate::wire::WireError;
use crate::wire::frame::{Frame, NodeLine, Reason, Repr, TEAM_NODES_MAX as NODES_MAX, Way, Why};

/// Sleep on the link of a member that is not ready, while others are not either.
const NAP: Duration = Duration::from_millis(5);

/// Progress of a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The member was not asked.
    Absent,
    /// The member was asked over these sessions.
    Asked(Sessions),
    /// The member is ready, over these sessions.
    Ready(Sessions),
}

/// A team that is coming together.
pub(super) struct Gathering<'a> {
    mesh: &'a Mesh,
    opening: &'a Opening,
    tell: &'a mut dyn FnMut(&Notice),
    states: [State; NODES_MAX],
    /// Notices that the user has had about each member since its links began.
    told: Vec<(usize, Notice)>,
    /// Number of notices of each link's carrier that the user has had.
    n_carrier: [usize; NODES_MAX],
    lines: Vec<NodeLine>,
}

/// Outcome of a look at a member's links.
enum Attended {
    Nothing,
    /// The epoch is of no use any more.
    Again,
}

/// A member's answer to an OPEN.
enum Answer {
    /// A message of an earlier epoch, or none that a member sends now.
    Nothing,
    Ready(NodeLine),
    Refused(Why),
    GivenUp,
    /// The member has no link to the node with this index.
    Missing(usize),
}

impl Answer {
    fn read(frame: &Frame<'_>, epoch: u32) -> Result<Answer, WireError> {
        Ok(match frame.repr() {
            Repr::Ready { epoch: of } if of == epoch => match frame.lines().next().transpose()? {
                Some(line) => Answer::Ready(line),
                None => Answer::Nothing,
            },
            Repr::Refuse { epoch: of } if of == epoch => Answer::Refused(frame.why()),
            Repr::Report { epoch: of, reason } if of == epoch => match reason {
                Reason::GivenUp(_) => Answer::GivenUp,
                Reason::Missing(other) => Answer::Missing(other as usize),
                _ => Answer::Nothing,
            },
            _ => Answer::Nothing,
        })
    }
}

impl<'a> Gathering<'a> {
    pub(super) fn new(
        mesh: &'a Mesh,
        opening: &'a Opening,
        tell: &'a mut dyn FnMut(&Notice),
    ) -> Gathering<'a> {
        let lines = vec![NodeLine::default(); mesh.n_nodes() - 1];
        let (states, n_carrier) = ([State::Absent; NODES_MAX], [0; NODES_MAX]);
        Gathering { mesh, opening, tell, states, told: Vec::new(), n_carrier, lines }
    }

    /// Waits until all members are ready in the next epoch of `group`, or in a later one if a member goes
    /// meanwhile.
    pub(super) fn wait(
        &mut self,
        group: &mut Membership,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<(), TeamError> {
        // A member is asked as soon as it is there, and once in an epoch, so there is nothing to delay.
        group.restart(self.mesh.now(), 0);
        let mut rested_on = 0;
        loop {
            for node in self.mesh.peers() {
                let is_last = node == rested_on;
                let wait = if is_last { NAP } else { Duration::ZERO };
                if let Attended::Again = self.attend(node, group.epoch(), wait)? {
                    self.states = [State::Absent; NODES_MAX];
                    group.restart(self.mesh.now(), 0);
                }
            }
            let is_waited_for = |node: &usize| !matches!(self.states[*node], State::Ready(_));
            let mut missing = self.mesh.peers().filter(is_waited_for);
            let Some(node) = missing.next() else { return Ok(()) };
            rested_on = missing.find(|node| *node > rested_on).unwrap_or(node);
            if is_interrupted() {
                return Err(TeamError::Interrupted);
            }
            if let Some(seconds) = group.overdue(self.mesh.now()) {
                return Err(TeamError::Timeout { node: self.mesh.name(node), seconds });
            }
        }
    }

    /// The members' lines, and the sessions that they are ready over.
    pub(super) fn finish(self) -> (Vec<NodeLine>, [Option<Sessions>; NODES_MAX]) {
        let sessions = self.states.map(|state| match state {
            State::Ready(sessions) => Some(sessions),
            _ => None,
        });
        (self.lines, sessions)
    }

    /// Asks a member, hears its answer, tells what there is to tell.
    fn attend(&mut self, node: usize, epoch: u32, wait: Duration) -> Result<Attended, TeamError> {
        let mesh = self.mesh;
        let mut links = mesh.lock(node);
        self.tell_events(node, &mut links);
        let sessions = links.sessions();
        let (State::Asked(over) | State::Ready(over)) = self.states[node] else {
            self.ask(node, epoch, sessions, &mut links);
            links.service(wait);
            return Ok(Attended::Nothing);
        };
        if sessions != Some(over) {
            let was_ready = matches!(self.states[node], State::Ready(_));
            self.states[node] = State::Absent;
            self.told.retain(|(of, _)| *of != node);
            if was_ready {
                let name = mesh.name(node);
                let what = format!("{name} is gone");
                (self.tell)(&Notice::Waiting { what, missing: vec![name] });
            }
            // It may be asked again, and its earlier answers may still arrive: a new epoch tells them apart.
            return Ok(Attended::Again);
        }
        let heard = self.hear(node, epoch, over, &mut links)?;
        links.service(wait);
        Ok(heard)
    }

    /// Asks a member that is there.
    fn ask(
        &mut self,
        node: usize,
        epoch: u32,
        sessions: Option<Sessions>,
        links: &mut PeerLinks<'_>,
    ) {
        // Older frames were sent before the member was asked; left there they would keep the lead from
        // sleeping.
        while links.front().is_some() {
            links.release();
        }
        let name = self.mesh.name(node);
        let Some(sessions) = sessions else {
            let what = format!("waiting for {name}");
            return self.tell_once(node, Notice::Waiting { what, missing: vec![name] });
        };
        self.tell_once(node, Notice::Came(name));
        if links.send(|room| self.opening.emit(epoch, node as u16, room)) {
            self.states[node] = State::Asked(sessions);
        }
    }

    fn hear(
        &mut self,
        node: usize,
        epoch: u32,
        over: Sessions,
        links: &mut PeerLinks<'_>,
    ) -> Result<Attended, TeamError> {
        let mut heard = Attended::Nothing;
        while let Some(frame) = links.front() {
            match Frame::parse(frame).and_then(|frame| Answer::read(&frame, epoch)) {
                Ok(Answer::Ready(line)) => {
                    let way = Way { rtt_us: links.rtt_us(), ..Way::default() };
                    self.ready(node, over, NodeLine { way, ..line });
                }
                Ok(Answer::Refused(why)) => {
                    links.release();
                    return Err(self.refused(node, &why));
                }
                Ok(Answer::GivenUp) => heard = Attended::Again,
                Ok(Answer::Missing(other)) => self.missing(node, other),
                Ok(Answer::Nothing) => {}
                Err(e) => log::warn!("node {node} of the team sends what is no frame: {e}"),
            }
            links.release();
        }
        Ok(heard)
    }

    fn ready(&mut self, node: usize, over: Sessions, line: NodeLine) {
        self.states[node] = State::Ready(over);
        self.tell_once(node, Notice::Ready(self.mesh.name(node)));
        self.lines[node - 1] = line;
    }

    fn refused(&mut self, node: usize, why: &str) -> TeamError {
        let (node, why) = (self.mesh.name(node), why.to_owned());
        (self.tell)(&Notice::Unfit { name: node.clone(), why: why.clone() });
        TeamError::Refused { node, why }
    }

    fn missing(&mut self, node: usize, other: usize) {
        if other < self.mesh.n_nodes() {
            let what = format!("{} has no link to {}", self.mesh.name(node), self.mesh.name(other));
            self.tell_once(node, Notice::Waiting { what, missing: Vec::new() });
        }
    }

    /// Tells the user about a member, once for its links.
    fn tell_once(&mut self, node: usize, notice: Notice) {
        let told = (node, notice);
        if !self.told.contains(&told) {
            (self.tell)(&told.1);
            self.told.push(told);
        }
    }

    fn tell_events(&mut self, node: usize, links: &mut PeerLinks<'_>) {
        for unfit in [links.refusal(), links.silence()].into_iter().flatten() {
            (self.tell)(&unfit);
        }
        while let Some(notice) = links.carrier_notice(self.n_carrier[node]) {
            self.n_carrier[node] += 1;
            (self.tell)(&notice);
        }
    }
}
