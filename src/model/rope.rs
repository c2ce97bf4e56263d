//! Rotary position embedding (RoPE, arXiv:2104.09864): the angles, in f64.

use std::f64::consts::TAU;

use crate::format::model::{Header, RopeScaling};

/// Radians per position of each pair of a head, `[head_dim / 2]`.
pub(super) fn frequencies(header: &Header) -> Vec<f64> {
    (0..header.head_dim / 2)
        .map(|pair| {
            let exponent = 2.0 * pair as f64 / header.head_dim as f64;
            scaled(header.rope_theta.powf(-exponent), header.rope_scaling)
        })
        .collect()
}

/// Stretches one frequency; the blend is Meta's for Llama 3.1 (llama-models, `apply_scaling`).
fn scaled(frequency: f64, scaling: Option<RopeScaling>) -> f64 {
    match scaling {
        None => frequency,
        Some(RopeScaling::Linear { factor }) => frequency / f64::from(factor),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_ctx }) => {
            let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
            let turns = f64::from(original_ctx) * frequency / TAU;
            let stretched = frequency / f64::from(factor);
            if turns < low {
                stretched
            } else if turns > high {
                frequency
            } else {
                let keep = (turns - low) / (high - low);
                (1.0 - keep) * stretched + keep * frequency
            }
        }
    }
}

/// Writes the cosine and sine of each frequency's angle at `pos`.
pub(super) fn angles(frequencies: &[f64], pos: usize, cos: &mut [f32], sin: &mut [f32]) {
    for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let (s, c) = (pos as f64 * frequency).sin_cos();
        *cos = c as f32;
        *sin = s as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA32: RopeScaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_ctx: 8192,
    };

    /// Llama 3.2 1B has 32 pairs: the first 15 are kept, 3 blended, the rest divided.
    #[test]
    fn llama3_scaling_keeps_blends_and_divides() {
        let plain = |pair: i32| 500_000f64.powf(-2.0 * f64::from(pair) / 64.0);
        for pair in 0..32 {
            let ratio = scaled(plain(pair), Some(LLAMA32)) / plain(pair);
            match pair {
                0..=14 => assert_eq!(ratio, 1.0, "pair {pair}"),
                15..=17 => assert!(ratio > 1.0 / 32.0 && ratio < 1.0, "pair {pair}: {ratio}"),
                _ => assert!((ratio - 1.0 / 32.0).abs() < 1e-12, "pair {pair}: {ratio}"),
            }
        }
    }

    #[test]
    fn angles_at_position_zero_do_nothing() {
        let (mut cos, mut sin) = ([0.0; 2], [1.0; 2]);
        angles(&[1.0, 0.1], 0, &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0; 2], [0.0; 2]));
    }
}
