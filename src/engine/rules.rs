//! A job's rules for the choice of tokens, and its reports of choices.

use std::fmt;

/// Changes to the logits before a token is chosen, in the order of these fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitRules {
    /// Ids, each with what is added to its logit.
    pub bias: Vec<(u32, f32)>,
    /// Penalty on ids of the latest text.
    pub repeat: Option<RepeatPenalty>,
    /// Taken from the logit of every id that has been chosen.
    pub presence_penalty: f32,
    /// Taken from it as often as it has been.
    pub frequency_penalty: f32,
}

impl LogitRules {
    /// Whether it matters how often ids have been chosen.
    pub(super) fn counts(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Changes logits: `recent` holds the latest ids for [`LogitRules::repeat`], `counts` the chosen ids with
    /// their numbers of times.
    pub(super) fn apply(&self, recent: &[(u32, u32)], counts: &[(u32, u32)], logits: &mut [f32]) {
        for &(id, bias) in &self.bias {
            logits[id as usize] += bias;
        }
        if let Some(RepeatPenalty { penalty, .. }) = self.repeat {
            for &(id, _) in recent {
                let logit = &mut logits[id as usize];
                *logit = if *logit <= 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
        for &(id, n) in counts {
            logits[id as usize] -= self.presence_penalty + self.frequency_penalty * n as f32;
        }
    }
}

/// A penalty on ids of the latest text, as llama.cpp defines it: a logit above 0 is divided by it, any other
/// is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepeatPenalty {
    /// 1 changes nothing; above it, ids that were there become less likely.
    pub penalty: f32,
    /// How many ids count, from the last one back; those of the prompt count too.
    pub last_n: usize,
}

/// Which tokens may come next, for a text that has to have some form.
pub trait TokenFilter: fmt::Debug + Send {
    /// Gives tokens that may not come next a logit of negative infinity.
    ///
    /// # Errors
    /// If none may come, or it is too much work to know.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Token `id` was chosen. Returns whether the text is complete.
    ///
    /// # Errors
    /// If it may not come.
    fn take(&mut self, id: u32) -> Result<bool, String>;

    /// A fresh filter of the same rules for another text.
    fn another(&self) -> Box<dyn TokenFilter>;
}

impl Clone for Box<dyn TokenFilter> {
    fn clone(&self) -> Self {
        self.another()
    }
}

/// How likely the model found a token, before rules, filter and temperature.
#[derive(Clone, Copy, Debug)]
pub struct Odds<'c> {
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens and theirs, the likeliest first.
    pub likeliest: &'c [(u32, f32)],
}
