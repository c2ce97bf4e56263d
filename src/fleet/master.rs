//! The board that takes prompts: it has the whole model, or leads a ring, a team, or both.

use std::sync::Arc;

use super::admission::LeftOut;
use super::boards::Boards;
use super::error::PartError;
use super::gather::gather;
use super::interrupt::is_interrupted;
use super::load::BATCH;
use super::mailbox::Mailbox;
use super::moves::Moves;
use super::ring_board::{RingBoard, Sensors, Tended};
use super::seen::{PlaceTeam, Status};
use super::settings::Settings;
use super::team_board::TeamBoard;
use super::{give, weights};
use crate::engine::{Engine, Options, WeightsPlace};
use crate::model::Model;
use crate::ring::{Misfits, Topology};
use crate::transport::Endpoint;

/// The board that takes prompts, and its part of the model.
pub(crate) struct Master<'a> {
    settings: &'a Settings,
    place: &'a WeightsPlace,
    /// The board's part in a ring, if there are others in it, now or later.
    ring: Option<RingBoard<'a>>,
    team: Option<TeamBoard<'a>>,
}

/// A master that has not heard of its boards yet.
pub(crate) struct Opened {
    pub(crate) led: Led,
    /// The links of a ring, and its changes.
    ring: Option<(Box<dyn Endpoint>, Tended)>,
}

/// The boards that a master leads.
#[derive(Clone)]
pub struct Led {
    mailbox: Arc<Mailbox>,
    /// Moves the layers of a ring; a team has none.
    moves: Option<Arc<Moves>>,
    left_out: Option<LeftOut>,
    /// Places of a ring that are teams.
    teams: Vec<PlaceTeam>,
}

impl<'a> Master<'a> {
    /// The master by its settings, and the part of `model` that it has. Boards without a model file get their layers from
    /// it from now on, if the settings say so.
    ///
    /// # Errors
    /// If the settings give the master no part, or the model lacks it.
    pub(crate) fn new(
        settings: &'a Settings,
        model: Model,
        place: &'a WeightsPlace,
    ) -> Result<(Master<'a>, Model), PartError> {
        let has_ring = !matches!(settings.boards, Boards::Alone | Boards::Shares(_));
        let board = has_ring.then(|| RingBoard::new(settings, model.header())).transpose()?;
        let team = TeamBoard::find(settings)?;
        let ring = board.as_ref().filter(|board| board.has_others());
        let model = match ring {
            Some(board) => board.narrow(model, place)?,
            None => model.check_whole().map(|()| model).map_err(PartError::Partial)?,
        };
        if let (Some(port), Some(board)) = (settings.gives, &board) {
            give::start(settings, (board.host(), port), place.model.as_deref(), &model)?;
        }
        let ring = board.filter(RingBoard::has_others);
        Ok((Master { settings, place, ring, team }, model))
    }

    /// The options of the master's engine: those of its user, else the ring's.
    pub(crate) fn options(&self, options: Options) -> Options {
        let Some(board) = &self.ring else { return options };
        let (batch, threads) = (options.batch.or(Some(BATCH)), options.threads);
        Options { batch, threads: threads.or_else(|| board.threads()), ..options }
    }

    /// Prepares the weights.
    ///
    /// # Errors
    /// If they cannot be used.
    pub(crate) fn prepare(&self, engine: &mut Engine) -> Result<(), PartError> {
        match &self.team {
            Some(team) => team.prepare(engine, self.place, &|| {}),
            None => weights::prepare(engine, self.place, 1.0, (&*self.settings.events, &|| {})),
        }
    }

    /// Opens the links to the other boards; `None` if there are none.
    ///
    /// # Errors
    /// If the system refuses them.
    pub(crate) fn open(&self, engine: &mut Engine) -> Result<Option<Opened>, PartError> {
        let ring = match (&self.ring, &self.team) {
            (None, None) => return Ok(None),
            (None, Some(_)) => None,
            (Some(board), team) => {
                team.iter().try_for_each(|team| team.lead_place(engine))?;
                let endpoint = board.endpoint(engine.model())?;
                Some((endpoint, board.tend(engine, self.place)?))
            }
        };
        let tended = ring.as_ref().map(|(_, tended)| tended);
        let topology = self.settings.boards.topology()?;
        let led = Led {
            mailbox: match tended {
                Some(tended) => Arc::clone(&tended.mailbox),
                // It has no part in changes of a team, whose links the engine opens.
                None => Arc::new(Mailbox::new(self.place, Misfits::End).0),
            },
            moves: tended.map(|tended| Arc::clone(&tended.moves)),
            left_out: self.settings.fleet.as_ref().map(|fleet| fleet.left_out.clone()),
            teams: topology.iter().flat_map(Topology::teams).map(PlaceTeam::new).collect(),
        };
        Ok(Some(Opened { led, ring }))
    }

    /// Has `engine` lead the other boards, and waits until all are there. `sensors` measure this board.
    ///
    /// # Errors
    /// If they do not come.
    pub(crate) fn join(
        &self,
        engine: &mut Engine,
        opened: Opened,
        sensors: Sensors,
    ) -> Result<(), PartError> {
        let (Some((endpoint, tended)), Some(board)) = (opened.ring, &self.ring) else {
            let mailbox = &opened.led.mailbox;
            return self.team.iter().try_for_each(|team| team.lead(engine, mailbox));
        };
        self.team.iter().try_for_each(|team| team.assemble(engine))?;
        board.join(endpoint, engine, tended, sensors)?;
        self.team.iter().for_each(|team| team.describe(engine));
        Ok(())
    }
}

impl Led {
    /// Makes this board the master of the boards that `settings` name: calls them if they wait to be called, divides the
    /// model of `place` among them, and waits until they are there. Returns an engine for a
    /// [`Scheduler`](crate::engine::Scheduler); `None` beside it if there are no other boards.
    ///
    /// A board that is called for the first time is measured, and so is this one, which takes some seconds. The figures
    /// are kept in the folder of packed weights.
    ///
    /// # Errors
    /// If the boards cannot have the model, or do not come.
    pub fn start(
        settings: &mut Settings,
        place: &WeightsPlace,
        options: &Options,
    ) -> Result<(Engine, Option<Led>), PartError> {
        gather(settings, place, options, None)?;
        let path = place.model.as_deref().ok_or(PartError::NoModel)?;
        let model = Model::open_part(path).map_err(PartError::Open)?;
        let (master, model) = Master::new(settings, model, place)?;
        let engine = Engine::new(model.into(), &master.options(options.clone()));
        let mut engine = engine.map_err(PartError::Engine)?;
        engine.interrupt_by(is_interrupted);
        master.prepare(&mut engine)?;
        let Some(opened) = master.open(&mut engine)? else { return Ok((engine, None)) };
        let led = opened.led.clone();
        master.join(&mut engine, opened, Sensors::default())?;
        Ok((engine, Some(led)))
    }

    /// Makes the changes that are due: parts move only while this is called. The thread that has the engine calls it
    /// between two steps.
    pub fn visit(&self, engine: &mut Engine) {
        self.mailbox.visit(engine);
    }

    /// The mover of a ring's layers; `None` in a team.
    pub(crate) fn moves(&self) -> Option<&Moves> {
        self.moves.as_deref()
    }

    /// Watches for a moment: returns the state, the last known one if the engine does not answer.
    pub(crate) fn status(&self) -> Status {
        let (tokens_per_s, seen) = self.mailbox.watch(|seen| match self.moves {
            Some(_) => seen.times.tokens,
            None => seen.team_tokens(),
        });
        let left_out = self.left_out.as_ref().map(LeftOut::all).unwrap_or_default();
        Status { seen, tokens_per_s, left_out, teams: self.teams.clone() }
    }
}
