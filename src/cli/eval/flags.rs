//! The options of `leap eval`, and the engines that they ask for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use crate::cli::checkpoint::load_failure;
use crate::cli::weights::{self, Words};
use crate::cli::{Failure, options};
use crate::engine::{Cache, DeviceChoice, DeviceOptions, Engine, Huge, Options, WeightsPlace};
use crate::model::{KvKind, Model};

/// Rows of logits computed in one batch.
const BATCH: usize = 64;

/// Compares a model with reference outputs, or measures its perplexity.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "eval")]
pub(in crate::cli) struct Eval {
    /// model file or checkpoint
    #[argh(positional)]
    pub(super) model: PathBuf,
    /// file of reference cases (golden.json)
    #[argh(option)]
    pub(super) cases: Option<PathBuf>,
    /// text file whose perplexity is measured
    #[argh(option)]
    pub(super) text: Option<PathBuf>,
    /// json array of token ids whose perplexity is measured, or an object with `ids`; an array of such arrays
    /// is several separate texts
    #[argh(option)]
    pub(super) ids: Option<PathBuf>,
    /// second model: its perplexity, and KL (mean, median, 99th percentile), top-1 agreement and
    /// drift of MODEL against it on the text or ids
    #[argh(option)]
    pub(super) against: Option<PathBuf>,
    /// tokens that are predicted from each other; a window starts again (256). A rest that fills
    /// no window is left out
    #[argh(option, from_str_fn(options::count), default = "256")]
    pub(super) window: usize,
    /// positions at the beginning of a window that do not count, as they know little (0)
    #[argh(option, default = "0")]
    pub(super) skip: usize,
    /// tokenizer of --text; by default the one beside the model
    #[argh(option, short = 't')]
    pub(super) tokenizer: Option<PathBuf>,
    /// fail if a case's logits are further off, relative to the largest reference logit
    #[argh(option)]
    pub(super) max_drift: Option<f64>,
    /// fail if the most likely token agrees at a smaller part of the positions (0 to 1)
    #[argh(option)]
    pub(super) min_top1: Option<f64>,
    /// fail if greedy decoding differs from the cases' greedy_ids
    #[argh(switch)]
    pub(super) greedy: bool,
    /// how keys and values are kept: f32 (default), f16 or int8
    #[argh(option, from_str_fn(options::kv_type))]
    pub(super) kv: Option<KvKind>,
    /// where layers are computed: cpu (default), gpu, auto (a GPU if it is faster), or part of a device's name
    #[argh(option, from_str_fn(options::device), default = "DeviceChoice::Cpu")]
    pub(super) device: DeviceChoice,
    /// most of the GPU's memory to use, as in 6G (nine tenths of it)
    #[argh(option, from_str_fn(options::room))]
    pub(super) gpu_memory: Option<u64>,
    /// number of threads
    #[argh(option, from_str_fn(options::count))]
    pub(super) threads: Option<usize>,
    /// packed weights: auto (default), a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    pub(super) cache: Cache,
    /// print one JSON object
    #[argh(switch)]
    pub(super) json: bool,
}

impl Eval {
    /// An engine for contexts of `ctx_len` tokens that gives the logits of every position.
    pub(super) fn engine(
        &self,
        path: &Path,
        model: Arc<Model>,
        ctx_len: usize,
    ) -> Result<Engine, Failure> {
        let options = Options {
            ctx_len: Some(ctx_len),
            batch: Some(BATCH),
            max_logits: Some(BATCH),
            kv: self.kv.or(Some(KvKind::F32)),
            threads: self.threads,
            device: DeviceOptions { choice: self.device.clone(), memory: self.gpu_memory },
            isa: options::isa_from_environment()?,
            ..Options::default()
        };
        let mut engine = Engine::new(model, &options).map_err(options::engine_failure)?;
        let place = WeightsPlace {
            model: Some(path.to_owned()),
            cache: self.cache.clone(),
            huge: Huge::Off,
        };
        weights::prepare(&mut engine, &place, Words::Progress)?;
        Ok(engine)
    }
}

/// Opens a model file.
pub(super) fn open_model(path: &Path) -> Result<Arc<Model>, Failure> {
    Model::open(path).map(Arc::new).map_err(|e| load_failure(&e))
}
