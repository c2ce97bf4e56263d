//! Scales of weights that a checkpoint stores in eight bits: a weight is its stored value times its scale.
//!
//! They are a tensor of their own, called `NAME_scale_inv` (block-wise FP8) or `NAME_scale` (compressed-tensors, FBGEMM,
//! ModelOpt). A matrix has one scale, one for each row, or one for each block of 128 rows or columns.

use std::ops::Range;

use super::dtype::ValueType;
use super::stored::{File, StoredTensor, TensorPiece, grid};

/// Rows and columns that share a scale where blocks have scales.
const BLOCK: usize = 128;

/// Ends of the names of tensors with scales, behind the weights' names.
const OF_WEIGHTS: [&str; 2] = ["_scale_inv", "_scale"];
/// Last parts of the names of scales that only products of eight bits by eight need: those of activations, beside the
/// weights, and of stored keys and values.
const OF_INPUTS: [&str; 2] = ["input_scale", "activation_scale"];
const OF_KV: [&str; 3] = ["q_scale", "k_scale", "v_scale"];

/// The scales of the weights that lie in one range of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scales {
    /// Number of the weights' file, and their bytes in it: rows of `cols` bytes.
    file: usize,
    weights: Range<usize>,
    cols: usize,
    /// Rows of one matrix, of which there may be several, one behind the other.
    height: usize,
    /// Rows and columns that share a scale.
    block: [usize; 2],
    /// Rows and columns of one matrix's scales.
    grid: [usize; 2],
    dtype: ValueType,
    place: TensorPiece,
}

impl Scales {
    /// The scales `stored` of `weights`.
    ///
    /// # Errors
    /// If they do not fit each other.
    pub(super) fn new(weights: &StoredTensor, stored: &StoredTensor) -> Result<Scales, String> {
        let unlike = || {
            let (own, of) = (&stored.shape, &weights.shape);
            format!("has shape {own:?}, which does not fit weights of shape {of:?}")
        };
        let values = stored.values.as_ref().map_err(Clone::clone)?;
        if !matches!(values.dtype, ValueType::F32 | ValueType::F16 | ValueType::Bf16) {
            return Err(format!("has scales of type {:?}, wanted F32, F16 or BF16", values.dtype));
        }
        let own = weights.values.as_ref().map_err(Clone::clone)?;
        let ([piece], [place]) = (&own.pieces[..], &values.pieces[..]) else {
            return Err(unlike());
        };
        let [rows, cols] = grid(&weights.shape)?;
        let [n_rows, n_cols] = grid(&stored.shape)?;
        let [.., height, _] = weights.shape[..] else { return Err(unlike()) };
        let is_whole = [piece.strides, place.strides] == [[cols, 1], [n_cols, 1]];
        if !is_whole || height == 0 || cols == 0 {
            return Err(unlike());
        }
        // A vector of scales is a column: one for each row, or for each matrix.
        let n_rows = if stored.shape.len() == 1 { n_cols } else { n_rows };
        let n_cols = if stored.shape.len() == 1 { 1 } else { n_cols };
        let n_matrices = rows / height;
        let grid = match (n_rows * n_cols, n_rows.is_multiple_of(n_matrices)) {
            (0, _) => return Err(unlike()),
            // All matrices have one.
            (1, _) => [0, 1],
            (_, true) => [n_rows / n_matrices, n_cols],
            (_, false) => return Err(unlike()),
        };
        let side = |n: usize, all: usize| match n {
            0 | 1 => Some(all),
            n if n == all => Some(1),
            n if n == all.div_ceil(BLOCK) => Some(BLOCK),
            _ => None,
        };
        let (Some(tall), Some(wide)) = (side(grid[0], height), side(grid[1], cols)) else {
            return Err(unlike());
        };
        Ok(Scales {
            file: piece.file,
            weights: piece.start..piece.start + rows * cols,
            cols,
            height,
            block: [tall, wide],
            grid,
            dtype: values.dtype,
            place: *place,
        })
    }

    /// Whether these are the scales of what lies at byte `at` of file `file`.
    pub(super) fn are_of(&self, file: usize, at: usize) -> bool {
        self.file == file && self.weights.contains(&at)
    }

    /// Multiplies the weights of the row at byte `at` by their scales.
    ///
    /// # Panics
    /// If these are not the row's scales.
    pub(super) fn multiply(&self, files: &[File], at: usize, out: &mut [f32]) {
        let row = (at - self.weights.start) / self.cols;
        let (matrix, row) = (row / self.height, row % self.height);
        let [tall, wide] = self.block;
        let first = (matrix * self.grid[0] + row / tall) * self.grid[1];
        let bytes = &files[self.place.file].map.as_bytes()[self.place.start..];
        for (index, out) in out.chunks_mut(wide).enumerate() {
            let (mut scale, width) = ([0.0], self.dtype.bytes(1));
            self.dtype.widen(&bytes[(first + index) * width..][..width], &mut scale);
            out.iter_mut().for_each(|weight| *weight *= scale[0]);
        }
    }
}

/// The names that the scales of the weights `name` may have.
pub(super) fn names(name: &str) -> [String; 2] {
    OF_WEIGHTS.map(|end| [name, end].concat())
}

/// Names of weights that a tensor called `name` may have scales of, or of whose inputs.
pub(super) fn weights_of(name: &str) -> impl Iterator<Item = String> {
    let own = OF_WEIGHTS.iter().filter_map(|end| name.strip_suffix(end)).map(str::to_owned);
    let inputs = OF_INPUTS.iter().filter_map(|end| name.strip_suffix(end));
    own.chain(inputs.map(|module| [module, "weight"].concat()))
}

/// Whether a tensor called `name` has the scale of stored keys or values.
pub(super) fn is_of_kv(name: &str) -> bool {
    OF_KV.contains(&name.rsplit('.').next().unwrap_or(name))
}
