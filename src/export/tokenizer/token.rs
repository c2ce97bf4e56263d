//! Tokens on their way from one vocabulary to another.

use crate::format::tokenizer::TokenKind;

/// Most tokens: ranks up to here are exact as scores, which are `f32`, with room to spare.
pub(super) const VOCAB_MAX: usize = 1 << 20;

/// A token, as it will be stored.
pub(super) struct Token {
    pub(super) bytes: Vec<u8>,
    pub(super) score: f32,
    pub(super) kind: TokenKind,
}

impl Token {
    /// Placeholder of an id without a token.
    pub(super) fn unused() -> Token {
        Token { bytes: Vec::new(), score: 0.0, kind: TokenKind::Unused }
    }
}

/// A token that a converter added to the vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) name: String,
    /// Special tokens are markers; others stand for their text.
    pub(super) is_special: bool,
    /// Whether the token strips white space to its right.
    pub(super) strips_right: bool,
    /// Whether the token strips white space to its left.
    pub(super) strips_left: bool,
    /// Whether the token is found only as a whole word: no word goes on at either side.
    pub(super) is_whole_word: bool,
}

impl AddedToken {
    /// A special token, with this id and name.
    pub(super) fn special(id: u32, name: String) -> AddedToken {
        let (strips_right, strips_left, is_whole_word) = (false, false, false);
        AddedToken { id, name, is_special: true, strips_right, strips_left, is_whole_word }
    }
}
