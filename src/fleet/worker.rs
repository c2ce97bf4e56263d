//! A board that does its part for any master, or any lead of a team.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::boards::Boards;
use super::error::{Aim, PartError};
use super::events::Event;
use super::interrupt::{Stop, is_interrupted};
use super::obtain::{self, obtain};
use super::orders::{self, Store};
use super::readiness::Readiness;
use super::ring_board::{RingBoard, Sensors};
use super::settings::Settings;
use super::team_board::TeamBoard;
use super::{speeds, weights};
use crate::engine::ring::{Held, Limits};
use crate::engine::{CTX_LEN_DEFAULT, Engine, Options, WeightsPlace};
use crate::fetch::taker::{Fetched, holding};
use crate::format::FormatError;
use crate::format::model::Header;
use crate::group::Notice;
use crate::model::Model;
use crate::sys::notify;

/// Largest batch that a worker accepts, unless an option sets another.
const BATCH_MAX: usize = 512;
/// Largest number of streams that a worker accepts, unless an option sets another.
const STREAMS_MAX: usize = 16;

/// A board that does its part for any master.
pub struct Worker<'a> {
    /// Settings of the board.
    pub settings: &'a Settings,
    /// Model file, if the board has one, and places of packed weights and layers.
    pub place: WeightsPlace,
    /// Threads and kernels of its engine; a master says how long a context is needed, and how many rows.
    pub options: Options,
    /// Limits on what a master may ask for.
    pub most: Most,
    /// Sensors of the board.
    pub sensors: Sensors,
    /// Folder that keeps the board's part of prompts, and the limit on its bytes.
    pub prefixes: Option<(PathBuf, u64)>,
    /// The model of a board without a file.
    pub built_in: Option<fn() -> Result<Model, FormatError>>,
    /// Ends the worker.
    pub stop: Stop,
}

/// Limits on what a master may ask of a worker; `None` for the default.
#[derive(Clone, Copy, Default)]
pub struct Most {
    /// Longest context, in tokens.
    pub ctx_len: Option<usize>,
    /// Most streams.
    pub streams: Option<usize>,
    /// Most rows of a batch.
    pub batch: Option<usize>,
}

/// A worker at work.
struct Work<'a> {
    of: &'a Worker<'a>,
    readiness: Arc<Readiness>,
    /// Keys and values that the worker stores; if layers move, it may go on with them.
    held: Held,
}

impl<'a> Worker<'a> {
    /// A worker with these settings and the usual options, without sensors, whose weights are at `place`.
    pub fn new(settings: &'a Settings, place: WeightsPlace) -> Worker<'a> {
        Worker {
            settings,
            place,
            options: Options::default(),
            most: Most::default(),
            sensors: Sensors::default(),
            prefixes: None,
            built_in: None,
            stop: Stop::default(),
        }
    }

    /// Works until a signal or its [`Stop`] ends it.
    ///
    /// # Errors
    /// If the worker cannot work. A board that waits for masters reports the reason to them, and waits for the next order.
    pub fn work(&self) -> Result<(), PartError> {
        self.stop.heed();
        let readiness = Arc::new(Readiness::default());
        let mut work = Work { of: self, readiness: Arc::clone(&readiness), held: Held::default() };
        let Boards::Waiting(port) = self.settings.boards else {
            return work.take_part(self.settings);
        };
        if self.settings.links.key.is_none() {
            return Err(PartError::NoKey(Aim::Wait));
        }
        let folder = obtain::folder(&self.place.cache)?;
        let measured_by = (&self.options, self.sensors.meter.as_deref());
        let own = speeds::own(self.settings, measured_by, &folder)?;
        let store = Store { folder, weights: self.place.clone(), isa: self.options.isa };
        let told = (readiness, self.stop.clone());
        let waiting = orders::start(self.settings, port, own, store, told)?;
        while let Some(settings) = waiting.next(self.settings) {
            let result = work.take_part(&settings);
            // An order that is ended for another one, or by a signal, has not failed.
            if let Err(why) = result
                && !is_interrupted()
            {
                let why = why.chain();
                settings.events.tell(&Event::OrderFailed { why: &why });
                waiting.fail(&why);
            }
        }
        Ok(())
    }

    /// The model at `path`, or the one that is built in.
    fn model(&self, path: Option<&Path>) -> Result<Model, PartError> {
        match (path, self.built_in) {
            (Some(path), _) => Model::open_part(path).map_err(PartError::Open),
            (None, Some(built_in)) => built_in().map_err(PartError::Partial),
            (None, None) => Err(PartError::NoModel),
        }
    }

    /// Limits on what a master may ask, for the model of `header`.
    fn limits(&self, header: &Header) -> Limits {
        let Most { ctx_len, streams, batch } = self.most;
        Limits {
            ctx_len: ctx_len.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT)),
            n_streams: streams.unwrap_or(STREAMS_MAX),
            max_batch: batch.unwrap_or(BATCH_MAX),
        }
    }

    fn engine(&self, model: Model, threads: Option<usize>) -> Result<Engine, PartError> {
        let options = Options { ctx_len: Some(1), batch: Some(1), threads, ..self.options.clone() };
        let mut engine = Engine::new(model.into(), &options).map_err(PartError::Engine)?;
        engine.interrupt_by(is_interrupted);
        Ok(engine)
    }
}

impl Work<'_> {
    /// Works on the part that `settings` give, until a signal or other work ends it. Fetched layers that
    /// are damaged are fetched again, unless they were sent just now.
    fn take_part(&mut self, settings: &Settings) -> Result<(), PartError> {
        let mut place = self.of.place.clone();
        let Some(from) = &settings.gets else {
            return self.work_with(settings, &place);
        };
        loop {
            let folder = obtain::folder(&place.cache)?;
            let told = (&*self.readiness, &self.of.stop);
            let Some(fetched) = obtain(settings, from, &folder, told)? else { return Ok(()) };
            let Fetched { path, sent, .. } = fetched;
            place.model = Some(path);
            match self.work_with(settings, &place) {
                // Pieces that are missing are fetched again.
                Err(why) if why.is_of_file() && obtain::remove_damaged(&folder) > 0 => {
                    if sent > 0 {
                        return Err(why);
                    }
                    settings.events.tell(&Event::Damaged { why: &why });
                }
                result => return result,
            }
        }
    }

    /// Works with the model file of `place`, and files beside it for the layers that the master assigns later.
    fn work_with(&mut self, settings: &Settings, place: &WeightsPlace) -> Result<(), PartError> {
        let team = TeamBoard::find(settings)?;
        if let Some(team) = team.as_ref().filter(|team| !team.is_lead()) {
            return self.join_team(settings, team, place);
        }
        let worker = self.of;
        let model = worker.model(place.model.as_deref())?;
        let board = RingBoard::new(settings, model.header())?;
        let fingerprint = model.fingerprint();
        let parts = settings.boards.are_told().then(|| obtain::folder(&place.cache).ok()).flatten();
        let other_file = |layers: &Range<usize>| {
            let folder = parts.as_ref()?;
            let path = holding(folder, *fingerprint.as_ref().ok()?, layers)?;
            let model = worker.model(Some(&path));
            let model = model.map_err(|e| settings.events.tell(&Event::Unusable { why: &e }));
            Some((model.ok()?, path))
        };
        let model = board.narrow(model, place)?;
        let limits = worker.limits(model.header());
        let threads = worker.options.threads.or_else(|| board.threads());
        let mut engine = worker.engine(model, threads)?;
        let step: &dyn Fn() = &|| self.readiness.advance();
        match &team {
            Some(team) => team.prepare(&mut engine, place, step)?,
            None => weights::prepare(&mut engine, place, 1.0, (&*settings.events, step))?,
        }
        team.iter().try_for_each(|team| team.lead_place(&mut engine))?;
        self.keep_prefixes(settings, &mut engine);
        let endpoint = match board.endpoint(engine.model()) {
            Err(_) if is_interrupted() => return Ok(()),
            endpoint => endpoint?,
        };
        self.announce(settings);
        let meter = |is_computing: bool| worker.sensors.read(is_computing);
        let mut tell =
            |notice: &Notice| settings.events.tell(&Event::Ring { notice, is_worker: true });
        let (of, ends) =
            ((board.name(), limits, &meter as _), (&is_interrupted as _, &other_file as _));
        let worked = engine.work(endpoint, of, place, ends, &mut self.held, &mut tell);
        worked.map_err(PartError::Node)
    }

    /// Has a part in a team until a signal or other work ends it.
    fn join_team(
        &self,
        settings: &Settings,
        board: &TeamBoard<'_>,
        place: &WeightsPlace,
    ) -> Result<(), PartError> {
        let model = board.narrow(self.of.model(place.model.as_deref())?, place)?;
        let limits = self.of.limits(model.header());
        let mut engine = self.of.engine(model, self.of.options.threads)?;
        board.prepare(&mut engine, place, &|| self.readiness.advance())?;
        match board.follow(&mut engine, limits, &|| self.announce(settings)) {
            Err(_) if is_interrupted() => Ok(()),
            result => result,
        }
    }

    /// Has `engine` keep its part of prompts, if it is to. A folder that fails for now does not stop answers.
    fn keep_prefixes(&self, settings: &Settings, engine: &mut Engine) {
        let Some((folder, bytes)) = &self.of.prefixes else { return };
        let kept = match engine.team() {
            Some(_) => Err("in a team no board has whole pages".to_owned()),
            None => engine.keep_prefixes(folder, *bytes).map_err(|e| e.to_string()),
        };
        if let Err(why) = kept {
            settings.events.tell(&Event::NoPrefixes { folder, why: &why });
        }
    }

    /// Tells the service manager and the master that this board is up. Services that depend on it may start: neighbours
    /// come in their own time.
    fn announce(&self, settings: &Settings) {
        self.readiness.ready();
        notify::start();
        notify::ready();
        settings.events.tell(&Event::Up);
    }
}
