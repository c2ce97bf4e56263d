//! Conversations as JSON objects, and their ids.

use serde_json::{Map, Value};

use crate::format::{ChatTemplate, Date, excerpt};
use crate::tokenizer::{ChatFormat, ChatOptions, ChatRole, Tokenizer};

/// The ids of the conversation in `line`, up to the start of the answer.
///
/// `today` is the date if the line has no `now`.
pub(super) fn ids(
    tokenizer: &Tokenizer,
    template: ChatTemplate,
    today: Date,
    line: &str,
) -> Result<Value, String> {
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|e| format!("not a JSON object: {e}"))?;
    let mut options = ChatOptions::new(today);
    let mut messages = Vec::new();
    for (key, value) in &object {
        let wanted = |what: &str| format!("{key}: wanted {what}");
        match key.as_str() {
            "messages" => {
                let list = value.as_array().ok_or_else(|| wanted("a list of messages"))?;
                messages = (1..).zip(list).map(message).collect::<Result<_, _>>()?;
            }
            "enable_thinking" => {
                options.thinks = value.as_bool().ok_or_else(|| wanted("true or false"))?;
            }
            "reasoning_effort" => {
                let known = ChatOptions::EFFORTS.into_iter().find(|known| value == known);
                options.effort = known.ok_or_else(|| wanted("low, medium or high"))?;
            }
            "now" => {
                let date = value.as_str().and_then(Date::from_iso);
                options.today = date.ok_or_else(|| wanted("a date such as 2026-03-09"))?;
            }
            _ => return Err(format!("{:?} is no option of a conversation", excerpt(key))),
        }
    }
    check_order(&messages)?;
    let format = ChatFormat::new(template, tokenizer, options).map_err(|e| e.to_string())?;
    let mut ids = Vec::new();
    format.render(tokenizer, &messages, &mut ids);
    Ok(ids.into())
}

fn message((number, message): (usize, &Value)) -> Result<(ChatRole, &str), String> {
    let text = |key| {
        let text = message.get(key).and_then(Value::as_str);
        text.ok_or_else(|| format!("message {number}: {key} is missing, or no string"))
    };
    let role = match text("role")? {
        "system" => ChatRole::System,
        "user" => ChatRole::User,
        "assistant" => ChatRole::Assistant,
        other => {
            let other = excerpt(other);
            return Err(format!(
                "message {number}: role {other:?}; there are system, user, assistant"
            ));
        }
    };
    Ok((role, text("content")?))
}

/// Checks the order: perhaps a system message first, then user and assistant in turns, the user last.
fn check_order(messages: &[(ChatRole, &str)]) -> Result<(), String> {
    let has_system = messages.first().is_some_and(|(role, _)| *role == ChatRole::System);
    let turns = &messages[usize::from(has_system)..];
    let expected = [ChatRole::User, ChatRole::Assistant].into_iter().cycle();
    for (index, ((role, _), expected)) in turns.iter().zip(expected).enumerate() {
        if *role != expected {
            let number = index + 1 + usize::from(has_system);
            return Err(format!(
                "message {number}: user and assistant must take turns, after the system's message if any"
            ));
        }
    }
    match turns.len() % 2 {
        1 => Ok(()),
        _ => Err("messages: the last one must be the user's".to_owned()),
    }
}
