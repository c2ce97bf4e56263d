//! Weights to blocks.
//!
//! A block is a straight line from codes to values. Given codes, the best line is a matter of least
//! squares; given a line, the best codes are the nearest. Doing both in turn (Lloyd, "Least squares
//! quantization in PCM", 1982) ends near where it starts, so it starts from the range of the values
//! and from narrower ones, which leave some values outside. The most promising line is then made
//! one of f16 and tried on the values themselves.
//!
//! Eight blocks are encoded side by side, one in each lane of a vector, in plain loops that
//! compilers make vectors of. Nothing depends on the machine: a file is the same everywhere.

use half::f16;

use super::{BLOCK, Block, Error, WEIGHT_MAX};

/// Encodes whole blocks of weights. Blocks are independent, so pieces of a tensor can be done by
/// different threads.
///
/// # Errors
///
/// Names the first weight that is not a number up to [`WEIGHT_MAX`] in magnitude.
///
/// # Panics
///
/// When `w` is not 32 values for each block.
#[inline(always)]
pub fn encode(w: &[f32], blocks: &mut [Block]) -> Result<(), Error> {
    assert_eq!(blocks.len() * BLOCK, w.len());
    // Magnitudes compare as their bits do, and infinities and NaNs are on top.
    let is_beyond = |w: &f32| w.abs().to_bits() > WEIGHT_MAX.to_bits();
    if w.iter().fold(false, |any, w| any | is_beyond(w)) {
        let index = w.iter().position(is_beyond).unwrap_or(0);
        return Err(Error::Value { index, value: w[index] });
    }
    let w = w.as_chunks::<BLOCK>().0;
    for (w, blocks) in w.chunks(LANES).zip(blocks.chunks_mut(LANES)) {
        let tile = Tile::new(w);
        let line = tile.best_line();
        for (lane, block) in blocks.iter_mut().enumerate() {
            *block = tile.block(&line, lane);
        }
    }
    Ok(())
}

/// Blocks encoded side by side.
const LANES: usize = 8;

/// A number of each block.
type Lanes = [f32; LANES];

/// What of the values' range a search starts from: its width, and how much of what is left out lies
/// below it. More of them, or narrower ones, find lines with half a per cent less error.
const STARTS: [(f32, f32); 7] =
    [(1.0, 0.0), (0.98, 0.0), (0.98, 0.5), (0.98, 1.0), (0.96, 0.0), (0.96, 0.5), (0.96, 1.0)];

/// Lines of f16 that are tried one after the other, each fitted to the codes of the one before.
const TRIALS: usize = 2;

/// By how much the squared error must fall to count as less: more than roundings add up to.
const GAIN: f32 = 1.0 - 1e-5;

/// `value = code * multiplier + shift`, the value counted from the block's least.
#[derive(Clone, Copy)]
struct Line {
    multiplier: Lanes,
    shift: Lanes,
}

impl Line {
    /// Takes over from `new` the blocks whose measure `is_better` than the one so far.
    #[inline(always)]
    fn keep_better(
        &mut self,
        new: &Line,
        measure: &mut Lanes,
        new_measure: &Lanes,
        is_better: impl Fn(f32, f32) -> bool,
    ) {
        for i in 0..LANES {
            if is_better(new_measure[i], measure[i]) {
                measure[i] = new_measure[i];
                self.multiplier[i] = new.multiplier[i];
                self.shift[i] = new.shift[i];
            }
        }
    }
}

/// Sums over a block's values and the codes that a line gives them.
struct Sums {
    codes: Lanes,
    squares: Lanes,
    /// Of codes and values.
    products: Lanes,
}

/// Values of up to eight blocks; lanes without a block repeat the last one.
struct Tile {
    /// What is above the block's least value.
    above: [Lanes; BLOCK],
    low: Lanes,
    /// From the least to the largest value.
    width: Lanes,
    /// Sum of `above`.
    sum: Lanes,
}

impl Tile {
    #[inline(always)]
    fn new(w: &[[f32; BLOCK]]) -> Tile {
        let mut above = [[0.0; LANES]; BLOCK];
        for lane in 0..LANES {
            let w = &w[lane.min(w.len() - 1)];
            for (above, w) in above.iter_mut().zip(w) {
                above[lane] = *w;
            }
        }
        let (mut low, mut high) = (above[0], above[0]);
        for above in &above {
            for i in 0..LANES {
                low[i] = if above[i] < low[i] { above[i] } else { low[i] };
                high[i] = if above[i] > high[i] { above[i] } else { high[i] };
            }
        }
        let (mut sum, mut width) = ([0.0; LANES], [0.0; LANES]);
        for above in &mut above {
            for i in 0..LANES {
                above[i] -= low[i];
                sum[i] += above[i];
            }
        }
        for i in 0..LANES {
            width[i] = high[i] - low[i];
        }
        Tile { above, low, width, sum }
    }

    /// For each block the best line found.
    #[inline(always)]
    fn best_line(&self) -> Line {
        let plain = self.rounded(&self.start(STARTS[0]));
        let mut best = plain;
        let mut least = self.error(&plain);
        self.improve(&mut best, &mut least, self.search());
        if (0..LANES).any(|i| self.is_flat(i)) {
            self.improve(&mut best, &mut least, self.line_below());
        }
        best
    }

    /// The line through one of [`STARTS`].
    #[inline(always)]
    fn start(&self, (width, below): (f32, f32)) -> Line {
        Line {
            multiplier: self.width.map(|w| w * width / 15.0),
            shift: self.width.map(|w| w * ((1.0 - width) * below)),
        }
    }

    /// The most promising of the lines fitted to the codes of all starts.
    #[inline(always)]
    fn search(&self) -> Line {
        let mut best = self.start(STARTS[0]);
        let mut most = [0.0; LANES];
        for start in STARTS {
            let sums = self.sums(&self.start(start));
            let line = self.fit(&sums);
            // Of the values' squares. It is NaN where all codes are one.
            let explained = std::array::from_fn(|i| {
                line.multiplier[i] * sums.products[i] + line.shift[i] * self.sum[i]
            });
            best.keep_better(&line, &mut most, &explained, |new, old| new > old);
        }
        best
    }

    /// Tries `line` and those that follow from it, and keeps what has less error.
    #[inline(always)]
    fn improve(&self, best: &mut Line, least: &mut Lanes, line: Line) {
        let mut line = self.rounded(&line);
        for trial in 0..TRIALS {
            let error = self.error(&line);
            best.keep_better(&line, least, &error, |new, old| new < old * GAIN);
            if trial + 1 < TRIALS {
                line = self.refit(&line);
            }
        }
    }

    /// The line of f16 fitted to the codes of `line`: the offset first, then the multiplier that
    /// goes best with what f16 makes of that.
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

    /// The line with the least squared error for given codes.
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
                let code = code(above[i] - line.shift[i], inverse[i]);
                codes[i] += code;
                squares[i] += code * code;
                products[i] += code * above[i];
            }
        }
        Sums { codes, squares, products }
    }

    /// Squared errors.
    #[inline(always)]
    fn error(&self, line: &Line) -> Lanes {
        let inverse = line.multiplier.map(inverse);
        let mut error = [0.0; LANES];
        for above in &self.above {
            for i in 0..LANES {
                let rest = above[i] - line.shift[i];
                let off = rest - code(rest, inverse[i]) * line.multiplier[i];
                error[i] += off * off;
            }
        }
        error
    }

    /// The nearest line that f16 has.
    #[inline(always)]
    fn rounded(&self, line: &Line) -> Line {
        let (mut multiplier, mut shift) = (line.multiplier, line.shift);
        for i in 0..LANES {
            multiplier[i] = to_f16(multiplier[i]);
            shift[i] = to_f16(shift[i] + self.low[i]) - self.low[i];
        }
        Line { multiplier, shift }
    }

    /// Whether f16 rounds off so much of the offset that it matters beside the width.
    #[inline(always)]
    fn is_flat(&self, lane: usize) -> bool {
        self.width[lane] < self.low[lane].abs() / 64.0
    }

    /// The line from the largest offset that is not above any value, so that multiples can make up
    /// for what it lacks.
    #[inline(always)]
    fn line_below(&self) -> Line {
        let shift = self.low.map(|low| f16_not_above(low) - low);
        let mut multiplier = self.width;
        for i in 0..LANES {
            multiplier[i] = (self.width[i] - shift[i]) / 15.0;
        }
        Line { multiplier, shift }
    }

    #[inline(always)]
    fn block(&self, line: &Line, lane: usize) -> Block {
        let (multiplier, shift) = (line.multiplier[lane], line.shift[lane]);
        let inverse = inverse(multiplier);
        let codes = self.above.map(|above| code(above[lane] - shift, inverse) as u8);
        let (low, high) = codes.split_at(BLOCK / 2);
        let mut packed = [0; BLOCK / 2];
        for ((packed, low), high) in packed.iter_mut().zip(low).zip(high) {
            *packed = low | high << 4;
        }
        Block::new(f16::from_f32(multiplier), f16::from_f32(shift + self.low[lane]), packed)
    }
}

/// `1 / multiplier`, or 0 where every code stands for the same value.
#[inline(always)]
fn inverse(multiplier: f32) -> f32 {
    if multiplier > 0.0 { 1.0 / multiplier } else { 0.0 }
}

/// The code whose value is nearest.
#[inline(always)]
fn code(rest: f32, inverse: f32) -> f32 {
    /// Adding this to a small float leaves its nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let code = rest * inverse;
    let code = if code > 0.0 { code } else { 0.0 };
    let code = if code < 15.0 { code } else { 15.0 };
    (code + ROUND) - ROUND
}

/// The nearest finite f16, ties to even. Not through `half`, which takes one at a time.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> f32 {
    let x = if x < WEIGHT_MAX { x } else { WEIGHT_MAX };
    let x = if x > -WEIGHT_MAX { x } else { -WEIGHT_MAX };
    let bits = x.to_bits();
    let normal = f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff);
    // Below 2^-14 the step is 2^-24, as it is for floats just below 1.
    let subnormal = (x + 0.75) - 0.75;
    if x.abs() < 6.103_515_6e-5 { subnormal } else { normal }
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
