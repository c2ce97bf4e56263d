//! A made-up template of any texts, from which marks are learned: for the fuzzer, and for random texts in a test.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::filter::{CallFilter, CallPiece, joined};
use super::super::lark::Lark;
use super::super::marks::Arguments;
use super::{IDS, Probe, TOOLS};
use crate::tokenizer::Tokenizer;

/// Separates the texts of a template.
const CUT: char = '\n';
/// A special token, and the one that ends answers.
const TOKENS: [&str; 2] = ["<|t|>", "<|end|>"];

/// A template whose texts are anything.
struct Made<'a> {
    /// How arguments are written, and what else differs between families.
    kind: u8,
    /// Before answers, before calls, behind a name, before a key, behind it, around a string, behind a value, between
    /// arguments, between calls, behind them, and behind a message.
    texts: [&'a str; 11],
}

impl Made<'_> {
    fn write(&self, messages: &[Value], begins_answer: bool) -> String {
        let [prompt, open, .., next, end, close] = self.texts;
        let mut out = String::new();
        for message in messages {
            let is_answer = message["role"] == "assistant";
            out += if is_answer { prompt } else { "<|user|>" };
            out += message["content"].as_str().unwrap_or_default();
            let calls = message["tool_calls"].as_array();
            for (index, call) in calls.into_iter().flatten().enumerate() {
                out += if index == 0 { open } else { next };
                out += &self.call(call, index);
            }
            out += if calls.is_some() { end } else { "" };
            out += close;
        }
        out + if begins_answer { prompt } else { "" }
    }

    fn call(&self, call: &Value, index: usize) -> String {
        let [_, _, middle, before, equals, quote, behind, comma, ..] = self.texts;
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let arguments = match &function["arguments"] {
            Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
            object => object.clone(),
        };
        let id = [String::new(), IDS[index % 2].to_owned(), index.to_string()];
        let middle = format!("{middle}{}", id[usize::from(self.kind >> 3) % 3]);
        if self.kind & 1 == 0 {
            return format!("{name}{middle}{arguments}");
        }
        let one = |(key, value): (&String, &Value)| match value {
            Value::String(text) => format!("{before}{key}{equals}{quote}{text}{quote}{behind}"),
            value => format!("{before}{key}{equals}{value}{behind}"),
        };
        let all: Vec<String> = arguments.as_object().into_iter().flatten().map(one).collect();
        format!("{name}{middle}{}", all.join(comma))
    }
}

/// Learns from a template of these bytes, and finds calls in a text of them. Returns the grammar of calls, if there is one.
pub(in crate::serve) fn learn(bytes: &[u8], tokenizer: &Tokenizer) -> Option<String> {
    let (kind, texts) = bytes.split_first()?;
    let texts = String::from_utf8_lossy(texts).replace('\t', TOKENS[0]).replace('\r', TOKENS[1]);
    let mut parts = texts.splitn(12, CUT);
    let made =
        Made { kind: *kind, texts: std::array::from_fn(|_| parts.next().unwrap_or_default()) };
    let text = parts.next().unwrap_or_default();
    let write = |messages: &[Value], begins: bool| Some(made.write(messages, begins));
    let names = |text: &str| {
        let found = TOKENS.iter().flat_map(|name| text.match_indices(name));
        found.map(|(at, name)| at..at + name.len()).collect()
    };
    let stops = vec![TOKENS[1].to_owned()];
    let takes_text = kind & 2 != 0;
    let marks = Probe { write: &write, names: &names, stops, takes_text }.marks()?;
    let has_pairs = matches!(marks.arguments, Arguments::Pairs(_));
    let marks = Arc::new(marks);
    let schema = json!({"type": "object", "properties": {"aq": {"type": "integer"}, "bq": {"pattern": "a|b$"}}});
    let schemas: Arc<[(String, Value)]> = [(TOOLS[0].to_owned(), schema.clone())].into();
    let found = |parts: &[&str]| {
        let is_forced = kind & 4 != 0;
        let mut filter = CallFilter::new(Arc::clone(&marks), Arc::clone(&schemas), is_forced);
        let (mut rest, mut pieces) = (String::new(), Vec::new());
        parts.iter().for_each(|part| filter.push(part, &mut rest, &mut pieces));
        filter.flush(false, &mut rest, &mut pieces);
        (rest, pieces)
    };
    let call = json!({"function": {"name": TOOLS[0], "arguments": {"aq": 7, "bq": text}}});
    let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    for text in [text, &made.write(&[message], false)] {
        let (_, pieces) = found(&[text]);
        let n_ended = pieces.iter().filter(|piece| **piece == CallPiece::End).count();
        for call in joined(&pieces).iter().take(n_ended).filter(|_| has_pairs) {
            serde_json::from_str::<Value>(&call.arguments)
                .expect("arguments that are over are JSON");
        }
        let middle = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
        let (start, end) = text.split_at(middle);
        let cut = found(&[start, end]);
        let whole = found(&[text]);
        assert_eq!((&whole.0, joined(&whole.1)), (&cut.0, joined(&cut.1)), "{marks:?} {text:?}");
    }
    let lark = Lark::new(&marks, tokenizer);
    let sign = lark.sign();
    let grammar = lark.rest(&[(TOOLS[0].to_owned(), schema)], true).ok()?;
    Some(format!("start: {sign} rest\n{}", grammar.rules))
}
