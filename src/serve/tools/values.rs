//! Values of arguments that are written one by one.

use serde_json::{Map, Value, json};

use super::marks::{Lack, Values};

/// Deepest nesting of a value.
const DEPTH_MAX: usize = 64;
/// Most schemas that are looked at for one value.
const SCHEMAS_MAX: usize = 256;

/// A value, or values, that a schema allows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice<'s> {
    /// This value.
    One(&'s Value),
    /// The values of this schema.
    Any(&'s Value),
}

/// The choices that `schema` gives; its references are into `root`.
fn choices<'s>(schema: &'s Value, root: &'s Value) -> Vec<Choice<'s>> {
    let (mut found, mut open, mut n_left) = (Vec::new(), vec![schema], SCHEMAS_MAX);
    while let Some(schema) = open.pop() {
        n_left = n_left.saturating_sub(1);
        let known = || root.pointer(schema["$ref"].as_str()?.strip_prefix('#')?);
        let several = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
        match (known(), several, schema.get("const"), schema["enum"].as_array()) {
            _ if n_left == 0 => found.push(Choice::Any(schema)),
            (Some(known), ..) => open.push(known),
            (_, Some(all), ..) => open.extend(all.iter().rev()),
            (.., Some(value), _) => found.push(Choice::One(value)),
            (.., Some(values)) => found.extend(values.iter().map(Choice::One)),
            _ => found.push(Choice::Any(schema)),
        }
    }
    found
}

/// JSON types that a schema allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NAMES: [&str; 6] = ["string", "number", "boolean", "null", "array", "object"];
    const ALL: Types = Types((1 << Types::NAMES.len()) - 1);
    const STRING: Types = Types(1);

    /// The types that `schema` allows; its references are into `root`.
    pub(super) fn of(schema: &Value, root: &Value) -> Types {
        let mut n_left = SCHEMAS_MAX;
        Types::find(schema, root, &mut n_left)
    }

    fn find(schema: &Value, root: &Value, n_left: &mut usize) -> Types {
        let Some(left) = n_left.checked_sub(1) else { return Types::ALL };
        *n_left = left;
        let mut types = schema.as_object().map_or(Types::ALL.0, |own| Types::of_keywords(own).0);
        if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
            let known = root.pointer(path);
            types &= known.map_or(Types::ALL, |known| Types::find(known, root, n_left)).0;
        }
        for all in ["anyOf", "oneOf"].iter().filter_map(|name| schema[*name].as_array()) {
            let one = |types, schema| types | Types::find(schema, root, n_left).0;
            types &= all.iter().fold(0, one);
        }
        for schema in schema["allOf"].as_array().into_iter().flatten() {
            types &= Types::find(schema, root, n_left).0;
        }
        Types(types)
    }

    /// The types that a schema allows by itself.
    pub(super) fn of_keywords(schema: &Map<String, Value>) -> Types {
        let values = schema.get("enum").and_then(Value::as_array);
        match (schema.get("type"), schema.get("const"), values) {
            (Some(Value::String(name)), ..) => Types::named(name),
            (Some(Value::Array(names)), ..) => {
                let one = |name: &Value| name.as_str().map_or(0, |name| Types::named(name).0);
                Types(names.iter().map(one).fold(0, |types, one| types | one))
            }
            (_, Some(value), _) => Types::of_value(value),
            (.., Some(values)) => {
                Types(values.iter().fold(0, |types, value| types | Types::of_value(value).0))
            }
            _ => Types::ALL,
        }
    }

    /// Names of the types that a schema allows beside strings.
    pub(super) fn names_but_string(schema: &Map<String, Value>) -> Vec<Value> {
        let names = match schema.get("type") {
            Some(Value::Array(names)) => names.clone(),
            Some(name) => vec![name.clone()],
            None => Types::NAMES.iter().map(|name| (*name).into()).collect(),
        };
        names.into_iter().filter(|name| name != "string").collect()
    }

    pub(super) fn named(name: &str) -> Types {
        let name = if name == "integer" { "number" } else { name };
        let at = Types::NAMES.iter().position(|known| *known == name);
        at.map_or(Types::ALL, |at| Types(1 << at))
    }

    pub(super) fn of_value(value: &Value) -> Types {
        Types::named(match value {
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "boolean",
            Value::Null => "null",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        })
    }

    pub(super) fn allow(self, other: Types) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a string, a number, a boolean, nothing, a list and an object is allowed.
    pub(super) fn each(self) -> impl Iterator<Item = bool> {
        (0..Types::NAMES.len()).map(move |at| self.0 & (1 << at) != 0)
    }

    /// Whether a string is allowed.
    pub(super) fn allow_strings(self) -> bool {
        self.allow(Types::STRING)
    }
}

/// The value of `schema` that `text` stands for where strings stand as they are. References are into `root`.
pub(super) fn plain(text: &str, schema: &Value, root: &Value) -> Value {
    let types = Types::of(schema, root);
    let is_it = |choice: &Choice<'_>| matches!(choice, Choice::One(value) if **value == *text);
    if types == Types::STRING || choices(schema, root).iter().any(is_it) {
        return text.into();
    }
    let json = serde_json::from_str(text.trim()).ok();
    let python = || {
        let (value, n) = literal(&format!("{} ", text.trim()), &Values::Python).ok()?;
        (n == text.trim().len()).then_some(value)
    };
    let value: Option<Value> = json.or_else(python);
    let fits = |value: &Value| !value.is_string() && types.allow(Types::of_value(value));
    match value {
        Some(value) if fits(&value) || !types.allow_strings() => value,
        _ => text.into(),
    }
}

/// The value at the start of `text`, and its length.
pub(super) fn literal(text: &str, values: &Values) -> Result<(Value, usize), Lack> {
    let mark = match values {
        Values::Marked(mark) => Some(mark.as_str()),
        Values::Plain | Values::Python => None,
    };
    let mut reader = Reader { text, at: 0, mark };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

/// A call's arguments in Python's words, from an object of JSON.
pub(super) fn python_arguments(json: &str) -> String {
    let fields: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let one = |(key, value): (&String, &Value)| format!("{key}={}", python(value));
    fields.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `value` as a literal of Python.
pub(super) fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(python).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let one =
                |(key, value): (&String, &Value)| format!("{}: {}", json!(key), python(value));
            format!("{{{}}}", fields.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        // Python reads JSON's strings and numbers.
        value => value.to_string(),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Stands around strings; Python's quotation marks if there is none.
    mark: Option<&'a str>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The next character behind white space.
    fn peek(&mut self) -> Result<char, Lack> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().chars().next().ok_or(Lack::More)
    }

    fn value(&mut self, depth: usize) -> Result<Value, Lack> {
        if depth > DEPTH_MAX {
            return Err(Lack::Other);
        }
        let c = self.peek()?;
        if let Some(text) = self.string()? {
            return Ok(text.into());
        }
        match c {
            '[' | '(' => self.list(if c == '[' { ']' } else { ')' }, depth),
            '{' => self.object(depth),
            _ => word(self.word()?).ok_or(Lack::Other),
        }
    }

    /// The string that begins here, if one does.
    fn string(&mut self) -> Result<Option<String>, Lack> {
        match (self.mark, self.peek()?) {
            (Some(mark), _) if self.rest().starts_with(mark) => {
                let text = &self.rest()[mark.len()..];
                let end = text.find(mark).ok_or(Lack::More)?;
                self.at += end + 2 * mark.len();
                Ok(Some(text[..end].to_owned()))
            }
            (Some(mark), _) if mark.starts_with(self.rest()) => Err(Lack::More),
            (None, quote @ ('"' | '\'')) => self.quoted(quote).map(Some),
            _ => Ok(None),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, Lack> {
        let (mut text, mut chars) = (String::new(), self.rest().char_indices().skip(1));
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => {
                    let (_, c) = chars.next().ok_or(Lack::More)?;
                    let n_digits = match c {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    let digits: String = chars.by_ref().take(n_digits).map(|(_, c)| c).collect();
                    match (n_digits, u32::from_str_radix(&digits, 16)) {
                        (0, _) => text.extend(escaped(c)),
                        (_, Ok(code)) => text.push(char::from_u32(code).unwrap_or('\u{fffd}')),
                        (n, Err(_)) if digits.len() < n => return Err(Lack::More),
                        (_, Err(_)) => return Err(Lack::Other),
                    }
                }
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(text);
                }
                c => text.push(c),
            }
        }
        Err(Lack::More)
    }

    /// A word or number up to a sign or white space.
    fn word(&mut self) -> Result<&'a str, Lack> {
        let rest = self.rest();
        let end = rest.find(ends_word).ok_or(Lack::More)?;
        self.at += end;
        Ok(&rest[..end])
    }

    /// Takes a comma or `close`, and returns whether it was `close`.
    fn is_closed(&mut self, close: char, is_first: bool) -> Result<bool, Lack> {
        let c = self.peek()?;
        if c == close {
            self.at += c.len_utf8();
            return Ok(true);
        }
        match (is_first, c) {
            (true, _) => Ok(false),
            (false, ',') => {
                self.at += 1;
                // A comma may stand before the end, too.
                match self.peek()? == close {
                    true => self.is_closed(close, true),
                    false => Ok(false),
                }
            }
            (false, _) => Err(Lack::Other),
        }
    }

    fn list(&mut self, close: char, depth: usize) -> Result<Value, Lack> {
        self.at += 1;
        let mut values = Vec::new();
        while !self.is_closed(close, values.is_empty())? {
            values.push(self.value(depth + 1)?);
        }
        Ok(values.into())
    }

    fn object(&mut self, depth: usize) -> Result<Value, Lack> {
        self.at += 1;
        let mut fields = Map::new();
        while !self.is_closed('}', fields.is_empty())? {
            let key = match self.string()? {
                Some(key) => key,
                None => self.word()?.to_owned(),
            };
            if self.peek()? != ':' {
                return Err(Lack::Other);
            }
            self.at += 1;
            let value = self.value(depth + 1)?;
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}

/// Whether a name can be read without quotation marks.
pub(super) fn is_word(name: &str) -> bool {
    !name.is_empty() && !name.contains(ends_word)
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || ",:()[]{}<'\"".contains(c)
}

/// The character for a backslash and `c` in Python; none for a line break.
fn escaped(c: char) -> Option<char> {
    Some(match c {
        '\n' => return None,
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '0' => '\0',
        c => c,
    })
}

fn word(word: &str) -> Option<Value> {
    match word {
        "True" | "true" => Some(true.into()),
        "False" | "false" => Some(false.into()),
        "None" | "null" => Some(Value::Null),
        // JSON's zero with a sign would be a float.
        "-0" => Some(0.into()),
        number => serde_json::from_str::<serde_json::Number>(number).ok().map(Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_read_to_their_end_and_wait_for_it() {
        let marked = Values::Marked("<|\"|>".to_owned());
        for (text, values, wanted) in [
            ("'a\\'b\\n\\u00e9', x", Values::Python, json!("a'b\né")),
            (
                "[True, None, {'k': (1, -2.5e3,)}] ",
                Values::Python,
                json!([true, null, {"k": [1, -2500.0]}]),
            ),
            ("12)", Values::Python, json!(12)),
            ("<|\"|>it's \"<b>\"<|\"|>,", marked.clone(), json!("it's \"<b>\"")),
            ("{a:<|\"|>x<|\"|>,b:[true,{}]}", marked.clone(), json!({"a": "x", "b": [true, {}]})),
        ] {
            let (value, n) = literal(text, &values).unwrap();
            assert_eq!(value, wanted, "{text}");
            for cut in (0..n).filter(|at| text.is_char_boundary(*at)) {
                assert_eq!(literal(&text[..cut], &values), Err(Lack::More), "{text} cut at {cut}");
            }
        }
        let deep = "[".repeat(100_000);
        for wrong in ["nothing ", "[1 2]", "{1}", "'\\xzz'", &deep] {
            assert_eq!(literal(wrong, &Values::Python), Err(Lack::Other), "{wrong:.20}");
        }
    }

    #[test]
    fn a_plain_value_has_a_type_that_its_schema_allows() {
        let root = json!({"$defs": {"n": {"type": "integer"}}});
        for (schema, text, wanted) in [
            (json!({"type": "string"}), "12", json!("12")),
            (json!({"type": "integer"}), " 12\n", json!(12)),
            (json!({"$ref": "#/$defs/n"}), "12", json!(12)),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "12", json!("12")),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "null", json!(null)),
            (json!({"type": ["boolean", "string"]}), "True", json!(true)),
            (json!({"enum": ["1", "2"]}), "1", json!("1")),
            (json!({"type": ["string", "null"], "enum": ["None"]}), "None", json!("None")),
            (json!({"allOf": [{"type": "integer"}, {"minimum": 3}]}), "4", json!(4)),
            (json!({"type": "array"}), "['a', None]", json!(["a", null])),
            (json!({"type": "object"}), "{\"a\": 1}", json!({"a": 1})),
            (json!({"type": "object"}), "nothing", json!("nothing")),
            (json!({}), "12 apples", json!("12 apples")),
        ] {
            assert_eq!(plain(text, &schema, &root), wanted, "{schema} {text}");
        }
        let endless = json!({"$ref": "#"});
        assert_eq!(Types::of(&endless, &endless), Types::ALL);
    }
}
