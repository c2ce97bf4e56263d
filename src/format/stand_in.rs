//! Recognises files that were downloaded instead of the wanted one, and byte order marks.

/// U+FEFF, which some editors write before a text to say that it is UTF-8.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// `bytes` without a byte order mark at their beginning.
pub(crate) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes)
}

/// `text` without a byte order mark at its beginning.
pub(crate) fn text_without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Whether a text that begins with `bytes` is UTF-16, by its byte order mark.
pub(crate) fn is_utf16(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}

/// A message if a file that begins with `bytes` was downloaded instead of the wanted one: its kind, and how
/// to get the wanted file. `None` if the file is neither of these kinds.
pub(crate) fn stand_in(bytes: &[u8]) -> Option<&'static str> {
    let start = without_mark(bytes).trim_ascii_start();
    let starts_with =
        |word: &[u8]| start.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if starts_with(b"version https://git-lfs") || starts_with(b"version https://hawser") {
        return Some(
            "a Git LFS pointer, not the file itself: run `git lfs pull` in its repository, or download the file",
        );
    }
    (starts_with(b"<!doctype html") || starts_with(b"<html")).then_some(
        "a web page, not the file itself: download the file again, by the address of its download button",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_pages_are_told_from_files() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
        assert!(stand_in(pointer.as_bytes()).is_some_and(|what| what.contains("git lfs pull")));
        let page = "\u{feff}\n<!DOCTYPE HTML><html>";
        assert!(stand_in(page.as_bytes()).is_some_and(|what| what.contains("web page")));
        for file in ["", "GGUF", "{\"version\": 1}", "version 2", "<s>", "\u{feff}"] {
            assert_eq!(stand_in(file.as_bytes()), None, "{file}");
        }
    }

    #[test]
    fn one_mark_is_dropped_from_the_beginning_alone() {
        assert_eq!(without_mark("\u{feff}a\u{feff}".as_bytes()), "a\u{feff}".as_bytes());
        assert_eq!(text_without_mark("\u{feff}\u{feff}a"), "\u{feff}a");
        assert_eq!(text_without_mark(" \u{feff}"), " \u{feff}");
    }
}
