//! Writes values as text.

use std::fmt::Write;

use serde_json::Value;

use super::object::push_string;

/// The text of `value` without white space, the form of answers of `leap serve` and of files.
#[cfg(any(feature = "tools", feature = "serve"))]
pub(crate) fn compact(value: &Value) -> String {
    text(value, Layout { comma: ",", colon: ":", indent: None, is_python: false })
}

/// The text of `value` as Python's `json.dumps` writes it, without escapes that JSON does not need: with `indent` spaces
/// for each level, and with these separators instead of the usual ones.
#[cfg(feature = "templates")]
pub(crate) fn python(
    value: &Value,
    indent: Option<usize>,
    separators: Option<[&str; 2]>,
) -> String {
    const LEVEL_MAX: usize = 64;
    let spaces = indent.map(|indent| " ".repeat(indent.min(LEVEL_MAX)));
    let usual = if indent.is_some() { [",", ": "] } else { [", ", ": "] };
    let [comma, colon] = separators.unwrap_or(usual);
    text(value, Layout { comma, colon, indent: spaces.as_deref(), is_python: true })
}

/// The JSON `text` with escapes in place of other characters than those of ASCII.
#[cfg(feature = "templates")]
pub(crate) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// A number as Python's `repr` writes it.
#[cfg(feature = "templates")]
pub(crate) fn python_float(number: f64) -> String {
    if number.is_nan() || number.is_infinite() {
        return format!("{number}").to_lowercase();
    }
    match number.abs() {
        0.0 | 1e-4..1e16 => format!("{number:?}"),
        _ => {
            let text = format!("{number:e}");
            let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
            let power: i32 = power.parse().unwrap_or(0);
            let sign = if power < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", power.abs())
        }
    }
}

/// The text of `value` with a space after each comma and colon, the form of chat templates.
#[cfg(feature = "serve")]
pub(crate) fn spaced(value: &Value) -> String {
    text(value, Layout { comma: ", ", colon: ": ", indent: None, is_python: false })
}

/// The text of `value` with a line for each element and four spaces for each level.
#[cfg(feature = "serve")]
pub(crate) fn indented(value: &Value) -> String {
    text(value, Layout { comma: ",", colon: ": ", indent: Some("    "), is_python: false })
}

/// Separators between the parts of a value.
#[derive(Clone, Copy)]
struct Layout<'a> {
    comma: &'a str,
    colon: &'a str,
    /// Text that begins an element's line, once for each level; `None` for a single line.
    indent: Option<&'a str>,
    /// Whether numbers are written as Python does.
    #[cfg_attr(
        not(feature = "templates"),
        expect(dead_code, reason = "only templates ask for it")
    )]
    is_python: bool,
}

fn text(value: &Value, layout: Layout<'_>) -> String {
    let mut writer = Writer { text: String::new(), layout, level: 0 };
    writer.value(value);
    writer.text
}

struct Writer<'a> {
    text: String,
    layout: Layout<'a>,
    /// Number of open arrays and objects.
    level: usize,
}

impl<'a> Writer<'a> {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.text.push_str("null"),
            Value::Bool(is_true) => self.text.push_str(if *is_true { "true" } else { "false" }),
            #[cfg(feature = "templates")]
            Value::Number(number) if self.layout.is_python && number.is_f64() => {
                self.text.push_str(&python_float(number.as_f64().unwrap_or_default()));
            }
            Value::Number(number) => {
                // Writing to a string cannot fail.
                let _ = write!(self.text, "{number}");
            }
            Value::String(text) => push_string(&mut self.text, text),
            Value::Array(values) => self.list(['[', ']'], values, Writer::value),
            Value::Object(members) => {
                self.list(['{', '}'], members, |writer, (key, value)| {
                    push_string(&mut writer.text, key);
                    writer.text.push_str(writer.layout.colon);
                    writer.value(value);
                });
            }
        }
    }

    /// Writes `elements` between `brackets`, each with `write`.
    fn list<T>(
        &mut self,
        brackets: [char; 2],
        elements: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Writer<'a>, T),
    ) {
        self.text.push(brackets[0]);
        self.level += 1;
        let mut is_empty = true;
        for element in elements {
            if !is_empty {
                self.text.push_str(self.layout.comma);
            }
            is_empty = false;
            self.line();
            write(self, element);
        }
        self.level -= 1;
        if !is_empty {
            self.line();
        }
        self.text.push(brackets[1]);
    }

    /// Begins a line if the layout has lines.
    fn line(&mut self) {
        if let Some(indent) = self.layout.indent {
            self.text.push('\n');
            (0..self.level).for_each(|_| self.text.push_str(indent));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Nested values of all kinds, with characters that JSON must escape.
    fn values() -> Vec<Value> {
        let every_control: String = (0..0x21).filter_map(char::from_u32).collect();
        let texts = json!([every_control, "\"\\/", "\u{7f}\u{85}\u{2028}é😀", ""]);
        let numbers = json!([0, -1, u64::MAX, i64::MIN, 0.5, -0.0, 1e300, 1e-7, 123_456_789.125]);
        let nested = json!({"a\n": texts, "b": {"c": [], "d": {}, "e": [[1, [2]], {"f": null}]}});
        vec![texts, numbers, nested, json!(true), json!(null), json!([]), json!({}), json!("x")]
    }

    #[test]
    fn values_are_written_as_serde_json_writes_them() {
        for value in values() {
            assert_eq!(compact(&value), value.to_string());
            assert_eq!(serde_json::from_str::<Value>(&compact(&value)).ok(), Some(value));
        }
    }

    #[test]
    #[cfg(feature = "serve")]
    fn layouts_change_white_space_alone() {
        let value = json!({"a": [1, {"b, \": ": 2}], "c": {}, "d": []});
        assert_eq!(spaced(&value), r#"{"a": [1, {"b, \": ": 2}], "c": {}, "d": []}"#);
        let wanted = "{\n    \"a\": [\n        1,\n        {\n            \"b, \\\": \": 2\n        }\n    ],\n    \
                      \"c\": {},\n    \"d\": []\n}";
        assert_eq!(indented(&value), wanted);
        for value in values() {
            assert_eq!(serde_json::from_str::<Value>(&spaced(&value)).ok().as_ref(), Some(&value));
            assert_eq!(serde_json::from_str::<Value>(&indented(&value)).ok(), Some(value));
        }
    }
}
