//! BCML1: 4 bits in blocks of 32 consecutive values of a row, `w = code * multiplier + offset`.
//!
//! ```text
//! offset  type     field
//! 0       f16      multiplier
//! 2       f16      offset
//! 4       u8 × 16  codes: byte i holds value i in its low four bits and value i + 16 in its high
//! ```
//!
//! A matrix is its blocks in the order of its row-major values, without gaps. Numbers are
//! little-endian; a block may stand at any address.
//!
//! The encoder looks for the f16 multiplier and offset with the least squared error of the block (`encode`). Its result
//! is never worse than rounding to sixteen steps from the least value to the largest.

mod encode;

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::q8::QuantError;

/// Values of a block.
pub const BLOCK: usize = 32;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = size_of::<Block>();

const _: () = assert!(BLOCK_BYTES == 20);

/// Largest magnitude of a weight that can be encoded: the largest finite f16.
pub const WEIGHT_MAX: f32 = 65504.0;

pub use encode::encode;
#[cfg(feature = "tools")]
pub(super) use encode::to_f16;

/// 32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// Multiplier, then offset.
    parameters: [u8; 4],
    /// Value `i` in the low four bits of byte `i`, value `i + 16` in the high ones.
    pub codes: [u8; 16],
}

impl Block {
    /// Puts a block together.
    pub fn new(multiplier: f16, offset: f16, codes: [u8; 16]) -> Block {
        let ([m0, m1], [o0, o1]) = (multiplier.to_le_bytes(), offset.to_le_bytes());
        Block { parameters: [m0, m1, o0, o1], codes }
    }

    /// Factor of a code.
    pub fn multiplier(&self) -> f16 {
        f16::from_bits(self.parameters() as u16)
    }

    /// Addend of a value.
    pub fn offset(&self) -> f16 {
        f16::from_bits((self.parameters() >> 16) as u16)
    }

    /// The bits of the multiplier, with those of the offset above them.
    pub fn parameters(&self) -> u32 {
        u32::from_le_bytes(self.parameters)
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

    /// The 32 values. A product is exact in f32; the sum is rounded.
    pub fn decode(&self) -> [f32; BLOCK] {
        let (multiplier, offset) = (self.multiplier().to_f32(), self.offset().to_f32());
        self.codes().map(|code| f32::from(code) * multiplier + offset)
    }
}

/// A weight matrix `[rows, k]` in blocks, always of whole rows. Multipliers and offsets may be any f16, because files
/// may hold anything.
#[derive(Debug, Clone, Copy)]
pub struct Bcml1Matrix<'a> {
    blocks: &'a [Block],
    /// Blocks in a row.
    row_blocks: usize,
}

impl<'a> Bcml1Matrix<'a> {
    /// Takes the bytes of `[rows, k / 32]` blocks; the row count follows from them.
    ///
    /// # Errors
    ///
    /// When `k` is no whole number of blocks, or the bytes no whole number of rows.
    pub fn new(bytes: &'a [u8], k: usize) -> Result<Self, QuantError> {
        if k == 0 || !k.is_multiple_of(BLOCK) {
            return Err(QuantError::RowLen { k, group: BLOCK });
        }
        let row_blocks = k / BLOCK;
        match bytemuck::try_cast_slice::<u8, Block>(bytes) {
            Ok(blocks) if blocks.len().is_multiple_of(row_blocks) => {
                Ok(Bcml1Matrix { blocks, row_blocks })
            }
            _ => Err(QuantError::Bytes { found: bytes.len(), k }),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.blocks.len() / self.row_blocks
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.row_blocks * BLOCK
    }

    /// The blocks of one row, `[k / 32]`.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`Bcml1Matrix::rows`].
    pub fn row(&self, index: usize) -> &'a [Block] {
        &self.blocks[index * self.row_blocks..][..self.row_blocks]
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..rows`.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Bcml1Matrix<'a> {
        let blocks = &self.blocks[range.start * self.row_blocks..range.end * self.row_blocks];
        Bcml1Matrix { blocks, ..*self }
    }
}

/// `out = code * multiplier + offset`, block by block.
///
/// # Panics
///
/// When `out` is not 32 values for each block.
pub fn decode(blocks: &[Block], out: &mut [f32]) {
    assert_eq!(blocks.len() * BLOCK, out.len());
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
        *out = block.decode();
    }
}

#[cfg(test)]
mod tests;
