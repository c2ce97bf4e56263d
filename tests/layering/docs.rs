//! Checks that each comment can be read alone, without the one above it.

use super::{File, source::Line};

/// Beginnings of comments that depend on the comment above, or are half a sentence.
const BEGINNINGS: &[&str] = &["The same", "As", "What", "Who", "Whoever", "That", "Nobody"];

/// The paragraphs of comments in `files` with such a beginning, one line each.
pub(crate) fn leaning<'f>(files: impl Iterator<Item = &'f File>) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let mut is_inside = false;
        for (number, line) in file.lines.iter().enumerate() {
            let words = words(line);
            if let (false, Some(beginning)) = (is_inside, words.and_then(beginning)) {
                let what = format!("a comment that begins with `{beginning}` cannot be read alone");
                file.tell(&mut found, number, &what);
            }
            is_inside = words.is_some_and(|words| !words.is_empty());
        }
    }
    found
}

/// The text of a line that is only a comment.
fn words(line: &Line) -> Option<&str> {
    let is_alone = line.code.trim().is_empty() && !line.comment.is_empty();
    is_alone.then(|| line.comment.trim_start_matches(['/', '!']).trim())
}

/// The one of [`BEGINNINGS`] that `words` begin with, as whole words.
fn beginning(words: &str) -> Option<&'static str> {
    let is_whole = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
    BEGINNINGS.iter().copied().find(|b| words.strip_prefix(b).is_some_and(is_whole))
}

#[test]
fn a_comment_that_leans_on_the_one_above_is_found() {
    let found = |text: &str| leaning([File::new("src/a.rs", text)].iter());
    for text in [
        "/// The same.\nfn f() {}",
        "//! The same of rows.",
        "/// As [`g`].\nfn f() {}",
        "fn f() {\n    // As many as there are.\n}",
        "/// Adds.\n///\n/// # Panics\n///\n/// As [`g`].\nfn f() {}",
        "/// Adds.\nfn f() {}\n/// The same, of rows.\nfn g() {}",
    ] {
        assert_eq!(found(text).len(), 1, "{text}");
    }
    for text in [
        "/// Adds two rows.\nfn f() {}",
        "/// Gives\n/// The same text goes on.\nfn f() {}",
        "/// Assumes nothing.\nfn f() {}",
        "const A: &str = \"/// The same\";",
        "/// Theirs is the same.\nfn f() {}",
    ] {
        assert_eq!(found(text), [""; 0], "{text}");
    }
}
