//! Encodes weights into blocks.
//!
//! The search of BCML1 finds each block's line of floats. A row's step is its largest multiplier divided by 127 scales
//! of 16 parts each. Then each block takes the scale and zero, near its line, with the least squared error: a coarser
//! scale wants another zero.
//!
//! Sixteen blocks are encoded side by side, one in each lane of a vector, in plain loops that compilers vectorise.
//! Nothing depends on the machine: a file is the same everywhere.

use bytemuck::Zeroable;

use super::super::bcml1;
use super::super::q8::QuantError;
use super::super::rows::begin_row;
use super::{BLOCK, Block, ZERO_PARTS, row_bytes};

/// Blocks encoded side by side.
pub(in crate::quant) const LANES: usize = 16;

/// One number for each block.
pub(in crate::quant) type Lanes = [f32; LANES];

/// Largest scale.
pub(in crate::quant) const SCALE_MAX: f32 = 127.0;

/// Largest zero.
const ZERO_MAX: f32 = 255.0;

/// Largest code.
const CODE_MAX: f32 = 15.0;

/// Scales tried on both sides of the nearest.
const AROUND: i32 = 2;

/// Adding and then subtracting this rounds a small float to an integer.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Lines from codes to values, `code * multiplier + offset`.
#[derive(Clone, Copy)]
pub(in crate::quant) struct Line {
    pub(in crate::quant) multiplier: Lanes,
    pub(in crate::quant) offset: Lanes,
}

/// Scales and zeros of blocks, as whole numbers.
#[derive(Clone, Copy)]
pub(in crate::quant) struct Snapped {
    pub(in crate::quant) scale: Lanes,
    pub(in crate::quant) zero: Lanes,
}

impl Snapped {
    /// Scale and zero of blocks that are all zeros.
    pub(in crate::quant) const ZERO: Snapped = Snapped { scale: [0.0; LANES], zero: [0.0; LANES] };

    /// The lines of these scales and zeros.
    #[inline(always)]
    pub(in crate::quant) fn line(&self, step: &Lanes) -> Line {
        let (mut multiplier, mut offset) = ([0.0; LANES], [0.0; LANES]);
        for i in 0..LANES {
            let unit = step[i] * self.scale[i];
            multiplier[i] = unit * ZERO_PARTS as f32;
            offset[i] = -(unit * self.zero[i]);
        }
        Line { multiplier, offset }
    }
}

/// Encodes whole rows of `k` weights to their bytes.
///
/// # Errors
///
/// Names the first weight that is not a number up to [`bcml1::WEIGHT_MAX`] in magnitude.
///
/// # Panics
///
/// When `k` is no whole number of blocks, `w` no whole number of rows, or `out` is not as long as they need.
#[inline(always)]
pub fn encode(w: &[f32], k: usize, out: &mut [u8]) -> Result<(), QuantError> {
    assert!(w.len().is_multiple_of(k));
    assert_eq!(out.len(), w.len() / k * row_bytes(k));
    let mut lines = vec![bcml1::Block::zeroed(); k / BLOCK];
    for (n, (w, out)) in w.chunks_exact(k).zip(out.chunks_exact_mut(row_bytes(k))).enumerate() {
        encode_row(w, &mut lines, out).map_err(|error| error.counted_from(n * k))?;
    }
    Ok(())
}

/// Encodes one row; `lines` is scratch space of as many blocks as the row has.
///
/// # Errors
///
/// Fails like [`encode`].
///
/// # Panics
///
/// When the lengths do not fit together.
#[inline(always)]
pub fn encode_row(w: &[f32], lines: &mut [bcml1::Block], out: &mut [u8]) -> Result<(), QuantError> {
    bcml1::encode(w, lines)?;
    let w = w.as_chunks::<BLOCK>().0;
    let largest = lines.iter().zip(w).map(|(line, w)| largest_multiplier(line, w));
    let step = step_for(largest.fold(0.0, f32::max));
    let blocks = begin_row(step, w.len(), out);
    let tiles = w.chunks(LANES).zip(lines.chunks(LANES)).zip(blocks.chunks_mut(LANES));
    for ((w, lines), blocks) in tiles {
        encode_tile(w, lines, step, blocks);
    }
    Ok(())
}

/// Encodes up to sixteen blocks of a row.
#[inline(always)]
fn encode_tile(w: &[[f32; BLOCK]], lines: &[bcml1::Block], step: f32, blocks: &mut [Block]) {
    let mut values = [[0.0; LANES]; BLOCK];
    for i in 0..LANES {
        for (values, w) in values.iter_mut().zip(&w[i.min(w.len() - 1)]) {
            values[i] = *w;
        }
    }
    let lane = |i: usize| &lines[i.min(lines.len() - 1)];
    let line = Line {
        multiplier: std::array::from_fn(|i| lane(i).multiplier().to_f32()),
        offset: std::array::from_fn(|i| lane(i).offset().to_f32()),
    };
    let step = [step; LANES];
    let snapped = snap(&values, &[1.0; BLOCK], &line, &step);
    let line = snapped.line(&step);
    let inverse = line.multiplier.map(inverse);
    let mut codes = [[0.0; LANES]; BLOCK];
    for (codes, values) in codes.iter_mut().zip(&values) {
        *codes = line.codes(&inverse, values);
    }
    for (i, block) in blocks.iter_mut().enumerate() {
        let code = |n: usize| codes[n][i] as u8;
        let bytes = std::array::from_fn(|n| code(n) | code(n + BLOCK / 2) << 4);
        *block = Block::new(snapped.scale[i] as u8, snapped.zero[i] as u8, bytes);
    }
}

/// The multiplier that a block's scale has to reach: that of its line, or, if the line lies on one side of 0, that of a
/// line that begins or ends at 0.
pub(in crate::quant) fn largest_multiplier(line: &bcml1::Block, w: &[f32; BLOCK]) -> f32 {
    let (low, high) = w.iter().fold((w[0], w[0]), |(low, high), w| (low.min(*w), high.max(*w)));
    wanted_multiplier((line.multiplier().to_f32(), line.offset().to_f32()), (low, high))
}

/// The multiplier that a block with this line, least value and largest value needs.
#[inline(always)]
fn wanted_multiplier((multiplier, offset): (f32, f32), (low, high): (f32, f32)) -> f32 {
    if offset > 0.0 {
        high / CODE_MAX
    } else if offset + CODE_MAX * multiplier < 0.0 {
        -low / (ZERO_MAX / ZERO_PARTS as f32)
    } else {
        multiplier
    }
}

/// The step of a row with this largest multiplier; 0 if the step has no inverse.
pub(in crate::quant) fn step_for(multiplier: f32) -> f32 {
    let step = multiplier / (SCALE_MAX * ZERO_PARTS as f32);
    if (1.0 / step).is_finite() { step } else { 0.0 }
}

/// The scales and zeros near `line` with the least squared errors of `values`, weighted by `weights`.
#[inline(always)]
pub(in crate::quant) fn snap(
    values: &[Lanes; BLOCK],
    weights: &[f32; BLOCK],
    line: &Line,
    step: &Lanes,
) -> Snapped {
    let (mut low, mut high) = (values[0], values[0]);
    for values in values {
        for i in 0..LANES {
            low[i] = if values[i] < low[i] { values[i] } else { low[i] };
            high[i] = if values[i] > high[i] { values[i] } else { high[i] };
        }
    }
    let mut near = [0.0; LANES];
    for i in 0..LANES {
        let wanted = wanted_multiplier((line.multiplier[i], line.offset[i]), (low[i], high[i]));
        near[i] = wanted * inverse(step[i] * ZERO_PARTS as f32);
    }
    let mut best = Snapped::ZERO;
    let mut least = best.line(step).error(values, weights);
    for around in -AROUND..=AROUND {
        let mut new = best;
        for i in 0..LANES {
            new.scale[i] = rounded(near[i] + around as f32, 1.0, SCALE_MAX);
            let zero = -line.offset[i] * inverse(step[i] * new.scale[i]);
            new.zero[i] = rounded(zero, 0.0, ZERO_MAX);
        }
        best.keep_better(&mut least, &new, (values, weights), step);
        new.zero = new.best_zero((values, weights), step);
        best.keep_better(&mut least, &new, (values, weights), step);
    }
    best
}

impl Snapped {
    /// Replaces scales and zeros of blocks whose error with `new` is less than `least`.
    #[inline(always)]
    fn keep_better(
        &mut self,
        least: &mut Lanes,
        new: &Snapped,
        (values, weights): (&[Lanes; BLOCK], &[f32; BLOCK]),
        step: &Lanes,
    ) {
        let error = new.line(step).error(values, weights);
        for i in 0..LANES {
            let is_less = error[i] < least[i];
            least[i] = if is_less { error[i] } else { least[i] };
            self.scale[i] = if is_less { new.scale[i] } else { self.scale[i] };
            self.zero[i] = if is_less { new.zero[i] } else { self.zero[i] };
        }
    }

    /// The zeros with the least error for the codes that these lines give.
    #[inline(always)]
    fn best_zero(
        &self,
        (values, weights): (&[Lanes; BLOCK], &[f32; BLOCK]),
        step: &Lanes,
    ) -> Lanes {
        let line = self.line(step);
        let inverse_of = line.multiplier.map(inverse);
        let total: f32 = weights.iter().sum();
        let mut beyond = [0.0; LANES];
        for (weight, values) in weights.iter().zip(values) {
            let codes = line.codes(&inverse_of, values);
            for i in 0..LANES {
                beyond[i] += weight * (codes[i] - values[i] * inverse_of[i]);
            }
        }
        let mut zeros = [0.0; LANES];
        for i in 0..LANES {
            zeros[i] = rounded(beyond[i] / total * ZERO_PARTS as f32, 0.0, ZERO_MAX);
        }
        zeros
    }
}

impl Line {
    /// Codes nearest to `values`.
    #[inline(always)]
    pub(in crate::quant) fn codes(&self, inverse: &Lanes, values: &Lanes) -> Lanes {
        let mut codes = [0.0; LANES];
        for i in 0..LANES {
            codes[i] = rounded((values[i] - self.offset[i]) * inverse[i], 0.0, CODE_MAX);
        }
        codes
    }

    /// Weighted squared errors of `values`.
    #[inline(always)]
    fn error(&self, values: &[Lanes; BLOCK], weights: &[f32; BLOCK]) -> Lanes {
        let inverse = self.multiplier.map(inverse);
        let mut error = [0.0; LANES];
        for (weight, values) in weights.iter().zip(values) {
            let codes = self.codes(&inverse, values);
            for i in 0..LANES {
                let off = values[i] - (codes[i] * self.multiplier[i] + self.offset[i]);
                error[i] += weight * (off * off);
            }
        }
        error
    }
}

/// `1 / x`, or 0 if every code stands for the same value.
#[inline(always)]
fn inverse(x: f32) -> f32 {
    if x > 0.0 { 1.0 / x } else { 0.0 }
}

/// The nearest integer in a range of small ones; `least` for a NaN.
#[inline(always)]
fn rounded(x: f32, least: f32, largest: f32) -> f32 {
    let x = if x > least { x } else { least };
    let x = if x < largest { x } else { largest };
    (x + ROUND) - ROUND
}
