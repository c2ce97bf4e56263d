//! Assignment of a batch's rows to the experts of a mixture.

use std::ops::Range;

use crate::arena::{Carver, Exhausted};
use crate::format::model::{Experts, Header};
use crate::kernels::{sigmoids, softmax_terms};

/// Experts of the rows of a batch. A use is a pair of a row and one of its experts. Uses are numbered expert
/// by expert, and for each expert row by row. All buffers are empty if the model is no mixture.
pub(super) struct Routes<'a> {
    /// Scores of the experts; after the choice, weights of the chosen ones at the same places;
    /// `[batch, experts]`.
    pub(super) scores: &'a mut [f32],
    /// The experts of each row, ascending; `[batch, active]`.
    pub(super) chosen: &'a mut [u32],
    /// Numbers of these uses; `[batch, active]`.
    pub(super) places: &'a mut [u32],
    /// The row of each use; `[batch, active]`.
    pub(super) rows: &'a mut [u32],
    /// End of each expert's uses, for two halves of a batch; `[2, experts]`.
    pub(super) ends: &'a mut [u32],
    /// Output of each use, `[batch, active, dim]`.
    pub(super) outputs: &'a mut [f32],
    /// Output of the feed-forward layer beside a mixture, `[batch, dim]`; empty if there is none.
    pub(super) beside: &'a mut [f32],
}

impl<'a> Routes<'a> {
    pub(super) fn carve(
        header: &Header,
        max_batch: usize,
        carver: &mut Carver<'a>,
    ) -> Result<Routes<'a>, Exhausted> {
        let (n, active) = header.features.experts.map_or((0, 0), |e| (e.n, e.n_active));
        let uses = max_batch.saturating_mul(active);
        let beside_dim = header.features.more.parallel_ffn.map_or(0, |_| header.dim);
        Ok(Routes {
            scores: carver.take("scores of experts", max_batch.saturating_mul(n))?,
            chosen: carver.take("chosen experts", uses)?,
            places: carver.take("places of experts", uses)?,
            rows: carver.take("rows of experts", uses)?,
            ends: carver.take("uses of experts", 2 * n)?,
            outputs: carver.take("outputs of experts", uses.saturating_mul(header.dim))?,
            beside: carver.take("layers beside mixtures", max_batch.saturating_mul(beside_dim))?,
        })
    }

    /// Numbers of the uses of `expert`.
    pub(super) fn uses(&self, expert: usize) -> Range<usize> {
        let start = if expert == 0 { 0 } else { self.ends[expert - 1] };
        start as usize..self.ends[expert] as usize
    }

    /// Multiplies the weights of the experts that `m` rows have chosen.
    pub(super) fn scale(&mut self, experts: Experts, m: usize, scales: &[f32]) {
        let rows = self.scores.chunks_exact_mut(experts.n);
        for (scores, chosen) in rows.zip(self.chosen.chunks_exact(experts.n_active)).take(m) {
            chosen.iter().for_each(|of| scores[*of as usize] *= scales[*of as usize]);
        }
    }

    /// Chooses the experts of `m` rows by their scores, to which `bias` is added for the choice, and numbers the uses.
    pub(super) fn choose(&mut self, experts: Experts, m: usize, bias: Option<&[f32]>) {
        let rows = self.scores.chunks_exact_mut(experts.n);
        for (scores, chosen) in rows.zip(self.chosen.chunks_exact_mut(experts.n_active)).take(m) {
            choose(experts, scores, bias, chosen);
        }
        let chosen = &self.chosen[..m * experts.n_active];
        let ends = &mut self.ends[..experts.n];
        ends.fill(0);
        for expert in chosen {
            ends[*expert as usize] += 1;
        }
        let mut end = 0;
        for n in &mut *ends {
            // Start of the expert's uses; the next loop moves it to their end.
            (*n, end) = (end, end + *n);
        }
        for (index, (expert, place)) in chosen.iter().zip(&mut *self.places).enumerate() {
            let next = &mut ends[*expert as usize];
            *place = *next;
            self.rows[*next as usize] = (index / experts.n_active) as u32;
            *next += 1;
        }
    }
}

/// Added to the sum of sigmoids that weights are divided by.
const SIGMOIDS_LEAST: f32 = 1e-6;

/// Chooses the experts with the largest scores, the lowest numbers among equal ones, and turns scores into
/// weights. With `is_sigmoid`, `bias` is added to the sigmoids for the choice.
fn choose(experts: Experts, scores: &mut [f32], bias: Option<&[f32]>, chosen: &mut [u32]) {
    if experts.is_sigmoid {
        sigmoids(scores);
    }
    let score = |expert: usize| scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
    for i in 0..chosen.len() {
        let free = (0..scores.len()).filter(|expert| !chosen[..i].contains(&(*expert as u32)));
        // A NaN is chosen only if no number is left.
        let best = free.reduce(|best, expert| {
            if score(expert) > score(best) || score(best).is_nan() { expert } else { best }
        });
        chosen[i] = best.unwrap_or(0) as u32;
    }
    chosen.sort_unstable();
    let least = match experts.is_sigmoid {
        true => SIGMOIDS_LEAST,
        false => {
            softmax_terms(scores);
            0.0
        }
    };
    if experts.is_sigmoid && !experts.is_normalised {
        return;
    }
    let sum: f32 = match experts.is_normalised {
        true => chosen.iter().map(|expert| scores[*expert as usize]).sum(),
        false => scores.iter().sum(),
    };
    for expert in chosen {
        scores[*expert as usize] /= sum + least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: Experts =
        Experts { n: 4, n_active: 2, is_normalised: true, has_biases: false, is_sigmoid: false };

    #[test]
    fn the_lowest_of_equal_experts_are_chosen_and_weights_add_up() {
        let mut chosen = [9; 2];
        let mut scores = [1.0, 2.0, 1.0, 1.0];
        choose(EXPERTS, &mut scores, None, &mut chosen);
        assert_eq!(chosen, [0, 1]);
        let part = 1.0 / (1.0 + (-1.0f32).exp());
        assert!((scores[1] - part).abs() < 1e-6 && (scores[0] + scores[1] - 1.0).abs() < 1e-6);
        let mut scores = [1.0, 2.0, 1.0, 1.0];
        choose(Experts { is_normalised: false, ..EXPERTS }, &mut scores, None, &mut chosen);
        assert!((scores[1] - 1.0 / (1.0 + 3.0 * (-1.0f32).exp())).abs() < 1e-6);
        let mut scores = [f32::NAN; 4];
        choose(EXPERTS, &mut scores, None, &mut chosen);
        assert!(chosen[0] < chosen[1] && chosen[1] < 4 && scores[chosen[0] as usize].is_nan());
    }

    #[test]
    fn biases_of_the_choice_do_not_count_in_weights() {
        let experts = Experts { is_sigmoid: true, ..EXPERTS };
        let (mut scores, mut chosen) = ([0.0, 2.0, 1.0, -1.0], [9; 2]);
        choose(experts, &mut scores, Some(&[0.0, -1.0, 0.0, 0.5]), &mut chosen);
        // Sigmoids with biases: 0.5, -0.12, 0.73, 0.77.
        assert_eq!(chosen, [2, 3]);
        let [one, other] = [1.0f32, -1.0].map(|x| 1.0 / (1.0 + (-x).exp()));
        assert!((scores[2] - one / (one + other)).abs() < 1e-5);
        assert!((scores[3] - other / (one + other)).abs() < 1e-5);
        let mut scores = [0.0, 2.0, 1.0, -1.0];
        choose(Experts { is_normalised: false, ..experts }, &mut scores, None, &mut chosen);
        assert_eq!(chosen, [1, 2]);
        assert!((scores[2] - one).abs() < 1e-6);
    }

    #[test]
    fn uses_are_numbered_expert_by_expert() {
        let mut scores = [0.0, 3.0, 2.0, 0.0, 5.0, 0.0, 4.0, 0.0, 0.0, 1.0, 2.0, 0.0];
        let ([mut chosen, mut places, mut rows], mut ends) = ([[0; 6]; 3], [0; 4]);
        let mut routes = Routes {
            scores: &mut scores,
            chosen: &mut chosen,
            places: &mut places,
            rows: &mut rows,
            ends: &mut ends,
            outputs: &mut [],
            beside: &mut [],
        };
        routes.choose(EXPERTS, 3, None);
        assert_eq!([0, 1, 2, 3].map(|expert| routes.uses(expert)), [0..1, 1..3, 3..6, 6..6]);
        assert_eq!(
            (chosen, places, rows),
            ([1, 2, 0, 2, 1, 2], [1, 3, 0, 4, 2, 5], [1, 0, 2, 0, 1, 2])
        );
    }
}
