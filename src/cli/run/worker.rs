//! `leap worker`: runs a board's layers for any master.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::drafting;
use super::flags::Run;
use crate::cli::ring::{self, Board, RingFlags, ahead, fetch, is_interrupted, join};
use crate::cli::team::TeamBoard;
use crate::cli::{Failure, model_files, options, power, warn, weights};
use crate::engine::ring::{Held, Limits, MachineReading};
use crate::engine::{CTX_LEN_DEFAULT, Engine, Options, WeightsPlace};
use crate::fetch::taker::{Fetched, holding};
use crate::format::model::Header;
use crate::model::Share;
use crate::ring::Notice;
use crate::sys::heat::Thermometer;
use crate::sys::map::Map;
use crate::sys::power::Meter;

/// The most that a worker is ready for without flags.
const BATCH_MAX: usize = 512;
const STREAMS_MAX: usize = 16;

/// What tells of the energy that this machine takes, and how warm it is.
type Sensors<'a> = (Option<&'a Meter>, Option<&'a Thermometer>);

/// Runs a worker until a signal ends it.
pub(super) fn work(flags: &Run) -> Result<(), Failure> {
    if let Some(model) = &flags.draft_model {
        return drafting::work(flags, model);
    }
    let meter = power::meter(flags.power_cmd.as_deref(), flags.watts)?;
    let heat = ring::thermometer()?;
    let (ring, options) = (flags.ring_flags(), flags.engine_options()?);
    if let Some(path) = &flags.team {
        return join_team(flags, &TeamBoard::new(&ring, path)?, &options);
    }
    let Some(port) = join::port(&ring, flags.model.is_some()) else {
        let sensors = (meter.as_deref(), heat.as_ref());
        return take_part(flags, &ring, &options, sensors, &mut Held::default());
    };
    let (place, isa) = (flags.place(), options.isa);
    let pack = move |path: &Path, layers| {
        let place = WeightsPlace { model: Some(path.to_owned()), ..place.clone() };
        ahead::pack(Share { layers, has_ends: false }, &place, isa)
    };
    let waiting = join::start(&ring, port, &flags.cache, (&options, Box::new(pack)))?;
    // A master that moves layers may have this board begin anew, and go on with what it has stored.
    let mut held = Held::default();
    while let Some(ring) = waiting.next(&ring) {
        let sensors = (meter.as_deref(), heat.as_ref());
        if let Err(failure) = take_part(flags, &ring, &options, sensors, &mut held) {
            waiting.fail(&failure);
        }
    }
    Ok(())
}

/// Has a part in a team until a signal ends it.
fn join_team(flags: &Run, board: &TeamBoard<'_>, options: &Options) -> Result<(), Failure> {
    let place = flags.place();
    let model = model_files::whole(model_files::model(place.model.as_deref())?)?;
    place.recall(&model);
    let limits = flags.limits(model.header());
    let mut engine = Engine::new(model.into(), options).map_err(options::engine_failure)?;
    board.prepare(&mut engine, &place, flags.words())?;
    engine.interrupt_by(is_interrupted);
    match board.follow(&mut engine, limits) {
        Err(_) if is_interrupted() => Ok(()),
        result => result,
    }
}

/// Has the part in a ring that `ring` says, until a signal or other work ends it. Layers that were fetched and are
/// damaged are fetched again, unless they were sent just now.
fn take_part(
    flags: &Run,
    ring: &RingFlags,
    options: &Options,
    sensors: Sensors<'_>,
    held: &mut Held,
) -> Result<(), Failure> {
    let mut place = flags.place();
    let Some(from) = &ring.fetch else {
        return work_on(flags, ring, options, sensors, held, place);
    };
    loop {
        let fetched = fetch::fetch(ring, from, &place.cache)?;
        let Some(Fetched { path, sent, .. }) = fetched else { return Ok(()) };
        place.model = Some(path.clone());
        match work_on(flags, ring, options, sensors, held, place.clone()) {
            Err(Failure::Input(why)) if is_damaged(&path) => {
                // What is not there is sent.
                let _ = fs::remove_file(path);
                if sent > 0 {
                    return Err(Failure::Input(why));
                }
                warn(&format!("{why}; its layers are fetched again"));
            }
            result => return result,
        }
    }
}

/// Whether the model file at `path` is none, or other than its checksums say.
fn is_damaged(path: &Path) -> bool {
    let verified = |bytes: &[u8]| Header::parse(bytes).and_then(|header| header.verify(bytes));
    Map::open(path).is_ok_and(|map| verified(map.as_bytes()).is_err())
}

/// The same with the model file of `place`, and then with those that have the layers to which the master moves on.
fn work_on(
    flags: &Run,
    ring: &RingFlags,
    options: &Options,
    sensors: Sensors<'_>,
    held: &mut Held,
    mut place: WeightsPlace,
) -> Result<(), Failure> {
    let mut layers = None;
    while let Some((others, path)) =
        work_for(flags, (ring, layers), options, sensors, held, &place)?
    {
        // The master moves layers, and the next file has them.
        (layers, place.model) = (Some(others), Some(path));
    }
    Ok(())
}

/// The same with one file, that of `place`, and `layers` if they are others than `ring` says. Returns what layers it
/// is to have then, if those are in another file, and that file.
fn work_for(
    flags: &Run,
    (ring, layers): (&RingFlags, Option<Range<usize>>),
    options: &Options,
    sensors: Sensors<'_>,
    held: &mut Held,
    place: &WeightsPlace,
) -> Result<Option<(Range<usize>, PathBuf)>, Failure> {
    let (meter, heat) = sensors;
    let model = model_files::model(place.model.as_deref())?;
    let board = Board::new(ring, model.header())?.having(layers);
    let fingerprint = model.fingerprint();
    let parts = if ring.is_told() { fetch::folder(&place.cache).ok() } else { None };
    let elsewhere = |layers: &Range<usize>| {
        parts.as_ref().and_then(|folder| holding(folder, *fingerprint.as_ref().ok()?, layers))
    };
    let model = board.narrow(model, place)?;
    let limits = flags.limits(model.header());
    let mut engine = Engine::new(model.into(), options).map_err(options::engine_failure)?;
    weights::prepare(&mut engine, place, flags.words())?;
    let endpoint = match board.endpoint(engine.model()) {
        Err(_) if is_interrupted() => return Ok(None),
        endpoint => endpoint?,
    };
    ring::announce();
    engine.interrupt_by(is_interrupted);
    let meter = |is_computing: bool| MachineReading {
        joules: meter.and_then(|meter| meter.compute(is_computing)),
        degrees: heat.and_then(Thermometer::degrees),
    };
    let mut tell = |notice: &Notice| match notice {
        Notice::Opened { .. } if flags.quiet => {}
        notice => ring::tell(notice),
    };
    let has_elsewhere = |layers: &Range<usize>| elsewhere(layers).is_some();
    let (of, ends) =
        ((board.name(), limits, &meter as _), (&is_interrupted as _, &has_elsewhere as _));
    let worked = engine.work(endpoint, of, place, ends, held, &mut tell);
    let others = worked.map_err(|e| Failure::runtime(&e))?;
    Ok(others.and_then(|layers| Some((layers.clone(), elsewhere(&layers)?))))
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
