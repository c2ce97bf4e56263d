//! This board's part in a team: boards that share every layer by rows.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::boards::failure as boards_failure;
use super::model_files;
use super::ring::{self, Board, Control};
use super::weights::{self, Words};
use super::{Failure, counted, note, warn};
use crate::engine::ring::Limits;
use crate::engine::team::{MemberNotice, MemberOptions, OtherTeam, TeamOptions};
use crate::engine::{Engine, Huge, LeadError, StepError, WeightsPlace};
use crate::fetch::giver;
use crate::fleet::boards::{Boards, RingFile};
use crate::fleet::desk::Awaited;
use crate::fleet::interrupt::is_interrupted;
use crate::fleet::rows::Links;
use crate::fleet::settings::Settings;
use crate::fleet::team_seat::TeamSeat;
use crate::model::{Model, Share};
use crate::ring::{Address, TeamNode};
use crate::sys::power::Meter;
use crate::sys::{notify, random};
use crate::team::{Mesh, REORDER_US, TeamError, TeamNotice, banks};
use crate::transport::Endpoint;
use crate::transport::link::LinkConfig;
use crate::transport::options::CarrierOptions;
use crate::transport::place::HostPort;
use crate::wire::hello::{self, PROTOCOL, RingInfo};

/// A board that knows its place in a team.
pub(super) struct TeamBoard<'a> {
    settings: &'a Settings,
    team: TeamSeat,
}

impl<'a> TeamBoard<'a> {
    /// The board by its settings; `None` if this board is in no team.
    pub(super) fn find(settings: &'a Settings) -> Result<Option<TeamBoard<'a>>, Failure> {
        let team = TeamSeat::find(settings);
        let team = team.map_err(|e| boards_failure(settings.named_by, &e))?;
        Ok(team.map(|team| TeamBoard { settings, team }))
    }

    /// Whether this is the team's lead.
    pub(super) fn is_lead(&self) -> bool {
        self.team.own == 0
    }

    /// A member's part of the model in the file at `place`, as far as a team is to have it.
    pub(super) fn model(&self, place: &WeightsPlace) -> Result<Model, Failure> {
        let model = model_files::model(place.model.as_deref())?;
        match &self.team.share {
            Some(share) => ring::narrow(model, share, &self.team.nodes[self.team.own].name, place),
            None => {
                let model = model_files::whole(model)?;
                place.recall(&model);
                Ok(model)
            }
        }
    }

    /// Makes the weights ready, of which this node reads its part alone.
    pub(super) fn prepare(
        &self,
        engine: &mut Engine,
        place: &WeightsPlace,
        words: Words,
    ) -> Result<(), Failure> {
        let total: f64 = self.team.nodes.iter().map(|node| f64::from(node.share)).sum();
        let part = f64::from(self.team.nodes[self.team.own].share) / total;
        if engine.header().slice().is_some() {
            // All that there is is its part.
            return weights::prepare(engine, place, words);
        }
        // A copy would be of all weights.
        let huge = if place.huge == Huge::Auto { Huge::Off } else { place.huge };
        weights::prepare_part(engine, &WeightsPlace { huge, ..place.clone() }, part, words)
    }

    /// This node's identity and settings, for nodes that it has links with.
    fn info(&self, model: &Model) -> Result<RingInfo, Failure> {
        let header = model.header();
        let whole = 0..header.n_layers as u32;
        Ok(RingInfo {
            model: model.fingerprint().map_err(|e| Failure::runtime(&e))?,
            dim: header.dim as u32,
            n_layers: whole.end,
            kv_dim: header.kv_dim() as u32,
            vocab_size: header.vocab_size as u32,
            held: whole,
            wish: None,
            dtype: self.settings.links.wire,
            is_master: false,
            name: hello::name(&self.team.nodes[self.team.own].name),
            ..RingInfo::default()
        })
    }

    /// Opens the links to all other nodes. Nodes of another team are refused if a master names this team's
    /// members: they may not know of this one yet.
    fn mesh(&self, info: &RingInfo) -> Result<Mesh, Failure> {
        let own = &self.team.nodes[self.team.own];
        let key = self.settings.links.key.clone();
        let host = self.settings.links.host.as_ref().unwrap_or(&own.address.host);
        if key.is_none() && !ring::is_loopback(host) {
            warn(&format!(
                "no --key: any machine that reaches {host} can join, disturb and read the team"
            ));
        }
        let n_banks = banks(self.team.nodes.len());
        let mut endpoints = Vec::new();
        for (index, peer) in self.team.nodes.iter().enumerate() {
            if index == self.team.own {
                endpoints.push(None);
                continue;
            }
            // A ring's board says of its own links how it reaches others.
            let is_said = self.is_lead() && self.team.share.is_some();
            let has_first = is_said || endpoints.iter().any(Option::is_some);
            let seed = random::seed().map_err(|e| Failure::runtime(&e))?;
            let config = LinkConfig::new(info.clone(), key.clone(), seed);
            let prev = self.settings.boards.are_told().then(|| hello::name(&peer.name));
            let next = Some(hello::name(&peer.name));
            let config = LinkConfig { reorder_us: REORDER_US, n_banks, prev, next, ..config };
            let port = |node: &TeamNode, index: usize| node.address.port.wrapping_add(index as u16);
            let listen = HostPort::new(host, port(own, index));
            let next = HostPort::new(&peer.address.host, port(peer, self.team.own));
            endpoints.push(Some(self.endpoint(config, listen, next, !has_first)?));
        }
        Mesh::new(endpoints).map_err(|e| Failure::runtime(&e))
    }

    /// Opens the links of further teams of this lead; `hear` hears which boards they wait for.
    fn links<H>(&self, info: RingInfo, hear: H) -> Links
    where
        H: Fn(&[Awaited]) + Clone + Send + 'static,
    {
        let settings = self.settings.clone();
        Box::new(move |file| {
            let boards = Boards::Layers(RingFile::Told(file.to_owned()));
            let (settings, info) = (Settings { boards, ..settings.clone() }, info.clone());
            let names = match TeamBoard::find(&settings) {
                Ok(Some(board)) => board.names(),
                _ => Vec::new(),
            };
            let notices = Box::new(teller(names, hear.clone()));
            let hear = hear.clone();
            let link = move || {
                let mesh = match TeamBoard::find(&settings) {
                    Ok(Some(board)) => board.mesh(&info).map_err(|e| words(&e))?,
                    Ok(None) => Mesh::alone(),
                    Err(e) => return Err(words(&e)),
                };
                // Boards of the team before are no longer awaited.
                hear(&[]);
                Ok(mesh)
            };
            (Box::new(link), notices)
        })
    }

    fn endpoint(
        &self,
        config: LinkConfig,
        listen: HostPort,
        next: HostPort,
        is_first: bool,
    ) -> Result<Box<dyn Endpoint>, Failure> {
        let settings = self.settings;
        let mut options = CarrierOptions::new(config, listen, Some(next));
        if let Some(us) = settings.links.busy_poll {
            (options.spin, options.busy_poll_us) = (Duration::from_micros(us.into()), us.into());
        }
        let patience = settings.is_master.then_some(settings.links.timeout).flatten();
        let endpoint = ring::carrier::open(
            settings.links.carrier,
            &options,
            settings.is_quiet || !is_first,
            patience,
        )?;
        if is_first {
            endpoint.notices().iter().for_each(|notice| warn(notice));
        }
        Ok(endpoint)
    }

    /// Makes `engine` the lead of its place in a ring.
    pub(super) fn lead_place(&self, engine: &mut Engine) -> Result<(), Failure> {
        let mesh = self.mesh(&self.info(engine.model())?)?;
        let options = self.options(|_| {}, &Arc::default(), None)?;
        engine.lead(mesh, options).map_err(|e| Failure::runtime(&e))
    }

    fn options(
        &self,
        hear: impl Fn(&[Awaited]) + Send + 'static,
        n_coming: &Arc<AtomicUsize>,
        changes: Option<Receiver<OtherTeam>>,
    ) -> Result<TeamOptions, Failure> {
        let (settings, mut n_given, n_coming) = (self.settings, 0, Arc::clone(n_coming));
        Ok(TeamOptions {
            name: self.team.nodes[self.team.own].name.clone(),
            shares: self.team.nodes.iter().map(|node| node.share).collect(),
            wire: settings.links.wire,
            // A place of a ring is waited for by its master.
            timeout: settings.is_master.then_some(settings.links.timeout).flatten(),
            // A board that gets its rows from here will be ready.
            is_coming: Box::new(move || {
                giver::n_pieces() > mem::replace(&mut n_given, giver::n_pieces())
                    || n_coming.load(Ordering::Acquire) > 0
            }),
            epoch: ring::random_epoch()?,
            is_interrupted,
            tell: Box::new(teller(self.names(), hear)),
            changes,
        })
    }

    /// Makes `engine` the lead of the whole model, and waits until all nodes are ready. Returns the control
    /// by which it may be asked.
    pub(super) fn lead(
        &self,
        engine: &mut Engine,
        place: &WeightsPlace,
    ) -> Result<Control, Failure> {
        let info = self.info(engine.model())?;
        let mesh = self.mesh(&info)?;
        let (control, hear) = ring::team_control(self.settings, place)?;
        let (links, n_coming) = (self.links(info, hear.clone()), Arc::default());
        let changes =
            ring::watch_team(self.settings, engine, &control, (links, Arc::clone(&n_coming)))?;
        let options = self.options(hear, &n_coming, changes)?;
        engine.lead_alone(mesh, options).map_err(|e| match e {
            LeadError::Step(e) => ring::with_reasons(self.settings, self.failure(&e)),
            e => Failure::runtime(&e),
        })?;
        self.describe(engine);
        Ok(control)
    }

    /// Waits until all nodes are ready.
    fn assemble(&self, engine: &mut Engine) -> Result<(), Failure> {
        engine.assemble().map_err(|e| self.failure(&e))
    }

    /// Why they are not, by their names.
    fn failure(&self, error: &StepError) -> Failure {
        let name = |node: &usize| self.team.nodes.get(*node).map_or("?", |node| node.name.as_str());
        match error {
            StepError::Interrupted => Failure::Runtime("interrupted".to_owned()),
            StepError::Team(TeamError::Timeout { node, seconds }) => {
                Failure::Ring(format!("{} was not ready within {seconds} s", name(node)))
            }
            StepError::Team(TeamError::Refused { node, why }) => {
                Failure::Ring(format!("{} refuses: {why}", name(node)))
            }
            e => ring::step_failure(e),
        }
    }

    fn names(&self) -> Vec<String> {
        self.team.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// The team, a line a node.
    pub(super) fn describe(&self, engine: &Engine) {
        let Some(team) = engine.team().filter(|_| !self.settings.is_quiet) else { return };
        // It may have become another one before it was complete.
        let (n, shares) = (team.n_nodes(), team.shares());
        let total: f64 = shares.iter().copied().map(f64::from).sum();
        let what = match &self.team.share {
            Some(Share { layers, .. }) => format!("layer of {}..{}", layers.start, layers.end),
            None => "layer".to_owned(),
        };
        note(&format!("team of {n} nodes, which share every {what}"));
        let width = team.lines().map(|line| line.name.len()).max().unwrap_or(0);
        for (line, share) in team.lines().zip(shares) {
            note(&format!(
                "  {:width$}  {:.0} % of the rows, {:.1} MB of weights per token, {}, {}{}",
                line.name.as_str(),
                f64::from(*share) / total * 1e2,
                line.bytes_per_token as f64 / 1e6,
                line.isa,
                counted(usize::from(line.threads), "thread"),
                match line.way.rtt_us {
                    0 => String::new(),
                    us => format!("; {us} us round trip"),
                },
            ));
        }
    }

    /// Works for any lead until a signal ends it.
    pub(super) fn follow(&self, engine: &mut Engine, limits: Limits) -> Result<(), Failure> {
        let mesh = self.mesh(&self.info(engine.model())?)?;
        let own = &self.team.nodes[self.team.own];
        if !self.settings.is_quiet {
            let Address { host, port } = self.listens();
            note(&format!(
                "leap: {} of the team listens on {host}, ports from {port} on",
                own.name
            ));
        }
        ring::announce();
        let options = MemberOptions { name: &own.name, limits, is_interrupted };
        let (is_quiet, names) = (self.settings.is_quiet, self.names());
        let mut tell = |notice: &MemberNotice| {
            let text = match notice {
                MemberNotice::Unfit(notice) => text(&names, notice),
                notice => notice.to_string(),
            };
            notify::status(&text);
            if !is_quiet {
                note(&format!("leap: {text}"));
            }
        };
        engine.follow(mesh, &options, &mut tell).map_err(|e| Failure::runtime(&e))
    }

    fn listens(&self) -> Address {
        let own = &self.team.nodes[self.team.own].address;
        let host = self.settings.links.host.as_ref().unwrap_or(&own.host);
        Address { host: host.clone(), port: own.port }
    }
}

/// Makes `engine` the lead of `team`, the master of `board`'s ring, or both, calls `announce`, and waits
/// until all other boards are there. Returns the control by which it may be asked; `None` if there are none.
pub(super) fn begin(
    engine: &mut Engine,
    (team, board): (Option<&TeamBoard<'_>>, Option<&Board<'_>>),
    place: &WeightsPlace,
    meter: Option<Arc<Meter>>,
    announce: &dyn Fn(),
) -> Result<Option<Control>, Failure> {
    match (team, board) {
        (None, None) => Ok(None),
        (Some(team), None) => {
            announce();
            team.lead(engine, place).map(Some)
        }
        (team, Some(board)) => {
            team.iter().try_for_each(|team| team.lead_place(engine))?;
            let endpoint = board.endpoint(engine.model())?;
            announce();
            team.iter().try_for_each(|team| team.assemble(engine))?;
            let control = board.join(endpoint, engine, place, meter)?;
            team.iter().for_each(|team| team.describe(engine));
            Ok(Some(control))
        }
    }
}

/// Tells the user of the team's events, by the nodes' names, and tells `hear` which nodes are waited for, and
/// which of these are not even there.
fn teller<H: Fn(&[Awaited]) + Send>(
    names: Vec<String>,
    hear: H,
) -> impl FnMut(&TeamNotice) + Send + use<H> {
    // Boards that were waited for are heard of again.
    let mut is_waited_for = vec![false; names.len()];
    // A board that is there may wait for another one that is not.
    let mut is_absent = is_waited_for.clone();
    // One that refuses is asked again and again, and comes each time.
    let mut refusals: Vec<Option<String>> = vec![None; names.len()];
    let mut told = String::new();
    move |notice| {
        let mut was_waited_for = false;
        match notice {
            TeamNotice::Waiting { node } | TeamNotice::Gone { node } => {
                (is_waited_for[*node], is_absent[*node]) = (true, true);
            }
            TeamNotice::Refused { node, why, .. } => {
                is_waited_for[*node] = true;
                refusals[*node] = Some(why.clone());
            }
            TeamNotice::Came { node, .. } => is_absent[*node] = false,
            TeamNotice::Ready { node, .. } => {
                (is_absent[*node], refusals[*node]) = (false, None);
                was_waited_for = std::mem::take(&mut is_waited_for[*node]);
            }
            _ => {}
        }
        let board = |index: usize| Awaited {
            name: names[index].clone(),
            is_absent: is_absent[index],
            refusal: refusals[index].clone(),
        };
        let awaited: Vec<Awaited> =
            (0..names.len()).filter(|index| is_waited_for[*index]).map(board).collect();
        hear(&awaited);
        match notice {
            TeamNotice::Ready { .. } if !was_waited_for => return,
            TeamNotice::Came { .. } => return,
            _ => {}
        }
        let text = text(&names, notice);
        notify::status(&text);
        // A board that refuses is asked again and again.
        if text != told || !matches!(notice, TeamNotice::Refused { .. }) {
            note(&format!("leap: {text}"));
        }
        told = text;
    }
}

/// The failure in words.
fn words(failure: &Failure) -> String {
    failure.message().unwrap_or_default().to_owned()
}

/// The event in words, with the nodes' names.
fn text(names: &[String], notice: &TeamNotice) -> String {
    let name = |node: &usize| names.get(*node).map_or("?", String::as_str);
    match notice {
        TeamNotice::Waiting { node } => format!("waiting for {}", name(node)),
        TeamNotice::Came { node, .. } => format!("{} is there", name(node)),
        TeamNotice::Ready { node, .. } => format!("{} is ready", name(node)),
        TeamNotice::Refused { node, why, .. } => format!("{} refuses: {why}", name(node)),
        TeamNotice::Missing { node, other } => {
            format!("{} has no link to {}", name(node), name(other))
        }
        TeamNotice::Gone { node } => format!("{} is gone", name(node)),
        TeamNotice::Release { node, at, protocol } => {
            let at = SocketAddr::new(at.ip().to_canonical(), at.port());
            format!(
                "{} at {at} speaks protocol {protocol}, this node protocol {PROTOCOL}; install the \
                 same release on both",
                name(node)
            )
        }
        TeamNotice::Link { node, what } => format!("link to {}: {what}", name(node)),
    }
}
