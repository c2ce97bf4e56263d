//! `leap worker`: runs a board's layers for any master.

use super::flags::Run;
use crate::cli::ring::{self, Board, fetch, is_interrupted};
use crate::cli::{Failure, model_files, options, power, weights};
use crate::engine::ring::Limits;
use crate::engine::{CTX_LEN_DEFAULT, Engine, Options};
use crate::ring::Notice;

/// The most that a worker is ready for without flags.
const BATCH_MAX: usize = 512;
const STREAMS_MAX: usize = 16;

/// Runs a worker until a signal ends it.
pub(super) fn work(flags: &Run) -> Result<(), Failure> {
    let meter = power::meter(flags.power_cmd.as_deref(), flags.watts)?;
    let (ring, mut place) = (flags.ring_flags(), flags.place());
    if let Some(from) = &ring.fetch {
        let Some(path) = fetch::fetch(&ring, from, &place.cache)? else { return Ok(()) };
        place.model = Some(path);
    }
    let model = model_files::model(place.model.as_deref())?;
    let board = Board::new(&ring, model.header())?;
    let model = board.narrow(model, &place)?;
    let header = model.header();
    let limits = Limits {
        ctx_len: flags.ctx.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT)),
        n_streams: flags.streams.unwrap_or(STREAMS_MAX),
        max_batch: flags.batch.unwrap_or(BATCH_MAX),
    };
    let options = Options {
        // The master says what is needed.
        ctx_len: Some(1),
        batch: Some(1),
        threads: flags.threads.map(options::useful_threads),
        cores: flags.cores.as_ref().map(|cores| cores.0.clone()),
        isa: options::isa_from_environment()?,
        ..Options::default()
    };
    let mut engine = Engine::new(model.into(), &options).map_err(options::engine_failure)?;
    weights::prepare(&mut engine, &place, flags.words())?;
    let endpoint = match board.endpoint(engine.model()) {
        Err(_) if is_interrupted() => return Ok(()),
        endpoint => endpoint?,
    };
    ring::announce();
    engine.interrupt_by(is_interrupted);
    let meter = |is_computing: bool| meter.as_ref().and_then(|meter| meter.compute(is_computing));
    let mut tell = |notice: &Notice| match notice {
        Notice::Opened { .. } if flags.quiet => {}
        notice => ring::tell(notice),
    };
    engine
        .work(endpoint, (board.name(), limits, &meter), &place, &is_interrupted, &mut tell)
        .map_err(|e| Failure::runtime(&e))
}
