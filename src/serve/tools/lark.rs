//! The grammar of calls, in llguidance's dialect of Lark.

use serde_json::{Value, json};

use super::super::grammar::with_options;
use super::marks::{Arguments, ID, Marks, Pairs, Values};
use super::values::Types;
use crate::format::json;
use crate::tokenizer::Tokenizer;

/// An id, or a name of which nothing is known.
const WORD: &str = "/[A-Za-z0-9_-]{1,64}/";
const ANY_TEXT: &str = "/(?s:.*)/";

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
                _ => self.text(&format!("{name}{}", self.marks.middle)),
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
                    self.pair(pairs, &format!("{tool}_{at}"), key, (value, schema));
                }
            }
        }
    }

    /// Any arguments of a tool.
    fn any_arguments(&mut self, tool: usize, pairs: &Pairs) {
        let any = json!({});
        let name = format!("{tool}_any");
        self.pair(pairs, &name, &ID.to_string(), (&any, &any));
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

    /// The rule `pair{name}` of one argument, whose schema refers to `root`.
    fn pair(&mut self, pairs: &Pairs, name: &str, key: &str, (schema, root): (&Value, &Value)) {
        let types = Types::of(schema, root);
        let takes_strings = types.allow_strings();
        let equals = &pairs.equals[usize::from(!takes_strings)];
        let open = self.text(&format!("{}{key}{equals}", pairs.open));
        let close = self.text(&pairs.close);
        let texts = texts(schema);
        let value = match (&pairs.values, texts) {
            (Values::Plain, Some(texts)) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("({}) {close}", texts.join(" | "))
            }
            (Values::Plain, None) if takes_strings => {
                // The text ends where its mark begins, up to a special token.
                let close = pairs.close.trim_start();
                let n = self.tokenizer.controls(close).first().map(|(name, _)| name.start);
                let sign = close[..n.unwrap_or(close.len())].trim_end();
                let suffix = match sign {
                    "" => String::new(),
                    sign => format!("[suffix={}]", quoted(sign)),
                };
                self.put(format!("text{name}{suffix}: {ANY_TEXT}"));
                format!("text{name} {}", self.text(&close[sign.len()..]))
            }
            (Values::Plain, None) => {
                let mut schema = schema.clone();
                for defs in ["$defs", "definitions"] {
                    if let (Some(known), Some(schema)) = (root.get(defs), schema.as_object_mut()) {
                        schema.insert(defs.to_owned(), known.clone());
                    }
                }
                let schema = json::compact(&with_options(schema));
                self.put(format!("value{name}: %json {schema}"));
                format!("value{name} {close}")
            }
            (values, Some(texts)) => {
                let mark = match values {
                    Values::Marked(mark) => mark,
                    Values::Python | Values::Plain => "",
                };
                let one = |text: &&str| match mark {
                    "" => quoted(&quoted(text)),
                    mark => self.text(&format!("{mark}{text}{mark}")),
                };
                let texts: Vec<String> = texts.iter().map(one).collect();
                format!("({}) {close}", texts.join(" | "))
            }
            (_, None) => {
                self.literals(pairs);
                let is_whole = schema["type"] == "integer";
                format!("({}) {close}", literal_rules(types, is_whole).join(" | "))
            }
        };
        self.put(format!("pair{name}: {open} {value}"));
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

/// The values that a schema allows, if all of them are strings.
fn texts(schema: &Value) -> Option<Vec<&str>> {
    match (schema["const"].as_str(), schema["enum"].as_array()) {
        (Some(text), _) => Some(vec![text]),
        (None, Some(values)) if !values.is_empty() => values.iter().map(Value::as_str).collect(),
        (None, _) => None,
    }
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
