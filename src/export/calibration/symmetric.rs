//! Sums of products of every two columns, in a triangle.

use super::parallel;
use crate::quant::products::{self, LANES, Lanes, ROWS};
use crate::sys::simd::{self, Work};

/// Rows of the triangle that a thread computes while columns are in its cache.
const PART: usize = 128;

/// Rows of numbers, in groups of sixteen columns, with zeros at the end: `[k / 16][n_rows]`.
pub(super) struct Columns {
    n_rows: usize,
    vectors: Vec<Lanes>,
}

impl Columns {
    /// The columns of the first `k` numbers of `rows`.
    pub(super) fn new(rows: &[&[f32]], k: usize) -> Columns {
        let n_rows = rows.len();
        let mut columns =
            Columns { n_rows, vectors: vec![[0.0; LANES]; k.div_ceil(LANES) * n_rows] };
        columns.for_each(&|n, vectors| {
            let columns = n * LANES..k.min((n + 1) * LANES);
            for (vector, row) in vectors.iter_mut().zip(rows) {
                vector[..columns.len()].copy_from_slice(&row[columns.clone()]);
            }
        });
        columns
    }

    /// Calls `job` with each group of sixteen columns and its index.
    pub(super) fn for_each(&mut self, job: &(impl Fn(usize, &mut [Lanes]) + Sync)) {
        let mut parts: Vec<_> = self.vectors.chunks_exact_mut(self.n_rows).collect();
        parallel::for_each(&mut parts, &|n, vectors| job(n, vectors));
    }

    /// Writes row `n` back.
    pub(super) fn copy_row(&self, n: usize, row: &mut [f32]) {
        let vectors = self.vectors.iter().skip(n).step_by(self.n_rows);
        for (row, vector) in row.chunks_mut(LANES).zip(vectors) {
            row.copy_from_slice(&vector[..row.len()]);
        }
    }

    /// Adds the sums over `n` of `scales[n] x[n][j] x[n][i]` to `sums`, whose row `j` has `j + 1` numbers.
    pub(super) fn add_products(&self, scales: &[f32], sums: &mut [&mut [f32]]) {
        let factors = self.scaled(scales);
        let mut parts: Vec<_> = sums.chunks_mut(PART).collect();
        parallel::for_each(&mut parts, &|part, sums| {
            let (columns, factors) = (self, &*factors);
            simd::run(Part { columns, factors, first: part * PART, sums });
        });
    }

    /// The columns, with row `n` multiplied by `scales[n]`, one after the other, `[k][n_rows]`.
    fn scaled(&self, scales: &[f32]) -> Vec<f32> {
        let n_rows = self.n_rows;
        let mut scaled = vec![0.0; self.vectors.len() * LANES];
        let columns = scaled.chunks_exact_mut(LANES * n_rows);
        let mut parts: Vec<_> = columns.zip(self.vectors.chunks_exact(n_rows)).collect();
        parallel::for_each(&mut parts, &|_, (columns, vectors)| {
            for (i, column) in columns.chunks_exact_mut(n_rows).enumerate() {
                for ((x, vector), scale) in column.iter_mut().zip(*vectors).zip(scales) {
                    *x = scale * vector[i];
                }
            }
        });
        scaled
    }
}

/// Rows of sums, from row `first` on.
struct Part<'a, 'b> {
    columns: &'a Columns,
    factors: &'a [f32],
    first: usize,
    sums: &'a mut [&'b mut [f32]],
}

impl Work for Part<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Part { columns: Columns { n_rows, vectors }, factors, first, sums } = self;
        let end = first + sums.len();
        for (n, vectors) in vectors.chunks_exact(*n_rows).enumerate() {
            let start = n * LANES;
            if start >= end {
                break;
            }
            for (n, sums) in sums.chunks_mut(ROWS).enumerate() {
                let j = first + n * ROWS;
                if start < j + sums.len() {
                    let factors = &factors[j * n_rows..];
                    add_tile(factors, vectors, start, sums);
                }
            }
        }
    }
}

/// Adds to sixteen numbers of each of up to four rows, which may be shorter.
#[inline(always)]
fn add_tile(factors: &[f32], vectors: &[Lanes], start: usize, sums: &mut [&mut [f32]]) {
    let mut tile = [[0.0; LANES]; ROWS];
    for (tile, sums) in tile.iter_mut().zip(&*sums) {
        copy(tile, sums.get(start..).unwrap_or(&[]));
    }
    // The number of columns is a multiple of sixteen, so that there are always four.
    let factors = |n| &factors[n * vectors.len()..];
    products::add(&mut tile, [factors(0), factors(1), factors(2), factors(3)], vectors);
    for (tile, sums) in tile.iter().zip(sums) {
        copy(sums.get_mut(start..).unwrap_or(&mut []), tile);
    }
}

/// Copies as many numbers as both have.
#[inline(always)]
fn copy(to: &mut [f32], from: &[f32]) {
    let n = to.len().min(from.len());
    to[..n].copy_from_slice(&from[..n]);
}
