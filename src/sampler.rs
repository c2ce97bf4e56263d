//! Chooses the next token from the logits: greedy, temperature, top-k and top-p.
//!
//! Nothing is sorted but the few candidates on the border: candidates are counted in bins
//! of their distance from the largest logit, rounded to f16, whose bits are in the order of
//! the numbers. One choice costs two passes over the vocabulary.

use half::f16;

/// Distances fall into the bins of the non-negative finite f16 values.
const BINS: usize = f16::INFINITY.to_bits() as usize + 1;

/// Logits that are compared at the same time: four vectors of the narrowest kind.
const LANES: usize = 16;
/// Logits of which the largest is looked for at once.
const BLOCK: usize = 1024;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the most likely tokens that have this probability together; 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 1 };
}

/// Chooses tokens; repeatable for one seed. Allocates only when made.
pub struct Sampler {
    sampling: Sampling,
    random: Random,
    /// `[BINS]`.
    bins: Vec<Bin>,
    /// Tokens of the border bin, the most likely first.
    border: Vec<Candidate>,
}

#[derive(Clone, Copy, Default)]
struct Bin {
    count: u32,
    /// Sum of the weights of its tokens.
    weight: f32,
}

#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f32,
}

impl Sampler {
    /// A sampler for vocabularies of up to `vocab_size` tokens.
    pub fn new(sampling: Sampling, vocab_size: usize) -> Sampler {
        Sampler {
            sampling,
            random: Random::new(sampling.seed),
            bins: vec![Bin::default(); BINS],
            border: Vec::with_capacity(vocab_size),
        }
    }

    /// The chosen id, or `None` if no logit is a number.
    ///
    /// Of equal logits the lowest id is the most likely.
    pub fn sample(&mut self, logits: &[f32]) -> Option<u32> {
        let best = argmax(logits)?;
        let max = logits[best as usize];
        if self.sampling.temperature <= 0.0 || self.sampling.top_k == 1 || max.is_infinite() {
            return Some(best);
        }
        let scale = -1.0 / self.sampling.temperature;
        self.count(logits, max, scale);
        let border_bin = self.border_bin();
        let inside: f32 = self.bins[..border_bin].iter().map(|bin| bin.weight).sum();
        self.keep_border(logits, max, scale, border_bin);
        let border: f32 = self.border.iter().map(|c| c.weight).sum();
        let drawn = self.random.unit() * (inside + border);
        Some(self.pick(logits, max, scale, border_bin, drawn).unwrap_or(best))
    }

    fn count(&mut self, logits: &[f32], max: f32, scale: f32) {
        self.bins.fill(Bin::default());
        for &logit in logits {
            let bin = &mut self.bins[bin_of(max - logit)];
            bin.count += 1;
            bin.weight += weight_of(max - logit, scale);
        }
    }

    /// The bin in which top-k or top-p is reached, whichever comes first; all bins before it
    /// are kept whole.
    fn border_bin(&self) -> usize {
        let (wanted_count, wanted_weight) = self.wanted();
        let (mut count, mut weight) = (0, 0.0);
        for (index, bin) in self.bins.iter().enumerate() {
            count += bin.count as usize;
            weight += bin.weight;
            if bin.count > 0 && (count >= wanted_count || weight >= wanted_weight) {
                return index;
            }
        }
        BINS - 1
    }

    /// Tokens and weight to keep.
    fn wanted(&self) -> (usize, f32) {
        let total: f32 = self.bins.iter().map(|bin| bin.weight).sum();
        let count = match self.sampling.top_k {
            0 => usize::MAX,
            k => k,
        };
        let p = self.sampling.top_p;
        (count, if p < 1.0 { total * p } else { f32::INFINITY })
    }

    /// Collects the tokens of the border bin that are kept.
    fn keep_border(&mut self, logits: &[f32], max: f32, scale: f32, border_bin: usize) {
        self.border.clear();
        for (id, &logit) in logits.iter().enumerate() {
            if bin_of(max - logit) == border_bin && !logit.is_nan() {
                let weight = weight_of(max - logit, scale);
                self.border.push(Candidate { id: id as u32, logit, weight });
            }
        }
        let likelier =
            |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id));
        self.border.sort_unstable_by(likelier);
        let (wanted_count, wanted_weight) = self.wanted();
        let inside = &self.bins[..border_bin];
        let mut count: usize = inside.iter().map(|bin| bin.count as usize).sum();
        let mut weight: f32 = inside.iter().map(|bin| bin.weight).sum();
        let is_enough = |count, weight| count >= wanted_count || weight >= wanted_weight;
        let kept = self.border.iter().take_while(|candidate| {
            let is_kept = !is_enough(count, weight);
            count += 1;
            weight += candidate.weight;
            is_kept
        });
        let kept = kept.count();
        self.border.truncate(kept.max(usize::from(border_bin == 0)));
    }

    /// The token at which the kept weights, added up, pass `drawn`.
    fn pick(
        &self,
        logits: &[f32],
        max: f32,
        scale: f32,
        border_bin: usize,
        drawn: f32,
    ) -> Option<u32> {
        let mut sum = 0.0;
        let border = self.border.iter().map(|c| (c.id, c.weight));
        let inside = logits.iter().enumerate().filter_map(|(id, &logit)| {
            let distance = max - logit;
            (bin_of(distance) < border_bin).then(|| (id as u32, weight_of(distance, scale)))
        });
        let mut kept = border.chain(inside);
        kept.find(|&(_, weight)| {
            sum += weight;
            sum > drawn
        })
        .map(|(id, _)| id)
    }
}

/// The id of the largest logit, the lowest of equals; `None` if none is a number.
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

/// The largest number in `block`; negative infinity if there is none. Several comparisons are under
/// way at once, which vectors do well.
fn largest(block: &[f32]) -> f32 {
    // False for what is not a number, which so never wins.
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

/// What is not a number falls into the last bin, with weight 0.
fn bin_of(distance: f32) -> usize {
    usize::from(f16::from_f32(distance).to_bits()).min(BINS - 1)
}

fn weight_of(distance: f32, scale: f32) -> f32 {
    if distance.is_nan() { 0.0 } else { (distance * scale).exp() }
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0 and below 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 3.0, f32::NAN, 2.0, 3.0, f32::NEG_INFINITY];

    fn sampling(temperature: f32, top_p: f32, top_k: usize) -> Sampling {
        Sampling { temperature, top_p, top_k, seed: 7 }
    }

    fn frequencies(sampling: Sampling, logits: &[f32]) -> Vec<f32> {
        const DRAWS: usize = 2_000;
        let mut sampler = Sampler::new(sampling, logits.len());
        let mut counts = vec![0; logits.len()];
        for _ in 0..DRAWS {
            counts[sampler.sample(logits).expect("some are numbers") as usize] += 1;
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
        let mut sampler = Sampler::new(Sampling::GREEDY, 6);
        assert_eq!(sampler.sample(&LOGITS), Some(1));
        assert_eq!(sampler.sample(&[f32::NAN; 3]), None);
        assert_eq!(sampler.sample(&[]), None);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY, f32::NAN]), Some(0));
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

    /// Equal within f16, so both fall into one bin, but not equal.
    #[test]
    fn near_ties_on_the_border_are_told_apart() {
        let logits = [0.0, 9.000_1, 9.000_2, 20.0];
        let got = frequencies(sampling(50.0, 1.0, 2), &logits);
        assert_eq!((got[0], got[1]), (0.0, 0.0));
        assert!(got[2] > 0.4);
    }

    #[test]
    fn one_seed_gives_one_sequence() {
        let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32).collect();
        let draw = |seed| {
            let sampling = Sampling { seed, ..sampling(1.0, 0.95, 0) };
            let mut sampler = Sampler::new(sampling, logits.len());
            (0..20).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
