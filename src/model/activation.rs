//! Turns gate and up projections into the input of the down projection.
//!
//! Every activation here but the GELU by the error function is a swish: `x · sigmoid(c · x)` is `swish(c · x) / c`, and
//! the GELU by tanh is `x · sigmoid(2u)` with `u = sqrt(2 / pi) · (x + 0.044715 · x³)` (arXiv:1606.08415), where `2u / x` is finite.
//! So the tiers' SwiGLU kernels do the delicate part, and the operations before them are rounded alike
//! everywhere.

use super::zeros::zeros;
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
        Activation::GeluErf => {
            kernels.gelu(gate, out);
            // A layer without gates has no `up`.
            out.iter_mut().zip(up).for_each(|(out, up)| *out *= up);
        }
        Activation::ClampedSilu { limit } => by_swish(kernels, (gate, up), out, |gate, up| {
            // Unlike `min`, this lets a NaN pass.
            let gate = if gate > limit { limit } else { gate };
            (CLAMPED_SLOPE * gate, (up.clamp(-limit, limit) + 1.0) / CLAMPED_SLOPE)
        }),
    }
}

/// SwiGLU of the values that `prepare` returns for each gate and up.
fn by_swish(
    kernels: &Kernels,
    (gate, up): (&[f32], &[f32]),
    out: &mut [f32],
    prepare: impl Fn(f32, f32) -> (f32, f32),
) {
    let (mut gates, mut ups) = (zeros::<PIECE>(), zeros::<PIECE>());
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
        check_within(1e-6, activation, wanted);
    }

    fn check_within(most: f64, activation: Activation, wanted: impl Fn(f64, f64) -> f64) {
        let kernels = Kernels::best();
        let gate: Vec<f32> = (-300..300).map(|i| i as f32 / 16.0).chain([-1e9, 0.0, 1e9]).collect();
        let up: Vec<f32> = (0..gate.len()).map(|i| (i % 23) as f32 - 11.3).collect();
        let mut out = vec![f32::NAN; gate.len()];
        activate(&kernels, activation, (&gate, &up), &mut out);
        for ((gate, up), found) in gate.iter().zip(&up).zip(&out) {
            let wanted = wanted(f64::from(*gate), f64::from(*up));
            let off = (f64::from(*found) - wanted).abs();
            assert!(off <= 2e-6 * wanted.abs() + most, "{gate}, {up}: {found}, not {wanted}");
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
    fn gelu_is_that_of_the_error_function() {
        // `1 + erf(x)` is rounded to 1.2e-7 where it is near 0; it is multiplied by up to 3 and by up to 11.7.
        check_within(1e-5, Activation::GeluErf, |x, up| {
            // Simpson's rule for the integral of the error function.
            let (end, n) = ((x / 2.0f64.sqrt()).clamp(-6.0, 6.0), 600);
            let part = |i: i32| {
                let at = end * f64::from(i) / f64::from(n);
                let weight = if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
                weight * (-at * at).exp()
            };
            let integral = (0..=n).map(part).sum::<f64>() * end / f64::from(n) / 3.0;
            0.5 * x * (1.0 + integral * 2.0 / std::f64::consts::PI.sqrt()) * up
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
