//! `leap eval`: how near a model's logits are to a reference's.

mod cases;
mod report;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::checkpoint::load_failure;
use super::weights::{self, Words};
use super::{Failure, options};
use crate::engine::{Cache, Engine, Huge, Options};
use crate::model::{KvType, Model};

/// Rows of logits computed at once.
const BATCH: usize = 64;

/// Compares a model with reference outputs, or measures its perplexity.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "eval")]
pub(super) struct Eval {
    /// model file
    #[argh(positional)]
    model: PathBuf,
    /// file of reference cases (golden.json)
    #[argh(option)]
    cases: Option<PathBuf>,
    /// text file whose perplexity is measured
    #[argh(option)]
    text: Option<PathBuf>,
    /// json array of token ids whose perplexity is measured, or an object with `ids`
    #[argh(option)]
    ids: Option<PathBuf>,
    /// second model: drift, KL and top-1 agreement of MODEL against it on the text or ids
    #[argh(option)]
    against: Option<PathBuf>,
    /// tokens that are predicted from each other; a window starts anew (256). A rest that fills
    /// no window is left out
    #[argh(option, default = "256")]
    window: usize,
    /// tokenizer of --text; by default the one beside the model
    #[argh(option, short = 't')]
    tokenizer: Option<PathBuf>,
    /// fail if a case's logits are further off, relative to the largest reference logit
    #[argh(option)]
    max_drift: Option<f64>,
    /// fail if the most likely token agrees at a smaller part of the positions (0 to 1)
    #[argh(option)]
    min_top1: Option<f64>,
    /// fail if greedy decoding differs from the cases' greedy_ids
    #[argh(switch)]
    greedy: bool,
    /// how keys and values are kept: f32 (default) or f16
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvType>,
    /// number of threads
    #[argh(option)]
    threads: Option<usize>,
    /// packed weights: auto (default), a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    cache: Cache,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

impl Eval {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let sources = [&self.cases, &self.text, &self.ids];
        if sources.iter().filter(|source| source.is_some()).count() != 1 {
            return Err(Failure::Usage("give one of --cases, --text and --ids".to_owned()));
        }
        let report = match &self.cases {
            Some(path) => cases::run(&self, path)?,
            None => text::run(&self)?,
        };
        super::print(&report.render(self.json))?;
        report.verdict(self.max_drift, self.min_top1, self.greedy)
    }

    /// An engine for contexts of `ctx_len` tokens that gives the logits of every position.
    fn engine(&self, path: &Path, model: Arc<Model>, ctx_len: usize) -> Result<Engine, Failure> {
        let options = Options {
            ctx_len: Some(ctx_len),
            batch: Some(BATCH),
            max_logits: Some(BATCH),
            kv: self.kv.or(Some(KvType::F32)),
            threads: self.threads,
            isa: options::isa_from_environment()?,
            ..Options::default()
        };
        let mut engine = Engine::new(model, &options).map_err(options::engine_failure)?;
        weights::prepare(&mut engine, Some(path), (&self.cache, Huge::Off), Words::Progress)?;
        Ok(engine)
    }
}

fn open_model(path: &Path) -> Result<Arc<Model>, Failure> {
    Model::open(path).map(Arc::new).map_err(|e| load_failure(&e))
}
