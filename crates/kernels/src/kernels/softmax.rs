//! Functions of few scores, the same on every CPU.

use super::float::{exp_to_one, exp_within};

/// Turns each of `scores` into `exp(score - largest)`. No tier has a version of its own, because scores are few.
pub fn softmax_terms(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores {
        *score = exp_to_one::<false>(*score - largest);
    }
}

/// Turns each of `scores` into its sigmoid, `1 / (1 + exp(-score))`. No tier has a version of its own, either.
pub fn sigmoids(scores: &mut [f32]) {
    for score in scores {
        *score = 1.0 / (1.0 + exp_within::<false>(-*score));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_those_of_exp() {
        let mut scores = [-3.0, 0.5, 2.0, 2.0, -200.0];
        softmax_terms(&mut scores);
        let wanted = [-5.0f64, -1.5, 0.0, 0.0, -202.0].map(f64::exp);
        for (found, wanted) in scores.iter().zip(wanted) {
            assert!((f64::from(*found) - wanted).abs() <= 2e-7 * wanted.max(1e-30), "{found}");
        }
        let mut scores = [-100.0, -1.0, 0.0, 3.0, 200.0];
        let wanted = scores.map(|score| 1.0 / (1.0 + f64::from(-score).exp()));
        sigmoids(&mut scores);
        for (found, wanted) in scores.iter().zip(wanted) {
            assert!((f64::from(*found) - wanted).abs() <= 2e-7, "{found}");
        }
    }
}
