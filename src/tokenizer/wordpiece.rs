//! BERT's tokens: words and marks of a normalised text, each cut into the longest pieces that the vocabulary has.
//!
//! The rules are those of the library tokenizers (BertNormalizer, BertPreTokenizer, WordPiece). Only its tables of
//! Unicode are older: for it, 504 characters of rare scripts are neither accents nor punctuation.

use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use super::{Tokenizer, canonical};

/// Longest word in characters; a longer one is unknown.
const WORD_MAX: usize = 100;
/// Beginning of tokens that continue a word.
const CONTINUES: &[u8] = b"##";

impl Tokenizer {
    pub(super) fn encode_words(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalise_words(text);
        for word in text.split_whitespace() {
            let mut rest = word;
            while let Some((at, mark)) = rest.char_indices().find(|(_, c)| is_mark(*c)) {
                self.encode_word(&rest[..at], out);
                let end = at + mark.len_utf8();
                self.encode_word(&rest[at..end], out);
                rest = &rest[end..];
            }
            self.encode_word(rest, out);
        }
    }

    /// Removes control characters, puts spaces around ideographs, and removes accents and capitals if the model wants
    /// that.
    fn normalise_words(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars().filter(|c| !is_removed(*c)) {
            match c {
                c if is_ideograph(c) => clean.extend([' ', c, ' ']),
                c if c.is_whitespace() => clean.push(' '),
                c => clean.push(c),
            }
        }
        if self.flags.strips_accents && !clean.is_ascii() {
            let is_accent = |c: &char| c.general_category() == GeneralCategory::NonspacingMark;
            clean = canonical::nfd(&clean).chars().filter(|c| !is_accent(c)).collect();
        }
        match self.flags.lowercase {
            // Unlike `str::to_lowercase`, this knows no final sigma.
            true => clean.chars().flat_map(char::to_lowercase).collect(),
            false => clean,
        }
    }

    fn encode_word(&self, word: &str, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let before = out.len();
        let is_known = word.chars().count() <= WORD_MAX && self.encode_pieces(word, out);
        if !is_known {
            out.truncate(before);
            out.extend(self.unknown);
        }
    }

    /// Appends the pieces of a word; `false` if some part of it is no token.
    fn encode_pieces(&self, word: &str, out: &mut Vec<u32>) -> bool {
        let mut piece = Vec::with_capacity(CONTINUES.len() + word.len());
        let mut rest = word;
        while !rest.is_empty() {
            piece.clear();
            piece.extend_from_slice(if rest.len() == word.len() { &[] } else { CONTINUES });
            let before = piece.len();
            piece.extend_from_slice(rest.as_bytes());
            let ends = rest.char_indices().rev().map(|(at, c)| at + c.len_utf8());
            let found = ends.into_iter().find_map(|end| {
                let id = self.rules.token(&piece[..before + end])?;
                Some((id, end))
            });
            let Some((id, end)) = found else { return false };
            out.push(id);
            rest = &rest[end..];
        }
        true
    }
}

/// Whether a character is left out of texts.
fn is_removed(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        '\0' | '\u{fffd}' => true,
        c => {
            let category = c.general_category();
            c.general_category_group() == GeneralCategoryGroup::Other
                && category != GeneralCategory::Unassigned
        }
    }
}

/// Whether a character is a word of its own: punctuation, and all visible ASCII that is neither letter nor digit.
fn is_mark(c: char) -> bool {
    c.is_ascii_punctuation() || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

/// Whether a character is a CJK ideograph, in the blocks that BERT knows.
fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF
        | 0x3400..=0x4DBF
        | 0x20000..=0x2A6DF
        | 0x2A700..=0x2B73F
        | 0x2B740..=0x2B81F
        | 0x2B920..=0x2CEAF
        | 0xF900..=0xFAFF
        | 0x2F800..=0x2FA1F)
}
