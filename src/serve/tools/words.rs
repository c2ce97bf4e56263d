//! Formats of tools in chat templates, exactly as the published templates write them.
//!
//! ```text
//! hermes   behind the instructions: # Tools … <tools>↵{…}↵{…}↵</tools> …
//!          <tool_call>↵{"name": N, "arguments": A}↵</tool_call>
//!          a user's turn: <tool_response>↵R↵</tool_response>
//! llama3   before the first user's text: Given the following functions … {…}↵↵{…}↵↵
//!          {"name": N, "parameters": A}                             (one call, and nothing else)
//!          a turn of ipython: R as a JSON string
//! mistral  before the last user's turn: [AVAILABLE_TOOLS] [{…}, {…}][/AVAILABLE_TOOLS]
//!          [TOOL_CALLS] [{"name": N, "arguments": A, "id": I}, {…}]    (the model leaves ids out)
//!          [TOOL_RESULTS] {"content": R, "call_id": I}[/TOOL_RESULTS]
//! ```
//!
//! Qwen's templates use the format of Hermes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::call::ToolCall;
use super::families::{HERMES, LLAMA3, MISTRAL};
use super::marks::Marks;
use super::own::OwnWords;
use crate::format::ChatTemplate;
use crate::format::json::{self, JsonObject};
use crate::tokenizer::{ChatRole, Tokenizer};

/// How a conversation speaks of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Words {
    Hermes,
    Llama3,
    Mistral,
    /// The checkpoint's own template speaks of them.
    Own(Arc<OwnWords>),
}

impl Words {
    /// The words of `template`, if it has any.
    pub(in crate::serve) fn of(template: ChatTemplate) -> Option<Words> {
        match template {
            ChatTemplate::ChatMl | ChatTemplate::Qwen3 => Some(Words::Hermes),
            ChatTemplate::Llama3 => Some(Words::Llama3),
            ChatTemplate::MistralV3 => Some(Words::Mistral),
            _ => None,
        }
    }

    pub(super) fn marks(&self) -> Arc<Marks> {
        match self {
            Words::Hermes => Arc::new(HERMES),
            Words::Llama3 => Arc::new(LLAMA3),
            Words::Mistral => Arc::new(MISTRAL),
            Words::Own(own) => Arc::clone(&own.marks),
        }
    }

    /// Whether an answer may have several calls.
    pub(in crate::serve) fn repeats(&self) -> bool {
        self.marks().next.is_some()
    }

    /// Whether calls need ids that the model can read: nine letters and digits.
    pub(in crate::serve) fn needs_ids(&self) -> bool {
        *self == Words::Mistral
    }

    /// Whether calls have special tokens, so that the answer's text has to name these.
    pub(in crate::serve) fn names_special(&self, tokenizer: &Tokenizer) -> bool {
        let marks = self.marks();
        marks.texts().any(|text| !tokenizer.controls(text).is_empty())
    }

    /// The description of the tools for the model. In Hermes's format it follows the instructions.
    pub(super) fn definitions(&self, tools: &[Value]) -> String {
        match self {
            Words::Hermes => {
                let lines: Vec<String> = tools.iter().map(json::spaced).collect();
                format!(
                    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
                     You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n\
                     </tools>\n\nFor each function call, return a json object with function name and arguments \
                     within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": <function-name>, \
                     \"arguments\": <args-json-object>}}\n</tool_call>",
                    lines.join("\n")
                )
            }
            Words::Llama3 => {
                let all: String = tools.iter().map(|tool| json::indented(tool) + "\n\n").collect();
                format!(
                    "Given the following functions, please respond with a JSON for a function call \
                     with its proper arguments that best answers the given prompt.\n\n\
                     Respond in the format {{\"name\": function name, \"parameters\": dictionary of \
                     argument name and its value}}.Do not use variables.\n\n{all}"
                )
            }
            Words::Mistral => {
                let all: Vec<String> = tools.iter().map(mistral_definition).collect();
                format!("[{}]", all.join(", "))
            }
            // The template writes it.
            Words::Own(_) => String::new(),
        }
    }

    /// The role and text of a message with `calls`. The calls follow `text`, if the template has a place for it.
    pub(in crate::serve) fn calls(&self, text: &str, calls: &[ToolCall]) -> (ChatRole, String) {
        let named = |ToolCall { name, arguments, .. }: &ToolCall, word: &str| {
            JsonObject::new().string("name", name).raw(word, arguments)
        };
        match self {
            Words::Hermes => {
                let call = |call: &ToolCall| {
                    format!("<tool_call>\n{}\n</tool_call>", named(call, "arguments").text())
                };
                let text = (!text.is_empty()).then(|| text.to_owned());
                let lines: Vec<String> = text.into_iter().chain(calls.iter().map(call)).collect();
                (ChatRole::Assistant, lines.join("\n"))
            }
            Words::Llama3 => {
                let all: String =
                    calls.iter().map(|call| named(call, "parameters").text()).collect();
                (ChatRole::Calls, all)
            }
            Words::Mistral => {
                let call = |call: &ToolCall| named(call, "arguments").string("id", &call.id).text();
                let all: Vec<String> = calls.iter().map(call).collect();
                (ChatRole::Calls, format!("[{}]", all.join(", ")))
            }
            Words::Own(_) => (ChatRole::Calls, text.to_owned()),
        }
    }

    /// The role and text of the result of the call `id`.
    pub(in crate::serve) fn result(&self, content: &str, id: &str) -> (ChatRole, String) {
        match self {
            Words::Hermes => {
                (ChatRole::User, format!("<tool_response>\n{content}\n</tool_response>"))
            }
            Words::Llama3 => (ChatRole::Tool, json::compact(&json!(content))),
            Words::Mistral => {
                let object = JsonObject::new().raw("content", content).string("call_id", id);
                (ChatRole::Tool, object.text())
            }
            Words::Own(_) => (ChatRole::Tool, content.to_owned()),
        }
    }
}

/// A function in Mistral's format, which does not escape the function's own strings.
fn mistral_definition(tool: &Value) -> String {
    let fields = tool["function"].as_object().into_iter().flatten();
    let field = |object: JsonObject, (key, value): (&String, &Value)| match value {
        Value::String(text) => object.raw(key, &format!("\"{text}\"")),
        value => object.raw(key, &json::spaced(value)),
    };
    let function = fields.filter(|(key, _)| *key != "return").fold(JsonObject::new(), field).text();
    JsonObject::new().string("type", "function").raw("function", &function).text()
}
