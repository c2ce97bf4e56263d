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

/// Kinds of files by their first bytes.
const KINDS: [(&[u8], &str); 25] = [
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "a zip archive"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"BZh", "compressed by bzip2"),
    (b"\xfd7zXZ\0", "compressed by xz"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ", "a program for Windows"),
    (b"#!", "a script"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"SQLite format 3", "a database of SQLite"),
    (b"tjgg", "a GGML file, older than GGUF"),
    (b"fmgg", "a GGML file, older than GGUF"),
    (b"lmgg", "a GGML file, older than GGUF"),
    (b"GGUF", "a GGUF file"),
    (b"\x80\x02", "a pickle of Python, as PyTorch writes"),
    (b"<?xml", "an XML file"),
    (b"LEAW", "packed weights of LEAP"),
];

/// Kind of a file that begins with `bytes` and is none of LEAP's, in words after `it is`; `None` if it is unknown.
pub(crate) fn foreign_kind(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return Some("empty");
    }
    if let Some((_, kind)) = KINDS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return Some(kind);
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return Some("a tar archive");
    }
    if bytes.get(4..8) == Some(b"TFL3") {
        return Some("a model of TensorFlow Lite");
    }
    if matches!(bytes, [_, _, _, _, _, 0, 0, 0, b'{', ..]) {
        return Some("a safetensors file without the config.json of its folder");
    }
    let start = &bytes[..bytes.len().min(512)];
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    match start.first() {
        Some(b'{') if start.iter().all(is_text) => Some("a JSON file"),
        _ if start.iter().all(is_text) => Some("a text"),
        _ if start.iter().all(|byte| *byte == 0) => {
            Some("full of zeros: a download that broke off")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_programs_are_named() {
        for (bytes, kind) in [
            (&b"\x7fELF\x02\x01"[..], "a program (ELF)"),
            (b"\x1f\x8b\x08\0", "compressed by gzip"),
            (b"PK\x03\x04", "a zip archive"),
            (
                b"\x30\0\0\0\0\0\0\0{\"a\"",
                "a safetensors file without the config.json of its folder",
            ),
            (b"", "empty"),
            (b"{\"version\": 1}", "a JSON file"),
            (b"once upon a time", "a text"),
            (&[0; 600], "full of zeros: a download that broke off"),
        ] {
            assert_eq!(foreign_kind(bytes), Some(kind), "{bytes:?}");
        }
        assert_eq!(foreign_kind(b"\x01\x02\x03"), None);
    }

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
