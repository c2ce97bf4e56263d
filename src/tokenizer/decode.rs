//! Turns ids back into text while they come.
//!
//! Invalid UTF-8 becomes U+FFFD. How many of these depends on the library that a tokenizer comes from ([`Rule`]).

use super::Tokenizer;
use super::utf8::{ByteRun, Replace, Utf8Stream};
use crate::format::tokenizer::{TokenKind, TokenizerKind, byte_piece};

/// Text of SentencePiece's unknown token.
const UNKNOWN_SURFACE: &str = " \u{2047} ";

/// How a library turns tokens into text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The libraries tokenizers and tiktoken: the bytes of all tokens that are shown belong together.
    ByteLevel,
    /// SentencePiece: neighbouring byte tokens belong together, any other token ends their run.
    SentencePiece,
    /// The library tokenizers with byte fallback, `tokenizer.json`: a run of byte tokens is text only as a whole, and
    /// tokens that are not shown do not end it.
    Fallback,
}

impl Rule {
    fn of(tokenizer: &Tokenizer) -> Rule {
        match tokenizer.kind {
            TokenizerKind::ByteLevel | TokenizerKind::WordPiece => Rule::ByteLevel,
            // Only the library tokenizers looks for user-defined tokens before all else.
            TokenizerKind::SentencePiece if tokenizer.flags.split_at_user_defined => Rule::Fallback,
            TokenizerKind::SentencePiece => Rule::SentencePiece,
        }
    }
}

impl Tokenizer {
    /// The text of `ids`; `show_special` writes the names of control tokens too.
    ///
    /// Ids outside the vocabulary and invalid UTF-8 are treated as [`Decoder`] does.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> String {
        let mut text = String::new();
        let mut decoder = Decoder::new(self, show_special);
        for &id in ids {
            decoder.push(id, &mut text);
        }
        decoder.flush(&mut text);
        text
    }

    /// The bytes of a token inside a text, where they may be a part of a character; `None` if the token has none.
    pub fn text_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let (bytes, kind) = self.token_bytes(id).zip(self.token_kind(id))?;
        match kind {
            TokenKind::Control | TokenKind::Unknown => None,
            TokenKind::Byte => {
                byte_piece(bytes).map_or(Some(bytes.to_vec()), |byte| Some(vec![byte]))
            }
            _ => Some(bytes.to_vec()),
        }
    }
}

/// Turns ids into text, token by token.
///
/// The whole text, after all tokens and [`flush`](Self::flush), does not depend on how the tokens came. The decoder
/// allocates only in the string that it writes to, and for the characters of byte tokens that the next byte could undo.
#[derive(Clone)]
pub struct Decoder<'t> {
    tokenizer: &'t Tokenizer,
    rule: Rule,
    utf8: Utf8Stream,
    /// In place of `utf8` under [`Rule::Fallback`].
    run: ByteRun,
    show_special: bool,
    /// Whether the next space is the one that encoding put before the text.
    at_start: bool,
}

impl<'t> Decoder<'t> {
    /// A decoder at the start of a text: SentencePiece's dummy prefix is taken off.
    ///
    /// `show_special` writes the names of control tokens; otherwise they give no text.
    pub fn new(tokenizer: &'t Tokenizer, show_special: bool) -> Decoder<'t> {
        let (flags, rule) = (tokenizer.flags, Rule::of(tokenizer));
        let replace = if rule == Rule::SentencePiece { Replace::Byte } else { Replace::Sequence };
        let at_start = rule != Rule::ByteLevel && (flags.dummy_prefix || flags.remove_extra_spaces);
        Decoder {
            tokenizer,
            rule,
            utf8: Utf8Stream::new(replace),
            run: ByteRun::default(),
            show_special,
            at_start,
        }
    }

    /// A decoder for tokens that continue a text: every space is kept.
    pub fn continuing(tokenizer: &'t Tokenizer, show_special: bool) -> Decoder<'t> {
        Decoder { at_start: false, ..Decoder::new(tokenizer, show_special) }
    }

    /// Takes a token, and appends to `out` the text that is complete with it.
    ///
    /// An id outside the vocabulary gives no text.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let tokenizer = self.tokenizer;
        let Some((bytes, kind)) = tokenizer.token_bytes(id).zip(tokenizer.token_kind(id)) else {
            return;
        };
        let is_hidden = kind == TokenKind::Control && !self.show_special;
        match self.rule {
            Rule::ByteLevel if is_hidden => {}
            Rule::ByteLevel => self.utf8.push(bytes, out),
            Rule::SentencePiece if is_hidden => self.utf8.flush(out),
            Rule::SentencePiece => self.push_piece(bytes, kind, out),
            Rule::Fallback if is_hidden => {}
            Rule::Fallback if kind == TokenKind::Unknown && !self.show_special => {}
            Rule::Fallback => {
                let from = out.len();
                self.push_fallback(bytes, kind, out);
                self.strip_start(from, out);
            }
        }
    }

    fn push_fallback(&mut self, piece: &[u8], kind: TokenKind, out: &mut String) {
        if kind == TokenKind::Byte
            && let Some(byte) = byte_piece(piece)
        {
            return self.run.push(byte, out);
        }
        self.run.end(out);
        self.utf8.push(piece, out);
        self.utf8.flush(out);
    }

    /// Removes the first space of a text that begins in `out` at `from`.
    fn strip_start(&mut self, from: usize, out: &mut String) {
        if self.at_start && out.len() > from {
            self.at_start = false;
            if out[from..].starts_with(' ') {
                out.remove(from);
            }
        }
    }

    fn push_piece(&mut self, piece: &[u8], kind: TokenKind, out: &mut String) {
        if kind == TokenKind::Byte
            && let Some(byte) = byte_piece(piece)
        {
            self.at_start = false;
            return self.utf8.push(&[byte], out);
        }
        self.utf8.flush(out);
        let mut piece = match kind {
            TokenKind::Unknown => UNKNOWN_SURFACE.as_bytes(),
            _ => piece,
        };
        if self.at_start
            && matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
        {
            let without = piece.strip_prefix(b" ");
            // If extra spaces are removed, all spaces at the start go.
            let goes_on = without.is_some() && self.tokenizer.flags.remove_extra_spaces;
            piece = without.unwrap_or(piece);
            self.at_start = piece.is_empty() && goes_on;
        } else if kind != TokenKind::Control {
            self.at_start = false;
        }
        self.utf8.push(piece, out);
        self.utf8.flush(out);
    }

    /// Ends the text: the incomplete start of a character gives U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        let from = out.len();
        self.utf8.flush(out);
        self.run.end(out);
        self.strip_start(from, out);
    }
}
