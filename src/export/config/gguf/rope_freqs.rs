//! RoPE parameters, recovered from the divisors of the frequencies.
//!
//! Llama 3.1 leaves wavelengths below `ctx / high` as they are, divides those above `ctx / low` by a factor, and blends
//! between: `1 / divisor = (1 - s) / factor + s`, where `s = (ctx / wavelength - low) / (high - low)`. The parameters
//! are not in the file. Multiplying `ctx`, `low` and `high` by one number changes nothing, so `low` is taken as 1. The
//! divisors of two wavelengths in the blend give the rest; one suffices if `high` is 4, as in all published models.

use std::f64::consts::TAU;

use crate::format::model::RopeScaling;

/// The divisors are f32 and were computed in f32.
const TOLERANCE: f64 = 1e-4;
/// Original context of all published models.
const CTX: usize = 8192;
const HIGH: f64 = 4.0;

/// The scaling that gives these divisors, one for each frequency of base `theta`; `None` if
/// there is none. The inner `None` is no scaling.
///
/// `original_ctx` is what the file says about it.
#[expect(clippy::option_option, reason = "no scaling is one of the answers")]
pub(super) fn scaling(
    divisors: &[f32],
    theta: f64,
    original_ctx: Option<usize>,
) -> Option<Option<RopeScaling>> {
    if divisors.iter().all(|&divisor| divisor == 1.0) {
        return Some(None);
    }
    let factor = divisors.iter().copied().fold(0.0, f32::max);
    let points = Points { divisors, theta, factor };
    let known = original_ctx.into_iter().chain([CTX]).map(|ctx| (ctx as f64, HIGH));
    let mut candidates = known.chain(points.solve());
    candidates.find_map(|(ctx, high)| points.check(ctx, high)).map(Some)
}

/// The divisors of `pairs` frequencies of base `theta` that this scaling of Llama 3 gives.
pub(super) fn divisors(scaling: RopeScaling, theta: f64, pairs: usize) -> Vec<f32> {
    let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_ctx } = scaling
    else {
        return vec![1.0; pairs];
    };
    let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
    let divisor = |index: usize| {
        let wavelength = TAU * theta.powf(index as f64 / pairs as f64);
        let turns = f64::from(original_ctx) / wavelength;
        let s = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - s) / f64::from(factor) + s)) as f32
    };
    (0..pairs).map(divisor).collect()
}

struct Points<'a> {
    divisors: &'a [f32],
    theta: f64,
    factor: f32,
}

impl Points<'_> {
    fn wavelength(&self, index: usize) -> f64 {
        TAU * self.theta.powf(index as f64 / self.divisors.len() as f64)
    }

    /// Context and high factor that fit the blended divisors.
    fn solve(&self) -> Vec<(f64, f64)> {
        let factor = f64::from(self.factor);
        let blended = self.divisors.iter().enumerate();
        let blended = blended.filter(|(_, divisor)| **divisor > 1.0 && **divisor < self.factor);
        // Points on the line s = ctx / (high - 1) * x - 1 / (high - 1).
        let points: Vec<(f64, f64)> = blended
            .map(|(index, &divisor)| {
                let s = (1.0 / f64::from(divisor) - 1.0 / factor) / (1.0 - 1.0 / factor);
                (1.0 / self.wavelength(index), s)
            })
            .collect();
        let one = points.first().map(|(x, s)| (((HIGH - 1.0) * s + 1.0) / x, HIGH));
        let two = match (points.first(), points.last()) {
            (Some(first), Some(last)) if points.len() > 1 => {
                let slope = (first.1 - last.1) / (first.0 - last.0);
                let high = 1.0 + 1.0 / (slope * first.0 - first.1);
                Some((slope * (high - 1.0), high))
            }
            _ => None,
        };
        one.into_iter().chain(two).collect()
    }

    /// The scaling with these parameters, the context a whole number, if it gives the divisors.
    fn check(&self, ctx: f64, high: f64) -> Option<RopeScaling> {
        let original_ctx = ctx.round();
        let high = if (high - high.round()).abs() < 1e-3 { high.round() } else { high };
        let is_sound = (1.0..=1e9).contains(&original_ctx) && high > 1.0 && high < 1e6;
        if !is_sound || !self.factor.is_finite() {
            return None;
        }
        let high_freq_factor = high as f32;
        let fits = |(index, &divisor): (usize, &f32)| {
            let wanted =
                self.divisor(self.wavelength(index), original_ctx, high_freq_factor.into());
            (f64::from(divisor) - wanted).abs() <= TOLERANCE * wanted
        };
        self.divisors.iter().enumerate().all(fits).then_some(RopeScaling::Llama3 {
            factor: self.factor,
            low_freq_factor: 1.0,
            high_freq_factor,
            original_ctx: original_ctx as u32,
        })
    }

    fn divisor(&self, wavelength: f64, ctx: f64, high: f64) -> f64 {
        let factor = f64::from(self.factor);
        let s = (ctx / wavelength - 1.0) / (high - 1.0);
        1.0 / ((1.0 - s.clamp(0.0, 1.0)) / factor + s.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The divisors that the converter of llama.cpp computes.
    fn divisors(head_dim: usize, theta: f32, [factor, low, high]: [f32; 3], ctx: f32) -> Vec<f32> {
        let divisor = |index: usize| {
            let frequency = 1.0 / theta.powf(2.0 * index as f32 / head_dim as f32);
            let wavelength = std::f32::consts::TAU / frequency;
            if wavelength < ctx / high {
                1.0
            } else if wavelength > ctx / low {
                factor
            } else {
                let s = (ctx / wavelength - low) / (high - low);
                1.0 / ((1.0 - s) / factor + s)
            }
        };
        (0..head_dim / 2).map(divisor).collect()
    }

    fn found(divisors: &[f32], theta: f32, ctx: Option<usize>) -> Option<(f32, f32, u32)> {
        match scaling(divisors, theta.into(), ctx)?? {
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_ctx } => {
                assert_eq!(low_freq_factor, 1.0);
                Some((factor, high_freq_factor, original_ctx))
            }
            _ => None,
        }
    }

    #[test]
    fn published_parameters_are_found() {
        for (head_dim, factor) in [(128, 8.0), (64, 32.0), (128, 32.0)] {
            let divisors = divisors(head_dim, 5e5, [factor, 1.0, 4.0], 8192.0);
            assert_eq!(found(&divisors, 5e5, None), Some((factor, 4.0, 8192)));
        }
    }

    #[test]
    fn other_parameters_are_found() {
        // One blended wavelength, several, and a low factor that is not 1.
        let tiny = divisors(16, 5e5, [8.0, 1.0, 4.0], 64.0);
        assert_eq!(found(&tiny, 5e5, None), Some((8.0, 4.0, 64)));
        let wide = divisors(128, 1e6, [16.0, 1.0, 8.0], 4096.0);
        assert_eq!(found(&wide, 1e6, None), Some((16.0, 8.0, 4096)));
        let doubled = divisors(128, 5e5, [8.0, 2.0, 8.0], 8192.0);
        assert_eq!(found(&doubled, 5e5, None), Some((8.0, 4.0, 4096)));
    }

    #[test]
    fn ones_are_no_scaling() {
        assert_eq!(scaling(&[1.0; 32], 1e4, None), Some(None));
    }

    #[test]
    fn divisors_of_another_formula_are_refused() {
        let steps: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 / 8.0).collect();
        for divisors in [&steps[..], &[0.0; 32], &[f32::NAN; 32], &[f32::INFINITY; 32], &[-1.0; 4]]
        {
            assert_eq!(scaling(divisors, 5e5, Some(8192)), None, "{divisors:?}");
        }
        let mut bent = divisors(128, 5e5, [8.0, 1.0, 4.0], 8192.0);
        bent[3] = 1.01;
        assert_eq!(scaling(&bent, 5e5, None), None);
    }
}
