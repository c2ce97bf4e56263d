//! Second moments of a matrix's inputs, and their triangle.
//!
//! Every sum has one order, whatever the threads: these share out sums, not what is added up.

use super::parallel;
use crate::quant::feedback::column_start;
use crate::sys::simd::{self, Work};

/// Rows, or columns of the triangle, that are taken into account together while they are in cache.
const STEP: usize = 32;

/// What is added to the diagonal of the moments, as a part of its mean: as if each input had some
/// noise, so that nothing is made of what a short text has by chance.
const DAMPING: f32 = 0.1;

/// The inputs must be at least this part of the columns.
const ROWS_MIN: usize = 8;

/// Second moments of the `k` inputs of a matrix.
pub struct Moments {
    k: usize,
    n_rows: usize,
    /// Row `j` is the sums of `x[i] x[j]` for `i` up to `j`.
    triangle: Vec<f32>,
}

impl Moments {
    /// Of no inputs yet.
    pub fn new(k: usize) -> Moments {
        Moments { k, n_rows: 0, triangle: vec![0.0; column_start(k)] }
    }

    /// Takes rows `[m, k]` of inputs into account.
    pub fn add(&mut self, x: &[f32]) {
        let k = self.k;
        self.n_rows += x.len() / k;
        let mut rows = rows_of(&mut self.triangle, k);
        for x in x.chunks(STEP * k) {
            let x: Vec<&[f32]> = x.chunks_exact(k).collect();
            parallel::for_each(&mut rows, &|j, sums| {
                let factors: Vec<f32> = x.iter().map(|x| x[j]).collect();
                simd::run(AddMultiples { sums, factors: &factors, rows: &x });
            });
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
            let start = end.saturating_sub(STEP);
            let (before, panel) = rows[..end].split_at_mut(start);
            eliminate(start, panel, damping);
            let panel: Vec<&[f32]> = panel.iter().map(|row| &**row).collect();
            parallel::for_each(before, &|i, sums| subtract(i, sums, (start, &panel)));
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

/// Makes columns of `U` and `D` of the last rows of what is left of the moments, the first of which
/// is row `start`.
fn eliminate(start: usize, panel: &mut [&mut [f32]], damping: f32) {
    for n in (0..panel.len()).rev() {
        let (rows, done) = panel[..].split_at_mut(n + 1);
        let done: Vec<&[f32]> = done.iter().map(|row| &**row).collect();
        let j = start + n;
        subtract(j, rows[n], (j + 1, &done));
        let (d, column) = rows[n].split_last_mut().expect("row j has j + 1 values");
        // The noise alone gives that much, but for roundings.
        *d = d.max(damping);
        column.iter_mut().for_each(|x| *x /= *d);
    }
}

/// Takes from row `i` of the moments what the columns from `first` on explain.
fn subtract(i: usize, row: &mut [f32], (first, columns): (usize, &[&[f32]])) {
    let factors: Vec<f32> =
        columns.iter().enumerate().map(|(n, u)| -(u[i] * u[first + n])).collect();
    simd::run(AddMultiples { sums: row, factors: &factors, rows: columns });
}

/// Adds to `sums` the `rows` times their `factors`, one after the other.
struct AddMultiples<'a> {
    sums: &'a mut [f32],
    factors: &'a [f32],
    /// As long as `sums`, or longer.
    rows: &'a [&'a [f32]],
}

impl Work for AddMultiples<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        /// Sums that fit into registers.
        const LANES: usize = 64;
        let AddMultiples { sums, factors, rows } = self;
        let (chunks, tail) = sums.as_chunks_mut::<LANES>();
        let tail_at = chunks.len() * LANES;
        for (n, chunk) in chunks.iter_mut().enumerate() {
            let mut sums = *chunk;
            for (factor, row) in factors.iter().zip(rows) {
                for (sum, x) in sums.iter_mut().zip(&row[n * LANES..][..LANES]) {
                    *sum += factor * x;
                }
            }
            *chunk = sums;
        }
        for (factor, row) in factors.iter().zip(rows) {
            for (sum, x) in tail.iter_mut().zip(&row[tail_at..]) {
                *sum += factor * x;
            }
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
