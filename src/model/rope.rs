//! Rotary position embedding (RoPE, arXiv:2104.09864): the angles, in f64.

use std::f64::consts::TAU;

use crate::format::model::{Header, Rope, RopeScaling};
use crate::numerics::{ln, pow, sin_cos};

/// Radians per position of each rotated pair of a head, `[rotary_dim / 2]`, for each RoPE that layers use: in
/// ordinary texts, and in long ones.
pub(crate) struct Frequencies(Vec<(Rope, [Vec<f64>; 2])>);

/// Where the angles of a layer's RoPE lie in a row of the angles of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnglePlace {
    pub(crate) start: usize,
    /// Number of angles; 0 in a layer without RoPE.
    pub(crate) n: usize,
    /// Angles of a row.
    pub(crate) width: usize,
}

impl Frequencies {
    pub(crate) fn new(header: &Header) -> Frequencies {
        let short = &header.features.rope_divisors;
        let long = header.features.long_rope.as_ref().map_or(short, |long| &long.divisors);
        let mut all: Vec<(Rope, [Vec<f64>; 2])> = Vec::new();
        for rope in header.layers().filter_map(|layer| layer.rope) {
            if all.iter().all(|(known, _)| *known != rope) {
                all.push((rope, [short, long].map(|of| frequencies(rope, of))));
            }
        }
        Frequencies(all)
    }

    /// Number of `rope` among those that layers use.
    pub(crate) fn index(&self, rope: Rope) -> usize {
        self.0.iter().position(|(known, _)| *known == rope).unwrap_or(0)
    }

    /// Where the angles of `rope`, which a layer must use, lie in a row of `width` angles.
    pub(crate) fn place(&self, rope: Rope, width: usize) -> AnglePlace {
        let before = &self.0[..self.index(rope)];
        let start = before.iter().map(|(rope, _)| rope.dim / 2).sum();
        AnglePlace { start, n: rope.dim / 2, width }
    }

    /// Frequencies of `rope`, which a layer must use. `is_long` tells whether the text is a long one.
    pub(crate) fn of(&self, rope: Rope, is_long: bool) -> &[f64] {
        let found = self.0.iter().find(|(known, _)| *known == rope);
        found.map_or(&[], |(_, of)| &of[usize::from(is_long)])
    }
}

fn frequencies(rope: Rope, divisors: &[f32]) -> Vec<f64> {
    let dim = rope.dim;
    let plain = |pair: usize| pow(rope.theta, -2.0 * pair as f64 / dim as f64);
    let frequency = |pair: usize| match rope.scaling {
        Some(RopeScaling::Yarn { factor, beta_slow, beta_fast, original_ctx, is_truncated }) => {
            let width = dim as f64;
            // Index of the pair that turns this many times in the training context.
            let end = |turns: f32| {
                let ctx = f64::from(original_ctx) / (TAU * f64::from(turns));
                width * ln(ctx) / (2.0 * ln(rope.theta))
            };
            let (ends, most) = ([end(beta_fast), end(beta_slow)], width - 1.0);
            plain(pair) * yarn(pair, (ends, most), factor.into(), is_truncated)
        }
        Some(RopeScaling::Divisors) => plain(pair) / f64::from(divisors[pair]),
        scaling => scaled(plain(pair), scaling),
    };
    (0..dim / 2).map(frequency).collect()
}

/// YaRN's factor for the frequency of `pair` (arXiv:2309.00071, as in transformers): 1 up to the first of
/// `ends`, 1 / `factor` from the second on, and a line in between. `ends` are limited to 0 ..= `most`.
fn yarn(pair: usize, (ends, most): ([f64; 2], f64), factor: f64, is_truncated: bool) -> f64 {
    let [low, high] = if is_truncated { [ends[0].floor(), ends[1].ceil()] } else { ends };
    let (low, high) = (low.max(0.0), high.min(most));
    // Equal ends would divide by zero.
    let width = if high == low { 0.001 } else { high - low };
    let stretch = ((pair as f64 - low) / width).clamp(0.0, 1.0);
    (1.0 - stretch) + stretch / factor
}

/// Scales one frequency by a formula that needs no other value. The blend is Meta's for Llama 3.1
/// (llama-models, `apply_scaling`).
fn scaled(frequency: f64, scaling: Option<RopeScaling>) -> f64 {
    match scaling {
        None | Some(RopeScaling::Yarn { .. } | RopeScaling::Divisors) => frequency,
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

/// Writes the cosine and sine of each frequency's angle at `pos`, times `magnitude`.
pub(crate) fn angles(
    (frequencies, magnitude): (&[f64], f32),
    pos: usize,
    cos: &mut [f32],
    sin: &mut [f32],
) {
    let magnitude = f64::from(magnitude);
    for ((frequency, cos), sin) in frequencies.iter().zip(cos).zip(sin) {
        let (s, c) = sin_cos(pos as f64 * frequency);
        *cos = (c * magnitude) as f32;
        *sin = (s * magnitude) as f32;
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

    /// Llama 3.2 1B has 32 pairs: 15 are kept, the next 3 blended, the others divided.
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
        angles((&[1.0, 0.1], 1.0), 0, &mut cos, &mut sin);
        assert_eq!((cos, sin), ([1.0; 2], [0.0; 2]));
    }
}
