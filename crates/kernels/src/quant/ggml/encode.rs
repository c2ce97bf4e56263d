//! Encodes values in blocks of ggml's types. Compiled once, for the oldest CPU: programs stay small.

use super::{Ggml, LONG, SHORT, encode_q8_0};
use crate::quant::bcml1::to_f16;

/// Bytes of a block of [`Ggml::Q4K`].
pub(in crate::quant) const Q4_K_BYTES: usize = 144;
/// Groups of such a block.
const GROUPS: usize = LONG / SHORT;
/// Largest code of a scale or a minimum.
pub(in crate::quant) const SCALE_MAX: f32 = 63.0;
/// Slopes that are tried for a group, from one step fewer than its codes to one more.
const SLOPES: u8 = 20;

/// Encodes finite values in blocks of `kind`: [`Ggml::Q8_0`] or [`Ggml::Q4K`]. Those of [`Ggml::Q4_1`] are
/// [BCML1](crate::quant::bcml1).
///
/// # Panics
/// If `out` does not have the bytes of whole blocks of `values`, or `kind` is another.
pub fn encode(kind: Ggml, values: &[f32], out: &mut [u8]) {
    match kind {
        Ggml::Q8_0 => encode_q8_0(values, out),
        Ggml::Q4K => encode_q4_k(values, out),
        other => unreachable!("{} is not encoded", other.name()),
    }
}

/// `w = scale * code - min`, neither of them below 0.
#[derive(Clone, Copy)]
pub(in crate::quant) struct Line {
    pub(in crate::quant) scale: f32,
    pub(in crate::quant) min: f32,
}

fn encode_q4_k(values: &[f32], out: &mut [u8]) {
    let (values, out) = (values.as_chunks::<LONG>().0, out.as_chunks_mut::<Q4_K_BYTES>().0);
    assert_eq!(values.len(), out.len());
    for (values, out) in values.iter().zip(out) {
        let groups = values.as_chunks::<SHORT>().0;
        let mut lines = [Line { scale: 0.0, min: 0.0 }; GROUPS];
        for (line, group) in lines.iter_mut().zip(groups) {
            *line = best_line(group);
        }
        let (d, m) = begin_q4_k(&lines, out);
        let (head, codes) = out.split_at_mut(16);
        for (i, (line, group)) in lines.iter().zip(groups).enumerate() {
            let (s, t) = nearest(*line, (d, m), group);
            put_scale_and_min(&mut head[4..], i, (s, t));
            let line = Line { scale: d * f32::from(s), min: m * f32::from(t) };
            // Two groups share bytes, the first in the low halves.
            let shift = i % 2 * 4;
            for (byte, w) in codes[i / 2 * SHORT..][..SHORT].iter_mut().zip(group) {
                *byte |= (line.code(*w, inverse(line.scale)) as u8) << shift;
            }
        }
    }
}

/// Writes the factors of scales and minima that suit `lines`, and zeros for all else. Returns the factors.
pub(in crate::quant) fn begin_q4_k(
    lines: &[Line; GROUPS],
    out: &mut [u8; Q4_K_BYTES],
) -> (f32, f32) {
    let largest = |of: fn(&Line) -> f32| lines.iter().map(of).fold(0.0, f32::max);
    let d = to_f16(largest(|line| line.scale) / SCALE_MAX);
    let m = to_f16(largest(|line| line.min) / SCALE_MAX);
    out.fill(0);
    out[..2].copy_from_slice(&half::f16::from_f32(d).to_le_bytes());
    out[2..4].copy_from_slice(&half::f16::from_f32(m).to_le_bytes());
    (d, m)
}

/// The line with the least squared error that a search finds: codes by a slope, then the best line for these codes.
pub(in crate::quant) fn best_line(group: &[f32; SHORT]) -> Line {
    let low = group.iter().fold(0.0, |low: f32, w| low.min(*w));
    let high = group.iter().fold(low, |high: f32, w| high.max(*w));
    let mut best = Line { scale: (high - low) / 15.0, min: -low };
    let mut least = best.error(group);
    if high == low {
        return Line { scale: 0.0, ..best };
    }
    let sum: f32 = group.iter().sum();
    for step in 0..=SLOPES {
        let slope = (14.0 + 2.0 * f32::from(step) / f32::from(SLOPES)) / (high - low);
        let line = Line { scale: 0.0, min: -low };
        let (mut codes, mut squares, mut products) = (0.0, 0.0, 0.0);
        for w in group {
            let code = line.code(*w, slope);
            codes += code;
            squares += code * code;
            products += code * w;
        }
        let n = SHORT as f32;
        let spread = n * squares - codes * codes;
        if spread <= 0.0 {
            continue;
        }
        let scale = (n * products - sum * codes) / spread;
        let min = (codes * products - squares * sum) / spread;
        let line = match min < 0.0 {
            true => Line { scale: products / squares, min: 0.0 },
            false => Line { scale, min },
        };
        let error = line.error(group);
        if line.scale > 0.0 && error < least {
            (best, least) = (line, error);
        }
    }
    best
}

/// The codes of scale and minimum, near those of `line`, with the least squared error.
pub(in crate::quant) fn nearest(line: Line, (d, m): (f32, f32), group: &[f32; SHORT]) -> (u8, u8) {
    let [s, t] = [line.scale * inverse(d), line.min * inverse(m)].map(|code| rounded(code, 63.0));
    let around = |code: f32| [0.0, -1.0, 1.0].map(|step| (code + step).clamp(0.0, SCALE_MAX));
    let (mut best, mut least) = ((s, t), f32::INFINITY);
    for s in around(s) {
        for t in around(t) {
            let error = Line { scale: d * s, min: m * t }.error(group);
            if error < least {
                (best, least) = ((s, t), error);
            }
        }
    }
    (best.0 as u8, best.1 as u8)
}

impl Line {
    /// The code whose value is nearest to `w`; `inverse` is that of the scale.
    fn code(self, w: f32, inverse: f32) -> f32 {
        rounded((w + self.min) * inverse, 15.0)
    }

    /// Squared error of a group.
    fn error(self, group: &[f32; SHORT]) -> f32 {
        let inverse = inverse(self.scale);
        let mut error = 0.0;
        for w in group {
            let off = self.code(*w, inverse) * self.scale - self.min - w;
            error += off * off;
        }
        error
    }
}

/// `1 / x`, or 0 if every code stands for the same value.
fn inverse(x: f32) -> f32 {
    if x > 0.0 { 1.0 / x } else { 0.0 }
}

/// The nearest whole number in `0..=max`.
fn rounded(x: f32, max: f32) -> f32 {
    // Adding it leaves the nearest integer in the low bits of a small float.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let x = if x > 0.0 { x } else { 0.0 };
    let x = if x < max { x } else { max };
    (x + ROUND) - ROUND
}

/// Stores scale and minimum of group `i`, as [`scale_and_min`](super::scale_and_min) reads them.
pub(in crate::quant) fn put_scale_and_min(scales: &mut [u8], i: usize, (s, t): (u8, u8)) {
    match i {
        0..4 => {
            scales[i] |= s;
            scales[i + 4] |= t;
        }
        _ => {
            scales[i + 4] = s & 15 | t << 4;
            scales[i - 4] |= s >> 4 << 6;
            scales[i] |= t >> 4 << 6;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::random::Random;

    /// Root mean square of the error and of the values.
    fn loss(kind: Ggml, values: &[f32]) -> (f64, f64) {
        let mut bytes = vec![0xa5; values.len() / kind.len() * kind.bytes()];
        encode(kind, values, &mut bytes);
        let mut back = vec![0.0; values.len()];
        kind.widen(&bytes, &mut back);
        let square = |x: f64| x * x;
        let off = values.iter().zip(&back).map(|(a, b)| square(f64::from(a - b))).sum::<f64>();
        let all = values.iter().map(|a| square(f64::from(*a))).sum::<f64>();
        (off.sqrt(), all.sqrt())
    }

    #[test]
    fn blocks_are_near_the_values() {
        let mut random = Random(1);
        let values: Vec<f32> = (0..LONG * 40).map(|_| random.normal() * 0.02).collect();
        for (kind, limit) in [(Ggml::Q8_0, 0.007), (Ggml::Q4K, 0.085)] {
            let (off, all) = loss(kind, &values);
            assert!(off < limit * all, "{}: {}", kind.name(), off / all);
        }
    }

    #[test]
    fn values_that_a_block_holds_are_kept() {
        let on_steps: Vec<f32> = (0..LONG).map(|i| (i % 16) as f32 * 0.5 - 2.0).collect();
        let zeros = vec![0.0; LONG];
        for values in [&on_steps, &zeros] {
            let (off, all) = loss(Ggml::Q4K, values);
            assert!(off <= 1e-3 * all, "{off} of {all}");
        }
        // One sign alone.
        for sign in [1.0, -1.0] {
            let values: Vec<f32> = (0..LONG).map(|i| sign * (1.0 + (i % 7) as f32)).collect();
            let (off, all) = loss(Ggml::Q4K, &values);
            assert!(off < 0.06 * all, "{sign}: {off} of {all}");
        }
    }
}
