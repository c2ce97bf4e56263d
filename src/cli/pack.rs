//! `leap pack`: builds the packed-weight cache ahead of time.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::weights;
use super::{Failure, model_files, note, options};
use crate::engine::{Cache, Engine, Options, WeightsPlace};
use crate::sys::signal;

/// Builds the packed-weight cache of a model, so that its first start is quick too.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "pack")]
pub(super) struct Pack {
    /// model file or checkpoint
    #[argh(positional)]
    model: PathBuf,
    /// file or folder of the cache (beside the model)
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    cache: Cache,
    /// number of threads
    #[argh(option, from_str_fn(options::count))]
    threads: Option<usize>,
}

impl Pack {
    pub(super) fn execute(self) -> Result<(), Failure> {
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let path = model_files::converted(&self.model, false)?;
        let options = Options {
            ctx_len: Some(1),
            batch: Some(1),
            threads: self.threads,
            isa: options::isa_from_environment()?,
            ..Options::default()
        };
        // Runs with drafts need the weights of the model's own block packed too.
        let model = model_files::with_next(model_files::open_whole(&path)?.into())?;
        let mut engine = Engine::for_packing(model, &options).map_err(options::engine_failure)?;
        if engine.model().packed_for().is_some() {
            let (model, isa) = (path.display(), engine.isa().name());
            note(&format!("leap: {model} is packed for {isa} kernels already; nothing to do"));
            return Ok(());
        }
        if engine.packed_bytes().is_none() {
            let isa = engine.isa().name();
            let weights = engine.header().weights;
            return Err(Failure::Usage(format!("{isa} kernels use {weights} weights unpacked")));
        }
        let place =
            WeightsPlace { model: Some(path), cache: self.cache, ..WeightsPlace::default() };
        match engine.cache_file_for_any(&place) {
            Some(path) => weights::pack_into(&mut engine, &place, &path),
            None => Err(Failure::Usage("nothing to do with --cache off".to_owned())),
        }
    }
}
