//! `config.json` and `generation_config.json` of Hugging Face checkpoints.
//!
//! A missing field means what the `transformers` library takes it to mean.

use std::path::Path;

mod quantised;
mod rope;
mod sentence;

use super::family::Family;
use super::json_fields::{JsonFields, VALUES_MAX};
use super::model::{Config, Extras};
use super::settings::{ConfigKind, Fields, Settings};
use crate::export::error::ExportError;
use crate::export::json;
use crate::format::excerpt;
use crate::format::model::Header;

/// Context length if the file does not say it.
const CTX: usize = 2048;

/// Reads `config.json`, and `generation_config.json` if there is one.
pub(in crate::export) fn read(dir: &Path) -> Result<Config, ExportError> {
    let path = dir.join("config.json");
    let json = json::read(&path, VALUES_MAX)?;
    let outer = JsonFields::new(&path, &json)?;
    let is_wrapped = outer.text("model_type")?.is_some_and(Family::is_wrapper);
    let mut extras = Extras { is_wrapped, ..Extras::default() };
    let fields = match is_wrapped {
        true => outer.object("text_config")?.ok_or_else(|| outer.missing("text_config"))?,
        false => outer,
    };
    let family = family(&fields)?;
    let fields = fields.with_defaults(family.defaults).with_aliases(family.aliases);
    refuse_variants(&fields, family)?;
    for fields in [&fields, &outer] {
        extras.has_scales |= quantised::read(fields, family)?;
    }
    let settings = Settings::new(ConfigKind::HuggingFace, &fields);
    let dims = settings.dims()?;
    // LFM2 has other names for some settings.
    let ffn_dim = match fields.size("block_ff_dim")? {
        Some(ffn_dim) => ffn_dim,
        None => match fields.size("moe_intermediate_size")? {
            // Mixtures need no other.
            Some(ffn_dim) if fields.get("intermediate_size").is_none() => ffn_dim,
            _ => fields.required_size("intermediate_size")?,
        },
    };
    let mut header = dims.header(ffn_dim, fields.required_size("vocab_size")?);
    header.max_seq_len = settings.ctx((CTX, &mut extras.notes))?;
    header.norm_eps = norm_eps(&fields, family)?;
    rope::read(&fields, family, &mut header, &mut extras)?;
    family.configure(&settings, &mut header, &mut extras)?;
    read_biases(&fields, &mut header, &mut extras)?;
    sentence::read(dir, &mut header, &mut extras)?;
    let is_tied = fields.flag("tie_word_embeddings")?.or(fields.flag("tie_embedding")?);
    read_ids(&fields, &mut header)?;
    read_ids(&outer, &mut header)?;
    let generation = dir.join("generation_config.json");
    let generation = generation.exists().then_some(generation);
    if let Some(path) = &generation {
        let json = json::read(path, VALUES_MAX)?;
        read_ids(&JsonFields::new(path, &json)?, &mut header)?;
    }
    let files = [Some(path.clone()), generation].into_iter().flatten().collect();
    Ok(Config { header, is_tied, path, files, extras })
}

/// Epsilon of norms; BERT's have another name and another value if it is missing.
fn norm_eps(fields: &JsonFields<'_>, family: &Family) -> Result<f32, ExportError> {
    let mut found = None;
    for name in ["rms_norm_eps", "norm_eps", "layer_norm_eps"] {
        found = found.or(fields.number(name)?);
    }
    Ok(found.unwrap_or(if family.is_encoder() { 1e-12 } else { 1e-6 }) as f32)
}

/// Finds the family. An unknown one is refused by its name.
fn family(fields: &JsonFields<'_>) -> Result<&'static Family, ExportError> {
    let unknown = |what: &str, name: &str| {
        let (name, known) = (excerpt(name), Family::names(false));
        fields.unsupported(format!("{what} {name}; LEAP runs {known}"))
    };
    let mut named = None;
    for class in fields.texts("architectures")? {
        let family = Family::of_class(class).ok_or_else(|| unknown("architecture", class))?;
        named = named.or(Some(family));
    }
    match fields.text("model_type")? {
        Some(name) => Family::of_type(name).ok_or_else(|| unknown("model type", name)),
        None => named.ok_or_else(|| fields.missing("model_type")),
    }
}

/// Refuses what LEAP does not compute in models of this family.
fn refuse_variants(fields: &JsonFields<'_>, family: &Family) -> Result<(), ExportError> {
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => {}
        Some(_) if family.allows("hidden_act") => {}
        Some(other) => return Err(fields.unsupported(format!("hidden_act {}", excerpt(other)))),
    }
    for name in ["num_local_experts", "num_experts", "n_routed_experts"] {
        let is_none = fields.get(name).is_some_and(|n| n.as_u64() == Some(0));
        if fields.get(name).is_some() && !is_none && !family.allows(name) {
            return Err(fields.unsupported(format!("{name}: a mixture of experts")));
        }
    }
    Ok(())
}

/// Takes over whether layers have biases, in families that leave it to the configuration.
fn read_biases(
    fields: &JsonFields<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let of_attention = fields.flag("attention_bias")? == Some(true);
    let features = &mut header.features;
    features.ffn_bias |= fields.flag("mlp_bias")? == Some(true);
    // Families that always have some of these biases have set them already.
    if !features.qkv_bias {
        (features.qkv_bias, features.output_bias) = (of_attention, of_attention);
        extras.has_optional_biases = true;
    }
    Ok(())
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
    Ok(())
}
