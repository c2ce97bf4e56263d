//! Matrix products of a batch of rows, split between the threads.

use super::Matrix;
use super::buffers::Inputs;
use crate::format::model::Weights;
use crate::kernels::{Kernels, Q8Tiles};
use crate::pool::Pool;
use crate::quant::Q8Activations;

/// Rows of a matrix that a thread takes at once. A multiple of every tile's and panel's height,
/// and small enough that unequal cores finish at about the same time.
const PIECE_ROWS: usize = 64;

/// Most matrices of one call.
const MATRICES_MAX: usize = 4;

/// What a projection needs besides its operands.
#[derive(Clone, Copy)]
pub(super) struct Projector<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) weights: Weights,
    /// Whether the quantised matrices are packed ones.
    pub(super) is_packed: bool,
}

impl Projector<'_> {
    /// Quantises the first `m` rows of `inputs.f32`, `[m, k]`, as the weights want them.
    pub(super) fn prepare(&self, inputs: &mut Inputs<'_>, m: usize, k: usize) {
        let Weights::Q8 { group } = self.weights else { return };
        let (pool, kernels) = (self.pool, self.kernels);
        let x = &inputs.f32[..m * k];
        let q = &mut inputs.q[..m * k];
        let scales = &mut inputs.scales[..m * k / group];
        let biases = &mut inputs.biases[..m * k / group];
        if self.is_packed {
            let tile = kernels.tile_rows() * k;
            let groups = tile / group;
            let out = ((q, tile), (scales, groups), (biases, groups));
            pool.run_chunks3(out.0, out.1, out.2, &|index, q, scales, biases| {
                let x = &x[index * tile..][..q.len()];
                kernels.quantize_tile(x, k, group, (q, scales, biases));
            });
        } else {
            pool.run_chunks2((q, k), (scales, k / group), &|row, q, scales| {
                kernels.quantize_q8(&x[row * k..][..k], group, q, scales);
            });
        }
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
        let widths: heapless::Vec<usize, MATRICES_MAX> =
            matrices.iter().map(Matrix::rows).collect();
        let out = &mut out[..m * widths.iter().sum::<usize>()];
        self.pool.run_columns(out, &widths, PIECE_ROWS, &|matrix, columns, rows, parts| {
            let span = rows.start * k..rows.end * k;
            match matrices[matrix].slice_rows(columns) {
                Matrix::F32 { w, k } => kernels.matmul_f32(w, k, &inputs.f32[span], parts),
                Matrix::Q8(w) => {
                    let group = w.group();
                    let scales = &inputs.scales[span.start / group..span.end / group];
                    let x = Q8Activations::new(&inputs.q[span], scales, k, group);
                    let x = x.expect("`prepare` quantised whole groups");
                    kernels.matmul_q8(w, x, parts);
                }
                Matrix::PackedQ8(w) => {
                    let (group, groups) = (w.group(), m * k / w.group());
                    let x =
                        (&inputs.q[..m * k], &inputs.scales[..groups], &inputs.biases[..groups]);
                    let x = Q8Tiles::new(x, k, group, kernels.tile_rows());
                    kernels.matmul_packed_q8(w, x.slice_rows(rows), parts);
                }
            }
        });
    }
}
