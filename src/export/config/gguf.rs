//! The fields of a GGUF file.
//!
//! RoPE scaling as Llama 3.1 has it is no field: the file holds what each frequency is divided
//! by, as a tensor (see [`rope_freqs`]).

mod rope_freqs;

use std::path::Path;

use super::{Config, Dims, even_head_dim};
use crate::export::Error;
use crate::export::checkpoint::Checkpoint;
use crate::export::gguf::Gguf;
use crate::format::excerpt;
use crate::format::model::{Architecture, Header, RopeScaling};

/// The tensor of divisors.
pub(in crate::export) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Reads the fields of `checkpoint`'s first file; some dimensions are only in the tensors' shapes.
pub(super) fn read(checkpoint: &Checkpoint) -> Result<Config, Error> {
    let path = checkpoint.dir();
    let bad = |problem| Error::BadFile { path: path.to_owned(), problem };
    let gguf = Gguf::parse(checkpoint.first_bytes()).map_err(bad)?;
    if let Some(what) = variant(&gguf).map_err(bad)? {
        return Err(Error::Unsupported { path: path.to_owned(), what });
    }
    let mut header = dims(&gguf, checkpoint)?.header();
    read_fields(&gguf, &mut header).map_err(bad)?;
    let mut warnings = Vec::new();
    header.rope_scaling = scaling(&gguf, checkpoint, &header)?;
    match gguf.unsigned("llama.attention.sliding_window").map_err(bad)? {
        None | Some(0) => {}
        Some(_) => {
            header.sliding_window = gguf.size("llama.attention.sliding_window").map_err(bad)?;
            header.architecture = Architecture::Mistral;
        }
    }
    if gguf.text("general.name").is_ok_and(|name| name.is_some_and(is_windowed_mistral)) {
        warnings.push(
            "GGUF files do not say that Mistral 7B v0.1 has a sliding window of 4096 tokens: \
             longer contexts differ from the original's"
                .to_owned(),
        );
    }
    let (path, files) = (path.to_owned(), Vec::new());
    Ok(Config { header, is_tied: None, path, files, warnings })
}

fn is_windowed_mistral(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("mistral") && name.contains("v0.1")
}

/// What there is about this model that LEAP does not compute.
fn variant(gguf: &Gguf<'_>) -> Result<Option<String>, String> {
    match gguf.text("general.architecture")? {
        Some("llama") => {}
        Some(other) => {
            return Ok(Some(format!("architecture {}; LEAP runs llama", excerpt(other))));
        }
        None => return Err("general.architecture is missing".to_owned()),
    }
    match gguf.text("general.type")? {
        None | Some("model") => {}
        Some(other) => return Ok(Some(format!("a file of type {}, not a model", excerpt(other)))),
    }
    if gguf.unsigned("llama.expert_count")?.unwrap_or(0) > 0 {
        return Ok(Some("llama.expert_count: a mixture of experts".to_owned()));
    }
    let ones = ["llama.logit_scale", "llama.residual_scale", "llama.embedding_scale"];
    for key in ones.into_iter().chain(["llama.rope.scaling.attn_factor"]) {
        match gguf.number(key)? {
            None | Some(1.0) => {}
            Some(scale) => return Ok(Some(format!("{key} {scale}"))),
        }
    }
    for key in ["llama.attention.scale", "llama.attention.clamp_kqv"] {
        match gguf.number(key)? {
            None | Some(0.0) => {}
            Some(value) => return Ok(Some(format!("{key} {value}"))),
        }
    }
    if gguf.flag("llama.attention.causal")? == Some(false) {
        return Ok(Some("llama.attention.causal false".to_owned()));
    }
    // One number for each layer, of which LEAP has one for all.
    for key in [HEADS, KV_HEADS, FFN] {
        if gguf.get(key).is_some_and(|value| value.is_list()) {
            return Ok(Some(format!("{key}: layers that differ")));
        }
    }
    Ok(None)
}

const HEADS: &str = "llama.attention.head_count";
const KV_HEADS: &str = "llama.attention.head_count_kv";
const FFN: &str = "llama.feed_forward_length";

fn dims(gguf: &Gguf<'_>, checkpoint: &Checkpoint) -> Result<Dims, Error> {
    let path = checkpoint.dir();
    let bad = |problem| Error::BadFile { path: path.to_owned(), problem };
    let required = |key| gguf.required_size(key).map_err(bad);
    let size = |key| gguf.size(key).map_err(bad);
    let (dim, n_heads) = (required("llama.embedding_length")?, required(HEADS)?);
    let head_dim = match size("llama.attention.key_length")? {
        Some(head_dim) => head_dim,
        None => even_head_dim(dim, n_heads).map_err(bad)?,
    };
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if let Some(other) = size(key)?.filter(|&other| other != head_dim) {
            let what = format!("{key} {other} with heads of {head_dim}");
            return Err(Error::Unsupported { path: path.to_owned(), what });
        }
    }
    Ok(Dims {
        dim,
        ffn_dim: required(FFN)?,
        n_layers: required("llama.block_count")?,
        n_heads,
        n_kv_heads: size(KV_HEADS)?.unwrap_or(n_heads),
        head_dim,
        vocab_size: super::rows(checkpoint, "token_embd.weight")?,
    })
}

fn read_fields(gguf: &Gguf<'_>, header: &mut Header) -> Result<(), String> {
    let eps = "llama.attention.layer_norm_rms_epsilon";
    header.norm_eps = gguf.number(eps)?.ok_or_else(|| format!("{eps} is missing"))? as f32;
    header.max_seq_len = gguf.required_size("llama.context_length")?;
    header.rope_theta = gguf.number("llama.rope.freq_base")?.unwrap_or(10_000.0);
    Ok(())
}

fn scaling(
    gguf: &Gguf<'_>,
    checkpoint: &Checkpoint,
    header: &Header,
) -> Result<Option<RopeScaling>, Error> {
    let path = checkpoint.dir();
    let bad = |problem| Error::BadFile { path: path.to_owned(), problem };
    let linear = linear_factor(gguf).map_err(|refusal| refusal.error(path))?;
    let Some(divisors) = divisors(checkpoint, header)? else {
        return Ok(linear.map(|factor| RopeScaling::Linear { factor }));
    };
    if let Some(factor) = linear {
        let what = format!("{ROPE_FREQS} and a linear RoPE scaling of {factor}");
        return Err(Error::Unsupported { path: path.to_owned(), what });
    }
    let original_ctx = gguf.size("llama.rope.scaling.original_context_length").map_err(bad)?;
    rope_freqs::scaling(&divisors, header.rope_theta, original_ctx).ok_or_else(|| {
        let what = format!("{ROPE_FREQS} holds other divisors than Llama 3.1's formula gives");
        Error::Unsupported { path: path.to_owned(), what }
    })
}

/// A problem of the file, or a feature that LEAP lacks.
enum Refusal {
    Bad(String),
    Unsupported(String),
}

impl Refusal {
    fn error(self, path: &Path) -> Error {
        let path = path.to_owned();
        match self {
            Refusal::Bad(problem) => Error::BadFile { path, problem },
            Refusal::Unsupported(what) => Error::Unsupported { path, what },
        }
    }
}

/// The factor that all positions are divided by, if it is not 1.
fn linear_factor(gguf: &Gguf<'_>) -> Result<Option<f32>, Refusal> {
    let (kind_key, factor_key) = ("llama.rope.scaling.type", "llama.rope.scaling.factor");
    let kind = gguf.text(kind_key).map_err(Refusal::Bad)?;
    let factor = gguf.number(factor_key).map_err(Refusal::Bad)?;
    let old = gguf.number("llama.rope.scale_linear").map_err(Refusal::Bad)?;
    match kind {
        None | Some("none") => Ok(old.filter(|&factor| factor != 1.0).map(|factor| factor as f32)),
        Some("linear") => {
            let missing = || Refusal::Bad(format!("{factor_key} is missing"));
            let factor = factor.or(old).ok_or_else(missing)?;
            Ok(Some(factor as f32).filter(|&factor| factor != 1.0))
        }
        Some(other) => Err(Refusal::Unsupported(format!("{kind_key} {}", excerpt(other)))),
    }
}

/// The values of [`ROPE_FREQS`], one for each pair of a head.
fn divisors(checkpoint: &Checkpoint, header: &Header) -> Result<Option<Vec<f32>>, Error> {
    let Some(tensor) = checkpoint.find(ROPE_FREQS)? else { return Ok(None) };
    let n = header.head_dim / 2;
    if tensor.shape != [n] {
        return Err(tensor.error(format!("has shape {:?}, wanted [{n}]", tensor.shape)));
    }
    let mut divisors = vec![0.0; n];
    tensor.widen_row(0, &mut divisors);
    Ok(Some(divisors))
}
