//! Unicode's canonical forms, by the tables of unicode-normalization.
//!
//! The iterators of unicode-normalization choose between canonical and compatible forms while they run: a program with
//! them has the tables of the compatible forms, too, 60 KB that no tokenizer here needs.

use unicode_normalization::char::{canonical_combining_class, compose, decompose_canonical};

/// Text with its characters taken apart: NFD.
pub(super) fn nfd(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    take_apart(text, |_, c| out.push(c));
    out
}

/// Text with its characters joined: NFC.
pub(super) fn nfc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // The last starter, and marks behind it that it did not join.
    let mut open: Vec<char> = Vec::new();
    let mut last_class = None;
    take_apart(text, |class, c| {
        let is_next = last_class.is_none_or(|last| last < class);
        let starter = open.first_mut().filter(|_| is_next);
        if let Some(starter) = starter
            && let Some(both) = compose(*starter, c)
        {
            *starter = both;
            return;
        }
        last_class = (class != 0).then_some(class);
        if class == 0 {
            out.extend(open.drain(..));
        }
        open.push(c);
    });
    out.extend(open);
    out
}

/// Hands over the parts of a text's characters, in canonical order and with their combining classes.
fn take_apart(text: &str, mut part: impl FnMut(u8, char)) {
    let mut marks: Vec<(u8, char)> = Vec::new();
    for c in text.chars() {
        decompose_canonical(c, |c| match canonical_combining_class(c) {
            0 => {
                give(&mut marks, &mut part);
                part(0, c);
            }
            class => marks.push((class, c)),
        });
    }
    give(&mut marks, &mut part);
}

/// Hands over marks in order of their classes. Marks of one class keep their order.
fn give(marks: &mut Vec<(u8, char)>, part: &mut impl FnMut(u8, char)) {
    marks.sort_by_key(|(class, _)| *class);
    for (class, c) in marks.drain(..) {
        part(class, c);
    }
}

#[cfg(test)]
mod tests {
    use unicode_normalization::UnicodeNormalization;

    use super::*;

    fn check(text: &str) {
        assert_eq!(nfd(text), text.nfd().collect::<String>(), "{text:?}");
        assert_eq!(nfc(text), text.nfc().collect::<String>(), "{text:?}");
    }

    #[test]
    fn every_character_has_the_forms_of_unicode() {
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            check(&text);
            check(&nfd(&text));
        }
    }

    #[test]
    fn marks_are_sorted_and_join_what_they_can_reach() {
        // Starters, marks of several classes, parts of Korean syllables, and characters that are never joined again.
        let chars: Vec<char> =
            "ae\u{1112}\u{1161}\u{11ab}\u{301}\u{323}\u{308}\u{327}\u{344}\u{345}é\u{958}\u{93c}\u{9c7}\u{9be}\u{fb1d}Å\u{3099}か한"
                .chars()
                .collect();
        let mut state = 7_u64;
        let mut text = String::new();
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match (state >> 33) as usize % (chars.len() + 6) {
                at if at < chars.len() => text.push(chars[at]),
                _ => {
                    check(&text);
                    text.clear();
                }
            }
        }
    }
}
