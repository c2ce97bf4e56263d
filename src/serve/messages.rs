//! The messages of a conversation, as both protocols write them.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::tools::{self, ToolCall};
use crate::tokenizer::ChatRole;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) role: ChatRole,
    pub(super) text: String,
}

/// Reads `messages`: the system's, if there are any, before all others, then the user and the model in
/// turn, and the user last. Messages of one role that follow each other are one, with an empty line
/// between.
///
/// Where the model has words for tools, as `knows_tools` says, it may have called some, and what came of it
/// stands in the user's place.
pub(super) fn messages(values: &[Value], knows_tools: bool) -> Result<Vec<Message>, ApiError> {
    let mut messages: Vec<Message> = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let fields = Fields::of(value, &format!("messages[{index}]"))?;
        let role = match fields.string("role")? {
            Some("system" | "developer") => ChatRole::System,
            Some("user") => ChatRole::User,
            Some("assistant") => ChatRole::Assistant,
            Some("tool") if knows_tools => ChatRole::User,
            Some("tool" | "function") => {
                return Err(fields.bad("role", "is that of a tool: the model knows none"));
            }
            _ => return Err(fields.bad("role", "is none of system, developer, user and assistant")),
        };
        let calls = match fields.array("tool_calls")? {
            Some(calls) if knows_tools && role == ChatRole::Assistant => calls,
            _ => &[],
        };
        let foreign: &[&str] = match calls.is_empty() {
            true => &["tool_calls", "function_call", "images", "audio"],
            false => &["function_call", "images", "audio"],
        };
        for name in foreign {
            fields.only(name, |value| value.as_array().is_some_and(Vec::is_empty))?;
        }
        let is_response = fields.string("role")? == Some("tool");
        let text = match (calls, is_response) {
            ([], false) => content(&fields)?,
            ([], true) => tools::response(&content(&fields)?),
            (calls, _) => text_of_calls(&fields, calls)?,
        };
        match messages.last_mut() {
            Some(last) if last.role == role => {
                last.text += if is_response { "\n" } else { "\n\n" };
                last.text += &text;
            }
            Some(_) if role == ChatRole::System => {
                return Err(
                    fields.bad("role", "is system behind another one: instructions come first")
                );
            }
            last => {
                let follows_user = last.is_some_and(|last| last.role == ChatRole::User);
                if role == ChatRole::Assistant && !follows_user {
                    return Err(
                        fields.bad("role", "is assistant, but no user's message comes before")
                    );
                }
                messages.push(Message { role, text });
            }
        }
    }
    match messages.last() {
        Some(last) if last.role == ChatRole::User => Ok(messages),
        Some(_) => Err(ApiError::field("messages", "the last message is not the user's")),
        None => Err(ApiError::field("messages", "there are no messages")),
    }
}

/// What a model wrote that called tools, perhaps behind some text.
fn text_of_calls(fields: &Fields<'_>, calls: &[Value]) -> Result<String, ApiError> {
    let mut lines = match fields.get("content") {
        None => Vec::new(),
        Some(_) => vec![content(fields)?],
    };
    lines.retain(|line| !line.is_empty());
    for (index, call) in calls.iter().enumerate() {
        lines.push(ToolCall::read(call, &fields.path_of(&format!("tool_calls[{index}]")))?.text());
    }
    Ok(lines.join("\n"))
}

/// The text of a message: a string, or parts that are texts.
fn content<'v>(fields: &Fields<'v>) -> Result<String, ApiError> {
    match fields.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let part = |(index, part): (usize, &'v Value)| {
                let part = Fields::of(part, &fields.path_of(&format!("content[{index}]")))?;
                match (part.string("type")?, part.string("text")?) {
                    (Some("text"), Some(text)) => Ok(text),
                    _ => Err(part.bad("type", "is not text: nothing else is read")),
                }
            };
            parts.iter().enumerate().map(part).collect()
        }
        _ => Err(fields.bad("content", "is neither a string nor an array of parts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Vec<(ChatRole, String)>, String> {
        let messages = messages(value.as_array().unwrap(), false);
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
        let call = |arguments| json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        let value = json!([
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": null, "tool_calls": [call(json!("{\"a\":1}")), call(json!({}))]},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
        ]);
        let messages = messages(value.as_array().unwrap(), true).unwrap();
        let text = |at: usize| messages[at].text.as_str();
        assert_eq!(messages.len(), 3);
        assert_eq!(
            text(1),
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
        );
        assert_eq!(
            text(2),
            "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
        );
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
