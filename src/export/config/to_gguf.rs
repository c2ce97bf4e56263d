//! The fields of the GGUF file that a model becomes: those that [`super::gguf`] reads.

use super::family::{Family, GRANITE_SCALES, TEMPERATURE, WINDOW_PATTERN, YARN_LOG_MULTIPLIER};
use super::gguf;
use super::gguf::rope;
use super::model::Extras;
use super::settings::{CTX, DIM, HEAD_DIM, HEADS, KV_HEADS, Key, LAYERS, WINDOW};
use crate::export::checkpoint::Checkpoint;
use crate::export::error::ExportError;
use crate::export::gguf::GgufHead;
use crate::format::model::{Architecture, Experts, Features, Header, RopeScaling};

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
    let family = Family::written(header).ok_or_else(|| {
        let (name, known) = (Family::name_of(header), Family::written_names());
        format!("a GGUF file of {name}; LEAP writes those of {known}")
    })?;
    let family = family.in_gguf();
    head.text("general.architecture", family);
    head.text("general.type", "model");
    let key = |name: &str| format!("{family}.{name}");
    write_sizes(header, &key, head);
    head.float(&key("attention.layer_norm_rms_epsilon"), header.norm_eps);
    let reads_divisors = matches!(
        header.architecture,
        Architecture::Llama
            | Architecture::Mistral
            | Architecture::Granite
            | Architecture::Granite4
    );
    if matches!(header.rope_scaling, Some(RopeScaling::Llama3 { .. })) && !reads_divisors {
        // Llama.cpp refuses files of other families with their tensor.
        let name = Family::name_of(header);
        return Err(format!("a GGUF file of {name} with Llama 3's RoPE: it cannot say that"));
    }
    rope::write(header, &key, head);
    if let Some(window) = header.sliding_window {
        head.number(&key(name(WINDOW)), window as u32);
        write_pattern(header, &key, head);
    }
    if let Some(temperature) = features.temperature {
        head.float(&key(TEMPERATURE), temperature.slope);
        // The family's YaRN does not grow.
        head.float(&key(YARN_LOG_MULTIPLIER), 1.0);
    }
    if matches!(header.architecture, Architecture::Granite | Architecture::Granite4) {
        let attention = features.attention_scale.unwrap_or(0.0);
        let scales =
            [features.embedding_scale, attention, features.residual_scale, extras.logits_divisor];
        let named = GRANITE_SCALES.into_iter().zip(scales);
        named.for_each(|(name, scale)| head.float(&key(name), scale));
    }
    let has_divisors = header.rope_scaling == Some(RopeScaling::Divisors);
    match features.experts {
        // Llama.cpp wants both of this family's tensors of divisors.
        None if family == "phi3" && has_divisors && features.long_rope.is_none() => {
            Err("a GGUF file of LongRoPE without long texts; take a longer --ctx".to_owned())
        }
        Some(Experts { is_normalised: false, .. }) => {
            Err("a GGUF file of experts whose weights do not add up to 1".to_owned())
        }
        Some(_) if features.dense.is_some() => {
            Err("a GGUF file in which only some layers have experts".to_owned())
        }
        _ => Ok(()),
    }
}

/// A setting's name in GGUF files.
fn name(of: Key) -> &'static str {
    of[2]
}

/// Adds whole numbers. All of them fit a model file's signed fields.
fn write_sizes(header: &Header, key: &dyn Fn(&str) -> String, head: &mut GgufHead) {
    let sizes = [
        (name(LAYERS), header.n_layers),
        (name(CTX), header.max_seq_len),
        (name(DIM), header.dim),
        ("feed_forward_length", header.ffn_dim),
        (name(HEADS), header.n_heads),
        (name(KV_HEADS), header.n_kv_heads),
        (name(HEAD_DIM), header.head_dim),
        ("attention.value_length", header.head_dim),
        ("rope.dimension_count", header.rotary_dim()),
        ("vocab_size", header.vocab_size),
    ];
    let of_experts = header.features.experts.map(|Experts { n, n_active, .. }| {
        [
            ("expert_count", n),
            ("expert_used_count", n_active),
            ("expert_feed_forward_length", header.ffn_dim),
        ]
    });
    for (name, size) in sizes.into_iter().chain(of_experts.into_iter().flatten()) {
        head.number(&key(name), size as u32);
    }
}

/// Adds which layers have a window, if that is not the family's usual rule: some layers at equal distances have none.
fn write_pattern(header: &Header, key: &dyn Fn(&str) -> String, head: &mut GgufHead) {
    let usual = match header.architecture {
        Architecture::Gemma3 => 6,
        Architecture::GptOss => 2,
        _ => return,
    };
    let is_windowed = |layer: usize| !header.features.full_layers.contains(layer);
    let flags: Vec<bool> = (0..header.n_layers).map(is_windowed).collect();
    let has_period =
        |n: &usize| flags.iter().enumerate().all(|(i, is)| *is != (i + 1).is_multiple_of(*n));
    if has_period(&usual) {
        return;
    }
    match (1..=header.n_layers).find(has_period) {
        Some(period) => head.number(&key(WINDOW_PATTERN), period as u32),
        None => head.flags(&key(WINDOW_PATTERN), &flags),
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
        (heads, of.dim, of.ffn_dim, of.n_layers, of.vocab_size, of.max_seq_len, of.norm_eps)
    };
    let windows = |of: &Header| (of.sliding_window, of.features.full_layers);
    let others = |of: &Header| {
        let local_theta = of.features.local_theta.map(|theta| f64::from(theta as f32));
        // Compared above.
        let (rope_magnitude, full_layers) = (1.0, Default::default());
        Features { local_theta, rope_magnitude, full_layers, ..of.features.clone() }
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
