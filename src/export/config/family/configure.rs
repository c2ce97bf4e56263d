//! The settings that each family takes from its configurations.

use crate::export::config::gguf_keys as keys;
use crate::export::config::model::Extras;
use crate::export::config::settings::Settings;
use crate::export::error::ExportError;
use crate::format::model::{
    Activation, Experts, Header, LAYER_SET_MAX, LayerSet, RopeScaling, Temperature,
};

pub(super) fn llama(
    settings: &Settings<'_>,
    _: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    if settings.window()?.is_some() {
        extras.notes.push("sliding_window is ignored: Llama has none".to_owned());
    }
    Ok(())
}

/// `bias` is what Llama calls attention_bias.
pub(super) fn internlm(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    let has_biases = settings.fields.flag("bias")? == Some(true);
    (header.features.qkv_bias, header.features.output_bias) = (has_biases, has_biases);
    Ok(())
}

pub(super) fn mistral(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    header.sliding_window = settings.window()?;
    Ok(())
}

pub(super) fn qwen2(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    header.features.qkv_bias = true;
    qwen_window(settings, header)
}

pub(super) fn qwen3(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    header.features.qk_norm = true;
    qwen_window(settings, header)
}

/// The window counts only if `use_sliding_window` is true, in the layers from `max_window_layers` on.
fn qwen_window(settings: &Settings<'_>, header: &mut Header) -> Result<(), ExportError> {
    if settings.fields.flag("use_sliding_window")? != Some(true) {
        return Ok(());
    }
    let first = settings.fields.size("max_window_layers")?.unwrap_or(0);
    windows(settings, header, |layer| layer >= first)
}

pub(super) fn qwen3_moe(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    qwen3(settings, header, extras)?;
    let fields = settings.fields;
    let dense = match settings.is_gguf() {
        // The tensors of the file show which layers are dense.
        true => Vec::new(),
        false => dense_layers(settings, header.n_layers)?,
    };
    let dense_ffn_dim = header.ffn_dim;
    let [n, width, normalises] = match settings.is_gguf() {
        true => [keys::EXPERTS, keys::EXPERT_FFN, "expert_weights_norm"],
        false => ["num_experts", "moe_intermediate_size", "norm_topk_prob"],
    };
    // Name of the setting from version 5 of transformers on.
    let n =
        if fields.number(n)?.is_none() && !settings.is_gguf() { "num_local_experts" } else { n };
    if fields.number(n)? == Some(0.0) {
        return Ok(());
    }
    header.ffn_dim = fields.required_size(width)?;
    header.features.experts = Some(Experts {
        n: fields.required_size(n)?,
        n_active: active_experts(settings, keys::SOFTMAX)?,
        is_normalised: settings.fields.flag(normalises)?.unwrap_or(settings.is_gguf()),
        has_biases: false,
        is_sigmoid: false,
    });
    header.set_dense(&dense, dense_ffn_dim).map_err(|what| settings.unsupported(&what))
}

/// The layers that are no mixtures: those in `mlp_only_layers`, and all but every `decoder_sparse_step`th.
fn dense_layers(settings: &Settings<'_>, n_layers: usize) -> Result<Vec<usize>, ExportError> {
    let fields = settings.fields;
    let listed = fields.labels("mlp_only_layers")?.unwrap_or_default();
    let step = fields.size("decoder_sparse_step")?.unwrap_or(1);
    if listed.is_empty() && step == 1 {
        return Ok(Vec::new());
    }
    if n_layers > LAYER_SET_MAX {
        return Err(settings.unsupported("layers that differ beyond the 256th"));
    }
    let is_dense = |layer: &usize| {
        let is_listed = listed.iter().any(|label| *label == layer.to_string());
        is_listed || !(layer + 1).is_multiple_of(step)
    };
    Ok((0..n_layers).filter(is_dense).collect())
}

/// Experts that a token uses. In a GGUF file, `expert_gating_func` has to be `gating` if it is there.
pub(super) fn active_experts(settings: &Settings<'_>, gating: usize) -> Result<usize, ExportError> {
    let fields = settings.fields;
    match fields.size(keys::GATING)?.filter(|found| *found != gating) {
        Some(found) => Err(fields.unsupported(format!("{} {found}", keys::GATING))),
        None if settings.is_gguf() => fields.required_size(keys::ACTIVE_EXPERTS),
        None => match fields.size("num_experts_per_tok")? {
            Some(n_active) => Ok(n_active),
            None => fields.required_size("experts_per_token"),
        },
    }
}

/// The layers that do not rotate are those with a 0 in `no_rope_layers`, or every fourth.
pub(super) fn smollm3(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    let interval = settings.fields.size("no_rope_layer_interval")?.unwrap_or(4);
    let listed = settings.layer_labels("no_rope_layers", header.n_layers)?;
    let is_unrotated = |layer: &usize| match &listed {
        Some(listed) => listed[*layer] == "0",
        None => (layer + 1).is_multiple_of(interval),
    };
    header.features.unrotated_layers = set(settings, (0..header.n_layers).filter(is_unrotated))?;
    match settings.fields.flag("use_sliding_window")? {
        Some(true) => windows(settings, header, |layer| is_unrotated(&layer)),
        _ => Ok(()),
    }
}

/// Scales of embedding, attention, residual stream and logits in GGUF files.
pub(in crate::export::config) const GRANITE_SCALES: [&str; 4] =
    ["embedding_scale", "attention.scale", "residual_scale", "logit_scale"];

pub(super) fn granite(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let names = match settings.is_gguf() {
        true => GRANITE_SCALES,
        false => [
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
        ],
    };
    let mut values = [1.0; 4];
    for (value, name) in values.iter_mut().zip(names) {
        let found = settings.fields.number(name)?;
        // Converters write 0 where a model has none.
        *value = found.filter(|found| !settings.is_gguf() || *found != 0.0).unwrap_or(1.0) as f32;
        if !(value.is_finite() && *value > 0.0) {
            return Err(settings.fields.bad(format!("{name} is {value}, wanted a number above 0")));
        }
    }
    let features = &mut header.features;
    let [embedding, attention, residual, logits] = values;
    (features.embedding_scale, features.residual_scale) = (embedding, residual);
    let is_said =
        !settings.is_gguf() || settings.fields.number(names[1])?.is_some_and(|x| x != 0.0);
    features.attention_scale = is_said.then_some(attention);
    extras.logits_divisor = logits;
    Ok(())
}

/// Setting of GGUF files with the growth of queries.
pub(in crate::export::config) const TEMPERATURE: &str = "attention.temperature_scale";

/// Mistral whose queries grow with their position. A config.json says so with RoPE's parameters.
pub(super) fn ministral3(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    mistral(settings, header, extras)?;
    let slope = settings.fields.number(TEMPERATURE)?;
    if let Some(slope) = slope.filter(|slope| settings.is_gguf() && *slope != 0.0) {
        let original_ctx = match header.rope_scaling {
            Some(RopeScaling::Yarn { original_ctx, .. }) => original_ctx as usize,
            _ => return Err(settings.unsupported("attention.temperature_scale without YaRN")),
        };
        header.features.temperature = Some(Temperature { slope: slope as f32, original_ctx });
    }
    Ok(())
}

pub(super) fn gemma3(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let fields = settings.fields;
    check_gelu(settings)?;
    for name in ["attn_logit_softcapping", keys::LOGIT_CAP] {
        if fields.number(name)?.is_some_and(|cap| cap != 0.0) {
            return Err(settings.unsupported(name));
        }
    }
    // GGUF files of EmbeddingGemma say so by their family alone.
    let is_both_ways = settings.fields.flag("use_bidirectional_attention")? == Some(true);
    extras.embedder.is_bidirectional |= is_both_ways;
    periodic_windows(settings, header, 6)?;
    if extras.embedder.is_bidirectional {
        // The window is that of both sides.
        header.sliding_window = header.sliding_window.map(|both| both / 2 + 1);
    }
    // GGUF files lack this number. It differs from the usual one only in the model of 62 layers.
    let is_27b = settings.is_gguf() && header.n_layers == 62;
    let scalar = match fields.number("query_pre_attn_scalar")? {
        Some(scalar) => scalar,
        None if is_27b => header.dim as f64 / header.n_heads as f64,
        None if settings.is_gguf() => header.head_dim as f64,
        None => 256.0,
    };
    let local = match fields.number("rope_local_base_freq")? {
        Some(local) => Some(local),
        None => fields.number(keys::LOCAL_BASE)?,
    };
    // GGUF files store 1 + w.
    extras.norm_plus = if settings.is_gguf() { 0.0 } else { 1.0 };
    let features = &mut header.features;
    features.local_theta = local.or(features.local_theta).or(Some(10_000.0));
    features.attention_scale = Some(scalar.powf(-0.5) as f32);
    features.embedding_scale = (header.dim as f64).sqrt() as f32;
    features.activation = Activation::GeluTanh;
    (features.qk_norm, features.post_norms) = (true, true);
    Ok(())
}

/// EmbeddingGemma in a GGUF file: Gemma 3 whose tokens attend to later ones, too.
pub(super) fn gemma_embedding(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    extras.embedder.is_bidirectional = true;
    gemma3(settings, header, extras)
}

/// Refuses other activations than Gemma's.
pub(super) fn check_gelu(settings: &Settings<'_>) -> Result<(), ExportError> {
    const GELU: &str = "gelu_pytorch_tanh";
    for name in ["hidden_activation", "hidden_act"] {
        if settings.fields.text(name)?.is_some_and(|activation| activation != GELU) {
            return Err(settings.unsupported(&format!("{name}, wanted {GELU}")));
        }
    }
    Ok(())
}

pub(super) fn phi3(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    header.sliding_window = settings.window()?;
    Ok(())
}

pub(super) fn gpt_oss(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    let fields = settings.fields;
    if settings.fields.flag("attention_bias")? == Some(false) {
        return Err(settings.unsupported("attention_bias false"));
    }
    periodic_windows(settings, header, 2)?;
    let limit = fields.number("swiglu_limit")?.unwrap_or(7.0) as f32;
    let n_active = active_experts(settings, 3)?;
    let mut n = "num_local_experts";
    if settings.is_gguf() {
        n = keys::EXPERTS;
        header.ffn_dim = fields.required_size(keys::EXPERT_FFN)?;
        // GGUF files do not have the setting, which is false in this family.
        if let Some(RopeScaling::Yarn { is_truncated, .. }) = &mut header.rope_scaling {
            *is_truncated = false;
        }
    }
    let features = &mut header.features;
    (features.qkv_bias, features.output_bias, features.sinks) = (true, true, true);
    features.activation = Activation::ClampedSilu { limit };
    features.experts = Some(Experts {
        n: fields.required_size(n)?,
        n_active,
        is_normalised: true,
        has_biases: true,
        is_sigmoid: false,
    });
    Ok(())
}

/// Takes over [`windows`] of which every n-th layer has none; n is `usual` unless a setting says otherwise.
fn periodic_windows(
    settings: &Settings<'_>,
    header: &mut Header,
    usual: usize,
) -> Result<(), ExportError> {
    let mut period = usual;
    let is_listed = settings.fields.labels(WINDOW_PATTERN)?.is_some();
    for name in ["_sliding_window_pattern", "sliding_window_pattern", WINDOW_PATTERN] {
        if !is_listed {
            period = settings.fields.size(name)?.unwrap_or(period);
        }
    }
    windows(settings, header, |layer| !(layer + 1).is_multiple_of(period))
}

/// Setting with a period, or with a flag for each layer.
pub(in crate::export::config) const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";

/// Takes over the window and the layers that have one: those that are listed, or else a rule.
pub(super) fn windows(
    settings: &Settings<'_>,
    header: &mut Header,
    is_windowed: impl Fn(usize) -> bool,
) -> Result<(), ExportError> {
    header.sliding_window = settings.window()?;
    if header.sliding_window.is_none() {
        return Ok(());
    }
    let (name, known) = match settings.is_gguf() {
        true => (WINDOW_PATTERN, ["true", "false"]),
        false => ("layer_types", ["sliding_attention", "full_attention"]),
    };
    let types = settings.layer_labels(name, header.n_layers)?;
    let other = types.iter().flatten().find(|label| !known.contains(&label.as_str()));
    if let Some(other) = other {
        return Err(settings.unsupported(&format!("{name} {}", crate::format::excerpt(other))));
    }
    let is_full = |layer: &usize| match &types {
        Some(types) => types[*layer] == known[1],
        None => !is_windowed(*layer),
    };
    header.features.full_layers = set(settings, (0..header.n_layers).filter(is_full))?;
    Ok(())
}

pub(super) fn set(
    settings: &Settings<'_>,
    layers: impl Iterator<Item = usize>,
) -> Result<LayerSet, ExportError> {
    LayerSet::new(layers).ok_or_else(|| settings.unsupported("layers that differ beyond the 256th"))
}
