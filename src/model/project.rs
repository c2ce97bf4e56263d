//! Matrix products of a batch of rows, divided among the threads.

use super::inputs::{Given, Inputs, Prepared, activation_group};
use super::interrupt::Interrupt;
use super::matrix::Matrix;
use super::zeros::zeros;
use crate::format::model::{EXPERTS_ACTIVE_MAX, Encoding};
use crate::kernels::{
    ActivationRow, CUT_ROWS, Groups, Kernels, MatrixDims, Q8Tiles, TileCut, TileParts,
    TilePartsMut, TileRow,
};
use crate::pool::{Chunks, Pool, ROW_TILE, RowChunks};
use crate::quant::Q8Activations;
use crate::quant::bcml1::BLOCK;

/// Rows of a matrix in one piece of work of a thread. A multiple of every panel's height, and small enough
/// that unequal cores finish at about the same time.
pub(super) const PIECE_ROWS: usize = 64;

/// Largest batch for the fused residual add; above it the strided writes cost more than they save.
pub(super) const FEW_ROWS: usize = 16;

// A piece of rows must divide into the same tiles as the whole batch.
const _: () = assert!(ROW_TILE.is_multiple_of(CUT_ROWS));

/// Maximum number of matrices in one call.
pub(super) const MATRICES_MAX: usize = 2 * EXPERTS_ACTIVE_MAX;

/// A function that writes a row of inputs.
pub(super) type Fill<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// Quantises a row of a tile: [`Kernels::quantize_tile_row`] or its counterparts for 4-bit weights.
pub(super) type QuantizeTileRow = fn(&Kernels, ActivationRow<'_>, TileRow, usize, TilePartsMut<'_>);

/// Tile layout of input rows, for one kind of packed weights.
pub(super) struct TileKind {
    pub(super) cut: TileCut,
    /// Whether the rows' terms are zero points; otherwise they are sums.
    pub(super) has_zeros: bool,
    /// Number of terms of a row.
    pub(super) row_terms: usize,
    pub(super) quantize: QuantizeTileRow,
    pub(super) join: for<'a> fn(TileParts<'a>, Groups, TileCut) -> Prepared<'a>,
}

/// Source of input rows.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// The rows are in the f32 buffer already.
    Room,
    /// This function writes each row.
    Fill(Fill<'a>),
    /// The nodes of a team have gathered the rows.
    Given(Given<'a>),
}

impl Source<'_> {
    /// Row `index`; `x` is its place in the f32 buffer.
    fn row<'x>(&'x self, index: usize, x: &'x mut [f32]) -> ActivationRow<'x> {
        match self {
            Source::Room => {}
            Source::Fill(fill) => fill(index, x),
            Source::Given(given) => return given.row(index),
        }
        ActivationRow::F32(x)
    }
}

/// The context of a projection: everything but its operands.
#[derive(Clone, Copy)]
pub(super) struct Projector<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
    pub(super) interrupt: &'a Interrupt,
}

/// Rows to prepare.
struct Rows<'i, 'f> {
    /// `[m, k]`.
    x: &'i mut [f32],
    k: usize,
    source: Source<'f>,
}

impl Projector<'_> {
    /// Prepares the first `m` rows of `inputs.f32`, `[m, k]`, for products with `matrix` and others of its
    /// kind. If there is a `fill`, it writes each row first; then rows that are quantised need not stay in
    /// `inputs.f32`.
    pub(super) fn prepare<'i>(
        &self,
        inputs: &'i mut Inputs<'_>,
        MatrixDims { rows: m, k }: MatrixDims,
        matrix: &Matrix<'_>,
        fill: Option<Fill<'_>>,
    ) -> Prepared<'i> {
        let source = fill.map_or(Source::Room, Source::Fill);
        self.prepare_from(source, inputs, MatrixDims { rows: m, k }, matrix)
    }

    /// Prepares the first `m` rows of `source` as inputs of `matrix`.
    ///
    /// # Panics
    /// If the rows are quantised in another way than these weights need.
    pub(super) fn prepare_from<'i>(
        &self,
        source: Source<'_>,
        inputs: &'i mut Inputs<'_>,
        MatrixDims { rows: m, k }: MatrixDims,
        matrix: &Matrix<'_>,
    ) -> Prepared<'i> {
        let Inputs { f32, q, scales, zeros, sums, tile_sums } = inputs;
        let rows = Rows { x: &mut f32[..m * k], k, source };
        let group = activation_group(encoding(matrix));
        if let Source::Given(Given { group: given @ Some(_), .. }) = source {
            assert!(given == group, "quantised as the weights want it");
        }
        let Some(group) = group else { return self.keep(rows) };
        let groups = Groups { k, group };
        let (q, scales) = (&mut q[..m * k], &mut scales[..m * k / group]);
        match matrix {
            Matrix::F32 { .. } => unreachable!("their inputs are in no groups"),
            Matrix::Q8(_) | Matrix::B6(_) | Matrix::Ggml(_) => {
                self.quantize(rows, group, q, scales)
            }
            Matrix::Q4(_) => {
                let sums = &mut sums[..m * k / BLOCK];
                let x = self.quantize_summed(rows, group, q, scales, sums);
                Prepared::Q4 { x, sums }
            }
            Matrix::B2(_) => {
                let sums = &mut sums[..m * k / BLOCK];
                let x = self.quantize_summed(rows, group, q, scales, sums);
                Prepared::B2 { x, sums }
            }
            _ => {
                let tiles = self.tiles(matrix, groups).expect("others are packed");
                let terms = if tiles.has_zeros { zeros } else { tile_sums };
                let parts = TilePartsMut { q, scales, terms: &mut terms[..m * tiles.row_terms] };
                (tiles.join)(self.quantize_tiles(&tiles, rows, groups, parts), groups, tiles.cut)
            }
        }
    }

    /// Tile layout of rows for `matrix`; `None` if it is not packed.
    pub(super) fn tiles(
        &self,
        matrix: &Matrix<'_>,
        Groups { k, group }: Groups,
    ) -> Option<TileKind> {
        match matrix {
            Matrix::PackedQ8(_) | Matrix::PackedB6(_) | Matrix::PackedGgml(_) => Some(TileKind {
                cut: self.kernels.cut_q8(),
                has_zeros: true,
                row_terms: k / group,
                quantize: Kernels::quantize_tile_row,
                join: |parts, groups, cut| Prepared::PackedQ8(Q8Tiles::new(parts, groups, cut)),
            }),
            Matrix::PackedQ4(_) => Some(TileKind {
                cut: self.kernels.cut_q4(),
                has_zeros: false,
                row_terms: k / BLOCK,
                quantize: Kernels::quantize_tile_row_summed,
                join: |parts, groups, cut| Prepared::PackedQ4(Q8Tiles::summed(parts, groups, cut)),
            }),
            Matrix::PackedB2(_) => Some(TileKind {
                cut: self.kernels.cut_b2(),
                has_zeros: false,
                row_terms: k / BLOCK,
                quantize: Kernels::quantize_tile_row_int_summed,
                join: |parts, groups, cut| {
                    Prepared::PackedB2(Q8Tiles::int_summed(parts, groups, cut))
                },
            }),
            Matrix::F32 { .. }
            | Matrix::Q8(_)
            | Matrix::Q4(_)
            | Matrix::B2(_)
            | Matrix::B6(_)
            | Matrix::Ggml(_) => None,
        }
    }

    /// Prepares rows for f32 weights.
    fn keep<'i>(&self, rows: Rows<'i, '_>) -> Prepared<'i> {
        let Rows { x, k, source } = rows;
        match source {
            Source::Room => {}
            Source::Fill(fill) => self.pool.run_chunks(Chunks::new(x, k), fill),
            Source::Given(given) => x.copy_from_slice(&given.rows[..x.len()]),
        }
        Prepared::F32 { x, k }
    }

    /// Prepares rows for row-major int8 weights.
    fn quantize<'i>(
        &self,
        rows: Rows<'i, '_>,
        group: usize,
        q: &'i mut [i8],
        scales: &'i mut [f32],
    ) -> Prepared<'i> {
        let Rows { x, k, source } = rows;
        let to = (Chunks::new(q, k), Chunks::new(scales, k / group));
        self.pool.run_chunks((Chunks::new(x, k), to), &|row, (x, (q, scales))| {
            self.kernels.quantize_row(source.row(row, x), group, q, scales);
        });
        Prepared::Q8(activations(q, scales, k, group))
    }

    /// Prepares rows for row-major weights of 4 or 4.5 bits.
    fn quantize_summed<'i>(
        &self,
        rows: Rows<'_, '_>,
        group: usize,
        q: &'i mut [i8],
        scales: &'i mut [f32],
        sums: &mut [i32],
    ) -> Q8Activations<'i> {
        let Rows { x, k, source } = rows;
        let to =
            (Chunks::new(q, k), (Chunks::new(scales, k / group), Chunks::new(sums, k / BLOCK)));
        self.pool.run_chunks((Chunks::new(x, k), to), &|row, (x, (q, (scales, sums)))| {
            self.kernels.quantize_row(source.row(row, x), group, q, scales);
            self.kernels.sum_q8(q, sums);
        });
        activations(q, scales, k, group)
    }

    /// Prepares rows for packed weights, in tiles.
    fn quantize_tiles<'i>(
        &self,
        &TileKind { cut, row_terms, quantize, .. }: &TileKind,
        rows: Rows<'_, '_>,
        Groups { k, group }: Groups,
        parts: TilePartsMut<'i>,
    ) -> TileParts<'i> {
        let (Rows { x, source, .. }, TilePartsMut { q, scales, terms }) = (rows, parts);
        let batches = x.chunks_mut(CUT_ROWS * k).zip(q.chunks_mut(CUT_ROWS * k));
        let terms_of =
            scales.chunks_mut(CUT_ROWS * k / group).zip(terms.chunks_mut(CUT_ROWS * row_terms));
        for (batch, ((x, q), (scales, terms))) in batches.zip(terms_of).enumerate() {
            let tiles = cut.tiles(x.len() / k);
            let ends: heapless::Vec<usize, CUT_ROWS> = tiles.map(|tile| tile.end).collect();
            let scales = RowChunks::new(scales, k / group, &ends);
            let to =
                (RowChunks::new(q, k, &ends), (scales, RowChunks::new(terms, row_terms, &ends)));
            let chunks = (RowChunks::new(x, k, &ends), to);
            self.pool.run_chunks(chunks, &|i, (x, (q, (scales, terms)))| {
                let t = x.len() / k;
                let first = batch * CUT_ROWS + ends[i] - t;
                for row in 0..t {
                    // Each row that `source` writes goes to the same place, which stays in cache.
                    let is_there = matches!(source, Source::Room);
                    let x = &mut x[if is_there { row * k } else { 0 }..][..k];
                    let x = source.row(first + row, x);
                    let out = TilePartsMut { q, scales, terms };
                    quantize(self.kernels, x, TileRow { row, rows: t }, group, out);
                }
            });
        }
        TileParts { q, scales, terms }
    }

    /// Computes `out[row] = matrices * inputs[row]` for prepared rows.
    ///
    /// The results of several matrices stand side by side: `out` is `[m, width]`, where `width` is the number
    /// of rows of all matrices.
    ///
    /// # Panics
    /// If the rows were prepared for another kind of weights, or have another length than the matrices' rows.
    pub(super) fn project(&self, inputs: Prepared<'_>, matrices: &[Matrix<'_>], out: &mut [f32]) {
        if inputs.m() != 0 {
            self.multiply(inputs.m(), &|_| inputs, matrices, out);
        }
    }

    /// Multiplies matrix `i` by row `inputs[i]`: one row for each matrix.
    pub(super) fn project_each(
        &self,
        inputs: &[Prepared<'_>],
        matrices: &[Matrix<'_>],
        out: &mut [f32],
    ) {
        self.multiply(1, &|matrix| inputs[matrix], matrices, out);
    }

    /// Adds `matrix * inputs[row]` to each row of `x`, for up to [`FEW_ROWS`] rows. The thread that computes
    /// columns also adds them, so that they need not move to another core's cache.
    pub(super) fn add_projected(&self, inputs: Prepared<'_>, matrix: &Matrix<'_>, x: &mut [f32]) {
        let (m, width, multiplier) = (inputs.m(), matrix.rows(), self.multiplier());
        self.pool.run_columns(&mut x[..m * width], &[width], PIECE_ROWS, &|_, columns, _, x| {
            let mut room = zeros::<{ FEW_ROWS * PIECE_ROWS }>();
            let mut products: heapless::Vec<&mut [f32], FEW_ROWS> =
                room.chunks_exact_mut(columns.len()).take(m).collect();
            multiplier.multiply(&matrix.slice_rows(columns), inputs, &mut products);
            let kernels = multiplier.kernels;
            x.iter_mut().zip(products).for_each(|(x, product)| kernels.add(x, product));
        });
    }

    fn multiply<'i>(
        &self,
        m: usize,
        inputs: &(dyn Fn(usize) -> Prepared<'i> + Sync),
        matrices: &[Matrix<'_>],
        out: &mut [f32],
    ) {
        let widths: heapless::Vec<usize, MATRICES_MAX> =
            matrices.iter().map(Matrix::rows).collect();
        let out = &mut out[..m * widths.iter().sum::<usize>()];
        if out.is_empty() {
            return;
        }
        let multiplier = self.multiplier();
        self.pool.run_columns(out, &widths, PIECE_ROWS, &|matrix, columns, rows, parts| {
            let (w, x) = (matrices[matrix].slice_rows(columns), inputs(matrix).slice_rows(rows));
            multiplier.multiply(&w, x, parts);
        });
    }

    /// The part of the projector that each thread needs.
    pub(super) fn multiplier(&self) -> Multiplier<'_> {
        Multiplier { kernels: self.kernels, interrupt: self.interrupt }
    }
}

/// The context of a thread that multiplies.
#[derive(Clone, Copy)]
pub(super) struct Multiplier<'a> {
    pub(super) kernels: &'a Kernels,
    interrupt: &'a Interrupt,
}

impl Multiplier<'_> {
    /// Computes `out[row] = w * x[row]`, unless the pass was interrupted.
    pub(super) fn multiply(&self, w: &Matrix<'_>, x: Prepared<'_>, out: &mut [&mut [f32]]) {
        if self.interrupt.ask() {
            return;
        }
        let kernels = self.kernels;
        match (*w, x) {
            (Matrix::F32 { w, k }, Prepared::F32 { x, .. }) => kernels.matmul_f32(w, k, x, out),
            (Matrix::Q8(w), Prepared::Q8(x)) => kernels.matmul_q8(w, x, out),
            (Matrix::Q4(w), Prepared::Q4 { x, sums }) => kernels.matmul_q4(w, x, sums, out),
            (Matrix::PackedQ8(w), Prepared::PackedQ8(x)) => kernels.matmul_packed_q8(w, x, out),
            (Matrix::B6(w), Prepared::Q8(x)) => kernels.matmul_b6(w, x, out),
            (Matrix::PackedB6(w), Prepared::PackedQ8(x)) => kernels.matmul_packed_b6(w, x, out),
            (Matrix::PackedQ4(w), Prepared::PackedQ4(x)) => kernels.matmul_packed_q4(w, x, out),
            (Matrix::B2(w), Prepared::B2 { x, sums }) => kernels.matmul_b2(w, x, sums, out),
            (Matrix::PackedB2(w), Prepared::PackedB2(x)) => kernels.matmul_packed_b2(w, x, out),
            (Matrix::Ggml(w), Prepared::Q8(x)) => kernels.matmul_ggml(w, x, out),
            (Matrix::PackedGgml(w), Prepared::PackedQ8(x)) => kernels.matmul_packed_ggml(w, x, out),
            _ => unreachable!("inputs are prepared for the matrices they are multiplied by"),
        }
    }
}

/// Encoding of a matrix.
pub(crate) fn encoding(matrix: &Matrix<'_>) -> Encoding {
    match matrix {
        Matrix::F32 { .. } => Encoding::F32,
        Matrix::Q8(matrix) => Encoding::Q8 { group: matrix.group() },
        Matrix::PackedQ8(matrix) => Encoding::Q8 { group: matrix.group() },
        Matrix::Q4(_) | Matrix::PackedQ4(_) => Encoding::Bcml1,
        Matrix::B2(_) | Matrix::PackedB2(_) => Encoding::Bcml2,
        Matrix::B6(_) | Matrix::PackedB6(_) => Encoding::Bcml6,
        Matrix::Ggml(matrix) => Encoding::Ggml(matrix.kind()),
        Matrix::PackedGgml(matrix) => Encoding::Ggml(matrix.kind()),
    }
}

fn activations<'a>(q: &'a [i8], scales: &'a [f32], k: usize, group: usize) -> Q8Activations<'a> {
    Q8Activations::new(q, scales, k, group).expect("rows are whole groups")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Q8Matrix;

    #[test]
    #[should_panic = "prepared for the matrices"]
    fn inputs_of_another_kind_of_weights_are_refused() {
        let (pool, interrupt) = (Pool::new(&[]).unwrap(), Interrupt::new(None));
        let kernels = &Kernels::best();
        let projector = Projector { kernels, pool: &pool, interrupt: &interrupt };
        let matrix = Matrix::Q8(Q8Matrix::new(&[1; 64], &[1.0; 2], 32, 32).unwrap());
        projector.project(Prepared::F32 { x: &[1.0; 32], k: 32 }, &[matrix], &mut [0.0; 2]);
    }
}
