//! `leap worker`: runs a board's layers for any master.

use std::ops::Range;
use std::path::Path;

use super::drafting;
use super::flags::Run;
use crate::cli::ring::{self, Board, fetch, join};
use crate::cli::team::TeamBoard;
use crate::cli::{Failure, model_files, options, power, prefixes, warn, weights};
use crate::engine::ring::{Held, Limits, MachineReading, NodeError};
use crate::engine::{CTX_LEN_DEFAULT, Engine, Options, WeightsPlace};
use crate::fetch::taker::{Fetched, holding};
use crate::fleet::ahead;
use crate::fleet::boards::Boards;
use crate::fleet::interrupt::is_interrupted;
use crate::fleet::settings::Settings;
use crate::format::model::Header;
use crate::ring::Notice;
use crate::sys::heat::Thermometer;
use crate::sys::power::Meter;

/// The most that a worker is ready for without flags.
const BATCH_MAX: usize = 512;
const STREAMS_MAX: usize = 16;

/// The machine's meter and thermometer, if it has them.
type Sensors<'a> = (Option<&'a Meter>, Option<&'a Thermometer>);

/// Runs a worker until a signal ends it.
pub(super) fn work(flags: &Run, settings: &Settings) -> Result<(), Failure> {
    if let Some(model) = &flags.draft_model {
        return drafting::work(flags, model);
    }
    let meter = power::meter(flags.power_cmd.as_deref(), flags.watts)?;
    let heat = ring::thermometer()?;
    let options = flags.engine_options()?;
    let Boards::Waiting(port) = settings.boards else {
        let sensors = (meter.as_deref(), heat.as_ref());
        return take_part(flags, settings, &options, sensors, &mut Held::default());
    };
    let (place, isa) = (flags.place(), options.isa);
    let pack = move |path: &Path, share| {
        let place = WeightsPlace { model: Some(path.to_owned()), ..place.clone() };
        ahead::pack(share, &place, isa)
    };
    let waiting =
        join::start(settings, port, &flags.cache, (&options, meter.as_deref(), Box::new(pack)))?;
    // A master that moves layers may have this board start again, and go on with what it has stored.
    let mut held = Held::default();
    while let Some(settings) = waiting.next(settings) {
        let sensors = (meter.as_deref(), heat.as_ref());
        if let Err(failure) = take_part(flags, &settings, &options, sensors, &mut held) {
            waiting.fail(&failure);
        }
    }
    Ok(())
}

/// Has a part in a team until a signal ends it.
fn join_team(
    flags: &Run,
    board: &TeamBoard<'_>,
    options: &Options,
    place: &WeightsPlace,
) -> Result<(), Failure> {
    let model = board.model(place)?;
    let limits = flags.limits(model.header());
    let mut engine = Engine::new(model.into(), options).map_err(options::engine_failure)?;
    board.prepare(&mut engine, place, flags.words())?;
    engine.interrupt_by(is_interrupted);
    match board.follow(&mut engine, limits) {
        Err(_) if is_interrupted() => Ok(()),
        result => result,
    }
}

/// Works on the part that `settings` give, until a signal or other work ends it. Fetched layers that
/// are damaged are fetched again, unless they were sent just now.
fn take_part(
    flags: &Run,
    settings: &Settings,
    options: &Options,
    sensors: Sensors<'_>,
    held: &mut Held,
) -> Result<(), Failure> {
    let mut place = flags.place();
    let Some(from) = &settings.gets else {
        return work_with(flags, settings, options, sensors, held, &place);
    };
    loop {
        let fetched = fetch::fetch(settings, from, &place.cache)?;
        let Some(Fetched { path, sent, .. }) = fetched else { return Ok(()) };
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        place.model = Some(path);
        match work_with(flags, settings, options, sensors, held, &place) {
            // Pieces that are missing are fetched again.
            Err(Failure::Input(why)) if fetch::remove_damaged(&folder) > 0 => {
                if sent > 0 {
                    return Err(Failure::Input(why));
                }
                warn(&format!("{why}; its layers are fetched again"));
            }
            result => return result,
        }
    }
}

/// Works with the model file of `place`, and files beside it for the layers that the master assigns later.
fn work_with(
    flags: &Run,
    settings: &Settings,
    options: &Options,
    sensors: Sensors<'_>,
    held: &mut Held,
    place: &WeightsPlace,
) -> Result<(), Failure> {
    let team = TeamBoard::find(settings)?;
    if let Some(team) = team.as_ref().filter(|team| !team.is_lead()) {
        return join_team(flags, team, options, place);
    }
    let (meter, heat) = sensors;
    let model = model_files::model(place.model.as_deref())?;
    let board = Board::new(settings, model.header())?;
    let fingerprint = model.fingerprint();
    let parts = if settings.boards.are_told() { fetch::folder(&place.cache).ok() } else { None };
    let other_file = |layers: &Range<usize>| {
        let folder = parts.as_ref()?;
        let path = holding(folder, *fingerprint.as_ref().ok()?, layers)?;
        let model = model_files::model(Some(&path));
        let model = model.map_err(|e| warn(e.message().unwrap_or("a part cannot be read")));
        Some((model.ok()?, path))
    };
    let model = board.narrow(model, place)?;
    let limits = flags.limits(model.header());
    let options = Options { threads: options.threads.or(board.threads()), ..options.clone() };
    let mut engine = Engine::new(model.into(), &options).map_err(options::engine_failure)?;
    match &team {
        Some(team) => team.prepare(&mut engine, place, flags.words())?,
        None => weights::prepare(&mut engine, place, flags.words())?,
    }
    team.iter().try_for_each(|team| team.lead_place(&mut engine))?;
    prefixes::keep(&mut engine, flags.prefix_cache.as_deref(), flags.prefix_cache_size)?;
    let endpoint = match board.endpoint(engine.model()) {
        Err(_) if is_interrupted() => return Ok(()),
        endpoint => endpoint?,
    };
    ring::announce();
    engine.interrupt_by(is_interrupted);
    let meter = |is_computing: bool| MachineReading {
        joules: meter.and_then(|meter| meter.compute(is_computing)),
        heat: heat.and_then(ring::heat_of),
    };
    let mut tell = |notice: &Notice| match notice {
        Notice::Opened { .. } if flags.quiet => {}
        notice => ring::tell(notice),
    };
    let (of, ends) =
        ((board.name(), limits, &meter as _), (&is_interrupted as _, &other_file as _));
    let worked = engine.work(endpoint, of, place, ends, held, &mut tell);
    worked.map_err(|e| match e {
        NodeError::Weights(e) => Failure::input(&e),
        e => Failure::runtime(&e),
    })
}

impl Run {
    /// The most that it is ready for, of the model of `header`.
    fn limits(&self, header: &Header) -> Limits {
        Limits {
            ctx_len: self.ctx.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT)),
            n_streams: self.streams.unwrap_or(STREAMS_MAX),
            max_batch: self.batch.unwrap_or(BATCH_MAX),
        }
    }

    /// The master says how long a context is needed, and how many rows.
    fn engine_options(&self) -> Result<Options, Failure> {
        let cores = options::of_cores(self.threads, self.cores.as_ref())?;
        Ok(Options { ctx_len: Some(1), batch: Some(1), ..cores })
    }
}
