//! A tensor of a checkpoint, read row by row from wherever its values lie.

use std::ops::Range;
use std::path::Path;

use super::dtype::ValueType;
use super::scales::Scales;
use super::stored::{Axis, File, StoredTensor, TensorPiece, Values, bad_tensor, grid, unknown};
use crate::export::error::ExportError;
use crate::quant::ggml::{self, Ggml};

/// Columns of the widest matrices that are compared.
const COLS_MAX: usize = 1 << 24;

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
    scales: ScaledBy,
    files: &'a [File],
}

/// Factors of a tensor's values.
#[derive(Clone)]
enum ScaledBy {
    Nothing,
    /// The scales of its blocks.
    Mxfp4(Mxfp4Scales),
    /// The scales of each tensor that it was put together from.
    Tensors(Vec<Scales>),
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
        Ok(SourceTensor { name, path, shape, grid, values, scales: ScaledBy::Nothing, files })
    }

    /// This tensor, whose weights are multiplied by `scales`.
    pub(super) fn scaled(self, scales: Scales) -> SourceTensor<'a> {
        SourceTensor { scales: ScaledBy::Tensors(vec![scales]), ..self }
    }

    /// A vector of `cols` zeros that the checkpoint `path` does not have.
    pub(super) fn zeros(files: &'a [File], path: &'a Path, cols: usize) -> SourceTensor<'a> {
        let piece = TensorPiece { file: 0, start: 0, strides: [cols, 1] };
        let values = Values { dtype: ValueType::Zeros, pieces: vec![piece], axis: Axis::Rows };
        let (shape, grid) = (vec![cols], [1, cols]);
        let (name, scales) = ("of zeros", ScaledBy::Nothing);
        SourceTensor { name, path, shape, grid, values, scales, files }
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
            scales: ScaledBy::Mxfp4(scales),
            files,
        })
    }

    /// Multiplies the values of row `row` by the scales of their blocks.
    fn scale_blocks(&self, scales: Mxfp4Scales, row: usize, out: &mut [f32]) {
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
        match &self.scales {
            ScaledBy::Nothing => {}
            ScaledBy::Mxfp4(scales) => self.scale_blocks(*scales, row, out),
            ScaledBy::Tensors(all) => {
                // Such tensors have whole rows in each piece.
                let piece = &pieces[0];
                let at = piece.start + dtype.bytes(row * piece.strides[0]);
                let own = all.iter().find(|scales| scales.are_of(piece.file, at));
                own.into_iter().for_each(|scales| scales.multiply(self.files, at, out));
            }
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
        assert!(codes.len() == self.grid[1]);
        let blocks = self.row_blocks(Ggml::Q8_0, row).expect("the tensor is int8");
        ggml::split_q8_0(blocks, codes, scales);
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
            ValueType::Blocks(kind) if matches!(self.values.axis, Axis::Rows) => Ok(kind),
            ValueType::Blocks(kind) => not_kept(kind.name()),
            ValueType::F32 | ValueType::F16 | ValueType::Bf16 | ValueType::F8E4M3 => Ok(Ggml::Q8_0),
            ValueType::I8 if matches!(self.scales, ScaledBy::Tensors(_)) => Ok(Ggml::Q8_0),
            other => not_kept(&format!("{other:?}")),
        }
    }

    /// The blocks of row `row`; `None` if values are not stored in blocks of `kind`.
    ///
    /// # Panics
    /// If there is no such row.
    pub(in crate::export) fn row_blocks(&self, kind: Ggml, row: usize) -> Option<&'a [u8]> {
        let [rows, cols] = self.grid;
        assert!(row < rows);
        let Values { dtype: dtype @ ValueType::Blocks(own), pieces, axis: Axis::Rows } =
            &self.values
        else {
            return None;
        };
        if *own != kind {
            return None;
        }
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
        if !matches!(self.scales, ScaledBy::Nothing) {
            return Err(self.error("is transposed, and its values have scales".to_owned()));
        }
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
        let mut all_scales = Vec::new();
        for tensor in &tensors {
            if let ScaledBy::Tensors(scales) = &tensor.scales {
                all_scales.extend_from_slice(scales);
            }
            if tensor.grid != first.grid || tensor.values.dtype != first.values.dtype {
                return Err(tensor.error(format!("differs in shape or type from {}", first.name)));
            }
            let [piece] = tensor.values.pieces[..] else { return Err(tensor.in_pieces()) };
            pieces.push(piece);
        }
        let grid = [rows * pieces.len(), cols];
        let values = Values { pieces, ..first.values };
        let scales = match all_scales.is_empty() {
            true => first.scales.clone(),
            false => ScaledBy::Tensors(all_scales),
        };
        Ok(SourceTensor { shape: grid.to_vec(), grid, values, scales, ..first })
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
