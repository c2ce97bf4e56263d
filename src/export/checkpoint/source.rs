//! A tensor of a checkpoint, read row by row from wherever its values lie.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::slice;

use super::dtype::ValueType;
use super::ggml::{self, Ggml};
use crate::export::error::ExportError;
use crate::sys::map::Map;

/// Columns of the widest matrices that are compared.
const COLS_MAX: usize = 1 << 24;

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
    /// The first file it is in.
    pub(super) file: usize,
    pub(super) shape: Vec<usize>,
    /// What is wrong with the tensor, if its values cannot be used.
    pub(super) values: Result<Values, String>,
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

/// Rows and columns of a shape.
///
/// # Errors
/// Says that the shape is that of neither vector nor matrix.
pub(super) fn grid(shape: &[usize]) -> Result<[usize; 2], String> {
    match *shape {
        [cols] => Ok([1, cols]),
        [rows, cols] => Ok([rows, cols]),
        _ => Err(format!("has shape {shape:?}, wanted a vector or a matrix")),
    }
}

/// The values of a tensor of one piece, if it is one that can be used.
pub(super) fn single(
    dtype: Result<ValueType, String>,
    shape: &[usize],
    piece: impl FnOnce([usize; 2], ValueType) -> TensorPiece,
) -> Result<Values, String> {
    let dtype = dtype.map_err(|other| {
        format!("has values of type {other}, wanted F32, F16, BF16, I8 or BOOL")
    })?;
    Ok(Values { dtype, pieces: vec![piece(grid(shape)?, dtype)], axis: Axis::Rows })
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
    fn row_bytes<'a>(
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

/// A tensor of a checkpoint.
#[derive(Clone, Copy)]
pub(in crate::export) struct SourceTensor<'a> {
    /// Its name in the checkpoint.
    pub(in crate::export) name: &'a str,
    /// The first file it is in.
    pub(in crate::export) path: &'a Path,
    /// Its shape, that of a vector or a matrix.
    pub(in crate::export) shape: &'a [usize],
    grid: [usize; 2],
    values: &'a Values,
    files: &'a [File],
}

impl<'a> SourceTensor<'a> {
    /// The tensor `stored` of `files`, which is called `name`.
    ///
    /// # Errors
    /// If its values cannot be used.
    pub(super) fn new(
        files: &'a [File],
        name: &'a str,
        stored: &'a StoredTensor,
    ) -> Result<SourceTensor<'a>, ExportError> {
        let path = &files[stored.file].path;
        let bad = |problem| bad_tensor(name, path, problem);
        let values = stored.values.as_ref().map_err(|problem| bad(problem.clone()))?;
        let grid = grid(&stored.shape).map_err(bad)?;
        Ok(SourceTensor { name, path, shape: &stored.shape, grid, values, files })
    }

    /// Converts row `row` to f32; a vector is one row.
    ///
    /// # Panics
    /// If there is no such row or `out` has not one place for each column.
    #[inline(always)]
    pub(in crate::export) fn widen_row(&self, row: usize, out: &mut [f32]) {
        let [rows, cols] = self.grid;
        assert!(row < rows && out.len() == cols);
        let Values { dtype, pieces, axis } = self.values;
        let (pieces, row) = match axis {
            Axis::Rows => {
                let piece_rows = rows / pieces.len();
                (&pieces[row / piece_rows..][..1], row % piece_rows)
            }
            Axis::Cols => (&pieces[..], row),
        };
        let piece_cols = (cols / pieces.len()).max(1);
        for (piece, out) in pieces.iter().zip(out.chunks_exact_mut(piece_cols)) {
            piece.widen_row(*dtype, self.files[piece.file].map.as_bytes(), row, out);
        }
    }

    /// Whether rows are stored as int8 with a scale for each [`ggml::SHORT`] values.
    pub(in crate::export) fn is_int8(&self) -> bool {
        self.values.dtype == ValueType::Blocks(Ggml::Q8_0)
    }

    /// Takes apart row `row` of an int8 tensor into its codes and scales.
    ///
    /// # Panics
    /// If it is none, there is no such row, or the outputs do not fit.
    pub(in crate::export) fn split_row(&self, row: usize, codes: &mut [u8], scales: &mut [f32]) {
        assert!(self.is_int8() && row < self.grid[0] && codes.len() == self.grid[1]);
        // Such tensors are of one piece.
        let piece = &self.values.pieces[0];
        let bytes = self.files[piece.file].map.as_bytes();
        let row = piece.row_bytes(self.values.dtype, bytes, row, codes.len());
        ggml::split_q8_0(row, codes, scales);
    }

    /// Says that some rows are used soon.
    pub(in crate::export) fn advise_will_need(&self, rows: Range<usize>) {
        self.for_each_range(rows, |file, range| file.map.advise_will_need(range));
    }

    /// Says that some rows are used now.
    pub(in crate::export) fn advise_populate(&self, rows: Range<usize>) {
        self.for_each_range(rows, |file, range| file.map.advise_populate(range));
    }

    /// Says that some rows are not used any more.
    pub(in crate::export) fn advise_dont_need(&self, rows: Range<usize>) {
        self.for_each_range(rows, |file, range| file.map.advise_dont_need(range));
    }

    /// Calls `visit` with each range of bytes that holds some of `rows` and nothing else.
    fn for_each_range(&self, rows: Range<usize>, visit: impl Fn(&File, Range<usize>)) {
        let Values { dtype, pieces, axis } = self.values;
        let [all_rows, all_cols] = self.grid;
        let (piece_rows, cols) = match axis {
            Axis::Rows => (all_rows / pieces.len(), all_cols),
            Axis::Cols => (all_rows, all_cols / pieces.len()),
        };
        for (index, piece) in pieces.iter().enumerate() {
            let first = if *axis == Axis::Rows { index * piece_rows } else { 0 };
            let own = rows.start.max(first)..rows.end.min(first + piece_rows);
            if own.is_empty() {
                continue;
            }
            let own = own.start - first..own.end - first;
            if let Some(range) = piece.byte_range(*dtype, own, cols) {
                visit(&self.files[piece.file], range);
            }
        }
    }

    /// Whether both hold the same values. Rows wider than any model's are not compared.
    pub(in crate::export) fn equals(&self, other: &SourceTensor<'_>) -> bool {
        let [rows, cols] = self.grid;
        if self.shape != other.shape || cols > COLS_MAX {
            return false;
        }
        let is_same_place = self.values == other.values && std::ptr::eq(self.files, other.files);
        if is_same_place || rows == 0 || cols == 0 {
            return true;
        }
        let [mut own, mut others] = [vec![0.0; cols], vec![0.0; cols]];
        (0..rows).all(|row| {
            self.widen_row(row, &mut own);
            other.widen_row(row, &mut others);
            own.iter().zip(&others).all(|(a, b)| a.to_bits() == b.to_bits())
        })
    }

    /// The error that this tensor has `problem`.
    pub(in crate::export) fn error(&self, problem: String) -> ExportError {
        bad_tensor(self.name, self.path, problem)
    }
}

/// The error that tensor `name` of the file at `path` has `problem`.
pub(super) fn bad_tensor(name: &str, path: &Path, problem: String) -> ExportError {
    ExportError::BadTensor { name: name.to_owned(), path: PathBuf::from(path), problem }
}
