//! The header of a model file.

use std::ops::Range;

#[cfg(feature = "tools")]
use super::features::DenseLayers;
use super::features::Features;
use super::ggml_types::GgmlTypes;
#[cfg(feature = "tools")]
use super::layer_set::LayerSet;
use super::slice::Slice;
use super::weights::Weights;
use crate::format::ChatTemplate;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 256;
/// First four bytes of every model file.
pub const MAGIC: u32 = 0x616B_3432;
/// Maximum number of stop ids in a header.
pub const STOP_IDS_MAX: usize = 8;
/// Longest context that a header may claim; a larger value means damage.
pub const SEQ_LEN_MAX: usize = 1 << 24;
/// Widest attention head that the kernels support.
pub const HEAD_DIM_MAX: usize = 512;

/// Alignment, in bytes, of the tensors of a file with packed matrices.
pub const PACKED_ALIGN: u64 = 128;
/// Maximum number of rows of a panel.
pub const PANEL_ROWS_MAX: usize = 256;

/// Model family of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Architecture {
    /// Llama and all models of the same shape.
    Llama = 0,
    /// Mistral 7B: Llama with a sliding window.
    Mistral = 1,
    /// Qwen2 and Qwen2.5: biases of queries, keys and values.
    Qwen2 = 2,
    /// Qwen3: norms of queries and keys.
    Qwen3 = 3,
    /// SmolLM3: some layers without RoPE.
    SmolLm3 = 4,
    /// Granite: multipliers of embeddings, scores, residuals and logits.
    Granite = 5,
    /// Gemma 3, text only: four norms per layer, GELU, local and global layers.
    Gemma3 = 6,
    /// Phi 3 and Phi-4-mini: rotates only a part of each head.
    Phi3 = 7,
    /// Qwen3 with mixtures of experts.
    Qwen3Moe = 8,
    /// gpt-oss: mixtures of experts with biases, and attention sinks.
    GptOss = 9,
    /// LFM2 and LFM2.5: most layers are short convolutions.
    Lfm2 = 10,
    /// Qwen3.5: most layers have the gated delta rule.
    Qwen35 = 11,
    /// Granite 4: Granite with gate and up in one tensor.
    Granite4 = 12,
    /// Gemma 4, text only: layers with heads and keys of other layers, and inputs of their own.
    Gemma4 = 13,
    /// BERT and encoders of its shape: embeddings only.
    Bert = 14,
    /// nomic's BERT: RoPE, gates and no biases.
    NomicBert = 15,
}

impl Architecture {
    pub(super) const ALL: [Architecture; 16] = [
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
        Architecture::Lfm2,
        Architecture::Qwen35,
        Architecture::Granite4,
        Architecture::Gemma4,
        Architecture::Bert,
        Architecture::NomicBert,
    ];
}

/// Scaling of RoPE frequencies for contexts longer than the training context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor, above 0.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths are divided by `factor`, short ones are kept, with a blend in between.
    Llama3 {
        /// Divisor of the low frequencies, above 0.
        factor: f32,
        /// Wavelengths above `original_ctx / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_ctx / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length in training.
        original_ctx: u32,
    },
    /// YaRN (arXiv:2309.00071), by a pair's turns in the training context: pairs with fewer than `beta_slow`
    /// are divided by `factor`, pairs with more than `beta_fast` are kept, with a blend in between.
    Yarn {
        /// Divisor of the low frequencies, above 0.
        factor: f32,
        /// Number of turns below which a pair is divided.
        beta_slow: f32,
        /// Number of turns above which a pair is kept.
        beta_fast: f32,
        /// Context length in training.
        original_ctx: u32,
        /// Whether the blend begins and ends at whole pairs.
        is_truncated: bool,
    },
    /// Each frequency has its own divisor, see [`Features::rope_divisors`].
    Divisors,
}

/// Packing of a file's matrices for the kernels of one instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Id of the layout; a changed layout gets a new id.
    pub layout: u32,
    /// Rows of a panel, at most [`PANEL_ROWS_MAX`].
    pub panel_rows: usize,
    /// Whether a shared classifier is stored once, as the packed embedding. Files of LEAP 0.2.0 hold it twice: the
    /// embedding row by row, and a packed classifier.
    pub shares_embedding: bool,
    /// [`Header::fingerprint`] of the same model without packing.
    pub fingerprint: u64,
}

/// The part of a model that a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileShare {
    /// Layers in the file.
    pub layers: Range<usize>,
    /// Whether the file holds embedding, final norm and classifier.
    pub has_ends: bool,
    /// [`Header::fingerprint`] of the whole model without packing.
    pub fingerprint: u64,
    /// Rows of its matrices in the file; `None` for all.
    pub slice: Option<Slice>,
}

/// The header of a model file. A value from [`Header::parse`] is consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Encoding of the matrices.
    pub weights: Weights,
    /// Types of blocks, if that is the encoding.
    pub ggml: GgmlTypes,
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Number of ids: rows of the embedding and of the classifier.
    pub vocab_size: usize,
    /// Longest context in tokens.
    pub max_seq_len: usize,
    /// Whether the embedding is also the classifier.
    pub shared_classifier: bool,
    /// Width of one attention head.
    pub head_dim: usize,
    /// Epsilon: added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Scaling of the RoPE frequencies.
    pub rope_scaling: Option<RopeScaling>,
    /// Positions that a token attends to, including its own; `None` for all.
    pub sliding_window: Option<usize>,
    /// Model family of the checkpoint.
    pub architecture: Architecture,
    /// Features of the layers that Llama's lack.
    pub features: Features,
    /// Id that begins a text.
    pub bos: Option<u32>,
    /// Ids that end an answer, at most [`STOP_IDS_MAX`].
    pub stop_ids: Vec<u32>,
    /// Form of conversations.
    pub chat_template: ChatTemplate,
    /// [`crate::format::tokenizer::fingerprint`] of the tokenizer file; 0 if unknown.
    pub tokenizer_hash: u64,
    /// Whether the file has the extension, or gets it when written.
    pub has_extension: bool,
    /// Packing of the matrices; `None` if they are row-major.
    pub packed: Option<Packed>,
    /// Part of the model in the file; `None` for the whole model.
    pub share: Option<FileShare>,
}

impl Header {
    /// A header to start from: Llama with all sizes 0, and the values that a file without extension implies.
    pub(crate) fn blank(weights: Weights) -> Header {
        Header {
            weights,
            ggml: GgmlTypes::default(),
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

    /// Width of the gate of attention's output; 0 if there is none.
    pub fn gate_dim(&self) -> usize {
        if self.features.output_gate { self.q_dim() } else { 0 }
    }

    /// Number of values of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        self.features.rotary_dim.unwrap_or(self.head_dim)
    }

    /// Number of feed-forward layers in a layer: its experts, or 1.
    pub fn n_ffns(&self) -> usize {
        self.features.experts.map_or(1, |experts| experts.n)
    }

    /// FFN width of the dense layers, or of the layers beside mixtures; 0 if there are none.
    pub fn dense_ffn_dim(&self) -> usize {
        let beside = self.features.more.parallel_ffn.unwrap_or(0);
        self.features.dense.map_or(beside, |dense| dense.ffn_dim)
    }

    /// Width of the widest feed-forward layer, or expert.
    pub fn ffn_dim_max(&self) -> usize {
        self.ffn_dim.max(self.dense_ffn_dim())
    }

    /// Makes `layers`, which are ascending, dense layers of width `ffn_dim`. If these are all layers, the
    /// model is no longer a mixture.
    ///
    /// # Errors
    /// If the file format cannot express this.
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

    /// Whether `layer` is a dense layer in a model of mixtures, or one of another width.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.features.dense.is_some_and(|dense| dense.layers.contains(layer))
    }

    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }
}
