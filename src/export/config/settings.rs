//! Settings that every kind of configuration has, under names of its own.

use crate::export::error::ExportError;
use crate::format::model::{Header, SEQ_LEN_MAX, Weights};

/// Name of a setting in a config.json, in a params.json, and in a GGUF file behind the
/// family's name.
pub(super) type Key = [&'static str; 3];

pub(super) const CTX: Key = ["max_position_embeddings", "max_seq_len", "context_length"];
pub(super) const DIM: Key = ["hidden_size", "dim", "embedding_length"];
pub(super) const LAYERS: Key = ["num_hidden_layers", "n_layers", "block_count"];
pub(super) const HEADS: Key = ["num_attention_heads", "n_heads", "attention.head_count"];
pub(super) const KV_HEADS: Key = ["num_key_value_heads", "n_kv_heads", "attention.head_count_kv"];
pub(super) const HEAD_DIM: Key = ["head_dim", "head_dim", "attention.key_length"];
pub(super) const WINDOW: Key = ["sliding_window", "sliding_window", "attention.sliding_window"];

/// Most layers of a model, far more than any has. Lists of layers are made before their tensors are looked for.
const LAYERS_MAX: usize = 4096;

/// Reads the settings of a configuration by the names that it uses.
pub(super) trait Fields {
    /// A number above 0 that fits the model file's signed fields.
    fn size(&self, name: &str) -> Result<Option<usize>, ExportError>;

    fn number(&self, name: &str) -> Result<Option<f64>, ExportError>;

    fn flag(&self, name: &str) -> Result<Option<bool>, ExportError>;

    fn text(&self, name: &str) -> Result<Option<&str>, ExportError>;

    /// The values of a list as text.
    fn labels(&self, name: &str) -> Result<Option<Vec<String>>, ExportError>;

    /// The error that LEAP cannot run such a model.
    fn unsupported(&self, what: String) -> ExportError;

    /// The error that the field called `name` is not there.
    fn missing(&self, name: &str) -> ExportError;

    /// The error that this file has `problem`.
    fn bad(&self, problem: String) -> ExportError;

    /// [`Fields::size`] of a field that must be there.
    fn required_size(&self, name: &str) -> Result<usize, ExportError> {
        self.size(name)?.ok_or_else(|| self.missing(name))
    }

    /// [`Fields::number`] of a field that must be there.
    fn required_number(&self, name: &str) -> Result<f64, ExportError> {
        self.number(name)?.ok_or_else(|| self.missing(name))
    }
}

/// The settings of one configuration.
pub(super) struct Settings<'a> {
    pub(super) fields: &'a dyn Fields,
    kind: ConfigKind,
}

/// Which column of a [`Key`] counts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ConfigKind {
    HuggingFace,
    Meta,
    Gguf,
}

impl<'a> Settings<'a> {
    pub(super) fn new(kind: ConfigKind, fields: &'a dyn Fields) -> Settings<'a> {
        Settings { fields, kind }
    }

    /// Whether the configuration is a GGUF file's.
    pub(super) fn is_gguf(&self) -> bool {
        self.kind == ConfigKind::Gguf
    }

    /// The values of a list that has one for each layer.
    pub(super) fn layer_labels(
        &self,
        name: &str,
        n_layers: usize,
    ) -> Result<Option<Vec<String>>, ExportError> {
        let labels = self.fields.labels(name)?;
        match labels.as_ref().map(Vec::len).filter(|len| *len != n_layers) {
            Some(len) => {
                Err(self.fields.bad(format!("{name} lists {len} layers of a model of {n_layers}")))
            }
            None => Ok(labels),
        }
    }

    /// The error that LEAP cannot run such a model.
    pub(super) fn unsupported(&self, what: &str) -> ExportError {
        self.fields.unsupported(what.to_owned())
    }

    fn name(&self, key: Key) -> &'static str {
        key[self.kind as usize]
    }

    fn size(&self, key: Key) -> Result<Option<usize>, ExportError> {
        self.fields.size(self.name(key))
    }

    fn required_size(&self, key: Key) -> Result<usize, ExportError> {
        self.fields.required_size(self.name(key))
    }

    /// Positions of the sliding window, if there is one; 0 in a GGUF file says that there is none.
    pub(super) fn window(&self) -> Result<Option<usize>, ExportError> {
        match self.kind {
            ConfigKind::Gguf if self.fields.number(self.name(WINDOW))? == Some(0.0) => Ok(None),
            _ => self.size(WINDOW),
        }
    }

    /// Tokens of the longest context: `usual` if the files give none or nonsense, at most `SEQ_LEN_MAX`; all with a
    /// note.
    pub(super) fn ctx(
        &self,
        (usual, notes): (usize, &mut Vec<String>),
    ) -> Result<usize, ExportError> {
        let name = self.name(CTX);
        let size = self.fields.number(name)?;
        let max = SEQ_LEN_MAX as f64;
        let ctx = match size {
            None if !self.is_gguf() => return Ok(usual),
            Some(size) if (1.0..=max).contains(&size) => return self.fields.required_size(name),
            Some(size) if size > max => SEQ_LEN_MAX,
            Some(_) | None => usual,
        };
        let found = size.map_or("is missing".to_owned(), |size| format!("is {size}"));
        notes.push(format!(
            "{name} {found}: a context of {ctx} tokens is taken; --ctx sets another"
        ));
        Ok(ctx)
    }

    /// The dimensions that are found in the same way in each kind of configuration.
    pub(super) fn dims(&self) -> Result<Dims, ExportError> {
        let (dim, n_heads) = (self.required_size(DIM)?, self.required_size(HEADS)?);
        let head_dim = match self.size(HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None if dim.is_multiple_of(n_heads) => dim / n_heads,
            None => {
                let problem =
                    format!("head_dim is missing, and {n_heads} heads do not divide {dim}");
                return Err(self.fields.bad(problem));
            }
        };
        let n_kv_heads = self.size(KV_HEADS)?.unwrap_or(n_heads);
        let n_layers = self.required_size(LAYERS)?;
        if n_layers > LAYERS_MAX {
            return Err(self.fields.bad(format!("{n_layers} layers, wanted at most {LAYERS_MAX}")));
        }
        Ok(Dims { dim, n_layers, n_heads, n_kv_heads, head_dim })
    }
}

/// The dimensions of a model that every kind of configuration has.
pub(super) struct Dims {
    dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

impl Dims {
    /// A header with these dimensions and the most common value of everything else.
    pub(super) fn header(self, ffn_dim: usize, vocab_size: usize) -> Header {
        Header {
            dim: self.dim,
            ffn_dim,
            n_layers: self.n_layers,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            vocab_size,
            max_seq_len: 2048,
            shared_classifier: true,
            head_dim: self.head_dim,
            rope_theta: 10_000.0,
            has_extension: true,
            ..Header::blank(Weights::F32)
        }
    }
}
