//! Chooses the next token from the logits: greedy, or by temperature, top-k, top-p and min-p.
//!
//! Only the few candidates on the border are sorted. All others are counted in bins by their distance from
//! the largest logit, rounded to f16, whose bits are in the order of the numbers. One choice takes two passes
//! over the vocabulary.

use std::cmp::Ordering;
use std::f64::consts::{LN_2, LOG2_E};

use half::f16;

use crate::numerics::{INVERSE_FACTORIALS, ln};

/// Number of bins: one for each non-negative finite f16, which is a distance.
const BINS: usize = f16::INFINITY.to_bits() as usize + 1;

/// Number of logits that are compared at a time: four vectors of the narrowest kind.
const LANES: usize = 16;
/// Number of logits whose largest is found at a time.
const BLOCK: usize = 1024;

/// Parameters of the choice of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the most likely tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps tokens that are at least this many times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Seed of the random numbers; each position has its own number.
    pub seed: u64,
}

impl Sampling {
    /// Always takes the most likely token.
    pub const GREEDY: Sampling =
        Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 1 };

    /// The tokens to keep, if all weights add up to `total`.
    fn wanted(&self, total: f32) -> Wanted {
        let farthest = -f64::from(self.temperature) * ln(f64::from(self.min_p.min(1.0)));
        Wanted {
            count: if self.top_k == 0 { usize::MAX } else { self.top_k },
            weight: if self.top_p < 1.0 { total * self.top_p } else { f32::INFINITY },
            distance: if self.min_p > 0.0 { farthest as f32 } else { f32::INFINITY },
        }
    }
}

/// Bounds of the tokens that are kept, the most likely first; the narrowest counts. All of them are measured at the
/// temperature, and before any other bound.
#[derive(Clone, Copy)]
struct Wanted {
    /// Number of tokens.
    count: usize,
    /// Sum of weights that is enough.
    weight: f32,
    /// Largest distance from the largest logit.
    distance: f32,
}

impl Wanted {
    /// Whether `count` tokens with weights of `weight` are enough.
    fn is_reached(self, count: usize, weight: f32) -> bool {
        count >= self.count || weight >= self.weight
    }
}

/// Chooses tokens. Its buffers are scratch, which any number of streams can share: a choice depends only on
/// the arguments of [`Sampler::sample`]. Allocates only in [`Sampler::new`].
pub struct Sampler {
    /// `[BINS]`.
    bins: Vec<Bin>,
    /// Tokens of the border bin, the most likely first.
    border: Vec<Candidate>,
}

#[derive(Clone, Copy, Default)]
struct Bin {
    count: u32,
    /// Sum of the weights of the bin's tokens.
    weight: f32,
}

#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f32,
}

/// Turns the logits of one choice into weights.
#[derive(Clone, Copy)]
struct Weighing {
    /// The largest logit.
    max: f32,
    /// Negated inverse of the temperature.
    scale: f32,
}

impl Weighing {
    /// Bin of a logit; that of a NaN is the last one.
    fn bin(self, logit: f32) -> usize {
        bin_at(self.max - logit)
    }

    /// Weight of a logit, proportional to its probability; 0 for a NaN.
    fn weight(self, logit: f32) -> f32 {
        let distance = self.max - logit;
        if distance.is_nan() { 0.0 } else { exp(distance * self.scale) }
    }
}

/// Bin of the logits at a distance from the largest one. A greater distance never has a lower bin, and a zero of either
/// sign is the same distance.
fn bin_at(distance: f32) -> usize {
    usize::from(f16::from_f32(distance.abs()).to_bits()).min(BINS - 1)
}

impl Sampler {
    /// A sampler for vocabularies of up to `vocab_size` tokens.
    pub fn new(vocab_size: usize) -> Sampler {
        Sampler { bins: vec![Bin::default(); BINS], border: Vec::with_capacity(vocab_size) }
    }

    /// The id chosen for position `pos` of a stream, from the logits after the position before; `None` if no
    /// logit is a number. Equal arguments always give the same id.
    ///
    /// At equal logits the lowest id counts as the most likely.
    pub fn sample(&mut self, sampling: &Sampling, pos: usize, logits: &[f32]) -> Option<u32> {
        let best = argmax(logits)?;
        let max = logits[best as usize];
        if sampling.temperature <= 0.0 || sampling.top_k == 1 || max.is_infinite() {
            return Some(best);
        }
        let weighing = Weighing { max, scale: -1.0 / sampling.temperature };
        self.count(logits, weighing);
        let wanted = sampling.wanted(self.bins.iter().map(|bin| bin.weight).sum());
        let border_bin = self.border_bin(wanted);
        let inside: f32 = self.bins[..border_bin].iter().map(|bin| bin.weight).sum();
        self.keep_border(logits, weighing, wanted, border_bin);
        let border: f32 = self.border.iter().map(|c| c.weight).sum();
        let drawn = unit(sampling.seed, pos as u64) * (inside + border);
        Some(self.pick(logits, weighing, border_bin, drawn).unwrap_or(best))
    }

    fn count(&mut self, logits: &[f32], weighing: Weighing) {
        self.bins.fill(Bin::default());
        for &logit in logits {
            let bin = &mut self.bins[weighing.bin(logit)];
            bin.count += 1;
            bin.weight += weighing.weight(logit);
        }
    }

    /// The bin in which the wanted count, weight or distance is reached, whichever is first. All bins before it
    /// are kept completely.
    fn border_bin(&self, wanted: Wanted) -> usize {
        let (mut count, mut weight) = (0, 0.0);
        let last = bin_at(wanted.distance);
        for (index, bin) in self.bins[..last].iter().enumerate() {
            count += bin.count as usize;
            weight += bin.weight;
            if bin.count > 0 && wanted.is_reached(count, weight) {
                return index;
            }
        }
        last
    }

    /// Collects the tokens of the border bin that are kept, the most likely first.
    fn keep_border(
        &mut self,
        logits: &[f32],
        weighing: Weighing,
        wanted: Wanted,
        border_bin: usize,
    ) {
        self.border.clear();
        for (id, &logit) in logits.iter().enumerate() {
            let is_near = weighing.max - logit <= wanted.distance;
            if weighing.bin(logit) == border_bin && is_near && !logit.is_nan() {
                let weight = weighing.weight(logit);
                self.border.push(Candidate { id: id as u32, logit, weight });
            }
        }
        // No candidate is a NaN; 0 and -0 are equal.
        let likelier = |a: &Candidate, b: &Candidate| {
            b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
        };
        self.border.sort_unstable_by(likelier);
        let inside = &self.bins[..border_bin];
        let mut count: usize = inside.iter().map(|bin| bin.count as usize).sum();
        let mut weight: f32 = inside.iter().map(|bin| bin.weight).sum();
        let kept = self.border.iter().take_while(|candidate| {
            let is_kept = !wanted.is_reached(count, weight);
            count += 1;
            weight += candidate.weight;
            is_kept
        });
        let kept = kept.count();
        self.border.truncate(kept.max(usize::from(border_bin == 0)));
    }

    /// The token at which the sum of the kept weights exceeds `drawn`.
    fn pick(
        &self,
        logits: &[f32],
        weighing: Weighing,
        border_bin: usize,
        drawn: f32,
    ) -> Option<u32> {
        let mut sum = 0.0;
        let border = self.border.iter().map(|c| (c.id, c.weight));
        let numbered = (0..).zip(logits.iter().copied());
        let inside = numbered.filter(|&(_, logit)| weighing.bin(logit) < border_bin);
        let inside = inside.map(|(id, logit)| (id, weighing.weight(logit)));
        let mut kept = border.chain(inside);
        kept.find(|&(_, weight)| {
            sum += weight;
            sum > drawn
        })
        .map(|(id, _)| id)
    }
}

/// The id of the largest logit, the lowest id among equals; `None` if no logit is a number.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let (mut max, mut start) = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let largest = largest(block);
        if largest > max {
            (max, start) = (largest, index * BLOCK);
        }
    }
    logits[start..].iter().position(|&logit| logit == max).map(|at| (start + at) as u32)
}

/// Logarithm of the sum of e^logit. A logit minus this value is the logarithm of its probability. NaNs add
/// nothing.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = argmax(logits).map_or(0.0, |id| logits[id as usize]);
    let distances = logits.iter().map(|&logit| logit - max).filter(|distance| !distance.is_nan());
    let sum: f64 = distances.map(|distance| f64::from(exp(distance))).sum();
    f64::from(max) + ln(sum)
}

/// The largest number in `block`; negative infinity if there is none. Makes several comparisons at a time, so
/// that the compiler can use vectors.
fn largest(block: &[f32]) -> f32 {
    // The comparison is false for a NaN, so a NaN never wins.
    let larger = |max: f32, x: f32| if x > max { x } else { max };
    let (chunks, tail) = block.as_chunks::<LANES>();
    let mut max = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (max, &x) in max.iter_mut().zip(chunk) {
            *max = larger(*max, x);
        }
    }
    max.iter().chain(tail).fold(f32::NEG_INFINITY, |max, &x| larger(max, x))
}

/// The random number of position `pos` under `seed`: at least 0 and below 1. It does not depend on earlier
/// draws, so a position can be computed again, ahead of time, or on another board.
///
/// This is member `pos` of the SplitMix64 sequence (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014) that starts at the mixed seed. Without mixing, sequences of near seeds would overlap.
fn unit(seed: u64, pos: u64) -> f32 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let counter = pos.wrapping_add(1).wrapping_mul(GAMMA);
    (mix(mix(seed).wrapping_add(counter)) >> 40) as f32 / (1 << 24) as f32
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Terms of the series in [`exp`].
const TERMS: usize = 9;

/// e^x for x <= 0, with the same bits on every machine. C libraries differ in the last bit.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2. e^r is its Taylor series, with an error below 2^-31.
fn exp(x: f32) -> f32 {
    let x = f64::from(x);
    // Below this the result rounds to zero in f32.
    if x.is_nan() || x < -104.0 {
        return 0.0;
    }
    // Rounds to the nearest integer, because x is not positive and the cast truncates.
    let n = (x * LOG2_E - 0.5) as i64;
    let r = x - n as f64 * LN_2;
    let series =
        INVERSE_FACTORIALS[..TERMS].iter().rev().fold(0.0, |sum, inverse| sum * r + inverse);
    let power = f64::from_bits(((n + 1023) as u64) << 52);
    (series * power) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right_and_the_same_on_every_machine() {
        for step in 0..100_000 {
            let x = -0.001 * step as f32;
            let wanted = f64::from(x).exp();
            let error = (f64::from(exp(x)) - wanted).abs();
            assert!(error <= wanted / f64::from(1 << 24) + 1e-45, "{x}");
        }
        assert_eq!((exp(0.0), exp(-0.0), exp(-105.0)), (1.0, 1.0, 0.0));
        assert_eq!((exp(f32::NEG_INFINITY), exp(f32::NAN)), (0.0, 0.0));
        let bits = [-0.1, -1.0, -17.25, -100.0].map(|x| exp(x).to_bits());
        assert_eq!(bits, [0x3f67_a36d, 0x3ebc_5ab2, 0x330a_7a4f, 0x0000_001b]);
    }

    const LOGITS: [f32; 6] = [1.0, 3.0, f32::NAN, 2.0, 3.0, f32::NEG_INFINITY];

    fn sampling(temperature: f32, top_p: f32, top_k: usize) -> Sampling {
        Sampling { temperature, top_p, top_k, min_p: 0.0, seed: 7 }
    }

    fn with_min_p(min_p: f32, others: Sampling) -> Sampling {
        Sampling { min_p, ..others }
    }

    fn frequencies(sampling: Sampling, logits: &[f32]) -> Vec<f32> {
        const DRAWS: usize = 2_000;
        let mut sampler = Sampler::new(logits.len());
        let mut counts = vec![0; logits.len()];
        for pos in 0..DRAWS {
            let id = sampler.sample(&sampling, pos, logits);
            counts[id.expect("some are numbers") as usize] += 1;
        }
        counts.iter().map(|&n| n as f32 / DRAWS as f32).collect()
    }

    fn assert_close(got: &[f32], wanted: &[f32]) {
        assert_eq!(got.len(), wanted.len());
        for (got_one, wanted_one) in got.iter().zip(wanted) {
            assert!((got_one - wanted_one).abs() < 0.04, "{got:?} instead of {wanted:?}");
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equal_ids() {
        let mut sampler = Sampler::new(6);
        let mut sample = |logits: &[f32]| sampler.sample(&Sampling::GREEDY, 9, logits);
        assert_eq!(sample(&LOGITS), Some(1));
        assert_eq!(sample(&[f32::NAN; 3]), None);
        assert_eq!(sample(&[]), None);
        assert_eq!(sample(&[f32::NEG_INFINITY, f32::NAN]), Some(0));
    }

    #[test]
    fn the_largest_logit_is_found_anywhere() {
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY, f32::NAN]), Some(1));
        assert_eq!(argmax(&[-0.0, 0.0, -1.0]), Some(0));
        for n in (2..4 * LANES + 3).chain([BLOCK + 1, 2 * BLOCK + 20]) {
            assert_eq!(argmax(&vec![f32::NAN; n]), None);
            for at in (1..n).step_by(1 + n / BLOCK * 61) {
                let mut logits = vec![1.0; n];
                (logits[0], logits[n - 1], logits[at]) = (f32::NAN, 2.0, 2.0);
                assert_eq!(argmax(&logits), Some(at as u32), "{n}");
            }
        }
    }

    #[test]
    fn tokens_come_as_often_as_softmax_says() {
        let e = 1f32.exp();
        let total = 1.0 + 2.0 * e * e + e;
        let wanted = [1.0, e * e, 0.0, e, e * e, 0.0].map(|w| w / total);
        assert_close(&frequencies(sampling(1.0, 1.0, 0), &LOGITS), &wanted);
    }

    #[test]
    fn temperature_flattens() {
        let e = 0.5f32.exp();
        let wanted = [1.0 / (1.0 + e), e / (1.0 + e)];
        assert_close(&frequencies(sampling(2.0, 1.0, 0), &[0.0, 1.0]), &wanted);
    }

    #[test]
    fn top_k_keeps_the_most_likely_and_the_lowest_of_equals() {
        let e = 1f32.exp();
        let wanted =
            [0.0, e / (2.0 * e + 1.0), 0.0, 1.0 / (2.0 * e + 1.0), e / (2.0 * e + 1.0), 0.0];
        assert_close(&frequencies(sampling(1.0, 1.0, 3), &LOGITS), &wanted);
        let first = frequencies(sampling(1.0, 1.0, 2), &[5.0, 5.0, 5.0]);
        assert_close(&first, &[0.5, 0.5, 0.0]);
    }

    #[test]
    fn top_p_keeps_just_enough() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        let wanted = [0.5 / 0.8, 0.3 / 0.8, 0.0, 0.0];
        assert_close(&frequencies(sampling(1.0, 0.79, 0), &logits), &wanted);
        assert_close(&frequencies(sampling(1.0, 0.0, 0), &logits), &[1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn min_p_keeps_what_is_likely_beside_the_most_likely() {
        let logits = [f32::NAN, 0.5, 0.3, 0.15, 0.05, 0.0].map(f32::ln);
        let kept = |min_p| frequencies(with_min_p(min_p, sampling(1.0, 1.0, 0)), &logits);
        for (min_p, wanted) in [
            (0.0, [0.0, 0.5, 0.3, 0.15, 0.05, 0.0]),
            (0.09, [0.0, 0.5, 0.3, 0.15, 0.05, 0.0]),
            (0.11, [0.0, 0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0, 0.0]),
            (0.31, [0.0, 0.5 / 0.8, 0.3 / 0.8, 0.0, 0.0, 0.0]),
            (1.0, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
        ] {
            let got = kept(min_p);
            assert_close(&got, &wanted);
            for (got, wanted) in got.iter().zip(wanted) {
                assert_eq!(*got > 0.0, wanted > 0.0, "{min_p}");
            }
        }
        // A temperature counts before: at 2 the square roots of these probabilities are compared.
        let warm = frequencies(with_min_p(0.31, sampling(2.0, 1.0, 0)), &logits);
        assert!(warm[4] > 0.0 && warm[5] == 0.0, "{warm:?}");
        // Equally likely tokens all stay.
        assert_close(
            &frequencies(with_min_p(1.0, sampling(1.0, 1.0, 0)), &[2.0, 1.0, 2.0]),
            &[0.5, 0.0, 0.5],
        );
    }

    #[test]
    fn the_narrowest_of_all_bounds_counts() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        for (min_p, top_p, top_k, n_kept) in [
            (0.11, 0.79, 0, 2),
            (0.31, 0.96, 0, 2),
            (0.11, 1.0, 2, 2),
            (0.61, 0.99, 3, 1),
            (0.11, 0.99, 4, 3),
            (0.05, 0.99, 4, 4),
        ] {
            let got = frequencies(with_min_p(min_p, sampling(1.0, top_p, top_k)), &logits);
            let kept = got.iter().filter(|got| **got > 0.0).count();
            assert_eq!(kept, n_kept, "{min_p} {top_p} {top_k}: {got:?}");
        }
    }

    /// Against the definition, for vocabularies whose logits are anywhere: a choice lies in the set that the bounds keep,
    /// and no token of that set is forgotten.
    #[test]
    fn min_p_agrees_with_its_definition_on_any_logits() {
        let mut sampler = Sampler::new(300);
        for round in 0..12 {
            let spread = [0.01, 1.0, 9.0, 3e4][round % 4];
            let logits: Vec<f32> =
                (0..300).map(|id| (unit(round as u64, id) - 0.5) * spread).collect();
            let max = logits[argmax(&logits).unwrap() as usize];
            let temperature = [0.3, 1.0, 2.5][round % 3];
            let min_p = [0.02, 0.5, 0.97][round / 4 % 3];
            let wanted = with_min_p(min_p, sampling(temperature, 1.0, 0));
            let ratio = |id: usize| f64::from((logits[id] - max) / temperature).exp();
            let mut drawn = [false; 300];
            for pos in 0..1_000 {
                let id = sampler.sample(&wanted, pos, &logits).unwrap() as usize;
                assert!(ratio(id) > f64::from(min_p) * 0.9999, "{round}: {}", ratio(id));
                drawn[id] = true;
            }
            let forgotten =
                (0..300).filter(|&id| !drawn[id] && ratio(id) > f64::from(min_p) * 1.0001);
            let total: f64 = (0..300).map(ratio).filter(|ratio| *ratio >= f64::from(min_p)).sum();
            // A token that is drawn 20 times on average is missed once in 10^8.
            let forgotten = forgotten.filter(|&id| ratio(id) / total * 1_000.0 > 20.0);
            assert_eq!(forgotten.count(), 0, "{round}");
        }
    }

    /// The two logits differ, but are equal in f16 and fall into one bin.
    #[test]
    fn near_ties_on_the_border_are_told_apart() {
        let logits = [0.0, 9.000_1, 9.000_2, 20.0];
        let got = frequencies(sampling(50.0, 1.0, 2), &logits);
        assert_eq!((got[0], got[1]), (0.0, 0.0));
        assert!(got[2] > 0.4);
    }

    #[test]
    fn the_lowest_id_is_kept_among_zeros_of_both_signs() {
        assert_eq!(frequencies(sampling(1.0, 1.0, 1), &[-0.0, 0.0, -1.0]), [1.0, 0.0, 0.0]);
        assert_close(&frequencies(sampling(1.0, 1.0, 2), &[-0.0, 0.0, -1.0]), &[0.5, 0.5, 0.0]);
    }

    #[test]
    fn a_choice_belongs_to_its_seed_and_position_alone() {
        let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32).collect();
        let wanted = |seed| Sampling { seed, ..sampling(1.0, 0.95, 0) };
        let draw = |seed, pos| Sampler::new(logits.len()).sample(&wanted(seed), pos, &logits);
        // One scratch serves two seeds, in any order of positions, some of them twice.
        let mut shared = Sampler::new(logits.len());
        for at in [7, 0, 3, 3, 99, 1 << 40, 7, 1] {
            for seed in [3, u64::MAX, 3] {
                assert_eq!(shared.sample(&wanted(seed), at, &logits), draw(seed, at));
            }
        }
        let text = |seed| (0..20).map(|pos| draw(seed, pos)).collect::<Vec<_>>();
        assert_eq!(text(3), text(3));
        assert_ne!(text(3), text(4));
    }

    /// Chi-square statistic of the distribution of pairs of numbers over squares; 255 on average, with a
    /// standard deviation of 23.
    fn chi_square(pairs: impl Iterator<Item = (f32, f32)>) -> f64 {
        const SIDE: usize = 16;
        let mut counts = [0usize; SIDE * SIDE];
        let cell = |x: f32| (x * SIDE as f32) as usize;
        pairs.for_each(|(a, b)| counts[cell(a) * SIDE + cell(b)] += 1);
        let mean = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
        counts.iter().map(|&n| (n as f64 - mean).powi(2) / mean).sum()
    }

    #[test]
    fn neighbouring_positions_and_seeds_have_nothing_in_common() {
        const N: u64 = 1 << 16;
        for start in [0, 1, 7, 1 << 32, u64::MAX - N - 64] {
            for step in [1, 2, 64] {
                let after_pos = (0..N).map(|pos| (unit(start, pos), unit(start, pos + step)));
                let after_seed = (start..start + N).map(|s| (unit(s, 40), unit(s + step, 40)));
                // The next seed's sequence is not this one's, shifted by some positions.
                let shifted =
                    (start..start + N).map(|s| (unit(s, 40), unit(s + step, 40 - step % 40)));
                for (what, chi) in [
                    ("positions", chi_square(after_pos)),
                    ("seeds", chi_square(after_seed)),
                    ("both", chi_square(shifted)),
                ] {
                    assert!((140.0..400.0).contains(&chi), "{what} from {start} by {step}: {chi}");
                }
            }
        }
    }
}
