//! Sizes that all nodes of a ring agree on; OPEN has them.

use super::fields::{put, u16_at, u32_at};
use super::{Dtype, KvType, WireError};

/// Sizes that all nodes of a ring agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Longest context of a stream.
    pub ctx_len: u32,
    /// Number of streams.
    pub n_streams: u16,
    /// KV pages that the streams share.
    pub n_pages: u32,
    /// Most rows of a batch.
    pub max_batch: u16,
    /// Most rows of a batch whose logits may be wanted.
    pub max_logits: u16,
    /// Type of stored keys and values.
    pub kv: KvType,
    /// Type of activations on the wire.
    pub wire: Dtype,
    /// Values in a row of activations.
    pub dim: u32,
}

impl Sizes {
    /// Reads the sizes from a frame's header.
    pub(super) fn parse<const N: usize>(header: &[u8; N], wire: Dtype) -> Result<Sizes, WireError> {
        Ok(Sizes {
            ctx_len: u32_at(header, 32),
            n_streams: u16_at(header, 24),
            n_pages: u32_at(header, 40),
            max_batch: u16_at(header, 20),
            max_logits: u16_at(header, 22),
            kv: KvType::from_code(header[6]).ok_or(WireError::Field("kind of keys and values"))?,
            wire,
            dim: u32_at(header, 16),
        })
    }

    /// Writes the sizes to a frame's header.
    pub(super) fn emit(&self, header: &mut [u8]) {
        (header[5], header[6]) = (self.wire as u8, self.kv as u8);
        put(header, 16, &self.dim.to_le_bytes());
        put(header, 20, &self.max_batch.to_le_bytes());
        put(header, 22, &self.max_logits.to_le_bytes());
        put(header, 24, &self.n_streams.to_le_bytes());
        put(header, 32, &self.ctx_len.to_le_bytes());
        put(header, 40, &self.n_pages.to_le_bytes());
    }
}
