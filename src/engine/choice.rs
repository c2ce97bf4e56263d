//! The choice of a job's next token: logits, rules, filter and the report of odds.

use super::job::{Job, JobError};
use super::recent::Recent;
use super::rules::{LogitRules, Odds, TokenFilter};
use crate::sampler::{Sampler, Sampling, log_sum_exp};

/// Chooses the tokens of one job. Allocates only when made.
pub(super) struct Chooser {
    sampling: Sampling,
    rules: LogitRules,
    filter: Option<Box<dyn TokenFilter>>,
    /// Number of likely tokens to report; `None` for no report.
    n_likeliest: Option<usize>,
    /// Chosen ids with their counts; empty if no rule needs counts.
    counts: Vec<(u32, u32)>,
    /// The latest ids; `None` if no rule needs them.
    recent: Option<Recent>,
    likeliest: Vec<(u32, f32)>,
}

/// Buffers that all choosers share, one after the other.
pub(super) struct ChoiceScratch {
    sampler: Sampler,
    /// Copy of the model's logits before rules and filter change them; for the report of odds.
    logits: Vec<f32>,
}

/// A token that was chosen.
pub(super) struct Chosen<'c> {
    pub(super) id: u32,
    /// Whether the answer must end after this token.
    pub(super) is_complete: bool,
    /// Odds of the choice to report, if asked for.
    pub(super) odds: Option<Odds<'c>>,
}

impl ChoiceScratch {
    /// Scratch for vocabularies of up to `vocab_size` tokens.
    pub(super) fn new(vocab_size: usize) -> ChoiceScratch {
        ChoiceScratch { sampler: Sampler::new(vocab_size), logits: Vec::new() }
    }
}

impl Chooser {
    /// The chooser for `job` after `prompt`, with an answer of up to `n_max` tokens of a vocabulary of
    /// `vocab_size`.
    pub(super) fn new(
        (job, prompt): (&mut Job, &[u32]),
        (n_max, vocab_size): (usize, usize),
        scratch: &mut ChoiceScratch,
    ) -> Chooser {
        let rules = std::mem::take(&mut job.rules);
        let n_counted = if rules.counts() { n_max.min(vocab_size) } else { 0 };
        let n_likeliest = job.n_likeliest.map(|n| n.min(vocab_size));
        if n_likeliest.is_some() {
            scratch.logits.clear();
            scratch.logits.reserve_exact(vocab_size);
        }
        let recent =
            rules.repeat.map(|repeat| Recent::new(prompt, repeat.last_n, (n_max, vocab_size)));
        Chooser {
            sampling: job.sampling,
            rules,
            recent,
            filter: job.filter.take(),
            n_likeliest,
            counts: Vec::with_capacity(n_counted),
            likeliest: Vec::with_capacity(n_likeliest.map_or(0, |n| n + 1)),
        }
    }

    /// Chooses the token of position `pos`. Changes `logits`.
    pub(super) fn choose(
        &mut self,
        pos: usize,
        logits: &mut [f32],
        scratch: &mut ChoiceScratch,
    ) -> Result<Chosen<'_>, JobError> {
        if self.n_likeliest.is_some() {
            scratch.logits.clear();
            scratch.logits.extend_from_slice(logits);
        }
        let recent = self.recent.as_ref().map_or(&[][..], Recent::counts);
        self.rules.apply(recent, &self.counts, logits);
        if let Some(filter) = &mut self.filter {
            filter.restrict(logits).map_err(JobError::Filter)?;
        }
        let id = scratch.sampler.sample(&self.sampling, pos, logits).ok_or(JobError::NotANumber)?;
        self.count(id);
        let is_complete = match &mut self.filter {
            Some(filter) => filter.take(id).map_err(JobError::Filter)?,
            None => false,
        };
        let odds = self.n_likeliest.map(|n| {
            let sum = log_sum_exp(&scratch.logits);
            self.find_likeliest(n, &scratch.logits, sum);
            let logprob = (f64::from(scratch.logits[id as usize]) - sum) as f32;
            Odds { logprob, likeliest: &self.likeliest }
        });
        Ok(Chosen { id, is_complete, odds })
    }

    fn count(&mut self, id: u32) {
        if let Some(recent) = &mut self.recent {
            recent.push(id);
        }
        if self.rules.counts() {
            match self.counts.iter_mut().find(|(counted, _)| *counted == id) {
                Some((_, n)) => *n += 1,
                None => self.counts.push((id, 1)),
            }
        }
    }

    /// Finds the `n` most likely ids; at equal logits the lowest id comes first.
    fn find_likeliest(&mut self, n: usize, logits: &[f32], sum: f64) {
        self.likeliest.clear();
        for (id, &logit) in (0..).zip(logits) {
            let is_full = self.likeliest.len() == n;
            if logit.is_nan() || (is_full && self.likeliest.last().is_none_or(|l| l.1 >= logit)) {
                continue;
            }
            let at = self.likeliest.partition_point(|likelier| likelier.1 >= logit);
            self.likeliest.insert(at, (id, logit));
            self.likeliest.truncate(n);
        }
        for (_, logit) in &mut self.likeliest {
            *logit = (f64::from(*logit) - sum) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::RepeatPenalty;
    use super::*;

    fn chooser(job: Job) -> (Chooser, ChoiceScratch) {
        let mut scratch = ChoiceScratch::new(4);
        let prompt = job.prompt.clone();
        (Chooser::new((&mut { job }, &prompt), (8, 4), &mut scratch), scratch)
    }

    #[test]
    fn penalties_and_bias_change_what_is_chosen_and_not_what_is_told() {
        let rules = LogitRules {
            bias: vec![(0, 1.0)],
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            ..LogitRules::default()
        };
        let (mut chooser, mut scratch) =
            chooser(Job { rules, n_likeliest: Some(2), ..Job::new(vec![1]) });
        let mut ids = Vec::new();
        for pos in 0..5 {
            let mut logits = [1.0, 1.5, f32::NAN, 0.0];
            let chosen = chooser.choose(pos, &mut logits, &mut scratch).unwrap();
            let Odds { logprob, likeliest } = chosen.odds.unwrap();
            assert_eq!((likeliest[0].0, likeliest[1].0, likeliest.len()), (1, 0, 2));
            assert_eq!(likeliest[usize::from(chosen.id == 0)].1, logprob);
            ids.push(chosen.id);
        }
        // Logits of ids 0 and 1: 2.0 and 1.5, then 1.25 and 1.5, 1.25 and 0.75, 0.75 and 0.75, 0.25 and 0.75.
        assert_eq!(ids, [0, 1, 0, 0, 1]);
    }

    #[test]
    fn what_the_latest_text_says_is_less_likely() {
        let repeat = Some(RepeatPenalty { penalty: 2.0, last_n: 2 });
        let rules = LogitRules { repeat, ..LogitRules::default() };
        let (mut chooser, mut scratch) = chooser(Job { rules, ..Job::new(vec![1, 3, 0]) });
        let mut chosen = Vec::new();
        let mut seen = Vec::new();
        for pos in 3..7 {
            let mut logits = [1.0, 1.5, 0.75, -0.5];
            chosen.push(chooser.choose(pos, &mut logits, &mut scratch).unwrap().id);
            seen.push(logits);
        }
        // The prompt's 1 is too long ago. A logit below zero is multiplied by the penalty.
        assert_eq!(seen[0], [0.5, 1.5, 0.75, -1.0]);
        assert_eq!(seen[1], [0.5, 0.75, 0.75, -0.5]);
        assert_eq!(seen[2], [1.0, 0.75, 0.75, -0.5]);
        assert_eq!(chosen, [1, 1, 0, 1]);
    }

    /// Allows only even ids; complete after three.
    #[derive(Clone, Debug)]
    struct Even(usize);

    impl TokenFilter for Even {
        fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
            logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
            Ok(())
        }

        fn take(&mut self, id: u32) -> Result<bool, String> {
            self.0 += 1;
            if id.is_multiple_of(2) { Ok(self.0 == 3) } else { Err(format!("{id} is odd")) }
        }

        fn another(&self) -> Box<dyn TokenFilter> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn a_filter_decides_what_may_come_and_when_that_is_all() {
        let filter: Option<Box<dyn TokenFilter>> = Some(Box::new(Even(0)));
        let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let job = Job { filter, sampling, ..Job::new(vec![1]) };
        for job in [job.clone(), job] {
            let (mut chooser, mut scratch) = chooser(job);
            for pos in 0..3 {
                let mut logits = [0.0, 9.0, 0.5, 9.0];
                let chosen = chooser.choose(pos, &mut logits, &mut scratch).unwrap();
                assert!(chosen.id % 2 == 0 && chosen.is_complete == (pos == 2));
            }
        }
    }
}
