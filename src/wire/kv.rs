//! Pieces of keys and values in frames.

use super::fields::{put, u16_at, u32_at};

/// Which keys and values a frame holds: bytes of what a stream has of a layer in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPiece {
    /// The layer.
    pub layer: u32,
    /// The stream.
    pub stream: u16,
    /// Positions that it has stored.
    pub reached: u32,
    /// The page, counted in the stream.
    pub page: u32,
    /// The first byte.
    pub first: u32,
    /// How many they are.
    pub bytes: u32,
}

impl KvPiece {
    /// Reads it from a frame's header.
    pub(super) fn parse<const N: usize>(header: &[u8; N]) -> KvPiece {
        KvPiece {
            layer: u32_at(header, 12),
            page: u32_at(header, 16),
            stream: u16_at(header, 24),
            reached: u32_at(header, 32),
            first: u32_at(header, 36),
            bytes: u32_at(header, 40),
        }
    }

    /// Writes it.
    pub(super) fn emit(&self, header: &mut [u8]) {
        put(header, 12, &self.layer.to_le_bytes());
        put(header, 16, &self.page.to_le_bytes());
        put(header, 24, &self.stream.to_le_bytes());
        put(header, 32, &self.reached.to_le_bytes());
        put(header, 36, &self.first.to_le_bytes());
        put(header, 40, &self.bytes.to_le_bytes());
    }
}
