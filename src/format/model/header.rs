//! The header of a model file.

use std::ops::Range;

use super::features::Features;
#[cfg(feature = "tools")]
use super::features::{DenseLayers, LayerSet};
use super::slice::Slice;
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
    /// Qwen2 and Qwen2.5: biases of queries, keys and values.
    Qwen2 = 2,
    /// Qwen3: norms of queries and keys.
    Qwen3 = 3,
    /// SmolLM3: no rotation in some layers.
    SmolLm3 = 4,
    /// Granite: multipliers of embeddings, scores, residuals and logits.
    Granite = 5,
    /// Gemma 3, text: four norms a layer, GELU, local and global layers.
    Gemma3 = 6,
    /// Phi 3 and Phi-4-mini: rotation of a part of each head.
    Phi3 = 7,
    /// Qwen3's mixture of experts.
    Qwen3Moe = 8,
    /// gpt-oss: a mixture with biases and sinks.
    GptOss = 9,
}

impl Architecture {
    pub(super) const ALL: [Architecture; 10] = [
        Architecture::Llama,
        Architecture::Mistral,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::SmolLm3,
        Architecture::Granite,
        Architecture::Gemma3,
        Architecture::Phi3,
        Architecture::Qwen3Moe,
        Architecture::GptOss,
    ];
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
    /// YaRN (arXiv:2309.00071): pairs that turn less than `beta_slow` times in the training's
    /// context divided by `factor`, those that turn more than `beta_fast` times kept, a blend between.
    Yarn {
        /// Divisor of the low frequencies, above 0.
        factor: f32,
        /// Turns below which a pair is divided.
        beta_slow: f32,
        /// Turns above which a pair is kept.
        beta_fast: f32,
        /// Context length of the training.
        original_ctx: u32,
        /// Whether the blend begins and ends at whole pairs.
        is_truncated: bool,
    },
    /// Each frequency by a divisor of its own, [`Features::rope_divisors`].
    Divisors,
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
    /// The rows of its matrices, if these are not all.
    pub slice: Option<Slice>,
}

/// The header of a model file. A value from [`Header::parse`] is consistent.
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
    /// Features of its layers that Llama's lack.
    pub features: Features,
    /// Id that starts a text.
    pub bos: Option<u32>,
    /// Ids that end an answer, at most [`STOP_IDS_MAX`].
    pub stop_ids: Vec<u32>,
    /// How conversations are written.
    pub chat_template: ChatTemplate,
    /// [`crate::format::tokenizer::fingerprint`] of the tokenizer file; 0 if unknown.
    pub tokenizer_hash: u64,
    /// Whether the extension is, or will be, in the file.
    pub has_extension: bool,
    /// How matrices are packed; `None` if they are row-major.
    pub packed: Option<Packed>,
    /// The share of the model in the file; `None` for all of it.
    pub share: Option<FileShare>,
}

impl Header {
    /// Llama without a size, as a file without extension stands for: what a header is made from.
    pub(crate) fn blank(weights: Weights) -> Header {
        Header {
            weights,
            dim: 0,
            ffn_dim: 0,
            n_layers: 0,
            n_heads: 0,
            n_kv_heads: 0,
            vocab_size: 0,
            max_seq_len: 0,
            shared_classifier: false,
            head_dim: 0,
            norm_eps: 1e-5,
            rope_theta: 500_000.0,
            rope_scaling: None,
            sliding_window: None,
            architecture: Architecture::Llama,
            features: Features::default(),
            bos: None,
            stop_ids: Vec::new(),
            chat_template: ChatTemplate::None,
            tokenizer_hash: 0,
            has_extension: false,
            packed: None,
            share: None,
        }
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// How many values of a head are rotated.
    pub fn rotary_dim(&self) -> usize {
        self.features.rotary_dim.unwrap_or(self.head_dim)
    }

    /// Feed-forward layers of a layer: 1, or its experts.
    pub fn n_ffns(&self) -> usize {
        self.features.experts.map_or(1, |experts| experts.n)
    }

    /// Width of the feed-forward layer where it is no mixture though others are; 0 if there is no such layer.
    pub fn dense_ffn_dim(&self) -> usize {
        self.features.dense.map_or(0, |dense| dense.ffn_dim)
    }

    /// Width of the widest feed-forward layer, or expert.
    pub fn ffn_dim_max(&self) -> usize {
        self.ffn_dim.max(self.dense_ffn_dim())
    }

    /// Has these layers, ascending, be no mixtures but feed-forward layers of this width; if they are all, the model
    /// is none either.
    ///
    /// # Errors
    /// If a file cannot say so.
    #[cfg(feature = "tools")]
    pub(crate) fn set_dense(&mut self, layers: &[usize], ffn_dim: usize) -> Result<(), String> {
        match layers.len() {
            0 => {}
            all if all == self.n_layers => {
                (self.features.experts, self.ffn_dim) = (None, ffn_dim);
            }
            _ => {
                let layers = LayerSet::new(layers.iter().copied());
                let layers = layers.ok_or("layers that differ beyond the 256th")?;
                self.features.dense = Some(DenseLayers { layers, ffn_dim });
            }
        }
        Ok(())
    }

    /// Whether layer `layer` is no mixture though others are.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.features.dense.is_some_and(|dense| dense.layers.contains(layer))
    }

    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }
}
