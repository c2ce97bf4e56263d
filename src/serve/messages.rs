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
    /// The calls of an answer, or the call whose result this is, for templates that write calls themselves.
    pub(super) calls: Vec<ToolCall>,
    /// The thoughts before an answer, for templates that keep some.
    pub(super) thought: String,
}

/// The messages with a space in each empty answer; `None` if no answer is empty.
pub(super) fn without_empty_answers(messages: &[Message]) -> Option<Vec<Message>> {
    let is_empty = |message: &Message| {
        message.role == ChatRole::Assistant && message.text.is_empty() && message.calls.is_empty()
    };
    let filled = |message: &Message| Message {
        text: if is_empty(message) { " ".to_owned() } else { message.text.clone() },
        ..message.clone()
    };
    messages.iter().any(is_empty).then(|| messages.iter().map(filled).collect())
}

impl Message {
    pub(super) fn new(role: ChatRole, text: impl Into<String>) -> Message {
        Message { role, text: text.into(), calls: Vec::new(), thought: String::new() }
    }
}

/// Reads `messages`. If the model has words for tools, there may be calls of tools, and their results.
pub(super) fn messages(
    values: &[Value],
    speech: Speech,
    goes_on: bool,
) -> Result<Vec<Message>, ApiError> {
    let knows_tools = speech.words.is_some();
    let mut conversation = Conversation::new(speech);
    for (index, value) in values.iter().enumerate() {
        let fields = Fields::of(value, &format!("messages[{index}]"))?;
        let calls = match fields.array("tool_calls")? {
            Some(calls) if knows_tools && fields.string("role")? == Some("assistant") => calls,
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
            (Some("tool"), _) if !knows_tools => return Err(fields.bad("role", UNKNOWN_TOOL)),
            (Some("tool"), _) => {
                let id = fields.string("tool_call_id")?;
                conversation.result((&fields, "tool_call_id"), &content(&fields)?, id)?;
            }
            (Some("assistant"), [_, ..]) => {
                let text = content(&fields)?;
                let read = |(at, call)| {
                    ToolCall::read(call, &fields.path_of(&format!("tool_calls[{at}]")))
                };
                let calls: Result<Vec<ToolCall>, ApiError> =
                    calls.iter().enumerate().map(read).collect();
                conversation.calls((&fields, "tool_calls"), &text, calls?)?;
                conversation.think(&thought(&fields));
            }
            (Some(role), _) => {
                conversation.say(&fields, role, || content(&fields))?;
                if role == "assistant" {
                    conversation.think(&thought(&fields));
                }
            }
            (None, _) => return Err(fields.bad("role", "is missing")),
        }
    }
    conversation.end("messages", goes_on)
}

/// Properties of the model's template that shape a conversation.
#[derive(Clone, Debug)]
pub(super) struct Speech {
    /// The template's words for tools.
    pub(super) words: Option<Words>,
    /// Whether system messages join the user's.
    pub(super) joins_system: bool,
}

/// A conversation, built message by message. Successive messages of one role are joined, with an empty line between. If
/// the template has no system turns, later system messages count as the user's.
pub(super) struct Conversation {
    words: Option<Words>,
    joins_system: bool,
    messages: Vec<Message>,
    /// Whether the last message calls tools.
    is_called: bool,
    /// Calls whose results have not come.
    open_calls: VecDeque<ToolCall>,
    n_calls: usize,
}

impl Conversation {
    /// An empty conversation.
    pub(super) fn new(speech: Speech) -> Conversation {
        let Speech { words, joins_system } = speech;
        let (messages, open_calls) = (Vec::new(), VecDeque::new());
        Conversation { words, joins_system, messages, is_called: false, open_calls, n_calls: 0 }
    }

    /// Adds a message of `role`. `fields` are the message's, for errors.
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
        self.put(fields, Message::new(role, text()?), "\n\n")
    }

    /// Adds the thoughts before the model's last message.
    fn think(&mut self, thought: &str) {
        if let Some(last) = self.messages.last_mut() {
            last.thought += thought;
        }
    }

    /// Adds tool calls by the model, perhaps behind some text. The first argument is the message's fields, and which of
    /// them holds the calls.
    pub(super) fn calls(
        &mut self,
        (fields, name): (&Fields<'_>, &str),
        text: &str,
        mut calls: Vec<ToolCall>,
    ) -> Result<(), ApiError> {
        let words = self.words.clone().ok_or_else(|| fields.bad(name, UNKNOWN_TOOL))?;
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
            self.open_calls.push_back(call.clone());
        }
        let (role, text) = words.calls(text, &calls);
        let calls = if role == ChatRole::Calls { calls } else { Vec::new() };
        self.put(fields, Message { calls, ..Message::new(role, text) }, "\n\n")?;
        self.is_called = true;
        Ok(())
    }

    /// Adds the result of the call with that id, or of the first call without a result. The first argument is the
    /// message's fields, and which of them holds the id.
    pub(super) fn result(
        &mut self,
        (fields, name): (&Fields<'_>, &str),
        content: &str,
        id: Option<&str>,
    ) -> Result<(), ApiError> {
        let words = self.words.as_ref().ok_or_else(|| fields.bad(name, UNKNOWN_TOOL))?;
        let id = id.filter(|id| !id.is_empty());
        let at = match id {
            Some(id) => self.open_calls.iter().position(|open| open.id == id),
            None => Some(0),
        };
        let call = at.and_then(|at| self.open_calls.remove(at)).unwrap_or_else(|| {
            // Some templates need the name of a result's tool.
            let names = ["name", "tool_name"].iter();
            let name = names.filter_map(|name| fields.get(name)?.as_str()).next();
            let last = self.messages.iter().rev().find_map(|message| message.calls.last());
            let name = name.or(last.map(|call| call.name.as_str())).unwrap_or_default();
            let id = id.unwrap_or_default().to_owned();
            ToolCall { id, name: name.to_owned(), arguments: "{}".to_owned() }
        });
        let id = id.unwrap_or(&call.id);
        if words.needs_ids() && !is_short_id(id) {
            return Err(fields.bad(name, BAD_ID));
        }
        let (role, text) = words.result(content, id);
        let calls = if role == ChatRole::Tool { vec![call] } else { Vec::new() };
        self.put(fields, Message { calls, ..Message::new(role, text) }, "\n")
    }

    fn put(
        &mut self,
        fields: &Fields<'_>,
        mut message: Message,
        gap: &str,
    ) -> Result<(), ApiError> {
        self.is_called = false;
        if message.role == ChatRole::System && self.joins_system && !self.messages.is_empty() {
            message.role = ChatRole::User;
        }
        let last = self.messages.last_mut();
        match (last, message.role) {
            (Some(last), ChatRole::System | ChatRole::User | ChatRole::Assistant)
                if last.role == message.role =>
            {
                if !last.text.is_empty() && !message.text.is_empty() {
                    last.text += gap;
                }
                last.text += &message.text;
                return Ok(());
            }
            (Some(last), ChatRole::Assistant | ChatRole::Calls) if last.role == ChatRole::Calls => {
                return Err(fields
                    .bad("role", "is assistant, but the result of the call before is missing"));
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

    /// The messages; `name` is the field that holds them. If the last one is the model's, the answer continues it if
    /// `goes_on`, and comes behind it otherwise.
    pub(super) fn end(mut self, name: &str, goes_on: bool) -> Result<Vec<Message>, ApiError> {
        let is_user = |message: &Message| message.role == ChatRole::User;
        if self.joins_system && !self.messages.iter().any(is_user) {
            let system = self.messages.first_mut().filter(|first| first.role == ChatRole::System);
            system.into_iter().for_each(|system| system.role = ChatRole::User);
        }
        match self.messages.last_mut() {
            None => return Err(ApiError::field(name, "there are no messages")),
            Some(_) if self.is_called => {
                let problem =
                    "the last message calls a tool, and the result of the call is missing";
                return Err(ApiError::field(name, problem));
            }
            Some(last) if last.role == ChatRole::Assistant && goes_on => {
                last.role = ChatRole::Begun;
            }
            Some(last) if last.role == ChatRole::Assistant => {
                self.messages.push(Message::new(ChatRole::Begun, ""));
            }
            Some(_) => {}
        }
        Ok(self.messages)
    }
}

/// The error for messages of tools where the template has no place for them.
pub(super) const UNKNOWN_TOOL: &str = "is that of a tool: the model knows none";
const BAD_ID: &str =
    "has an id that is not of nine letters and digits, as the model's template wants";

/// Whether `id` has the form with which Mistral's models were trained.
fn is_short_id(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The text of a message: a string, or parts that are texts. It is empty where a message has none, as when the model
/// only thought. OpenAI's models refuse in a field of its own.
fn content(fields: &Fields<'_>) -> Result<String, ApiError> {
    let refusal = fields.get("refusal").and_then(Value::as_str);
    match (fields.get("content"), refusal) {
        (None, Some(refusal)) => Ok(refusal.to_owned()),
        _ => text_of(fields, "content", &["text"]),
    }
}

/// The thoughts of a message, in the field of any protocol.
fn thought(fields: &Fields<'_>) -> String {
    let names = ["reasoning_content", "reasoning", "thinking"];
    let texts = names.iter().filter_map(|name| fields.get(name)?.as_str());
    texts.map(str::to_owned).next().unwrap_or_default()
}

/// The text of the field `name`: a string, or parts of these types and refusals.
pub(super) fn text_of(fields: &Fields<'_>, name: &str, types: &[&str]) -> Result<String, ApiError> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let mut whole = String::new();
            for (index, part) in parts.iter().enumerate() {
                let part = Fields::of(part, &fields.path_of(&format!("{name}[{index}]")))?;
                match (part.string("type")?, part.string("text")?) {
                    (Some(kind), Some(text)) if types.contains(&kind) => whole += text,
                    (Some("refusal"), _) => whole += part.string("refusal")?.unwrap_or_default(),
                    // Thoughts do not stay in a conversation.
                    (Some("thinking" | "redacted_thinking" | "reasoning"), _) => {}
                    _ => return Err(part.bad("type", "is not text: nothing else is read")),
                }
            }
            Ok(whole)
        }
        None => Ok(String::new()),
        Some(_) => Err(fields.bad(name, "is neither a string nor an array of parts")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::ChatTemplate;

    #[test]
    fn empty_answers_get_a_space() {
        let all = |text: &str| {
            [(ChatRole::User, ""), (ChatRole::Assistant, text), (ChatRole::Begun, "")]
                .map(|(role, text)| Message::new(role, text))
        };
        assert_eq!(without_empty_answers(&all("a")), None);
        assert_eq!(without_empty_answers(&all("")).as_deref(), Some(&all(" ")[..]));
    }

    fn read(value: Value) -> Result<Vec<(ChatRole, String)>, String> {
        let speech = Speech { words: None, joins_system: false };
        let messages = messages(value.as_array().unwrap(), speech, true);
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
    fn a_message_without_content_is_an_empty_text() {
        use ChatRole::{Assistant, System, User};
        for nothing in [json!({}), json!({"content": null}), json!({"content": []})] {
            let say = |role: &str| {
                let mut message = nothing.clone();
                message["role"] = json!(role);
                message
            };
            let value = json!([say("system"), say("user"), say("assistant"), say("user")]);
            let wanted = [System, User, Assistant, User].map(|role| (role, String::new()));
            assert_eq!(read(value), Ok(wanted.to_vec()), "{nothing}");
        }
        let call = json!({"id": "a1b2c3d4e", "function": {"name": "f"}});
        let value = json!([
            {"role": "user"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": null},
        ]);
        let speech = Speech { words: Words::of(ChatTemplate::Qwen3), joins_system: false };
        let read = messages(value.as_array().unwrap(), speech, true).unwrap();
        assert_eq!(read[2].text, "<tool_response>\n\n</tool_response>");
    }

    #[test]
    fn a_refusal_is_what_the_model_said() {
        let part = json!([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]);
        for (refused, wanted) in [
            (json!({"role": "assistant", "content": part, "refusal": null}), "ab"),
            (json!({"role": "assistant", "content": null, "refusal": "c"}), "c"),
            (json!({"role": "assistant", "content": "d", "refusal": "c"}), "d"),
        ] {
            let value = json!([{"role": "user", "content": "x"}, refused]);
            let wanted = [(ChatRole::User, "x".into()), (ChatRole::Begun, wanted.into())];
            assert_eq!(read(value), Ok(wanted.to_vec()), "{refused}");
        }
    }

    #[test]
    fn a_conversation_may_begin_and_end_with_anybody() {
        use ChatRole::{Assistant, Begun, System, User};
        let say = |role: &str, content: &str| json!({"role": role, "content": content});
        let [system, user, model] = ["system", "user", "assistant"].map(|role| say(role, role));
        let thought = json!({"role": "assistant", "content": null, "reasoning_content": "hm"});
        let read = |values: Value, joins_system: bool, goes_on: bool| {
            let speech = Speech { words: None, joins_system };
            let messages = messages(values.as_array().unwrap(), speech, goes_on).unwrap();
            messages.into_iter().map(|one| (one.role, one.text)).collect::<Vec<_>>()
        };
        let text = |role, text: &str| (role, text.to_owned());
        for (values, wanted, joined) in [
            (json!([system]), vec![text(System, "system")], vec![text(User, "system")]),
            (
                json!([user, thought, user]),
                vec![text(User, "user"), text(Assistant, ""), text(User, "user")],
                vec![text(User, "user"), text(Assistant, ""), text(User, "user")],
            ),
            (
                json!([user, model, system, user]),
                vec![
                    text(User, "user"),
                    text(Assistant, "assistant"),
                    text(System, "system"),
                    text(User, "user"),
                ],
                vec![
                    text(User, "user"),
                    text(Assistant, "assistant"),
                    text(User, "system\n\nuser"),
                ],
            ),
            (
                json!([system, model, user, system]),
                vec![
                    text(System, "system"),
                    text(Assistant, "assistant"),
                    text(User, "user"),
                    text(System, "system"),
                ],
                vec![
                    text(System, "system"),
                    text(Assistant, "assistant"),
                    text(User, "user\n\nsystem"),
                ],
            ),
            (
                json!([user, model, thought]),
                vec![text(User, "user"), text(Begun, "assistant")],
                vec![text(User, "user"), text(Begun, "assistant")],
            ),
        ] {
            assert_eq!(read(values.clone(), false, true), wanted, "{values}");
            assert_eq!(read(values, true, true), joined);
        }
        let wanted = vec![text(User, "user"), text(Assistant, "assistant"), text(Begun, "")];
        assert_eq!(read(json!([user, model]), false, false), wanted);
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
        let read = |template| {
            let speech = Speech { words: Words::of(template), joins_system: false };
            messages(value.as_array().unwrap(), speech, true)
        };
        let hermes = read(ChatTemplate::Qwen3).unwrap();
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
        let mistral = read(ChatTemplate::MistralV3).unwrap();
        let called = "[{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"a1b2c3d4e\"}, \
                      {\"name\": \"f\", \"arguments\": {}, \"id\": \"a1b2c3d4e\"}]";
        assert_eq!((mistral[1].role, &*mistral[1].text), (ChatRole::Calls, called));
        let result = "{\"content\": 2, \"call_id\": \"a1b2c3d4e\"}";
        assert_eq!((mistral[3].role, &*mistral[3].text), (ChatRole::Tool, result));
        let several = read(ChatTemplate::Llama3).unwrap_err();
        assert_eq!(several.field.as_deref(), Some("messages[1].tool_calls"));
    }

    #[test]
    fn what_has_no_place_in_a_conversation_is_refused_by_name() {
        let user = json!({"role": "user", "content": "x"});
        for (value, wanted) in [
            (json!([]), "messages"),
            (json!([user, {"role": "assistant", "content": {}}]), "messages[1].content"),
            (json!([user, {"role": "user", "content": 1}]), "messages[1].content"),
            (json!([user, {"role": "tool", "content": "x"}]), "messages[1].role"),
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
