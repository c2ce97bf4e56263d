//! The fields of the GGUF file that a model becomes: those that [`super::gguf`] reads.

mod embedding;
mod layers;
mod limits;

use super::family::{Family, GRANITE_SCALES, TEMPERATURE, WINDOW_PATTERN, YARN_LOG_MULTIPLIER};
use super::field_writer::FieldWriter;
use super::gguf::{self, rope};
use super::gguf_keys as keys;
use super::model::Extras;
use super::settings::{CTX, DIM, HEAD_DIM, HEADS, Key, LAYERS, WINDOW};
use crate::export::checkpoint::Checkpoint;
use crate::export::error::ExportError;
use crate::export::gguf::GgufHead;
use crate::format::model::{
    Architecture, DeltaRule, Features, Header, Mixer, RecurrentLayers, RopeScaling,
};

/// Adds the fields of a model of `header` to `head`.
///
/// # Errors
/// Says what of the model GGUF files cannot say.
pub(in crate::export) fn write(
    header: &Header,
    extras: &Extras,
    head: &mut GgufHead,
) -> Result<(), String> {
    let features = &header.features;
    let family = Family::written(header)
        .ok_or_else(|| format!("a GGUF file of {}", Family::name_of(header)))?;
    limits::check(header, family)?;
    head.text("general.architecture", family.in_gguf());
    head.text("general.type", "model");
    let fields = &mut FieldWriter::new(family.in_gguf(), head);
    write_sizes(header, fields);
    let eps = if family.is_encoder() { keys::LAYER_NORM_EPS } else { keys::NORM_EPS };
    fields.float(eps, header.norm_eps);
    rope::write(header, fields);
    if let Some(window) = header.sliding_window {
        // A window to both sides counts the positions of both, and not its own.
        let window = if header.is_bidirectional() { 2 * (window - 1) } else { window };
        fields.number(name(WINDOW), window);
        write_pattern(header, fields);
    }
    if let Some(temperature) = features.temperature {
        fields.float(TEMPERATURE, temperature.slope);
        // The family's YaRN does not grow.
        fields.float(YARN_LOG_MULTIPLIER, 1.0);
    }
    if matches!(header.architecture, Architecture::Granite | Architecture::Granite4) {
        let attention = features.attention_scale.unwrap_or(0.0);
        let scales =
            [features.embedding_scale, attention, features.residual_scale, extras.logits_divisor];
        let named = GRANITE_SCALES.into_iter().zip(scales);
        named.for_each(|(name, scale)| fields.float(name, scale));
    }
    layers::write_experts(header, fields);
    layers::write_recurrent(header, fields);
    layers::write_next(header, fields);
    layers::write_two_kinds(header, fields);
    embedding::write(header, fields);
    Ok(())
}

/// A setting's name in GGUF files.
fn name(of: Key) -> &'static str {
    of[2]
}

/// Adds the sizes that all families have.
fn write_sizes(header: &Header, fields: &mut FieldWriter<'_>) {
    // Where heads differ, those of layers without a window count, all of whose values may be rotated.
    let (head_dim, rotary_dim) = match header.features.more.full_heads {
        Some(full) => (full.head_dim, full.head_dim),
        None => (header.head_dim, header.rotary_dim()),
    };
    let sizes = [
        (name(LAYERS), header.n_layers_and_next()),
        (name(CTX), embedding::ctx(header)),
        (name(DIM), header.dim),
        (name(HEADS), header.n_heads),
        (name(HEAD_DIM), head_dim),
        (keys::VALUE_DIM, head_dim),
        (keys::ROTARY_DIM, rotary_dim),
        ("vocab_size", header.vocab_size),
    ];
    sizes.into_iter().for_each(|(name, size)| fields.number(name, size));
    fields.sizes(keys::FFN, &layers::ffn_dims(header));
    fields.sizes(keys::KV_HEADS, &layers::kv_heads(header));
}

/// Adds which layers have a window, if that is not the family's usual rule: some layers at equal distances have none.
fn write_pattern(header: &Header, fields: &mut FieldWriter<'_>) {
    let is_windowed = |layer: usize| !header.features.full_layers.contains(layer);
    let flags: Vec<bool> = (0..header.n_layers).map(is_windowed).collect();
    let usual = match header.architecture {
        Architecture::Gemma3 => 6,
        Architecture::GptOss => 2,
        Architecture::Gemma4 => return fields.flags(WINDOW_PATTERN, &flags),
        _ => return,
    };
    let has_period =
        |n: &usize| flags.iter().enumerate().all(|(i, is)| *is != (i + 1).is_multiple_of(*n));
    if has_period(&usual) {
        return;
    }
    match (1..=header.n_layers).find(has_period) {
        Some(period) => fields.number(WINDOW_PATTERN, period),
        None => fields.flags(WINDOW_PATTERN, &flags),
    }
}

/// Checks that the fields and the tensors' table of `checkpoint`, a GGUF file, say all of a model.
///
/// # Errors
/// Names what they do not say.
pub(in crate::export) fn check(
    checkpoint: &Checkpoint,
    (header, extras): (&Header, &Extras),
) -> Result<(), String> {
    let read = gguf::read(checkpoint).map_err(|error: ExportError| error.to_string())?;
    let there = &read.header;
    let sizes = |of: &Header| {
        let heads = (of.n_heads, of.n_kv_heads, of.head_dim);
        let ctx = embedding::ctx(of);
        (heads, of.dim, of.ffn_dim, of.n_layers, of.vocab_size, ctx, of.norm_eps)
    };
    let windows = |of: &Header| (of.sliding_window, of.features.full_layers);
    let others = |of: &Header| {
        let local_theta = of.features.local_theta.map(|theta| f64::from(theta as f32));
        // Compared above.
        let (rope_magnitude, full_layers) = (1.0, Default::default());
        let recurrent = of.features.recurrent.map(as_written);
        let embedding = of.embedding().map(embedding::as_written);
        Features {
            local_theta,
            rope_magnitude,
            full_layers,
            recurrent,
            embedding,
            ..of.features.clone()
        }
    };
    let differs = [
        ("sizes", sizes(there) != sizes(header)),
        ("layers with a sliding window", windows(there) != windows(header)),
        ("RoPE", !is_same_rope(there, header)),
        (
            "layers without RoPE",
            there.features.unrotated_layers != header.features.unrotated_layers,
        ),
        (
            "attention scale",
            there.features.attention_scale != header.features.attention_scale
                || read.extras.logits_divisor != extras.logits_divisor,
        ),
        ("features", others(there) != others(header)),
    ];
    match differs.into_iter().find(|(_, is)| *is) {
        Some((what, _)) => {
            let name = Family::name_of(header);
            Err(format!("a GGUF file of {name} with these {what}: it cannot say them"))
        }
        None => Ok(()),
    }
}

/// The recurrent layers as a GGUF file has them, whose value heads have an order of their own.
fn as_written(of: RecurrentLayers) -> RecurrentLayers {
    let mixer = match of.mixer {
        Mixer::DeltaRule(rule) => Mixer::DeltaRule(DeltaRule { is_tiled: true, ..rule }),
        other => other,
    };
    RecurrentLayers { mixer, ..of }
}

/// Whether two models rotate alike, up to the precision of a GGUF file.
fn is_same_rope(one: &Header, other: &Header) -> bool {
    let magnitudes = [one, other].map(|header| header.features.rope_magnitude);
    let scalings = [one.rope_scaling, other.rope_scaling];
    // The parameters of Llama 3 may differ where the divisors are the same.
    let is_llama3 = scalings.iter().all(|of| matches!(of, Some(RopeScaling::Llama3 { .. })));
    one.rope_theta as f32 == other.rope_theta as f32
        && (magnitudes[0] - magnitudes[1]).abs() < 1e-6
        && (is_llama3 || scalings[0] == scalings[1])
}
