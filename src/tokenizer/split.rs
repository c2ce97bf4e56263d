//! Cuts text into the pieces that byte-level merging stays inside.
//!
//! Gives the matches of each splitter's pattern, whose alternatives are tried in order at each
//! place. Llama 3 (Qwen 2 has `\p{N}` for `\p{N}{1,3}`; Qwen 3.5 too, and `[\p{L}\p{M}]+` for the word's
//! `\p{L}+`, and no `\p{M}` among the symbols after the optional space):
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//!  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! GPT-2 with digits, which are single and end the text for `(?!\S)` (radford2019language, encoder):
//!
//! ```text
//! \p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+
//! ```
//!
//! o200k, with `U` for `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, `L` for `[\p{Ll}\p{Lm}\p{Lo}\p{M}]` and `C`
//! for the contractions of Llama 3 (Tekken has no `C?`, and `\p{N}` for `\p{N}{1,3}`):
//!
//! ```text
//! [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}|
//!  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! The splitter of GGUF files that name none has four patterns, each of which cuts the pieces that the one before left;
//! the text between its matches is a piece, too. Contractions never match, because their mark is punctuation:
//!
//! ```text
//! [\p{P}$+<=>^~|]+
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)
//! \p{N}+
//! [0-9][0-9][0-9]
//! ```
//!
//! Every character belongs to one of the classes, so the pieces cover the text. Each character is examined at most a
//! fixed number of times, so the time is linear.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use crate::format::tokenizer::Splitter;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// `\p{Lu}` and `\p{Lt}`.
    Upper,
    /// `\p{Ll}`.
    Lower,
    /// `\p{Lm}` and `\p{Lo}`: without case.
    Letter,
    /// `\p{M}`.
    Mark,
    Number,
    /// `\r` and `\n`.
    Newline,
    /// White space but for newlines.
    Space,
    Other,
}

impl Class {
    fn is_letter(self) -> bool {
        matches!(self, Class::Upper | Class::Lower | Class::Letter)
    }

    /// `[\p{L}\p{M}]`
    fn is_letter_or_mark(self) -> bool {
        self.is_letter() || self == Class::Mark
    }

    /// `[^\s\p{L}\p{N}]`
    fn is_symbol(self) -> bool {
        matches!(self, Class::Other | Class::Mark)
    }

    fn is_space(self) -> bool {
        matches!(self, Class::Space | Class::Newline)
    }

    /// `[^\r\n\p{L}\p{N}]`
    fn may_lead(self) -> bool {
        self.is_symbol() || self == Class::Space
    }
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' => Class::Lower,
        'A'..='Z' => Class::Upper,
        '0'..='9' => Class::Number,
        '\r' | '\n' => Class::Newline,
        _ if c.is_whitespace() => Class::Space,
        _ if c.is_ascii() => Class::Other,
        _ => match c.general_category() {
            GeneralCategory::UppercaseLetter | GeneralCategory::TitlecaseLetter => Class::Upper,
            GeneralCategory::LowercaseLetter => Class::Lower,
            GeneralCategory::ModifierLetter | GeneralCategory::OtherLetter => Class::Letter,
            GeneralCategory::NonspacingMark
            | GeneralCategory::SpacingMark
            | GeneralCategory::EnclosingMark => Class::Mark,
            GeneralCategory::DecimalNumber
            | GeneralCategory::LetterNumber
            | GeneralCategory::OtherNumber => Class::Number,
            _ => Class::Other,
        },
    }
}

/// Length of the piece at the start of a text; the first argument is the text's first character.
type PieceLen = fn(char, &str) -> usize;

/// The pieces of `text`, in order and without gaps.
pub(super) fn pieces(splitter: Splitter, text: &str) -> impl Iterator<Item = &str> {
    let piece_len: PieceLen = match splitter {
        Splitter::Llama3 => |first, text| llama3_len(first, text, 3, Class::is_letter),
        Splitter::Qwen2 => |first, text| llama3_len(first, text, 1, Class::is_letter),
        Splitter::Qwen35 => |first, text| llama3_len(first, text, 1, Class::is_letter_or_mark),
        Splitter::Gpt2Digits => gpt2_len,
        Splitter::O200k => |first, text| o200k_len(first, text, 3, true),
        Splitter::Tekken => |first, text| o200k_len(first, text, 1, false),
        Splitter::GgufDefault => gguf_default_len,
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (piece, after) = rest.split_at(piece_len(first, rest));
        rest = after;
        Some(piece)
    })
}

/// `is_letter` says which characters words are made of; no symbol is one of them.
fn llama3_len(first: char, text: &str, n_digits: usize, is_letter: fn(Class) -> bool) -> usize {
    if let Some(len) = contraction_len(text, true) {
        return len;
    }
    let after_first = &text[first.len_utf8()..];
    match class(first) {
        first if is_letter(first) => run_len(text, is_letter),
        lead if lead.may_lead() && starts_with(after_first, is_letter) => {
            first.len_utf8() + run_len(after_first, is_letter)
        }
        Class::Number => digits_len(text, n_digits),
        _ => {
            let is_symbol = |c: Class| c.is_symbol() && !is_letter(c);
            symbols_len(text, is_symbol, &['\r', '\n']).unwrap_or_else(|| space_len(text))
        }
    }
}

fn gpt2_len(first: char, text: &str) -> usize {
    if let Some(len) = contraction_len(text, false) {
        return len;
    }
    let after_space = text.strip_prefix(' ').unwrap_or(text);
    let space = text.len() - after_space.len();
    match class(first) {
        Class::Number => first.len_utf8(),
        _ if starts_with(after_space, Class::is_letter) => {
            space + run_len(after_space, Class::is_letter)
        }
        _ if starts_with(after_space, Class::is_symbol) => {
            space + run_len(after_space, Class::is_symbol)
        }
        _ => {
            let run = run_len(text, Class::is_space);
            let is_end = starts_with(&text[run..], |c| c == Class::Number);
            if is_end { run } else { without_last(&text[..run], text) }
        }
    }
}

fn o200k_len(first: char, text: &str, n_digits: usize, has_contractions: bool) -> usize {
    let lead = if class(first).may_lead() { first.len_utf8() } else { 0 };
    // With a lead if possible, then without: a mark may be either.
    let small = |from: usize| small_word_len(&text[from..]).map(|len| from + len);
    let word = small(lead).or_else(|| small(0)).or_else(|| {
        let capitals = |from: usize| from + run_len(&text[from..], is_capital);
        [lead, 0]
            .into_iter()
            .map(|from| (from, capitals(from)))
            .find(|(from, to)| to > from)
            .map(|(_, to)| to)
    });
    if let Some(len) = word {
        let contraction = || contraction_len(&text[len..], true).unwrap_or(0);
        return len + if has_contractions { contraction() } else { 0 };
    }
    match class(first) {
        Class::Number => digits_len(text, n_digits),
        _ => symbols_len(text, Class::is_symbol, &['\r', '\n', '/'])
            .unwrap_or_else(|| space_len(text)),
    }
}

fn gguf_default_len(first: char, text: &str) -> usize {
    if is_punctuation(first) {
        return text.find(|c| !is_punctuation(c)).unwrap_or(text.len());
    }
    // Pieces end before punctuation.
    let is_symbol = |c: char| class(c).is_symbol() && !is_punctuation(c);
    let after_space = text.strip_prefix(' ').unwrap_or(text);
    let space = text.len() - after_space.len();
    match after_space.chars().next() {
        Some(c) if class(c).is_letter() => space + run_len(after_space, Class::is_letter),
        // The third pattern cuts the space off that the second took.
        Some(c) if class(c) == Class::Number && space > 0 => space,
        Some(c) if class(c) == Class::Number => by_threes_len(text),
        Some(c) if is_symbol(c) => {
            space + after_space.find(|c| !is_symbol(c)).unwrap_or(after_space.len())
        }
        _ => {
            let run = run_len(text, Class::is_space);
            let ends = text[run..].chars().next().is_some_and(is_punctuation);
            if ends { run } else { without_last(&text[..run], text) }
        }
    }
}

/// `[\p{P}$+<=>^~|]`
fn is_punctuation(c: char) -> bool {
    match c {
        '`' => false,
        c if c.is_ascii() => c.is_ascii_punctuation(),
        c => matches!(
            c.general_category(),
            GeneralCategory::ConnectorPunctuation
                | GeneralCategory::DashPunctuation
                | GeneralCategory::OpenPunctuation
                | GeneralCategory::ClosePunctuation
                | GeneralCategory::InitialPunctuation
                | GeneralCategory::FinalPunctuation
                | GeneralCategory::OtherPunctuation
        ),
    }
}

/// `[0-9][0-9][0-9]`, or the part of `\p{N}+` before that.
fn by_threes_len(text: &str) -> usize {
    let mut n_digits = 0;
    for (at, c) in text.char_indices() {
        if class(c) != Class::Number {
            return at;
        }
        n_digits = if c.is_ascii_digit() { n_digits + 1 } else { 0 };
        if n_digits == 3 {
            return if at == 2 { 3 } else { at - 2 };
        }
    }
    text.len()
}

/// `U`
fn is_capital(c: Class) -> bool {
    matches!(c, Class::Upper | Class::Letter | Class::Mark)
}

/// `L`
fn is_small(c: Class) -> bool {
    matches!(c, Class::Lower | Class::Letter | Class::Mark)
}

/// `U*L+`: what begins like capitals goes on with small letters, or is given back up to the last
/// character that may be either.
fn small_word_len(text: &str) -> Option<usize> {
    let capitals = run_len(text, is_capital);
    match run_len(&text[capitals..], is_small) {
        0 => {
            let (at, last) = text[..capitals].char_indices().rfind(|&(_, c)| is_small(class(c)))?;
            Some(at + last.len_utf8())
        }
        small => Some(capitals + small),
    }
}

fn starts_with(text: &str, wanted: impl Fn(Class) -> bool) -> bool {
    text.chars().next().is_some_and(|c| wanted(class(c)))
}

fn run_len(text: &str, wanted: impl Fn(Class) -> bool) -> usize {
    text.find(|c| !wanted(class(c))).unwrap_or(text.len())
}

/// `\p{N}{1,max}`
fn digits_len(text: &str, max: usize) -> usize {
    let digits = text.chars().take(max).take_while(|&c| class(c) == Class::Number);
    digits.map(char::len_utf8).sum()
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, in any case with `folds`: the long s folds to s.
fn contraction_len(text: &str, folds: bool) -> Option<usize> {
    let fold = |c: char| if folds { c.to_ascii_lowercase() } else { c };
    let mut chars = text.strip_prefix('\'')?.chars();
    let first = chars.next()?;
    match fold(first) {
        's' | 't' | 'm' | 'd' => Some(2),
        'ſ' if folds => Some(1 + first.len_utf8()),
        'r' | 'v' if fold(chars.next()?) == 'e' => Some(3),
        'l' if fold(chars.next()?) == 'l' => Some(3),
        _ => None,
    }
}

/// An optional space, symbols, and what follows of `tail`.
fn symbols_len(text: &str, is_symbol: impl Fn(Class) -> bool, tail: &[char]) -> Option<usize> {
    let after_space = text.strip_prefix(' ').unwrap_or(text);
    let symbols = run_len(after_space, is_symbol);
    if symbols == 0 {
        return None;
    }
    let rest = after_space[symbols..].trim_start_matches(tail);
    Some(text.len() - rest.len())
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last newline of the run, else as [`without_last`] says.
fn space_len(text: &str) -> usize {
    let run = &text[..run_len(text, Class::is_space)];
    match run.rfind(['\r', '\n']) {
        Some(newline) => newline + 1,
        None => without_last(run, text),
    }
}

/// `\s+(?!\S)|\s+`, where `run` is the white space that `text` starts with: all but its last
/// character, which goes with what follows; else all.
fn without_last(run: &str, text: &str) -> usize {
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    if run.len() == text.len() || run.len() == last { run.len() } else { run.len() - last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_with(splitter: Splitter, wanted: &[&str]) {
        assert_eq!(pieces(splitter, &wanted.concat()).collect::<Vec<_>>(), wanted);
    }

    fn check(wanted: &[&str]) {
        check_with(Splitter::Llama3, wanted);
    }

    #[test]
    fn qwen2_takes_numbers_digit_by_digit() {
        check_with(Splitter::Qwen2, &["1", "2", "½", " ", "3", "'LL", " a", "-b", " ?!\n\n", "x"]);
    }

    #[test]
    fn qwen35_takes_marks_for_letters() {
        let check = |wanted: &[&str]| check_with(Splitter::Qwen35, wanted);
        check(&["e\u{301}a", " नमस्ते", "1", "2", "'LL", " \u{301}\u{301}", "3"]);
        check(&["!\u{301}", "!!", " ?\r\n", "\u{301}a", "\n", "\u{301}", " \n", " "]);
        check_with(Splitter::Qwen2, &["e", "\u{301}a", " \u{301}\u{301}", "3"]);
    }

    #[test]
    fn tekken_is_o200k_without_contractions_and_with_single_digits() {
        let check = |wanted: &[&str]| check_with(Splitter::Tekken, wanted);
        check(&["Camel", "Case", " don", "'t", " IT", "'S", "1", "2", " ://\n/", "a"]);
        check(&["e\u{301}a", "AB", " ", " x", "  "]);
    }

    #[test]
    fn gpt2_sees_the_end_of_the_text_before_digits() {
        let check = |wanted: &[&str]| check_with(Splitter::Gpt2Digits, wanted);
        check(&["a", "  ", "1", "2", " ", "3", "  ", " b", "²", "\u{2167}"]);
        check(&[
            "I", "'m", " I", "'", "M", "\t", "\t", "x", "\n\n", "\n", "y", " !?", "\n", "'re", "z",
        ]);
        check(&["(", "a", ")\u{301}", " é", "\u{a0}", "é", " \n "]);
    }

    #[test]
    fn the_default_of_gguf_files_cuts_at_punctuation_and_takes_digits_by_threes() {
        let check = |wanted: &[&str]| check_with(Splitter::GgufDefault, wanted);
        check(&["I", "'", "m", " here", ",", " don", "'", "t", "."]);
        // White space goes with what follows, except before punctuation.
        check(&["a", " ", "(", "b", ")", "  ", "!?", "\n", " c", "  "]);
        check(&["a", "\n\n\n", " d", "\t", "\t", "e", " \n ", "$<=>^~|+", "f"]);
        check(&["x", " ", "123", "456", "7", " ", " ", "12", "\n", "3"]);
        check(&["12½", "345", "6²", "y", " ", "½"]);
        // A backtick is no punctuation, nor are currencies and marks.
        check(&["a", "`", "b", " `€", "c", "\u{301}", "«", "d", "»…", " 日本", "、"]);
    }

    #[test]
    fn o200k_cuts_words_where_capitals_begin() {
        let check = |wanted: &[&str]| check_with(Splitter::O200k, wanted);
        check(&["Camel", "Case", "XMLHttp", "Request", " i", "Phone's", " IT'S", " ǅa", "ABC"]);
        check(&["日本語ABC日本abcª", "B"]);
        check(&["e\u{301}a", "!\u{301}b\u{301}", "AB", " \u{301}", "AB"]);
        check(&["123", "4", " ://\n/\r", "a", "\n", "/b", "\tC've", "'", "9"]);
        check(&["don't", "'tis", " '", "S", " \n\n", " ", " x", "  "]);
    }

    #[test]
    fn contractions_stand_alone_in_any_case() {
        check(&["I", "'m", " don", "'t", " WE", "'LL", " they", "'Re"]);
        check(&["x", "'ſ", "x"]);
        check(&["'rx", " '", "r"]);
        check(&["'l", " '", "l"]);
    }

    #[test]
    fn one_character_before_letters_joins_them() {
        check(&["a", "-b", "\tc", "\u{a0}d", "\n", "e"]);
        check(&["\u{301}combining", " é"]);
    }

    #[test]
    fn numbers_go_by_threes() {
        check(&["123", "456", "7", " ", "12½", "²", "x"]);
    }

    #[test]
    fn symbols_take_a_space_before_and_newlines_after() {
        check(&[" !!\r\n\n", " ", " ?", "\t", "!"]);
    }

    #[test]
    fn white_space_leaves_its_last_character_to_the_next_word() {
        check(&["word", "   ", " end"]);
        check(&["a", " \n\t\n", " ", " b", "  "]);
        check(&["1", " ", "2", "  ", " ", "3"]);
        check(&["\u{2003}", "\u{3000}", "1"]);
    }

    #[test]
    fn nothing_gives_no_pieces() {
        check(&[]);
    }
}
