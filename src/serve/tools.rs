//! Tools that a model may call: what it is told of them, and what it calls.
//!
//! The words are those of Hermes, which Qwen's templates use: functions stand as JSON behind the
//! instructions, a call is `<tool_call>`, a JSON object with `name` and `arguments`, `</tool_call>`, and what comes of
//! it is `<tool_response>` in a user's turn.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Serializer, Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::grammar::{GrammarFilter, Grammars, Sign, check_len, with_options};
use crate::format::ChatTemplate;

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";
/// Most tools of a request.
const TOOLS_MAX: usize = 128;

/// The tools of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tools {
    /// As the client wrote them.
    definitions: Vec<Value>,
    choice: ToolChoice,
    /// Whether an answer may have several calls.
    may_repeat: bool,
}

/// Whether a model calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolChoice {
    /// As it likes.
    Auto,
    /// One at least.
    Required,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    /// A JSON object, as text.
    pub(super) arguments: String,
}

/// Whether a template has words for tools.
pub(super) fn has_words(template: ChatTemplate) -> bool {
    matches!(template, ChatTemplate::ChatMl | ChatTemplate::Qwen3)
}

impl Tools {
    /// Reads `tools` and `tool_choice`; `None` if there are none that may be called.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Tools>, ApiError> {
        let definitions = fields.array("tools")?.unwrap_or_default();
        if definitions.len() > TOOLS_MAX {
            return Err(fields.bad("tools", &format!("has more than {TOOLS_MAX} elements")));
        }
        let mut names = Vec::new();
        for (index, tool) in definitions.iter().enumerate() {
            let tool = Fields::of(tool, &format!("tools[{index}]"))?;
            if tool.string("type")?.is_some_and(|kind| kind != "function") {
                return Err(tool.bad("type", "is not function"));
            }
            let function =
                tool.get("function").ok_or_else(|| tool.bad("function", "is missing"))?;
            let function = Fields::of(function, &tool.path_of("function"))?;
            let name = function.string("name")?.filter(|name| !name.is_empty());
            names.push(name.ok_or_else(|| function.bad("name", "is missing"))?);
            if function.get("parameters").is_some_and(|parameters| !parameters.is_object()) {
                return Err(function.bad("parameters", "is no schema"));
            }
        }
        let mut definitions = definitions.to_vec();
        let may_repeat = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        let choice = match fields.get("tool_choice") {
            None => ToolChoice::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(None),
                "auto" => ToolChoice::Auto,
                "required" => ToolChoice::Required,
                _ => return Err(fields.bad("tool_choice", "is none of none, auto and required")),
            },
            Some(named) => {
                let name = named.pointer("/function/name").and_then(Value::as_str);
                let at = names.iter().position(|known| Some(*known) == name);
                let at = at.ok_or_else(|| fields.bad("tool_choice", "names none of the tools"))?;
                definitions = vec![definitions.swap_remove(at)];
                ToolChoice::Required
            }
        };
        match (definitions.is_empty(), choice) {
            (true, ToolChoice::Required) => Err(fields.bad("tool_choice", "needs tools")),
            (true, ToolChoice::Auto) => Ok(None),
            (false, choice) => Ok(Some(Tools { definitions, choice, may_repeat })),
        }
    }

    /// Whether the answer is a call.
    pub(super) fn is_required(&self) -> bool {
        self.choice == ToolChoice::Required
    }

    /// The instructions with what the model is told of its tools.
    pub(super) fn instructions(&self, system: &str) -> String {
        let gap = if system.is_empty() { "" } else { "\n\n" };
        let lines: Vec<String> = self.definitions.iter().map(dumped).collect();
        format!(
            "{system}{gap}# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
             You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n\
             </tools>\n\nFor each function call, return a json object with function name and arguments \
             within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": <function-name>, \
             \"arguments\": <args-json-object>}}\n</tool_call>",
            lines.join("\n")
        )
    }

    /// What calls have to look like in a text that `stop_ids` end. In thoughts, with which it may
    /// begin, there are none.
    ///
    /// # Errors
    /// If a tool's parameters are no schema that can be followed.
    pub(super) fn filter(
        &self,
        grammars: &Grammars,
        (begins_thinking, stop_ids): (bool, &[u32]),
    ) -> Result<GrammarFilter, String> {
        let call = |tool: &Value| {
            let function = &tool["function"];
            let any = json!({"type": "object"});
            let arguments = function.get("parameters").unwrap_or(&any);
            json!({"type": "object", "additionalProperties": false, "required": ["name", "arguments"],
                "properties": {"name": {"const": function["name"]}, "arguments": arguments}})
        };
        let calls: Vec<Value> = self.definitions.iter().map(call).collect();
        let body = json!({"anyOf": calls});
        check_len(&body)?;
        let body = with_options(body);
        let more = if self.may_repeat { format!("(\"\\n{BEGIN}\" rest)?") } else { String::new() };
        let rest = format!("rest: \"\\n\" body \"\\n{END}\" {more}\nbody: %json {body}\n");
        match self.choice {
            ToolChoice::Required => {
                grammars.lark(format!("start: \"{BEGIN}\" rest\n{rest}"), None, stop_ids)
            }
            ToolChoice::Auto => {
                let sign = Sign::new(BEGIN, begins_thinking);
                grammars.lark(format!("start: rest\n{rest}"), Some(sign), stop_ids)
            }
        }
    }
}

impl ToolCall {
    /// As it stands in the model's text.
    pub(super) fn text(&self) -> String {
        let (name, arguments) = (json!(self.name), &self.arguments);
        format!("{BEGIN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{END}")
    }

    /// Reads an element of a message's `tool_calls`: OpenAI's arguments are text, Ollama's an object.
    pub(super) fn read(value: &Value, path: &str) -> Result<ToolCall, ApiError> {
        let function = Fields::of(&value["function"], &format!("{path}.function"))?;
        let name = function.string("name")?.ok_or_else(|| function.bad("name", "is missing"))?;
        let bad = || function.bad("arguments", "is no JSON object");
        let arguments: Value = match function.get("arguments") {
            Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| bad())?,
            Some(value) => value.clone(),
            None => json!({}),
        };
        match arguments.is_object() {
            true => Ok(ToolCall { name: name.to_owned(), arguments: dumped(&arguments) }),
            false => Err(bad()),
        }
    }

    /// Reads what a model wrote between the signs of a call.
    fn parse(body: &str) -> Option<ToolCall> {
        let call: Value = serde_json::from_str(body).ok()?;
        let arguments = call.get("arguments").filter(|arguments| arguments.is_object())?;
        Some(ToolCall { name: call["name"].as_str()?.to_owned(), arguments: dumped(arguments) })
    }
}

/// What comes of a call, as the model is told.
pub(super) fn response(content: &str) -> String {
    format!("<tool_response>\n{content}\n</tool_response>")
}

/// Finds calls in a text that comes in pieces. What may be the start of a sign is held back.
#[derive(Clone, Default)]
pub(super) struct CallFilter {
    held: String,
    is_call: bool,
}

impl CallFilter {
    /// Takes more text; adds what is sure to be none of a call to `text`, and calls to `calls`.
    pub(super) fn push(&mut self, more: &str, text: &mut String, calls: &mut Vec<ToolCall>) {
        self.held += more;
        loop {
            let sign = if self.is_call { END } else { BEGIN };
            let Some(at) = self.held.find(sign) else { break };
            let rest = self.held.split_off(at + sign.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            match (self.is_call, ToolCall::parse(&before)) {
                (true, Some(call)) => calls.push(call),
                (true, None) => *text += &format!("{BEGIN}{before}{END}"),
                // Line breaks between a text and a call belong to neither.
                (false, _) => *text += before.trim_end_matches('\n'),
            }
            self.is_call = !self.is_call;
        }
        if !self.is_call {
            let n = self.held.len() - open_len(&self.held);
            *text += &self.held[..n];
            self.held.drain(..n);
        }
    }

    /// The text has ended.
    pub(super) fn flush(&mut self, text: &mut String) {
        let held = std::mem::take(&mut self.held);
        match self.is_call {
            true => *text += &format!("{BEGIN}{held}"),
            false => *text += &held,
        }
    }
}

/// Bytes at the end of `text` that may be line breaks and the start of a call.
fn open_len(text: &str) -> usize {
    let sign = (1..BEGIN.len()).rev().find(|&n| text.ends_with(&BEGIN[..n])).unwrap_or(0);
    let before = &text[..text.len() - sign];
    sign + before.len() - before.trim_end_matches('\n').len()
}

/// JSON with spaces behind commas and colons, as templates write it.
fn dumped(value: &Value) -> String {
    let mut bytes = Vec::new();
    // Writing to memory does not fail, and values have no keys that are no strings.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced));
    String::from_utf8(bytes).unwrap_or_default()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        if is_first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        if is_first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_apart_from_the_text_however_it_is_cut() {
        let text = "I look.\n<tool_call>\n{\"name\": \"at\", \"arguments\": {\"x\":[1,2]}}\n</tool_call>\n\
                    <tool_call>\nnothing\n</tool_call> <tool";
        for cut in 0..=text.len() {
            let (mut filter, mut rest, mut calls) =
                (CallFilter::default(), String::new(), Vec::new());
            filter.push(&text[..cut], &mut rest, &mut calls);
            filter.push(&text[cut..], &mut rest, &mut calls);
            filter.flush(&mut rest);
            let arguments = "{\"x\": [1, 2]}".to_owned();
            assert_eq!(calls, [ToolCall { name: "at".to_owned(), arguments }], "cut at {cut}");
            assert_eq!(rest, "I look.<tool_call>\nnothing\n</tool_call> <tool", "cut at {cut}");
        }
    }

    #[test]
    fn what_is_wrong_with_tools_is_named() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        for (body, wanted) in [
            (json!({"tools": [{"type": "x"}]}), "tools[0].type"),
            (json!({"tools": [{"function": {}}]}), "tools[0].function.name"),
            (
                json!({"tools": [{"function": {"name": "f", "parameters": 3}}]}),
                "tools[0].function.parameters",
            ),
            (json!({"tools": [tool], "tool_choice": "perhaps"}), "tool_choice"),
            (json!({"tools": [tool], "tool_choice": {"function": {"name": "g"}}}), "tool_choice"),
            (json!({"tool_choice": "required"}), "tool_choice"),
        ] {
            let error = Tools::read(&Fields::of(&body, "").unwrap()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(wanted), "{body}");
        }
        let none = json!({"tools": [tool], "tool_choice": "none"});
        assert_eq!(Tools::read(&Fields::of(&none, "").unwrap()), Ok(None));
    }
}
