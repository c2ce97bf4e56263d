//! JSON files given as input.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Failure;
use crate::format::{excerpt, json};

/// Most bytes of a file: more than a hundred cases with the logits of a vocabulary of 128,000 take.
const FILE_BYTES_MAX: u64 = 1 << 28;
/// Most values of a file: 32 cases of logits for such a vocabulary, or as many token ids.
const VALUES_MAX: usize = 1 << 22;

/// Reads a JSON file. `NaN` and infinities, which Python writes, are read as null.
pub(super) fn read(path: &Path) -> Result<Value, Failure> {
    let shown = path.display();
    let fail = |e: std::io::Error| Failure::unreadable(path, &e);
    let bytes = fs::metadata(path).map_err(fail)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Failure::Input(format!("{shown}: {bytes} bytes are too many for one file")));
    }
    let mut text = fs::read_to_string(path).map_err(fail)?;
    if text.contains("NaN") || text.contains("Infinity") {
        text = without_nan(&text);
    }
    json::parse(text.as_bytes(), VALUES_MAX)
        .map_err(|problem| Failure::Input(format!("{shown}: {problem}")))
}

/// An array of token ids.
pub(super) fn ids(value: &Value) -> Result<Vec<u32>, String> {
    let id = |v: &Value| {
        let id = v.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("{} is not a token id", excerpt(&v.to_string())))
    };
    value.as_array().ok_or("not an array of ids")?.iter().map(id).collect()
}

/// An array of numbers.
pub(super) fn floats(value: &Value) -> Result<Vec<f32>, String> {
    let float = |v: &Value| {
        v.as_f64()
            .map(|x| x as f32)
            .ok_or_else(|| format!("{} is not a number", excerpt(&v.to_string())))
    };
    value.as_array().ok_or("not an array of numbers")?.iter().map(float).collect()
}

/// Replaces `NaN`, `Infinity` and `-Infinity` outside strings by `null`.
fn without_nan(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, part) in split_strings(text).enumerate() {
        if index % 2 == 1 {
            out.push_str(part);
        } else {
            let part = part.replace("-Infinity", "null").replace("Infinity", "null");
            out.push_str(&part.replace("NaN", "null"));
        }
    }
    out
}

/// Parts of `text`: outside a string, a string with its quotes, outside, and so on.
fn split_strings(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut is_string = false;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = if is_string { string_len(rest) } else { rest.find('"').unwrap_or(rest.len()) };
        is_string = !is_string;
        let (part, after) = rest.split_at(len);
        rest = after;
        Some(part)
    })
}

/// Length of the string literal that `text` starts with.
fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_null_but_not_in_strings() {
        let text = r#"{"a": [NaN, -Infinity, 1], "b NaN \" Infinity": "NaN\\", "c": Infinity}"#;
        let wanted = r#"{"a": [null, null, 1], "b NaN \" Infinity": "NaN\\", "c": null}"#;
        assert_eq!(without_nan(text), wanted);
        assert_eq!(without_nan("\"NaN"), "\"NaN");
    }

    #[test]
    fn ids_and_numbers_are_told_from_other_things() {
        assert_eq!(ids(&serde_json::json!([1, 2])), Ok(vec![1, 2]));
        assert!(ids(&serde_json::json!([-1])).is_err());
        assert!(ids(&serde_json::json!({})).is_err());
        assert!(floats(&serde_json::json!([1.5, null])).is_err());
    }
}
