//! Moves the layers of a running ring: among its nodes, or to other boards.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::ahead;
use super::events::{Event, Teller};
use super::experience::Experience;
use super::figures;
use super::mailbox::Mailbox;
use super::members::{Fleet, only};
use super::replan::{Better, Planner};
use super::seen::Seen;
use super::split::ring_lines;
use crate::control::server::Say;
use crate::control::{Refusal, WORD_EVERY};
use crate::engine::ring::{check_fixed, check_split};
use crate::engine::{Isa, WeightsPlace};
use crate::model::Share;
use crate::ring::Topology;
use crate::ring::plan::{Board, Load, Objective, Task};
use crate::transport::place::HostPort;
use crate::wire::call::Call;
use crate::wire::frame::NodeLine;

/// Interval between checks whether layers are packed.
const LOOKED_EVERY: Duration = Duration::from_millis(20);

/// Moves layers.
pub(crate) struct Moves {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(super) planner: Planner,
    /// Place of the master's weights, and the kernels that they are packed for.
    weights: (WeightsPlace, Isa),
    /// Boards that can get other layers.
    fleet: Option<Mutex<Fleet>>,
    /// Held by the thread that moves layers.
    changing: Mutex<()>,
    /// Hears what happens.
    pub(super) events: Teller,
}

fn refusal(code: u8, why: String) -> Refusal {
    Refusal { code, why }
}

fn busy() -> Refusal {
    refusal(1, "layers move just now".to_owned())
}

impl Moves {
    /// Moves the layers of the ring behind `mailbox`, for a model with this load. `weights` says where the
    /// master's weights are kept, and for which kernels they are packed; `fleet` are the boards, if they were
    /// called.
    pub(crate) fn new(
        mailbox: Arc<Mailbox>,
        load: Load,
        weights: (WeightsPlace, Isa),
        fleet: Option<Fleet>,
        events: Teller,
    ) -> Moves {
        let (planner, fleet) = (Planner { load }, fleet.map(Mutex::new));
        Moves { mailbox, planner, weights, fleet, changing: Mutex::new(()), events }
    }

    /// Begins to pack the layers that the master is to have.
    fn pack_own(&self, layers: &Range<usize>) -> Option<JoinHandle<()>> {
        let ((place, isa), layers) = (self.weights.clone(), layers.clone());
        let pack = move || {
            if let Err(why) = ahead::pack(Share { layers, has_ends: true }, &place, Some(isa)) {
                log::debug!("layers are not packed ahead: {why}");
            }
        };
        // If the system refuses a thread, the layers are packed when the master gets them.
        thread::Builder::new().name("leap-pack".to_owned()).spawn(pack).ok()
    }

    /// The boards, if they were called.
    pub(crate) fn fleet(&self) -> Option<Fleet> {
        Some(self.lock_fleet()?.clone())
    }

    fn lock_fleet(&self) -> Option<MutexGuard<'_, Fleet>> {
        Some(self.fleet.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Names of the nodes of the ring.
    pub(super) fn nodes(&self) -> Vec<String> {
        match self.lock_fleet() {
            Some(fleet) => fleet.nodes.clone(),
            None => {
                self.mailbox.seen().lines.iter().map(|line| line.name.as_str().to_owned()).collect()
            }
        }
    }

    /// Calls the boards; returns all of them, this one first, and which of them answer.
    pub(super) fn look(&self) -> Option<(Vec<Board>, Vec<bool>)> {
        let mut fleet = self.fleet()?;
        let before = fleet.split.untold.clone();
        let is_there = fleet.look(&self.mailbox);
        fleet.tell_again(&is_there);
        let boards = fleet.boards.clone();
        let mut kept = self.lock_fleet()?;
        // The ring may have become another one meanwhile.
        fleet.nodes.clone_from(&kept.nodes);
        if kept.split.untold != before {
            fleet.split.untold.clone_from(&kept.split.untold);
        }
        *kept = fleet;
        Some((boards, is_there))
    }

    /// Tells a board that it has no part: it may still do what it was told before it went away.
    pub(super) fn rest(&self, name: &str) {
        let Some(fleet) = self.fleet() else { return };
        let index = fleet.boards.iter().skip(1).position(|board| board.name == name);
        if let Some(place) = index.and_then(|index| fleet.called.get(index)) {
            // A board that went away again is told when it is back.
            let _ = fleet.caller.call(place, |called| called.tell(&Call::Rest));
        }
    }

    /// Has a board, or this one, measure itself again when it starts again.
    pub(super) fn forget(&self, name: &str) {
        let Some(fleet) = self.fleet().filter(|fleet| fleet.kind.is_large) else { return };
        let result = match fleet.boards.iter().position(|board| board.name == name) {
            Some(0) => figures::forget(fleet.folder()).map_err(|e| e.to_string()),
            Some(index) => {
                let place = &fleet.called[index - 1];
                let told = fleet.caller.call(place, |called| called.tell(&Call::Forget));
                told.map_err(|failed| failed.why)
            }
            None => Ok(()),
        };
        if let Err(why) = result {
            log::debug!("{name} does not measure again: {why}");
        }
    }

    /// Boards with the figures that they reported.
    pub(super) fn said(&self) -> Vec<Board> {
        self.lock_fleet().map(|fleet| fleet.boards.clone()).unwrap_or_default()
    }

    /// The best split: of the boards that are there, if boards were called, else of the ring's nodes.
    pub(crate) fn best(&self, seen: &Seen, objective: Objective) -> Result<Better, Refusal> {
        match self.look() {
            None => self.planner.plan(seen, (&[], &Experience::default()), objective),
            Some((boards, is_there)) => {
                let there = only(boards, &is_there);
                self.planner.plan_among(seen, &there, objective)
            }
        }
    }

    /// Gives the boards the parts of the plan `better`. Returns the layers of each node.
    pub(crate) fn take(
        &self,
        seen: &Seen,
        better: &Better,
        say: Say<'_>,
    ) -> Result<Vec<(String, Range<usize>)>, Refusal> {
        match better.layers(&seen.lines) {
            Some(layers) => self.split(seen, layers, say),
            None => self.rearrange(better, say),
        }
    }

    /// Gives the present nodes these layers. Returns the layers of each node.
    pub(crate) fn split(
        &self,
        seen: &Seen,
        layers: Vec<Range<usize>>,
        say: Say<'_>,
    ) -> Result<Vec<(String, Range<usize>)>, Refusal> {
        let _changing = self.changing.try_lock().map_err(|_| busy())?;
        check_split(&layers, seen.lines.len(), self.planner.load.layers.len())
            .and_then(|()| check_fixed(&seen.lines, &layers))
            .map_err(|e| refusal(2, e.to_string()))?;
        let lacks = |(line, layers): &(&NodeLine, &Range<usize>)| {
            layers.start < line.held.start as usize || layers.end > line.held.end as usize
        };
        let lacking: Vec<_> = seen.lines.iter().zip(&layers).filter(lacks).collect();
        let fleet = self.fleet();
        let file = fleet.as_ref().map(|fleet| (fleet, fleet.ring_file(&seen.lines, &layers)));
        if let (Some((line, layers)), None) = (lacking.first(), &file) {
            let why = format!(
                "{} cannot have layers {}..{}: its file holds {}..{}",
                line.name, layers.start, layers.end, line.held.start, line.held.end
            );
            return Err(refusal(1, why));
        }
        let own = &seen.lines[0].layers;
        let is_same = layers[0] == (own.start as usize..own.end as usize);
        let packing = if is_same { None } else { self.pack_own(&layers[0]) };
        if let Some((fleet, file)) = &file {
            let names = lacking.iter().map(|(line, _)| line.name.as_str()).collect();
            fleet.prepare(names, file, say)?;
        }
        wait_for(packing, say);
        self.mailbox.split(layers, say)?;
        let nodes = self.mailbox.seen().layers();
        if let Some((fleet, file)) = &file {
            fleet.keep(&seen.lines, file);
        }
        self.events.tell(&Event::Moved { nodes: &nodes });
        Ok(nodes)
    }

    /// Makes a ring of other boards. Boards that get layers load them before the ring is changed.
    fn rearrange(
        &self,
        better: &Better,
        say: Say<'_>,
    ) -> Result<Vec<(String, Range<usize>)>, Refusal> {
        let _changing = self.changing.try_lock().map_err(|_| busy())?;
        let Some(fleet) = self.fleet() else {
            return Err(refusal(1, "the nodes of a ring file stay as they are".to_owned()));
        };
        let Better { boards, parts, .. } = better;
        let lines = ring_lines(&Task::new(&self.planner.load, boards), parts);
        let file = fleet.split.model_line.clone() + &lines;
        let topology = Topology::parse(&file).map_err(|e| refusal(1, e.to_string()))?;
        let members = topology.members().to_vec();
        // A ring of one is its own next node.
        let next = &members[1.min(members.len() - 1)].address;
        let next = HostPort::new(&next.host, next.port).resolve(|_: &SocketAddr| true);
        let next = next.map_err(|e| refusal(1, e.to_string()))?;
        let _coming = self.mailbox.expect_others();
        let names = members.iter().skip(1).map(|member| member.name.as_str()).collect();
        let packing = self.pack_own(&members[0].layers);
        fleet.prepare(names, &file, say)?;
        wait_for(packing, say);
        let nodes: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        let done: Vec<_> =
            members.iter().map(|member| (member.name.clone(), member.layers.clone())).collect();
        // A board that is away is not called, as texts wait meanwhile.
        let there: Vec<String> = boards.iter().map(|board| board.name.clone()).collect();
        let is_told = Arc::new(AtomicBool::new(false));
        let (begun, ring) = (Arc::clone(&is_told), file.clone());
        let tell = Box::new(move || {
            begun.store(true, Ordering::Release);
            fleet.keep_split(&file);
            fleet.tell(&there, &file)
        });
        let changed = self.mailbox.change((members, next), tell, say);
        // True even if a board was not reached: the ring waits for it now.
        if is_told.load(Ordering::Acquire)
            && let Some(mut fleet) = self.lock_fleet()
        {
            fleet.nodes = nodes;
            fleet.split.untold = changed.is_err().then_some(ring);
        }
        changed?;
        self.events.tell(&Event::OtherRing { nodes: &done });
        Ok(done)
    }
}

/// Waits until layers are packed, even if the client that asked for that is gone.
fn wait_for(packing: Option<JoinHandle<()>>, say: Say<'_>) {
    let Some(packing) = packing else { return };
    let mut said = Instant::now();
    while !packing.is_finished() {
        if said.elapsed() >= WORD_EVERY {
            let _ = say("packing the master's layers");
            said = Instant::now();
        }
        thread::sleep(LOOKED_EVERY);
    }
}
