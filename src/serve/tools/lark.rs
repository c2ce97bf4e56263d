//! The grammar of calls, in llguidance's dialect of Lark.

use serde_json::{Value, json};

use super::super::grammar::with_options;
use super::marks::{Arguments, ID, Marks, Pairs, Values};
use super::values::{Choice, Types, choices, python};
use crate::format::json;
use crate::tokenizer::Tokenizer;

/// An id, or a name of which nothing is known.
const WORD: &str = "/[A-Za-z0-9_-]{1,64}/";
const ANY_TEXT: &str = "/(?s:.*)/";
/// Longest string whose length is kept within limits.
const LENGTH_MAX: u64 = 4096;

/// Writes the grammar of calls.
pub(super) struct Lark<'a> {
    marks: &'a Marks,
    tokenizer: &'a Tokenizer,
    rules: String,
}

impl<'a> Lark<'a> {
    pub(super) fn new(marks: &'a Marks, tokenizer: &'a Tokenizer) -> Lark<'a> {
        Lark { marks, tokenizer, rules: String::new() }
    }

    /// The sign of calls.
    pub(super) fn sign(&self) -> String {
        self.text(&self.marks.sign)
    }

    /// The rule `rest` for the text behind the sign, and the rules that it uses. There are these tools, each with the
    /// schema of its arguments, and several calls if they `may_repeat`.
    pub(super) fn rest(mut self, tools: &[(String, Value)], may_repeat: bool) -> String {
        let mut names = Vec::new();
        let tail = self.marks.tail.as_deref().map(|tail| format!("({})?", self.text(tail)));
        let tail = tail.unwrap_or_default();
        for (index, (name, schema)) in tools.iter().enumerate() {
            let name = if self.marks.quotes_names { quoted(name) } else { name.clone() };
            let head = match self.marks.arguments {
                Arguments::Message => format!("{} {}", quoted(&name), self.header()),
                // A client's name is text, whatever it spells.
                _ => format!("{} {}", quoted(&name), self.text(&self.marks.middle)),
            };
            self.put(format!("call{index}: {head} arguments{index} {tail}"));
            self.arguments(index, schema);
            names.push(format!("call{index}"));
        }
        let more = match self.marks.next.as_deref().filter(|_| may_repeat) {
            Some(next) => format!("({} call)*", self.text(next)),
            None => String::new(),
        };
        let [head, end] = [&self.marks.head, &self.marks.end].map(|mark| self.text(mark));
        self.put(format!("rest: {head} call {more} {end}"));
        self.put(format!("call: {}", names.join(" | ")));
        self.rules
    }

    fn put(&mut self, rule: String) {
        self.rules += &rule;
        self.rules.push('\n');
    }

    /// `text`, in which special tokens are named, and [`ID`] stands for any id.
    fn text(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), 0);
        for (name, id) in self.tokenizer.controls(text) {
            parts.extend(plain(&text[rest..name.start]));
            parts.push(format!("<[{id}]>"));
            rest = name.end;
        }
        parts.extend(plain(&text[rest..]));
        match parts.is_empty() {
            true => quoted(""),
            false => parts.join(" "),
        }
    }

    /// The header of a message behind the name of its function, in all its forms.
    fn header(&self) -> String {
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|name| self.text(name));
        format!(
            "({channel} \"commentary\")? ((\" \"? {constrain} \" \"? | \" \") \"json\")? {message}"
        )
    }

    /// The rule of a tool's arguments.
    fn arguments(&mut self, tool: usize, schema: &Value) {
        let marks = self.marks;
        match (&marks.arguments, schema["properties"].as_object()) {
            (Arguments::Json | Arguments::Message, _) => {
                let schema = json::compact(&with_options(schema.clone()));
                self.put(format!("arguments{tool}: %json {schema}"));
            }
            (Arguments::Pairs(pairs), None) => self.any_arguments(tool, pairs),
            (Arguments::Pairs(pairs), Some(properties)) => {
                let names = schema["required"].as_array();
                let is_required =
                    |key: &str| names.is_some_and(|names| names.contains(&json!(key)));
                let keys: Vec<(&str, bool)> =
                    properties.keys().map(|key| (key.as_str(), is_required(key))).collect();
                self.chain(tool, pairs, &keys);
                for (at, (key, value)) in properties.iter().enumerate() {
                    self.pair(pairs, &format!("{tool}_{at}"), Some(key), (value, schema));
                }
            }
        }
    }

    /// Any arguments of a tool.
    fn any_arguments(&mut self, tool: usize, pairs: &Pairs) {
        let any = json!({});
        let name = format!("{tool}_any");
        self.pair(pairs, &name, None, (&any, &any));
        let comma = self.text(&pairs.comma);
        self.put(format!("arguments{tool}: \"\" | pair{name} ({comma} pair{name})*"));
    }

    /// The rule of arguments in the order of `keys`, each with whether it is required.
    fn chain(&mut self, tool: usize, pairs: &Pairs, keys: &[(&str, bool)]) {
        let comma = self.text(&pairs.comma);
        for (at, (_, is_required)) in keys.iter().enumerate() {
            let next = at + 1;
            for (name, comma) in [("first", ""), ("more", comma.as_str())] {
                let without =
                    if *is_required { String::new() } else { format!(" | {name}{tool}_{next}") };
                self.put(format!(
                    "{name}{tool}_{at}: {comma} pair{tool}_{at} more{tool}_{next}{without}"
                ));
            }
        }
        for name in ["first", "more"] {
            self.put(format!("{name}{tool}_{}: \"\"", keys.len()));
        }
        self.put(format!("arguments{tool}: first{tool}_0"));
    }

    /// The rule `pair{name}` of one argument, which may have any `key` if there is none. Its schema refers to `root`.
    fn pair(
        &mut self,
        pairs: &Pairs,
        name: &str,
        key: Option<&str>,
        (schema, root): (&Value, &Value),
    ) {
        let takes_strings = Types::of(schema, root).allow_strings();
        let equals = self.text(&pairs.equals[usize::from(!takes_strings)]);
        let key = key.map_or_else(|| WORD.to_owned(), quoted);
        let value = match &pairs.values {
            Values::Plain => self.plain_value(pairs, name, (schema, root)),
            Values::Python | Values::Marked(_) => self.literal_value(pairs, (schema, root)),
        };
        let [open, close] = [&pairs.open, &pairs.close].map(|mark| self.text(mark));
        let close = if takes_any_text(pairs, schema, root) { "" } else { &close };
        self.put(format!("pair{name}: {open} {key} {equals} {value} {close}"));
    }

    /// The value of a schema where strings stand as they are. Any text has its closing mark with it.
    fn plain_value(
        &mut self,
        pairs: &Pairs,
        name: &str,
        (schema, root): (&Value, &Value),
    ) -> String {
        if takes_any_text(pairs, schema, root) {
            // The text ends where its mark begins, up to a special token.
            let close = pairs.close.trim_start();
            let n = self.tokenizer.controls(close).first().map(|(name, _)| name.start);
            let sign = close[..n.unwrap_or(close.len())].trim_end();
            let space = &pairs.close[..pairs.close.len() - close.len()];
            let times = match choices(schema, root)[..] {
                [Choice::Any(schema)] if Types::of(schema, root).are_strings() => times(schema),
                _ => None,
            };
            // White space before the mark would count.
            let times = times.filter(|_| space.is_empty() || !sign.is_empty());
            let (text, space) = match times {
                Some(times) => (format!("/(?s:.{times})/"), space),
                None => (ANY_TEXT.to_owned(), ""),
            };
            let suffix = match sign {
                "" => String::new(),
                sign => format!("[suffix={}]", quoted(&[space, sign].concat())),
            };
            self.put(format!("text{name}{suffix}: {text}"));
            return format!("text{name} {}", self.text(&close[sign.len()..]));
        }
        let mut values = Vec::new();
        for (at, choice) in choices(schema, root).into_iter().enumerate() {
            values.push(match choice {
                Choice::One(Value::String(text)) => quoted(text),
                Choice::One(value) => quoted(&json::compact(value)),
                Choice::Any(schema) => {
                    let schema = json::compact(&with_options(with_definitions(schema, root)));
                    self.put(format!("value{name}_{at}: %json {schema}"));
                    format!("value{name}_{at}")
                }
            });
        }
        format!("({})", values.join(" | "))
    }

    /// The value of a schema as a literal.
    fn literal_value(&mut self, pairs: &Pairs, (schema, root): (&Value, &Value)) -> String {
        self.literals(pairs);
        let mut values = Vec::new();
        for choice in choices(schema, root) {
            match (choice, &pairs.values) {
                (Choice::One(Value::String(text)), Values::Marked(mark)) => {
                    let mark = self.text(mark);
                    values.push(format!("{mark} {} {mark}", quoted(text)));
                }
                (Choice::One(value), _) => values.push(quoted(&python(value))),
                (Choice::Any(schema), _) => {
                    let is_whole = schema["type"] == "integer";
                    let rules = literal_rules(Types::of(schema, root), is_whole);
                    let string = times(schema).map(|times| self.string(&pairs.values, &times));
                    values.extend(rules.into_iter().map(|rule| match (rule, &string) {
                        ("string", Some(string)) => string.clone(),
                        (rule, _) => rule.to_owned(),
                    }));
                }
            }
        }
        format!("({})", values.join(" | "))
    }

    /// A string literal with so many characters.
    fn string(&self, values: &Values, times: &str) -> String {
        match values {
            Values::Marked(mark) => {
                let mark = self.text(mark);
                format!("{mark} /(?s:.{times})/ {mark}")
            }
            Values::Python | Values::Plain => {
                let escape = r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[^ux]";
                format!(r#"(/"([^"\\\n]|{escape}){times}"/ | /'([^'\\\n]|{escape}){times}'/)"#)
            }
        }
    }

    /// The rules of literals, unless they are there.
    fn literals(&mut self, pairs: &Pairs) {
        if self.rules.contains("\nlist:") {
            return;
        }
        let [comma, string, key, equals] = match &pairs.values {
            Values::Marked(mark) => {
                let mark = self.text(mark);
                let string = format!("{mark} {ANY_TEXT} {mark}");
                [self.text(&pairs.comma), string, WORD.to_owned(), self.text(&pairs.equals[1])]
            }
            Values::Python | Values::Plain => {
                let string = r#"/"([^"\\\n]|\\.)*"/ | /'([^'\\\n]|\\.)*'/"#.to_owned();
                [quoted(", "), string, "string".to_owned(), quoted(": ")]
            }
        };
        let [yes, no, none] = match pairs.values {
            Values::Marked(_) => ["true", "false", "null"],
            Values::Python | Values::Plain => ["True", "False", "None"],
        };
        for rule in [
            format!("string: {string}"),
            r"whole: /-?(0|[1-9][0-9]{0,18})/".to_owned(),
            r"number: /-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,2})?/".to_owned(),
            format!("truth: \"{yes}\" | \"{no}\""),
            format!("nothing: \"{none}\""),
            format!("\nlist: \"[\" (literal ({comma} literal)*)? \"]\""),
            format!("object: \"{{\" (field ({comma} field)*)? \"}}\""),
            format!("field: {key} {equals} literal"),
            "literal: string | number | truth | nothing | list | object".to_owned(),
        ] {
            self.put(rule);
        }
    }
}

/// The rules of literals of these types.
fn literal_rules(types: Types, is_whole: bool) -> Vec<&'static str> {
    let number = if is_whole { "whole" } else { "number" };
    let rules = ["string", number, "truth", "nothing", "list", "object"];
    types.each().zip(rules).filter(|(is_allowed, _)| *is_allowed).map(|(_, rule)| rule).collect()
}

/// The repetition of a character that keeps a string within the lengths of `schema`, if it names any.
fn times(schema: &Value) -> Option<String> {
    let limit = |name: &str| schema[name].as_u64().filter(|n| *n <= LENGTH_MAX);
    let (min, max) = (limit("minLength"), limit("maxLength"));
    let max = max.filter(|max| min.is_none_or(|min| min <= *max));
    (min.is_some() || max.is_some()).then(|| {
        let max = max.map_or(String::new(), |max| max.to_string());
        format!("{{{},{max}}}", min.unwrap_or(0))
    })
}

/// Whether a value may be any text that stands as it is. So may one that has its closing mark in it.
fn takes_any_text(pairs: &Pairs, schema: &Value, root: &Value) -> bool {
    let close = pairs.close.trim();
    let is_any = |choice: &Choice<'_>| match choice {
        Choice::One(value) => value.as_str().is_some_and(|text| text.contains(close)),
        Choice::Any(schema) => Types::of(schema, root).allow_strings(),
    };
    pairs.values == Values::Plain && choices(schema, root).iter().any(is_any)
}

/// A part of the schema `root` with the definitions to which it may refer.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    for defs in ["$defs", "definitions"] {
        if let (Some(known), Some(schema)) = (root.get(defs), schema.as_object_mut()) {
            schema.insert(defs.to_owned(), known.clone());
        }
    }
    schema
}

/// `text` without special tokens, in which [`ID`] stands for any id.
fn plain(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for (index, part) in text.split(ID).enumerate() {
        parts.extend((index > 0).then(|| WORD.to_owned()));
        parts.extend((!part.is_empty()).then(|| quoted(part)));
    }
    parts
}

/// `text` as a string literal of a grammar.
fn quoted(text: &str) -> String {
    json::compact(&json!(text))
}
