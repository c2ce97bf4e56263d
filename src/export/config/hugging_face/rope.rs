//! How a config.json describes RoPE.

use crate::export::config::family::Family;
use crate::export::config::json_fields::JsonFields;
use crate::export::config::model::{Extras, take_long_rope, yarn_magnitude};
use crate::export::config::settings::Fields;
use crate::export::error::ExportError;
use crate::format::excerpt;
use crate::format::model::{Header, RopeScaling, Temperature};

const ORIGINAL_CTX: &str = "original_max_position_embeddings";

/// Theta and scaling, from `rope_parameters` or, in older files, `rope_scaling`. If layers differ, `rope_parameters`
/// has an object for each kind of them.
pub(super) fn read(
    fields: &JsonFields<'_>,
    family: &Family,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let mut rope = match fields.object("rope_parameters")? {
        Some(rope) => Some(rope),
        None => fields.object("rope_scaling")?,
    };
    if let Some(local) = rope.map(|rope| rope.object("sliding_attention")).transpose()?.flatten() {
        if scaling(&local, header, &mut Extras::default())?.is_some() {
            return Err(local.unsupported("RoPE scaling of local layers".to_owned()));
        }
        header.features.local_theta = Some(local.required_number("rope_theta")?);
    }
    if let Some(global) = rope.map(|rope| rope.object("full_attention")).transpose()?.flatten() {
        rope = Some(global);
    }
    let mut theta = fields.number("rope_theta")?;
    read_rotary(fields, family, header)?;
    if let Some(rope) = rope {
        theta = rope.number("rope_theta")?.or(theta);
        let is_proportional = kind(&rope)? == Some("proportional") && family.allows("proportional");
        if !is_proportional {
            read_rotary(&rope, family, header)?;
        }
        header.rope_scaling = match kind(&rope)? {
            Some("proportional") if is_proportional => {
                header.features.rope_divisors = proportional((fields, &rope))?;
                Some(RopeScaling::Divisors)
            }
            Some("longrope" | "su") => Some(long_rope((fields, &rope), header)?),
            _ => scaling(&rope, header, extras)?,
        };
        header.features.temperature = temperature(&rope, family)?;
    }
    header.rope_theta = theta.unwrap_or(family.rope_theta);
    Ok(())
}

/// Divisors of frequencies of which only the first are not 0, those of a part of a head's pairs. The others become so
/// small that they rotate nothing, as in GGUF files.
fn proportional(
    (fields, rope): (&JsonFields<'_>, &JsonFields<'_>),
) -> Result<Vec<f32>, ExportError> {
    const NAME: &str = "partial_rotary_factor";
    const STILL: f32 = 1e30;
    let n_pairs = fields.required_size("global_head_dim")? / 2;
    let factor = rope.number(NAME)?.unwrap_or(1.0);
    if !(factor > 0.0 && factor <= 1.0) {
        return Err(rope.bad(format!("{NAME} is {factor}, wanted a part of a head")));
    }
    let n_rotated = (factor * 2.0 * n_pairs as f64 / 2.0) as usize;
    Ok((0..n_pairs).map(|pair| if pair < n_rotated { 1.0 } else { STILL }).collect())
}

/// The growth of queries with their position.
fn temperature(rope: &JsonFields<'_>, family: &Family) -> Result<Option<Temperature>, ExportError> {
    const NAME: &str = "llama_4_scaling_beta";
    let Some(slope) = rope.number(NAME)?.filter(|slope| *slope != 0.0) else { return Ok(None) };
    if !family.allows(NAME) {
        return Err(rope.unsupported(format!("{NAME} {slope}")));
    }
    let original_ctx = rope.required_size(ORIGINAL_CTX)?;
    Ok(Some(Temperature { slope: slope as f32, original_ctx }))
}

/// Takes over how many values of a head are rotated.
fn read_rotary(
    fields: &JsonFields<'_>,
    family: &Family,
    header: &mut Header,
) -> Result<(), ExportError> {
    const NAME: &str = "partial_rotary_factor";
    let Some(factor) = fields.number(NAME)?.filter(|factor| *factor != 1.0) else { return Ok(()) };
    if !family.allows(NAME) {
        return Err(fields.unsupported(format!("{NAME} {factor}")));
    }
    let rotary_dim = (header.head_dim as f64 * factor) as usize;
    if !(factor > 0.0 && factor < 1.0 && rotary_dim >= 2) {
        return Err(fields.bad(format!("{NAME} is {factor}, wanted a part of a head")));
    }
    header.features.rotary_dim = Some(rotary_dim);
    Ok(())
}

fn kind<'r>(rope: &'r JsonFields<'_>) -> Result<Option<&'r str>, ExportError> {
    match rope.text("rope_type")? {
        Some(kind) => Ok(Some(kind)),
        None => rope.text("type"),
    }
}

fn scaling(
    rope: &JsonFields<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<Option<RopeScaling>, ExportError> {
    match kind(rope)? {
        None if rope.get("factor").is_some() => {
            Err(rope.bad("RoPE scaling has a factor but no rope_type".to_owned()))
        }
        None | Some("default") => Ok(None),
        // Changes nothing in contexts that are no longer than the model was made for.
        Some("dynamic") => {
            let ctx = header.max_seq_len;
            extras
                .notes
                .push(format!("RoPE scaling dynamic is left out: it begins behind {ctx} tokens"));
            Ok(None)
        }
        Some("linear") => {
            Ok(Some(RopeScaling::Linear { factor: rope.required_number("factor")? as f32 }))
        }
        Some("llama3") => Ok(Some(RopeScaling::Llama3 {
            factor: rope.required_number("factor")? as f32,
            low_freq_factor: rope.required_number("low_freq_factor")? as f32,
            high_freq_factor: rope.required_number("high_freq_factor")? as f32,
            original_ctx: rope.required_size(ORIGINAL_CTX)? as u32,
        })),
        Some("yarn") => yarn(rope, header, extras).map(Some),
        Some(other) => Err(rope.unsupported(format!("RoPE scaling {}", excerpt(other)))),
    }
}

fn yarn(
    rope: &JsonFields<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<RopeScaling, ExportError> {
    let factor = rope.required_number("factor")?;
    let scales = [rope.number("mscale")?, rope.number("mscale_all_dim")?];
    let usual = match scales.map(|scale| scale.filter(|scale| *scale != 0.0)) {
        [Some(own), Some(all)] => yarn_scaled(factor, own) / yarn_scaled(factor, all),
        _ => yarn_magnitude(factor),
    };
    let magnitude = rope.number("attention_factor")?.unwrap_or(usual);
    header.features.rope_magnitude = magnitude as f32;
    if rope.get(ORIGINAL_CTX).is_none() {
        let what = format!("{ORIGINAL_CTX} is missing: YaRN is computed with the longest context");
        extras.notes.push(what);
    }
    Ok(RopeScaling::Yarn {
        factor: factor as f32,
        beta_slow: rope.number("beta_slow")?.unwrap_or(1.0) as f32,
        beta_fast: rope.number("beta_fast")?.unwrap_or(32.0) as f32,
        original_ctx: rope.size(ORIGINAL_CTX)?.unwrap_or(header.max_seq_len) as u32,
        is_truncated: rope.flag("truncate")?.unwrap_or(true),
    })
}

/// The factor that `mscale` gives YaRN's magnitude.
fn yarn_scaled(factor: f64, mscale: f64) -> f64 {
    (yarn_magnitude(factor) - 1.0) * mscale + 1.0
}

/// LongRoPE has divisors for texts up to the original context, and others for longer texts.
fn long_rope(
    (fields, rope): (&JsonFields<'_>, &JsonFields<'_>),
    header: &mut Header,
) -> Result<RopeScaling, ExportError> {
    let original = match rope.size(ORIGINAL_CTX)? {
        Some(original) => original,
        None => fields.required_size(ORIGINAL_CTX)?,
    };
    let divisors = |name: &str| -> Result<Vec<f32>, ExportError> {
        let numbers = rope.numbers(name)?.ok_or_else(|| rope.missing(name))?;
        let wanted = header.rotary_dim() / 2;
        match numbers.len() == wanted {
            true => Ok(numbers.into_iter().map(|number| number as f32).collect()),
            false => {
                Err(rope.bad(format!("{name} has {} numbers, wanted {wanted}", numbers.len())))
            }
        }
    };
    let both = [divisors("short_factor")?, divisors("long_factor")?];
    let stretch = header.max_seq_len as f64 / original as f64;
    let usual = match stretch > 1.0 {
        true => (1.0 + stretch.ln() / (original as f64).ln()).sqrt(),
        false => 1.0,
    };
    let magnitude = rope.number("attention_factor")?.unwrap_or(usual);
    header.features.rope_magnitude = magnitude as f32;
    take_long_rope(header, original, both);
    Ok(RopeScaling::Divisors)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::export::config::settings::{ConfigKind, Settings};

    fn rope_of(changes: Value) -> Result<Header, String> {
        let path = Path::new("config.json");
        let dims = json!({ "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2 });
        let dims = JsonFields::new(path, &dims).unwrap();
        let fields = JsonFields::new(path, &changes).map_err(|e| e.to_string())?;
        let mut header =
            Settings::new(ConfigKind::HuggingFace, &dims).dims().unwrap().header(64, 32);
        let family = Family::of_type("llama").unwrap();
        read(&fields, family, &mut header, &mut Extras::default()).map_err(|e| e.to_string())?;
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
    fn yarn_scales_its_magnitude_by_mscale() {
        let magnitude = |own: f64, all: f64| {
            let yarn = json!({
                "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                "mscale": own, "mscale_all_dim": all
            });
            rope_of(json!({ "rope_scaling": yarn })).unwrap().features.rope_magnitude
        };
        assert_eq!(magnitude(1.0, 1.0), 1.0);
        assert_eq!(magnitude(0.0, 1.0), (0.1 * 4f64.ln() + 1.0) as f32);
        let of = |scale: f64| 0.1 * scale * 4f64.ln() + 1.0;
        assert!((f64::from(magnitude(0.5, 2.0)) - of(0.5) / of(2.0)).abs() < 1e-7);
    }

    #[test]
    fn dynamic_scaling_changes_nothing_up_to_the_context() {
        let rope = json!({ "rope_scaling": { "rope_type": "dynamic", "factor": 2.0 } });
        assert_eq!(rope_of(rope).unwrap().rope_scaling, None);
    }

    #[test]
    fn other_rope_scalings_are_refused_by_name() {
        for kind in ["proportional", "mrope"] {
            let rope = json!({ "rope_scaling": { "rope_type": kind, "factor": 2.0 } });
            assert!(rope_of(rope).unwrap_err().contains(kind));
        }
        for rope in [
            json!({ "rope_scaling": { "factor": 2.0 } }),
            json!({ "rope_scaling": { "type": "linear" } }),
            json!({ "rope_scaling": { "type": "llama3", "factor": 8.0 } }),
            json!({ "rope_scaling": { "type": "yarn" } }),
            json!({ "rope_scaling": { "type": "yarn", "factor": 4.0, "mscale": "1" } }),
            json!({ "rope_scaling": { "type": "longrope", "short_factor": [1.0] } }),
            json!({ "rope_scaling": { "type": 3 } }),
            json!({ "rope_scaling": "linear" }),
            json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }),
            json!({ "rope_scaling": { "rope_type": "default", "llama_4_scaling_beta": 0.1 } }),
            json!({ "rope_theta": "big" }),
        ] {
            assert!(rope_of(rope.clone()).is_err(), "{rope}");
        }
    }
}
