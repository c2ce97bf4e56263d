//! The version of the rules that determine result bits, and elementary functions with the same bits on every
//! machine.
//!
//! C libraries differ in the last bit of sine, cosine, logarithm and exponential. Here these functions use
//! only additions, multiplications and divisions in f64, each rounded once by IEEE 754, never fused. The
//! series are Taylor series, long enough that only rounding errors remain.

use std::f64::consts::{FRAC_2_PI, LN_2, LOG2_E, SQRT_2};

/// Version of the rules by which logits are computed: the order of sums, groups of activations, elementary
/// functions. Nodes with different versions do not work together, and stored keys and values of another
/// version are not used. Must change whenever a change of the code changes any text.
pub const NUMERICS: u8 = 2;

/// Pi / 2 as three parts of 22 bits and a rest. Products of the three parts with integers below `2^31` are
/// exact.
const PI_2: [f64; 4] = {
    let a = f64::from_bits(0x3FF9_21FB_0000_0000);
    let b = f64::from_bits(0x3E95_110B_0000_0000);
    let c = f64::from_bits(0x3D31_8469_8000_0000);
    let d = f64::from_bits(0x3BA3_198A_2E03_7073);
    [a, b, c, d]
};

/// ln(2) as a part of 32 bits and a rest. Products of the first part with integers below `2^21` are exact.
const LN_2_PARTS: [f64; 2] =
    [f64::from_bits(0x3FE6_2E42_FEE0_0000), f64::from_bits(0x3DEA_39EF_3579_3C76)];

/// Coefficients of `sin(x) / x` in powers of `x^2`, from the highest down: `(-1)^k / (2k + 1)!`.
const SIN: [f64; 9] = series(1);

/// Coefficients of `cos(x)` in powers of `x^2`, from the highest down: `(-1)^k / (2k)!`.
const COS: [f64; 9] = series(0);

const fn series(first: usize) -> [f64; 9] {
    let mut all = [1.0; 9];
    let (mut k, mut factorial, mut sign) = (0, 1.0, 1.0);
    while k < all.len() {
        all[all.len() - 1 - k] = sign / factorial;
        let n = 2 * k + first;
        factorial *= ((n + 1) * (n + 2)) as f64;
        sign = -sign;
        k += 1;
    }
    all
}

/// Sine and cosine of `x` radians, `0 <= x < 2^31`, within `2^-52`. For a larger `x` the result is some point
/// of the unit circle, or NaN.
///
/// `x` is reduced to `|r| <= pi / 4` by Cody and Waite's method: the products are exact, and so are all
/// differences but the last two.
pub fn sin_cos(x: f64) -> (f64, f64) {
    let quadrant = (x * FRAC_2_PI + 0.5) as u32;
    let n = f64::from(quadrant);
    let r = PI_2.iter().fold(x, |r, part| r - n * part);
    let square = r * r;
    let (sin, cos) = (r * horner(&SIN, square), horner(&COS, square));
    match quadrant % 4 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Natural logarithm of a normal `x > 0`, within a few units of the last place. NaN for other numbers.
///
/// With `x = m * 2^e` and `sqrt(1/2) <= m < sqrt(2)` the result is
/// `e * ln(2) + 2 * artanh((m - 1) / (m + 1))`.
pub fn ln(x: f64) -> f64 {
    if !x.is_normal() || x < 0.0 {
        return f64::NAN;
    }
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i32 - 1023;
    let mut m = f64::from_bits(bits & !(0x7FF << 52) | 1023 << 52);
    if m >= SQRT_2 {
        (m, e) = (0.5 * m, e + 1);
    }
    let (s, e) = ((m - 1.0) / (m + 1.0), f64::from(e));
    let square = s * s;
    let artanh = (0..12).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    e * LN_2_PARTS[0] + (e * LN_2_PARTS[1] + 2.0 * s * artanh)
}

/// `e^x`, within a few units of the last place; 0 or infinity outside the range of normal numbers.
///
/// With `x = n * ln(2) + r` and `|r| <= ln(2) / 2` the result is `2^n * e^r`.
pub fn exp(x: f64) -> f64 {
    if x < -1022.0 * LN_2 {
        return 0.0;
    }
    if x > 1023.0 * LN_2 {
        return f64::INFINITY;
    }
    let shifted = x * LOG2_E + 0.5;
    let truncated = shifted as i64;
    let n = if (truncated as f64) > shifted { truncated - 1 } else { truncated };
    let r = x - n as f64 * LN_2_PARTS[0] - n as f64 * LN_2_PARTS[1];
    let sum = (1..=14).rev().fold(1.0, |sum, k| 1.0 + r / f64::from(k) * sum);
    sum * f64::from_bits(((n + 1023) as u64) << 52)
}

/// `1 / k!` for `k` from 0.
pub const INVERSE_FACTORIALS: [f64; 15] = {
    let mut all = [1.0; 15];
    let mut k = 1;
    while k < all.len() {
        all[k] = all[k - 1] / k as f64;
        k += 1;
    }
    all
};

/// Hyperbolic tangent, within 1e-15. Faster than [`exp`], for many values.
///
/// It is `(1 - e) / (1 + e)` with `e = exp(-2 * x)`, for an `x` that is not negative.
pub fn tanh(x: f64) -> f64 {
    // Beyond this the result is 1. A NaN passes.
    let y = if x.abs() > 20.0 { -40.0 } else { -2.0 * x.abs() };
    let n = (y * LOG2_E - 0.5) as i64;
    let r = y - n as f64 * LN_2_PARTS[0] - n as f64 * LN_2_PARTS[1];
    let sum = INVERSE_FACTORIALS.iter().rev().fold(0.0, |sum, term| sum * r + term);
    let e = sum * f64::from_bits(((n + 1023) as u64) << 52);
    let size = (1.0 - e) / (1.0 + e);
    if x < 0.0 { -size } else { size }
}

/// `base^exponent` for a positive `base`.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

fn horner(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_near_that_of_the_standard_library_and_odd() {
        let steps = (0..4000).map(|i| f64::from(i) / 150.0);
        for x in steps.chain([1e-300, 1e-17, 1e-9, 1e300, f64::INFINITY]) {
            assert!((tanh(x) - x.tanh()).abs() < 1e-15, "{x}");
            assert_eq!(tanh(-x), -tanh(x));
        }
        assert!(tanh(f64::NAN).is_nan());
    }

    /// Products of positions and frequencies, like in RoPE, and numbers around multiples of pi / 4.
    fn arguments() -> impl Iterator<Item = f64> {
        let rope = (0..64).flat_map(|pair| {
            let frequency = pow(500_000.0, -f64::from(pair) / 64.0);
            [0, 1, 2, 77, 4095, 8191, 131_071, 1_048_575].map(|pos: u32| f64::from(pos) * frequency)
        });
        let around = (0..40_000).map(|n| f64::from(n) * 0.25 * std::f64::consts::PI);
        rope.chain(around.clone()).chain(around.map(|x| x * (1.0 + f64::EPSILON)))
    }

    #[test]
    fn sines_and_cosines_are_those_of_the_library() {
        for x in arguments() {
            let ((sin, cos), (s, c)) = (sin_cos(x), x.sin_cos());
            assert!((sin - s).abs() <= 2.3e-16, "sin({x}): {sin:e}, not {s:e}");
            assert!((cos - c).abs() <= 2.3e-16, "cos({x}): {cos:e}, not {c:e}");
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }

    #[test]
    fn large_angles_are_reduced_exactly() {
        for x in [1e6, 12_345_678.9, 2_147_483_647.0] {
            let ((sin, cos), (s, c)) = (sin_cos(x), x.sin_cos());
            assert!((sin - s).abs() <= 2.3e-16 && (cos - c).abs() <= 2.3e-16, "{x}");
        }
    }

    #[test]
    fn logarithms_and_powers_are_those_of_the_library() {
        for i in 1..20_000 {
            let x = f64::from(i) * 0.37;
            assert!((ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "ln({x})");
            let y = (f64::from(i) - 10_000.0) * 0.07;
            assert!((exp(y) / y.exp() - 1.0).abs() <= 6e-16, "exp({y}): {:e}", exp(y));
        }
        for theta in [1e4, 5e5, 1e6, 150_000.0] {
            for pair in 0..128 {
                let exponent = -f64::from(pair) / 128.0;
                let (found, wanted) = (pow(theta, exponent), theta.powf(exponent));
                assert!((found / wanted - 1.0).abs() <= 5e-15, "{theta}^{exponent}");
            }
            assert_eq!(pow(theta, 0.0), 1.0);
        }
    }

    #[test]
    fn ends_of_the_numbers_are_no_surprise() {
        assert!([0.0, -1.0, f64::NAN, f64::INFINITY].iter().all(|x| ln(*x).is_nan()));
        assert_eq!((exp(-800.0), exp(800.0)), (0.0, f64::INFINITY));
        assert!(exp(f64::NAN).is_nan());
        assert!(sin_cos(f64::NAN).0.is_nan());
        assert_eq!(ln(1.0), 0.0);
    }

    /// Pins the bits, so that a machine with other results is noticed.
    #[test]
    fn bits_are_the_same_everywhere() {
        let mut hash = 0_u64;
        for x in arguments() {
            let (sin, cos) = sin_cos(x);
            for value in [sin, cos, ln(x + 1.0), exp(-x.min(700.0))] {
                hash = hash.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ value.to_bits();
            }
        }
        assert_eq!(hash, 393_275_752_436_719_858);
    }
}
