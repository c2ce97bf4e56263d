//! Separates thoughts and tool calls from an answer while it comes.

use super::jobs::{Answered, TokenOdds};
use super::tools::{CallFilter, CallPiece};
use crate::engine::Outcome;
use crate::tokenizer::{Part, ThoughtFilter};

/// A part of an answer, or a whole one.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    /// The model's thoughts before the answer.
    pub(super) thought: String,
    pub(super) calls: Vec<CallPiece>,
    /// Tokens with log probabilities; empty unless the client asked for them.
    pub(super) tokens: Vec<TokenOdds>,
}

/// Separates thoughts and tool calls from one answer; `None` where the answer can have none.
#[derive(Clone, Default)]
pub(super) struct Divider {
    pub(super) thoughts: Option<ThoughtFilter>,
    pub(super) calls: Option<CallFilter>,
}

impl Divider {
    /// Divides the new part of an answer.
    pub(super) fn divide(&mut self, answer: &mut Answered) -> Piece {
        let mut piece = Piece { tokens: std::mem::take(&mut answer.tokens), ..Piece::default() };
        let end = answer.end.as_ref();
        let is_over = end.is_some();
        let is_cut = end.is_some_and(|end| end.as_ref().map_or(true, Outcome::is_cut));
        let mut text = String::new();
        match &mut self.thoughts {
            Some(filter) => {
                let mut tell = |part, stretch: &str| match part {
                    Part::Answer => text += stretch,
                    Part::Thought if !matches!(stretch, "<think>" | "</think>") => {
                        piece.thought += stretch;
                    }
                    Part::Thought | Part::Sign => {}
                };
                filter.push(&answer.text, &mut tell);
                if is_over {
                    filter.flush(&mut tell);
                }
            }
            None => text = std::mem::take(&mut answer.text),
        }
        match &mut self.calls {
            Some(filter) => {
                filter.push(&text, &mut piece.text, &mut piece.calls);
                if is_over {
                    filter.flush(is_cut, &mut piece.text, &mut piece.calls);
                }
            }
            None => piece.text = text,
        }
        piece
    }
}

impl Piece {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.thought.is_empty()
            && self.calls.is_empty()
            && self.tokens.is_empty()
    }

    /// Appends the next piece.
    pub(super) fn append(&mut self, mut more: Piece) {
        self.text += &more.text;
        self.thought += &more.thought;
        self.calls.append(&mut more.calls);
        self.tokens.append(&mut more.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Thoughts;

    #[test]
    fn thoughts_come_apart_from_the_answer_however_the_text_is_cut() {
        let text = "<think>\nA fox?\n</think>\n\nOnce <b> upon";
        for cut in 0..=text.len() {
            let thoughts = Some(ThoughtFilter::new(Thoughts::Tags, false));
            let mut divider = Divider { thoughts, calls: None };
            let (mut thought, mut answer) = (String::new(), String::new());
            for (part, is_last) in [(&text[..cut], false), (&text[cut..], true)] {
                let end = is_last.then_some(Ok(Outcome::INTERRUPTED));
                let mut news = Answered { text: part.to_owned(), end, ..Answered::default() };
                let divided = divider.divide(&mut news);
                thought += &divided.thought;
                answer += &divided.text;
            }
            assert_eq!((thought.trim(), &*answer), ("A fox?", "Once <b> upon"), "cut at {cut}");
        }
        let mut whole = Answered { text: text.to_owned(), ..Answered::default() };
        assert_eq!(Divider::default().divide(&mut whole).text, text);
    }
}
