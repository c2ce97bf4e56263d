//! What the header of a model file says.

use std::ops::Range;

use super::weights::Weights;
use crate::format::ChatTemplate;

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

/// Tensors of a file with packed matrices start at multiples of this.
pub const PACKED_ALIGN: u64 = 128;
/// Most rows a panel may have.
pub const PANEL_ROWS_MAX: usize = 256;

/// Family of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Architecture {
    /// Llama and everything shaped like it.
    Llama = 0,
    /// Mistral 7B: Llama with a sliding window.
    Mistral = 1,
}

/// How RoPE frequencies are scaled for contexts longer than the training's.
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

/// How the matrices of a file are packed for the kernels of one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Id of the layout; a layout that changes gets a new one.
    pub layout: u32,
    /// Rows of a panel, at most [`PANEL_ROWS_MAX`].
    pub panel_rows: usize,
    /// [`Header::fingerprint`] of the same model with no packed matrix.
    pub fingerprint: u64,
}

/// The share of a model that a file holds, if it is not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileShare {
    /// The layers.
    pub layers: Range<usize>,
    /// Whether embedding, final norm and classifier are there.
    pub has_ends: bool,
    /// [`Header::fingerprint`] of the whole model with no packed matrix.
    pub fingerprint: u64,
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
    /// Scaling of the RoPE frequencies.
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
    /// How matrices are packed; `None` if they are row-major.
    pub packed: Option<Packed>,
    /// The share of the model in the file; `None` for all of it.
    pub share: Option<FileShare>,
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
}
