//! Model files: a 256-byte header, then tensors, then a table of checksums.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic 0x616B3432
//! 4       i32      version: 1 = f32, 2 = int8, 3 = 4 bits; 256 more if the matrices are packed,
//!                  512 more if the file holds only some layers
//! 8       i32 × 7  dim, ffn_dim, n_layers, n_heads, n_kv_heads, vocab_size, max_seq_len
//! 36      u8       shared_classifier
//! 37      i32      group_size (versions 2 and 3; unaligned)
//! 64      u32      extension magic "LEAX"; all zero up to 256 if there is no extension
//! 68      u32      extension version, 1
//! 72      u32      extension length in bytes from offset 64, 132; 148 if the matrices are packed;
//!                  168 if the file holds only some layers
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
//! 196     u32 × 2  packed matrices: number of their layout, rows of a panel
//! 204     u64      packed matrices: fingerprint of the same model with none packed
//! 212     u32 × 2  some layers: the first, and the one after the last
//! 220     u32      some layers: 1 if embedding, final norm and classifier are there, else 0
//! 224     u64      some layers: fingerprint of the whole model with no packed matrix
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
//!
//! Packed matrices are those that are multiplied by: all but an embedding that is not the classifier
//! too. Their numbers stand in the order that some kernels want, which only those know; a matrix has
//! as many bytes as one with its rows rounded up to whole panels. Every tensor of such a file is
//! filled up with zeros to a multiple of 128 bytes. The version keeps readers away that do not know
//! of any order but the plain one.
//!
//! A file of some layers is for one node of a ring: it has the header of the whole model, but of the
//! tensors only those of its layers. All such files of one model have one fingerprint.

mod bytes;
mod fingerprint;
mod tensors;
mod weights;

use std::ops::Range;

use super::{ChatTemplate, Error};
use bytes::field;

pub use fingerprint::fingerprint;
pub use tensors::{Tensor, TensorId, TensorKind};
pub use weights::{Encoding, Weights};

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

const GROUP_MIN: usize = 32;
const GROUP_MAX: usize = 1 << 16;

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

/// How the matrices of a file are packed for some kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Number of the layout; a layout that changes gets another.
    pub layout: u32,
    /// Rows of a panel, at most [`PANEL_ROWS_MAX`].
    pub panel_rows: usize,
    /// [`Header::fingerprint`] of the same model with no packed matrix.
    pub fingerprint: u64,
}

/// Which layers a file holds, if it is not all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// First layer and layer after the last.
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
    /// The order of the matrices' numbers; `None` for the plain one, row after row.
    pub packed: Option<Packed>,
    /// The layers in the file; `None` for all.
    pub part: Option<Part>,
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
        self.check_packed()?;
        self.check_part()?;
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

    fn check_packed(&self) -> Result<(), Error> {
        let Some(Packed { panel_rows, .. }) = self.packed else { return Ok(()) };
        if self.weights == Weights::F32 {
            return Err(Error::Unsupported("packed f32 weights".to_owned()));
        }
        match (1..=PANEL_ROWS_MAX).contains(&panel_rows) {
            true => Ok(()),
            false => {
                let wanted = format!("1 to {PANEL_ROWS_MAX}");
                Err(field("rows of a panel", panel_rows as u32, &wanted))
            }
        }
    }

    fn check_part(&self) -> Result<(), Error> {
        let Some(Part { layers, .. }) = &self.part else { return Ok(()) };
        match layers.start < layers.end && layers.end <= self.n_layers {
            true => Ok(()),
            false => {
                let (Range { start, end }, n_layers) = (layers, self.n_layers);
                Err(Error::Unsupported(format!("layers {start}..{end} of {n_layers}")))
            }
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
}

#[cfg(test)]
mod tests;
