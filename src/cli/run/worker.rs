//! `leap worker`: runs a board's layers for any master.

use super::flags::Run;
use crate::cli::ring::{self, Board, RingFlags, fetch, is_interrupted, join};
use crate::cli::team::TeamBoard;
use crate::cli::{Failure, model_files, options, power, weights};
use crate::engine::ring::Limits;
use crate::engine::{CTX_LEN_DEFAULT, Engine, Options};
use crate::format::model::Header;
use crate::ring::Notice;
use crate::sys::power::Meter;

/// The most that a worker is ready for without flags.
const BATCH_MAX: usize = 512;
const STREAMS_MAX: usize = 16;

/// Runs a worker until a signal ends it.
pub(super) fn work(flags: &Run) -> Result<(), Failure> {
    let meter = power::meter(flags.power_cmd.as_deref(), flags.watts)?;
    let (ring, options) = (flags.ring_flags(), flags.engine_options()?);
    if let Some(path) = &flags.team {
        return join_team(flags, &TeamBoard::new(&ring, path)?, &options);
    }
    let Some(port) = join::port(&ring, flags.model.is_some()) else {
        return take_part(flags, &ring, &options, meter.as_deref());
    };
    let waiting = join::start(&ring, port, &flags.cache, &options)?;
    while let Some(ring) = waiting.next(&ring) {
        if let Err(failure) = take_part(flags, &ring, &options, meter.as_deref()) {
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

/// Has the part in a ring that `ring` says, until a signal or other work ends it.
fn take_part(
    flags: &Run,
    ring: &RingFlags,
    options: &Options,
    meter: Option<&Meter>,
) -> Result<(), Failure> {
    let mut place = flags.place();
    if let Some(from) = &ring.fetch {
        let Some(path) = fetch::fetch(ring, from, &place.cache)? else { return Ok(()) };
        place.model = Some(path);
    }
    let model = model_files::model(place.model.as_deref())?;
    let board = Board::new(ring, model.header())?;
    let model = board.narrow(model, &place)?;
    let limits = flags.limits(model.header());
    let mut engine = Engine::new(model.into(), options).map_err(options::engine_failure)?;
    weights::prepare(&mut engine, &place, flags.words())?;
    let endpoint = match board.endpoint(engine.model()) {
        Err(_) if is_interrupted() => return Ok(()),
        endpoint => endpoint?,
    };
    ring::announce();
    engine.interrupt_by(is_interrupted);
    let meter = |is_computing: bool| meter.and_then(|meter| meter.compute(is_computing));
    let mut tell = |notice: &Notice| match notice {
        Notice::Opened { .. } if flags.quiet => {}
        notice => ring::tell(notice),
    };
    engine
        .work(endpoint, (board.name(), limits, &meter), &place, &is_interrupted, &mut tell)
        .map_err(|e| Failure::runtime(&e))
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
