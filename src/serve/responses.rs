//! OpenAI's protocol of responses. Nothing is stored: a conversation comes whole with each request.

use serde_json::{Value, json};

use super::answer::{Sent, deliver};
use super::asked::Asked;
use super::error::ApiError;
use super::fields::{Fields, strings};
use super::http::Connection;
use super::items::Response;
use super::messages::{Conversation, Message, UNKNOWN_TOOL, text_of};
use super::neutral;
use super::service::{ChatJob, STOPS_MAX, Service};
use super::tools::{ToolCall, Tools};
use super::wish::{TextForm, Thinking, Wish, first_length, rules, sampling, template_variables};

/// `POST /v1/responses`.
pub(super) fn respond(
    service: &Service,
    connection: &mut Connection,
    Asked { request, body, .. }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let fields = Fields::of(body, "")?;
    neutral::check_responses(&fields)?;
    service.check_model(&fields, "model")?;
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let lengths = ["max_output_tokens", "max_completion_tokens", "max_tokens"];
    let n_predict = first_length(&fields, &lengths)?;
    let wish = Wish {
        sampling: sampling(&fields, service.seed(&fields)?)?,
        rules: rules(&fields)?,
        n_predict: n_predict.unwrap_or(usize::MAX),
        stop_strings: strings(&fields, "stop", STOPS_MAX)?,
        thinking: Thinking::read(&fields)?,
        template_variables: template_variables(&fields)?,
        form: text_form(&fields)?,
        tools: tools(&fields, body)?,
        n_likeliest: None,
    };
    let messages = conversation(service, &fields)?;
    let ChatJob { job, divider } = service.chat_job(&messages, &wish)?;
    let name = format!("{:x}{:08x}", service.house.started, service.next_answer());
    let mut response = Response::new(name, echo(service, body), job.prompt.len());
    deliver((service, connection, request), (vec![job], divider), (&mut response, is_streamed))
}

/// `text.format`: text, any JSON object, or that of a schema. Other servers' clients name it as for a chat.
fn text_form(fields: &Fields<'_>) -> Result<Option<TextForm>, ApiError> {
    let Some(text) = fields.get("text") else { return TextForm::of(fields) };
    let text = Fields::of(text, "text")?;
    text.get("format").map_or(Ok(None), |format| TextForm::read(format, "text.format"))
}

/// Reads `tools` and `tool_choice`. Here their fields are not nested in `function`.
fn tools(fields: &Fields<'_>, body: &Value) -> Result<Option<Tools>, ApiError> {
    let mut nested = Vec::new();
    for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        if tool.string("type")? != Some("function") {
            return Err(tool.bad("type", "is not function: there are no other tools here"));
        }
        let mut function = serde_json::Map::new();
        for name in ["name", "description", "parameters"] {
            function.extend(tool.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        nested.push(json!({"type": "function", "function": function}));
    }
    let body = json!({"tools": nested, "tool_choice": body["tool_choice"],
        "parallel_tool_calls": body["parallel_tool_calls"]});
    Tools::read(&Fields::of(&body, "")?).map_err(|mut error| {
        // Errors have to name the client's fields, which are not nested.
        error.field = error.field.map(|field| field.replace(".function", ""));
        error.message = error.message.replace(".function", "");
        error
    })
}

/// Reads `instructions` and `input`.
fn conversation(service: &Service, fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let mut reader = Reader {
        conversation: Conversation::new(service.speech()),
        knows_tools: service.words().is_some(),
        text: None,
        calls: Vec::new(),
    };
    if let Some(text) = fields.string("instructions")? {
        reader.conversation.say(fields, "system", || Ok(text.to_owned()))?;
    }
    match fields.get("input") {
        Some(Value::String(text)) => {
            reader.conversation.say(fields, "user", || Ok(text.clone()))?;
        }
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                reader.read(&Fields::of(item, &format!("input[{index}]"))?)?;
            }
            reader.flush(fields)?;
        }
        _ => return Err(fields.bad("input", "is neither a string nor an array of items")),
    }
    reader.conversation.end("input", true)
}

/// Reads items. A text of the model and the calls that follow it form one message.
struct Reader {
    conversation: Conversation,
    knows_tools: bool,
    text: Option<String>,
    calls: Vec<ToolCall>,
}

impl Reader {
    fn read(&mut self, item: &Fields<'_>) -> Result<(), ApiError> {
        const TYPES: &[&str] = &["input_text", "output_text", "text"];
        let role = item.string("role")?;
        match (item.string("type")?, role) {
            // Thoughts are not kept in a conversation.
            (Some("reasoning"), _) => Ok(()),
            (Some("function_call" | "function_call_output"), _) if !self.knows_tools => {
                Err(item.bad("type", UNKNOWN_TOOL))
            }
            (Some("function_call"), _) => {
                let id = item.string("call_id")?.unwrap_or_default();
                self.calls.push(ToolCall::read_function(item, id)?);
                Ok(())
            }
            (Some("function_call_output"), _) => {
                self.flush(item)?;
                let output = text_of(item, "output", TYPES)?;
                let id = item.string("call_id")?;
                self.conversation.result((item, "call_id"), &output, id)
            }
            (None | Some("message"), Some("assistant")) => {
                if !self.calls.is_empty() {
                    self.flush(item)?;
                }
                let more = text_of(item, "content", TYPES)?;
                self.text = Some(match self.text.take() {
                    Some(text) => format!("{text}\n\n{more}"),
                    None => more,
                });
                Ok(())
            }
            (None | Some("message"), Some(role)) => {
                self.flush(item)?;
                self.conversation.say(item, role, || text_of(item, "content", TYPES))
            }
            (None | Some("message"), None) => Err(item.bad("role", "is missing")),
            (Some(_), _) => Err(item.bad(
                "type",
                "is none of message, function_call, function_call_output and reasoning",
            )),
        }
    }

    fn flush(&mut self, fields: &Fields<'_>) -> Result<(), ApiError> {
        let (text, calls) = (self.text.take(), std::mem::take(&mut self.calls));
        match (text, calls.is_empty()) {
            (None, true) => Ok(()),
            (Some(text), true) => self.conversation.say(fields, "assistant", || Ok(text)),
            (text, false) => {
                let text = text.unwrap_or_default();
                self.conversation.calls((fields, "call_id"), &text, calls)
            }
        }
    }
}

/// Fields of the request that the response repeats, with their defaults.
fn echo(service: &Service, body: &Value) -> Value {
    let or = |name: &str, default: Value| match &body[name] {
        Value::Null => default,
        value => value.clone(),
    };
    json!({
        "object": "response",
        "created_at": super::service::now(),
        "model": service.model.about.name,
        "error": null,
        "instructions": body["instructions"],
        "max_output_tokens": body["max_output_tokens"],
        "metadata": or("metadata", json!({})),
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": or("temperature", json!(1.0)),
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_p": or("top_p", json!(1.0)),
        "truncation": "disabled",
    })
}
