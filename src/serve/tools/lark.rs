//! The grammar of calls, in llguidance's dialect of Lark.

use serde_json::{Value, json};

use super::super::grammar::with_options;
use super::literals::Literals;
use super::marks::{Arguments, Marks};
use super::rules::{Rules, quoted};
use crate::format::json;
use crate::tokenizer::Tokenizer;

/// Writes the grammar of calls.
pub(super) struct Lark<'a> {
    marks: &'a Marks,
    rules: Rules<'a>,
    /// Schemas of strings in the grammar.
    strings: Vec<Value>,
}

/// The grammar of calls.
pub(super) struct Grammar {
    /// The rule `rest` for the text behind the sign, and the rules that it uses.
    pub(super) rules: String,
    /// A schema that can be followed as JSON if all patterns of the grammar can.
    pub(super) patterns: Option<Value>,
}

/// Checks that values of `schema` have a grammar in arguments with these marks.
///
/// # Errors
/// The keyword that cannot be followed, and why.
pub(super) fn check(marks: &Marks, tokenizer: &Tokenizer, schema: &Value) -> Result<(), String> {
    let Arguments::Pairs(pairs) = &marks.arguments else { return Ok(()) };
    Literals::new(&mut Rules::new(tokenizer), pairs, schema).argument(schema).map(drop)
}

impl<'a> Lark<'a> {
    pub(super) fn new(marks: &'a Marks, tokenizer: &'a Tokenizer) -> Lark<'a> {
        Lark { marks, rules: Rules::new(tokenizer), strings: Vec::new() }
    }

    /// The sign of calls.
    pub(super) fn sign(&self) -> String {
        self.rules.mark(&self.marks.sign)
    }

    /// The grammar of the text behind the sign. There are these tools, each with the schema of its arguments, and several
    /// calls if they `may_repeat`.
    ///
    /// # Errors
    /// The keyword of a schema that cannot be followed, and why.
    pub(super) fn rest(
        mut self,
        tools: &[(String, Value)],
        may_repeat: bool,
    ) -> Result<Grammar, String> {
        let mut names = Vec::new();
        let tail = self.marks.tail.as_deref().map(|tail| format!("({})?", self.rules.mark(tail)));
        let tail = tail.unwrap_or_default();
        for (index, (name, schema)) in tools.iter().enumerate() {
            let name = if self.marks.quotes_names { quoted(name) } else { name.clone() };
            let head = match self.marks.arguments {
                Arguments::Message => format!("{} {}", quoted(&name), self.header()),
                // A client's name is text, whatever it spells.
                _ => format!("{} {}", quoted(&name), self.rules.mark(&self.marks.middle)),
            };
            let arguments = self.arguments(schema)?;
            self.rules.put(&format!("arguments{index}"), &arguments);
            self.rules.put(&format!("call{index}"), &format!("{head} arguments{index} {tail}"));
            names.push(format!("call{index}"));
        }
        let more = match self.marks.next.as_deref().filter(|_| may_repeat) {
            Some(next) => format!("({} call)*", self.rules.mark(next)),
            None => String::new(),
        };
        let [head, end] = [&self.marks.head, &self.marks.end].map(|mark| self.rules.mark(mark));
        self.rules.put("rest", &format!("{head} call {more} {end}"));
        self.rules.put("call", &names.join(" | "));
        let patterns = (!self.strings.is_empty()).then(|| {
            let required: Vec<String> = (0..self.strings.len()).map(|at| at.to_string()).collect();
            let properties = required.iter().cloned().zip(self.strings);
            let properties: serde_json::Map<String, Value> = properties.collect();
            json!({"type": "object", "properties": properties, "required": required})
        });
        Ok(Grammar { rules: self.rules.into_text(), patterns })
    }

    /// The header of a message behind the name of its function, in all its forms.
    fn header(&self) -> String {
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|name| self.rules.mark(name));
        format!(
            "({channel} \"commentary\")? ((\" \"? {constrain} \" \"? | \" \") \"json\")? {message}"
        )
    }

    /// A tool's arguments.
    fn arguments(&mut self, schema: &Value) -> Result<String, String> {
        match &self.marks.arguments {
            Arguments::Json | Arguments::Message => {
                let schema = json::compact(&with_options(schema.clone()));
                Ok(format!("%json {schema}"))
            }
            Arguments::Pairs(pairs) => {
                let mut literals = Literals::new(&mut self.rules, pairs, schema);
                let arguments = literals.arguments()?;
                self.strings.append(&mut literals.into_checks());
                Ok(arguments)
            }
        }
    }
}
