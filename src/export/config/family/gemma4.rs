//! Settings of Gemma 4.

use super::configure::{check_gelu, set, windows};
use crate::export::config::gguf_keys as keys;
use crate::export::config::model::Extras;
use crate::export::config::settings::Settings;
use crate::export::error::ExportError;
use crate::format::excerpt;
use crate::format::model::{Activation, DenseLayers, Experts, FullHeads, Header, MoreFeatures};

/// Layers with a window have other heads than those without one; the rest are features of some models.
pub(super) fn gemma4(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    check_gelu(settings)?;
    refuse_variants(settings, header)?;
    windows(settings, header, |_| true)?;
    if header.features.full_layers.is_empty() || header.sliding_window.is_none() {
        return Err(settings.unsupported("layers of one kind only"));
    }
    let names = match settings.is_gguf() {
        true => [keys::SHARED_KV, keys::LAYER_INPUT_DIM],
        false => ["num_kv_shared_layers", "hidden_size_per_layer_input"],
    };
    let [n_shared_kv, layer_input_dim] = names.map(|name| size_or_0(settings, name));
    let n_shared_kv = n_shared_kv?;
    let logit_cap = settings.fields.number(keys::LOGIT_CAP)?.filter(|cap| *cap != 0.0);
    header.features.more = MoreFeatures {
        full_heads: Some(heads(settings, header)?),
        value_norm: true,
        layer_scales: true,
        parallel_ffn: None,
        is_shared_expert: false,
        has_shared_gate: false,
        has_next: false,
        n_shared_kv,
        layer_input_dim: layer_input_dim?,
        logit_cap: logit_cap.map(|cap| cap as f32),
    };
    wide_layers(settings, header)?;
    mixtures(settings, header)?;
    extras.has_keys_as_values =
        settings.is_gguf() || settings.fields.flag("attention_k_eq_v")? == Some(true);
    let features = &mut header.features;
    if settings.is_gguf() {
        features.local_theta = settings.fields.number(keys::LOCAL_BASE)?;
    }
    features.local_theta = features.local_theta.or(Some(10_000.0));
    features.attention_scale = Some(1.0);
    features.embedding_scale = (header.dim as f64).sqrt() as f32;
    features.activation = Activation::GeluTanh;
    (features.qk_norm, features.post_norms) = (true, true);
    Ok(())
}

/// A number that may be 0 or missing.
fn size_or_0(settings: &Settings<'_>, name: &str) -> Result<usize, ExportError> {
    match settings.fields.number(name)? {
        None | Some(0.0) => Ok(0),
        Some(_) => settings.fields.required_size(name),
    }
}

fn refuse_variants(settings: &Settings<'_>, header: &Header) -> Result<(), ExportError> {
    let fields = settings.fields;
    if fields.number("attn_logit_softcapping")?.is_some_and(|cap| cap != 0.0) {
        return Err(settings.unsupported("attn_logit_softcapping"));
    }
    // Texts without images are causal in models whose images are not.
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    let is_causal = matches!(fields.flag(BOTH_WAYS), Ok(None | Some(false)))
        || matches!(fields.text(BOTH_WAYS), Ok(Some("vision")));
    if !is_causal {
        return Err(settings.unsupported(BOTH_WAYS));
    }
    let of_inputs = fields.size("vocab_size_per_layer_input")?;
    match of_inputs.filter(|n| *n != header.vocab_size) {
        Some(n) => Err(settings.unsupported(&format!("vocab_size_per_layer_input {n}"))),
        None => Ok(()),
    }
}

/// Heads of layers without a window. Those of the others go to `header`.
fn heads(settings: &Settings<'_>, header: &mut Header) -> Result<FullHeads, ExportError> {
    let fields = settings.fields;
    if !settings.is_gguf() {
        let of_full = match fields.flag("attention_k_eq_v")? {
            Some(true) => fields.size("num_global_key_value_heads")?,
            _ => None,
        };
        let head_dim = fields.required_size("global_head_dim")?;
        return Ok(FullHeads { head_dim, n_kv_heads: of_full.unwrap_or(header.n_kv_heads) });
    }
    let mut full = FullHeads { head_dim: header.head_dim, n_kv_heads: header.n_kv_heads };
    header.head_dim = fields.required_size(keys::LOCAL_HEAD_DIM)?;
    for name in [keys::LOCAL_VALUE_DIM, keys::LOCAL_ROTARY_DIM] {
        if let Some(other) = fields.size(name)?.filter(|other| *other != header.head_dim) {
            return Err(settings.unsupported(&format!("{name} {other}")));
        }
    }
    if let Some(list) = settings.layer_labels(keys::KV_HEADS, header.n_layers)? {
        let [own, of_full] = kinds_of(&list, |layer| header.features.full_layers.contains(layer))
            .ok_or_else(|| settings.unsupported(keys::KV_HEADS))?;
        (header.n_kv_heads, full.n_kv_heads) = (own, of_full);
    }
    Ok(full)
}

/// The value of layers for which `is_second` is false, and that of the others, if layers of one kind have one value.
fn kinds_of(list: &[String], is_second: impl Fn(usize) -> bool) -> Option<[usize; 2]> {
    let of = |wanted: bool| {
        let all = list.iter().enumerate().filter(|(layer, _)| is_second(*layer) == wanted);
        let mut all = all.map(|(_, label)| label.parse::<usize>());
        let first = all.next()?.ok()?;
        all.all(|other| other == Ok(first)).then_some(first)
    };
    Some([of(false)?, of(true)?]).filter(|sizes| sizes.iter().all(|n| (1..1 << 31).contains(n)))
}

/// Takes over which layers have a wider feed-forward layer.
fn wide_layers(settings: &Settings<'_>, header: &mut Header) -> Result<(), ExportError> {
    let first_shared = header.n_layers.saturating_sub(header.features.more.n_shared_kv);
    let is_wide = |layer: usize| layer >= first_shared;
    let wide = match settings.is_gguf() {
        true => match settings.layer_labels(keys::FFN, header.n_layers)? {
            // All layers have one width, or only those with shared keys and values another.
            Some(list) if list.iter().any(|label| *label != list[0]) => {
                let widths = kinds_of(&list, is_wide);
                let [width, wide] = widths.ok_or_else(|| settings.unsupported(keys::FFN))?;
                header.ffn_dim = width;
                Some(wide)
            }
            _ => {
                header.ffn_dim = settings.fields.required_size(keys::FFN)?;
                None
            }
        },
        false if settings.fields.flag("use_double_wide_mlp")? == Some(true) => {
            Some(2 * header.ffn_dim).filter(|_| first_shared < header.n_layers)
        }
        false => None,
    };
    if let Some(ffn_dim) = wide {
        let layers = set(settings, first_shared..header.n_layers)?;
        header.features.dense = Some(DenseLayers { layers, ffn_dim });
    }
    Ok(())
}

/// Takes over the mixtures, each beside a feed-forward layer, if there are any.
fn mixtures(settings: &Settings<'_>, header: &mut Header) -> Result<(), ExportError> {
    let fields = settings.fields;
    let [n, n_active, width] = match settings.is_gguf() {
        true => [keys::EXPERTS, keys::ACTIVE_EXPERTS, keys::EXPERT_FFN],
        false => ["num_experts", "top_k_experts", "moe_intermediate_size"],
    };
    let has_mixtures = match settings.is_gguf() {
        true => size_or_0(settings, n)? > 0,
        false => fields.flag("enable_moe_block")? == Some(true),
    };
    if !has_mixtures {
        return Ok(());
    }
    if let Some(gating) = fields.size(keys::GATING)?.filter(|gating| *gating != keys::SOFTMAX) {
        let what = format!("expert_gating_func {}", excerpt(&gating.to_string()));
        return Err(settings.unsupported(&what));
    }
    header.features.more.parallel_ffn = Some(header.ffn_dim);
    header.ffn_dim = fields.required_size(width)?;
    header.features.experts = Some(Experts {
        n: fields.required_size(n)?,
        n_active: fields.required_size(n_active)?,
        is_normalised: true,
        has_biases: false,
        is_sigmoid: false,
    });
    Ok(())
}
