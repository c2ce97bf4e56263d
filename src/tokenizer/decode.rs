//! Ids back to text, as they come.

use super::Tokenizer;
use crate::format::tokenizer::{TokenKind, TokenizerKind, byte_piece};

/// What SentencePiece decodes its unknown token to.
const UNKNOWN_SURFACE: &str = " \u{2047} ";

/// How many replacement characters bytes that are no UTF-8 become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replace {
    /// One for the longest start of a character, as `String::from_utf8_lossy` has it.
    Sequence,
    /// One for every byte, as SentencePiece has it.
    Byte,
}

/// Passes on whole characters and holds back the start of one that is not complete.
#[derive(Clone, Debug)]
pub struct Utf8Stream {
    held: [u8; 4],
    n_held: usize,
    replace: Replace,
}

impl Default for Utf8Stream {
    fn default() -> Self {
        Utf8Stream::new(Replace::Sequence)
    }
}

impl Utf8Stream {
    fn new(replace: Replace) -> Utf8Stream {
        Utf8Stream { held: [0; 4], n_held: 0, replace }
    }

    /// Takes bytes, and appends to `out` the text that is complete with them.
    ///
    /// Bytes that cannot become a character give U+FFFD, at once.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        match std::str::from_utf8(bytes) {
            Ok(text) if self.n_held == 0 => out.push_str(text),
            _ => bytes.iter().for_each(|&byte| self.push_byte(byte, out)),
        }
    }

    /// Ends the text: a held-back start of a character gives U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        let n_marks = match self.replace {
            Replace::Sequence => self.n_held.min(1),
            Replace::Byte => self.n_held,
        };
        out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, n_marks));
        self.n_held = 0;
    }

    fn push_byte(&mut self, byte: u8, out: &mut String) {
        self.held[self.n_held] = byte;
        self.n_held += 1;
        while self.n_held > 0 {
            let taken = match std::str::from_utf8(&self.held[..self.n_held]) {
                Ok(text) => {
                    out.push_str(text);
                    self.n_held
                }
                // Four bytes are a character or an error, so there is room for the next byte.
                Err(e) if e.error_len().is_none() && e.valid_up_to() == 0 => return,
                Err(e) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    match self.replace {
                        Replace::Sequence => e.error_len().unwrap_or(1),
                        Replace::Byte => 1,
                    }
                }
            };
            self.held.copy_within(taken..self.n_held, 0);
            self.n_held -= taken;
        }
    }
}

impl Tokenizer {
    /// The text of `ids`; `show_special` writes the names of control tokens too.
    ///
    /// Ids outside the vocabulary and bytes that are no UTF-8 are treated as [`Decoder`] does.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> String {
        let mut text = String::new();
        let mut decoder = Decoder::new(self, show_special);
        for &id in ids {
            decoder.push(id, &mut text);
        }
        decoder.flush(&mut text);
        text
    }

    /// The bytes that a token gives inside a text, where they may be a part of a character; `None` if it
    /// gives none.
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
/// What it has given after all tokens and [`flush`](Self::flush) does not depend on how the
/// tokens came. It allocates nothing but room in the string it writes to.
#[derive(Clone)]
pub struct Decoder<'t> {
    tokenizer: &'t Tokenizer,
    utf8: Utf8Stream,
    show_special: bool,
    /// Whether the next space is the one that encoding put before the text.
    at_start: bool,
}

impl<'t> Decoder<'t> {
    /// A decoder at the start of a text: SentencePiece's dummy prefix is taken off.
    ///
    /// `show_special` writes the names of control tokens; otherwise they give no text.
    pub fn new(tokenizer: &'t Tokenizer, show_special: bool) -> Decoder<'t> {
        let flags = tokenizer.flags;
        let is_sentencepiece = tokenizer.kind == TokenizerKind::SentencePiece;
        let replace = if is_sentencepiece { Replace::Byte } else { Replace::Sequence };
        let at_start = is_sentencepiece && (flags.dummy_prefix || flags.remove_extra_spaces);
        Decoder { tokenizer, utf8: Utf8Stream::new(replace), show_special, at_start }
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
        if kind == TokenKind::Control && !self.show_special {
            // Bytes around a token without text do not belong together.
            return self.utf8.flush(out);
        }
        if tokenizer.kind == TokenizerKind::ByteLevel {
            return self.utf8.push(bytes, out);
        }
        self.push_piece(bytes, kind, out);
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
            // Where extra spaces are removed, all spaces at the start go.
            let goes_on = without.is_some() && self.tokenizer.flags.remove_extra_spaces;
            piece = without.unwrap_or(piece);
            self.at_start = piece.is_empty() && goes_on;
        } else if kind != TokenKind::Control {
            self.at_start = false;
        }
        self.utf8.push(piece, out);
        self.utf8.flush(out);
    }

    /// Ends the text: the start of a character that never was completed gives U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        self.utf8.flush(out);
    }
}
