//! `config.json` and `generation_config.json` of Hugging Face checkpoints.
//!
//! A missing field means what the `transformers` library takes it to mean.

use std::path::Path;

use super::family::Family;
use super::json_fields::{JsonFields, VALUES_MAX};
use super::model::Config;
use super::settings::{ConfigKind, Fields, Settings};
use crate::export::error::ExportError;
use crate::export::json;
use crate::format::excerpt;
use crate::format::model::{Header, RopeScaling, STOP_IDS_MAX};

/// Reads `config.json`, and `generation_config.json` if there is one.
pub(in crate::export) fn read(dir: &Path) -> Result<Config, ExportError> {
    let path = dir.join("config.json");
    let json = json::read(&path, VALUES_MAX)?;
    let fields = JsonFields::new(&path, &json)?;
    let family = family(&fields)?;
    refuse_variants(&fields)?;
    let settings = Settings::new(ConfigKind::HuggingFace, &fields);
    let (dims, ffn_dim) = (settings.dims()?, fields.required_size("intermediate_size")?);
    let mut header = dims.header(ffn_dim, fields.required_size("vocab_size")?);
    header.max_seq_len = fields.size("max_position_embeddings")?.unwrap_or(2048);
    header.norm_eps = fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32;
    read_rope(&fields, &mut header)?;
    let mut notes = Vec::new();
    family.configure(&settings, &mut header, &mut notes)?;
    let is_tied = fields.flag("tie_word_embeddings")?;
    read_ids(&fields, &mut header)?;
    let generation = dir.join("generation_config.json");
    let generation = generation.exists().then_some(generation);
    if let Some(path) = &generation {
        let json = json::read(path, VALUES_MAX)?;
        read_ids(&JsonFields::new(path, &json)?, &mut header)?;
    }
    let files = [Some(path.clone()), generation].into_iter().flatten().collect();
    Ok(Config { header, is_tied, path, files, notes })
}

/// Refuses a family that is not among ours by its name.
fn family(fields: &JsonFields<'_>) -> Result<&'static Family, ExportError> {
    let mut named = None;
    for class in fields.texts("architectures")? {
        if class.starts_with("Qwen2") {
            return Err(
                fields.unsupported(format!("{}: its attention adds biases", excerpt(class)))
            );
        }
        let unknown = || fields.unsupported(format!("architecture {}", excerpt(class)));
        let family = Family::of_class(class).ok_or_else(unknown)?;
        named = named.or(Some(family));
    }
    match fields.text("model_type")? {
        Some(name) => {
            let unknown = || fields.unsupported(format!("model type {}", excerpt(name)));
            Family::of_type(name).ok_or_else(unknown)
        }
        None => named.ok_or_else(|| fields.missing("model_type")),
    }
}

/// Refuses what this family allows but LEAP does not compute.
fn refuse_variants(fields: &JsonFields<'_>) -> Result<(), ExportError> {
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

fn refuse_partial_rotary(fields: &JsonFields<'_>) -> Result<(), ExportError> {
    match fields.number("partial_rotary_factor")? {
        None | Some(1.0) => Ok(()),
        Some(factor) => Err(fields.unsupported(format!("partial_rotary_factor {factor}"))),
    }
}

/// Theta and scaling, from `rope_parameters` or, as it was called before, `rope_scaling`.
fn read_rope(fields: &JsonFields<'_>, header: &mut Header) -> Result<(), ExportError> {
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

fn scaling(rope: &JsonFields<'_>) -> Result<Option<RopeScaling>, ExportError> {
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
fn read_ids(fields: &JsonFields<'_>, header: &mut Header) -> Result<(), ExportError> {
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
        let path = Path::new("config.json");
        let dims = json!({ "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2 });
        let dims = JsonFields::new(path, &dims).unwrap();
        let fields = JsonFields::new(path, &changes).map_err(|e| e.to_string())?;
        let mut header =
            Settings::new(ConfigKind::HuggingFace, &dims).dims().unwrap().header(64, 32);
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
