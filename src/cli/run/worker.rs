//! `leap worker`: does a board's part for any master.

use super::drafting;
use super::flags::Run;
use crate::cli::boards::failure;
use crate::cli::ring;
use crate::cli::{Failure, model_files, options, power, prefixes};
use crate::engine::Options;
use crate::fleet::ring_board::Sensors;
use crate::fleet::settings::Settings;
use crate::fleet::worker::{Most, Worker};

/// Runs a worker until a signal ends it.
pub(super) fn work(flags: &Run, settings: &Settings) -> Result<(), Failure> {
    if let Some(model) = &flags.draft_model {
        return drafting::work(flags, model);
    }
    let meter = power::meter(flags.power_cmd.as_deref(), flags.watts)?;
    let prefixes = flags.prefix_cache.clone();
    let prefixes = prefixes.map(|at| (at, flags.prefix_cache_size.unwrap_or(prefixes::BYTES)));
    let worker = Worker {
        options: Options {
            device: flags.device_options(),
            ..options::of_cores(flags.threads, flags.cores.as_ref())?
        },
        most: Most { ctx_len: flags.ctx, streams: flags.streams, batch: flags.batch },
        sensors: Sensors { meter, heat: ring::thermometer()? },
        prefixes,
        built_in: model_files::BUILT_IN,
        ..Worker::new(settings, flags.place())
    };
    worker.work().map_err(|e| failure(settings.named_by, e))
}
