//! Reads JSON from untrusted files.
//!
//! Two bytes in a file can become a value that takes dozens of times as much memory. So values are counted
//! before any is created.

use serde_json::Value;

use crate::format::{is_utf16, stand_in, without_mark};

/// Parses `bytes` if they hold at most `values_max` values. Skips a byte order mark.
pub(crate) fn parse(bytes: &[u8], values_max: usize) -> Result<Value, String> {
    if let Some(what) = stand_in(bytes) {
        return Err(what.to_owned());
    }
    if is_utf16(bytes) {
        return Err("is UTF-16; save it as UTF-8".to_owned());
    }
    let bytes = without_mark(bytes);
    if count_at_most(bytes) > values_max {
        return Err(format!("holds more than {values_max} values, wanted fewer"));
    }
    serde_json::from_slice(bytes).map_err(|e| format!("not valid JSON: {e}"))
}

/// An upper bound of the number of values in `bytes`: each but the first follows a comma or a bracket.
fn count_at_most(bytes: &[u8]) -> usize {
    let (mut n, mut is_string, mut is_escaped) = (1, false, false);
    for &byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b',' | b'[' | b'{' if !is_string => n += 1,
            _ => {}
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_passed_over() {
        assert_eq!(parse("\u{feff}[1]".as_bytes(), 2), Ok(serde_json::json!([1])));
        assert!(parse("\u{feff}\u{feff}[1]".as_bytes(), 2).is_err());
        assert!(parse(b"\xff\xfe[\0", 2).is_err_and(|what| what.contains("UTF-16")));
    }

    #[test]
    fn values_are_counted_outside_strings() {
        for (text, n) in [
            ("0", 1),
            ("[]", 2),
            ("[1,2]", 3),
            (r#"{"a,[{": "\",[", "b": {"c": null}}"#, 4),
            (r#"["\\", "]"]"#, 3),
        ] {
            assert_eq!(count_at_most(text.as_bytes()), n, "{text}");
            assert!(parse(text.as_bytes(), n).is_ok(), "{text}");
            assert!(parse(text.as_bytes(), n - 1).unwrap_err().contains("more than"), "{text}");
        }
    }
}
