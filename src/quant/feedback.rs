//! Error feedback: what rounding a weight leaves over, later weights of its row make up for.
//!
//! Errors `e` of a row's weights change its output for inputs `x` by `e·x`: on average, squared, by
//! `e H eᵀ` with the inputs' second moments `H = E[xᵀx]`. With `H = U D Uᵀ`, `U` upper triangular with
//! ones on its diagonal, that is the sum of `d[j] * (e[j] + Σ e[i] U[i][j])²` over all `j`, `i < j`.
//! From the first column to the last, weight `j` is therefore best replaced by the value nearest to
//! `w[j] + Σ e[i] U[i][j]`, where `e` is a weight less its replacement (GPTQ, arXiv:2210.17323; in
//! this form LDLQ, arXiv:2307.13304).
//!
//! A triangle is stored by columns of `U`: column `j` is `U[0..j][j]` and then `d[j]`, the `j + 1`
//! values from `j (j + 1) / 2` on.
//!
//! Sixteen rows are encoded side by side. Sums run over columns in their order, so nothing depends
//! on the machine or on how rows are shared out.

use bytemuck::Zeroable;
use half::f16;

use super::bcml1::{self, BLOCK, Block, WEIGHT_MAX, to_f16};
use super::bcml2;
use super::products::{self, LANES, Lanes, ROWS};
use super::q8::QuantError;

/// Adding this to a small float rounds it to an integer, which taking it away leaves.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// The first value of column `j` in a triangle; the length of one with `j` columns.
pub fn column_start(j: usize) -> usize {
    j * (j + 1) / 2
}

/// The bytes of a block's codes in row `row` of a tile.
#[inline(always)]
fn code_bytes(codes: &[Lanes], row: usize) -> [u8; BLOCK / 2] {
    let code = |n: usize| codes[n][row] as u8;
    std::array::from_fn(|n| code(n) | code(n + BLOCK / 2) << 4)
}

/// Rows to encode, and the triangle for their columns.
#[derive(Clone, Copy)]
pub struct Feedback<'a> {
    /// `[rows, k]`; numbers that can be encoded.
    w: &'a [f32],
    k: usize,
    triangle: &'a [f32],
}

/// Some rows of a group of columns.
struct Tile {
    /// The first row, and how many there are.
    first: usize,
    rows: usize,
    /// The group's number.
    group: usize,
}

/// The values that the codes of a group have in each row: `code * multiplier + offset`.
#[derive(Clone, Copy)]
struct Grid {
    multiplier: Lanes,
    offset: Lanes,
    /// The least code and the largest.
    least: f32,
    largest: f32,
}

impl Grid {
    /// The lines with the least squared error for the values of a block's columns, all alike.
    #[inline(always)]
    fn of_blocks(columns: &[Lanes]) -> Result<Grid, QuantError> {
        let mut values = [[0.0; BLOCK]; LANES];
        for (i, values) in values.iter_mut().enumerate() {
            for (value, column) in values.iter_mut().zip(columns) {
                *value = column[i].clamp(-WEIGHT_MAX, WEIGHT_MAX);
            }
        }
        let mut blocks = [Block::zeroed(); LANES];
        bcml1::encode(values.as_flattened(), &mut blocks)?;
        let multiplier = blocks.map(|block| block.multiplier().to_f32());
        let offset = blocks.map(|block| block.offset().to_f32());
        Ok(Grid { multiplier, offset, least: 0.0, largest: 15.0 })
    }

    /// The multiplier and offset of a row, which f16 has.
    fn line(&self, row: usize) -> [f16; 2] {
        [self.multiplier[row], self.offset[row]].map(f16::from_f32)
    }

    #[inline(always)]
    fn inverse(&self) -> Lanes {
        self.multiplier.map(|x| if x > 0.0 { 1.0 / x } else { 0.0 })
    }

    /// The codes of the nearest values.
    #[inline(always)]
    fn codes(&self, inverse: &Lanes, values: &Lanes) -> Lanes {
        std::array::from_fn(|i| {
            let code = (values[i] - self.offset[i]) * inverse[i];
            let code = if code > self.least { code } else { self.least };
            let code = if code < self.largest { code } else { self.largest };
            (code + ROUND) - ROUND
        })
    }

    /// Fits lines to their codes a few times, so that the squared errors of `targets` times
    /// `weights`, a block's, become less.
    #[inline(always)]
    fn refit(&mut self, weights: &[f32; BLOCK], targets: &[Lanes]) {
        const TIMES: usize = 3;
        let mut least = self.error(weights, targets);
        for _ in 0..TIMES {
            let new = self.fitted(weights, targets);
            let error = new.error(weights, targets);
            for i in 0..LANES {
                if error[i] < least[i] {
                    least[i] = error[i];
                    self.multiplier[i] = new.multiplier[i];
                    self.offset[i] = new.offset[i];
                }
            }
        }
    }

    /// Weighted squared errors.
    #[inline(always)]
    fn error(&self, weights: &[f32; BLOCK], targets: &[Lanes]) -> Lanes {
        let inverse = self.inverse();
        let mut error = [0.0; LANES];
        for (weight, target) in weights.iter().zip(targets) {
            let codes = self.codes(&inverse, target);
            for i in 0..LANES {
                let off = target[i] - (codes[i] * self.multiplier[i] + self.offset[i]);
                error[i] += weight * (off * off);
            }
        }
        error
    }

    /// The lines of f16 with the least weighted error for the codes that these lines give, nearly.
    #[inline(always)]
    fn fitted(&self, weights: &[f32; BLOCK], targets: &[Lanes]) -> Grid {
        let inverse = self.inverse();
        let total: f32 = weights.iter().sum();
        let [mut codes, mut values, mut squares, mut products] = [[0.0; LANES]; 4];
        for (weight, target) in weights.iter().zip(targets) {
            let code = self.codes(&inverse, target);
            for i in 0..LANES {
                // Counted from the offset, values are small.
                let value = target[i] - self.offset[i];
                codes[i] += weight * code[i];
                values[i] += weight * value;
                squares[i] += weight * (code[i] * code[i]);
                products[i] += weight * (code[i] * value);
            }
        }
        let mut new = *self;
        for i in 0..LANES {
            let spread = total * squares[i] - codes[i] * codes[i];
            let slope = (total * products[i] - codes[i] * values[i]) / spread;
            new.offset[i] = to_f16(self.offset[i] + (values[i] - slope * codes[i]) / total);
            let moved = new.offset[i] - self.offset[i];
            new.multiplier[i] = to_f16((products[i] - moved * codes[i]) / squares[i]);
        }
        new
    }
}

impl<'a> Feedback<'a> {
    /// Takes weights `[rows, k]`.
    ///
    /// # Panics
    ///
    /// When `w` is no whole number of rows, or the triangle is not of `k` columns.
    pub fn new(w: &'a [f32], k: usize, triangle: &'a [f32]) -> Feedback<'a> {
        assert!(w.len().is_multiple_of(k));
        assert_eq!(triangle.len(), column_start(k));
        Feedback { w, k, triangle }
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Encodes to rows of BCML2. A row's step is chosen beforehand, for its weights as they are and a little
    /// more; a block's scale and zero as a line of [`Feedback::encode_bcml1`], around which they are.
    ///
    /// # Errors
    ///
    /// As [`bcml2::encode`].
    ///
    /// # Panics
    ///
    /// When `out` is not as long as the rows need.
    #[inline(always)]
    pub fn encode_bcml2(&self, out: &mut [u8]) -> Result<(), QuantError> {
        let (row_bytes, row_blocks) = (bcml2::row_bytes(self.k), self.k / BLOCK);
        assert_eq!(out.len(), self.w.len() / self.k * row_bytes);
        let steps = self.steps()?;
        let mut blocks = vec![bcml2::Block::zeroed(); self.w.len() / BLOCK];
        let mut snapped = vec![[0; 2]; blocks.len()];
        let fit = |tile: &Tile, targets: &[Lanes]| {
            let weights = self.weights(tile.group);
            let mut line = Grid::of_blocks(targets)?;
            line.refit(&weights, targets);
            let Grid { multiplier, offset, .. } = line;
            let step = std::array::from_fn(|i| steps[tile.first + i.min(tile.rows - 1)]);
            let values = &targets.as_chunks().0[0];
            let new = bcml2::snap(values, &weights, &bcml2::Line { multiplier, offset }, &step);
            for i in 0..tile.rows {
                let place = (tile.first + i) * row_blocks + tile.group;
                snapped[place] = [new.scale[i] as u8, new.zero[i] as u8];
            }
            let bcml2::Line { multiplier, offset } = new.line(&step);
            Ok(Grid { multiplier, offset, least: 0.0, largest: 15.0 })
        };
        self.sweep(BLOCK, fit, |tile, codes| {
            for i in 0..tile.rows {
                blocks[(tile.first + i) * row_blocks + tile.group].codes = code_bytes(codes, i);
            }
        })?;
        let rows = blocks.chunks_exact(row_blocks).zip(snapped.chunks_exact(row_blocks));
        for ((out, step), (blocks, snapped)) in out.chunks_exact_mut(row_bytes).zip(steps).zip(rows)
        {
            let out = bcml2::begin_row(step, row_blocks, out);
            for ((out, block), [scale, zero]) in out.iter_mut().zip(blocks).zip(snapped) {
                *out = bcml2::Block::new(*scale, *zero, block.codes);
            }
        }
        Ok(())
    }

    /// The steps of rows whose blocks may have multipliers a little larger than their own weights want.
    fn steps(&self) -> Result<Vec<f32>, QuantError> {
        /// How much what earlier errors add makes the largest of a row's blocks larger, about.
        const ROOM: f32 = 1.1;
        let mut lines = vec![Block::zeroed(); self.k / BLOCK];
        let step = |w: &[f32]| {
            bcml1::encode(w, &mut lines)?;
            let blocks = lines.iter().zip(w.as_chunks::<BLOCK>().0);
            let largest = blocks.map(|(line, w)| bcml2::largest_multiplier(line, w));
            Ok(bcml2::step_for(ROOM * largest.fold(0.0, f32::max)))
        };
        self.w.chunks_exact(self.k).map(step).collect()
    }

    /// Encodes to 4-bit blocks. A block's line is sought for what its weights should be when its
    /// first is reached, with their errors weighted by `d`.
    ///
    /// # Errors
    ///
    /// As [`bcml1::encode`].
    ///
    /// # Panics
    ///
    /// When there are not as many blocks as weights need.
    #[inline(always)]
    pub fn encode_bcml1(&self, out: &mut [Block]) -> Result<(), QuantError> {
        assert_eq!(out.len() * BLOCK, self.w.len());
        let row_blocks = self.k / BLOCK;
        let mut lines = vec![[f16::ZERO; 2]; out.len()];
        let fit = |tile: &Tile, targets: &[Lanes]| {
            let mut grid = Grid::of_blocks(targets)?;
            grid.refit(&self.weights(tile.group), targets);
            for i in 0..tile.rows {
                lines[(tile.first + i) * row_blocks + tile.group] = grid.line(i);
            }
            Ok(grid)
        };
        self.sweep(BLOCK, fit, |tile, codes| {
            for i in 0..tile.rows {
                out[(tile.first + i) * row_blocks + tile.group].codes = code_bytes(codes, i);
            }
        })?;
        for (out, [multiplier, offset]) in out.iter_mut().zip(lines) {
            *out = Block::new(multiplier, offset, out.codes);
        }
        Ok(())
    }

    /// Encodes to int8 in groups. A group's scale is that of what its weights should be when its
    /// first is reached.
    ///
    /// # Panics
    ///
    /// When `q` and `scales` are not as long as weights and groups need.
    #[inline(always)]
    pub fn encode_q8(&self, group: usize, q: &mut [i8], scales: &mut [f32]) {
        assert_eq!(q.len(), self.w.len());
        assert_eq!(scales.len() * group, self.w.len());
        let (k, row_groups) = (self.k, self.k / group);
        let fit = |tile: &Tile, targets: &[Lanes]| {
            let mut largest = [0.0; LANES];
            for target in targets {
                for i in 0..LANES {
                    largest[i] =
                        if target[i].abs() > largest[i] { target[i].abs() } else { largest[i] };
                }
            }
            // Codes of a scale without an inverse are zeros.
            let multiplier = largest
                .map(|largest: f32| largest / 127.0)
                .map(|scale| if (1.0 / scale).is_finite() { scale } else { 0.0 });
            for i in 0..tile.rows {
                scales[(tile.first + i) * row_groups + tile.group] = multiplier[i];
            }
            Ok(Grid { multiplier, offset: [0.0; LANES], least: -127.0, largest: 127.0 })
        };
        let swept = self.sweep(group, fit, |tile, codes| {
            for i in 0..tile.rows {
                let q = &mut q[(tile.first + i) * k + tile.group * group..][..group];
                for (q, code) in q.iter_mut().zip(codes) {
                    *q = code[i] as i8;
                }
            }
        });
        swept.expect("a scale can always be found");
    }

    /// Goes through the columns, a group at a time: `fit` chooses a group's grid from what its
    /// weights should be, `put` takes the codes.
    #[inline(always)]
    fn sweep(
        &self,
        group: usize,
        mut fit: impl FnMut(&Tile, &[Lanes]) -> Result<Grid, QuantError>,
        mut put: impl FnMut(&Tile, &[Lanes]),
    ) -> Result<(), QuantError> {
        let n_rows = self.w.len() / self.k;
        let n_tiles = n_rows.div_ceil(LANES);
        let mut errors = vec![[0.0; LANES]; n_tiles * self.k];
        let (mut targets, mut codes) = (vec![[0.0; LANES]; group], vec![[0.0; LANES]; group]);
        // The group's columns of the triangle are used by all rows while they are in cache.
        for start in (0..self.k).step_by(group) {
            for (n, errors) in errors.chunks_exact_mut(self.k).enumerate() {
                let first = n * LANES;
                let tile = Tile { first, rows: LANES.min(n_rows - first), group: start / group };
                let (earlier, own) = errors.split_at_mut(start);
                self.targets(&tile, start, earlier, &mut targets);
                let grid = fit(&tile, &targets)?;
                self.round((&tile, start), &grid, &targets, (&mut own[..group], &mut codes));
                put(&tile, &codes);
            }
        }
        Ok(())
    }

    /// What the weights of the columns from `start` on should be after those errors of all earlier
    /// ones.
    #[inline(always)]
    fn targets(&self, tile: &Tile, start: usize, errors: &[Lanes], targets: &mut [Lanes]) {
        for (n, targets) in targets.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            let first = start + n * ROWS;
            let mut sums = [[0.0; LANES]; ROWS];
            let column = |n| &self.triangle[column_start(first + n)..][..start];
            products::add(&mut sums, [column(0), column(1), column(2), column(3)], errors);
            for (n, (target, sums)) in targets.iter_mut().zip(sums).enumerate() {
                let w = self.column(tile, first + n);
                for i in 0..LANES {
                    target[i] = w[i] + sums[i];
                }
            }
        }
    }

    /// Rounds the columns from `start` on, one after the other, and notes their errors.
    #[inline(always)]
    fn round(
        &self,
        (tile, start): (&Tile, usize),
        grid: &Grid,
        targets: &[Lanes],
        (errors, codes): (&mut [Lanes], &mut [Lanes]),
    ) {
        let inverse = grid.inverse();
        for (n, target) in targets.iter().enumerate() {
            let column = &self.triangle[column_start(start + n) + start..][..n];
            let mut wanted = *target;
            for (factor, error) in column.iter().zip(&*errors) {
                for (wanted, error) in wanted.iter_mut().zip(error) {
                    *wanted += factor * error;
                }
            }
            let w = self.column(tile, start + n);
            codes[n] = grid.codes(&inverse, &wanted);
            for i in 0..LANES {
                errors[n][i] = w[i] - (codes[n][i] * grid.multiplier[i] + grid.offset[i]);
            }
        }
    }

    /// What errors of a 4-bit block's columns weigh, once those before are made up for.
    #[inline(always)]
    fn weights(&self, group: usize) -> [f32; BLOCK] {
        std::array::from_fn(|n| {
            let j = group * BLOCK + n;
            self.triangle[column_start(j) + j]
        })
    }

    /// The weights of a column; lanes without a row repeat the last one.
    #[inline(always)]
    fn column(&self, tile: &Tile, column: usize) -> Lanes {
        std::array::from_fn(|i| self.w[(tile.first + i.min(tile.rows - 1)) * self.k + column])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of which each is much like the one before it.
    const K: usize = 64;

    /// `U` for moments `0.9^|i-j|`: the next column alone foretells a column.
    fn triangle() -> Vec<f32> {
        let mut triangle = vec![0.0; column_start(K)];
        for j in 0..K {
            let column = &mut triangle[column_start(j)..][..=j];
            column[j] = 1.0;
            if let Some(before) = j.checked_sub(1) {
                column[before] = 0.9;
            }
        }
        triangle
    }

    fn weights(rows: usize) -> Vec<f32> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..rows * K).map(|_| next()).collect()
    }

    /// The sum of `(e[j] + 0.9 e[j - 1])²`: what the error does to outputs.
    fn damage(w: &[f32], decoded: &[f32]) -> f32 {
        let rows = w.chunks_exact(K).zip(decoded.chunks_exact(K));
        rows.map(|(w, q)| {
            let mut before = 0.0;
            let terms = w.iter().zip(q).map(|(w, q)| {
                let term = w - q + 0.9 * before;
                before = w - q;
                term * term
            });
            terms.sum::<f32>()
        })
        .sum()
    }

    #[test]
    fn outputs_of_4_bit_rows_are_nearer_than_without_feedback() {
        let (w, triangle) = (weights(19), triangle());
        let mut blocks = vec![Block::zeroed(); w.len() / BLOCK];
        let mut decoded = vec![0.0; w.len()];
        bcml1::encode(&w, &mut blocks).unwrap();
        bcml1::decode(&blocks, &mut decoded);
        let plain = damage(&w, &decoded);
        Feedback::new(&w, K, &triangle).encode_bcml1(&mut blocks).unwrap();
        bcml1::decode(&blocks, &mut decoded);
        let fed_back = damage(&w, &decoded);
        // Fitted lines gain much of their own here, which what is fed back undoes in part.
        assert!(fed_back < 0.95 * plain, "{fed_back} {plain}");
    }

    #[test]
    fn outputs_of_rows_with_two_levels_are_nearer_than_without_feedback() {
        let (w, triangle) = (weights(19), triangle());
        let mut rows = vec![0; 19 * bcml2::row_bytes(K)];
        let decoded = |rows: &[u8]| {
            let matrix = bcml2::Bcml2Matrix::new(rows, K).unwrap();
            let mut decoded = vec![0.0; w.len()];
            for (row, out) in decoded.chunks_exact_mut(K).enumerate() {
                bcml2::decode(matrix.row(row), out);
            }
            decoded
        };
        bcml2::encode(&w, K, &mut rows).unwrap();
        let plain = damage(&w, &decoded(&rows));
        Feedback::new(&w, K, &triangle).encode_bcml2(&mut rows).unwrap();
        let fed_back = damage(&w, &decoded(&rows));
        assert!(fed_back < 0.98 * plain, "{fed_back} {plain}");
        // Each row alone.
        for (w, all) in w.chunks_exact(K).zip(rows.chunks_exact(bcml2::row_bytes(K))) {
            let mut one = vec![0; all.len()];
            Feedback::new(w, K, &triangle).encode_bcml2(&mut one).unwrap();
            assert_eq!(one, all);
        }
    }

    #[test]
    fn outputs_of_int8_rows_are_nearer_than_without_feedback() {
        let (w, triangle) = (weights(17), triangle());
        let (mut q, mut scales) = (vec![0; w.len()], vec![0.0; w.len() / 32]);
        let mut decoded = vec![0.0; w.len()];
        crate::quant::quantize(&w, 32, &mut q, &mut scales);
        crate::quant::dequantize(&q, &scales, 32, &mut decoded);
        let plain = damage(&w, &decoded);
        Feedback::new(&w, K, &triangle).encode_q8(32, &mut q, &mut scales);
        crate::quant::dequantize(&q, &scales, 32, &mut decoded);
        let fed_back = damage(&w, &decoded);
        assert!(fed_back < 0.8 * plain, "{fed_back} {plain}");
    }

    #[test]
    fn a_row_is_encoded_alike_whatever_rows_are_beside_it() {
        let (w, triangle) = (weights(21), triangle());
        let mut all = vec![Block::zeroed(); w.len() / BLOCK];
        Feedback::new(&w, K, &triangle).encode_bcml1(&mut all).unwrap();
        for (row, w) in w.chunks_exact(K).enumerate() {
            let mut one = [Block::zeroed(); K / BLOCK];
            Feedback::new(w, K, &triangle).encode_bcml1(&mut one).unwrap();
            assert_eq!(one, all[row * (K / BLOCK)..][..K / BLOCK]);
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let (w, triangle) = ([0.0; K], triangle());
        let (mut q, mut scales) = ([1; K], [1.0; K / 32]);
        Feedback::new(&w, K, &triangle).encode_q8(32, &mut q, &mut scales);
        assert_eq!((q, scales), ([0; K], [0.0; K / 32]));
    }
}
