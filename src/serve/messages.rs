//! The messages of a conversation, as both protocols write them.

use std::collections::VecDeque;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::tools::{ToolCall, Words};
use crate::tokenizer::ChatRole;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) role: ChatRole,
    pub(super) text: String,
}

/// Reads `messages`: the system's, if there are any, before all others, then the user and the model in
/// turn, and the user last.
///
/// Where the model has words for tools, it may have called some, and what came of it stands in the
/// user's place.
pub(super) fn messages(values: &[Value], words: Option<Words>) -> Result<Vec<Message>, ApiError> {
    let mut conversation = Conversation::new(words);
    for (index, value) in values.iter().enumerate() {
        let fields = Fields::of(value, &format!("messages[{index}]"))?;
        let calls = match fields.array("tool_calls")? {
            Some(calls) if words.is_some() && fields.string("role")? == Some("assistant") => calls,
            _ => &[],
        };
        let foreign: &[&str] = match calls.is_empty() {
            true => &["tool_calls", "function_call", "images", "audio"],
            false => &["function_call", "images", "audio"],
        };
        for name in foreign {
            fields.only(name, |value| value.as_array().is_some_and(Vec::is_empty))?;
        }
        match (fields.string("role")?, calls) {
            (Some("tool"), _) if words.is_none() => return Err(fields.bad("role", UNKNOWN_TOOL)),
            (Some("tool"), _) => {
                let id = fields.string("tool_call_id")?;
                conversation.result((&fields, "tool_call_id"), &content(&fields)?, id)?;
            }
            (Some("assistant"), [_, ..]) => {
                let text = match fields.get("content") {
                    None => String::new(),
                    Some(_) => content(&fields)?,
                };
                let read = |(at, call)| {
                    ToolCall::read(call, &fields.path_of(&format!("tool_calls[{at}]")))
                };
                let calls: Result<Vec<ToolCall>, ApiError> =
                    calls.iter().enumerate().map(read).collect();
                conversation.calls((&fields, "tool_calls"), &text, calls?)?;
            }
            (Some(role), _) => conversation.say(&fields, role, || content(&fields))?,
            (None, _) => return Err(fields.bad("role", "is missing")),
        }
    }
    conversation.end("messages")
}

/// A conversation that is read, message by message. Messages of one role that follow each other are one,
/// with an empty line between.
pub(super) struct Conversation {
    words: Option<Words>,
    messages: Vec<Message>,
    /// Ids of calls whose results have not come.
    open_ids: VecDeque<String>,
    n_calls: usize,
}

impl Conversation {
    /// An empty one, with a model that may have words for tools.
    pub(super) fn new(words: Option<Words>) -> Conversation {
        Conversation { words, messages: Vec::new(), open_ids: VecDeque::new(), n_calls: 0 }
    }

    /// Somebody of that role says a text; `fields` are its message's, for errors.
    pub(super) fn say(
        &mut self,
        fields: &Fields<'_>,
        role: &str,
        text: impl FnOnce() -> Result<String, ApiError>,
    ) -> Result<(), ApiError> {
        let role = match role {
            "system" | "developer" => ChatRole::System,
            "user" => ChatRole::User,
            "assistant" => ChatRole::Assistant,
            "function" => return Err(fields.bad("role", UNKNOWN_TOOL)),
            _ => return Err(fields.bad("role", "is none of system, developer, user and assistant")),
        };
        self.put(fields, Message { role, text: text()? }, "\n\n")
    }

    /// The model calls tools, perhaps behind some text; `place` is the message's fields, and which of
    /// them has the calls.
    pub(super) fn calls(
        &mut self,
        (fields, name): (&Fields<'_>, &str),
        text: &str,
        mut calls: Vec<ToolCall>,
    ) -> Result<(), ApiError> {
        let words = self.words.ok_or_else(|| fields.bad(name, UNKNOWN_TOOL))?;
        if calls.len() > 1 && !words.repeats() {
            return Err(
                fields.bad(name, "has several calls: the model's template has place for one")
            );
        }
        for call in &mut calls {
            self.n_calls += 1;
            if call.id.is_empty() {
                call.id = format!("call{:05}", self.n_calls % 100_000);
            } else if words.needs_ids() && !is_short_id(&call.id) {
                return Err(fields.bad(name, BAD_ID));
            }
            self.open_ids.push_back(call.id.clone());
        }
        let (role, text) = words.calls(text, &calls);
        self.put(fields, Message { role, text }, "\n\n")
    }

    /// What came of the call of that id, or of the first one that nothing has come of; `place` is the
    /// message's fields, and which of them is the id.
    pub(super) fn result(
        &mut self,
        (fields, name): (&Fields<'_>, &str),
        content: &str,
        id: Option<&str>,
    ) -> Result<(), ApiError> {
        let words = self.words.ok_or_else(|| fields.bad(name, UNKNOWN_TOOL))?;
        let id = match id {
            Some(id) => {
                self.open_ids.retain(|open| open != id);
                id.to_owned()
            }
            None => self.open_ids.pop_front().unwrap_or_default(),
        };
        if words.needs_ids() && !is_short_id(&id) {
            return Err(fields.bad(name, BAD_ID));
        }
        let (role, text) = words.result(content, &id);
        self.put(fields, Message { role, text }, "\n")
    }

    fn put(&mut self, fields: &Fields<'_>, message: Message, gap: &str) -> Result<(), ApiError> {
        let last = self.messages.last_mut();
        let is_joined =
            matches!(message.role, ChatRole::System | ChatRole::User | ChatRole::Assistant);
        match (last, message.role) {
            (Some(last), role) if last.role == role && is_joined => {
                last.text += gap;
                last.text += &message.text;
                return Ok(());
            }
            (Some(_), ChatRole::System) => {
                return Err(
                    fields.bad("role", "is system behind another one: instructions come first")
                );
            }
            (last, ChatRole::Assistant | ChatRole::Calls) => {
                let is_asked =
                    |last: &mut Message| matches!(last.role, ChatRole::User | ChatRole::Tool);
                if !last.is_some_and(is_asked) {
                    return Err(
                        fields.bad("role", "is assistant, but no user's message comes before")
                    );
                }
            }
            (last, ChatRole::Tool) => {
                let is_called =
                    |last: &mut Message| matches!(last.role, ChatRole::Calls | ChatRole::Tool);
                if !last.is_some_and(is_called) {
                    return Err(fields.bad("role", "is tool, but no call comes before"));
                }
            }
            _ => {}
        }
        self.messages.push(message);
        Ok(())
    }

    /// The messages; `name` is the field that holds them.
    pub(super) fn end(self, name: &str) -> Result<Vec<Message>, ApiError> {
        match self.messages.last().map(|last| last.role) {
            Some(ChatRole::User | ChatRole::Tool) => Ok(self.messages),
            Some(_) => Err(ApiError::field(name, "the last message is not the user's")),
            None => Err(ApiError::field(name, "there are no messages")),
        }
    }
}

/// What is wrong with messages of tools where there are no words for them.
pub(super) const UNKNOWN_TOOL: &str = "is that of a tool: the model knows none";
const BAD_ID: &str =
    "has an id that is not of nine letters and digits, as the model's template wants";

/// Whether Mistral's models have seen such ids.
fn is_short_id(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The text of a message: a string, or parts that are texts.
fn content(fields: &Fields<'_>) -> Result<String, ApiError> {
    text_of(fields, "content", &["text"])
}

/// The text of the field `name`: a string, or parts of these types.
pub(super) fn text_of(fields: &Fields<'_>, name: &str, types: &[&str]) -> Result<String, ApiError> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let mut whole = String::new();
            for (index, part) in parts.iter().enumerate() {
                let part = Fields::of(part, &fields.path_of(&format!("{name}[{index}]")))?;
                match (part.string("type")?, part.string("text")?) {
                    (Some(kind), Some(text)) if types.contains(&kind) => whole += text,
                    _ => return Err(part.bad("type", "is not text: nothing else is read")),
                }
            }
            Ok(whole)
        }
        _ => Err(fields.bad(name, "is neither a string nor an array of parts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Vec<(ChatRole, String)>, String> {
        let messages = messages(value.as_array().unwrap(), None);
        let pair = |message: Message| (message.role, message.text);
        messages.map(|all| all.into_iter().map(pair).collect()).map_err(|e| e.field.unwrap())
    }

    #[test]
    fn messages_of_one_role_are_one() {
        let value = json!([
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        ]);
        let wanted = vec![(ChatRole::System, "a\n\nb".into()), (ChatRole::User, "cd".into())];
        assert_eq!(read(value), Ok(wanted));
    }

    #[test]
    fn calls_and_what_came_of_them_are_text_to_the_model() {
        let call = |arguments| json!({"id": "a1b2c3d4e", "function": {"name": "f", "arguments": arguments}});
        let value = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": [call(json!("{\"a\":1}")), call(json!({}))]},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
        ]);
        let hermes = messages(value.as_array().unwrap(), Some(Words::Hermes)).unwrap();
        let text = |at: usize| hermes[at].text.as_str();
        assert_eq!(hermes.len(), 3);
        assert_eq!(
            text(1),
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
        );
        assert_eq!(
            text(2),
            "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        );
        let mistral = messages(value.as_array().unwrap(), Some(Words::Mistral)).unwrap();
        let called = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"a1b2c3d4e\"}, \
                      {\"name\": \"f\", \"arguments\": {}, \"id\": \"a1b2c3d4e\"}]";
        assert_eq!((mistral[1].role, &*mistral[1].text), (ChatRole::Calls, called));
        let result = "{\"content\": 2, \"call_id\": \"a1b2c3d4e\"}";
        assert_eq!((mistral[3].role, &*mistral[3].text), (ChatRole::Tool, result));
        let several = messages(value.as_array().unwrap(), Some(Words::Llama3)).unwrap_err();
        assert_eq!(several.field.as_deref(), Some("messages[1].tool_calls"));
    }

    #[test]
    fn what_has_no_place_in_a_conversation_is_refused_by_name() {
        let user = json!({"role": "user", "content": "x"});
        for (value, wanted) in [
            (json!([]), "messages"),
            (json!([{"role": "system", "content": "x"}]), "messages"),
            (json!([user, {"role": "assistant", "content": "x"}]), "messages"),
            (json!([{"role": "assistant", "content": "x"}]), "messages[0].role"),
            (json!([user, {"role": "system", "content": "x"}, user]), "messages[1].role"),
            (json!([user, {"role": "tool", "content": "x"}]), "messages[1].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "messages[0].content[0].type",
            ),
            (json!([{"role": "user", "content": "x", "images": ["y"]}]), "messages[0].images"),
        ] {
            assert_eq!(read(value.clone()), Err(wanted.to_owned()), "{value}");
        }
    }
}
