//! The messages of a conversation for the checkpoint's own template.

use serde_json::{Value, json};

use super::messages::Message;
use super::tools::{OwnWords, ToolCall};
use crate::tokenizer::{ChatFormat, ChatRole};

/// The messages of a conversation as the template of `chat` gets them, and the beginning of the answer. `words` are
/// those of the template, if it has any. The first message of the system joins the user's where it has no place.
pub(super) fn values<'m>(
    messages: &'m [Message],
    chat: &ChatFormat,
    words: Option<&OwnWords>,
) -> (Vec<Value>, Option<&'m str>) {
    let (mut values, mut begun, mut system): (Vec<Value>, _, _) = (Vec::new(), None, None);
    let (joins_system, field) = (chat.joins_system(), chat.thought_field());
    for message in messages {
        let text = message.text.as_str();
        let say = |role: &str, text: &str| json!({"role": role, "content": text});
        let mut value = match message.role {
            ChatRole::System if joins_system && values.is_empty() => {
                system = Some(text);
                continue;
            }
            ChatRole::Begun => {
                begun = Some(text);
                continue;
            }
            ChatRole::System => say("system", text),
            ChatRole::User | ChatRole::Tools => {
                let before = system.take().map(|system| format!("{system}\n\n"));
                say("user", &format!("{}{text}", before.unwrap_or_default()))
            }
            ChatRole::Assistant => say("assistant", text),
            ChatRole::Calls => match words {
                Some(words) => words.answer(text, &message.calls),
                None => say("assistant", text),
            },
            ChatRole::Tool => result(text, message.calls.first()),
        };
        if let Some(field) = field.filter(|_| !message.thought.is_empty()) {
            value[field] = message.thought.as_str().into();
        }
        values.push(value);
    }
    (values, begun)
}

fn result(text: &str, call: Option<&ToolCall>) -> Value {
    let mut value = json!({"role": "tool", "content": text});
    if let Some(call) = call {
        for (field, text) in [("tool_call_id", &call.id), ("name", &call.name)] {
            if !text.is_empty() {
                value[field] = text.as_str().into();
            }
        }
    }
    value
}
