//! Encodes weights into blocks.
//!
//! A block is a straight line from codes to values. Given codes, least squares gives the best line; given a line, the
//! best codes are the nearest. Doing both in turn (Lloyd, "Least squares quantization in PCM", 1982) ends near where it
//! starts, so it starts from the range of the values and from narrower ones, which leave some values outside:
//! [`search`] finds the most promising line in small integers. That line is fitted once more and rounded to f16. It is
//! taken if it has a lower squared error than the plain range.
//!
//! Sixteen blocks are encoded side by side, one in each lane of a vector, in plain loops that compilers vectorise.
//! Nothing depends on the machine: a file is the same everywhere.

mod search;

use half::f16;

use super::super::q8::QuantError;
use super::{BLOCK, Block, WEIGHT_MAX};

/// Encodes whole blocks of weights. Blocks are independent: threads can encode pieces of a tensor.
///
/// # Errors
///
/// Names the first weight that is not a number up to [`WEIGHT_MAX`] in magnitude.
///
/// # Panics
///
/// When `w` is not 32 values for each block.
#[inline(always)]
pub fn encode(w: &[f32], blocks: &mut [Block]) -> Result<(), QuantError> {
    assert_eq!(blocks.len() * BLOCK, w.len());
    let tiles = w.as_chunks::<BLOCK>().0.chunks(LANES).zip(blocks.chunks_mut(LANES));
    for (n, (w, blocks)) in tiles.enumerate() {
        let tile = Tile::new(w);
        if !tile.is_in_range {
            return Err(out_of_range(w.as_flattened(), n * LANES * BLOCK));
        }
        tile.write(&tile.best_line(), blocks);
    }
    Ok(())
}

/// The error for the first of `w` that cannot be encoded; indices count from `start`.
#[cold]
fn out_of_range(w: &[f32], start: usize) -> QuantError {
    // Magnitudes compare like their bits, with infinities and NaNs on top.
    let is_beyond = |w: &f32| w.abs().to_bits() > WEIGHT_MAX.to_bits();
    let index = w.iter().position(is_beyond).unwrap_or(0);
    QuantError::Value { index: start + index, value: w[index] }
}

/// Blocks encoded side by side.
const LANES: usize = 16;

/// One number for each block.
type Lanes = [f32; LANES];

/// Factor by which the squared error must fall to count as less: more than accumulated rounding.
const GAIN: f32 = 1.0 - 1e-5;

/// `value = code * multiplier + shift`, with values counted from the block's least one.
#[derive(Clone, Copy)]
struct Line {
    multiplier: Lanes,
    shift: Lanes,
}

/// Sums over a block's values and the codes that a line gives them.
struct Sums {
    codes: Lanes,
    squares: Lanes,
    /// Sums of products of codes and values.
    products: Lanes,
}

/// Values of up to sixteen blocks; lanes without a block repeat the last one.
struct Tile {
    /// Values less the block's least one.
    above: [Lanes; BLOCK],
    low: Lanes,
    /// Largest value less the least.
    width: Lanes,
    /// Sum of `above`.
    sum: Lanes,
    /// True if every value is a number up to [`WEIGHT_MAX`] in magnitude.
    is_in_range: bool,
}

impl Tile {
    #[inline(always)]
    fn new(w: &[[f32; BLOCK]]) -> Tile {
        let mut above = transposed(w);
        let (mut low, mut high) = (above[0], above[0]);
        for above in &above {
            for i in 0..LANES {
                low[i] = if above[i] < low[i] { above[i] } else { low[i] };
                high[i] = if above[i] > high[i] { above[i] } else { high[i] };
            }
        }
        let mut sum = [0.0; LANES];
        for above in &mut above {
            for i in 0..LANES {
                above[i] -= low[i];
                sum[i] += above[i];
            }
        }
        let mut is_in_range = true;
        for i in 0..LANES {
            // Only the sum is certain to show a NaN: comparisons may skip it.
            is_in_range &= low[i] >= -WEIGHT_MAX && high[i] <= WEIGHT_MAX && sum[i] >= 0.0;
        }
        let width = std::array::from_fn(|i| high[i] - low[i]);
        Tile { above, low, width, sum, is_in_range }
    }

    /// The best line found for each block.
    #[inline(always)]
    fn best_line(&self) -> Line {
        let plain = Line { multiplier: self.width.map(|w| w / 15.0), shift: [0.0; LANES] };
        let mut best = self.rounded(&plain);
        let mut least = self.error(&best);
        let found = self.rounded(&self.search());
        self.keep_better(&mut best, &mut least, &self.refit(&found));
        if (0..LANES).any(|i| self.is_flat(i)) {
            let below = self.rounded(&self.line_below());
            self.keep_better(&mut best, &mut least, &below);
            self.keep_better(&mut best, &mut least, &self.refit(&below));
        }
        best
    }

    /// Replaces the lines of blocks whose squared error with `new` is less than `least`.
    #[inline(always)]
    fn keep_better(&self, best: &mut Line, least: &mut Lanes, new: &Line) {
        let error = self.error(new);
        for i in 0..LANES {
            if error[i] < least[i] * GAIN {
                least[i] = error[i];
                best.multiplier[i] = new.multiplier[i];
                best.shift[i] = new.shift[i];
            }
        }
    }

    /// Fits f16 lines to the codes of `line`: first the offset, then the multiplier that is best with the rounded
    /// offset.
    #[inline(always)]
    fn refit(&self, line: &Line) -> Line {
        let sums = self.sums(line);
        let mut line = self.rounded(&self.fit(&sums));
        for i in 0..LANES {
            let products = sums.products[i] - line.shift[i] * sums.codes[i];
            line.multiplier[i] = to_f16(products / sums.squares[i]);
        }
        line
    }

    /// The lines with the least squared error for given codes.
    #[inline(always)]
    fn fit(&self, sums: &Sums) -> Line {
        let n = BLOCK as f32;
        let (mut multiplier, mut shift) = ([0.0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            let spread = n * sums.squares[i] - sums.codes[i] * sums.codes[i];
            multiplier[i] = (n * sums.products[i] - sums.codes[i] * self.sum[i]) / spread;
            shift[i] = (self.sum[i] - multiplier[i] * sums.codes[i]) * (1.0 / n);
        }
        Line { multiplier, shift }
    }

    #[inline(always)]
    fn sums(&self, line: &Line) -> Sums {
        let inverse = line.multiplier.map(inverse);
        let [mut codes, mut squares, mut products] = [[0.0; LANES]; 3];
        for above in &self.above {
            for i in 0..LANES {
                let code = code(above[i] - line.shift[i], inverse[i]) - ROUND;
                codes[i] += code;
                squares[i] += code * code;
                products[i] += code * above[i];
            }
        }
        Sums { codes, squares, products }
    }

    /// Squared error of each block.
    #[inline(always)]
    fn error(&self, line: &Line) -> Lanes {
        let inverse = line.multiplier.map(inverse);
        let mut error = [0.0; LANES];
        for above in &self.above {
            for i in 0..LANES {
                let rest = above[i] - line.shift[i];
                let off = rest - (code(rest, inverse[i]) - ROUND) * line.multiplier[i];
                error[i] += off * off;
            }
        }
        error
    }

    /// `line` rounded to f16.
    #[inline(always)]
    fn rounded(&self, line: &Line) -> Line {
        let (mut multiplier, mut shift) = (line.multiplier, line.shift);
        for i in 0..LANES {
            multiplier[i] = to_f16(multiplier[i]);
            shift[i] = to_f16(shift[i] + self.low[i]) - self.low[i];
        }
        Line { multiplier, shift }
    }

    /// True if rounding the offset to f16 matters beside the width of the block's values.
    #[inline(always)]
    fn is_flat(&self, lane: usize) -> bool {
        self.width[lane] < self.low[lane].abs() / 64.0
    }

    /// The line from the largest f16 offset that is not above any value: the codes can make up for the difference.
    #[inline(always)]
    fn line_below(&self) -> Line {
        let shift = self.low.map(|low| f16_not_above(low) - low);
        let mut multiplier = self.width;
        for i in 0..LANES {
            multiplier[i] = (self.width[i] - shift[i]) / 15.0;
        }
        Line { multiplier, shift }
    }

    /// Writes `blocks`; lanes beyond them are left out.
    #[inline(always)]
    fn write(&self, line: &Line, blocks: &mut [Block]) {
        let parameters: [u32; LANES] = std::array::from_fn(|i| {
            let offset = to_f16(line.shift[i] + self.low[i]);
            f16_bits(line.multiplier[i]) | f16_bits(offset) << 16
        });
        // Each word has four bytes of codes.
        let mut words = [[0; LANES]; BLOCK / 8];
        let inverse = line.multiplier.map(inverse);
        let bits =
            |n: usize, i: usize| code(self.above[n][i] - line.shift[i], inverse[i]).to_bits() & 15;
        for (n, word) in words.iter_mut().enumerate() {
            for byte in 0..4 {
                let n = 4 * n + byte;
                for (i, word) in word.iter_mut().enumerate() {
                    *word |= (bits(n, i) | bits(n + BLOCK / 2, i) << 4) << (8 * byte);
                }
            }
        }
        for (i, block) in blocks.iter_mut().enumerate() {
            block.parameters = parameters[i].to_le_bytes();
            for (bytes, word) in block.codes.as_chunks_mut().0.iter_mut().zip(&words) {
                *bytes = word[i].to_le_bytes();
            }
        }
    }
}

/// The blocks' values transposed, one vector for each position. They move in fours, which compilers transpose well.
#[inline(always)]
fn transposed(w: &[[f32; BLOCK]]) -> [Lanes; BLOCK] {
    let mut fours = [[[0.0; 4]; LANES]; BLOCK / 4];
    for lane in 0..LANES {
        let w = w[lane.min(w.len() - 1)].as_chunks().0;
        for (fours, w) in fours.iter_mut().zip(w) {
            fours[lane] = *w;
        }
    }
    let mut values = [[0.0; LANES]; BLOCK];
    for (fours, values) in fours.iter().zip(values.as_chunks_mut().0) {
        let [a, b, c, d] = values;
        for i in 0..LANES {
            [a[i], b[i], c[i], d[i]] = fours[i];
        }
    }
    values
}

/// `1 / x`, or 0 if every code stands for the same value.
#[inline(always)]
fn inverse(x: f32) -> f32 {
    if x > 0.0 { 1.0 / x } else { 0.0 }
}

/// Adding this to a small float leaves its nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// The code whose value is nearest, plus [`ROUND`].
#[inline(always)]
fn code(rest: f32, inverse: f32) -> f32 {
    let code = rest * inverse;
    let code = if code > 0.0 { code } else { 0.0 };
    let code = if code < 15.0 { code } else { 15.0 };
    code + ROUND
}

/// Least normal f16: smaller numbers are subnormal.
const NORMAL_MIN: f32 = 6.103_515_6e-5; // 2^-14

/// The nearest finite f16, ties to even. `half` would convert only one number at a time.
#[inline(always)]
pub(in crate::quant) fn to_f16(x: f32) -> f32 {
    let x = if x < WEIGHT_MAX { x } else { WEIGHT_MAX };
    let x = if x > -WEIGHT_MAX { x } else { -WEIGHT_MAX };
    let bits = x.to_bits();
    let normal = f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff);
    // Below 2^-14 the step of f16 is 2^-24, like that of floats just below 1.
    let subnormal = (x + 0.75) - 0.75;
    if x.abs() < NORMAL_MIN { subnormal } else { normal }
}

/// The f16 bits of `x`, which f16 must hold exactly.
#[inline(always)]
pub(super) fn f16_bits(x: f32) -> u32 {
    let magnitude = x.abs();
    // The exponent's bias is 15 instead of 127.
    let normal = magnitude.to_bits().wrapping_sub(112 << 23) >> 13;
    // Floats just above 0.5 have steps of 2^-24 too.
    let subnormal = (magnitude + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let bits = if magnitude < NORMAL_MIN { subnormal } else { normal };
    bits | x.to_bits() >> 16 & 0x8000
}

/// The largest f16 that is not above `x`.
pub(super) fn f16_not_above(x: f32) -> f32 {
    let near = f16::from_f32(x);
    match (near.to_f32() > x, near.is_sign_negative()) {
        (false, _) => near.to_f32(),
        (true, true) => f16::from_bits(near.to_bits() + 1).to_f32(),
        (true, false) => f16::from_bits(near.to_bits() - 1).to_f32(),
    }
}
