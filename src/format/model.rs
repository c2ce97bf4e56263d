//! Model files: a 256-byte header, then tensors, then a table of checksums.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic 0x616B3432
//! 4       i32      version: 1 = f32, 2 = int8, 3 = 4 bits
//! 8       i32 × 7  dim, ffn_dim, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len
//! 36      u8       shared_classifier
//! 37      i32      group_size (versions 2 and 3; unaligned)
//! 64      u32      extension magic "LEAX"; all zero up to 256 if there is no extension
//! 68      u32      extension version, 1
//! 72      u32      extension length in bytes from offset 64, 132
//! 76      u32      flags: bit 0 (version 3) = embedding and classifier are int8
//! 80      u32      head_dim
//! 84      f32      norm_eps
//! 88      f64      rope_theta
//! 96      u32      rope scaling: 0 none, 1 linear, 2 llama3
//! 100     u32      rope: original context length
//! 104     f32 × 3  rope: factor, low_freq_factor, high_freq_factor
//! 116     u32      sliding window in tokens, 0 = none
//! 120     u32      architecture: 0 llama, 1 mistral
//! 124     i32      bos id, -1 = none
//! 128     u32      number of stop ids, at most 8
//! 132     u32 × 8  stop ids
//! 164     u32      chat template id
//! 168     u64      fingerprint of the tokenizer file, 0 = unknown
//! 176     u64 × 2  checksum table: offset and length in bytes
//! 192     u32      CRC32 of these 256 bytes with this field zero
//! 256              tensors, in the order of [`Header::tensors`], without gaps
//! …       u32 × n  CRC32 of each tensor's bytes, in the same order
//! ```
//!
//! Without the extension head_dim is dim / n_heads, rope_theta 500000, norm_eps 1e-5, and
//! there is neither scaling nor window; the file then ends with its last tensor.
//! A version 1 file with a classifier of its own stores vocab_size negated.
//! An int8 matrix is `i8 q[rows * cols]`, then `f32 scale[rows * cols / group_size]`.
//! A 4-bit matrix is its [BCML1](crate::quant::bcml1) blocks, `[rows, cols / 32]` of 20 bytes;
//! group_size is then that of the activations, and of what is int8.

use std::fmt;

use super::cursor::Cursor;
use super::{ChatTemplate, Error};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 256;
/// First four bytes of every model file.
pub const MAGIC: u32 = 0x616B_3432;
/// Most stop ids a header holds.
pub const STOP_IDS_MAX: usize = 8;
/// Longest context a header may claim; anything above is damage.
pub const SEQ_LEN_MAX: usize = 1 << 24;
/// Widest attention head the kernels are made for.
pub const HEAD_DIM_MAX: usize = 512;

const EXTENSION_AT: usize = 64;
const EXTENSION_MAGIC: u32 = u32::from_le_bytes(*b"LEAX");
const EXTENSION_LEN: usize = 132;
const CRC_AT: usize = 192;
const FLAG_INT8_EMBEDDING: u32 = 1;
const GROUP_MIN: usize = 32;
const GROUP_MAX: usize = 1 << 16;

/// How matrices are stored; norms are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Version 1: f32.
    F32,
    /// Version 2: int8 with one f32 scale per `group` consecutive values of a row.
    Q8 {
        /// Values per scale.
        group: usize,
    },
    /// Version 3: 4-bit blocks.
    Q4 {
        /// Activations per scale, and values per scale of what is int8.
        group: usize,
        /// Whether the embedding and the classifier are int8.
        int8_embedding: bool,
    },
}

/// How one tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// f32.
    F32,
    /// int8 with one f32 scale per `group` consecutive values of a row.
    Q8 {
        /// Values per scale.
        group: usize,
    },
    /// [BCML1](crate::quant::bcml1) blocks.
    Bcml1,
}

impl Weights {
    /// The version number that stands for this kind of file.
    pub fn version(self) -> i32 {
        match self {
            Weights::F32 => 1,
            Weights::Q8 { .. } => 2,
            Weights::Q4 { .. } => 3,
        }
    }

    /// Activations that share a scale in products with these weights; `None` if they stay f32.
    pub fn group(self) -> Option<usize> {
        match self {
            Weights::F32 => None,
            Weights::Q8 { group } | Weights::Q4 { group, .. } => Some(group),
        }
    }

    /// How a tensor of `kind` is stored.
    pub fn encoding(self, kind: TensorKind) -> Encoding {
        let is_vocabulary = matches!(kind, TensorKind::Embedding | TensorKind::Classifier);
        match self {
            _ if kind.is_norm() => Encoding::F32,
            Weights::F32 => Encoding::F32,
            Weights::Q8 { group } => Encoding::Q8 { group },
            Weights::Q4 { group, int8_embedding: true } if is_vocabulary => Encoding::Q8 { group },
            Weights::Q4 { .. } => Encoding::Bcml1,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Weights::Q4 { int8_embedding: true, .. } => FLAG_INT8_EMBEDDING,
            _ => 0,
        }
    }
}

impl Encoding {
    /// Bytes of a `[rows, cols]` matrix, which has whole groups and blocks.
    fn bytes(self, rows: u64, cols: u64) -> Option<u64> {
        let len = rows.checked_mul(cols)?;
        match self {
            Encoding::F32 => len.checked_mul(4),
            Encoding::Q8 { group } => len.checked_add((len / group as u64).checked_mul(4)?),
            Encoding::Bcml1 => (len / BLOCK as u64).checked_mul(BLOCK_BYTES as u64),
        }
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::F32 => write!(f, "f32"),
            Weights::Q8 { group } => write!(f, "int8, groups of {group}"),
            Weights::Q4 { int8_embedding: true, .. } => write!(f, "4-bit BCML1, embedding int8"),
            Weights::Q4 { int8_embedding: false, .. } => write!(f, "4-bit BCML1"),
        }
    }
}

/// Family of the checkpoint; only for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Architecture {
    /// Llama and everything shaped like it.
    Llama = 0,
    /// Mistral 7B: Llama with a sliding window.
    Mistral = 1,
}

/// How RoPE frequencies are stretched for contexts longer than the training's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor, above 0.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a blend between.
    Llama3 {
        /// Divisor of the low frequencies, above 0.
        factor: f32,
        /// Wavelengths above `original_ctx / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_ctx / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of the training.
        original_ctx: u32,
    },
}

/// What the header says about a model. A value from [`Header::parse`] is consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Encoding of the matrices.
    pub weights: Weights,
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Rows of the embedding and of the classifier.
    pub vocab_size: usize,
    /// Longest context in tokens.
    pub max_seq_len: usize,
    /// Whether the embedding is also the classifier.
    pub shared_classifier: bool,
    /// Width of one attention head.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Stretching of the RoPE frequencies.
    pub rope_scaling: Option<RopeScaling>,
    /// Positions a token can look back, itself included; `None` for all.
    pub sliding_window: Option<usize>,
    /// Family of the checkpoint.
    pub architecture: Architecture,
    /// Id that starts a text.
    pub bos: Option<u32>,
    /// Ids that end an answer, at most [`STOP_IDS_MAX`].
    pub stop_ids: Vec<u32>,
    /// How conversations are written.
    pub chat_template: ChatTemplate,
    /// [`super::tokenizer::fingerprint`] of the tokenizer file; 0 if unknown.
    pub tokenizer_hash: u64,
    /// Whether the extension is, or will be, in the file.
    pub has_extension: bool,
}

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// Norm before attention, `[dim]`.
    AttentionNorm,
    /// Norm before the feed-forward layer, `[dim]`.
    FfnNorm,
    /// Norm before the classifier, `[dim]`.
    FinalNorm,
    /// Token embedding, `[vocab_size, dim]`.
    Embedding,
    /// Query projection, `[n_heads * head_dim, dim]`, rows in RoPE pairs (2i, 2i + 1).
    Wq,
    /// Key projection, `[n_kv_heads * head_dim, dim]`, rows in RoPE pairs.
    Wk,
    /// Value projection, `[n_kv_heads * head_dim, dim]`.
    Wv,
    /// Attention output, `[dim, n_heads * head_dim]`.
    Wo,
    /// Feed-forward gate, `[ffn_dim, dim]`.
    W1,
    /// Feed-forward output, `[dim, ffn_dim]`.
    W2,
    /// Feed-forward input, `[ffn_dim, dim]`.
    W3,
    /// Classifier, `[vocab_size, dim]`; absent if shared with the embedding.
    Classifier,
}

impl TensorKind {
    /// Every kind, in the order of the file.
    pub const ALL: [TensorKind; 12] = [
        TensorKind::AttentionNorm,
        TensorKind::FfnNorm,
        TensorKind::FinalNorm,
        TensorKind::Embedding,
        TensorKind::Wq,
        TensorKind::Wk,
        TensorKind::Wv,
        TensorKind::Wo,
        TensorKind::W1,
        TensorKind::W2,
        TensorKind::W3,
        TensorKind::Classifier,
    ];

    /// Whether each layer has one.
    pub fn is_per_layer(self) -> bool {
        !matches!(self, TensorKind::FinalNorm | TensorKind::Embedding | TensorKind::Classifier)
    }

    /// Whether this is a vector of norm weights, always f32.
    pub fn is_norm(self) -> bool {
        matches!(self, TensorKind::AttentionNorm | TensorKind::FfnNorm | TensorKind::FinalNorm)
    }

    fn name(self) -> &'static str {
        match self {
            TensorKind::AttentionNorm => "attention_norm",
            TensorKind::FfnNorm => "ffn_norm",
            TensorKind::FinalNorm => "final_norm",
            TensorKind::Embedding => "embedding",
            TensorKind::Wq => "wq",
            TensorKind::Wk => "wk",
            TensorKind::Wv => "wv",
            TensorKind::Wo => "wo",
            TensorKind::W1 => "w1",
            TensorKind::W2 => "w2",
            TensorKind::W3 => "w3",
            TensorKind::Classifier => "classifier",
        }
    }
}

/// A tensor's place in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// What it is for.
    pub kind: TensorKind,
    /// Its layer; 0 if the kind is not per layer.
    pub layer: usize,
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.is_per_layer() {
            true => write!(f, "layers.{}.{}", self.layer, self.kind.name()),
            false => f.write_str(self.kind.name()),
        }
    }
}

/// A tensor's shape and where its bytes lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Which tensor.
    pub id: TensorId,
    /// Rows; 1 for norms.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Header {
    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Number of tensors in the file.
    pub fn n_tensors(&self) -> usize {
        self.kinds().map(|kind| self.count(kind)).sum()
    }

    /// Reads and checks the header of `file`, the whole file's bytes.
    ///
    /// Afterwards every tensor of [`Header::tensors`] lies inside the file.
    ///
    /// # Errors
    /// Says which field is wrong, or which tensor does not fit.
    pub fn parse(file: &[u8]) -> Result<Header, Error> {
        let mut r = Cursor::new(file);
        let magic = r.u32("magic")?;
        if magic != MAGIC {
            return Err(Error::BadMagic { wanted: MAGIC, found: magic });
        }
        let version = r.i32("version")?;
        let bytes = Cursor::new(file).take("header", HEADER_LEN)?;
        let mut header = Header::parse_base(&mut r, version)?;
        let table = match u32_at(bytes, EXTENSION_AT) {
            EXTENSION_MAGIC => Some(header.parse_extension(bytes)?),
            _ if bytes[EXTENSION_AT..].iter().all(|&b| b == 0) => None,
            found => return Err(Error::BadMagic { wanted: EXTENSION_MAGIC, found }),
        };
        header.check()?;
        header.check_extents(file.len() as u64, table)?;
        Ok(header)
    }

    fn parse_base(r: &mut Cursor<'_>, version: i32) -> Result<Header, Error> {
        let dim = positive(r, "dim")?;
        let ffn_dim = positive(r, "ffn_dim")?;
        let n_layers = positive(r, "n_layers")?;
        let n_heads = positive(r, "n_heads")?;
        let n_kv_heads = positive(r, "n_kv_heads")?;
        let vocab = r.i32("vocab_size")?;
        let negated = version == 1 && vocab < 0;
        let vocab_size = match vocab.unsigned_abs() {
            size if size > 0 && size <= i32::MAX as u32 && (vocab > 0 || negated) => size as usize,
            _ => return Err(field("vocab_size", vocab, "above 0")),
        };
        let max_seq_len = positive(r, "max_seq_len")?;
        let shared = r.u8("shared_classifier")?;
        if shared > 1 {
            return Err(field("shared_classifier", i32::from(shared), "0 or 1"));
        }
        let group = r.i32("group_size")?;
        let weights = match version {
            1 => Weights::F32,
            2 => Weights::Q8 { group: usize::try_from(group).unwrap_or(0) },
            3 => Weights::Q4 { group: usize::try_from(group).unwrap_or(0), int8_embedding: false },
            _ => return Err(field("version", version, "1, 2 or 3")),
        };
        Ok(Header {
            weights,
            dim,
            ffn_dim,
            n_layers,
            n_heads,
            n_kv_heads,
            vocab_size,
            max_seq_len,
            shared_classifier: shared == 1 && !negated,
            head_dim: dim / n_heads,
            norm_eps: 1e-5,
            rope_theta: 500_000.0,
            rope_scaling: None,
            sliding_window: None,
            architecture: Architecture::Llama,
            bos: None,
            stop_ids: Vec::new(),
            chat_template: ChatTemplate::None,
            tokenizer_hash: 0,
            has_extension: false,
        })
    }

    /// Reads the extension; returns offset and length of the checksum table.
    fn parse_extension(&mut self, bytes: &[u8]) -> Result<(u64, u64), Error> {
        let mut r = Cursor::new(bytes);
        r.take("base header", EXTENSION_AT + 4)?;
        let version = r.u32("extension version")?;
        if version != 1 {
            return Err(Error::Unsupported(format!("header extension version {version}")));
        }
        if u32_at(bytes, CRC_AT) != header_crc(bytes) {
            return Err(Error::Checksum { what: "header".to_owned() });
        }
        let len = r.u32("extension length")?;
        if len as usize != EXTENSION_LEN {
            return Err(field("extension length", len, "132"));
        }
        match (&mut self.weights, r.u32("flags")?) {
            (_, 0) => {}
            (Weights::Q4 { int8_embedding, .. }, FLAG_INT8_EMBEDDING) => *int8_embedding = true,
            (_, flags) => return Err(Error::Unsupported(format!("header flags {flags:#x}"))),
        }
        self.has_extension = true;
        self.head_dim = r.u32("head_dim")? as usize;
        self.norm_eps = r.f32("norm_eps")?;
        self.rope_theta = r.f64("rope_theta")?;
        self.rope_scaling = parse_scaling(&mut r)?;
        self.sliding_window = match r.u32("sliding_window")? {
            0 => None,
            window => Some(window as usize),
        };
        self.architecture = match r.u32("architecture")? {
            0 => Architecture::Llama,
            1 => Architecture::Mistral,
            id => return Err(Error::Unsupported(format!("architecture id {id}"))),
        };
        self.bos = match r.i32("bos")? {
            -1 => None,
            id => Some(u32::try_from(id).map_err(|_| field("bos", id, "an id, or -1 for none"))?),
        };
        self.stop_ids = parse_stop_ids(&mut r)?;
        let template = r.u32("chat_template")?;
        self.chat_template = u8::try_from(template)
            .ok()
            .and_then(ChatTemplate::from_id)
            .ok_or_else(|| Error::Unsupported(format!("chat template id {template}")))?;
        self.tokenizer_hash = r.u64("tokenizer_hash")?;
        Ok((r.u64("checksum table offset")?, r.u64("checksum table length")?))
    }

    /// Checks that the fields fit each other.
    ///
    /// # Errors
    /// Names the first field that does not.
    pub fn check(&self) -> Result<(), Error> {
        if !self.has_extension && !self.dim.is_multiple_of(self.n_heads) {
            let wanted = format!("a divisor of dim {}", self.dim);
            return Err(field("n_heads", self.n_heads as u32, &wanted));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let wanted = format!("a divisor of n_heads {}", self.n_heads);
            return Err(field("n_kv_heads", self.n_kv_heads as u32, &wanted));
        }
        if self.head_dim == 0 || self.head_dim % 2 == 1 || self.head_dim > HEAD_DIM_MAX {
            let wanted = format!("an even number up to {HEAD_DIM_MAX}");
            return Err(field("head_dim", self.head_dim as u32, &wanted));
        }
        if self.max_seq_len > SEQ_LEN_MAX {
            let wanted = format!("at most {SEQ_LEN_MAX}");
            return Err(field("max_seq_len", self.max_seq_len as u32, &wanted));
        }
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return Err(Error::Unsupported(format!("norm_eps {}", self.norm_eps)));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta >= 1.0) {
            return Err(Error::Unsupported(format!("rope_theta {}", self.rope_theta)));
        }
        self.check_scaling()?;
        if let Some(group) = self.weights.group() {
            self.check_group(group)?;
        }
        for &id in self.stop_ids.iter().chain(&self.bos) {
            if id as usize >= self.vocab_size {
                let wanted = format!("below vocab_size {}", self.vocab_size);
                return Err(field("bos or stop id", id, &wanted));
            }
        }
        Ok(())
    }

    fn check_scaling(&self) -> Result<(), Error> {
        let is_sound = match self.rope_scaling {
            None => true,
            Some(RopeScaling::Linear { factor }) => factor > 0.0 && factor.is_finite(),
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                ..
            }) => {
                let finite = factor.is_finite() && low.is_finite() && high.is_finite();
                finite && factor > 0.0 && low > 0.0 && high > low
            }
        };
        match is_sound {
            true => Ok(()),
            false => Err(Error::Unsupported(format!("rope scaling {:?}", self.rope_scaling))),
        }
    }

    fn check_group(&self, group: usize) -> Result<(), Error> {
        let divides = |cols: usize| cols.is_multiple_of(group);
        let in_range = (GROUP_MIN..=GROUP_MAX).contains(&group) && group.is_multiple_of(GROUP_MIN);
        if in_range && divides(self.dim) && divides(self.ffn_dim) && divides(self.q_dim()) {
            return Ok(());
        }
        let wanted = format!(
            "a multiple of {GROUP_MIN} that divides dim {}, ffn_dim {} and the heads' width {}",
            self.dim,
            self.ffn_dim,
            self.q_dim()
        );
        Err(field("group_size", i32::try_from(group).unwrap_or(i32::MAX), &wanted))
    }

    fn check_extents(&self, file_len: u64, table: Option<(u64, u64)>) -> Result<(), Error> {
        let mut end = HEADER_LEN as u64;
        for kind in self.kinds() {
            let start = end;
            let span = |bytes: u64| bytes.checked_mul(self.count(kind) as u64);
            let next = self.bytes_of(kind).and_then(span).and_then(|b| start.checked_add(b));
            end = next.unwrap_or(u64::MAX);
            if end > file_len {
                let what = self.first_outside(kind, start, file_len);
                return Err(Error::Truncated { what, need: end, have: file_len });
            }
        }
        if let Some((offset, len)) = table {
            let wanted = 4 * self.n_tensors() as u64;
            if offset != end || len != wanted {
                return Err(Error::Unsupported(format!("checksum table at {offset}, {len} bytes")));
            }
            end += wanted;
        }
        match file_len.cmp(&end) {
            std::cmp::Ordering::Less => {
                let what = "checksum table".to_owned();
                Err(Error::Truncated { what, need: end, have: file_len })
            }
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(Error::TrailingBytes { end, have: file_len }),
        }
    }

    /// Name of the first tensor of `kind` that does not end inside the file.
    fn first_outside(&self, kind: TensorKind, start: u64, file_len: u64) -> String {
        let bytes = self.bytes_of(kind).unwrap_or(u64::MAX);
        let layer = ((file_len.saturating_sub(start)) / bytes.max(1)) as usize;
        TensorId { kind, layer }.to_string()
    }

    /// The tensors of the file, in its order.
    ///
    /// Offsets are right for a header that passed [`Header::parse`] or whose tensors are
    /// known to be shorter than 2^64 bytes together.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        let mut offset = HEADER_LEN as u64;
        let ids = self
            .kinds()
            .flat_map(|kind| (0..self.count(kind)).map(move |layer| TensorId { kind, layer }));
        ids.map(move |id| {
            let (rows, cols) = self.shape(id.kind);
            let bytes = self.bytes_of(id.kind).unwrap_or(u64::MAX);
            let tensor = Tensor { id, rows, cols, offset, bytes };
            offset = offset.saturating_add(bytes);
            tensor
        })
    }

    /// `[rows, cols]` of a tensor of `kind`; norms have one row.
    pub fn shape(&self, kind: TensorKind) -> (usize, usize) {
        match kind {
            TensorKind::AttentionNorm | TensorKind::FfnNorm | TensorKind::FinalNorm => {
                (1, self.dim)
            }
            TensorKind::Embedding | TensorKind::Classifier => (self.vocab_size, self.dim),
            TensorKind::Wq => (self.q_dim(), self.dim),
            TensorKind::Wk | TensorKind::Wv => (self.kv_dim(), self.dim),
            TensorKind::Wo => (self.dim, self.q_dim()),
            TensorKind::W1 | TensorKind::W3 => (self.ffn_dim, self.dim),
            TensorKind::W2 => (self.dim, self.ffn_dim),
        }
    }

    fn kinds(&self) -> impl Iterator<Item = TensorKind> + use<> {
        let shared = self.shared_classifier;
        TensorKind::ALL.into_iter().filter(move |&k| !(shared && k == TensorKind::Classifier))
    }

    fn count(&self, kind: TensorKind) -> usize {
        if kind.is_per_layer() { self.n_layers } else { 1 }
    }

    fn bytes_of(&self, kind: TensorKind) -> Option<u64> {
        let (rows, cols) = self.shape(kind);
        self.weights.encoding(kind).bytes(rows as u64, cols as u64)
    }

    /// The 256 bytes of the header.
    ///
    /// # Panics
    /// If there are more than [`STOP_IDS_MAX`] stop ids.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut w = Writer { bytes: &mut bytes, pos: 0 };
        w.put(&MAGIC.to_le_bytes());
        w.put(&self.weights.version().to_le_bytes());
        let vocab = match (self.weights, self.shared_classifier) {
            (Weights::F32, false) => -(self.vocab_size as i32),
            _ => self.vocab_size as i32,
        };
        for value in [self.dim, self.ffn_dim, self.n_layers, self.n_heads, self.n_kv_heads] {
            w.put(&(value as i32).to_le_bytes());
        }
        w.put(&vocab.to_le_bytes());
        w.put(&(self.max_seq_len as i32).to_le_bytes());
        w.put(&[u8::from(self.shared_classifier)]);
        if let Some(group) = self.weights.group() {
            w.put(&(group as i32).to_le_bytes());
        }
        if self.has_extension {
            w.pos = EXTENSION_AT;
            self.emit_extension(&mut w);
            let crc = header_crc(&bytes);
            bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    fn emit_extension(&self, w: &mut Writer<'_>) {
        assert!(self.stop_ids.len() <= STOP_IDS_MAX);
        w.put(&EXTENSION_MAGIC.to_le_bytes());
        w.put(&1u32.to_le_bytes());
        w.put(&(EXTENSION_LEN as u32).to_le_bytes());
        w.put(&self.weights.flags().to_le_bytes());
        w.put(&(self.head_dim as u32).to_le_bytes());
        w.put(&self.norm_eps.to_le_bytes());
        w.put(&self.rope_theta.to_le_bytes());
        emit_scaling(self.rope_scaling, w);
        w.put(&(self.sliding_window.unwrap_or(0) as u32).to_le_bytes());
        w.put(&(self.architecture as u32).to_le_bytes());
        w.put(&self.bos.map_or(-1, |id| id as i32).to_le_bytes());
        w.put(&(self.stop_ids.len() as u32).to_le_bytes());
        for i in 0..STOP_IDS_MAX {
            w.put(&self.stop_ids.get(i).copied().unwrap_or(0).to_le_bytes());
        }
        w.put(&u32::from(self.chat_template as u8).to_le_bytes());
        w.put(&self.tokenizer_hash.to_le_bytes());
        let table = self.tensors().last().map_or(0, |t| t.offset + t.bytes);
        w.put(&table.to_le_bytes());
        w.put(&(4 * self.n_tensors() as u64).to_le_bytes());
    }

    /// Compares the stored checksum of each tensor with its bytes.
    ///
    /// `file` is the whole file that this header was parsed from. Without extension there
    /// is nothing to compare and the answer is `false`.
    ///
    /// # Errors
    /// Names the first tensor whose bytes differ.
    pub fn verify(&self, file: &[u8]) -> Result<bool, Error> {
        if !self.has_extension {
            return Ok(false);
        }
        let table = self.tensors().last().map_or(0, |t| t.offset + t.bytes) as usize;
        for (index, tensor) in self.tensors().enumerate() {
            let start = tensor.offset as usize;
            let crc = crc32fast::hash(&file[start..start + tensor.bytes as usize]);
            if crc != u32_at(file, table + 4 * index) {
                return Err(Error::Checksum { what: tensor.id.to_string() });
            }
        }
        Ok(true)
    }
}

fn parse_scaling(r: &mut Cursor<'_>) -> Result<Option<RopeScaling>, Error> {
    let kind = r.u32("rope scaling")?;
    let original_ctx = r.u32("rope original context")?;
    let factor = r.f32("rope factor")?;
    let low_freq_factor = r.f32("rope low_freq_factor")?;
    let high_freq_factor = r.f32("rope high_freq_factor")?;
    match kind {
        0 => Ok(None),
        1 => Ok(Some(RopeScaling::Linear { factor })),
        2 => Ok(Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_ctx,
        })),
        _ => Err(Error::Unsupported(format!("rope scaling kind {kind}"))),
    }
}

fn emit_scaling(scaling: Option<RopeScaling>, w: &mut Writer<'_>) {
    let (kind, original_ctx, factors) = match scaling {
        None => (0u32, 0, [0.0; 3]),
        Some(RopeScaling::Linear { factor }) => (1, 0, [factor, 0.0, 0.0]),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_ctx }) => {
            (2, original_ctx, [factor, low_freq_factor, high_freq_factor])
        }
    };
    w.put(&kind.to_le_bytes());
    w.put(&original_ctx.to_le_bytes());
    for factor in factors {
        w.put(&factor.to_le_bytes());
    }
}

fn parse_stop_ids(r: &mut Cursor<'_>) -> Result<Vec<u32>, Error> {
    let n = r.u32("number of stop ids")?;
    if n as usize > STOP_IDS_MAX {
        return Err(field("number of stop ids", n, "at most 8"));
    }
    let mut ids = Vec::with_capacity(STOP_IDS_MAX);
    for i in 0..STOP_IDS_MAX {
        let id = r.u32("stop id")?;
        if i < n as usize {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn positive(r: &mut Cursor<'_>, name: &'static str) -> Result<usize, Error> {
    let value = r.i32(name)?;
    match usize::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(field(name, value, "above 0")),
    }
}

fn field(field: &'static str, value: impl Into<i64>, wanted: &str) -> Error {
    Error::Field { field, value: value.into(), wanted: wanted.to_owned() }
}

/// Reads four bytes that the caller knows to be there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(array)
}

fn header_crc(bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..CRC_AT]);
    crc.update(&[0; 4]);
    crc.update(&bytes[CRC_AT + 4..HEADER_LEN]);
    crc.finalize()
}

struct Writer<'a> {
    bytes: &'a mut [u8; HEADER_LEN],
    pos: usize,
}

impl Writer<'_> {
    fn put(&mut self, value: &[u8]) {
        self.bytes[self.pos..self.pos + value.len()].copy_from_slice(value);
        self.pos += value.len();
    }
}

#[cfg(test)]
mod tests;
