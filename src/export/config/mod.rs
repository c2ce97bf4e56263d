//! What a checkpoint's configuration files say about the model.

mod fields;
mod gguf;
mod hugging_face;
mod meta;

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::checkpoint::Checkpoint;
use super::{Error, json};
use crate::format::ChatTemplate;
use crate::format::model::{Architecture, Header, Weights};
use crate::sys::map::Map;

/// Values of a configuration: some list something for every layer.
const VALUES_MAX: usize = 1 << 16;
/// Values of a table of tensors; the largest published ones have a fifth of that.
pub(super) const TENSORS_MAX: usize = 1 << 19;

/// A checkpoint's configuration.
pub(super) struct Config {
    /// The model, with matrices as f32 and the classifier as if it were shared.
    pub(super) header: Header,
    /// Whether the embedding is the classifier; `None` if the files do not say.
    pub(super) is_tied: Option<bool>,
    /// The file that says most of this.
    pub(super) path: PathBuf,
    /// Every file read.
    pub(super) files: Vec<PathBuf>,
    /// What a user should know about it, in sentences without a full stop.
    pub(super) warnings: Vec<String>,
}

impl Config {
    /// Reads `config.json`, and `generation_config.json` if there is one.
    pub(super) fn hugging_face(dir: &Path) -> Result<Config, Error> {
        let path = dir.join("config.json");
        let generation = dir.join("generation_config.json");
        let generation = generation.exists().then_some(generation);
        hugging_face::read(path, generation)
    }

    /// Reads `params.json`; some dimensions are only in the tensors' shapes.
    pub(super) fn meta(checkpoint: &Checkpoint) -> Result<Config, Error> {
        meta::read(checkpoint)
    }

    /// Reads the fields of a GGUF file; the vocabulary's size is only in a tensor's shape.
    pub(super) fn gguf(checkpoint: &Checkpoint) -> Result<Config, Error> {
        gguf::read(checkpoint)
    }
}

pub(super) use gguf::ROPE_FREQS;

/// The dimensions that every configuration has.
struct Dims {
    dim: usize,
    ffn_dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
}

impl Dims {
    /// A header with these dimensions and the most common value of everything else.
    fn header(self) -> Header {
        Header {
            weights: Weights::F32,
            dim: self.dim,
            ffn_dim: self.ffn_dim,
            n_layers: self.n_layers,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            vocab_size: self.vocab_size,
            max_seq_len: 2048,
            shared_classifier: true,
            head_dim: self.head_dim,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: None,
            sliding_window: None,
            architecture: Architecture::Llama,
            bos: None,
            stop_ids: Vec::new(),
            chat_template: ChatTemplate::None,
            tokenizer_hash: 0,
            has_extension: true,
            packed: None,
            part: None,
        }
    }
}

/// The head width if the configuration does not say: `dim` shared among the heads.
fn even_head_dim(dim: usize, n_heads: usize) -> Result<usize, String> {
    match dim.is_multiple_of(n_heads) {
        true => Ok(dim / n_heads),
        false => Err(format!("head_dim is missing, and {n_heads} heads do not divide {dim}")),
    }
}

/// First dimension of a tensor, as a size that a model file can say.
fn rows(checkpoint: &Checkpoint, name: &str) -> Result<usize, Error> {
    let tensor = checkpoint.tensor(name)?;
    match tensor.shape.first() {
        Some(&rows) if rows > 0 && rows <= i32::MAX as usize => Ok(rows),
        _ => Err(tensor.error(format!("has shape {:?}, wanted a matrix", tensor.shape))),
    }
}

/// Reads a JSON file of up to `values_max` values.
pub(super) fn read_json(path: &Path, values_max: usize) -> Result<Value, Error> {
    let map = Map::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    json::parse(map.as_bytes(), values_max)
        .map_err(|problem| Error::BadFile { path: path.to_owned(), problem })
}
