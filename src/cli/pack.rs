//! `leap pack`: builds the packed-weight cache ahead of time.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::weights::{self, Place};
use super::{Failure, note, options};
use crate::engine::{Engine, Options};
use crate::sys::signal;

/// Builds the packed-weight cache of a model, so that its first start is quick too.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "pack")]
pub(super) struct Pack {
    /// model file
    #[argh(positional)]
    model: PathBuf,
    /// file or folder of the cache (beside the model)
    #[argh(option, from_str_fn(weights::place), default = "Place::Auto")]
    cache: Place,
    /// number of threads
    #[argh(option)]
    threads: Option<usize>,
}

impl Pack {
    pub(super) fn execute(self) -> Result<(), Failure> {
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let options = Options {
            ctx_len: Some(1),
            batch: Some(1),
            threads: self.threads,
            isa: options::isa_from_environment()?,
            ..Options::default()
        };
        let mut engine = Engine::open(&self.model, &options).map_err(options::engine_failure)?;
        if engine.transformer().packed_in_model().is_some() {
            let (model, isa) = (self.model.display(), engine.transformer().kernels().isa().name());
            note(&format!("leap: {model} is packed for {isa} kernels already; nothing to do"));
            return Ok(());
        }
        if engine.transformer().packed_bytes().is_none() {
            let isa = engine.transformer().kernels().isa().name();
            let weights = engine.header().weights;
            return Err(Failure::Usage(format!("{isa} kernels use {weights} weights unpacked")));
        }
        let path = match &self.cache {
            Place::Auto => weights::beside_or_cache_folder(&engine, &self.model),
            Place::At(path) => weights::at(&engine, path, Some(&self.model)),
            Place::Off => return Err(Failure::Usage("nothing to do with --cache off".to_owned())),
        };
        weights::pack_into(&mut engine, &self.model, (&self.cache, &path))
    }
}
