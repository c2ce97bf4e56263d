//! The fields of a GGUF file.

pub(super) mod rope;
mod rope_freqs;

use super::family::Family;
use super::gguf_fields::GgufFields;
use super::gguf_keys as keys;
use super::model::{Config, Extras, rows};
use super::settings::{ConfigKind, Fields, Settings};
use crate::export::checkpoint::Checkpoint;
use crate::export::error::ExportError;
use crate::export::gguf::Gguf;
use crate::export::names::Naming;
use crate::format::excerpt;
use crate::format::model::{Header, LAYER_SET_MAX, Pooling, TensorId, TensorKind};

/// Reads the fields of `checkpoint`'s first file; some dimensions are only in the tensors' shapes.
pub(in crate::export) fn read(checkpoint: &Checkpoint) -> Result<Config, ExportError> {
    let path = checkpoint.dir();
    let gguf = Gguf::parse(checkpoint.first_bytes())
        .map_err(|problem| ExportError::BadFile { path: path.to_owned(), problem })?;
    let fields = GgufFields::new(path, &gguf)?;
    let settings = Settings::new(ConfigKind::Gguf, &fields);
    let family = family(&fields, &settings)?;
    let fields = fields.of_family(family);
    let settings = Settings::new(ConfigKind::Gguf, &fields);
    refuse_variants(&fields, family)?;
    let (dims, ffn_dim) = (settings.dims()?, ffn_dim(&fields, family)?);
    let vocab_size = rows(checkpoint, &Naming::Gguf.first(TensorKind::Embedding))?;
    let mut header = dims.header(ffn_dim, vocab_size);
    for name in [keys::VALUE_DIM, keys::ROTARY_DIM] {
        match fields.size(name)?.filter(|&other| other != header.head_dim) {
            // Of these two, only `rope.dimension_count` is allowed in some family.
            rotary_dim @ Some(_) if family.allows(name) => header.features.rotary_dim = rotary_dim,
            Some(other) => {
                let (key, head_dim) = (fields.key(name), header.head_dim);
                return Err(fields.unsupported(format!("{key} {other} with heads of {head_dim}")));
            }
            None => {}
        }
    }
    let eps = match family.is_encoder() {
        true => keys::LAYER_NORM_EPS,
        false => keys::NORM_EPS,
    };
    header.norm_eps = fields.required_number(eps)? as f32;
    let mut extras = Extras::default();
    header.max_seq_len = settings.ctx((CTX, &mut extras.notes))?;
    rope::read((&fields, family), checkpoint, &mut header, &mut extras.notes)?;
    family.configure(&settings, &mut header, &mut extras)?;
    read_biases(checkpoint, &mut header, &mut extras);
    read_embedding(checkpoint, &fields, &mut header, &mut extras)?;
    read_dense_layers(checkpoint, &fields, &mut header)?;
    if fields.general_text("general.name").is_ok_and(|name| name.is_some_and(is_windowed_mistral)) {
        extras.notes.push(
            "GGUF files do not say that Mistral 7B v0.1 has a sliding window of 4096 tokens: \
             longer contexts differ from the original's"
                .to_owned(),
        );
    }
    Ok(Config { header, is_tied: None, path: path.to_owned(), files: Vec::new(), extras })
}

/// Width of the feed-forward layers. In a mixture another field has the width: this one may be missing or differ
/// between layers, and then the result is 1, a placeholder.
fn ffn_dim(fields: &GgufFields<'_>, family: &Family) -> Result<usize, ExportError> {
    match family.allows(keys::EXPERTS)
        && (fields.is_mixed(keys::FFN) || fields.number(keys::FFN)?.is_none())
    {
        true => Ok(1),
        false => fields.required_size(keys::FFN),
    }
}

/// Takes over whether layers have biases, in families that may lack them. No field says so; the tensors show it.
fn read_biases(checkpoint: &Checkpoint, header: &mut Header, extras: &mut Extras) {
    if header.features.qkv_bias {
        return;
    }
    let has =
        |end: &str| checkpoint.names().any(|name| name.starts_with("blk.") && name.ends_with(end));
    let features = &mut header.features;
    features.qkv_bias = [".attn_q.bias", ".attn_k.bias", ".attn_v.bias"].into_iter().any(has);
    features.output_bias = has(".attn_output.bias");
    let of_ffn = [".ffn_gate.bias", ".ffn_up.bias", ".ffn_down.bias"];
    features.ffn_bias = features.experts.is_none() && of_ffn.into_iter().any(has);
    extras.has_optional_biases = true;
}

/// Takes over which layers of a mixture are dense: they have the tensors of a feed-forward layer, and none of experts.
fn read_dense_layers(
    checkpoint: &Checkpoint,
    fields: &GgufFields<'_>,
    header: &mut Header,
) -> Result<(), ExportError> {
    let is_plain_mixture = header.features.experts.is_some_and(|experts| !experts.has_biases);
    if !is_plain_mixture || header.n_layers > LAYER_SET_MAX {
        return Ok(());
    }
    let gate = |layer: &usize| Naming::Gguf.name(TensorId { kind: TensorKind::W1, layer: *layer });
    let router =
        |layer: &usize| Naming::Gguf.name(TensorId { kind: TensorKind::Router, layer: *layer });
    let is_dense = |layer: &usize| !checkpoint.has(&router(layer)) && checkpoint.has(&gate(layer));
    let dense: Vec<usize> = (0..header.n_layers).filter(is_dense).collect();
    let Some(first) = dense.first() else { return Ok(()) };
    header
        .set_dense(&dense, rows(checkpoint, &gate(first))?)
        .map_err(|what| fields.unsupported(what))
}

/// Takes over what makes the model one of embeddings.
fn read_embedding(
    checkpoint: &Checkpoint,
    fields: &GgufFields<'_>,
    header: &mut Header,
    extras: &mut Extras,
) -> Result<(), ExportError> {
    let pooling = match fields.unsigned(keys::POOLING)? {
        found @ (None | Some(0)) if extras.embedder.is_needed() => {
            let found = found.map_or("missing", |_| "0, which is a vector for each token");
            extras.notes.push(format!(
                "{} is {found}: the mean of the tokens' vectors is taken; --pooling takes another",
                fields.key(keys::POOLING)
            ));
            Pooling::Mean
        }
        None | Some(0) => return Ok(()),
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        Some(other) => {
            return Err(fields.unsupported(format!("{} {other}", fields.key(keys::POOLING))));
        }
    };
    let mut model = extras.embedder.model(pooling, true);
    let dense = Naming::Gguf.first(TensorKind::PooledIn);
    if checkpoint.has(&dense) {
        model.dense_dim = rows(checkpoint, &dense)?;
    }
    header.features.embedding = Some(model);
    Ok(())
}

/// Finds the family. An unknown one is refused by its name.
fn family(
    fields: &GgufFields<'_>,
    settings: &Settings<'_>,
) -> Result<&'static Family, ExportError> {
    let name = fields.family();
    Family::of_gguf(name, settings.window()?.is_some()).ok_or_else(|| {
        fields.unsupported(format!(
            "architecture {}; LEAP runs {}",
            excerpt(name),
            Family::names(true)
        ))
    })
}

fn is_windowed_mistral(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("mistral") && name.contains("v0.1")
}

/// Context length if the file does not say it: the default of a run.
const CTX: usize = 4096;

/// Refuses variants of the model that LEAP does not compute.
fn refuse_variants(fields: &GgufFields<'_>, family: &Family) -> Result<(), ExportError> {
    let refuse = |what| Err(fields.unsupported(what));
    match fields.general_text("general.type")? {
        None | Some("model") => {}
        Some(other) => return refuse(format!("a file of type {}, not a model", excerpt(other))),
    }
    let is_mixture = fields.unsigned(keys::EXPERTS)?.unwrap_or(0) > 0;
    if is_mixture && !family.allows(keys::EXPERTS) {
        return refuse(format!("{}: a mixture of experts", fields.key(keys::EXPERTS)));
    }
    let ones = ["logit_scale", "residual_scale", "embedding_scale", "expert_weights_scale"];
    let zeros = [
        "attention.scale",
        "attention.clamp_kqv",
        "attn_logit_softcapping",
        keys::LOGIT_CAP,
        "expert_shared_count",
        keys::LEADING_DENSE,
        "attention.temperature_scale",
    ];
    for (name, neutral) in
        ones.map(|name| (name, 1.0)).into_iter().chain(zeros.map(|name| (name, 0.0)))
    {
        match fields.number(name)? {
            // For llama.cpp a scale of 0 means no scale.
            Some(value) if value != neutral && value != 0.0 && !family.allows(name) => {
                return refuse(format!("{} {value}", fields.key(name)));
            }
            _ => {}
        }
    }
    // Families that allow the key attend both ways, and may only say false; others may only say true.
    let is_both_ways = family.allows(keys::CAUSAL);
    if let Some(is_causal) = fields.flag(keys::CAUSAL)?.filter(|is| *is == is_both_ways) {
        return refuse(format!("{} {is_causal}", fields.key(keys::CAUSAL)));
    }
    // A list has a number for each layer; LEAP has one number for all.
    for name in [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        keys::VALUE_DIM,
        "attention.sliding_window",
        keys::ROTARY_DIM,
        "rope.freq_base",
        keys::EXPERTS,
        keys::ACTIVE_EXPERTS,
        keys::EXPERT_FFN,
        keys::FFN,
    ] {
        let is_needed =
            (name != keys::FFN || !family.allows(keys::EXPERTS)) && !family.allows(name);
        if is_needed && fields.is_mixed(name) {
            return refuse(format!("{}: layers that differ", fields.key(name)));
        }
    }
    Ok(())
}
