//! The settings of Granite 4.

use super::configure::{granite, set};
use super::recurrent::{mixture_with_shared, recur};
use crate::export::config::gguf_keys as keys;
use crate::export::config::model::Extras;
use crate::export::config::settings::Settings;
use crate::export::error::ExportError;
use crate::format::model::{Header, Mixer, StateSpace};

/// Granite whose layers may be Mamba's, and may be mixtures with a shared expert.
pub(in crate::export::config) fn granite4(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let is_recurrent = recurrent_layers(settings, header.n_layers)?;
    feed_forward(settings, header)?;
    if !is_rotated(settings)? {
        header.features.unrotated_layers = set(settings, 0..header.n_layers)?;
    }
    granite(settings, header, extras)?;
    if !is_recurrent.contains(&true) {
        return Ok(());
    }
    extras.has_log_decay = !settings.is_gguf();
    let space = if settings.is_gguf() { gguf_space(settings)? } else { json_space(settings)? };
    recur(settings, header, &is_recurrent, Mixer::StateSpace(space))
}

fn recurrent_layers(settings: &Settings<'_>, n_layers: usize) -> Result<Vec<bool>, ExportError> {
    let (name, recurrent, other) = match settings.is_gguf() {
        true => (keys::KV_HEADS, "0", None),
        false => ("layer_types", "mamba", Some("attention")),
    };
    let Some(labels) = settings.layer_labels(name, n_layers)? else {
        // Without this list, no layer of a config.json has attention.
        return Ok(vec![!settings.is_gguf(); n_layers]);
    };
    let is_known = |label: &&String| *label == recurrent || other.is_none_or(|o| *label == o);
    match labels.iter().find(|label| !is_known(label)) {
        Some(label) => {
            Err(settings.unsupported(&format!("{name} {}", crate::format::excerpt(label))))
        }
        None => Ok(labels.iter().map(|label| label == recurrent).collect()),
    }
}

/// Takes over a mixture and its shared expert; without experts, that one is the feed-forward layer.
fn feed_forward(settings: &Settings<'_>, header: &mut Header) -> Result<(), ExportError> {
    let fields = settings.fields;
    let [n, shared] = match settings.is_gguf() {
        true => [keys::EXPERTS, keys::SHARED_FFN],
        false => ["num_local_experts", "shared_intermediate_size"],
    };
    let has_experts = fields.number(n)?.is_some_and(|n| n != 0.0);
    if !has_experts {
        if !settings.is_gguf() {
            header.ffn_dim = fields.required_size(shared)?;
        }
        return Ok(());
    }
    mixture_with_shared(settings, header, [n, shared])
}

/// Whether attention has RoPE. GGUF files say so with a setting that means something else in other families.
fn is_rotated(settings: &Settings<'_>) -> Result<bool, ExportError> {
    if settings.is_gguf() {
        return Ok(settings.fields.flag(keys::ROPE_FINETUNED)? != Some(false));
    }
    match settings.fields.text("position_embedding_type")? {
        Some("rope") => Ok(true),
        None | Some("nope") => Ok(false),
        Some(other) => {
            let what = format!("position_embedding_type {}", crate::format::excerpt(other));
            Err(settings.unsupported(&what))
        }
    }
}

fn json_space(settings: &Settings<'_>) -> Result<StateSpace, ExportError> {
    let fields = settings.fields;
    if fields.flag("mamba_proj_bias")? == Some(true) {
        return Err(settings.unsupported("mamba_proj_bias"));
    }
    if fields.flag("mamba_conv_bias")? == Some(false) {
        return Err(settings.unsupported("mamba_conv_bias false"));
    }
    Ok(StateSpace {
        taps: fields.size("mamba_d_conv")?.unwrap_or(4),
        heads: fields.required_size("mamba_n_heads")?,
        groups: fields.size("mamba_n_groups")?.unwrap_or(1),
        head_dim: fields.required_size("mamba_d_head")?,
        state_dim: fields.required_size("mamba_d_state")?,
    })
}

fn gguf_space(settings: &Settings<'_>) -> Result<StateSpace, ExportError> {
    let fields = settings.fields;
    let (heads, inner) =
        (fields.required_size(keys::SSM_HEADS)?, fields.required_size(keys::SSM_INNER)?);
    if !inner.is_multiple_of(heads) {
        return Err(fields.bad(format!("ssm.inner_size is {inner}, with {heads} heads")));
    }
    Ok(StateSpace {
        taps: fields.required_size(keys::SSM_TAPS)?,
        heads,
        groups: fields.required_size(keys::SSM_GROUPS)?,
        head_dim: inner / heads,
        state_dim: fields.required_size(keys::SSM_STATE)?,
    })
}
