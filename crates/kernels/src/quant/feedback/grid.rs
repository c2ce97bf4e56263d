//! Lines from codes to values, for sixteen rows side by side.

use bytemuck::Zeroable;
use half::f16;

use crate::quant::bcml1::{self, BLOCK, Block, WEIGHT_MAX, to_f16};
use crate::quant::products::{LANES, Lanes};
use crate::quant::q8::QuantError;

/// Adding and then subtracting this rounds a small float to an integer.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Values of the codes of a group in each row: `code * multiplier + offset`.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) multiplier: Lanes,
    pub(super) offset: Lanes,
    /// The least code and the largest.
    pub(super) least: f32,
    pub(super) largest: f32,
}

impl Grid {
    /// The lines with the least squared error for a block's columns, without weights.
    #[inline(always)]
    pub(super) fn of_blocks(columns: &[Lanes]) -> Result<Grid, QuantError> {
        let mut values = [[0.0; BLOCK]; LANES];
        for (i, values) in values.iter_mut().enumerate() {
            for (value, column) in values.iter_mut().zip(columns) {
                *value = column[i].clamp(-WEIGHT_MAX, WEIGHT_MAX);
            }
        }
        let mut blocks = [Block::zeroed(); LANES];
        bcml1::encode(values.as_flattened(), &mut blocks)?;
        let mut grid =
            Grid { multiplier: [0.0; LANES], offset: [0.0; LANES], least: 0.0, largest: 15.0 };
        for (i, block) in blocks.iter().enumerate() {
            grid.multiplier[i] = block.multiplier().to_f32();
            grid.offset[i] = block.offset().to_f32();
        }
        Ok(grid)
    }

    /// Multipliers and offsets as f16, which holds them exactly.
    #[inline(always)]
    pub(super) fn lines(&self) -> [[f16; 2]; LANES] {
        let mut lines = [[f16::ZERO; 2]; LANES];
        for (i, line) in lines.iter_mut().enumerate() {
            *line = [f16::from_f32(self.multiplier[i]), f16::from_f32(self.offset[i])];
        }
        lines
    }

    #[inline(always)]
    pub(super) fn inverse(&self) -> Lanes {
        let mut inverse = [0.0; LANES];
        for (inverse, x) in inverse.iter_mut().zip(&self.multiplier) {
            *inverse = if *x > 0.0 { 1.0 / x } else { 0.0 };
        }
        inverse
    }

    /// Codes nearest to `values`.
    #[inline(always)]
    pub(super) fn codes(&self, inverse: &Lanes, values: &Lanes) -> Lanes {
        let mut codes = [0.0; LANES];
        for i in 0..LANES {
            let code = (values[i] - self.offset[i]) * inverse[i];
            let code = if code > self.least { code } else { self.least };
            let code = if code < self.largest { code } else { self.largest };
            codes[i] = (code + ROUND) - ROUND;
        }
        codes
    }

    /// Fits the lines to their codes a few times, to lower the squared errors of a block's `targets` weighted by
    /// `weights`.
    #[inline(always)]
    pub(super) fn refit(&mut self, weights: &[f32], targets: &[Lanes]) {
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
    fn error(&self, weights: &[f32], targets: &[Lanes]) -> Lanes {
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

    /// The f16 lines with nearly the least weighted error for the codes that these lines give.
    #[inline(always)]
    fn fitted(&self, weights: &[f32], targets: &[Lanes]) -> Grid {
        let inverse = self.inverse();
        let total: f32 = weights.iter().sum();
        let [mut codes, mut values, mut squares, mut products] = [[0.0; LANES]; 4];
        for (weight, target) in weights.iter().zip(targets) {
            let code = self.codes(&inverse, target);
            for i in 0..LANES {
                // Values are small if they are counted from the offset.
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
