//! A tensor of a checkpoint, read row by row from wherever its values lie.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::slice;

use super::dtype::ValueType;
use crate::export::error::ExportError;
use crate::quant::ggml::{self, Ggml};
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
    /// The first file that the tensor is in.
    pub(super) file: usize,
    pub(super) shape: Vec<usize>,
    /// Values of the tensor, or the reason why they cannot be used.
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
/// If the shape is not that of a vector, a matrix or several matrices.
pub(super) fn grid(shape: &[usize]) -> Result<[usize; 2], String> {
    let rows = |all: &[usize]| all.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    match *shape {
        [cols] => Ok([1, cols]),
        [ref all @ .., cols] if !all.is_empty() => {
            rows(all).map(|rows| [rows, cols]).ok_or_else(|| format!("has shape {shape:?}"))
        }
        _ => Err(format!("has shape {shape:?}, wanted a vector or a matrix")),
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
fn unknown(other: &str) -> String {
    format!("has values of type {other}, wanted F32, F16, BF16, I8 or BOOL")
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
#[derive(Clone)]
pub(in crate::export) struct SourceTensor<'a> {
    /// Name of the tensor in the checkpoint.
    pub(in crate::export) name: &'a str,
    /// The first file that the tensor is in.
    pub(in crate::export) path: &'a Path,
    /// Shape of a vector, a matrix or several matrices.
    pub(in crate::export) shape: Vec<usize>,
    grid: [usize; 2],
    values: Values,
    scales: Option<Mxfp4Scales>,
    files: &'a [File],
}

/// Where the scales of MXFP4 blocks are: a byte for each block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mxfp4Scales {
    file: usize,
    /// Offset of the first scale.
    start: usize,
    /// Offset of the first scale's block.
    blocks: usize,
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
        if values.dtype == ValueType::U8 {
            return Err(bad(unknown("U8")));
        }
        let (shape, values) = (stored.shape.clone(), values.clone());
        Ok(SourceTensor { name, path, shape, grid, values, scales: None, files })
    }

    /// A vector of `cols` zeros that the checkpoint `path` does not have.
    pub(super) fn zeros(files: &'a [File], path: &'a Path, cols: usize) -> SourceTensor<'a> {
        let piece = TensorPiece { file: 0, start: 0, strides: [cols, 1] };
        let values = Values { dtype: ValueType::Zeros, pieces: vec![piece], axis: Axis::Rows };
        let (shape, grid) = (vec![cols], [1, cols]);
        SourceTensor { name: "of zeros", path, shape, grid, values, scales: None, files }
    }

    /// The values of MXFP4 `blocks`, `[…, blocks, 16]` bytes of two values each, and their `scales`,
    /// `[…, blocks]`.
    ///
    /// # Errors
    /// If the tensors do not have these shapes and types.
    pub(super) fn mxfp4(
        files: &'a [File],
        blocks: (&'a String, &'a StoredTensor),
        scales: (&'a String, &'a StoredTensor),
    ) -> Result<SourceTensor<'a>, ExportError> {
        let bytes = |(name, stored): (&'a String, &'a StoredTensor)| {
            let bad = |problem| bad_tensor(name, &files[stored.file].path, problem);
            let values = stored.values.as_ref().map_err(|problem| bad(problem.clone()))?;
            match values.pieces[..] {
                [piece] if values.dtype == ValueType::U8 => Ok(piece),
                _ => Err(bad("has not the bytes of MXFP4".to_owned())),
            }
        };
        let (block, scale) = (bytes(blocks)?, bytes(scales)?);
        let ((name, stored), (_, of)) = (blocks, scales);
        let path = &files[stored.file].path;
        let (len, block_bytes) = ValueType::Mxfp4.block();
        let is_fit = stored.shape.split_last() == Some((&block_bytes, &of.shape[..]));
        let Some([rows, n]) = grid(&of.shape).ok().filter(|_| is_fit) else {
            let problem = format!("has shape {:?}, its scales {:?}", stored.shape, of.shape);
            return Err(bad_tensor(name, path, problem));
        };
        let grid = [rows, n * len];
        let pieces = vec![TensorPiece { strides: [n * len, 1], ..block }];
        let values = Values { dtype: ValueType::Mxfp4, pieces, axis: Axis::Rows };
        let scales = Mxfp4Scales { file: scale.file, start: scale.start, blocks: block.start };
        Ok(SourceTensor {
            name,
            path,
            shape: grid.to_vec(),
            grid,
            values,
            scales: Some(scales),
            files,
        })
    }

    /// Multiplies the values of row `row` by the scales of their blocks.
    fn scale_row(&self, scales: Mxfp4Scales, row: usize, out: &mut [f32]) {
        let (len, bytes) = ValueType::Mxfp4.block();
        let piece = &self.values.pieces[0];
        let at = piece.start + ValueType::Mxfp4.bytes(row * piece.strides[0]);
        let first = scales.start + (at - scales.blocks) / bytes;
        let stored = &self.files[scales.file].map.as_bytes()[first..][..out.len() / len];
        for (out, exponent) in out.chunks_exact_mut(len).zip(stored) {
            let scale = ggml::mxfp4_scale(*exponent);
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Converts row `row` to f32; a vector is one row.
    ///
    /// # Panics
    /// If there is no such row, or `out` does not have one place for each column.
    #[inline(always)]
    pub(in crate::export) fn widen_row(&self, row: usize, out: &mut [f32]) {
        let [rows, cols] = self.grid;
        assert!(row < rows && out.len() == cols);
        let Values { dtype, pieces, axis } = &self.values;
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
        if let Some(scales) = self.scales {
            self.scale_row(scales, row, out);
        }
    }

    /// Whether rows are stored as int8 with a scale for each [`ggml::SHORT`] values.
    pub(in crate::export) fn is_int8(&self) -> bool {
        self.values.dtype == ValueType::Blocks(Ggml::Q8_0)
    }

    /// Takes apart row `row` of an int8 tensor into its codes and scales.
    ///
    /// # Panics
    /// If the tensor is not int8, there is no such row, or the outputs do not fit.
    pub(in crate::export) fn split_row(&self, row: usize, codes: &mut [u8], scales: &mut [f32]) {
        assert!(self.is_int8() && row < self.grid[0] && codes.len() == self.grid[1]);
        // Such tensors are of one piece.
        let piece = &self.values.pieces[0];
        let bytes = self.files[piece.file].map.as_bytes();
        let row = piece.row_bytes(self.values.dtype, bytes, row, codes.len());
        ggml::split_q8_0(row, codes, scales);
    }

    /// Whether values are stored in blocks of a GGUF file.
    pub(in crate::export) fn is_in_blocks(&self) -> bool {
        matches!(self.values.dtype, ValueType::Blocks(_))
    }

    /// The type of blocks that holds these values: their own, or int8 for floats.
    ///
    /// # Errors
    /// If no type holds them, or their own cannot be multiplied.
    pub(in crate::export) fn kept_as(&self) -> Result<Ggml, ExportError> {
        let not_kept = |what: &str| {
            let problem = format!("has values of type {what}, which version 5 does not keep");
            Err(self.error(problem))
        };
        match self.values.dtype {
            ValueType::Blocks(kind) if kind.is_multiplied() => Ok(kind),
            ValueType::Blocks(kind) => not_kept(kind.name()),
            ValueType::F32 | ValueType::F16 | ValueType::Bf16 => Ok(Ggml::Q8_0),
            other => not_kept(&format!("{other:?}")),
        }
    }

    /// The blocks of row `row`; `None` if values are stored in another way.
    ///
    /// # Panics
    /// If there is no such row.
    pub(in crate::export) fn row_blocks(&self, row: usize) -> Option<&'a [u8]> {
        let [rows, cols] = self.grid;
        assert!(row < rows);
        let Values { dtype: dtype @ ValueType::Blocks(_), pieces, axis: Axis::Rows } = &self.values
        else {
            return None;
        };
        let piece_rows = rows / pieces.len();
        let piece = &pieces[row / piece_rows];
        let bytes = self.files[piece.file].map.as_bytes();
        Some(piece.row_bytes(*dtype, bytes, row % piece_rows, cols))
    }

    /// Joins `n` matrices, or `n` vectors, into one. One vector may stand for itself.
    ///
    /// # Errors
    /// If there are not `n` of them, or if vectors are not contiguous.
    pub(in crate::export) fn flattened(
        self,
        n: usize,
        is_vector: bool,
    ) -> Result<SourceTensor<'a>, ExportError> {
        let [rows, cols] = self.grid;
        if n == 1 && is_vector && self.shape.len() == 1 {
            return Ok(self);
        }
        let is_fit = self.shape.len() == if is_vector { 2 } else { 3 } && self.shape[0] == n;
        let strides = self.values.pieces.iter().map(|piece| piece.strides);
        if !is_fit || (is_vector && !strides.eq([[cols, 1]])) {
            return Err(self.error(format!("has shape {:?}, wanted {n} of one kind", self.shape)));
        }
        let grid = if is_vector { [1, rows * cols] } else { [rows, cols] };
        let shape = grid[usize::from(is_vector)..].to_vec();
        Ok(SourceTensor { shape, grid, ..self })
    }

    /// The first row as a vector.
    ///
    /// # Errors
    /// If there is none, or the tensor is in pieces.
    pub(in crate::export) fn first_row(self) -> Result<SourceTensor<'a>, ExportError> {
        let all = self.grid[0];
        self.rows(all, (0, 1), 1)?.flattened(1, true)
    }

    /// Takes `n` of the tensor's `all` rows: every `step`th from `first` on.
    ///
    /// # Errors
    /// If the tensor does not have `all` rows, or is in pieces.
    pub(in crate::export) fn rows(
        mut self,
        all: usize,
        (first, step): (usize, usize),
        n: usize,
    ) -> Result<SourceTensor<'a>, ExportError> {
        let [rows, cols] = self.grid;
        if rows != all || n == 0 || first + (n - 1) * step >= rows {
            return Err(self.error(format!("has {rows} rows, wanted {all}")));
        }
        let dtype = self.values.dtype;
        let [piece] = &mut self.values.pieces[..] else { return Err(self.in_pieces()) };
        piece.start += dtype.bytes(first * piece.strides[0]);
        piece.strides[0] *= step;
        Ok(SourceTensor { shape: vec![n, cols], grid: [n, cols], ..self })
    }

    /// Takes part `index` of the rows of each of `n` heads, which have `of` equal parts each.
    ///
    /// # Errors
    /// If the tensor does not have such heads, or is in pieces.
    pub(in crate::export) fn head_parts(
        mut self,
        n: usize,
        (index, of): (usize, usize),
    ) -> Result<SourceTensor<'a>, ExportError> {
        let [rows, cols] = self.grid;
        if rows == 0 || !rows.is_multiple_of(n * of) {
            return Err(self.error(format!("has {rows} rows, wanted {of} parts in {n} heads")));
        }
        let dtype = self.values.dtype;
        let [piece] = self.values.pieces[..] else { return Err(self.in_pieces()) };
        let height = rows / (n * of);
        let start = |head: usize| {
            let first = (head * of + index) * height;
            TensorPiece { start: piece.start + dtype.bytes(first * piece.strides[0]), ..piece }
        };
        self.values.pieces = (0..n).map(start).collect();
        let grid = [n * height, cols];
        Ok(SourceTensor { shape: grid.to_vec(), grid, ..self })
    }

    /// Transposes `n` matrices that are stored one behind the other, and takes every `step`th row from `first` on. `n`
    /// rows count as `n` vectors: every `step`th value of them forms one vector.
    ///
    /// # Errors
    /// If there are not `n` of them in one piece, or values are stored in blocks.
    pub(in crate::export) fn transposed(
        mut self,
        n: usize,
        (first, step): (usize, usize),
    ) -> Result<SourceTensor<'a>, ExportError> {
        let [rows, cols] = self.grid;
        let dtype = self.values.dtype;
        if !rows.is_multiple_of(n) || !cols.is_multiple_of(step) || dtype.block().0 != 1 {
            return Err(self.error(format!("has shape {:?}, wanted {n} of one kind", self.shape)));
        }
        let [piece] = self.values.pieces[..] else { return Err(self.in_pieces()) };
        let (height, width) = (rows / n, cols / step);
        let starts = (0..n).map(|i| i * height * piece.strides[0] + first * piece.strides[1]);
        let strides = match height {
            1 => [0, step * piece.strides[1]],
            _ => [step * piece.strides[1], piece.strides[0]],
        };
        let pieces =
            starts.map(|at| TensorPiece { start: piece.start + dtype.bytes(at), strides, ..piece });
        self.values.pieces = pieces.collect();
        let (shape, grid) = match height {
            1 => (vec![n * width], [1, n * width]),
            _ => (vec![n * width, height], [n * width, height]),
        };
        self.values.axis = if height == 1 { Axis::Cols } else { Axis::Rows };
        Ok(SourceTensor { shape, grid, ..self })
    }

    /// Tensors of one shape, one below the other.
    ///
    /// # Errors
    /// Names the first tensor that is unlike the others, or in pieces.
    ///
    /// # Panics
    /// If there are none.
    pub(in crate::export) fn stacked(
        tensors: Vec<SourceTensor<'a>>,
    ) -> Result<SourceTensor<'a>, ExportError> {
        let first = tensors[0].clone();
        let [rows, cols] = first.grid;
        let mut pieces = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            if tensor.grid != first.grid || tensor.values.dtype != first.values.dtype {
                return Err(tensor.error(format!("differs in shape or type from {}", first.name)));
            }
            let [piece] = tensor.values.pieces[..] else { return Err(tensor.in_pieces()) };
            pieces.push(piece);
        }
        let grid = [rows * pieces.len(), cols];
        let values = Values { pieces, ..first.values };
        Ok(SourceTensor { shape: grid.to_vec(), grid, values, ..first })
    }

    fn in_pieces(&self) -> ExportError {
        self.error("is in several pieces".to_owned())
    }

    /// Tells the system that some rows are used soon.
    pub(in crate::export) fn advise_will_need(&self, rows: Range<usize>) {
        self.for_each_range(rows, |file, range| file.map.advise_will_need(range));
    }

    /// Tells the system that some rows are used at once.
    pub(in crate::export) fn advise_populate(&self, rows: Range<usize>) {
        self.for_each_range(rows, |file, range| file.map.advise_populate(range));
    }

    /// Tells the system that some rows are not used any more.
    pub(in crate::export) fn advise_dont_need(&self, rows: Range<usize>) {
        self.for_each_range(rows, |file, range| file.map.advise_dont_need(range));
    }

    /// Calls `visit` with each range of bytes that holds some of `rows` and nothing else.
    fn for_each_range(&self, rows: Range<usize>, visit: impl Fn(&File, Range<usize>)) {
        let Values { dtype, pieces, axis } = &self.values;
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
