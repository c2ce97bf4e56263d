//! `config.json` and `generation_config.json` of Hugging Face checkpoints.
//!
//! A missing field means what the `transformers` library takes it to mean.

use std::path::PathBuf;

use super::fields::Fields;
use super::{Config, Dims, VALUES_MAX, even_head_dim, read_json};
use crate::export::Error;
use crate::format::excerpt;
use crate::format::model::{Architecture, Header, RopeScaling, STOP_IDS_MAX};

pub(super) fn read(path: PathBuf, generation: Option<PathBuf>) -> Result<Config, Error> {
    let json = read_json(&path, VALUES_MAX)?;
    let fields = Fields::new(&path, &json)?;
    let architecture = architecture(&fields)?;
    refuse_variants(&fields)?;
    let mut header = dims(&fields)?.header();
    header.architecture = architecture;
    header.max_seq_len = fields.size("max_position_embeddings")?.unwrap_or(2048);
    header.norm_eps = fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    read_rope(&fields, &mut header)?;
    let mut warnings = Vec::new();
    match (architecture, fields.size("sliding_window")?) {
        (Architecture::Mistral, window) => header.sliding_window = window,
        (_, Some(_)) => warnings.push("sliding_window is ignored: Llama has none".to_owned()),
        (_, None) => {}
    }
    let is_tied = fields.flag("tie_word_embeddings")?;
    read_ids(&fields, &mut header)?;
    if let Some(path) = &generation {
        let json = read_json(path, VALUES_MAX)?;
        read_ids(&Fields::new(path, &json)?, &mut header)?;
    }
    let files = [Some(path.clone()), generation].into_iter().flatten().collect();
    Ok(Config { header, is_tied, path, files, warnings })
}

/// Llama or Mistral; anything else is refused by its name.
fn architecture(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let classes = fields.texts("architectures")?;
    for class in &classes {
        if class.starts_with("Qwen2") {
            return Err(
                fields.unsupported(format!("{}: its attention adds biases", excerpt(class)))
            );
        }
        if !matches!(*class, "LlamaForCausalLM" | "LLaMAForCausalLM" | "MistralForCausalLM") {
            return Err(fields.unsupported(format!("architecture {}", excerpt(class))));
        }
    }
    match (fields.text("model_type")?, classes.first()) {
        (Some("llama"), _) => Ok(Architecture::Llama),
        (Some("mistral"), _) => Ok(Architecture::Mistral),
        (Some(other), _) => Err(fields.unsupported(format!("model type {}", excerpt(other)))),
        (None, Some(&"MistralForCausalLM")) => Ok(Architecture::Mistral),
        (None, Some(_)) => Ok(Architecture::Llama),
        (None, None) => Err(fields.bad("model_type is missing".to_owned())),
    }
}

/// Refuses what this family allows but LEAP does not compute.
fn refuse_variants(fields: &Fields<'_>) -> Result<(), Error> {
    for name in ["attention_bias", "mlp_bias"] {
        if fields.flag(name)? == Some(true) {
            return Err(fields.unsupported(format!("{name}: layers with biases")));
        }
    }
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(fields.unsupported(format!("hidden_act {}", excerpt(other)))),
    }
    for name in ["num_local_experts", "num_experts", "n_routed_experts"] {
        if fields.get(name).is_some() {
            return Err(fields.unsupported(format!("{name}: a mixture of experts")));
        }
    }
    if let Some(quantization) = fields.object("quantization_config")? {
        let method = quantization.text("quant_method")?.unwrap_or("unnamed");
        return Err(fields.unsupported(format!("weights quantised already ({})", excerpt(method))));
    }
    refuse_partial_rotary(fields)
}

fn refuse_partial_rotary(fields: &Fields<'_>) -> Result<(), Error> {
    match fields.number("partial_rotary_factor")? {
        None | Some(1.0) => Ok(()),
        Some(factor) => Err(fields.unsupported(format!("partial_rotary_factor {factor}"))),
    }
}

fn dims(fields: &Fields<'_>) -> Result<Dims, Error> {
    let dim = fields.required_size("hidden_size")?;
    let n_heads = fields.required_size("num_attention_heads")?;
    let head_dim = match fields.size("head_dim")? {
        Some(head_dim) => head_dim,
        None => even_head_dim(dim, n_heads).map_err(|problem| fields.bad(problem))?,
    };
    Ok(Dims {
        dim,
        ffn_dim: fields.required_size("intermediate_size")?,
        n_layers: fields.required_size("num_hidden_layers")?,
        n_heads,
        n_kv_heads: fields.size("num_key_value_heads")?.unwrap_or(n_heads),
        head_dim,
        vocab_size: fields.required_size("vocab_size")?,
    })
}

/// Theta and scaling, from `rope_parameters` or, as it was called before, `rope_scaling`.
fn read_rope(fields: &Fields<'_>, header: &mut Header) -> Result<(), Error> {
    let rope = match fields.object("rope_parameters")? {
        Some(rope) => Some(rope),
        None => fields.object("rope_scaling")?,
    };
    let mut theta = fields.number("rope_theta")?;
    if let Some(rope) = rope {
        theta = rope.number("rope_theta")?.or(theta);
        refuse_partial_rotary(&rope)?;
        header.rope_scaling = scaling(&rope)?;
    }
    header.rope_theta = theta.unwrap_or(10_000.0);
    Ok(())
}

fn scaling(rope: &Fields<'_>) -> Result<Option<RopeScaling>, Error> {
    let kind = match rope.text("rope_type")? {
        Some(kind) => Some(kind),
        None => rope.text("type")?,
    };
    match kind {
        None if rope.get("factor").is_some() => {
            Err(rope.bad("RoPE scaling has a factor but no rope_type".to_owned()))
        }
        None | Some("default") => Ok(None),
        Some("linear") => {
            Ok(Some(RopeScaling::Linear { factor: rope.required_number("factor")? as f32 }))
        }
        Some("llama3") => Ok(Some(RopeScaling::Llama3 {
            factor: rope.required_number("factor")? as f32,
            low_freq_factor: rope.required_number("low_freq_factor")? as f32,
            high_freq_factor: rope.required_number("high_freq_factor")? as f32,
            original_ctx: rope.required_size("original_max_position_embeddings")? as u32,
        })),
        Some(other) => Err(rope.unsupported(format!("RoPE scaling {}", excerpt(other)))),
    }
}

/// Takes over the ids this file gives; what it leaves out stays as it is.
fn read_ids(fields: &Fields<'_>, header: &mut Header) -> Result<(), Error> {
    if let Some(ids) = fields.ids("bos_token_id")? {
        header.bos = ids.first().copied();
    }
    if let Some(ids) = fields.ids("eos_token_id")? {
        header.stop_ids.clear();
        for id in ids {
            if !header.stop_ids.contains(&id) {
                header.stop_ids.push(id);
            }
        }
    }
    match header.stop_ids.len() <= STOP_IDS_MAX {
        true => Ok(()),
        false => Err(fields.bad(format!("eos_token_id lists more than {STOP_IDS_MAX} ids"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rope_of(changes: Value) -> Result<Header, String> {
        let path = PathBuf::from("config.json");
        let fields = Fields::new(&path, &changes).map_err(|e| e.to_string())?;
        let mut header = Dims {
            dim: 64,
            ffn_dim: 64,
            n_layers: 1,
            n_heads: 2,
            n_kv_heads: 2,
            head_dim: 32,
            vocab_size: 32,
        }
        .header();
        read_rope(&fields, &mut header).map_err(|e| e.to_string())?;
        Ok(header)
    }

    #[test]
    fn rope_is_read_from_either_object_and_either_type_name() {
        let llama3 = |kind: &str| {
            json!({
                kind: "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192
            })
        };
        let wanted = Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_ctx: 8192,
        });
        for object in ["rope_parameters", "rope_scaling"] {
            for kind in ["rope_type", "type"] {
                let header = rope_of(json!({ object: llama3(kind), "rope_theta": 5e5 })).unwrap();
                assert_eq!(header.rope_scaling, wanted, "{object} {kind}");
                assert_eq!(header.rope_theta, 5e5);
            }
        }
        let header = rope_of(json!({ "rope_scaling": { "type": "linear", "factor": 4 } })).unwrap();
        assert_eq!(header.rope_scaling, Some(RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(header.rope_theta, 10_000.0);
    }

    #[test]
    fn rope_without_scaling_has_only_a_theta() {
        for rope in [
            json!({}),
            json!({ "rope_scaling": null }),
            json!({ "rope_parameters": { "rope_type": "default" } }),
        ] {
            let header = rope_of(rope).unwrap();
            assert_eq!((header.rope_scaling, header.rope_theta), (None, 10_000.0));
        }
        let inside = json!({ "rope_parameters": { "rope_theta": 1e6 }, "rope_theta": 5.0 });
        assert_eq!(rope_of(inside).unwrap().rope_theta, 1e6);
    }

    #[test]
    fn other_rope_scalings_are_refused_by_name() {
        for kind in ["yarn", "dynamic", "longrope", "su", "mrope"] {
            let rope = json!({ "rope_scaling": { "rope_type": kind, "factor": 2.0 } });
            assert!(rope_of(rope).unwrap_err().contains(kind));
        }
        for rope in [
            json!({ "rope_scaling": { "factor": 2.0 } }),
            json!({ "rope_scaling": { "type": "linear" } }),
            json!({ "rope_scaling": { "type": "llama3", "factor": 8.0 } }),
            json!({ "rope_scaling": { "type": 3 } }),
            json!({ "rope_scaling": "linear" }),
            json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }),
            json!({ "rope_theta": "big" }),
        ] {
            assert!(rope_of(rope.clone()).is_err(), "{rope}");
        }
    }
}
