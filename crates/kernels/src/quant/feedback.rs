//! Error feedback: later weights of a row make up for the rounding errors of earlier ones.
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
//! Sixteen rows are encoded side by side. Sums run over columns in order, so the result depends neither on the machine
//! nor on how threads share the rows.

mod ggml;
mod grid;

use bytemuck::Zeroable;
use half::f16;

use self::grid::Grid;
use super::bcml1::{self, BLOCK, Block};
use super::bcml2::{self, Snapped};
use super::products::{self, LANES, Lanes, ROWS};
use super::q8::QuantError;

/// Index of column `j`'s first value in a triangle, which is also the length of a triangle of `j` columns.
pub fn column_start(j: usize) -> usize {
    j * (j + 1) / 2
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
    /// Index of the first row, and number of rows.
    first: usize,
    rows: usize,
    /// Index of the group.
    group: usize,
}

/// Encoder of a group of columns. Its methods are inlined, like those of [`Feedback`], into functions compiled for wide
/// vectors.
trait Format {
    /// Chooses the grid of a tile for its weights' targets; squared errors of column `j` are weighted by `weights[j]`.
    fn fit(&mut self, tile: &Tile, targets: &[Lanes], weights: &[f32]) -> Result<Grid, QuantError>;

    /// Takes the codes of the tile that the last grid was chosen for.
    fn put(&mut self, tile: &Tile, codes: &[Lanes]);
}

/// Rows of BCML1.
struct Bcml1Rows<'a> {
    row_blocks: usize,
    blocks: &'a mut [Block],
    /// Multipliers and offsets of a tile.
    lines: [[f16; 2]; LANES],
}

impl Format for Bcml1Rows<'_> {
    #[inline(always)]
    fn fit(&mut self, _: &Tile, targets: &[Lanes], weights: &[f32]) -> Result<Grid, QuantError> {
        let mut grid = Grid::of_blocks(targets)?;
        grid.refit(weights, targets);
        self.lines = grid.lines();
        Ok(grid)
    }

    #[inline(always)]
    fn put(&mut self, tile: &Tile, codes: &[Lanes]) {
        for i in 0..tile.rows {
            let [multiplier, offset] = self.lines[i];
            let block = &mut self.blocks[(tile.first + i) * self.row_blocks + tile.group];
            *block = Block::new(multiplier, offset, code_bytes(codes, i));
        }
    }
}

/// Rows of BCML2.
struct Bcml2Rows<'a> {
    steps: Vec<f32>,
    /// Blocks of each row.
    blocks: Vec<&'a mut [bcml2::Block]>,
    /// Scales and zeros of a tile.
    snapped: Snapped,
}

impl Format for Bcml2Rows<'_> {
    #[inline(always)]
    fn fit(&mut self, tile: &Tile, targets: &[Lanes], weights: &[f32]) -> Result<Grid, QuantError> {
        let mut grid = Grid::of_blocks(targets)?;
        grid.refit(weights, targets);
        let mut step = [0.0; LANES];
        for (i, step) in step.iter_mut().enumerate() {
            *step = self.steps[tile.first + i.min(tile.rows - 1)];
        }
        let line = bcml2::Line { multiplier: grid.multiplier, offset: grid.offset };
        self.snapped = bcml2::snap(whole(targets), whole(weights), &line, &step);
        let bcml2::Line { multiplier, offset } = self.snapped.line(&step);
        Ok(Grid { multiplier, offset, ..grid })
    }

    #[inline(always)]
    fn put(&mut self, tile: &Tile, codes: &[Lanes]) {
        let Snapped { scale, zero } = &self.snapped;
        for i in 0..tile.rows {
            let block = &mut self.blocks[tile.first + i][tile.group];
            *block = bcml2::Block::new(scale[i] as u8, zero[i] as u8, code_bytes(codes, i));
        }
    }
}

/// Rows of int8.
struct Q8Rows<'a> {
    k: usize,
    group: usize,
    q: &'a mut [i8],
    scales: &'a mut [f32],
}

impl Format for Q8Rows<'_> {
    #[inline(always)]
    fn fit(&mut self, tile: &Tile, targets: &[Lanes], _: &[f32]) -> Result<Grid, QuantError> {
        let mut largest = [0.0; LANES];
        for target in targets {
            for i in 0..LANES {
                let magnitude = target[i].abs();
                largest[i] = if magnitude > largest[i] { magnitude } else { largest[i] };
            }
        }
        let mut multiplier = [0.0; LANES];
        for i in 0..LANES {
            // If a scale has no inverse, all its codes are zeros.
            let scale = largest[i] / 127.0;
            multiplier[i] = if (1.0 / scale).is_finite() { scale } else { 0.0 };
        }
        let row_groups = self.k / self.group;
        for (i, scale) in multiplier[..tile.rows].iter().enumerate() {
            self.scales[(tile.first + i) * row_groups + tile.group] = *scale;
        }
        Ok(Grid { multiplier, offset: [0.0; LANES], least: -127.0, largest: 127.0 })
    }

    #[inline(always)]
    fn put(&mut self, tile: &Tile, codes: &[Lanes]) {
        for i in 0..tile.rows {
            let first = (tile.first + i) * self.k + tile.group * self.group;
            for (q, code) in self.q[first..][..self.group].iter_mut().zip(codes) {
                *q = code[i] as i8;
            }
        }
    }
}

/// The bytes of a block's codes in row `row` of a tile.
#[inline(always)]
fn code_bytes(codes: &[Lanes], row: usize) -> [u8; BLOCK / 2] {
    let mut bytes = [0; BLOCK / 2];
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = codes[n][row] as u8 | (codes[n + BLOCK / 2][row] as u8) << 4;
    }
    bytes
}

/// `columns` as an array: one item for each column of a 4-bit block.
#[inline(always)]
fn whole<T>(columns: &[T]) -> &[T; BLOCK] {
    columns.try_into().expect("a group is a block")
}

/// The step of a row, with room for multipliers a little larger than its own weights need. `lines` is scratch space of
/// as many blocks as the row has.
#[inline(always)]
fn step_of(w: &[f32], lines: &mut [Block]) -> Result<f32, QuantError> {
    /// Factor by which feedback enlarges the largest multiplier of a row, about.
    const ROOM: f32 = 1.1;
    bcml1::encode(w, lines)?;
    let mut largest = 0.0_f32;
    for (line, w) in lines.iter().zip(w.as_chunks::<BLOCK>().0) {
        largest = largest.max(bcml2::largest_multiplier(line, w));
    }
    Ok(bcml2::step_for(ROOM * largest))
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

    /// Encodes to rows of BCML2. A row's step is chosen beforehand, for its original weights and a little more. A
    /// block's scale and zero are chosen near the line that [`Feedback::encode_bcml1`] would take.
    ///
    /// # Errors
    ///
    /// Fails like [`bcml2::encode`].
    ///
    /// # Panics
    ///
    /// When `out` is not as long as the rows need.
    #[inline(always)]
    pub fn encode_bcml2(&self, out: &mut [u8]) -> Result<(), QuantError> {
        let (row_bytes, row_blocks) = (bcml2::row_bytes(self.k), self.k / BLOCK);
        assert_eq!(out.len(), self.w.len() / self.k * row_bytes);
        let (mut steps, mut blocks) = (Vec::new(), Vec::new());
        let mut lines = vec![Block::zeroed(); row_blocks];
        for (w, out) in self.w.chunks_exact(self.k).zip(out.chunks_exact_mut(row_bytes)) {
            steps.push(step_of(w, &mut lines)?);
            blocks.push(bcml2::begin_row(steps[steps.len() - 1], row_blocks, out));
        }
        self.sweep(BLOCK, &mut Bcml2Rows { steps, blocks, snapped: Snapped::ZERO })
    }

    /// Encodes to 4-bit blocks. A block's line is fitted to the targets of its weights when its first column is
    /// reached, with squared errors weighted by `d`.
    ///
    /// # Errors
    ///
    /// Fails like [`bcml1::encode`].
    ///
    /// # Panics
    ///
    /// When there are not as many blocks as weights need.
    #[inline(always)]
    pub fn encode_bcml1(&self, out: &mut [Block]) -> Result<(), QuantError> {
        assert_eq!(out.len() * BLOCK, self.w.len());
        let row_blocks = self.k / BLOCK;
        let lines = [[f16::ZERO; 2]; LANES];
        self.sweep(BLOCK, &mut Bcml1Rows { row_blocks, blocks: out, lines })
    }

    /// Encodes to int8 in groups. A group's scale is that of its weights' targets when its first column is reached.
    ///
    /// # Panics
    ///
    /// When `q` and `scales` are not as long as weights and groups need.
    #[inline(always)]
    pub fn encode_q8(&self, group: usize, q: &mut [i8], scales: &mut [f32]) {
        assert_eq!(q.len(), self.w.len());
        assert_eq!(scales.len() * group, self.w.len());
        let swept = self.sweep(group, &mut Q8Rows { k: self.k, group, q, scales });
        swept.expect("a scale can always be found");
    }

    /// Encodes the columns in order, a group at a time.
    #[inline(always)]
    fn sweep(&self, group: usize, format: &mut impl Format) -> Result<(), QuantError> {
        let n_rows = self.w.len() / self.k;
        let n_tiles = n_rows.div_ceil(LANES);
        let mut errors = vec![[0.0; LANES]; n_tiles * self.k];
        let (mut targets, mut codes) = (vec![[0.0; LANES]; group], vec![[0.0; LANES]; group]);
        let mut weights = vec![0.0; group];
        // All rows use the group's columns of the triangle while these are in cache.
        for start in (0..self.k).step_by(group) {
            for (weight, j) in weights.iter_mut().zip(start..) {
                *weight = self.triangle[column_start(j) + j];
            }
            for (n, errors) in errors.chunks_exact_mut(self.k).enumerate() {
                let first = n * LANES;
                let tile = Tile { first, rows: LANES.min(n_rows - first), group: start / group };
                let (earlier, own) = errors.split_at_mut(start);
                self.targets(&tile, start, earlier, &mut targets);
                let grid = format.fit(&tile, &targets, &weights)?;
                self.round((&tile, start), &grid, &targets, (&mut own[..group], &mut codes));
                format.put(&tile, &codes);
            }
        }
        Ok(())
    }

    /// Targets of the columns from `start` on, given the errors of all earlier columns.
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

    /// Rounds the columns from `start` on in order, and notes their errors.
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
            let wanted = products::sum(*target, column, &errors[..n]);
            let w = self.column(tile, start + n);
            codes[n] = grid.codes(&inverse, &wanted);
            for i in 0..LANES {
                errors[n][i] = w[i] - (codes[n][i] * grid.multiplier[i] + grid.offset[i]);
            }
        }
    }

    /// The weights of a column; lanes without a row repeat the last one.
    #[inline(always)]
    fn column(&self, tile: &Tile, column: usize) -> Lanes {
        let mut values = [0.0; LANES];
        for (i, value) in values.iter_mut().enumerate() {
            *value = self.w[(tile.first + i.min(tile.rows - 1)) * self.k + column];
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of columns, each much like the one before it.
    const K: usize = 64;

    /// `U` for moments `0.9^|i-j|`: only the next column predicts a column.
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

    /// The sum of `(e[j] + 0.9 e[j - 1])²`: the effect of the error on outputs.
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
        // Fitting lines helps much here, and feedback undoes a part of that.
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
        // A row alone has the same bytes.
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
