//! The grammar of arguments that come one by one, and of their values, as their schemas want them.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::grammar::{pattern_of, with_options};
use super::chain::{Chain, counted};
use super::marks::{Pairs, Values};
use super::regex::{anchored, of_format};
use super::rules::{Rules, WORD, quoted};
use super::schemas::{Keywords, alternatives, listed};
use super::values::{Types, is_word, python};
use crate::format::json;

const ANY_TEXT: &str = "/(?s:.*)/";
/// Longest string whose length is kept within limits.
const LENGTH_MAX: u64 = 4096;
/// Most properties or elements that are counted.
const COUNT_MAX: u64 = 4096;
/// Deepest nesting of a schema.
const DEPTH_MAX: usize = 64;
/// Longest schema of a value.
const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Keywords that no grammar of calls follows.
const FOREIGN: [&str; 15] = [
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "patternProperties",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// Largest integer of a literal that is read as one, and that forms follow.
const WHOLE_MAX: i64 = i64::MAX - 1023;
/// Keywords that limit numbers.
const LIMITS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Writes the rules of one tool's arguments.
pub(super) struct Literals<'l, 't> {
    rules: &'l mut Rules<'t>,
    pairs: &'l Pairs,
    /// The schema of the arguments, into which others refer.
    root: &'l Value,
    /// Rules of schemas' values.
    known: HashMap<String, String>,
    depth: usize,
    /// Schemas of strings that are written as they are. A grammar of JSON shows whether they can be followed.
    checks: Vec<Value>,
}

/// Values where strings stand as they are, with the mark behind each.
#[derive(Default)]
struct Plain {
    strings: Vec<String>,
    others: Vec<String>,
    /// Whether a string may be any text.
    has_any: bool,
}

/// The place of an object.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// It is a call's arguments.
    Call,
    /// It is a value.
    Value,
}

impl<'l, 't> Literals<'l, 't> {
    pub(super) fn new(rules: &'l mut Rules<'t>, pairs: &'l Pairs, root: &'l Value) -> Self {
        let (known, checks) = (HashMap::new(), Vec::new());
        Literals { rules, pairs, root, known, depth: 0, checks }
    }

    /// The schemas of strings that are written as they are.
    pub(super) fn into_checks(self) -> Vec<Value> {
        self.checks
    }

    /// All arguments that fit the schema.
    ///
    /// # Errors
    /// The keyword that cannot be followed, and why.
    pub(super) fn arguments(&mut self) -> Result<String, String> {
        let root = self.root;
        let object = Types::named("object");
        let mut all = Vec::new();
        for schema in alternatives(root, root)? {
            if listed(&schema).is_some() {
                return Err("enum: the arguments of a call come one by one".to_owned());
            }
            if Types::of_keywords(&schema).allow(object) {
                check(&schema)?;
                all.extend(self.object(&schema, Place::Call)?);
            }
        }
        choice(all).ok_or_else(|| "no arguments fit it".to_owned())
    }

    /// Any value of `schema`, as an argument with the equals sign and the mark behind it.
    ///
    /// # Errors
    /// The keyword that cannot be followed, and why.
    pub(super) fn argument(&mut self, schema: &Value) -> Result<String, String> {
        let [string, other] = self.pairs.equals.each_ref().map(|equals| self.rules.mark(equals));
        let plain = match &self.pairs.values {
            Values::Plain => self.plain_value(schema)?,
            Values::Python | Values::Marked(_) => {
                let close = self.rules.mark(&self.pairs.close);
                return Ok(format!("{other} {} {close}", self.value(schema)?));
            }
        };
        let values = match plain {
            // Any text may be the others, too.
            Plain { has_any: true, strings, .. } if string == other => strings,
            Plain { strings, others, .. } if string == other => {
                strings.into_iter().chain(others).collect()
            }
            Plain { strings, others, .. } => {
                let all = [(string, strings), (other, others)].into_iter();
                let all = all
                    .filter_map(|(equals, values)| Some(format!("{equals} {}", choice(values)?)));
                return choice(all.collect()).ok_or_else(|| "no value fits it".to_owned());
            }
        };
        let values = choice(values).ok_or("no value fits it")?;
        Ok(format!("{string} {values}"))
    }

    /// An object's properties, without what stands around them; `None` if no object fits.
    fn object(&mut self, schema: &Keywords, place: Place) -> Result<Option<String>, String> {
        let mut named: Vec<(&str, &Value, bool)> = Vec::new();
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |key: &str| required.is_some_and(|names| names.contains(&json!(key)));
        let properties = schema.get("properties").and_then(Value::as_object);
        for (key, value) in properties.into_iter().flatten() {
            named.push((key, value, is_required(key)));
        }
        let any = Value::Bool(true);
        let others = match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => None,
            Some(others) => Some(others),
            None if properties.is_some() => None,
            None => Some(&any),
        };
        for key in required.into_iter().flatten().filter_map(Value::as_str) {
            if !named.iter().any(|(known, ..)| *known == key) {
                let Some(others) = others else { return Ok(None) };
                named.push((key, others, true));
            }
        }
        let counts = counts(schema, ["minProperties", "maxProperties"])?;
        let comma = self.comma(place);
        let mut items = Vec::new();
        for &(key, value, is_required) in &named {
            let name = self.key(key, place)?;
            items.push((self.field(&name, value, place)?, is_required));
        }
        let other = match others {
            Some(others) => {
                let keys: Vec<&str> = named.iter().map(|(key, ..)| *key).collect();
                let name = self.other_key(&keys, place)?;
                Some(self.field(&name, others, place)?)
            }
            None => None,
        };
        Chain::new(&items, other.as_deref(), &comma, counts).write(self.rules)
    }

    /// The rule of a property whose name this is.
    fn field(&mut self, name: &str, schema: &Value, place: Place) -> Result<String, String> {
        let field = match place {
            Place::Call => {
                let open = self.rules.mark(&self.pairs.open);
                format!("{open} {name} {}", self.argument(schema)?)
            }
            Place::Value => format!("{name} {} {}", self.equals(), self.value(schema)?),
        };
        let rule = self.rules.fresh("field")?;
        self.rules.put(&rule, &field);
        Ok(rule)
    }

    /// The name of a property.
    fn key(&self, key: &str, place: Place) -> Result<String, String> {
        match (place, &self.pairs.values) {
            (Place::Call, _) => Ok(quoted(key)),
            (Place::Value, Values::Marked(_)) if is_word(key) => Ok(quoted(key)),
            (Place::Value, Values::Marked(_)) => {
                Err(format!("properties: the model has no words for the name {key:?}"))
            }
            (Place::Value, Values::Python | Values::Plain) => {
                let double = quoted(&json::compact(&json!(key)));
                let is_simple = !key.chars().any(|c| c == '\'' || c == '\\' || c.is_control());
                let single = is_simple.then(|| format!(" | {}", quoted(&format!("'{key}'"))));
                Ok(format!("({double}{})", single.unwrap_or_default()))
            }
        }
    }

    /// A name that is none of `keys`.
    fn other_key(&mut self, keys: &[&str], place: Place) -> Result<String, String> {
        let has_quotes = place == Place::Value && self.pairs.values == Values::Python;
        let any = if has_quotes { r#"/"[^"\\\x00-\x1f]*"/"# } else { WORD };
        let known = |key: &&str| match has_quotes {
            true => quoted(&json::compact(&json!(key))),
            false => quoted(key),
        };
        let known: Vec<String> = keys.iter().map(known).collect();
        if known.is_empty() {
            return Ok(any.to_owned());
        }
        let token = self.rules.fresh("KEY")?;
        self.rules.put(&token, &format!("{any} & ~({})", known.join(" | ")));
        Ok(token)
    }

    /// The text between a name within a value and what it names.
    fn equals(&self) -> String {
        match &self.pairs.values {
            Values::Marked(_) => self.rules.mark(&self.pairs.equals[1]),
            Values::Python | Values::Plain => quoted(": "),
        }
    }

    /// The text between two properties or elements.
    fn comma(&self, place: Place) -> String {
        match (place, &self.pairs.values) {
            (Place::Call, _) | (_, Values::Marked(_)) => self.rules.mark(&self.pairs.comma),
            (Place::Value, Values::Python | Values::Plain) => quoted(", "),
        }
    }

    /// The rule of a literal of `schema`.
    fn value(&mut self, schema: &Value) -> Result<String, String> {
        self.put_literals();
        let text = json::compact(schema);
        if let Some(rule) = self.known.get(&text) {
            return Ok(rule.clone());
        }
        if self.depth >= DEPTH_MAX || text.len() > SCHEMA_BYTES_MAX {
            return Err("it is too deep".to_owned());
        }
        let rule = self.rules.fresh("value")?;
        self.known.insert(text, rule.clone());
        self.depth += 1;
        let mut all = Vec::new();
        for schema in alternatives(schema, self.root)? {
            all.extend(self.literals(&schema)?);
        }
        self.depth -= 1;
        let all = choice(all).ok_or("no value fits it")?;
        self.rules.put(&rule, &all);
        Ok(rule)
    }

    /// The literals of a simple schema.
    fn literals(&mut self, schema: &Keywords) -> Result<Vec<String>, String> {
        check(schema)?;
        if let Some(values) = listed(schema) {
            return Ok(values.into_iter().map(|value| self.one(value)).collect());
        }
        let types = Types::of_keywords(schema);
        if schema.is_empty() {
            return Ok(vec!["literal".to_owned()]);
        }
        let mut all = Vec::new();
        for (name, _) in Types::NAMES.iter().zip(types.each()).filter(|(_, is_allowed)| *is_allowed)
        {
            all.extend(match *name {
                "string" => Some(self.string(schema)?),
                "number" => Some(self.number(schema)?),
                "boolean" => Some("truth".to_owned()),
                "null" => Some("nothing".to_owned()),
                "array" => self.list(schema)?,
                _ => self.nested(schema)?,
            });
        }
        Ok(all)
    }

    /// This value.
    fn one(&self, value: &Value) -> String {
        let Values::Marked(mark) = &self.pairs.values else { return quoted(&python(value)) };
        let comma = format!(" {} ", self.rules.mark(&self.pairs.comma));
        match value {
            Value::String(text) => {
                let mark = self.rules.mark(mark);
                format!("{mark} {} {mark}", quoted(text))
            }
            Value::Array(values) => {
                let values: Vec<String> = values.iter().map(|value| self.one(value)).collect();
                format!("\"[\" {} \"]\"", values.join(&comma))
            }
            Value::Object(fields) => {
                let one = |(key, value): (&String, &Value)| {
                    format!("{} {} {}", quoted(key), self.equals(), self.one(value))
                };
                let fields: Vec<String> = fields.iter().map(one).collect();
                format!("\"{{\" {} \"}}\"", fields.join(&comma))
            }
            value => quoted(&json::compact(value)),
        }
    }

    fn string(&mut self, schema: &Keywords) -> Result<String, String> {
        let is_free = !schema.contains_key("pattern") && !schema.contains_key("format");
        match &self.pairs.values {
            Values::Marked(mark) => {
                let mark = self.rules.mark(mark);
                let Some(text) = self.text(schema)? else { return Ok("string".to_owned()) };
                let token = self.rules.fresh("TEXT")?;
                self.rules.put(&token, &text);
                Ok(format!("{mark} {token} {mark}"))
            }
            Values::Python | Values::Plain if is_free => {
                let Some(times) = times(schema) else { return Ok("string".to_owned()) };
                let escape = r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[^ux]";
                Ok(format!(r#"(/"([^"\\\n]|{escape}){times}"/ | /'([^'\\\n]|{escape}){times}'/)"#))
            }
            // Python reads JSON's strings.
            Values::Python | Values::Plain => {
                self.json(schema, "string", &["pattern", "format", "minLength", "maxLength"])
            }
        }
    }

    /// A regular expression of the strings that a schema allows; `None` if they are all.
    fn text(&mut self, schema: &Keywords) -> Result<Option<String>, String> {
        let mut all = Vec::new();
        if let Some(pattern) = schema.get("pattern") {
            let pattern = pattern.as_str().ok_or("pattern: it is no text")?;
            all.push(format!("/{}/", pattern_of(&anchored(pattern))));
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str).and_then(of_format) {
            all.push(format!("/{}/", pattern_of(&format)));
        }
        if !all.is_empty() {
            let mut check = schema.clone();
            check.insert("type".to_owned(), "string".into());
            self.checks.push(check.into());
        }
        all.extend(times(schema).map(|times| format!("/(?s:.{times})/")));
        Ok((!all.is_empty()).then(|| all.join(" & ")))
    }

    /// A rule for JSON of this type.
    fn json(&mut self, schema: &Keywords, name: &str, keywords: &[&str]) -> Result<String, String> {
        let mut schema = schema.clone();
        schema.retain(|name, _| keywords.contains(&&**name));
        schema.insert("type".to_owned(), name.into());
        let rule = self.rules.fresh("json")?;
        let schema = json::compact(&with_options(schema.into()));
        self.rules.put(&rule, &format!("%json {schema}"));
        Ok(rule)
    }

    fn number(&mut self, schema: &Keywords) -> Result<String, String> {
        let kind = &schema.get("type").cloned().unwrap_or_default();
        let names = |name: &str| {
            *kind == name || kind.as_array().is_some_and(|kinds| kinds.contains(&json!(name)))
        };
        let is_whole = names("integer") && !names("number");
        if LIMITS.iter().any(|name| schema.contains_key(*name)) {
            let mut schema = schema.clone();
            if is_whole {
                // Longer ones would be read as floats.
                schema.entry("minimum").or_insert((-WHOLE_MAX).into());
                schema.entry("maximum").or_insert(WHOLE_MAX.into());
            }
            return self.json(&schema, if is_whole { "integer" } else { "number" }, &LIMITS);
        }
        Ok(if is_whole { "whole" } else { "number" }.to_owned())
    }

    fn nested(&mut self, schema: &Keywords) -> Result<Option<String>, String> {
        const OWN: [&str; 5] =
            ["properties", "required", "additionalProperties", "minProperties", "maxProperties"];
        if !OWN.iter().any(|name| schema.contains_key(*name)) {
            return Ok(Some("object".to_owned()));
        }
        let fields = self.object(schema, Place::Value)?;
        Ok(fields.map(|fields| format!("\"{{\" {fields} \"}}\"")))
    }

    fn list(&mut self, schema: &Keywords) -> Result<Option<String>, String> {
        const OWN: [&str; 5] = ["items", "prefixItems", "additionalItems", "minItems", "maxItems"];
        if !OWN.iter().any(|name| schema.contains_key(*name)) {
            return Ok(Some("list".to_owned()));
        }
        let (first, rest) = match (schema.get("prefixItems"), schema.get("items")) {
            (Some(first), rest) => (Some(first), rest),
            (None, Some(first @ Value::Array(_))) => (Some(first), schema.get("additionalItems")),
            (None, rest) => (None, rest),
        };
        let first: &[Value] = first.and_then(Value::as_array).map_or(&[], Vec::as_slice);
        let [min, max] = counts(schema, ["minItems", "maxItems"])?;
        let comma = self.comma(Place::Value);
        let any = Value::Bool(true);
        let rest = Some(rest.unwrap_or(&any)).filter(|rest| **rest != Value::Bool(false));
        let least = min.unwrap_or(0);
        let most =
            max.unwrap_or(usize::MAX).min(if rest.is_some() { usize::MAX } else { first.len() });
        if least > most {
            return Ok(None);
        }
        let mut list = match rest.filter(|_| most > first.len()) {
            Some(rest) => counted(&self.value(rest)?, &comma, [min, max], first.len()),
            None => quoted(""),
        };
        for (at, schema) in first.iter().enumerate().take(most).rev() {
            let comma = if at == 0 { "" } else { &comma };
            list = format!("{comma} {} {list}", self.value(schema)?);
            if at >= least {
                list = format!("({list})?");
            }
        }
        Ok(Some(format!("\"[\" {list} \"]\"")))
    }

    /// The values of a schema where strings stand as they are, with the mark behind them.
    fn plain_value(&mut self, schema: &Value) -> Result<Plain, String> {
        let root = self.root;
        let sign = self.pairs.close.trim();
        let close = self.rules.mark(&self.pairs.close);
        let mut plain = Plain::default();
        let mut texts = Vec::new();
        for mut schema in alternatives(schema, root)? {
            if let Some(listed) = listed(&schema) {
                for value in listed {
                    match value {
                        // A text that has the mark in it cannot be told from others.
                        Value::String(text) if text.contains(sign) => plain.has_any = true,
                        Value::String(text) => {
                            plain.strings.push(format!("{} {close}", quoted(text)));
                        }
                        value => {
                            plain.others.push(format!("{} {close}", quoted(&json::compact(value))))
                        }
                    }
                }
                continue;
            }
            if Types::of_keywords(&schema).allow_strings() {
                check(&schema)?;
                match self.text(&schema)? {
                    Some(text) => texts.push(text),
                    None => plain.has_any = true,
                }
                let names = Types::names_but_string(&schema);
                if names.is_empty() {
                    continue;
                }
                schema.insert("type".to_owned(), names.into());
            }
            let rule = self.rules.fresh("json")?;
            let schema = json::compact(&with_options(with_definitions(schema, root)));
            self.rules.put(&rule, &format!("%json {schema}"));
            plain.others.push(format!("{rule} {close}"));
        }
        if plain.has_any {
            plain.strings = vec![self.any_text()?];
        } else if let Some(texts) = choice(texts) {
            plain.strings.push(self.plain_text(&texts)?);
        }
        Ok(plain)
    }

    /// The mark behind a value: white space, the sign that ends a string, and the rest of it. A sign has no special token.
    fn closing(&self) -> [&'l str; 3] {
        let close = self.pairs.close.trim_start();
        let n = self.rules.controls(close).first().map(|(name, _)| name.start);
        let sign = close[..n.unwrap_or(close.len())].trim_end();
        let space = &self.pairs.close[..self.pairs.close.len() - close.len()];
        [space, sign, &close[sign.len()..]]
    }

    /// Any string that stands as it is, with the mark behind it. White space before that belongs to the string.
    fn any_text(&mut self) -> Result<String, String> {
        let [_, sign, rest] = self.closing();
        let rule = self.rules.fresh("text")?;
        let suffix =
            if sign.is_empty() { String::new() } else { format!("[suffix={}]", quoted(sign)) };
        self.rules.put(&format!("{rule}{suffix}"), ANY_TEXT);
        Ok(format!("{rule} {}", self.rules.mark(rest)))
    }

    /// A string of the regular expressions `texts` that stands as it is, with the mark behind it.
    fn plain_text(&mut self, texts: &str) -> Result<String, String> {
        let [space, sign, rest] = self.closing();
        let rest = self.rules.mark(rest);
        if sign.is_empty() {
            let token = self.rules.fresh("TEXT")?;
            self.rules.put(&token, &format!("({texts}) {}", quoted(space)));
            return Ok(format!("{token} {rest}"));
        }
        let rule = self.rules.fresh("text")?;
        let suffix = format!("[suffix={}]", quoted(&[space, sign].concat()));
        // The first sign ends the string.
        let text = format!("({texts}) & ~({ANY_TEXT} {} {ANY_TEXT})", quoted(sign));
        self.rules.put(&format!("{rule}{suffix}"), &text);
        Ok(format!("{rule} {rest}"))
    }

    /// Adds the rules of any literals, unless they are there.
    fn put_literals(&mut self) {
        if self.rules.has("literal") {
            return;
        }
        let (equals, comma) = (self.equals(), self.comma(Place::Value));
        let [string, key] = match &self.pairs.values {
            Values::Marked(mark) => {
                let mark = self.rules.mark(mark);
                [format!("{mark} {ANY_TEXT} {mark}"), WORD.to_owned()]
            }
            Values::Python | Values::Plain => {
                let string = r#"/"([^"\\\n]|\\.)*"/ | /'([^'\\\n]|\\.)*'/"#;
                [string.to_owned(), "string".to_owned()]
            }
        };
        let [yes, no, none] = match self.pairs.values {
            Values::Marked(_) => ["true", "false", "null"],
            Values::Python | Values::Plain => ["True", "False", "None"],
        };
        for (name, rule) in [
            ("string", string.as_str()),
            ("whole", "/0|-?[1-9][0-9]{0,17}/"),
            ("number", r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?/"),
            ("truth", &format!("\"{yes}\" | \"{no}\"")),
            ("nothing", &format!("\"{none}\"")),
            ("list", &format!("\"[\" (literal ({comma} literal)*)? \"]\"")),
            ("object", &format!("\"{{\" (field ({comma} field)*)? \"}}\"")),
            ("field", &format!("{key} {equals} literal")),
            ("literal", "string | number | truth | nothing | list | object"),
        ] {
            self.rules.put(name, rule);
        }
    }
}

/// A part of the schema `root` with `root` as a definition, to which its references lead.
fn with_definitions(schema: Keywords, root: &Value) -> Value {
    let mut schema = Value::from(schema);
    if has_references(&schema) {
        let mut root = root.clone();
        lead(&mut root);
        lead(&mut schema);
        schema["$defs"] = json!({ROOT: root});
    }
    schema
}

const ROOT: &str = "call";

fn has_references(schema: &Value) -> bool {
    match schema {
        Value::Array(parts) => parts.iter().any(has_references),
        Value::Object(parts) => parts.contains_key("$ref") || parts.values().any(has_references),
        _ => false,
    }
}

/// Leads all references to the definition [`ROOT`].
fn lead(schema: &mut Value) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(lead),
        Value::Object(parts) => {
            for (name, part) in parts {
                match part.as_str().and_then(|path| path.strip_prefix('#')) {
                    Some(path) if name == "$ref" => *part = format!("#/$defs/{ROOT}{path}").into(),
                    _ => lead(part),
                }
            }
        }
        _ => {}
    }
}

/// The choice of one of `all`; `None` if there is none.
fn choice(mut all: Vec<String>) -> Option<String> {
    match all.len() {
        0 => None,
        1 => all.pop(),
        _ => Some(format!("({})", all.join(" | "))),
    }
}

/// The limits of a number of properties or elements.
fn counts(schema: &Keywords, names: [&str; 2]) -> Result<[Option<usize>; 2], String> {
    let mut counts = [None; 2];
    for (count, name) in counts.iter_mut().zip(names) {
        let Some(value) = schema.get(name) else { continue };
        let n = value.as_u64().ok_or_else(|| format!("{name}: {value} is no count"))?;
        let is_least = name.starts_with("min");
        *count = match n {
            ..=COUNT_MAX => usize::try_from(n).ok(),
            _ if is_least => {
                return Err(format!("{name}: {n} is too many; the limit is {COUNT_MAX}"));
            }
            _ => None,
        };
    }
    Ok(counts)
}

/// The repetition of a character that keeps a string within the lengths of `schema`, if it names any.
fn times(schema: &Keywords) -> Option<String> {
    let limit = |name: &str| schema.get(name).and_then(Value::as_u64).filter(|n| *n <= LENGTH_MAX);
    let (min, max) = (limit("minLength"), limit("maxLength"));
    let max = max.filter(|max| min.is_none_or(|min| min <= *max));
    (min.is_some() || max.is_some()).then(|| {
        let max = max.map_or(String::new(), |max| max.to_string());
        format!("{{{},{max}}}", min.unwrap_or(0))
    })
}

/// Refuses keywords that no grammar of calls follows.
fn check(schema: &Keywords) -> Result<(), String> {
    let foreign: Vec<&str> =
        FOREIGN.iter().copied().filter(|name| schema.contains_key(*name)).collect();
    match foreign.is_empty() {
        true => Ok(()),
        false => Err(format!("Unimplemented keys: {foreign:?}")),
    }
}
