//! The line to fit, found with small integers.
//!
//! Three sums tell how good a line is: those of its codes, of their squares, and of their products with the values.
//! Values in about a thousand steps suffice to compare lines. The sums then fit 16-bit numbers, of which vectors hold
//! twice as many as of floats.

use super::{BLOCK, LANES, Lanes, Line, ROUND, Sums, Tile, inverse};

/// Numbers of each block's first half, then of the second halves.
type Halves = [u16; 2 * LANES];

/// Steps from a block's least value to its largest.
const STEPS: u16 = 960;

/// A line to start from.
struct Start {
    /// Factor from steps to codes, times 4096.
    factor: u16,
    /// The value of code 0.
    shift: u16,
}

/// The values' range, and narrower ones, which leave out values above, on both sides, or below. More starts, or
/// narrower ones, find lines with half a per cent less error.
const STARTS: [Start; 7] = [
    Start { factor: 64, shift: 0 },
    Start { factor: 66, shift: 0 },
    Start { factor: 66, shift: 15 },
    Start { factor: 66, shift: 29 },
    Start { factor: 67, shift: 0 },
    Start { factor: 67, shift: 43 },
    Start { factor: 68, shift: 28 },
];

/// Offset of all values in steps: half the distance of two codes of the widest start, so that values nearest to code 0
/// are above 0.
const HALF: u16 = 32;

impl Tile {
    /// For each block, the most promising line of those fitted to the codes of all starts.
    #[inline(always)]
    pub(super) fn search(&self) -> Line {
        let values = self.in_steps();
        let sum = sum(&values);
        // Sums of the best start so far. A fitted line explains slope^2 / spread of the values' variation.
        let (mut codes, mut slope, mut spread) = ([0.0; LANES], [0.0; LANES], [1.0; LANES]);
        for start in &STARTS {
            let new = start.sums(&values);
            for i in 0..LANES {
                let new_slope = 32.0 * new.products[i] - new.codes[i] * sum[i];
                let new_spread = 32.0 * new.squares[i] - new.codes[i] * new.codes[i];
                if new_slope * new_slope * spread[i] > slope[i] * slope[i] * new_spread {
                    (codes[i], slope[i], spread[i]) = (new.codes[i], new_slope, new_spread);
                }
            }
        }
        let multiplier =
            std::array::from_fn(|i| slope[i] / spread[i] * (self.width[i] * (1.0 / STEPS as f32)));
        let shift =
            std::array::from_fn(|i| (self.sum[i] - multiplier[i] * codes[i]) * (1.0 / 32.0));
        Line { multiplier, shift }
    }

    /// The values in steps of their block's width, counted from [`HALF`].
    #[inline(always)]
    fn in_steps(&self) -> [Halves; BLOCK / 2] {
        const MOST: f32 = STEPS as f32;
        let scale = self.width.map(|width| MOST * inverse(width));
        let mut values = [[0; 2 * LANES]; BLOCK / 2];
        for (n, above) in self.above.iter().enumerate() {
            let out = &mut values[n % (BLOCK / 2)][n / (BLOCK / 2) * LANES..][..LANES];
            for i in 0..LANES {
                let x = above[i] * scale[i];
                // The width may be tiny: infinities and NaNs are clamped here.
                let x = if x < MOST { x } else { MOST };
                out[i] = (x + (ROUND + f32::from(HALF))).to_bits() as u16;
            }
        }
        values
    }
}

/// Sums of each block's values.
#[inline(always)]
fn sum(values: &[Halves; BLOCK / 2]) -> Lanes {
    let mut sum = [0; 2 * LANES];
    for values in values {
        for i in 0..2 * LANES {
            sum[i] += values[i];
        }
    }
    joined(&sum).map(f32::from)
}

/// Adds the halves of each block.
#[inline(always)]
fn joined(halves: &Halves) -> [u16; LANES] {
    std::array::from_fn(|i| halves[i].wrapping_add(halves[i + LANES]))
}

impl Start {
    /// Steps from one code's value to the next.
    const fn step(&self) -> u16 {
        ((1 << 12) + self.factor / 2) / self.factor
    }

    /// Sums of the codes that this line gives the values; all are exact.
    #[inline(always)]
    fn sums(&self, values: &[Halves; BLOCK / 2]) -> Sums {
        let below = HALF - self.step() / 2 + self.shift;
        let most = u16::MAX / self.factor;
        let [mut codes, mut squares, mut products] = [[0_u16; 2 * LANES]; 3];
        for values in values {
            for i in 0..2 * LANES {
                let code = (values[i].saturating_sub(below).min(most) * self.factor) >> 12;
                codes[i] += code;
                squares[i] += code * code;
                products[i] = products[i].wrapping_add(code * values[i]);
            }
        }
        let (codes, squares, products) = (joined(&codes), joined(&squares), joined(&products));
        // Values are little more than their codes' multiples of the step: `products - squares * step` is small, and its
        // low 16 bits are enough.
        let rests: [u16; LANES] =
            std::array::from_fn(|i| products[i].wrapping_sub(squares[i].wrapping_mul(self.step())));
        let squares = squares.map(f32::from);
        let products =
            std::array::from_fn(|i| squares[i] * f32::from(self.step()) + f32::from(rests[i]));
        Sums { codes: codes.map(f32::from), squares, products }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest is largest if all values of a half are the value with the largest rest.
    #[test]
    fn sums_are_exact_for_all_values() {
        for start in &STARTS {
            for value in HALF..=HALF + STEPS {
                let sums = start.sums(&[[value; 2 * LANES]; BLOCK / 2]);
                let code = (sums.codes[0] / BLOCK as f32) as u16;
                assert!(code <= 15);
                let products = BLOCK as u32 * u32::from(code) * u32::from(value);
                assert_eq!(sums.codes, [f32::from(code) * BLOCK as f32; LANES]);
                assert_eq!(sums.squares, [f32::from(code * code) * BLOCK as f32; LANES]);
                assert_eq!(sums.products, [products as f32; LANES], "{value}");
            }
        }
    }

    #[test]
    fn the_first_start_rounds_over_the_whole_range() {
        for value in 0..=STEPS {
            let sums = STARTS[0].sums(&[[HALF + value; 2 * LANES]; BLOCK / 2]);
            assert_eq!(sums.codes[0] / BLOCK as f32, (f32::from(value) / 64.0 + 0.01).round());
        }
    }
}
