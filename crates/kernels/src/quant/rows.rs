//! Rows that begin with a step, the factor of all their values, followed by blocks of 32 values.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::bcml1::BLOCK;
use super::q8::QuantError;

/// Bytes of a row before its blocks.
pub const STEP_BYTES: usize = size_of::<f32>();

/// Bytes of a row of `k` values in blocks `B`: a multiple of four.
pub const fn row_bytes<B>(k: usize) -> usize {
    STEP_BYTES + (k / BLOCK * size_of::<B>()).next_multiple_of(4)
}

/// A row of weights.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a, B> {
    /// Factor of each value.
    pub step: f32,
    /// `[k / 32]`.
    pub blocks: &'a [B],
}

/// A weight matrix `[rows, k]` of rows with steps, always of whole rows. The bytes may have any values, because files
/// may hold anything.
#[derive(Debug, Clone, Copy)]
pub struct StepMatrix<'a, B> {
    bytes: &'a [u8],
    k: usize,
    blocks: PhantomData<B>,
}

impl<'a, B: Pod> StepMatrix<'a, B> {
    /// Takes the bytes of rows of `k` values; the row count follows from them.
    ///
    /// # Errors
    ///
    /// When `k` is no whole number of blocks, or the bytes no whole number of rows.
    pub fn new(bytes: &'a [u8], k: usize) -> Result<Self, QuantError> {
        const { assert!(align_of::<B>() == 1) };
        if k == 0 || !k.is_multiple_of(BLOCK) {
            return Err(QuantError::RowLen { k, group: BLOCK });
        }
        match bytes.len().is_multiple_of(row_bytes::<B>(k)) {
            true => Ok(StepMatrix { bytes, k, blocks: PhantomData }),
            false => Err(QuantError::Bytes { found: bytes.len(), k }),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes.len() / row_bytes::<B>(self.k)
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// One row.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`StepMatrix::rows`].
    pub fn row(&self, index: usize) -> Row<'a, B> {
        let row = row_bytes::<B>(self.k);
        let (step, blocks) = self.bytes[index * row..][..row].split_at(STEP_BYTES);
        let step = f32::from_le_bytes(step.as_chunks().0[0]);
        Row { step, blocks: bytemuck::cast_slice(&blocks[..self.k / BLOCK * size_of::<B>()]) }
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..rows`.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> StepMatrix<'a, B> {
        let row = row_bytes::<B>(self.k);
        StepMatrix { bytes: &self.bytes[range.start * row..range.end * row], ..*self }
    }
}

/// Writes the step and the padding of a row of `blocks` blocks, and returns the memory of the blocks.
///
/// # Panics
///
/// When `out` is not as long as such a row.
pub(super) fn begin_row<B: Pod>(step: f32, blocks: usize, out: &mut [u8]) -> &mut [B] {
    let (step_out, out) = out.split_at_mut(STEP_BYTES);
    step_out.copy_from_slice(&step.to_le_bytes());
    let (out, padding) = out.split_at_mut(blocks * size_of::<B>());
    padding.fill(0);
    bytemuck::cast_slice_mut(out)
}
