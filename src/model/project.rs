//! Matrix products of a batch of rows, split between the threads.

use std::ops::Range;

use super::Matrix;
use super::buffers::Inputs;
use crate::format::model::Weights;
use crate::kernels::Kernels;
use crate::pool::Pool;
use crate::quant::Q8Activations;

/// Rows of a matrix that a thread takes at once. A multiple of every tile's height, and
/// small enough that unequal cores finish at about the same time.
const PIECE_ROWS: usize = 64;

/// What a projection needs besides its operands.
#[derive(Clone, Copy)]
pub(super) struct Projector<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) weights: Weights,
}

impl Projector<'_> {
    /// Quantises the first `m` rows of `inputs.f32`, `[m, k]`, if the weights want that.
    pub(super) fn prepare(&self, inputs: &mut Inputs<'_>, m: usize, k: usize) {
        let Weights::Q8 { group } = self.weights else { return };
        let x = &inputs.f32[..m * k];
        let q = &mut inputs.q[..m * k];
        let scales = &mut inputs.scales[..m * k / group];
        self.pool.run_chunks2((q, k), (scales, k / group), &|row, q, scales| {
            self.kernels.quantize_q8(&x[row * k..][..k], group, q, scales);
        });
    }

    /// `out[row] = matrices * inputs[row]` for `m` prepared rows of width `k`.
    ///
    /// The results of several matrices stand side by side: `out` is `[m, width]` with the
    /// matrices' rows together as `width`.
    pub(super) fn project(
        &self,
        inputs: &Inputs<'_>,
        (m, k): (usize, usize),
        matrices: &[Matrix<'_>],
        out: &mut [f32],
    ) {
        if m == 0 {
            return;
        }
        let kernels = self.kernels;
        let width: usize = matrices.iter().map(Matrix::rows).sum();
        let step = piece_rows(matrices);
        self.pool.run_columns(&mut out[..m * width], width, step, &|columns, rows, parts| {
            let span = rows.start * k..rows.end * k;
            match part_of(matrices, columns) {
                Matrix::F32 { w, k } => kernels.matmul_f32(w, k, &inputs.f32[span], parts),
                Matrix::Q8(w) => {
                    let group = w.group();
                    let scales = &inputs.scales[span.start / group..span.end / group];
                    let x = Q8Activations::new(&inputs.q[span], scales, k, group);
                    let x = x.expect("`prepare` quantised whole groups");
                    kernels.matmul_q8(w, x, parts);
                }
            }
        });
    }
}

/// Rows per piece such that no piece lies in two matrices.
fn piece_rows(matrices: &[Matrix<'_>]) -> usize {
    let mut step = PIECE_ROWS;
    for matrix in matrices.iter().rev().skip(1) {
        while !matrix.rows().is_multiple_of(step) {
            step /= 2;
        }
    }
    step
}

/// The rows `columns` of the matrices stacked on each other; they lie in one of them.
fn part_of<'a>(matrices: &[Matrix<'a>], columns: Range<usize>) -> Matrix<'a> {
    let mut start = 0;
    let last = matrices.len() - 1;
    for matrix in &matrices[..last] {
        let rows = matrix.rows();
        if columns.start < start + rows {
            return matrix.slice_rows(columns.start - start..columns.end - start);
        }
        start += rows;
    }
    matrices[last].slice_rows(columns.start - start..columns.end - start)
}
