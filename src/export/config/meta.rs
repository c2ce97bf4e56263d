//! `params.json` of Meta checkpoints, and of Mistral's own, which are written the same way.

use super::family::Family;
use super::json_fields::{JsonFields, VALUES_MAX};
use super::model::{Config, Extras, rows};
use super::settings::{ConfigKind, Fields, Settings};
use crate::export::checkpoint::Checkpoint;
use crate::export::error::ExportError;
use crate::export::json;
use crate::export::names::Naming;
use crate::format::model::{RopeScaling, TensorKind};

/// Context length of Llama 2. `params.json` has no such field: newer models are recognised by their RoPE.
const CTX: usize = 4096;
/// Context length of Llama 3, which has a rope_theta of 500000.
const CTX_THETA_500K: usize = 8192;
/// Context length of CodeLlama, which has a rope_theta of 1000000.
const CTX_THETA_1M: usize = 16_384;
/// Context length of Mistral's models, which give hidden_dim.
const CTX_MISTRAL: usize = 32_768;
/// Context length of Llama 3.1 and later, which scale RoPE.
const CTX_SCALED: usize = 131_072;

/// Width and layers of Llama 3.2 1B and 3B.
const LLAMA_3_2: [(usize, usize); 2] = [(2048, 16), (3072, 28)];

/// Reads `params.json`; some dimensions are only in the tensors' shapes.
pub(in crate::export) fn read(checkpoint: &Checkpoint) -> Result<Config, ExportError> {
    let path = checkpoint.dir().join("params.json");
    let json = json::read(&path, VALUES_MAX)?;
    let fields = JsonFields::new(&path, &json)?;
    for name in ["moe", "quantization_args", "lora_args"] {
        if fields.get(name).is_some() {
            return Err(fields.unsupported(format!("{name}: weights in another form")));
        }
    }
    let settings = Settings::new(ConfigKind::Meta, &fields);
    let (dims, vocab_size) = (settings.dims()?, vocab_size(&fields, checkpoint)?);
    let ffn_dim = rows(checkpoint, &Naming::Meta.first(TensorKind::W1))?;
    let mut header = dims.header(ffn_dim, vocab_size);
    let mut extras = Extras::default();
    if let Some(by_formula) = ffn_dim_by_formula(&fields, header.dim)?
        && by_formula != ffn_dim
    {
        extras.notes.push(format!(
            "ffn_dim is {ffn_dim} by the tensors' shapes, but {by_formula} by multiple_of"
        ));
    }
    let theta = fields.number("rope_theta")?;
    header.rope_theta = theta.unwrap_or(10_000.0);
    header.norm_eps = fields.required_number("norm_eps")? as f32;
    // Meta's files do not give the FFN's width and have no window.
    let is_mistral = fields.get("hidden_dim").is_some() || settings.window()?.is_some();
    Family::of_params(is_mistral).configure(&settings, &mut header, &mut extras)?;
    let is_scaled = fields.flag("use_scaled_rope")?.unwrap_or(false);
    if is_scaled {
        let shape = (header.dim, header.n_layers);
        header.rope_scaling = Some(scaling(&fields, shape, &mut extras.notes)?);
    }
    header.max_seq_len = match fields.size("max_seq_len")? {
        Some(max_seq_len) => max_seq_len,
        None if is_scaled => CTX_SCALED,
        None if is_mistral => CTX_MISTRAL,
        None if theta.is_some_and(|theta| theta >= 1e6) => CTX_THETA_1M,
        None if theta.is_some_and(|theta| theta >= 500_000.0) => CTX_THETA_500K,
        None => CTX,
    };
    Ok(Config { header, is_tied: None, files: vec![path.clone()], path, extras })
}

/// Vocabulary size. Llama 2's files have -1: the rows of the embedding decide.
fn vocab_size(fields: &JsonFields<'_>, checkpoint: &Checkpoint) -> Result<usize, ExportError> {
    match fields.get("vocab_size").and_then(|value| value.as_i64()) {
        Some(-1) => rows(checkpoint, &Naming::Meta.first(TensorKind::Embedding)),
        _ => fields.required_size("vocab_size"),
    }
}

/// The FFN width Meta computes: two thirds of 4·dim, times a factor, rounded up. Mistral
/// gives it as hidden_dim.
fn ffn_dim_by_formula(fields: &JsonFields<'_>, dim: usize) -> Result<Option<usize>, ExportError> {
    if let Some(hidden_dim) = fields.size("hidden_dim")? {
        return Ok(Some(hidden_dim));
    }
    let Some(multiple_of) = fields.size("multiple_of")? else { return Ok(None) };
    let two_thirds = 8 * dim / 3;
    let factor = fields.number("ffn_dim_multiplier")?.unwrap_or(1.0);
    // A factor beyond reason saturates here and is reported as a difference.
    let scaled = (two_thirds as f64 * factor) as u32 as usize;
    Ok(Some(scaled.next_multiple_of(multiple_of)))
}

/// The scaling behind `use_scaled_rope`. Newer files may give the factor; for the others it is the one in the
/// Hugging Face folders of the same models. `shape` is the model's width and layers.
fn scaling(
    fields: &JsonFields<'_>,
    shape: (usize, usize),
    notes: &mut Vec<String>,
) -> Result<RopeScaling, ExportError> {
    let (guess, model) = match LLAMA_3_2.contains(&shape) {
        true => (32.0, "Llama 3.2, as the widths are its"),
        false => (8.0, "Llama 3.1"),
    };
    let factor = fields.number("rope_scaling_factor")?;
    if factor.is_none() {
        notes.push(format!(
            "params.json does not give the RoPE factor: {guess} is taken, as for {model}"
        ));
    }
    Ok(RopeScaling::Llama3 {
        factor: factor.unwrap_or(guess) as f32,
        low_freq_factor: 1.0,
        high_freq_factor: fields.number("rope_high_freq_factor")?.unwrap_or(4.0) as f32,
        original_ctx: 8192,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn ffn_dim(json: serde_json::Value, dim: usize) -> Option<usize> {
        let fields = JsonFields::new(Path::new("params.json"), &json).unwrap();
        ffn_dim_by_formula(&fields, dim).unwrap()
    }

    #[test]
    fn formula_gives_the_known_widths() {
        let llama2 = json!({ "multiple_of": 256 });
        assert_eq!(ffn_dim(llama2, 4096), Some(11_008));
        let llama3 = json!({ "multiple_of": 1024, "ffn_dim_multiplier": 1.3 });
        assert_eq!(ffn_dim(llama3, 4096), Some(14_336));
        let one_b = json!({ "multiple_of": 256, "ffn_dim_multiplier": 1.5 });
        assert_eq!(ffn_dim(one_b, 2048), Some(8192));
        assert_eq!(ffn_dim(json!({ "hidden_dim": 14_336 }), 4096), Some(14_336));
        assert_eq!(ffn_dim(json!({}), 4096), None);
    }
}
