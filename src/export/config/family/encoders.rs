//! Encoders like BERT, which compute embeddings.

use crate::export::config::model::Extras;
use crate::export::config::settings::Settings;
use crate::export::error::ExportError;
use crate::format::excerpt;
use crate::format::model::{Activation, Encoder, Header};

/// Names that nomic's configurations have for what others have.
pub(super) const NOMIC_NAMES: &[(&str, &str)] = &[
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "max_trained_positions"),
    ("layer_norm_eps", "layer_norm_epsilon"),
];

/// BERT: learned positions, biases everywhere, and a feed-forward layer without a gate.
pub(super) fn bert(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let fields = settings.fields;
    expect(settings, "hidden_act", &["gelu"])?;
    expect(settings, "position_embedding_type", &["absolute"])?;
    for name in ["is_decoder", "add_cross_attention"] {
        if fields.flag(name)? == Some(true) {
            return Err(settings.unsupported(name));
        }
    }
    let features = &mut header.features;
    (features.qkv_bias, features.output_bias, features.ffn_bias) = (true, true, true);
    features.activation = Activation::GeluErf;
    features.unrotated_layers = super::configure::set(settings, 0..header.n_layers)?;
    extras.embedder.encoder = Some(Encoder { n_positions: header.max_seq_len, is_gated: false });
    extras.embedder.is_bidirectional = true;
    Ok(())
}

/// nomic's BERT: RoPE, SwiGLU, no biases.
pub(super) fn nomic(
    settings: &Settings<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let fields = settings.fields;
    expect(settings, "activation_function", &["swiglu"])?;
    for name in [
        "prenorm",
        "qkv_proj_bias",
        "mlp_fc1_bias",
        "mlp_fc2_bias",
        "rotary_emb_interleaved",
        "causal",
    ] {
        if fields.flag(name)? == Some(true) {
            return Err(settings.unsupported(name));
        }
    }
    for (name, wanted) in
        [("rotary_emb_fraction", 1.0), ("num_experts", 0.0), ("moe_every_n_layers", 0.0)]
    {
        if fields.number(name)?.is_some_and(|found| found != wanted) {
            return Err(settings.unsupported(name));
        }
    }
    if fields.flag("use_rms_norm")? == Some(true) || fields.flag("parallel_block")? == Some(true) {
        return Err(settings.unsupported("use_rms_norm or parallel_block"));
    }
    if let Some(base) = fields.number("rotary_emb_base")? {
        header.rope_theta = base;
    }
    extras.embedder.encoder = Some(Encoder { n_positions: 0, is_gated: true });
    extras.embedder.is_bidirectional = true;
    Ok(())
}

fn expect(settings: &Settings<'_>, name: &str, wanted: &[&str]) -> Result<(), ExportError> {
    match settings.fields.text(name)? {
        Some(found) if !wanted.contains(&found) => {
            Err(settings.unsupported(&format!("{name} {}", excerpt(found))))
        }
        _ => Ok(()),
    }
}
