//! A JSON object in one line. Builds without a JSON library write these, too.

use std::fmt::Write;

/// The text of an object, to which members are added one by one.
pub(crate) struct JsonObject {
    text: String,
}

impl JsonObject {
    pub(crate) fn new() -> JsonObject {
        JsonObject { text: String::from("{") }
    }

    pub(crate) fn string(mut self, key: &str, value: &str) -> JsonObject {
        self.key(key);
        push_string(&mut self.text, value);
        self
    }

    /// Adds a number unless it is not finite, because JSON has no such numbers.
    pub(crate) fn number(mut self, key: &str, value: f64) -> JsonObject {
        if value.is_finite() {
            self.key(key);
            // `Display` of f64 is the shortest decimal form, without exponent.
            self.text.push_str(&value.to_string());
        }
        self
    }

    /// Adds a whole number with all its digits.
    pub(crate) fn integer(mut self, key: &str, value: u64) -> JsonObject {
        self.key(key);
        self.text.push_str(&value.to_string());
        self
    }

    /// Adds `true` or `false`; nothing for `None`.
    pub(crate) fn boolean(mut self, key: &str, value: Option<bool>) -> JsonObject {
        if let Some(value) = value {
            self.key(key);
            self.text.push_str(if value { "true" } else { "false" });
        }
        self
    }

    /// Adds a value that is already JSON.
    #[cfg(feature = "serve")]
    pub(crate) fn raw(mut self, key: &str, json: &str) -> JsonObject {
        self.key(key);
        self.text.push_str(json);
        self
    }

    /// Adds an array of objects.
    pub(crate) fn objects(
        mut self,
        key: &str,
        objects: impl Iterator<Item = JsonObject>,
    ) -> JsonObject {
        self.key(key);
        let objects: Vec<String> = objects.map(JsonObject::text).collect();
        // Writing to a string cannot fail.
        let _ = write!(self.text, "[{}]", objects.join(", "));
        self
    }

    /// Adds an object.
    pub(crate) fn object(mut self, key: &str, object: JsonObject) -> JsonObject {
        self.key(key);
        self.text += &object.text();
        self
    }

    /// The object's text.
    pub(crate) fn text(mut self) -> String {
        self.text.push('}');
        self.text
    }

    /// The object's text, followed by a line break.
    pub(crate) fn finish(self) -> String {
        self.text() + "\n"
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push_str(", ");
        }
        push_string(&mut self.text, key);
        self.text.push_str(": ");
    }
}

/// Appends `value` to `out` as a JSON literal, with the escapes that most programs use.
pub(super) fn push_string(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let object = JsonObject::new().string("a\"", "b\\\n\u{1}é").number("n", 1.5);
        let object = object.number("big", 1e300 * 1e300).number("int", 12.0);
        let object = object.integer("seed", u64::MAX);
        let object = object.object("of", JsonObject::new().integer("n", 1));
        let wanted = "{\"a\\\"\": \"b\\\\\\n\\u0001é\", \"n\": 1.5, \"int\": 12, \"seed\": 18446744073709551615, \"of\": {\"n\": 1}}\n";
        assert_eq!(object.finish(), wanted);
    }
}
