//! How much of everything a run needs, decided and checked before the first token.

use std::fmt;

use super::Share;
use super::buffers::Buffers;
use crate::arena::Carver;
use crate::format::model::{Header, Weights};

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Half precision: half the memory.
    F16,
    /// Single precision, for exact comparisons.
    F32,
}

impl KvType {
    /// What suits the weights: f32 weights are run for exactness, others for speed.
    pub fn for_weights(weights: Weights) -> KvType {
        match weights {
            Weights::F32 => KvType::F32,
            Weights::Q8 { .. } | Weights::Q4 { .. } => KvType::F16,
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Longest context of a stream, in tokens.
    pub ctx_len: usize,
    /// Most rows of one forward pass.
    pub max_batch: usize,
    /// Most rows of one forward pass whose logits are wanted.
    pub max_logits: usize,
    /// Streams that have a KV cache of their own.
    pub n_streams: usize,
    /// How keys and values are kept.
    pub kv: KvType,
}

/// Most streams, and most rows or wanted logits of a forward pass: batches number them in 16 bits.
const COUNT_MAX: usize = u16::MAX as usize;

/// A run that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The context is longer than the model was made for, or empty.
    ContextLength {
        /// Tokens asked for.
        wanted: usize,
        /// Tokens the model allows.
        max: usize,
    },
    /// Batch, logits or streams are zero, or more than can be numbered.
    Count {
        /// Which of them.
        what: &'static str,
        /// How many were asked for.
        wanted: usize,
    },
    /// The buffers would need more bytes than there are addresses.
    TooLarge,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::ContextLength { wanted, max } => {
                write!(f, "context of {wanted} tokens, the model allows 1 to {max}")
            }
            PlanError::Count { what, wanted } => {
                write!(f, "{wanted} {what}, there can be 1 to {COUNT_MAX}")
            }
            PlanError::TooLarge => write!(f, "context and batch need more memory than exists"),
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Bytes of all buffers and of the KV cache for a share of a model.
    ///
    /// # Errors
    /// If `self` does not fit the model.
    pub fn bytes(&self, header: &Header, share: &Share) -> Result<usize, PlanError> {
        if self.ctx_len == 0 || self.ctx_len > header.max_seq_len {
            let max = header.max_seq_len;
            return Err(PlanError::ContextLength { wanted: self.ctx_len, max });
        }
        let counts = [
            ("rows of a batch", self.max_batch),
            ("logits of a batch", self.max_logits),
            ("streams", self.n_streams),
        ];
        for (what, wanted) in counts {
            if !(1..=COUNT_MAX).contains(&wanted) {
                return Err(PlanError::Count { what, wanted });
            }
        }
        let mut carver = Carver::counting();
        match Buffers::carve(header, share, self, &mut carver) {
            Ok(_) if carver.used() <= isize::MAX as usize => Ok(carver.used()),
            _ => Err(PlanError::TooLarge),
        }
    }

    /// Positions the KV cache holds: all of them, or what a sliding window can look back to
    /// from any row of a batch.
    pub(super) fn kv_len(&self, header: &Header) -> usize {
        match header.sliding_window {
            Some(window) => self.ctx_len.min(window.saturating_add(self.max_batch)),
            None => self.ctx_len,
        }
    }

    /// Values of the KV cache of `n_layers`, saturating.
    pub(super) fn kv_values(&self, header: &Header, n_layers: usize) -> usize {
        let per_position = 2 * header.kv_dim();
        [self.n_streams, n_layers, self.kv_len(header)]
            .into_iter()
            .fold(per_position, usize::saturating_mul)
    }
}
