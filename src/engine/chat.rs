//! A conversation: which turns are in the context, and which are dropped when it is full.

use std::collections::VecDeque;
use std::fmt;

use crate::tokenizer::{
    ChatAnswer, ChatFormat, ChatTurn, Thoughts, Tokenizer, TokenizerError, TurnKind,
};

/// The turns of a conversation, as ids and texts.
pub struct Conversation<'t> {
    tokenizer: &'t Tokenizer,
    format: ChatFormat,
    system: Option<String>,
    turns: VecDeque<Turn>,
}

struct Turn {
    user: String,
    answer: Option<Given>,
}

/// An answer of the model.
enum Given {
    /// Ids of the answer, with the end token.
    Ids(Vec<u32>),
    /// Text of the answer, without thoughts.
    Text(String),
}

impl Turn {
    fn shown(&self) -> ChatTurn<'_> {
        let answer = self.answer.as_ref().map(|given| match given {
            Given::Ids(ids) => ChatAnswer::Ids(ids),
            Given::Text(text) => ChatAnswer::Text(text),
        });
        ChatTurn { user: &self.user, kind: TurnKind::User, answer }
    }
}

/// Why a message cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskError {
    /// The message does not fit even an empty context.
    TooLong {
        /// Tokens of the message with the system prompt.
        tokens: usize,
        /// Tokens that the context has room for.
        max: usize,
    },
    /// The chat template refuses the conversation.
    Template(TokenizerError),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::TooLong { tokens, max } => {
                write!(f, "the message needs {tokens} tokens, the context has room for {max}")
            }
            AskError::Template(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for AskError {}

impl From<TokenizerError> for AskError {
    fn from(error: TokenizerError) -> AskError {
        AskError::Template(error)
    }
}

/// The context for the next answer.
pub struct Context {
    /// All ids of the context.
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

    /// The chat format.
    pub fn format(&self) -> &ChatFormat {
        &self.format
    }

    /// How the model marks its thoughts, if it has any.
    pub fn thoughts(&self) -> Option<Thoughts> {
        self.format.thoughts()
    }

    /// Whether thoughts are seen only in a text that names its special tokens.
    pub fn names_special(&self) -> bool {
        self.format.names_special(self.tokenizer)
    }

    /// Whether an answer begins inside thoughts.
    pub fn begins_thinking(&self) -> bool {
        self.format.begins_thinking(self.system())
    }

    /// Ids that end an answer.
    pub fn stop_ids(&self) -> &[u32] {
        self.format.stop_ids()
    }

    /// Adds the user's turn and returns the context that the answer follows.
    ///
    /// Makes the context leave `reserve` tokens of `ctx_len` free: if it does not, the oldest turns are
    /// dropped until it fills no more than half. The next turns then add to the computed text, while dropping
    /// turns one by one would recompute nearly all of it each time. The system prompt stays.
    ///
    /// # Errors
    /// If the message alone is too long, or the template refuses it. The conversation is then unchanged.
    pub fn ask(&mut self, user: &str, ctx_len: usize, reserve: usize) -> Result<Context, AskError> {
        self.turns.push_back(Turn { user: user.to_owned(), answer: None });
        let context = self.context(ctx_len, ctx_len.saturating_sub(reserve));
        if context.is_err() {
            self.turns.pop_back();
        }
        context
    }

    /// The context for an answer to the last turn, of at most `max` tokens.
    fn context(&mut self, ctx_len: usize, max: usize) -> Result<Context, AskError> {
        let alone = self.render(self.turns.len() - 1)?.len();
        if alone > max {
            return Err(AskError::TooLong { tokens: alone, max });
        }
        let mut ids = self.render(0)?;
        if ids.len() <= max {
            return Ok(Context { ids, dropped: 0 });
        }
        let (mut dropped, half) = (0, ctx_len / 2);
        while ids.len() > half.min(max) && self.turns.len() > 1 {
            self.turns.pop_front();
            dropped += 1;
            ids = self.render(0)?;
        }
        Ok(Context { ids, dropped })
    }

    /// Adds the answer to the last [`Conversation::ask`]: its ids, with or without its end token, and its
    /// text without thoughts. The text stays in the context for a model with thoughts, or with a template of its own.
    pub fn answer(&mut self, ids: &[u32], text: &str) {
        let given = if self.format.keeps_text() {
            Given::Text(text.to_owned())
        } else {
            let mut ids = ids.to_vec();
            if ids.last().is_none_or(|id| !self.format.stop_ids().contains(id)) {
                ids.extend(self.format.end_of_answer());
            }
            Given::Ids(ids)
        };
        if let Some(turn) = self.turns.back_mut() {
            turn.answer = Some(given);
        }
    }

    /// The instructions for the whole conversation.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Changes the instructions, for earlier turns too.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Forgets every turn.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The ids of the turns from `first` on.
    fn render(&self, first: usize) -> Result<Vec<u32>, TokenizerError> {
        let turns: Vec<ChatTurn<'_>> = self.turns.iter().skip(first).map(Turn::shown).collect();
        let mut ids = Vec::new();
        self.format.write(self.tokenizer, self.system.as_deref(), &turns, &mut ids)?;
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ChatTemplate, Date};
    use crate::tokenizer::ChatOptions;

    const CTX_LEN: usize = 400;
    const RESERVE: usize = 100;

    fn tokenizer() -> Tokenizer {
        let bytes = include_bytes!("../../models/demo.tokenizer.bin");
        Tokenizer::from_bytes(bytes, None).unwrap()
    }

    fn conversation<'t>(tokenizer: &'t Tokenizer, system: &str) -> Conversation<'t> {
        let options = ChatOptions::new(Date::new(2026, 3, 9).unwrap());
        let format = ChatFormat::new(ChatTemplate::Llama3, tokenizer, options).unwrap();
        Conversation::new(tokenizer, format, Some(system.to_owned()))
    }

    #[test]
    fn full_context_falls_to_half_and_is_added_to_from_there() {
        let tokenizer = tokenizer();
        let mut conversation = conversation(&tokenizer, "You tell stories.");
        let mut system = Vec::new();
        tokenizer.encode_continuing("You tell stories.", &mut system);
        let (mut before, mut drops) = (Vec::new(), Vec::new());
        for turn in 0..60 {
            let context = conversation.ask(&format!("Go on, {turn}."), CTX_LEN, RESERVE).unwrap();
            assert!(context.ids.windows(system.len()).any(|ids| ids == system));
            match context.dropped {
                0 => assert!(context.ids.starts_with(&before), "turn {turn} is computed anew"),
                _ => {
                    assert!(context.ids.len() <= CTX_LEN / 2, "{} ids", context.ids.len());
                    drops.push(turn);
                }
            }
            conversation.answer(&[7; 20], "");
            before = context.ids;
        }
        assert!(drops.len() > 2);
        assert!(drops.windows(2).all(|turns| turns[1] - turns[0] > 2), "{drops:?}");
    }

    #[test]
    fn last_message_is_kept_even_if_it_needs_more_than_half() {
        let tokenizer = tokenizer();
        let mut conversation = conversation(&tokenizer, "Be brief.");
        conversation.ask("Hi.", CTX_LEN, RESERVE).unwrap();
        conversation.answer(&[7; 150], "");
        let long = "fox ".repeat(230);
        let context = conversation.ask(&long, CTX_LEN, RESERVE).unwrap();
        assert_eq!(context.dropped, 1);
        assert!((CTX_LEN / 2..=CTX_LEN - RESERVE).contains(&context.ids.len()));
    }
}
