//! The items of a response in OpenAI's protocol, and the events about them.
//!
//! One code path makes both, so that a whole response equals the sum of its events.

use serde_json::{Value, json};

use super::answer::{Protocol, Whole};
use super::divide::Piece;
use super::error::ApiError;
use super::openai::call_id;
use super::tools::CallPiece;
use crate::engine::{Outcome, StopReason};
use crate::format::json;

/// Content of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
    Call,
}

/// A response under construction.
pub(super) struct Response {
    /// Part of the ids of the response and of its items.
    name: String,
    /// Fields of the request that the response repeats.
    echo: Value,
    items: Vec<Value>,
    /// Kind of the last item, until it is complete.
    open: Option<Kind>,
    n_calls: usize,
    n_events: u64,
    events: String,
    prompt_tokens: usize,
    outcome: Option<Outcome>,
}

impl Response {
    /// A response without items that repeats `echo`.
    pub(super) fn new(name: String, echo: Value, prompt_tokens: usize) -> Response {
        Response {
            name,
            echo,
            items: Vec::new(),
            open: None,
            n_calls: 0,
            n_events: 0,
            events: String::new(),
            prompt_tokens,
            outcome: None,
        }
    }

    /// Whether the answer ended by itself, not at a token limit.
    fn is_complete(&self) -> bool {
        let reason = self.outcome.map(|outcome| outcome.reason);
        matches!(
            reason,
            Some(StopReason::StopId(_) | StopReason::StopString | StopReason::Complete)
        )
    }

    fn object(&self) -> Value {
        let mut object = json!({"id": format!("resp_{}", self.name)});
        if let (Some(object), Some(echo)) = (object.as_object_mut(), self.echo.as_object()) {
            object.extend(echo.clone());
        }
        let (status, details) = match (self.outcome, self.is_complete()) {
            (None, _) => ("in_progress", Value::Null),
            (Some(_), true) => ("completed", Value::Null),
            (Some(_), false) => ("incomplete", json!({"reason": "max_output_tokens"})),
        };
        object["status"] = json!(status);
        object["incomplete_details"] = details;
        object["output"] = json!(self.items);
        object["usage"] = match &self.outcome {
            None => Value::Null,
            Some(Outcome { figures, .. }) => {
                let (input, output) = (self.prompt_tokens, figures.generated_tokens);
                let cached = input.saturating_sub(figures.prompt_tokens);
                json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": cached},
                    "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": input + output})
            }
        };
        object
    }

    fn tell(&mut self, kind: &str, fields: Value) {
        let mut event = json!({"type": kind, "sequence_number": self.n_events});
        self.n_events += 1;
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.events += &format!("event: {kind}\ndata: {}\n\n", json::compact(&event));
    }

    /// Adds an event about the last item.
    fn tell_of_item(&mut self, kind: &str, mut fields: Value) {
        if let Some(item) = self.items.last() {
            fields["item_id"] = item["id"].clone();
            fields["output_index"] = json!(self.items.len() - 1);
            self.tell(kind, fields);
        }
    }

    fn begin_item(&mut self, kind: Kind, tool: &str) {
        self.end_item("completed");
        let at = self.items.len();
        let id = |prefix: &str| format!("{prefix}_{}{at:02x}", self.name);
        let item = match kind {
            Kind::Thought => json!({"type": "reasoning", "id": id("rs"), "summary": [],
                "content": [], "status": "in_progress"}),
            Kind::Text => json!({"type": "message", "id": id("msg"), "role": "assistant",
                "content": [], "status": "in_progress"}),
            Kind::Call => {
                let call_id = call_id(&self.name, 0, self.n_calls);
                json!({"type": "function_call", "id": id("fc"), "call_id": call_id, "name": tool,
                    "arguments": "", "status": "in_progress"})
            }
        };
        self.n_calls += usize::from(kind == Kind::Call);
        self.items.push(item.clone());
        self.open = Some(kind);
        self.tell("response.output_item.added", json!({"output_index": at, "item": item}));
        if kind == Kind::Call {
            return;
        }
        let part = part(kind, "");
        self.items[at]["content"] = json!([part]);
        if kind == Kind::Text {
            self.tell_of_item(
                "response.content_part.added",
                json!({"content_index": 0, "part": part}),
            );
        }
    }

    /// Adds text to the open item of this kind, or begins one.
    fn put(&mut self, kind: Kind, more: &str) {
        if self.open != Some(kind) {
            self.begin_item(kind, "");
        }
        let Some(item) = self.items.last_mut() else { return };
        let (text, event, mut fields) = match kind {
            Kind::Call => {
                (&mut item["arguments"], "response.function_call_arguments.delta", json!({}))
            }
            Kind::Text => (
                &mut item["content"][0]["text"],
                "response.output_text.delta",
                json!({"content_index": 0, "logprobs": []}),
            ),
            Kind::Thought => (
                &mut item["content"][0]["text"],
                "response.reasoning_text.delta",
                json!({"content_index": 0}),
            ),
        };
        if let Value::String(text) = text {
            *text += more;
        }
        fields["delta"] = json!(more);
        self.tell_of_item(event, fields);
    }

    /// Ends the last item. Arguments of a cut call are not reported as done, because clients would then parse them.
    fn end_item(&mut self, status: &str) {
        let (Some(kind), Some(item)) = (self.open.take(), self.items.last_mut()) else { return };
        item["status"] = json!(status);
        let item = item.clone();
        let text = &item["content"][0]["text"];
        match kind {
            Kind::Call if status != "completed" => {}
            Kind::Call => self.tell_of_item(
                "response.function_call_arguments.done",
                json!({"name": item["name"], "arguments": item["arguments"]}),
            ),
            Kind::Text => {
                self.tell_of_item(
                    "response.output_text.done",
                    json!({"content_index": 0, "text": text, "logprobs": []}),
                );
                let part = &item["content"][0];
                self.tell_of_item(
                    "response.content_part.done",
                    json!({"content_index": 0, "part": part}),
                );
            }
            Kind::Thought => self.tell_of_item(
                "response.reasoning_text.done",
                json!({"content_index": 0, "text": text}),
            ),
        }
        let output_index = self.items.len() - 1;
        self.tell("response.output_item.done", json!({"output_index": output_index, "item": item}));
    }

    fn take(&mut self, piece: &Piece) {
        if !piece.thought.is_empty() {
            self.put(Kind::Thought, &piece.thought);
        }
        if !piece.text.is_empty() {
            self.put(Kind::Text, &piece.text);
        }
        for call in &piece.calls {
            match call {
                CallPiece::Begin(name) => self.begin_item(Kind::Call, name),
                CallPiece::Arguments(more) => self.put(Kind::Call, more),
                CallPiece::End => self.end_item("completed"),
            }
        }
    }

    fn close(&mut self, outcome: &Outcome) {
        self.outcome = Some(*outcome);
        let has_answer = |item: &Value| item["type"] != "reasoning";
        if self.is_complete() && !self.items.iter().any(has_answer) {
            self.begin_item(Kind::Text, "");
        }
        // A call that is still open was cut short, by a stop string for example.
        let is_whole = self.is_complete() && self.open != Some(Kind::Call);
        self.end_item(if is_whole { "completed" } else { "incomplete" });
    }

    fn told(&mut self) -> String {
        std::mem::take(&mut self.events)
    }
}

/// The only part of a message's or a thought's content.
fn part(kind: Kind, text: &str) -> Value {
    match kind {
        Kind::Thought => json!({"type": "reasoning_text", "text": text}),
        _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

impl Protocol for Response {
    const STREAM_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self) -> String {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.object();
            self.tell(kind, json!({"response": response}));
        }
        self.told()
    }

    fn piece(&mut self, _: usize, piece: &Piece) -> String {
        self.take(piece);
        self.told()
    }

    fn end(&mut self, _: usize, outcome: &Outcome) -> String {
        self.close(outcome);
        self.told()
    }

    fn finish(&mut self) -> String {
        let kind = if self.is_complete() { "response.completed" } else { "response.incomplete" };
        let response = self.object();
        self.tell(kind, json!({"response": response}));
        self.told()
    }

    fn failed(&self, error: &ApiError) -> String {
        let ApiError { field, message, code, .. } = error;
        let event = json!({"type": "error", "sequence_number": self.n_events, "code": code,
            "message": message, "param": field});
        format!("event: error\ndata: {}\n\n", json::compact(&event))
    }

    fn whole(&mut self, answers: &[Whole]) -> Value {
        for Whole { piece, outcome } in answers {
            self.take(piece);
            self.close(outcome);
        }
        self.object()
    }
}
