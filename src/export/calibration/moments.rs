//! Second moments of a matrix's inputs, and their triangle.
//!
//! Sums do not depend on the number of threads: each sum is computed by one thread, in one order.

use super::symmetric::Columns;
use crate::quant::feedback::column_start;
use crate::quant::products::{self, Lanes};
use crate::sys::simd::{self, Work};

/// Rows of inputs that are added in one pass.
const INPUT_ROWS: usize = 512;

/// Columns of the triangle that are computed together.
const PANEL: usize = 64;

/// Noise of the inputs that is added to the diagonal of the moments, as a fraction of its mean, so that chance in a
/// short text has no effect.
const DAMPING: f32 = 0.1;

/// A matrix needs at least one input for this many columns.
const ROWS_MIN: usize = 8;

/// Second moments of the `k` inputs of a matrix.
pub struct Moments {
    k: usize,
    n_rows: usize,
    /// Row `j` is the sums of `x[i] x[j]` for `i` up to `j`.
    triangle: Vec<f32>,
}

impl Moments {
    /// Moments without inputs.
    pub fn new(k: usize) -> Moments {
        Moments { k, n_rows: 0, triangle: vec![0.0; column_start(k)] }
    }

    /// Adds rows `[m, k]` of inputs.
    pub fn add(&mut self, x: &[f32]) {
        let k = self.k;
        self.n_rows += x.len() / k;
        let mut sums = rows_of(&mut self.triangle, k);
        for x in x.chunks(INPUT_ROWS * k) {
            let x: Vec<&[f32]> = x.chunks_exact(k).collect();
            Columns::new(&x, k).add_products(&vec![1.0; x.len()], &mut sums);
        }
    }

    /// `U` and `D` of the moments, as [`crate::quant::feedback`] wants them; `None` if the inputs
    /// were too few or not finite.
    pub(super) fn into_triangle(self) -> Option<Vec<f32>> {
        let Moments { k, n_rows, mut triangle } = self;
        let diagonal: f32 = (0..k).map(|j| triangle[column_start(j) + j]).sum();
        let damping = DAMPING * (diagonal / k as f32);
        if n_rows * ROWS_MIN < k || !damping.is_normal() {
            return None;
        }
        let mut rows = rows_of(&mut triangle, k);
        for (j, row) in rows.iter_mut().enumerate() {
            row[j] += damping;
        }
        let mut end = k;
        while end > 0 {
            let start = end.saturating_sub(PANEL);
            let (before, panel) = rows[..end].split_at_mut(start);
            eliminate(start, panel, damping);
            let columns = solve(start, panel);
            let scales: Vec<f32> = panel.iter().map(|row| -row[row.len() - 1]).collect();
            columns.add_products(&scales, before);
            end = start;
        }
        Some(triangle)
    }
}

/// The rows of a triangle.
fn rows_of(triangle: &mut [f32], k: usize) -> Vec<&mut [f32]> {
    let mut rest = triangle;
    let next = |j| {
        let (row, others) = std::mem::take(&mut rest).split_at_mut(j + 1);
        rest = others;
        row
    };
    (0..k).map(next).collect()
}

/// Turns a panel, the last rows of the remaining moments, into columns of `U` and their `D`. `start` is the panel's
/// first row: only the part from there on, a triangle by itself, is computed here. [`solve`] does the rest.
fn eliminate(start: usize, panel: &mut [&mut [f32]], damping: f32) {
    for n in (0..panel.len()).rev() {
        let (before, own) = panel.split_at_mut(n);
        let (d, column) = own[0][start..].split_last_mut().expect("row j has j + 1 values");
        // The noise alone is this large, except for rounding.
        *d = d.max(damping);
        for (row, of_row) in before.iter_mut().zip(&*column) {
            let factor = of_row / *d;
            for (x, u) in row[start..].iter_mut().zip(&*column) {
                *x -= factor * u;
            }
        }
        column.iter_mut().for_each(|x| *x /= *d);
    }
}

/// Computes the rows before `start` of a panel's columns of `U`, after [`eliminate`] has computed the others. Also
/// returns these rows as columns.
fn solve(start: usize, panel: &mut [&mut [f32]]) -> Columns {
    let n_columns = panel.len();
    let diagonal: Vec<f32> = panel.iter().map(|row| row[row.len() - 1]).collect();
    // Factors of later columns, which are subtracted from column n.
    let factor = |m: usize, n: usize| -(diagonal[m] * panel[m][start + n]);
    let factors: Vec<Vec<f32>> =
        (0..n_columns).map(|n| (n + 1..n_columns).map(|m| factor(m, n)).collect()).collect();
    let rows: Vec<&[f32]> = panel.iter().map(|row| &**row).collect();
    let mut columns = Columns::new(&rows, start);
    columns.for_each(&|_, vectors| {
        simd::run(Solve { vectors, factors: &factors, diagonal: &diagonal });
    });
    for (n, row) in panel.iter_mut().enumerate() {
        columns.copy_row(n, &mut row[..start]);
    }
    columns
}

/// Solves sixteen rows of columns of `U`, the last column first.
struct Solve<'a> {
    vectors: &'a mut [Lanes],
    factors: &'a [Vec<f32>],
    diagonal: &'a [f32],
}

impl Work for Solve<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Solve { vectors, factors, diagonal } = self;
        for n in (0..vectors.len()).rev() {
            let (earlier, later) = vectors.split_at_mut(n + 1);
            let mut sums = products::sum(earlier[n], &factors[n], later);
            for sum in &mut sums {
                *sum /= diagonal[n];
            }
            earlier[n] = sums;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 75;

    fn inputs(rows: usize) -> Vec<f32> {
        (0..rows * K).map(|i| ((i * 7919 + i / K * 31) % 1009) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn triangle_multiplies_to_the_damped_moments() {
        let x = inputs(50);
        let mut moments = Moments::new(K);
        x.chunks(20 * K).for_each(|x| moments.add(x));
        let moment = |i: usize, j: usize| -> f32 { x.chunks_exact(K).map(|x| x[i] * x[j]).sum() };
        let damping = DAMPING * (0..K).map(|i| moment(i, i)).sum::<f32>() / K as f32;
        let triangle = moments.into_triangle().unwrap();
        let u = |i: usize, j: usize| match i == j {
            true => 1.0,
            false => triangle[column_start(j) + i],
        };
        for j in 0..K {
            for i in 0..=j {
                let product: f32 =
                    (j..K).map(|n| u(i, n) * triangle[column_start(n) + n] * u(j, n)).sum();
                let wanted = moment(i, j) + if i == j { damping } else { 0.0 };
                assert!((product - wanted).abs() < 1e-3, "{i} {j}: {product} {wanted}");
            }
        }
    }

    #[test]
    fn too_few_inputs_and_zeros_give_none() {
        let mut moments = Moments::new(K);
        moments.add(&inputs(9));
        assert!(moments.into_triangle().is_none());
        let mut moments = Moments::new(K);
        moments.add(&[0.0; 100 * K]);
        assert!(moments.into_triangle().is_none());
    }
}
