//! Formats of tools in the templates that have names, as data: a family is a row of [`family`]. Its texts are those of
//! the published templates.
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

use serde_json::{Value, json};

use super::call::{ToolCall, written};
use super::families;
use super::marks::{ID, Marks};
use crate::format::ChatTemplate;
use crate::format::json::{self, JsonObject};
use crate::tokenizer::ChatRole;

/// How the conversations of a family speak of tools.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::serve) struct Family {
    pub(super) marks: Marks,
    pub(super) definitions: Definitions,
    calls: Calls,
    result: Reply,
}

/// The description of the tools for the model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Definitions {
    pub(super) place: Place,
    around: [&'static str; 2],
    between: &'static str,
    spelling: Spelling,
}

/// Place of the definitions in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Behind the instructions.
    Instructions,
    /// Before the first user's text.
    FirstUser,
    /// Before the last user's text.
    LastUser,
}

/// How a definition is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// JSON in one line.
    Line,
    /// JSON in lines with indents.
    Indented,
    /// One line of the function alone, whose own strings are not escaped.
    Unescaped,
}

/// Place of calls in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    /// They stand in an answer, behind its text.
    InAnswer,
    /// They have a turn of their own, whose opening has this beginning of theirs already. There is no place for text.
    Alone(&'static str),
}

/// The result of a call.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    role: ChatRole,
    /// Texts around the result. [`ID`] stands for that of the call.
    around: [&'static str; 2],
    /// Whether the result is written as a JSON string.
    is_string: bool,
}

static HERMES: Family = Family {
    marks: families::HERMES,
    definitions: Definitions {
        place: Place::Instructions,
        around: [
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
             You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
            "\n</tools>\n\nFor each function call, return a json object with function name and arguments \
             within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \
             \"arguments\": <args-json-object>}\n</tool_call>",
        ],
        between: "\n",
        spelling: Spelling::Line,
    },
    calls: Calls::InAnswer,
    result: Reply {
        role: ChatRole::User,
        around: ["<tool_response>\n", "\n</tool_response>"],
        is_string: false,
    },
};

static LLAMA3: Family = Family {
    marks: families::LLAMA3,
    definitions: Definitions {
        place: Place::FirstUser,
        around: [
            "Given the following functions, please respond with a JSON for a function call \
             with its proper arguments that best answers the given prompt.\n\n\
             Respond in the format {\"name\": function name, \"parameters\": dictionary of \
             argument name and its value}.Do not use variables.\n\n",
            "\n\n",
        ],
        between: "\n\n",
        spelling: Spelling::Indented,
    },
    calls: Calls::Alone(""),
    result: Reply { role: ChatRole::Tool, around: ["", ""], is_string: true },
};

static MISTRAL: Family = Family {
    marks: families::MISTRAL,
    definitions: Definitions {
        place: Place::LastUser,
        around: ["[", "]"],
        between: ", ",
        spelling: Spelling::Unescaped,
    },
    calls: Calls::Alone("[TOOL_CALLS] "),
    result: Reply {
        role: ChatRole::Tool,
        around: ["{\"content\": ", ", \"call_id\": \"\u{1}\"}"],
        is_string: false,
    },
};

/// The row of a template, if its conversations have a place for tools.
pub(super) fn family(template: ChatTemplate) -> Option<&'static Family> {
    match template {
        ChatTemplate::ChatMl | ChatTemplate::Qwen3 => Some(&HERMES),
        ChatTemplate::Llama3 => Some(&LLAMA3),
        ChatTemplate::MistralV3 => Some(&MISTRAL),
        _ => None,
    }
}

impl Family {
    /// Whether results name the ids of their calls, which the model reads, then.
    pub(super) fn names_ids(&self) -> bool {
        self.result.around[1].contains(ID)
    }

    /// The role and text of a message with `calls`. The calls follow `text`, if there is a place for it.
    pub(super) fn calls(&self, text: &str, calls: &[ToolCall]) -> (ChatRole, String) {
        let written = written(&self.marks, calls);
        match self.calls {
            Calls::InAnswer if text.is_empty() => (ChatRole::Assistant, written),
            Calls::InAnswer => (ChatRole::Assistant, format!("{text}\n{written}")),
            Calls::Alone(opening) => {
                let rest = written.strip_prefix(opening).unwrap_or(&written);
                (ChatRole::Calls, rest.to_owned())
            }
        }
    }

    /// The role and text of the result of the call `id`.
    pub(super) fn result(&self, content: &str, id: &str) -> (ChatRole, String) {
        let Reply { role, around: [before, behind], is_string } = self.result;
        let behind = behind.replace(ID, id);
        let text = match is_string {
            true => format!("{before}{}{behind}", json::compact(&json!(content))),
            false => format!("{before}{content}{behind}"),
        };
        (role, text)
    }
}

impl Definitions {
    /// The description of `tools`.
    pub(super) fn text(&self, tools: &[Value]) -> String {
        let one = |tool: &Value| match self.spelling {
            Spelling::Line => json::spaced(tool),
            Spelling::Indented => json::indented(tool),
            Spelling::Unescaped => unescaped(tool),
        };
        let all: Vec<String> = tools.iter().map(one).collect();
        let [before, behind] = self.around;
        format!("{before}{}{behind}", all.join(self.between))
    }
}

/// A function, without its result, as Mistral's templates spell it.
fn unescaped(tool: &Value) -> String {
    let fields = tool["function"].as_object().into_iter().flatten();
    let field = |object: JsonObject, (key, value): (&String, &Value)| match value {
        Value::String(text) => object.raw(key, &format!("\"{text}\"")),
        value => object.raw(key, &json::spaced(value)),
    };
    let function = fields.filter(|(key, _)| *key != "return").fold(JsonObject::new(), field).text();
    JsonObject::new().string("type", "function").raw("function", &function).text()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of one tool, two calls of it and the result of the second one, as the published templates write them.
    #[test]
    fn families_speak_as_the_published_templates_do() {
        let function =
            json!({"name": "f", "description": "It's \"it\".", "parameters": {}, "return": 1});
        let tool = json!({"type": "function", "function": function});
        let call = |arguments: &str, id: &str| {
            let [id, name, arguments] = [id, "f", arguments].map(str::to_owned);
            ToolCall { id, name, arguments }
        };
        let calls = [call("{\"a\": 1}", "a1b2c3d4e"), call("{}", "f6g7h8i9j")];
        let texts = |template| {
            let family: &Family = family(template).unwrap();
            let [(_, calls), (_, result)] =
                [family.calls("I look.", &calls), family.result("{\"x\": 2}", "f6g7h8i9j")];
            [family.definitions.text(std::slice::from_ref(&tool)), calls, result]
        };
        let [definitions, calls, result] = texts(ChatTemplate::Qwen3);
        assert!(
            definitions.contains(
                "tags:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\","
            )
        );
        assert!(
            definitions.contains(
                "\"return\": 1}}\n</tools>\n\nFor each function call, return a json object"
            )
        );
        assert_eq!(
            calls,
            "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
        );
        assert_eq!(result, "<tool_response>\n{\"x\": 2}\n</tool_response>");
        let [definitions, _, result] = texts(ChatTemplate::Llama3);
        assert!(
            definitions
                .contains("variables.\n\n{\n    \"type\": \"function\",\n    \"function\": {\n")
        );
        assert!(definitions.ends_with("\"return\": 1\n    }\n}\n\n"));
        assert_eq!(result, "\"{\\\"x\\\": 2}\"");
        assert_eq!(
            family(ChatTemplate::Llama3).unwrap().calls("", &[call("{}", "")]),
            (ChatRole::Calls, "{\"name\": \"f\", \"parameters\": {}}".to_owned())
        );
        let wanted = [
            "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"It's \"it\".\", \
             \"parameters\": {}}}]",
            "[{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"a1b2c3d4e\"}, \
             {\"name\": \"f\", \"arguments\": {}, \"id\": \"f6g7h8i9j\"}]",
            "{\"content\": {\"x\": 2}, \"call_id\": \"f6g7h8i9j\"}",
        ];
        assert_eq!(texts(ChatTemplate::MistralV3), wanted);
    }
}
