//! A tensor as its file stores it: type, shape, and where its values lie.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::slice;

use super::dtype::ValueType;
use crate::export::error::ExportError;
use crate::sys::map::Map;

/// A mapped file.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) map: Map,
}

/// The tensors of one file, in its order.
pub(super) type TensorTable = Vec<(String, StoredTensor)>;

/// A tensor's shape and values.
#[derive(Debug)]
pub(super) struct StoredTensor {
    /// The first file that the tensor is in.
    pub(super) file: usize,
    pub(super) shape: Vec<usize>,
    /// Values of the tensor, or the reason why they cannot be used.
    pub(super) values: Result<Values, String>,
}

impl StoredTensor {
    /// Whether values are FP8, or whole numbers of eight bits.
    pub(super) fn is_in_eight_bits(&self) -> bool {
        let is_one = |dtype| matches!(dtype, ValueType::F8E4M3 | ValueType::I8);
        self.values.as_ref().is_ok_and(|values| is_one(values.dtype))
    }

    pub(super) fn is_fp8(&self) -> bool {
        self.values.as_ref().is_ok_and(|values| values.dtype == ValueType::F8E4M3)
    }
}

/// The values of a matrix, or of a vector, which is a matrix of one row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Values {
    pub(super) dtype: ValueType,
    /// The pieces, of one size, in order; never empty. They lie inside their files.
    pub(super) pieces: Vec<TensorPiece>,
    /// How the pieces make up the whole.
    pub(super) axis: Axis,
}

/// A piece of a tensor, in one file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TensorPiece {
    /// Number of the file.
    pub(super) file: usize,
    /// Offset of the first value, in bytes.
    pub(super) start: usize,
    /// Values from one row to the next, and from one column to the next.
    pub(super) strides: [usize; 2],
}

/// How pieces make up a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Axis {
    /// Each has some of the rows.
    Rows,
    /// Each has some of every row's columns.
    Cols,
}

/// Rows and columns of a shape: that of a number, a vector, a matrix or several matrices.
///
/// # Errors
/// If there are too many rows.
pub(super) fn grid(shape: &[usize]) -> Result<[usize; 2], String> {
    let rows = |all: &[usize]| all.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    match *shape {
        [] => Ok([1, 1]),
        [cols] => Ok([1, cols]),
        [ref all @ .., cols] => {
            rows(all).map(|rows| [rows, cols]).ok_or_else(|| format!("has shape {shape:?}"))
        }
    }
}

/// The values of a tensor of one piece, if it is one that can be used.
pub(super) fn single(
    dtype: Result<ValueType, String>,
    shape: &[usize],
    piece: impl FnOnce([usize; 2], ValueType) -> TensorPiece,
) -> Result<Values, String> {
    let dtype = dtype.map_err(|other| unknown(&other))?;
    Ok(Values { dtype, pieces: vec![piece(grid(shape)?, dtype)], axis: Axis::Rows })
}

/// The message about a tensor of type `other`.
pub(super) fn unknown(other: &str) -> String {
    format!("has values of type {other}, wanted F32, F16, BF16, F8_E4M3, I8 or BOOL")
}

impl TensorPiece {
    /// Converts row `row` of this piece, which is in `bytes`.
    #[inline(always)]
    pub(super) fn widen_row(&self, dtype: ValueType, bytes: &[u8], row: usize, out: &mut [f32]) {
        if self.strides[1] == 1 {
            return dtype.widen(self.row_bytes(dtype, bytes, row, out.len()), out);
        }
        let start = self.start + dtype.bytes(row * self.strides[0]);
        let (step, width) = (dtype.bytes(self.strides[1]), dtype.bytes(1));
        for (col, out) in out.iter_mut().enumerate() {
            dtype.widen(&bytes[start + col * step..][..width], slice::from_mut(out));
        }
    }

    /// The bytes of row `row`, whose `cols` values are contiguous.
    pub(super) fn row_bytes<'a>(
        &self,
        dtype: ValueType,
        bytes: &'a [u8],
        row: usize,
        cols: usize,
    ) -> &'a [u8] {
        let start = self.start + dtype.bytes(row * self.strides[0]);
        &bytes[start..start + dtype.bytes(cols)]
    }

    /// The bytes that `rows` of `cols` values lie in; `None` if a row is not contiguous.
    pub(super) fn byte_range(
        &self,
        dtype: ValueType,
        rows: Range<usize>,
        cols: usize,
    ) -> Option<Range<usize>> {
        if self.strides[1] != 1 || rows.is_empty() {
            return None;
        }
        let first = rows.start * self.strides[0];
        let end = (rows.end - 1) * self.strides[0] + cols;
        Some(self.start + dtype.bytes(first)..self.start + dtype.bytes(end))
    }
}

/// The error that tensor `name` of the file at `path` has `problem`.
pub(super) fn bad_tensor(name: &str, path: &Path, problem: String) -> ExportError {
    ExportError::BadTensor { name: name.to_owned(), path: PathBuf::from(path), problem }
}
