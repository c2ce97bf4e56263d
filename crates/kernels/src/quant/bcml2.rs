//! BCML2: 4 bits in blocks of 32 consecutive values of a row, with scales in two levels: 4.5 bits a weight,
//! and 4 bytes a row.
//!
//! ```text
//! offset  type     field of a row
//! 0       f32      step
//! 4                blocks of 18 bytes, k / 32 of them; if that is an odd number, two zeros
//!
//! offset  type     field of a block
//! 0       u8       scale in its low seven bits; the highest is ignored
//! 1       u8       zero: the code of the value 0, in sixteenths
//! 2       u8 × 16  codes: byte i holds value i in its low four bits and value i + 16 in its high
//!
//! w = step * (scale * (16 * code - zero))
//! ```
//!
//! A matrix is its rows, without gaps, each a multiple of four bytes. Numbers are little-endian; a row may stand
//! at any address.
//!
//! Blocks sum up in integers: a scale of seven bits times a zero of eight fits 16 bits, and a sum of 256 products with
//! int8 activations fits 32. Floats come in once for each group of activations, and the step once for each output. A
//! zero needs few bits because it counts in its own block's scale. With 127 scales up to the row's largest, and 16
//! zeros between two codes, a block's squared error is within a per cent of that of a line of floats.

mod encode;

use bytemuck::{Pod, Zeroable};

use super::bcml1;
use super::rows::{self, StepMatrix};
pub use bcml1::BLOCK;
#[cfg(feature = "tools")]
pub(super) use encode::{Line, Snapped, largest_multiplier, snap, step_for};
pub use encode::{encode, encode_row};
pub use rows::STEP_BYTES;
#[cfg(feature = "tools")]
pub(super) use rows::begin_row;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = size_of::<Block>();

const _: () = assert!(BLOCK_BYTES == 18);

/// Bits of the scale in a block's first byte.
pub const SCALE_MASK: u8 = 0x7f;

/// Values of a zero between two codes.
pub const ZERO_PARTS: i32 = 16;

/// Bytes of a row of `k` values.
pub const fn row_bytes(k: usize) -> usize {
    rows::row_bytes::<Block>(k)
}

/// 32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    scale: u8,
    /// Code of the value 0, in sixteenths.
    pub zero: u8,
    /// Value `i` in the low four bits of byte `i`, value `i + 16` in the high ones.
    pub codes: [u8; BLOCK / 2],
}

impl Block {
    /// Puts a block together.
    pub fn new(scale: u8, zero: u8, codes: [u8; BLOCK / 2]) -> Block {
        Block { scale, zero, codes }
    }

    /// Factor of all values of the block, 0 to 127.
    pub fn scale(&self) -> u8 {
        self.scale & SCALE_MASK
    }

    /// The codes in the order of the values.
    pub fn codes(&self) -> [u8; BLOCK] {
        let mut codes = [0; BLOCK];
        let (low, high) = codes.split_at_mut(BLOCK / 2);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(self.codes) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
        codes
    }

    /// The 32 values in steps.
    pub fn in_steps(&self) -> [i32; BLOCK] {
        let (scale, zero) = (i32::from(self.scale()), i32::from(self.zero));
        self.codes().map(|code| scale * (ZERO_PARTS * i32::from(code) - zero))
    }
}

/// A row of weights.
pub type Row<'a> = rows::Row<'a, Block>;

/// A weight matrix `[rows, k]` in blocks.
pub type Bcml2Matrix<'a> = StepMatrix<'a, Block>;

/// The values of a row. Each is a small integer times the step, rounded once.
///
/// # Panics
///
/// When `out` is not 32 values for each block.
pub fn decode(row: Row<'_>, out: &mut [f32]) {
    assert_eq!(row.blocks.len() * BLOCK, out.len());
    for (block, out) in row.blocks.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
        *out = block.in_steps().map(|value| row.step * value as f32);
    }
}

#[cfg(test)]
mod tests;
