//! Matrix products of a batch of rows, split between the threads.

use std::ops::Range;

use super::Matrix;
use super::buffers::Inputs;
use crate::format::model::Weights;
use crate::kernels::Kernels;
use crate::pool::Pool;
use crate::quant::Q8Activations;
use crate::quant::bcml1::BLOCK;

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
        let Some(group) = self.weights.group() else { return };
        let x = &inputs.f32[..m * k];
        let q = &mut inputs.q[..m * k];
        let scales = (&mut inputs.scales[..m * k / group], k / group);
        let sums = (&mut inputs.sums[..m * k / BLOCK], k / BLOCK);
        self.pool.run_chunks3((q, k), scales, sums, &|row, q, scales, sums| {
            self.kernels.quantize_q8(&x[row * k..][..k], group, q, scales);
            self.kernels.sum_q8(q, sums);
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
        let (kernels, group) = (self.kernels, self.weights.group().unwrap_or(k));
        let width: usize = matrices.iter().map(Matrix::rows).sum();
        let step = piece_rows(matrices);
        self.pool.run_columns(&mut out[..m * width], width, step, &|columns, rows, parts| {
            let span = rows.start * k..rows.end * k;
            match part_of(matrices, columns) {
                Matrix::F32 { w, k } => kernels.matmul_f32(w, k, &inputs.f32[span], parts),
                Matrix::Q8(w) => {
                    kernels.matmul_q8(w, inputs.quantized(span, k, w.group()), parts);
                }
                Matrix::Q4(w) => {
                    let sums = &inputs.sums[span.start / BLOCK..span.end / BLOCK];
                    kernels.matmul_q4(w, inputs.quantized(span, k, group), sums, parts);
                }
            }
        });
    }
}

impl Inputs<'_> {
    /// The rows of values `span` as `prepare` quantised them.
    fn quantized(&self, span: Range<usize>, k: usize, group: usize) -> Q8Activations<'_> {
        let scales = &self.scales[span.start / group..span.end / group];
        let x = Q8Activations::new(&self.q[span], scales, k, group);
        x.expect("`prepare` quantised whole groups")
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
