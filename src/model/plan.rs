//! How much of everything a run needs, decided and checked before the first token.

use std::fmt;
use std::ops::Range;

use super::precision::Precision;
use crate::format::model::Header;

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
    pub kv: Precision,
}

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
    /// There are to be none of these: rows of a batch, wanted logits or streams.
    Count(&'static str),
    /// The buffers would need more bytes than there are addresses.
    TooLarge,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::ContextLength { wanted, max } => {
                write!(f, "context of {wanted} tokens, the model allows 1 to {max}")
            }
            PlanError::Count(what) => write!(f, "0 {what}, there has to be 1 at least"),
            PlanError::TooLarge => write!(f, "context and batch need more memory than exists"),
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Whether the model of `header` can be run so.
    ///
    /// # Errors
    /// Says what does not fit.
    pub(super) fn check(&self, header: &Header) -> Result<(), PlanError> {
        if self.ctx_len == 0 || self.ctx_len > header.max_seq_len {
            let max = header.max_seq_len;
            return Err(PlanError::ContextLength { wanted: self.ctx_len, max });
        }
        let counts = [
            ("streams", self.n_streams),
            ("rows of a batch", self.max_batch),
            ("logits of a batch", self.max_logits),
        ];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((what, _)) => Err(PlanError::Count(what)),
            None => Ok(()),
        }
    }

    /// Positions that the KV cache holds of a layer with this window: all of them, or what any row of a
    /// batch can look back to.
    pub(super) fn kv_len(&self, window: Option<usize>) -> usize {
        let seen = window.map_or(usize::MAX, |window| window.saturating_add(self.max_batch));
        self.ctx_len.min(seen)
    }

    /// Values of the KV cache of one stream in these layers, saturating.
    pub(super) fn kv_values(&self, header: &Header, layers: Range<usize>) -> usize {
        let lengths = layers.map(|layer| self.kv_len(header.layer(layer).window));
        let positions = lengths.fold(0, usize::saturating_add);
        positions.saturating_mul(2 * header.kv_dim())
    }
}
