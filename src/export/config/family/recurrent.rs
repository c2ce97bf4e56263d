//! The settings of families with recurrent layers.

use super::configure::{active_experts, set};
use crate::export::config::gguf_keys as keys;
use crate::export::config::model::Extras;
use crate::export::config::settings::Settings;
use crate::export::error::ExportError;
use crate::format::model::{DeltaRule, Experts, Header, Mixer, RecurrentLayers};

pub(super) fn lfm2(
    settings: &Settings<'_>,
    header: &mut Header,
    _: &mut Extras,
) -> Result<(), ExportError> {
    let fields = settings.fields;
    if fields.flag("conv_bias")? == Some(true) {
        return Err(settings.unsupported("conv_bias"));
    }
    if fields.flag("block_auto_adjust_ff_dim")? == Some(true) {
        header.ffn_dim = adjusted_ffn_dim(settings, header.ffn_dim)?;
    }
    let taps = match settings.is_gguf() {
        true => fields.required_size(keys::SHORT_TAPS)?,
        false => fields.size("conv_L_cache")?.unwrap_or(3),
    };
    let is_recurrent: Vec<bool> = match settings.is_gguf() {
        true => match settings.layer_labels(keys::KV_HEADS, header.n_layers)? {
            Some(labels) => labels.iter().map(|n| n == "0").collect(),
            None => vec![false; header.n_layers],
        },
        false => lfm2_layers(settings, header.n_layers)?,
    };
    header.features.qk_norm = true;
    recur(settings, header, &is_recurrent, Mixer::ShortConv { taps })
}

/// LFM2 whose layers, but the first ones, are mixtures.
pub(super) fn lfm2_moe(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    lfm2(settings, header, extras)?;
    let fields = settings.fields;
    let [n, width, n_dense, normalises] = match settings.is_gguf() {
        true => [keys::EXPERTS, keys::EXPERT_FFN, keys::LEADING_DENSE, "expert_weights_norm"],
        false => ["num_experts", "moe_intermediate_size", "num_dense_layers", "norm_topk_prob"],
    };
    if fields.flag("use_expert_bias")? == Some(false) {
        return Err(settings.unsupported("use_expert_bias false"));
    }
    for name in ["routed_scaling_factor", "expert_weights_scale"] {
        if let Some(factor) = fields.number(name)?.filter(|factor| ![0.0, 1.0].contains(factor)) {
            return Err(settings.unsupported(&format!("{name} {factor}")));
        }
    }
    let n_dense = fields.number(n_dense)?.unwrap_or(0.0) as usize;
    let dense: Vec<usize> = (0..n_dense.min(header.n_layers)).collect();
    let dense_ffn_dim = std::mem::replace(&mut header.ffn_dim, fields.required_size(width)?);
    header.features.experts = Some(Experts {
        n: fields.required_size(n)?,
        n_active: active_experts(settings, keys::SIGMOID)?,
        is_normalised: fields.flag(normalises)?.unwrap_or(true),
        has_biases: false,
        is_sigmoid: true,
    });
    header.set_dense(&dense, dense_ffn_dim).map_err(|what| settings.unsupported(&what))
}

/// Which layers of LFM2 are convolutions.
fn lfm2_layers(settings: &Settings<'_>, n_layers: usize) -> Result<Vec<bool>, ExportError> {
    if let Some(is_recurrent) = of_types(settings, n_layers, "conv")? {
        return Ok(is_recurrent);
    }
    let full = settings.fields.labels("full_attn_idxs")?;
    let full = full.ok_or_else(|| settings.fields.missing("layer_types"))?;
    Ok((0..n_layers).map(|layer| !full.contains(&layer.to_string())).collect())
}

/// The FFN width that LFM2 computes from the configured one.
fn adjusted_ffn_dim(settings: &Settings<'_>, ffn_dim: usize) -> Result<usize, ExportError> {
    let fields = settings.fields;
    let factor = fields.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let step = fields.size("block_multiple_of")?.unwrap_or(256);
    let width = ((2 * ffn_dim / 3) as f64 * factor) as usize;
    match width.checked_next_multiple_of(step).filter(|width| (1..1 << 31).contains(width)) {
        Some(width) => Ok(width),
        None => Err(fields.bad(format!("block_ffn_dim_multiplier is {factor}"))),
    }
}

pub(super) fn qwen35(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let fields = settings.fields;
    if fields.flag("attn_output_gate")? == Some(false) {
        return Err(settings.unsupported("attn_output_gate false"));
    }
    if settings.is_gguf() {
        // The block that guesses the token after the next counts as a layer there.
        let n = fields.number(keys::NEXT_LAYERS)?.unwrap_or(0.0) as usize;
        if n >= header.n_layers {
            let n_layers = header.n_layers;
            let what =
                format!("nextn_predict_layers is {n}, wanted fewer than the {n_layers} layers");
            return Err(fields.bad(what));
        }
        header.n_layers -= n;
        header.features.more.has_next = n == 1;
    } else {
        let has_own_ends = fields.flag("mtp_use_dedicated_embeddings")? == Some(true);
        let n = fields.number("mtp_num_hidden_layers")?.unwrap_or(1.0);
        header.features.more.has_next = n == 1.0 && !has_own_ends;
    }
    let interval = fields.size(keys::FULL_INTERVAL)?.unwrap_or(4);
    let usual = || (1..=header.n_layers).map(|layer| !layer.is_multiple_of(interval)).collect();
    let is_recurrent = match settings.is_gguf() {
        true => fields.labels(keys::RECURRENT_LAYERS)?.map(|labels| {
            labels.iter().take(header.n_layers).map(|label| label == "true").collect()
        }),
        false => of_types(settings, header.n_layers, "linear_attention")?,
    };
    let is_recurrent: Vec<bool> = is_recurrent.unwrap_or_else(usual);
    let rule = if settings.is_gguf() { gguf_rule(settings)? } else { json_rule(settings)? };
    // GGUF files store 1 + w.
    extras.norm_plus = if settings.is_gguf() { 0.0 } else { 1.0 };
    extras.has_log_decay = !settings.is_gguf();
    (header.features.qk_norm, header.features.output_gate) = (true, true);
    recur(settings, header, &is_recurrent, Mixer::DeltaRule(rule))
}

/// Qwen3.5 whose layers are mixtures with a shared expert.
pub(super) fn qwen35_moe(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    qwen35(settings, header, extras)?;
    let fields = settings.fields;
    let [n, width, shared] = match settings.is_gguf() {
        true => [keys::EXPERTS, keys::EXPERT_FFN, keys::SHARED_FFN],
        false => ["num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"],
    };
    if fields.labels("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
        return Err(settings.unsupported("mlp_only_layers"));
    }
    header.ffn_dim = fields.required_size(width)?;
    mixture_with_shared(settings, header, [n, shared])?;
    header.features.more.has_shared_gate = true;
    Ok(())
}

/// Takes over a mixture with a shared expert. `n` and `shared` name the number of experts and the shared one's width.
pub(super) fn mixture_with_shared(
    settings: &Settings<'_>,
    header: &mut Header,
    [n, shared]: [&str; 2],
) -> Result<(), ExportError> {
    let fields = settings.fields;
    header.features.experts = Some(Experts {
        n: fields.required_size(n)?,
        n_active: active_experts(settings, keys::SOFTMAX)?,
        is_normalised: true,
        has_biases: false,
        is_sigmoid: false,
    });
    header.features.more.parallel_ffn = Some(fields.required_size(shared)?);
    header.features.more.is_shared_expert = true;
    Ok(())
}

fn json_rule(settings: &Settings<'_>) -> Result<DeltaRule, ExportError> {
    let size = |name, usual| Ok(settings.fields.size(name)?.unwrap_or(usual));
    Ok(DeltaRule {
        taps: size("linear_conv_kernel_dim", 4)?,
        key_heads: size("linear_num_key_heads", 16)?,
        value_heads: size("linear_num_value_heads", 32)?,
        key_dim: size("linear_key_head_dim", 128)?,
        value_dim: size("linear_value_head_dim", 128)?,
        is_tiled: false,
    })
}

fn gguf_rule(settings: &Settings<'_>) -> Result<DeltaRule, ExportError> {
    let fields = settings.fields;
    let value_heads = fields.required_size(keys::SSM_HEADS)?;
    let inner = fields.required_size(keys::SSM_INNER)?;
    if !inner.is_multiple_of(value_heads) {
        return Err(fields.bad(format!("ssm.inner_size is {inner}, with {value_heads} heads")));
    }
    Ok(DeltaRule {
        taps: fields.required_size(keys::SSM_TAPS)?,
        key_heads: fields.required_size(keys::SSM_GROUPS)?,
        value_heads,
        key_dim: fields.required_size(keys::SSM_STATE)?,
        value_dim: inner / value_heads,
        is_tiled: true,
    })
}

/// Which layers `layer_types` calls `recurrent`; the others must have full attention. `None` without the setting.
fn of_types(
    settings: &Settings<'_>,
    n_layers: usize,
    recurrent: &str,
) -> Result<Option<Vec<bool>>, ExportError> {
    const NAME: &str = "layer_types";
    let Some(types) = settings.layer_labels(NAME, n_layers)? else { return Ok(None) };
    let is_known = |label: &&String| *label == recurrent || *label == "full_attention";
    match types.iter().find(|label| !is_known(label)) {
        Some(other) => {
            Err(settings.unsupported(&format!("{NAME} {}", crate::format::excerpt(other))))
        }
        None => Ok(Some(types.iter().map(|label| label == recurrent).collect())),
    }
}

/// Takes over which layers are recurrent. A model without any is an ordinary one.
pub(super) fn recur(
    settings: &Settings<'_>,
    header: &mut Header,
    is_recurrent: &[bool],
    mixer: Mixer,
) -> Result<(), ExportError> {
    let recurrent = is_recurrent.iter().enumerate().filter(|(_, is)| **is);
    let layers = set(settings, recurrent.map(|(layer, _)| layer))?;
    let has_any = !layers.is_empty();
    header.features.recurrent = has_any.then_some(RecurrentLayers { layers, mixer });
    Ok(())
}
