//! How a GGUF file describes RoPE.
//!
//! Llama 3.1's scaling is no field: the file holds what each frequency is divided by, as a tensor (see
//! [`rope_freqs`]). LongRoPE's divisors are two tensors.

use super::rope_freqs;
use crate::export::checkpoint::Checkpoint;
use crate::export::config::family::{Family, YARN_LOG_MULTIPLIER};
use crate::export::config::field_writer::FieldWriter;
use crate::export::config::gguf_fields::GgufFields;
use crate::export::config::gguf_keys as keys;
use crate::export::config::model::{take_long_rope, yarn_magnitude};
use crate::export::config::settings::Fields;
use crate::export::error::ExportError;
use crate::export::names::{ROPE_FACTORS, ROPE_FREQS};
use crate::format::excerpt;
use crate::format::model::{Features, Header, RopeScaling};

const BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";
const BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
const BASE: &str = "rope.freq_base";
const MAGNITUDE: &str = "rope.scaling.attn_factor";
const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL_CTX: &str = "rope.scaling.original_context_length";

/// Takes over base, scaling and magnitude.
pub(super) fn read(
    (fields, family): (&GgufFields<'_>, &Family),
    checkpoint: &Checkpoint,
    header: &mut Header,
    notes: &mut Vec<String>,
) -> Result<(), ExportError> {
    header.rope_theta = fields.number(BASE)?.unwrap_or(10_000.0);
    let mut magnitude = fields.number(MAGNITUDE)?.unwrap_or(1.0);
    // For llama.cpp 0 means no factor.
    let factor = fields.number(FACTOR)?.filter(|factor| *factor != 0.0);
    let old_factor = fields.number("rope.scale_linear")?.filter(|factor| *factor != 0.0);
    let linear = |factor: f64| Some(factor as f32).filter(|&factor| factor != 1.0);
    let linear = |factor| linear(factor).map(|factor| RopeScaling::Linear { factor });
    let formula = match fields.text(TYPE)? {
        None | Some("none") => old_factor.and_then(linear),
        Some("linear") => factor.or(old_factor).and_then(linear),
        Some("yarn") => {
            let (formula, own) = yarn((fields, family), factor.unwrap_or(1.0), header, notes)?;
            magnitude *= own;
            formula
        }
        // LongRoPE's divisors are tensors.
        Some("longrope") => None,
        Some(other) => {
            return Err(fields.unsupported(format!("{} {}", fields.key(TYPE), excerpt(other))));
        }
    };
    header.features.rope_magnitude = magnitude as f32;
    let tensor = |name| divisors(checkpoint, header, name);
    let (freqs, factors) =
        (tensor(ROPE_FREQS)?, [tensor(ROPE_FACTORS[0])?, tensor(ROPE_FACTORS[1])?]);
    header.rope_scaling = match (formula, freqs, factors) {
        (formula, None, [None, None]) => formula,
        (None, Some(freqs), [None, None]) => {
            let original = fields.size(ORIGINAL_CTX)?;
            match rope_freqs::scaling(&freqs, header.rope_theta, original) {
                Some(by_formula) => by_formula,
                None => {
                    header.features.rope_divisors = freqs;
                    Some(RopeScaling::Divisors)
                }
            }
        }
        (None, None, [Some(short), Some(long)]) => {
            let original = original_ctx(fields, header, notes)?;
            take_long_rope(header, original, [short, long]);
            Some(RopeScaling::Divisors)
        }
        (None, None, _) => {
            let what = format!("one of {} without the other", ROPE_FACTORS.join(" and "));
            return Err(fields.bad(what));
        }
        (formula, freqs, _) => {
            let name = if freqs.is_some() { ROPE_FREQS } else { ROPE_FACTORS[0] };
            let other = formula.map_or(ROPE_FACTORS[0].to_owned(), |_| fields.key(FACTOR));
            return Err(fields.unsupported(format!("both {name} and {other}")));
        }
    };
    Ok(())
}

/// Adds what [`read`] reads of a model of `header`, apart from [`tensors`].
pub(in crate::export::config) fn write(header: &Header, fields: &mut FieldWriter<'_>) {
    let Features { local_theta, rope_magnitude, long_rope, .. } = &header.features;
    fields.float(BASE, header.rope_theta as f32);
    if let Some(local) = local_theta {
        fields.float(keys::LOCAL_BASE, *local as f32);
    }
    let mut scale = |name: &str, factor: f32| {
        fields.text(TYPE, name);
        fields.float(FACTOR, factor);
    };
    let mut original = long_rope.as_ref().map(|long| long.original_ctx);
    match header.rope_scaling {
        Some(RopeScaling::Linear { factor }) => scale("linear", factor),
        Some(RopeScaling::Yarn { factor, beta_slow, beta_fast, original_ctx, .. }) => {
            scale("yarn", factor);
            fields.float(BETA_SLOW, beta_slow);
            fields.float(BETA_FAST, beta_fast);
            original = Some(original_ctx as usize);
        }
        Some(RopeScaling::Llama3 { original_ctx, .. }) => original = Some(original_ctx as usize),
        // YaRN's magnitude follows from its factor.
        _ if *rope_magnitude != 1.0 => fields.float(MAGNITUDE, *rope_magnitude),
        _ => {}
    }
    if let Some(original) = original {
        fields.number(ORIGINAL_CTX, original);
    }
}

/// The divisors of RoPE frequencies that a GGUF file has in tensors, and these tensors' names.
pub(in crate::export) fn tensors(header: &Header) -> Vec<(&'static str, Vec<f32>)> {
    let Features { rope_divisors, long_rope, more, .. } = &header.features;
    match (header.rope_scaling, long_rope) {
        (Some(scaling @ RopeScaling::Llama3 { .. }), _) => {
            let pairs = header.rotary_dim() / 2;
            vec![(ROPE_FREQS, rope_freqs::divisors(scaling, header.rope_theta, pairs))]
        }
        (Some(RopeScaling::Divisors), Some(long)) => {
            let both = [rope_divisors, &long.divisors].map(Clone::clone);
            ROPE_FACTORS.into_iter().zip(both).collect()
        }
        (Some(RopeScaling::Divisors), None) => vec![(ROPE_FREQS, rope_divisors.clone())],
        // Llama.cpp wants the tensor of families whose layers have two kinds of heads.
        (None, None) if more.full_heads.is_some() => {
            vec![(ROPE_FREQS, vec![1.0; header.full_head_dim() / 2])]
        }
        _ => Vec::new(),
    }
}

/// Context length in training. As in llama.cpp, it is the longest context if the file does not say.
fn original_ctx(
    fields: &GgufFields<'_>,
    header: &Header,
    notes: &mut Vec<String>,
) -> Result<usize, ExportError> {
    if let Some(original) = fields.size(ORIGINAL_CTX)? {
        return Ok(original);
    }
    let (name, ctx) = (fields.key(ORIGINAL_CTX), header.max_seq_len);
    notes.push(format!("{name} is missing: the longest context, {ctx}, is taken for it"));
    Ok(ctx)
}

/// YaRN as ggml computes it, with its magnitude. Its blend begins and ends at whole pairs. A factor of 1 changes nothing.
fn yarn(
    (fields, family): (&GgufFields<'_>, &Family),
    factor: f64,
    header: &Header,
    notes: &mut Vec<String>,
) -> Result<(Option<RopeScaling>, f64), ExportError> {
    let has_own_magnitude = family.allows(YARN_LOG_MULTIPLIER)
        && fields.number(YARN_LOG_MULTIPLIER)?.is_some_and(|value| value == 1.0);
    let neutral = if has_own_magnitude { 1.0 } else { 0.0 };
    for (name, neutral) in [("rope.scaling.yarn_ext_factor", 1.0), (YARN_LOG_MULTIPLIER, neutral)] {
        // For llama.cpp a number below 0 means none.
        if let Some(value) = fields.number(name)?.filter(|value| *value != neutral && *value >= 0.0)
        {
            return Err(fields.unsupported(format!("{} {value}", fields.key(name))));
        }
    }
    let usual = if has_own_magnitude { 1.0 } else { yarn_magnitude(factor) };
    let magnitude = fields.number("rope.scaling.yarn_attn_factor")?.unwrap_or(usual);
    if factor == 1.0 {
        return Ok((None, magnitude));
    }
    let scaling = RopeScaling::Yarn {
        factor: factor as f32,
        beta_slow: fields.number(BETA_SLOW)?.unwrap_or(1.0) as f32,
        beta_fast: fields.number(BETA_FAST)?.unwrap_or(32.0) as f32,
        original_ctx: original_ctx(fields, header, notes)? as u32,
        is_truncated: true,
    };
    Ok((Some(scaling), magnitude))
}

/// The values of a tensor that has one for each RoPE pair of a head.
fn divisors(
    checkpoint: &Checkpoint,
    header: &Header,
    name: &str,
) -> Result<Option<Vec<f32>>, ExportError> {
    let Some(tensor) = checkpoint.find(name)? else { return Ok(None) };
    let n = header.rotary_dim() / 2;
    if tensor.shape != [n] {
        return Err(tensor.error(format!("has shape {:?}, wanted [{n}]", tensor.shape)));
    }
    let mut divisors = vec![0.0; n];
    tensor.widen_row(0, &mut divisors);
    Ok(Some(divisors))
}
