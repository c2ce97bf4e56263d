//! A board's part in a team: its rows of every layer, and its links to all others.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use super::boards::{Boards, RingFile};
use super::error::PartError;
use super::events::{Event, Shape, Teller};
use super::interrupt::is_interrupted;
use super::mailbox::{Awaited, Mailbox};
use super::ring_board::narrow;
use super::rows::{self, Links, Team};
use super::settings::Settings;
use super::team_seat::TeamSeat;
use super::{links, load, weights};
use crate::engine::ring::Limits;
use crate::engine::team::{MemberNotice, MemberOptions, OtherTeam, TeamOptions};
use crate::engine::{Engine, Huge, LeadError, WeightsPlace};
use crate::fetch::giver;
use crate::group::Notice;
use crate::model::{Model, Share};
use crate::ring::{Address, TeamNode};
use crate::team::{Mesh, REORDER_US, banks};
use crate::transport::place::HostPort;
use crate::wire::hello::{self, RingInfo};

/// A board that knows its place in a team.
pub(super) struct TeamBoard<'a> {
    settings: &'a Settings,
    seat: TeamSeat,
}

impl<'a> TeamBoard<'a> {
    /// The board by its settings; `None` if this board is in no team.
    ///
    /// # Errors
    /// If they name a team that it is not in.
    pub(super) fn find(settings: &'a Settings) -> Result<Option<TeamBoard<'a>>, PartError> {
        Ok(TeamSeat::find(settings)?.map(|seat| TeamBoard { settings, seat }))
    }

    /// True if this is the team's lead.
    pub(super) fn is_lead(&self) -> bool {
        self.seat.own == 0
    }

    fn own(&self) -> &TeamNode {
        &self.seat.nodes[self.seat.own]
    }

    /// The part of `model` that the team is to have, from this board's file.
    pub(super) fn narrow(&self, model: Model, place: &WeightsPlace) -> Result<Model, PartError> {
        match &self.seat.share {
            Some(share) => narrow(model, share, &self.own().name, place),
            None => {
                model.check_whole().map_err(PartError::Partial)?;
                place.recall(&model);
                Ok(model)
            }
        }
    }

    /// Prepares the weights, of which this node reads its part alone. `step` is called again and again during the work.
    ///
    /// # Errors
    /// If they cannot be used.
    pub(super) fn prepare(
        &self,
        engine: &mut Engine,
        place: &WeightsPlace,
        step: &dyn Fn(),
    ) -> Result<(), PartError> {
        let told = (&*self.settings.events, step);
        if engine.header().slice().is_some() {
            // The file holds this node's part alone.
            return weights::prepare(engine, place, 1.0, told);
        }
        let total: f64 = self.seat.nodes.iter().map(|node| f64::from(node.share)).sum();
        let part = f64::from(self.own().share) / total;
        // A copy in huge pages would hold all weights.
        let huge = if place.huge == Huge::Auto { Huge::Off } else { place.huge };
        weights::prepare(engine, &WeightsPlace { huge, ..place.clone() }, part, told)
    }

    /// This node's identity and settings, for nodes that it has links with.
    fn info(&self, model: &Model) -> Result<RingInfo, PartError> {
        links::info(self.settings, model, &self.own().name)
    }

    /// Opens the links to all other nodes. If a master names this team's members, nodes of another team are refused: they
    /// may not know of this team yet.
    fn mesh(&self, info: &RingInfo) -> Result<Mesh, PartError> {
        let (own, index) = (self.own(), self.seat.own);
        let Address { host, .. } = self.listens();
        links::warn_of_strangers(self.settings, &host, &host, Shape::Team);
        let n_banks = banks(self.seat.nodes.len());
        let mut endpoints = Vec::new();
        for (other, peer) in self.seat.nodes.iter().enumerate() {
            if other == index {
                endpoints.push(None);
                continue;
            }
            // The lead of a ring's place tells of its carrier with the ring's links.
            let is_said = self.is_lead() && self.seat.share.is_some();
            let has_first = is_said || endpoints.iter().any(Option::is_some);
            let config = links::config(self.settings, info.clone())?;
            let prev = self.settings.boards.are_told().then(|| hello::name(&peer.name));
            let next = Some(hello::name(&peer.name));
            let config = crate::transport::link::LinkConfig {
                reorder_us: REORDER_US,
                n_banks,
                prev,
                next,
                ..config
            };
            let port = |node: &TeamNode, index: usize| node.address.port.wrapping_add(index as u16);
            let listen = HostPort::new(&host, port(own, other));
            let next = HostPort::new(&peer.address.host, port(peer, index));
            endpoints.push(Some(links::open(
                self.settings,
                config,
                (listen, Some(next)),
                !has_first,
            )?));
        }
        Ok(Mesh::new(endpoints).map_err(PartError::Mesh)?.named(self.names()))
    }

    /// A function that opens the links of a further team of this lead. `mailbox` hears of its boards.
    fn links(&self, info: RingInfo, mailbox: Arc<Mailbox>) -> Links {
        let settings = self.settings.clone();
        Box::new(move |file| {
            let boards = Boards::Layers(RingFile::Told(file.to_owned()));
            let (settings, info) = (Settings { boards, ..settings.clone() }, info.clone());
            let events = Arc::clone(&settings.events);
            let notices = Box::new(teller(events, Some(Arc::clone(&mailbox))));
            let mailbox = Arc::clone(&mailbox);
            let link = move || {
                let mesh = match TeamBoard::find(&settings) {
                    Ok(Some(board)) => board.mesh(&info).map_err(|e| e.chain())?,
                    Ok(None) => Mesh::alone(),
                    Err(e) => return Err(e.chain()),
                };
                // Boards of the team before are no longer awaited.
                mailbox.hear_of_team(&[]);
                Ok(mesh)
            };
            (Box::new(link), notices)
        })
    }

    /// Makes `engine` the lead of its place in a ring.
    ///
    /// # Errors
    /// If the links cannot be opened, or the engine cannot lead.
    pub(super) fn lead_place(&self, engine: &mut Engine) -> Result<(), PartError> {
        let mesh = self.mesh(&self.info(engine.model())?)?;
        let options = self.options(None, &Arc::default(), None)?;
        engine.lead(mesh, options).map_err(PartError::Lead)
    }

    fn options(
        &self,
        mailbox: Option<Arc<Mailbox>>,
        n_coming: &Arc<AtomicUsize>,
        changes: Option<Receiver<OtherTeam>>,
    ) -> Result<TeamOptions, PartError> {
        let (settings, mut n_given, n_coming) = (self.settings, 0, Arc::clone(n_coming));
        Ok(TeamOptions {
            name: self.own().name.clone(),
            shares: self.seat.nodes.iter().map(|node| node.share).collect(),
            wire: settings.links.wire,
            // A place of a ring is waited for by its master.
            timeout: settings.is_master.then_some(settings.links.timeout).flatten(),
            // A board that gets its rows from here will be ready.
            is_coming: Box::new(move || {
                giver::n_pieces() > mem::replace(&mut n_given, giver::n_pieces())
                    || n_coming.load(Ordering::Acquire) > 0
            }),
            epoch: links::random_epoch()?,
            is_interrupted,
            tell: Box::new(teller(Arc::clone(&settings.events), mailbox)),
            changes,
        })
    }

    /// Makes `engine` the lead of the whole model, and waits until all nodes are ready. `mailbox` hears of them. Their rows
    /// move by themselves if the settings ask for it.
    ///
    /// # Errors
    /// If the nodes are not ready in time.
    pub(super) fn lead(
        &self,
        engine: &mut Engine,
        mailbox: &Arc<Mailbox>,
    ) -> Result<(), PartError> {
        let info = self.info(engine.model())?;
        let mesh = self.mesh(&info)?;
        let (links, n_coming) = (self.links(info, Arc::clone(mailbox)), Arc::default());
        let changes = self.tend(engine, mailbox, (links, Arc::clone(&n_coming)))?;
        let options = self.options(Some(Arc::clone(mailbox)), &n_coming, changes)?;
        engine.lead_alone(mesh, options).map_err(|e| match e {
            LeadError::Step(e) => self.settings.lost(e),
            e => PartError::Lead(e),
        })?;
        self.describe(engine);
        Ok(())
    }

    /// Divides the rows of the team that `engine` leads anew when boards come, go or slow down, if the settings ask for it.
    /// The engine takes changes from the returned receiver. `n_coming` counts boards that prepare.
    fn tend(
        &self,
        engine: &Engine,
        mailbox: &Arc<Mailbox>,
        (links, n_coming): (Links, Arc<AtomicUsize>),
    ) -> Result<Option<Receiver<OtherTeam>>, PartError> {
        let (patience, fleet) = (self.settings.wishes.patience, self.settings.fleet.clone());
        let (Some(after), Some(fleet)) = (patience, fleet) else { return Ok(None) };
        let header = engine.header().clone();
        let load = load::load(&header, engine.plan()).map_err(PartError::Load)?;
        let mailbox = Arc::clone(mailbox);
        let team = Team { fleet, header, load, links, n_coming, mailbox };
        rows::keep(team, after).map(Some).map_err(PartError::Watch)
    }

    /// Waits until all nodes are ready.
    ///
    /// # Errors
    /// If they are not in time.
    pub(super) fn assemble(&self, engine: &mut Engine) -> Result<(), PartError> {
        engine.assemble().map_err(|e| self.settings.lost(e))
    }

    fn names(&self) -> Vec<String> {
        self.seat.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Tells of the team that `engine` leads, which may have changed before it was complete.
    pub(super) fn describe(&self, engine: &Engine) {
        let share = self.seat.share.as_ref();
        let layers = share.map(|Share { layers, .. }| layers.clone());
        if let Some(team) = engine.team() {
            self.settings.events.tell(&Event::TeamOpened { team, layers });
        }
    }

    /// Works for any lead until it is interrupted. Calls `announce` when the links are open.
    pub(super) fn follow(
        &self,
        engine: &mut Engine,
        limits: Limits,
        announce: &dyn Fn(),
    ) -> Result<(), PartError> {
        let mesh = self.mesh(&self.info(engine.model())?)?;
        let events = &self.settings.events;
        let name = &*self.own().name;
        events.tell(&Event::Meshed { name, at: &self.listens() });
        announce();
        let options = MemberOptions { name, limits, is_interrupted };
        let mut tell = |notice: &MemberNotice| events.tell(&Event::Member { notice });
        engine.follow(mesh, &options, &mut tell).map_err(PartError::Node)
    }

    fn listens(&self) -> Address {
        let own = &self.own().address;
        let host = self.settings.links.host.as_ref().unwrap_or(&own.host);
        Address { host: host.clone(), port: own.port }
    }
}

/// A listener that tells of the team's events. It tells `mailbox` which nodes the team waits for.
fn teller(events: Teller, mailbox: Option<Arc<Mailbox>>) -> impl FnMut(&Notice) + Send + use<> {
    let mut awaited = Vec::<Awaited>::new();
    move |notice| {
        let is_new = hear(&mut awaited, notice);
        mailbox.iter().for_each(|mailbox| mailbox.hear_of_team(&awaited));
        if is_new {
            events.tell(&Event::Team { notice });
        }
    }
}

/// Notes an event of a team that waits for `awaited`. Returns whether it is new to the user.
fn hear(awaited: &mut Vec<Awaited>, notice: &Notice) -> bool {
    match notice {
        Notice::Waiting { missing, .. } => {
            missing.iter().for_each(|name| Awaited::of(awaited, name).is_absent = true);
            true
        }
        // A board that refuses is asked again and again, and comes each time.
        Notice::Unfit { name, why } => {
            Awaited::of(awaited, name).refusal.replace(why.clone()).as_ref() != Some(why)
        }
        // A board that is there may wait for another one that is not.
        Notice::Came(name) => {
            awaited.iter_mut().filter(|a| a.name == *name).for_each(|a| a.is_absent = false);
            false
        }
        Notice::Ready(name) => {
            let n_awaited = awaited.len();
            awaited.retain(|awaited| awaited.name != *name);
            awaited.len() < n_awaited
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::fleet::events::Events;

    /// Writes down the team's events.
    #[derive(Default)]
    struct Diary(Mutex<Vec<Notice>>);

    impl Events for Diary {
        fn tell(&self, event: &Event<'_>) {
            if let Event::Team { notice } = event {
                self.0.lock().unwrap().push((*notice).clone());
            }
        }
    }

    #[test]
    fn boards_that_refuse_by_turns_fill_no_log() {
        let diary = Arc::new(Diary::default());
        let mut hear = teller(Arc::clone(&diary) as Teller, None);
        let refused =
            |name: &str, why: &str| Notice::Unfit { name: name.to_owned(), why: why.to_owned() };
        for _ in 0..9 {
            hear(&refused("pi", "its disk is full"));
            hear(&refused("fig", "it has other weights"));
        }
        assert_eq!(diary.0.lock().unwrap().len(), 2);
        // Another reason is told.
        hear(&refused("pi", "it has no memory"));
        assert_eq!(diary.0.lock().unwrap().len(), 3);
    }
}
