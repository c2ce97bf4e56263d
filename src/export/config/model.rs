//! A model's configuration, and settings that only its checkpoint shows.

use std::path::PathBuf;

use crate::export::checkpoint::Checkpoint;
use crate::export::error::ExportError;
use crate::format::model::{Encoder, Header, LongRope};

/// A checkpoint's configuration.
pub(in crate::export) struct Config {
    /// The model, with matrices as f32 and the classifier as if it were shared.
    pub(in crate::export) header: Header,
    /// Whether the embedding is the classifier; `None` if the files do not say.
    pub(in crate::export) is_tied: Option<bool>,
    /// The file that says most of this.
    pub(in crate::export) path: PathBuf,
    /// Every file read.
    pub(in crate::export) files: Vec<PathBuf>,
    /// Further settings.
    pub(in crate::export) extras: Extras,
}

/// Settings of a configuration that are no fields of a model file.
pub(in crate::export) struct Extras {
    /// Notes for the user about the configuration, in sentences without a full stop.
    pub(in crate::export) notes: Vec<String>,
    /// Added to the weights of norms.
    pub(in crate::export) norm_plus: f32,
    /// Divisor of the logits; the final norm's weights are divided by it instead.
    pub(in crate::export) logits_divisor: f32,
    /// Whether decays of recurrent layers are stored as logarithms of their negative values.
    pub(in crate::export) has_log_decay: bool,
    /// Whether layers with heads of their own may lack a projection of values, and use that of keys.
    pub(in crate::export) has_keys_as_values: bool,
    /// Whether the checkpoint is that of a vision-language model.
    pub(in crate::export) is_wrapped: bool,
    /// Whether the family may have biases. If a model has some, missing ones are 0.
    pub(in crate::export) has_optional_biases: bool,
    /// Whether weights are stored in eight bits, with scales beside them.
    pub(in crate::export) has_scales: bool,
    /// Properties of a model of embeddings.
    pub(in crate::export) embedder: Embedder,
}

/// Properties of a model of embeddings that its configuration shows.
#[derive(Default)]
pub(in crate::export) struct Embedder {
    /// Layers like BERT's.
    pub(in crate::export) encoder: Option<Encoder>,
    /// Whether tokens attend to later tokens, too.
    pub(in crate::export) is_bidirectional: bool,
    /// Folders of the dense layers behind pooling.
    pub(in crate::export) dense: Vec<PathBuf>,
}

impl Embedder {
    /// Whether the model can be nothing but one of embeddings.
    pub(in crate::export::config) fn is_needed(&self) -> bool {
        self.encoder.is_some() || self.is_bidirectional
    }
}

impl Default for Extras {
    fn default() -> Extras {
        Extras {
            notes: Vec::new(),
            norm_plus: 0.0,
            logits_divisor: 1.0,
            has_log_decay: false,
            has_keys_as_values: false,
            is_wrapped: false,
            has_optional_biases: false,
            has_scales: false,
            embedder: Embedder::default(),
        }
    }
}

/// Takes over the RoPE divisors of texts of up to `original_ctx` tokens, and those of longer texts.
pub(super) fn take_long_rope(
    header: &mut Header,
    original_ctx: usize,
    [short, divisors]: [Vec<f32>; 2],
) {
    header.features.rope_divisors = short;
    header.features.long_rope = Some(LongRope { original_ctx, divisors });
}

/// Factor of cosines and sines under YaRN, unless the files give one (arXiv:2309.00071, section 3.4).
pub(super) fn yarn_magnitude(factor: f64) -> f64 {
    if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
}

/// First dimension of a tensor, within the range of a model file.
pub(super) fn rows(checkpoint: &Checkpoint, name: &str) -> Result<usize, ExportError> {
    let tensor = checkpoint.tensor(name)?;
    match tensor.shape.first() {
        Some(&rows) if rows > 0 && rows <= i32::MAX as usize => Ok(rows),
        _ => Err(tensor.error(format!("has shape {:?}, wanted a matrix", tensor.shape))),
    }
}
