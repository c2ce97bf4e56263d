//! A conversation: what of it is in the context, and what has to go when that is full.

use std::collections::VecDeque;
use std::fmt;

use crate::tokenizer::{ChatFormat, Tokenizer};

/// The turns of a conversation, as ids and texts.
pub struct Conversation<'t> {
    tokenizer: &'t Tokenizer,
    format: ChatFormat,
    system: Option<String>,
    turns: VecDeque<Turn>,
}

struct Turn {
    user: String,
    /// The model's answer with its end token; empty until it has been given.
    answer: Vec<u32>,
}

/// A message that does not fit even an empty context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTooLong {
    /// Tokens of the message with the system prompt.
    pub tokens: usize,
    /// Tokens there is room for.
    pub max: usize,
}

impl fmt::Display for MessageTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the message needs {} tokens, the context has room for {}", self.tokens, self.max)
    }
}

impl std::error::Error for MessageTooLong {}

/// The context for the next answer.
pub struct Context {
    /// All its ids.
    pub ids: Vec<u32>,
    /// Turns that were dropped to make room.
    pub dropped: usize,
}

impl<'t> Conversation<'t> {
    /// A conversation without turns.
    pub fn new(
        tokenizer: &'t Tokenizer,
        format: ChatFormat,
        system: Option<String>,
    ) -> Conversation<'t> {
        Conversation { tokenizer, format, system, turns: VecDeque::new() }
    }

    /// Ids that end an answer.
    pub fn stop_ids(&self) -> &[u32] {
        self.format.stop_ids()
    }

    /// Adds the user's turn and returns the context that the answer follows.
    ///
    /// The oldest turns are dropped until `reserve` tokens are free of `ctx_len`.
    ///
    /// # Errors
    /// If the message alone is too long; the conversation is as before then.
    pub fn ask(
        &mut self,
        user: &str,
        ctx_len: usize,
        reserve: usize,
    ) -> Result<Context, MessageTooLong> {
        self.turns.push_back(Turn { user: user.to_owned(), answer: Vec::new() });
        let max = ctx_len.saturating_sub(reserve);
        let alone = self.render(self.turns.len() - 1).len();
        if alone > max {
            self.turns.pop_back();
            return Err(MessageTooLong { tokens: alone, max });
        }
        let mut dropped = 0;
        let mut ids = self.render(0);
        while ids.len() > max {
            self.turns.pop_front();
            dropped += 1;
            ids = self.render(0);
        }
        Ok(Context { ids, dropped })
    }

    /// Adds the answer to the last [`Conversation::ask`], with or without its end token.
    pub fn answer(&mut self, ids: &[u32]) {
        let end = self.format.end_of_answer();
        if let Some(turn) = self.turns.back_mut() {
            turn.answer = ids.to_vec();
            if ids.last().is_none_or(|id| !self.format.stop_ids().contains(id)) {
                turn.answer.extend(end);
            }
        }
    }

    /// Forgets every turn.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The ids of the turns from `first` on.
    fn render(&self, first: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        for (index, turn) in self.turns.iter().skip(first).enumerate() {
            match index {
                0 => {
                    let system = self.system.as_deref();
                    self.format.start(self.tokenizer, system, &turn.user, &mut ids);
                }
                _ => self.format.user(self.tokenizer, &turn.user, &mut ids),
            }
            ids.extend_from_slice(&turn.answer);
        }
        ids
    }
}
