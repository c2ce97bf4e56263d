//! Separates thoughts and tool calls from an answer while it comes.

use super::jobs::{Answered, TokenOdds};
use super::tools::{CallFilter, CallPiece};
use crate::engine::{Outcome, StopReason};
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
    pub(super) calls: Calls,
}

/// Where the calls of an answer are.
#[derive(Clone, Default)]
pub(super) enum Calls {
    /// There are none.
    #[default]
    None,
    InText(CallFilter),
    /// In messages to functions, the last of which has begun or not.
    InMessages(bool),
}

impl Calls {
    /// Takes a stretch of a message to a function, or of something else.
    fn take(&mut self, part: Part, stretch: &str, pieces: &mut Vec<CallPiece>) {
        let Calls::InMessages(is_begun) = self else { return };
        match part {
            Part::Arguments => pieces.push(CallPiece::Arguments(stretch.to_owned())),
            _ => {
                pieces.extend(std::mem::take(is_begun).then_some(CallPiece::End));
                if part == Part::Function {
                    *is_begun = true;
                    pieces.push(CallPiece::Begin(stretch.to_owned()));
                }
            }
        }
    }

    /// Takes a part of an answer's text, which is its last one if `is_over`.
    fn divide(&mut self, text: String, [is_over, is_cut]: [bool; 2], piece: &mut Piece) {
        match self {
            Calls::None => piece.text = text,
            Calls::InText(filter) => {
                filter.push(&text, &mut piece.text, &mut piece.calls);
                if is_over {
                    filter.flush(is_cut, &mut piece.text, &mut piece.calls);
                }
            }
            Calls::InMessages(is_begun) => {
                piece.text = text;
                let ends = is_over && !is_cut && std::mem::take(is_begun);
                piece.calls.extend(ends.then_some(CallPiece::End));
            }
        }
    }
}

impl Divider {
    /// Divides the new part of an answer.
    pub(super) fn divide(&mut self, answer: &mut Answered) -> Piece {
        let mut piece = Piece { tokens: std::mem::take(&mut answer.tokens), ..Piece::default() };
        let end = answer.end.as_ref();
        let is_over = end.is_some();
        // A stop string within a call cuts it.
        let is_cut = |end: &Outcome| end.is_cut() || end.reason == StopReason::StopString;
        let is_cut = end.is_some_and(|end| end.as_ref().map_or(true, is_cut));
        let mut text = String::new();
        let calls = &mut self.calls;
        match &mut self.thoughts {
            Some(filter) => {
                let mut tell = |part, stretch: &str| {
                    calls.take(part, stretch, &mut piece.calls);
                    match part {
                        Part::Answer => text += stretch,
                        Part::Thought => piece.thought += stretch,
                        Part::Tag | Part::Sign | Part::Function | Part::Arguments => {}
                    }
                };
                filter.push(&answer.text, &mut tell);
                if is_over {
                    filter.flush(&mut tell);
                }
            }
            None => text = std::mem::take(&mut answer.text),
        }
        calls.divide(text, [is_over, is_cut], &mut piece);
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
    use crate::tokenizer::{Tags, Thoughts};

    #[test]
    fn thoughts_come_apart_from_the_answer_however_the_text_is_cut() {
        let text = "<think>\nA fox?\n</think>\n\nOnce <b> upon";
        for cut in 0..=text.len() {
            let thoughts = Some(ThoughtFilter::new(Thoughts::Tags(Tags::THINK), false));
            let mut divider = Divider { thoughts, calls: Calls::None };
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
