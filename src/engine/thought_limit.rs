//! Ends thoughts that become too long.

use std::fmt;
use std::sync::Arc;

use super::rules::TokenFilter;
use crate::tokenizer::{ChatFormat, Part, ThoughtFilter, Thoughts, Tokenizer};

/// Ends a model's thoughts after a number of tokens: then only the tokens may come with which the template ends thoughts.
/// The rest of the answer follows another filter, if there is one.
#[derive(Clone)]
pub struct ThoughtLimit {
    tokenizer: Arc<Tokenizer>,
    thoughts: Thoughts,
    begins_thinking: bool,
    /// Most tokens of thoughts.
    limit: usize,
    /// Tokens that end thoughts.
    close: Arc<[u32]>,
    rest: Option<Box<dyn TokenFilter>>,
    progress: Progress,
}

#[derive(Clone, Debug)]
struct Progress {
    divided: ThoughtFilter,
    is_thinking: bool,
    /// Tokens of thoughts so far.
    n: usize,
    /// Which of the closing tokens comes next, while they come.
    next: Option<usize>,
}

impl ThoughtLimit {
    /// A filter at the start of an answer in `chat`, which begins with thoughts if it `begins_thinking`; `None` if the
    /// model has no thoughts. `rest` applies to all other tokens.
    pub fn new(
        (chat, tokenizer): (&ChatFormat, &Arc<Tokenizer>),
        begins_thinking: bool,
        limit: usize,
        rest: Option<Box<dyn TokenFilter>>,
    ) -> Option<ThoughtLimit> {
        let thoughts = chat.thoughts()?;
        let close = chat.closing_ids(tokenizer).into();
        let progress = Progress::new(&thoughts, begins_thinking, limit);
        let tokenizer = Arc::clone(tokenizer);
        Some(ThoughtLimit { tokenizer, thoughts, begins_thinking, limit, close, rest, progress })
    }
}

impl fmt::Debug for ThoughtLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThoughtLimit").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Progress {
    fn new(thoughts: &Thoughts, begins_thinking: bool, limit: usize) -> Progress {
        let divided = ThoughtFilter::new(thoughts.clone(), begins_thinking);
        let next = (begins_thinking && limit == 0).then_some(0);
        Progress { divided, is_thinking: begins_thinking, n: 0, next }
    }

    /// Takes the text of a token.
    fn take(&mut self, text: &str, limit: usize, n_close: usize) {
        self.divided.push(text, &mut |_, _| {});
        self.is_thinking = self.divided.part() == Part::Thought;
        self.n += usize::from(self.is_thinking);
        self.next = match self.next {
            Some(next) => Some(next + 1).filter(|next| *next < n_close),
            None => (self.is_thinking && self.n >= limit && n_close > 0).then_some(0),
        };
    }
}

impl TokenFilter for ThoughtLimit {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let id = self.progress.next.and_then(|next| self.close.get(next));
        match (id, &mut self.rest) {
            (Some(id), _) => {
                logits.fill(f32::NEG_INFINITY);
                let logit = logits.get_mut(*id as usize);
                *logit.ok_or("the model has no token that ends thoughts")? = 0.0;
                Ok(())
            }
            (None, Some(rest)) => rest.restrict(logits),
            (None, None) => Ok(()),
        }
    }

    fn take(&mut self, id: u32) -> Result<bool, String> {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        let bytes = self.tokenizer.text_bytes(id).unwrap_or_else(|| bytes.to_vec());
        self.progress.take(&String::from_utf8_lossy(&bytes), self.limit, self.close.len());
        self.rest.as_mut().map_or(Ok(false), |rest| rest.take(id))
    }

    fn another(&self) -> Box<dyn TokenFilter> {
        let progress = Progress::new(&self.thoughts, self.begins_thinking, self.limit);
        let rest = self.rest.as_ref().map(|rest| rest.another());
        Box::new(ThoughtLimit { progress, rest, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tags;

    /// The numbers of pieces behind which the closing tokens begin.
    fn ends(thoughts: &Thoughts, begins_thinking: bool, pieces: &[&str]) -> Vec<usize> {
        let mut progress = Progress::new(thoughts, begins_thinking, 3);
        let mut found = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            progress.take(piece, 3, 2);
            found.extend((progress.next == Some(0)).then_some(at + 1));
        }
        found
    }

    #[test]
    fn thoughts_end_when_their_tokens_are_used_up_and_answers_do_not() {
        let tags = Thoughts::Tags(Tags::THINK);
        let thought = ["<think>", "a", "b", "c", "</think>", "d", "e", "f", "g"];
        assert_eq!(ends(&tags, false, &thought), [3]);
        assert_eq!(ends(&tags, true, &thought[1..]), [3]);
        assert_eq!(ends(&tags, false, &["a", "b", "c", "d", "e"]), [] as [usize; 0]);
        assert_eq!(ends(&tags, true, &["a", "</think>", "b", "c", "d"]), [] as [usize; 0]);
        let channels = ["<|channel|>", "analysis", "<|message|>", "a", "b", "<|end|>", "<|start|>"];
        assert_eq!(ends(&Thoughts::Channels, false, &channels), [5]);
    }
}
