//! `params.json` of Meta checkpoints, and of Mistral's own, which are written the same way.

use super::fields::Fields;
use super::{Config, Dims, VALUES_MAX, even_head_dim, read_json, rows};
use crate::export::Error;
use crate::export::checkpoint::Checkpoint;
use crate::format::model::{Architecture, RopeScaling};

/// Context length of Llama 2. `params.json` has no such field: newer models are told by
/// their RoPE.
const CTX: usize = 4096;
/// Context length of Llama 3, which has a rope_theta of 500000.
const CTX_THETA_500K: usize = 8192;
/// Context length of CodeLlama, which has a rope_theta of 1000000.
const CTX_THETA_1M: usize = 16_384;
/// Context length of Mistral's models, which say hidden_dim.
const CTX_MISTRAL: usize = 32_768;
/// Context length of Llama 3.1 and later, which scale RoPE.
const CTX_SCALED: usize = 131_072;

/// Width and layers of Llama 3.2 1B and 3B.
const LLAMA_3_2: [(usize, usize); 2] = [(2048, 16), (3072, 28)];

pub(super) fn read(checkpoint: &Checkpoint) -> Result<Config, Error> {
    let path = checkpoint.dir().join("params.json");
    let json = read_json(&path, VALUES_MAX)?;
    let fields = Fields::new(&path, &json)?;
    for name in ["moe", "quantization_args", "lora_args"] {
        if fields.get(name).is_some() {
            return Err(fields.unsupported(format!("{name}: weights in another form")));
        }
    }
    let mut warnings = Vec::new();
    let dims = dims(&fields, checkpoint)?;
    if let Some(ffn_dim) = ffn_dim_by_formula(&fields, dims.dim)?
        && ffn_dim != dims.ffn_dim
    {
        warnings.push(format!(
            "ffn_dim is {} by the tensors' shapes, but {ffn_dim} by multiple_of",
            dims.ffn_dim
        ));
    }
    let mut header = dims.header();
    let theta = fields.number("rope_theta")?;
    header.rope_theta = theta.unwrap_or(10_000.0);
    header.norm_eps = fields.required_number("norm_eps")? as f32;
    header.sliding_window = fields.size("sliding_window")?;
    // Meta computes the FFN's width and has no window.
    let is_mistral = fields.get("hidden_dim").is_some() || header.sliding_window.is_some();
    if is_mistral {
        header.architecture = Architecture::Mistral;
    }
    let is_scaled = fields.flag("use_scaled_rope")?.unwrap_or(false);
    if is_scaled {
        let shape = (header.dim, header.n_layers);
        header.rope_scaling = Some(scaling(&fields, shape, &mut warnings)?);
    }
    header.max_seq_len = match fields.size("max_seq_len")? {
        Some(max_seq_len) => max_seq_len,
        None if is_scaled => CTX_SCALED,
        None if is_mistral => CTX_MISTRAL,
        None if theta.is_some_and(|theta| theta >= 1e6) => CTX_THETA_1M,
        None if theta.is_some_and(|theta| theta >= 500_000.0) => CTX_THETA_500K,
        None => CTX,
    };
    Ok(Config { header, is_tied: None, files: vec![path.clone()], path, warnings })
}

fn dims(fields: &Fields<'_>, checkpoint: &Checkpoint) -> Result<Dims, Error> {
    let dim = fields.required_size("dim")?;
    let n_heads = fields.required_size("n_heads")?;
    let head_dim = match fields.size("head_dim")? {
        Some(head_dim) => head_dim,
        None => even_head_dim(dim, n_heads).map_err(|problem| fields.bad(problem))?,
    };
    // Llama 2 says -1: the tokenizer decides, and with it the embedding.
    let vocab_size = match fields.get("vocab_size").and_then(|value| value.as_i64()) {
        Some(-1) => rows(checkpoint, "tok_embeddings.weight")?,
        _ => fields.required_size("vocab_size")?,
    };
    Ok(Dims {
        dim,
        ffn_dim: rows(checkpoint, "layers.0.feed_forward.w1.weight")?,
        n_layers: fields.required_size("n_layers")?,
        n_heads,
        n_kv_heads: fields.size("n_kv_heads")?.unwrap_or(n_heads),
        head_dim,
        vocab_size,
    })
}

/// The FFN width Meta computes: two thirds of 4·dim, times a factor, rounded up. Mistral
/// gives it as hidden_dim.
fn ffn_dim_by_formula(fields: &Fields<'_>, dim: usize) -> Result<Option<usize>, Error> {
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

/// What `use_scaled_rope` stands for. Newer files may give the factor; for the others it is what
/// the Hugging Face folders of the same models say. `shape` is the model's width and layers.
fn scaling(
    fields: &Fields<'_>,
    shape: (usize, usize),
    notes: &mut Vec<String>,
) -> Result<RopeScaling, Error> {
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
        let fields = Fields::new(Path::new("params.json"), &json).unwrap();
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
