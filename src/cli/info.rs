//! `leap info`: the contents of a file.

use std::fmt::Write;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::Failure;
use super::checkpoint::CheckpointPath;
#[cfg(feature = "tools")]
use super::convert;
use super::reads::TokenReads;
use crate::format::json::JsonObject;
use crate::format::model::{
    self, Activation, EmbeddingModel, FileShare, Header, LayerSet, LayerSpec, Mixer, Packed,
    RopeScaling, TensorKind,
};
use crate::format::tokenizer::{TokenKind, TokenizerFile, TokenizerKind, fingerprint};
use crate::format::{FormatError, foreign_kind, stand_in};
use crate::model::{self as models, cached_layers};
use crate::numerics::NUMERICS;
use crate::pack;
use crate::sys::map::Map;

/// Shows header, tensors and sizes of a model, tokenizer or packed-weight file.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "info")]
pub(super) struct Info {
    /// model file, checkpoint, tokenizer.bin, or packed weights
    #[argh(positional)]
    file: PathBuf,
    /// compare the stored checksums with the bytes
    #[argh(switch)]
    verify: bool,
    /// list every tensor
    #[argh(switch)]
    tensors: bool,
    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

impl Info {
    #[cfg_attr(not(feature = "tools"), expect(unused_mut, reason = "files have no other names"))]
    pub(super) fn execute(mut self) -> Result<(), Failure> {
        #[cfg(feature = "tools")]
        {
            self.file = super::names::path(&self.file)?;
        }
        let path = self.file.display();
        if let Some(checkpoint) = CheckpointPath::at(&self.file) {
            return self.checkpoint(&checkpoint);
        }
        let map = Map::open(&self.file).map_err(|e| Failure::unreadable(&self.file, &e))?;
        let bytes = map.as_bytes();
        if let Some(what) = stand_in(bytes) {
            return Err(Failure::Input(format!("{path}: {what}")));
        }
        let rows = match bytes.first_chunk().map(|magic| u32::from_le_bytes(*magic)) {
            Some(model::MAGIC) => self.model(bytes).map_err(|e| e.to_string()),
            Some(pack::MAGIC) => self.cache(bytes).map_err(|what| format!("damaged cache: {what}")),
            _ => self.tokenizer(bytes).map_err(|e| e.to_string()),
        };
        let rows = rows.map_err(|problem| Failure::Input(format!("{path}: {problem}")))?;
        self.tell(&rows)
    }

    /// Shows the model that `leap run` makes of a checkpoint, which is not made here.
    #[cfg(feature = "tools")]
    fn checkpoint(&self, checkpoint: &CheckpointPath) -> Result<(), Failure> {
        if self.verify {
            let path = checkpoint.path().display();
            return Err(Failure::Usage(format!("{path} is a checkpoint and has no checksums")));
        }
        let mut plan = convert::planned(checkpoint, None, None)?;
        convert::tokenizer(&mut plan, checkpoint.path(), true)?;
        plan.notes().iter().for_each(|hint| super::note(&format!("leap: {hint}")));
        let header = plan.header();
        let file_bytes = header.tensors().map(|tensor| tensor.offset + tensor.bytes).max();
        let mut rows = self.rows(header, file_bytes.unwrap_or(0) as usize, None);
        rows[0] = text("file", "checkpoint, as it is when it is converted to a model");
        self.tell(&rows)
    }

    #[cfg(not(feature = "tools"))]
    fn checkpoint(&self, checkpoint: &CheckpointPath) -> Result<(), Failure> {
        Err(checkpoint.refuse(&self.file))
    }

    fn model(&self, bytes: &[u8]) -> Result<Vec<Row>, FormatError> {
        let header = Header::parse(bytes)?;
        let checksums = match self.verify {
            true => Some(if header.verify(bytes)? { "match" } else { "none stored" }),
            false => None,
        };
        Ok(self.rows(&header, bytes.len(), checksums))
    }

    fn rows(&self, header: &Header, file_bytes: usize, checksums: Option<&str>) -> Vec<Row> {
        let mut rows = describe(header, file_bytes);
        let reads = Value::Reads(TokenReads::of(header));
        rows.push(Row { name: "bytes_per_token".to_owned(), value: reads });
        rows.extend(checksums.map(|verdict| text("checksums", verdict)));
        if self.tensors {
            for tensor in header.tensors() {
                let value = format!(
                    "[{}, {}] at {}, {} bytes",
                    tensor.rows, tensor.cols, tensor.offset, tensor.bytes
                );
                rows.push(text(&tensor.id.to_string(), &value));
            }
        }
        rows
    }

    fn tell(&self, rows: &[Row]) -> Result<(), Failure> {
        super::print(&if self.json { as_json(rows) } else { as_table(rows) })
    }

    fn cache(&self, bytes: &[u8]) -> Result<Vec<Row>, &'static str> {
        let summary = pack::summary(bytes)?;
        let mut offsets: Vec<u64> = summary.entries.iter().map(|entry| entry.offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let (layers, has_ends) = cached_layers(summary.entries.iter().map(|entry| entry.key));
        let layers: Vec<String> =
            layers.iter().map(|l| format!("{}..{}", l.start, l.end)).collect();
        let ends = if has_ends { ", and the classifier" } else { "" };
        let mut rows = vec![
            text("file", "packed weights"),
            text("layout", &format!("{:#06x}", summary.identity.layout)),
            number("order", f64::from(summary.identity.order)),
            text("model", &format!("{:016x}", summary.identity.fingerprint)),
            text("layers", &format!("{}{ends}", layers.join(", "))),
            number("tensors", summary.entries.len() as f64),
            number("duplicates", (summary.entries.len() - offsets.len()) as f64),
            number("file_bytes", bytes.len() as f64),
        ];
        if self.verify {
            pack::verify(bytes, &summary.entries)?;
            rows.push(text("checksums", "match"));
        }
        Ok(rows)
    }

    fn tokenizer(&self, bytes: &[u8]) -> Result<Vec<Row>, FormatError> {
        let unknown = |e: FormatError| match foreign_kind(bytes) {
            Some(kind) => FormatError::Unsupported(format!(
                "it is {kind}; wanted a model file, a tokenizer.bin or packed weights of LEAP"
            )),
            None => FormatError::Unsupported(format!("no model, and as a tokenizer: {e}")),
        };
        let file = TokenizerFile::parse(bytes, None).map_err(unknown)?;
        let kind = match file.kind {
            TokenizerKind::ByteLevel => "byte-level BPE",
            TokenizerKind::SentencePiece => "SentencePiece BPE",
            TokenizerKind::WordPiece => "WordPiece",
        };
        let is_split = file.kind == TokenizerKind::ByteLevel;
        let special = file.vocab.iter().filter(|(_, _, kind)| *kind == TokenKind::Control).count();
        Ok(vec![
            text("file", "tokenizer"),
            text("kind", kind),
            text("splitter", if is_split { file.splitter.name() } else { "none" }),
            text("normaliser", &normaliser(&file)),
            number("vocab_size", file.vocab.len() as f64),
            number("special_tokens", special as f64),
            optional("bos", file.bos),
            ids("stop_ids", &file.stop_ids),
            text("chat_template", file.chat.name()),
            text("chat_system", default_system(&file)),
            text("fingerprint", &format!("{:016x}", fingerprint(bytes))),
            number("file_bytes", bytes.len() as f64),
        ])
    }
}

/// Steps applied to a text before it is split or merged, in words.
fn normaliser(file: &TokenizerFile) -> String {
    let flags = &file.flags;
    let steps = [
        (flags.nfc, "NFC"),
        (flags.remove_extra_spaces, "runs of spaces are one"),
        (flags.dummy_prefix, "a space before the text"),
        (flags.dummy_prefix && flags.prefix_every_segment, "and after special tokens"),
    ];
    named(&steps)
}

/// System text that stands in for a missing one.
fn default_system(file: &TokenizerFile) -> &str {
    let texts = &file.chat_texts.thinking;
    texts.default.as_deref().map_or("none", |text| if text.is_empty() { "empty" } else { text })
}

/// Names whose flag is set, in one line.
fn named(names: &[(bool, &str)]) -> String {
    let present: Vec<&str> = names.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if present.is_empty() { "none".to_owned() } else { present.join(", ") }
}

/// A name and its value.
struct Row {
    name: String,
    value: Value,
}

enum Value {
    Text(String),
    Number(f64),
    /// Bytes that a token reads: their sum is the value, and their table stands below all rows.
    Reads(TokenReads),
}

fn text(name: &str, value: &str) -> Row {
    Row { name: name.to_owned(), value: Value::Text(value.to_owned()) }
}

fn number(name: &str, value: f64) -> Row {
    Row { name: name.to_owned(), value: Value::Number(value) }
}

fn optional(name: &str, value: Option<u32>) -> Row {
    value.map_or_else(|| text(name, "none"), |value| number(name, f64::from(value)))
}

fn ids(name: &str, ids: &[u32]) -> Row {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    text(name, &ids.join(", "))
}

fn rope_scaling(header: &Header) -> String {
    match header.rope_scaling {
        None => "none".to_owned(),
        Some(RopeScaling::Divisors) => match &header.features.long_rope {
            Some(long) => {
                format!("a divisor for each pair, others beyond {} tokens", long.original_ctx)
            }
            None => "a divisor for each pair".to_owned(),
        },
        Some(RopeScaling::Yarn { factor, beta_slow, beta_fast, original_ctx, .. }) => {
            format!(
                "yarn, factor {factor}, slow {beta_slow}, fast {beta_fast}, \
                 original context {original_ctx}"
            )
        }
        Some(RopeScaling::Linear { factor }) => format!("linear, factor {factor}"),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_ctx }) => {
            format!(
                "llama3, factor {factor}, low {low_freq_factor}, high {high_freq_factor}, \
                 original context {original_ctx}"
            )
        }
    }
}

fn describe(header: &Header, file_bytes: usize) -> Vec<Row> {
    let scaling = rope_scaling(header);
    let window = header.sliding_window.map(|window| window as u32);
    let hash = match header.tokenizer_hash {
        0 => "unknown".to_owned(),
        hash => format!("{hash:016x}"),
    };
    let mut rows = vec![
        text("file", "model"),
        number("version", f64::from(header.weights.version())),
        text("weights", &header.weights.to_string()),
        number("numerics", f64::from(NUMERICS)),
        text("packed_for", &packed_for(header)),
        text("architecture", &format!("{:?}", header.architecture).to_lowercase()),
        text("features", &features(header)),
        number("parameters", parameters(header, false)),
        number("dim", header.dim as f64),
        number("ffn_dim", header.ffn_dim as f64),
        number("n_experts", header.features.experts.map_or(0, |e| e.n) as f64),
        number("n_active_experts", header.features.experts.map_or(0, |e| e.n_active) as f64),
        number("active_parameters", parameters(header, true)),
        number("n_layers", header.n_layers as f64),
        text("layers_held", &layers_held(header)),
        number("n_heads", header.n_heads as f64),
        number("n_kv_heads", header.n_kv_heads as f64),
        number("head_dim", header.head_dim as f64),
        number("vocab_size", header.vocab_size as f64),
        number("max_seq_len", header.max_seq_len as f64),
        text("classifier", if header.shared_classifier { "shared" } else { "own" }),
        number("rope_theta", header.rope_theta),
        text("rope_scaling", &scaling),
        text("norm_eps", &header.norm_eps.to_string()),
        optional("sliding_window", window),
        text("recurrent_layers", &layer_list(header, |layer| layer.mixer.is_some())),
        text("windowed_layers", &layer_list(header, |layer| layer.window.is_some())),
        text("rotated_layers", &layer_list(header, |layer| layer.rope.is_some())),
        optional("bos", header.bos),
        ids("stop_ids", &header.stop_ids),
        text("chat_template", header.chat_template.name()),
        text("tokenizer", &hash),
        number("tensors", header.n_tensors() as f64),
        number("file_bytes", file_bytes as f64),
    ];
    rows.extend(header.embedding().map(|embedding| text("embeddings", &embeddings(embedding))));
    rows
}

/// How a model of embeddings makes a text's vector.
fn embeddings(embedding: &EmbeddingModel) -> String {
    let prompts = embedding.prompt_names();
    let names = [
        (true, format!("pooling {}", embedding.pooling.name())),
        (embedding.is_normalised, "length 1".to_owned()),
        (embedding.is_bidirectional, "attention to later tokens".to_owned()),
        (embedding.encoder.is_some(), "layers like BERT's".to_owned()),
        (embedding.dense_dim > 0, "dense layers".to_owned()),
        (!prompts.is_empty(), format!("prompts {}", prompts.join(" "))),
    ];
    let names = names.into_iter().filter(|(is_so, _)| *is_so).map(|(_, name)| name);
    names.collect::<Vec<_>>().join(", ")
}

/// Operations of the model's layers that Llama's layers lack.
fn features(header: &Header) -> String {
    let features = &header.features;
    let activation = match features.activation {
        Activation::Silu => "",
        Activation::GeluTanh | Activation::GeluErf => "gelu",
        Activation::ClampedSilu { .. } => "clamped silu",
    };
    let mixer = features.recurrent.map(|recurrent| match recurrent.mixer {
        Mixer::ShortConv { .. } => "short convolutions",
        Mixer::DeltaRule(_) => "gated delta rule",
        Mixer::StateSpace(_) => "state spaces",
    });
    let has_next = features.more.has_next && header.share.is_none();
    let is_beside = features.more.parallel_ffn.is_some() && !features.more.is_shared_expert;
    let names = [
        (mixer.is_some(), mixer.unwrap_or_default()),
        (features.qkv_bias, "biases of q, k, v"),
        (features.output_bias, "bias of attention"),
        (features.qk_norm, "norms of q, k"),
        (features.post_norms, "norms behind"),
        (features.sinks, "sinks"),
        (features.output_gate, "gates of attention"),
        (!activation.is_empty(), activation),
        (header.layers().any(|layer| layer.rope.is_none()), "layers without rotation"),
        (features.full_layers != LayerSet::default(), "layers without window"),
        (features.rotary_dim.is_some(), "rotation of a part"),
        (features.temperature.is_some(), "queries that grow"),
        (features.more.full_heads.is_some(), "other heads without window"),
        (features.more.n_shared_kv > 0, "shared keys and values"),
        (features.more.layer_input_dim > 0, "inputs of layers"),
        (features.more.is_shared_expert, "shared experts"),
        (is_beside, "dense layers beside mixtures"),
        (features.more.logit_cap.is_some(), "capped logits"),
        (has_next, "guesses of the token after the next"),
    ];
    named(&names)
}

/// The kernels that this order of weights is for.
fn packed_for(header: &Header) -> String {
    let Some(Packed { layout, panel_rows, .. }) = header.packed else { return "any".to_owned() };
    let known = models::packed_for(header).ok().flatten();
    let isa = known.map_or("kernels this version does not have", |(isa, _)| isa.name());
    format!("{isa} (layout {layout:#06x}, panels of {panel_rows} rows)")
}

fn layers_held(header: &Header) -> String {
    let Some(FileShare { layers, has_ends, slice, .. }) = &header.share else {
        return "all".to_owned();
    };
    let ends = match (has_ends, slice) {
        (false, _) => "",
        (true, None) => ", with embedding and classifier",
        (true, Some(_)) => ", with classifier",
    };
    let rows = if slice.is_some() { "some rows of " } else { "" };
    format!("{rows}{}..{}{ends}", layers.start, layers.end)
}

/// The layers for which `is_one` is true, as ranges.
fn layer_list(header: &Header, is_one: impl Fn(&LayerSpec) -> bool) -> String {
    let are: Vec<bool> = header.layers().map(|layer| is_one(&layer)).collect();
    let mut start = 0;
    let mut ranges = Vec::new();
    for run in are.chunk_by(|a, b| a == b) {
        let end = start + run.len();
        if run[0] {
            ranges.push(if run.len() == 1 { start.to_string() } else { format!("{start}..{end}") });
        }
        start = end;
    }
    match are.iter().all(|is| *is) {
        true => "all".to_owned(),
        false if ranges.is_empty() => "none".to_owned(),
        false => ranges.join(", "),
    }
}

/// Number of parameters; with `are_active`, only those that a token uses (some of the experts).
fn parameters(header: &Header, are_active: bool) -> f64 {
    let share = |kind| if are_active { header.active_part(kind) } else { 1.0 };
    // A packed copy of the embedding is no further parameter.
    let is_copy = |kind| header.shared_classifier && kind == TensorKind::Classifier;
    let tensors = header.tensors().filter(|tensor| !is_copy(tensor.id.kind));
    let tensors = tensors.filter(|tensor| !are_active || !header.is_of_next(tensor.id));
    tensors.map(|t| t.rows as f64 * t.cols as f64 * share(t.id.kind)).sum()
}

fn as_table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0) + 2;
    let mut table = String::new();
    for Row { name, value } in rows {
        // Writing to a string cannot fail.
        let _ = match value {
            Value::Text(text) => writeln!(table, "{name:<width$}{text}"),
            Value::Number(number) => writeln!(table, "{name:<width$}{number}"),
            Value::Reads(reads) => writeln!(table, "{name:<width$}{}", reads.total()),
        };
    }
    for Row { value, .. } in rows {
        if let Value::Reads(reads) = value {
            let _ = write!(table, "\n{}", reads.table());
        }
    }
    table
}

fn as_json(rows: &[Row]) -> String {
    let object = rows.iter().fold(JsonObject::new(), |object, row| match &row.value {
        Value::Text(text) => object.string(&row.name, text),
        Value::Number(number) => object.number(&row.name, *number),
        Value::Reads(reads) => reads.add_to(object),
    });
    object.finish()
}
