//! Matrix products of a batch of rows, split between the threads.

use std::ops::Range;

use super::Matrix;
use super::buffers::Inputs;
use super::interest::Interest;
use crate::kernels::{Kernels, Q8Tiles};
use crate::pool::Pool;
use crate::quant::Q8Activations;
use crate::quant::bcml1::{self, BLOCK};

/// Rows of a matrix that a thread takes at once. A multiple of every tile's and panel's height,
/// and small enough that unequal cores finish at about the same time.
const PIECE_ROWS: usize = 64;

/// Most matrices of one call.
const MATRICES_MAX: usize = 4;

/// What writes a row of inputs.
type Fill<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// What quantises a row of inputs: its number in its tile, and how many rows that has.
type Quantize<'a> = &'a mut dyn FnMut(&[f32], (usize, usize));

/// What a projection needs besides its operands.
#[derive(Clone, Copy)]
pub(super) struct Projector<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    /// Values that share a scale, but for activations of 4-bit weights, of which whole such groups
    /// do; `None` if activations stay f32.
    pub(super) group: Option<usize>,
    pub(super) interest: &'a Interest,
}

impl Projector<'_> {
    /// Quantises the first `m` rows of `inputs.f32`, `[m, k]`, as `matrix` wants them. Has `fill`
    /// write each before, if there is one; of quantised rows it need not leave the f32.
    pub(super) fn prepare(
        &self,
        inputs: &mut Inputs<'_>,
        (m, k): (usize, usize),
        matrix: &Matrix<'_>,
        fill: Option<Fill<'_>>,
    ) {
        let (pool, kernels) = (self.pool, self.kernels);
        let x = &mut inputs.f32[..m * k];
        let fill_there = |row: usize, x: &mut [f32]| {
            if let Some(fill) = fill {
                fill(row, x);
            }
        };
        let Some(group) = self.group else { return pool.run_chunks(x, k, &fill_there) };
        let group = matrix.activation_group(group, k);
        let q = &mut inputs.q[..m * k];
        let scales = &mut inputs.scales[..m * k / group];
        let tile_rows = kernels.tile_rows();
        let tile = tile_rows * k;
        // Rows that are written for this go to one place, which stays in cache.
        let quantize_tile = |i: usize, x: &mut [f32], quantize: Quantize<'_>| {
            let t = x.len() / k;
            for row in 0..t {
                let x = &mut x[if fill.is_some() { 0 } else { row * k }..][..k];
                fill_there(i * tile_rows + row, x);
                quantize(x, (row, t));
            }
        };
        match matrix {
            Matrix::F32 { .. } => pool.run_chunks(x, k, &fill_there),
            Matrix::Q8(_) => {
                let scales = (scales, k / group);
                pool.run_chunks3((x, k), (q, k), scales, &|row, x, q, scales| {
                    fill_there(row, x);
                    kernels.quantize_q8(x, group, q, scales);
                });
            }
            Matrix::Q4(_) => {
                let scales = (scales, k / group);
                let sums = (&mut inputs.sums[..m * k / BLOCK], k / BLOCK);
                pool.run_chunks4((x, k), (q, k), scales, sums, &|row, x, q, scales, sums| {
                    fill_there(row, x);
                    kernels.quantize_q8(x, group, q, scales);
                    kernels.sum_q8(q, sums);
                });
            }
            Matrix::PackedQ8(_) => {
                let scales = (scales, tile / group);
                let zeros = (&mut inputs.zeros[..m * k / group], tile / group);
                pool.run_chunks4((x, tile), (q, tile), scales, zeros, &|i, x, q, scales, zeros| {
                    quantize_tile(i, x, &mut |x, place| {
                        kernels.quantize_tile_row(x, place, group, (q, scales, zeros));
                    });
                });
            }
            Matrix::PackedQ4(_) => {
                let scales = (scales, tile / group);
                let sums = (&mut inputs.tile_sums[..m * k / BLOCK], tile / BLOCK);
                pool.run_chunks4((x, tile), (q, tile), scales, sums, &|i, x, q, scales, sums| {
                    quantize_tile(i, x, &mut |x, place| {
                        kernels.quantize_tile_row_summed(x, place, group, (q, scales, sums));
                    });
                });
            }
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
        let (kernels, group) = (self.kernels, self.group.unwrap_or(k));
        let widths: heapless::Vec<usize, MATRICES_MAX> =
            matrices.iter().map(Matrix::rows).collect();
        let out = &mut out[..m * widths.iter().sum::<usize>()];
        self.pool.run_columns(out, &widths, PIECE_ROWS, &|matrix, columns, rows, parts| {
            if self.interest.is_lost() {
                return;
            }
            let span = rows.start * k..rows.end * k;
            let group = matrices[matrix].activation_group(group, k);
            match matrices[matrix].slice_rows(columns) {
                Matrix::F32 { w, k } => kernels.matmul_f32(w, k, &inputs.f32[span], parts),
                Matrix::Q8(w) => {
                    kernels.matmul_q8(w, inputs.quantized(span, k, group), parts);
                }
                Matrix::Q4(w) => {
                    let sums = &inputs.sums[span.start / BLOCK..span.end / BLOCK];
                    kernels.matmul_q4(w, inputs.quantized(span, k, group), sums, parts);
                }
                Matrix::PackedQ8(w) => {
                    let x = inputs.tiles((m, k), group, kernels.tile_rows());
                    kernels.matmul_packed_q8(w, x.slice_rows(rows), parts);
                }
                Matrix::PackedQ4(w) => {
                    let x = inputs.summed_tiles((m, k), group, kernels.tile_rows());
                    kernels.matmul_packed_q4(w, x.slice_rows(rows), parts);
                }
            }
        });
    }
}

impl Matrix<'_> {
    /// How many of the `k` activations of a row share a scale, in a file with groups of `group`.
    fn activation_group(&self, group: usize, k: usize) -> usize {
        match self {
            Matrix::Q4(_) | Matrix::PackedQ4(_) => bcml1::activation_group(group, k),
            _ => group,
        }
    }
}

impl Inputs<'_> {
    /// The rows of values `span` as `prepare` quantised them for row-major weights.
    fn quantized(&self, span: Range<usize>, k: usize, group: usize) -> Q8Activations<'_> {
        let scales = &self.scales[span.start / group..span.end / group];
        let x = Q8Activations::new(&self.q[span], scales, k, group);
        x.expect("`prepare` quantised whole groups")
    }

    /// The `[m, k]` values as `prepare` quantised them for packed int8 weights.
    fn tiles(&self, (m, k): (usize, usize), group: usize, mr: usize) -> Q8Tiles<'_> {
        let groups = m * k / group;
        let parts = (&self.q[..m * k], &self.scales[..groups], &self.zeros[..groups]);
        Q8Tiles::new(parts, k, group, mr)
    }

    /// The same for packed 4-bit weights.
    fn summed_tiles(&self, (m, k): (usize, usize), group: usize, mr: usize) -> Q8Tiles<'_> {
        let (groups, blocks) = (m * k / group, m * k / BLOCK);
        let parts = (&self.q[..m * k], &self.scales[..groups], &self.tile_sums[..blocks]);
        Q8Tiles::summed(parts, k, group, mr)
    }
}
