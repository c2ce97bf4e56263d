//! Text from input files in a form that messages may show.

/// Maximum number of a text's characters in a message.
const EXCERPT_CHARS: usize = 80;

/// `text` with characters escaped, as `\n` or `\u{1b}`, that control a terminal or are invisible.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_printable(c) {
            true => shown.push(c),
            false => shown.extend(c.escape_default()),
        }
    }
    shown
}

/// The first 80 characters of `text`, in [`printable`] form.
pub fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => printable(&text[..end]) + "…",
        None => printable(text),
    }
}

fn is_printable(c: char) -> bool {
    // Direction marks, joiners and separators change how the rest of a line looks.
    let is_format = matches!(u32::from(c),
        0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb);
    !c.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_told_nothing() {
        let text = "a\u{1b}[31m\r\nb\u{9b}0m\u{202e}é\u{7f}\"\\";
        assert_eq!(printable(text), "a\\u{1b}[31m\\r\\nb\\u{9b}0m\\u{202e}é\\u{7f}\"\\");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(excerpt(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(excerpt(&"é".repeat(81)), "é".repeat(80) + "…");
        assert_eq!(excerpt(&"\n".repeat(1 << 20)), "\\n".repeat(80) + "…");
    }
}
