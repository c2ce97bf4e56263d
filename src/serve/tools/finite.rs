//! JSON of models, whose numbers may be larger than any that this program holds.

use serde_json::Value;

/// The value that `text` is. Numbers beyond the largest f64 become that: JSON allows them, and so do forms of answers,
/// but no reader keeps them.
pub(in crate::serve) fn read(text: &str) -> Option<Value> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&finite(text))).ok()
}

/// The text with finite numbers outside of strings.
fn finite(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let mut is_in_string = false;
    while let Some(c) = rest.chars().next() {
        let is_number = !is_in_string && (c == '-' || c.is_ascii_digit());
        let len = match (is_in_string, c) {
            _ if is_number => {
                let is_of_number = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
                rest.find(|c| !is_of_number(c)).unwrap_or(rest.len())
            }
            // An escape, of which the second character may be a quotation mark.
            (true, '\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => c.len_utf8(),
        };
        is_in_string ^= c == '"';
        let (piece, behind) = rest.split_at(len);
        let is_infinite = piece.parse().is_ok_and(f64::is_infinite);
        match is_number && is_infinite {
            true if c == '-' => out.push_str("-1.7976931348623157e308"),
            true => out.push_str("1.7976931348623157e308"),
            false => out.push_str(piece),
        }
        rest = behind;
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_beyond_all_numbers_become_the_largest() {
        let most = f64::MAX;
        for (text, wanted) in [
            (r#"{"n":25E76419}"#, json!({"n": most})),
            ("[-1e999, 1e-999, 1e308, 12]", json!([-most, 0.0, 1e308, 12])),
            (
                r#"{"1e999": "1e999 \" 1e999", "ü": [1e999]}"#,
                json!({"1e999": "1e999 \" 1e999", "ü": [most]}),
            ),
        ] {
            assert_eq!(read(text), Some(wanted), "{text}");
        }
        for wrong in ["1e999e", "{\"a\": 1e999", "--1e999", "1e999 \"\\", "\"\\"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
