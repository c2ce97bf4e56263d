//! Measures how well logits predict a text, and how far two sets of logits differ; in f64.

/// Natural logarithm of the sum of `exp(logit)`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(max) + sum.ln()
}

/// Negative log-likelihood of `id`, in nats; infinite if the logits have no such id.
pub fn nll(logits: &[f32], id: u32) -> f64 {
    match logits.get(id as usize) {
        Some(&logit) => log_sum_exp(logits) - f64::from(logit),
        None => f64::INFINITY,
    }
}

/// Kullback-Leibler divergence of `other` from `reference`, in nats.
///
/// # Panics
/// If the lengths differ.
pub fn kl_divergence(reference: &[f32], other: &[f32]) -> f64 {
    assert_eq!(reference.len(), other.len());
    let (p_sum, q_sum) = (log_sum_exp(reference), log_sum_exp(other));
    let terms = reference.iter().zip(other).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - p_sum, f64::from(q) - q_sum);
        if p.is_finite() { p.exp() * (p - q) } else { 0.0 }
    });
    terms.sum::<f64>().max(0.0)
}

/// Largest difference between two sets of logits, relative to the largest reference logit.
///
/// # Panics
/// If the lengths differ.
pub fn drift(reference: &[f32], other: &[f32]) -> f64 {
    assert_eq!(reference.len(), other.len());
    let largest = reference.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let pairs = reference.iter().zip(other);
    let worst = pairs.map(|(a, b)| f64::from(a - b).abs()).fold(0.0, |max, d| {
        // `f64::max` would drop NaN.
        if d > max || d.is_nan() { d } else { max }
    });
    worst / f64::from(largest).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nll_of_equal_logits_is_the_logarithm_of_their_number() {
        let logits = [1000.0; 8];
        assert!((nll(&logits, 3) - 8f64.ln()).abs() < 1e-12);
        assert_eq!(nll(&logits, 8), f64::INFINITY);
    }

    #[test]
    fn kl_is_zero_for_shifted_logits_and_positive_otherwise() {
        let p = [0.5, -1.0, 2.0, f32::NEG_INFINITY];
        let shifted = p.map(|x| x + 3.0);
        assert!(kl_divergence(&p, &shifted) < 1e-12);
        let (p, q) = ([0.75f32.ln(), 0.25f32.ln()], [0.5f32.ln(), 0.5f32.ln()]);
        let wanted = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((kl_divergence(&p, &q) - wanted).abs() < 1e-7);
    }

    #[test]
    fn drift_is_relative_to_the_largest_logit_and_shows_nan() {
        assert_eq!(drift(&[1.0, -4.0], &[1.5, -4.0]), 0.125);
        assert!(drift(&[1.0, 2.0], &[f32::NAN, 2.0]).is_nan());
    }
}
