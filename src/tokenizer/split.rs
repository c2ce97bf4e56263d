//! Cuts text into the pieces that byte-level merging stays inside.
//!
//! Gives the matches of the pattern of Llama 3, tried in this order at each place:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//!  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//! ```
//!
//! Every character belongs to one of the classes, so the pieces cover the text. A run of
//! white space is looked at twice at most, hence the time is linear.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    /// `\r` and `\n`.
    Newline,
    /// White space but for newlines.
    Space,
    Other,
}

fn class(c: char) -> Class {
    match c {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Number,
        '\r' | '\n' => Class::Newline,
        _ if c.is_whitespace() => Class::Space,
        _ if c.is_ascii() => Class::Other,
        _ => match c.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            _ => Class::Other,
        },
    }
}

/// The pieces of `text`, in order and without gaps.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (piece, after) = rest.split_at(piece_len(first, rest));
        rest = after;
        Some(piece)
    })
}

/// Bytes of the piece at the start of `text`, which starts with `first`.
fn piece_len(first: char, text: &str) -> usize {
    if first == '\''
        && let Some(len) = contraction_len(text)
    {
        return len;
    }
    let after_first = &text[first.len_utf8()..];
    let second = after_first.chars().next().map(class);
    match class(first) {
        Class::Letter => run_len(text, |c| c == Class::Letter),
        Class::Space | Class::Other if second == Some(Class::Letter) => {
            first.len_utf8() + run_len(after_first, |c| c == Class::Letter)
        }
        Class::Number => text
            .chars()
            .take(3)
            .take_while(|&c| class(c) == Class::Number)
            .map(char::len_utf8)
            .sum(),
        Class::Other => symbols_len(text),
        Class::Space if first == ' ' && second == Some(Class::Other) => {
            1 + symbols_len(after_first)
        }
        Class::Space | Class::Newline => space_len(text),
    }
}

fn run_len(text: &str, wanted: impl Fn(Class) -> bool) -> usize {
    text.find(|c| !wanted(class(c))).unwrap_or(text.len())
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; the long s folds to s.
fn contraction_len(text: &str) -> Option<usize> {
    let mut chars = text.chars().skip(1);
    let first = chars.next()?;
    match first.to_ascii_lowercase() {
        's' | 't' | 'm' | 'd' | 'ſ' => Some(1 + first.len_utf8()),
        'r' | 'v' if chars.next()?.eq_ignore_ascii_case(&'e') => Some(3),
        'l' if chars.next()?.eq_ignore_ascii_case(&'l') => Some(3),
        _ => None,
    }
}

/// `[^\s\p{L}\p{N}]+[\r\n]*`
fn symbols_len(text: &str) -> usize {
    let symbols = run_len(text, |c| c == Class::Other);
    symbols + run_len(&text[symbols..], |c| c == Class::Newline)
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last newline of the run; else the run but for its
/// last character, which goes with what follows; else the run.
fn space_len(text: &str) -> usize {
    let run = &text[..run_len(text, |c| matches!(c, Class::Space | Class::Newline))];
    if let Some(newline) = run.rfind(['\r', '\n']) {
        return newline + 1;
    }
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    if run.len() == text.len() || run.len() == last { run.len() } else { run.len() - last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wanted: &[&str]) {
        assert_eq!(pieces(&wanted.concat()).collect::<Vec<_>>(), wanted);
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
