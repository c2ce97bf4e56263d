//! Turns gate and up projections into the input of the down projection.
//!
//! Every activation here but the GELU by the error function is a swish: `x · sigmoid(c · x)` is `swish(c · x) / c`, and the GELU by tanh is
//! `x · sigmoid(2u)` with `u = sqrt(2 / pi) · (x + 0.044715 · x³)` (arXiv:1606.08415), where `2u / x` is finite.
//! So the tiers' SwiGLU kernels do the delicate part, and the operations before them are rounded alike
//! everywhere.

use crate::format::model::Activation;
use crate::kernels::Kernels;

/// Number of values that are prepared at a time.
const PIECE: usize = 256;

/// Factor of the gate in gpt-oss's sigmoid.
const CLAMPED_SLOPE: f32 = 1.702;

/// `2 * sqrt(2 / pi)`.
const GELU_SLOPE: f32 = 1.595_769;

/// Largest magnitude of a gate in its slope: beyond it the sigmoid depends only on the sign. Squares stay
/// finite.
const GELU_MOST: f32 = 1e6;

/// Writes the activation of a row to `out`.
pub(super) fn activate(
    kernels: &Kernels,
    activation: Activation,
    (gate, up): (&[f32], &[f32]),
    out: &mut [f32],
) {
    match activation {
        Activation::Silu => kernels.swiglu(gate, up, out),
        Activation::GeluTanh => by_swish(kernels, (gate, up), out, |gate, up| {
            let near = gate.clamp(-GELU_MOST, GELU_MOST);
            let slope = GELU_SLOPE * (1.0 + 0.044_715 * (near * near));
            (gate * slope, up / slope)
        }),
        Activation::GeluErf if up.is_empty() => {
            gate.iter().zip(out).for_each(|(gate, out)| *out = gelu(*gate));
        }
        Activation::GeluErf => {
            let rows = gate.iter().zip(up).zip(out);
            rows.for_each(|((gate, up), out)| *out = gelu(*gate) * up);
        }
        Activation::ClampedSilu { limit } => by_swish(kernels, (gate, up), out, |gate, up| {
            // Unlike `min`, this lets a NaN pass.
            let gate = if gate > limit { limit } else { gate };
            (CLAMPED_SLOPE * gate, (up.clamp(-limit, limit) + 1.0) / CLAMPED_SLOPE)
        }),
    }
}

/// `x · (1 + erf(x / sqrt(2))) / 2` (arXiv:1606.08415).
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The error function: a quotient of polynomials up to ±4, where it is ±1 in f32; off by 3e-7 at most.
fn erf(x: f32) -> f32 {
    const ABOVE: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const BELOW: [f32; 5] =
        [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_3e-3, -1.426_473_9e-2];
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    let above = ABOVE[1..].iter().fold(ABOVE[0], |sum, c| sum * square + c);
    let below = BELOW[1..].iter().fold(BELOW[0], |sum, c| sum * square + c);
    x * above / below
}

/// SwiGLU of the values that `prepare` returns for each gate and up.
fn by_swish(
    kernels: &Kernels,
    (gate, up): (&[f32], &[f32]),
    out: &mut [f32],
    prepare: impl Fn(f32, f32) -> (f32, f32),
) {
    let (mut gates, mut ups) = ([0.0; PIECE], [0.0; PIECE]);
    let pieces = gate.chunks(PIECE).zip(up.chunks(PIECE)).zip(out.chunks_mut(PIECE));
    for ((gate, up), out) in pieces {
        let n = out.len();
        for (i, (gate, up)) in gate.iter().zip(up).enumerate() {
            (gates[i], ups[i]) = prepare(*gate, *up);
        }
        kernels.swiglu(&gates[..n], &ups[..n], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(activation: Activation, wanted: impl Fn(f64, f64) -> f64) {
        let kernels = Kernels::best();
        let gate: Vec<f32> = (-300..300).map(|i| i as f32 / 16.0).chain([-1e9, 0.0, 1e9]).collect();
        let up: Vec<f32> = (0..gate.len()).map(|i| (i % 23) as f32 - 11.3).collect();
        let mut out = vec![f32::NAN; gate.len()];
        activate(&kernels, activation, (&gate, &up), &mut out);
        for ((gate, up), found) in gate.iter().zip(&up).zip(&out) {
            let wanted = wanted(f64::from(*gate), f64::from(*up));
            let off = (f64::from(*found) - wanted).abs();
            assert!(off <= 2e-6 * wanted.abs() + 1e-6, "{gate}, {up}: {found}, not {wanted}");
        }
    }

    #[test]
    fn gelu_is_that_of_tanh() {
        check(Activation::GeluTanh, |x, up| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + u.tanh()) * up
        });
    }

    #[test]
    fn clamped_silu_clamps_gate_and_up() {
        check(Activation::ClampedSilu { limit: 7.0 }, |gate, up| {
            let gate = gate.min(7.0);
            (up.clamp(-7.0, 7.0) + 1.0) * gate / (1.0 + (-1.702 * gate).exp())
        });
    }
}
