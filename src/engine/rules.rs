//! A job's rules for the choice of tokens, and the report of a choice.

use std::fmt;

/// Changes to the logits before a token is chosen, in the order of these fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitRules {
    /// Ids, each with the value to add to its logit.
    pub bias: Vec<(u32, f32)>,
    /// Penalty on ids of the latest text.
    pub repeat: Option<RepeatPenalty>,
    /// Subtracted from the logit of every id that has been chosen.
    pub presence_penalty: f32,
    /// Subtracted from an id's logit once for each time it was chosen.
    pub frequency_penalty: f32,
}

impl LogitRules {
    /// Whether a rule needs the counts of chosen ids.
    pub(super) fn counts(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Changes logits. `recent` holds the latest ids for [`LogitRules::repeat`]; `counts` holds the chosen
    /// ids with their counts.
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
/// logit is multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepeatPenalty {
    /// 1 changes nothing; above 1, ids of the latest text become less likely.
    pub penalty: f32,
    /// How many ids count, from the last one back, including those of the prompt.
    pub last_n: usize,
}

/// Decides which tokens may come next, for a text with a required form.
pub trait TokenFilter: fmt::Debug + Send {
    /// Gives tokens that may not come next a logit of negative infinity.
    ///
    /// # Errors
    /// If no token may come next, or finding out takes too much work.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Takes the chosen token `id`. Returns whether the text is complete.
    ///
    /// # Errors
    /// If `id` may not come next.
    fn take(&mut self, id: u32) -> Result<bool, String>;

    /// A fresh filter with the same rules, for another text.
    fn another(&self) -> Box<dyn TokenFilter>;
}

impl Clone for Box<dyn TokenFilter> {
    fn clone(&self) -> Self {
        self.another()
    }
}

/// How likely the model considers a token, before rules, filter and temperature.
#[derive(Clone, Copy, Debug)]
pub struct Odds<'c> {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, the most likely first.
    pub likeliest: &'c [(u32, f32)],
}
