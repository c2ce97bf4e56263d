//! Rotary position embedding (RoPE, arXiv:2104.09864): the angles, in f64.

use std::f64::consts::TAU;

use crate::format::model::{Header, Rope, RopeScaling};

/// Radians per position of each pair of a head, `[head_dim / 2]`, for each rotation that layers
/// use.
pub(super) struct Frequencies(Vec<(Rope, Vec<f64>)>);

impl Frequencies {
    pub(super) fn new(header: &Header) -> Frequencies {
        let mut all: Vec<(Rope, Vec<f64>)> = Vec::new();
        for rope in header.layers().filter_map(|layer| layer.rope) {
            if all.iter().all(|(known, _)| *known != rope) {
                all.push((rope, frequencies(header.head_dim, rope)));
            }
        }
        Frequencies(all)
    }

    /// Those of `rope`, which a layer uses.
    pub(super) fn of(&self, rope: Rope) -> &[f64] {
        self.0.iter().find(|(known, _)| *known == rope).map_or(&[], |(_, of)| of)
    }
}

fn frequencies(head_dim: usize, rope: Rope) -> Vec<f64> {
    let frequency = |pair: usize| {
        let exponent = 2.0 * pair as f64 / head_dim as f64;
        scaled(rope.theta.powf(-exponent), rope.scaling)
    };
    (0..head_dim / 2).map(frequency).collect()
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
