//! Matrices of ggml's blocks.

use std::ops::Range;

use super::Ggml;
use crate::quant::QuantError;

/// A weight matrix `[rows, k]` in blocks of one type, always of whole rows. The bytes may have any values, because files
/// may hold anything.
#[derive(Debug, Clone, Copy)]
pub struct GgmlMatrix<'a> {
    kind: Ggml,
    bytes: &'a [u8],
    k: usize,
}

impl<'a> GgmlMatrix<'a> {
    /// Takes the bytes of rows of `k` values; the row count follows from them.
    ///
    /// # Errors
    ///
    /// When `k` is no whole number of blocks, or the bytes no whole number of rows.
    pub fn new(kind: Ggml, bytes: &'a [u8], k: usize) -> Result<Self, QuantError> {
        if k == 0 || !k.is_multiple_of(kind.len()) {
            return Err(QuantError::RowLen { k, group: kind.len() });
        }
        match bytes.len().is_multiple_of(kind.row_bytes(k)) {
            true => Ok(GgmlMatrix { kind, bytes, k }),
            false => Err(QuantError::Bytes { found: bytes.len(), k }),
        }
    }

    /// Type of the blocks.
    pub fn kind(&self) -> Ggml {
        self.kind
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.kind.row_bytes(self.k)
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The blocks of one row.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`GgmlMatrix::rows`].
    pub fn row(&self, index: usize) -> &'a [u8] {
        let bytes = self.kind.row_bytes(self.k);
        &self.bytes[index * bytes..][..bytes]
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..rows`.
    pub fn slice_rows(&self, range: Range<usize>) -> GgmlMatrix<'a> {
        let row = self.kind.row_bytes(self.k);
        GgmlMatrix { bytes: &self.bytes[range.start * row..range.end * row], ..*self }
    }
}
