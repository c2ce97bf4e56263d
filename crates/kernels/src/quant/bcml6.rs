//! BCML6: 6 bits in blocks of 32 consecutive values of a row, with scales in two levels: 6.25 bits a weight,
//! and 4 bytes a row. For an embedding and classifier that int8 makes too large.
//!
//! ```text
//! offset  type     field of a row
//! 0       f32      step
//! 4                blocks of 25 bytes, k / 32 of them, then zeros up to a multiple of 4
//!
//! offset  type     field of a block
//! 0       u8       scale in its low seven bits; the highest is ignored
//! 1       u8 × 16  low four bits of codes: byte i holds value i in its low four bits and value i + 16 in its high
//! 17      u8 × 8   high two bits: byte i holds values i, i + 8, i + 16 and i + 24, from its low bits on
//!
//! w = (step * scale) * (code - 32)
//! ```
//!
//! A matrix is its rows, without gaps, each a multiple of four bytes. Numbers are little-endian; a row may stand
//! at any address.
//!
//! A code less 32 is an i8, and step times scale, rounded once, is a scale as int8 weights have one for each group. In
//! products a block is therefore a group of 32 int8 weights, and the kernels of int8 weights multiply unpacked blocks.
//! The zero is always code 32. Classifiers gain little by a zero for each block: if values lie on both sides of 0, as
//! nearly always, less than half of the 64 codes are unused.

mod encode;

use bytemuck::{Pod, Zeroable};

use super::bcml1;
use super::rows::{self, StepMatrix};
pub use bcml1::BLOCK;
pub use encode::{encode, encode_row};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = size_of::<Block>();

const _: () = assert!(BLOCK_BYTES == 25);

/// The code that stands for 0.
pub const ZERO: u8 = 32;

/// Bits of the scale in a block's first byte.
const SCALE_MASK: u8 = 0x7f;

/// Bytes of a row of `k` values.
pub const fn row_bytes(k: usize) -> usize {
    rows::row_bytes::<Block>(k)
}

/// 32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    scale: u8,
    low: [u8; BLOCK / 2],
    high: [u8; BLOCK / 4],
}

impl Block {
    /// Makes a block of codes of six bits in the order of the values.
    pub fn new(scale: u8, codes: [u8; BLOCK]) -> Block {
        let low = |i: usize| codes[i] & 15;
        let high = |i: usize| codes[i] >> 4 & 3;
        Block {
            scale,
            low: std::array::from_fn(|i| low(i) | low(i + 16) << 4),
            high: std::array::from_fn(|i| {
                high(i) | high(i + 8) << 2 | high(i + 16) << 4 | high(i + 24) << 6
            }),
        }
    }

    /// Factor of all values of the block, 0 to 127.
    pub fn scale(&self) -> u8 {
        self.scale & SCALE_MASK
    }

    /// The codes in the order of the values.
    pub fn codes(&self) -> [u8; BLOCK] {
        std::array::from_fn(|i| {
            let (low, high) = (self.low[i % 16] >> (i / 16 * 4), self.high[i % 8] >> (i / 8 * 2));
            low & 15 | (high & 3) << 4
        })
    }

    /// The values in units of the block's scale, -32 to 31.
    pub fn values(&self) -> [i8; BLOCK] {
        self.codes().map(|code| code as i8 - ZERO as i8)
    }
}

/// A row of weights.
pub type Row<'a> = rows::Row<'a, Block>;

/// A weight matrix `[rows, k]` in blocks.
pub type Bcml6Matrix<'a> = StepMatrix<'a, Block>;

/// The values of a row. Each is a small integer times the scale, rounded once.
///
/// # Panics
///
/// When `out` is not 32 values for each block.
pub fn decode(row: Row<'_>, out: &mut [f32]) {
    assert_eq!(row.blocks.len() * BLOCK, out.len());
    for (block, out) in row.blocks.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
        let scale = row.step * f32::from(block.scale());
        *out = block.values().map(|value| scale * f32::from(value));
    }
}

#[cfg(test)]
mod tests;
