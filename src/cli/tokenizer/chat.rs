//! Conversations as JSON objects, and their ids.

use serde_json::{Map, Value};

use crate::format::{ChatTemplate, Date, excerpt};
use crate::tokenizer::{ChatFormat, ChatOptions, ChatRole, Tokenizer};

/// The ids of the conversation in `line`, up to the start of the answer, or their text.
///
/// `today` is the date if the line has no `now`. The checkpoint's own template gets messages and variables as they are.
pub(super) fn read(
    (tokenizer, template): (&Tokenizer, ChatTemplate),
    today: Date,
    line: &str,
    wants_text: bool,
) -> Result<Value, String> {
    let mut object: Map<String, Value> =
        serde_json::from_str(line).map_err(|e| format!("not a JSON object: {e}"))?;
    let mut options = ChatOptions::new(today);
    if let Some(now) = object.remove("now") {
        let date = now.as_str().and_then(Date::from_iso);
        options.today = date.ok_or("now: wanted a date such as 2026-03-09")?;
    }
    let mut ids = Vec::new();
    let text = match template {
        ChatTemplate::Own => {
            options.has_tools = object.get("tools").is_some_and(|tools| !tools.is_null());
            let format = format((tokenizer, template), options)?;
            let messages = object.remove("messages").unwrap_or_default();
            let messages = messages.as_array().ok_or("messages: wanted a list of messages")?;
            let variables: Vec<(String, Value)> = object.into_iter().collect();
            let text = format.render_values(tokenizer, messages, &variables, None, &mut ids);
            text.map_err(|e| e.to_string())?
        }
        _ => {
            let messages = messages(&object, &mut options)?;
            let format = format((tokenizer, template), options)?;
            format.render(tokenizer, &messages, &mut ids).map_err(|e| e.to_string())?;
            None
        }
    };
    Ok(match wants_text {
        true => text.unwrap_or_else(|| tokenizer.decode(&ids, true)).into(),
        false => ids.into(),
    })
}

fn format(
    (tokenizer, template): (&Tokenizer, ChatTemplate),
    options: ChatOptions,
) -> Result<ChatFormat, String> {
    ChatFormat::new(template, tokenizer, options).map_err(|e| e.to_string())
}

/// The messages of a conversation in one of LEAP's templates.
fn messages<'a>(
    object: &'a Map<String, Value>,
    options: &mut ChatOptions,
) -> Result<Vec<(ChatRole, &'a str)>, String> {
    let mut messages = Vec::new();
    for (key, value) in object {
        let wanted = |what: &str| format!("{key}: wanted {what}");
        match key.as_str() {
            "messages" => {
                let list = value.as_array().ok_or_else(|| wanted("a list of messages"))?;
                messages = (1..).zip(list).map(message).collect::<Result<_, _>>()?;
            }
            "enable_thinking" => {
                let thinks = value.as_bool().ok_or_else(|| wanted("true or false"))?;
                options.thinks = Some(thinks);
            }
            "reasoning_effort" => {
                let known = ChatOptions::EFFORTS.into_iter().find(|known| value == known);
                options.effort = Some(known.ok_or_else(|| wanted("low, medium or high"))?);
            }
            _ => return Err(format!("{:?} is no option of a conversation", excerpt(key))),
        }
    }
    check_order(&messages)?;
    Ok(messages)
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
