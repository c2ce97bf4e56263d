//! OpenAI's protocol: models, chat completions and completions.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::{Protocol, Sent, Whole, deliver};
use super::asked::Asked;
use super::divide::{Divider, Piece};
use super::error::ApiError;
use super::fields::{Fields, strings, token_id};
use super::http::{Connection, Reply, Request};
use super::jobs::TokenOdds;
use super::models::Models;
use super::neutral;
use super::odds;
use super::service::{ChatJob, STOPS_MAX, Service, now, untagged};
use super::source::ListedModel;
use super::tools::{CallPiece, ToolCall, Tools, joined};
use super::wish::{TextForm, Thinking, Wish, first_length, rules, sampling, template_variables};
use crate::engine::{Job, Outcome, StopReason};
use crate::format::json;
use crate::sampler::Sampling;
use crate::tokenizer::Tokenizer;

/// Most answers of one request.
const ANSWERS_MAX: i64 = 16;

/// `GET /v1/models`.
pub(super) fn models(models: &Models) -> Reply {
    let all: Vec<Value> = models.list().iter().map(model_object).collect();
    Reply::json(200, &json!({"object": "list", "data": all}))
}

/// `GET /v1/models/NAME`. Clients encode a `/` in a name, or leave it.
pub(super) fn model(models: &Models, name: &str) -> Result<Reply, ApiError> {
    let decoded = percent_decoded(name);
    let all = models.list();
    let names = [Some(name), decoded.as_deref()];
    let is_meant = |model: &&ListedModel| {
        let own = model.about.name.as_str();
        names.iter().flatten().any(|name| *name == own || untagged(name) == own)
    };
    match all.iter().find(is_meant) {
        Some(model) => Ok(Reply::json(200, &model_object(model))),
        None => Err(models.unknown(decoded.as_deref().unwrap_or(name))),
    }
}

/// `text` with its percent-encoded bytes decoded (RFC 3986, section 2.1); `None` if they are malformed or no text.
fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

fn model_object(ListedModel { about, ctx_len, modified, .. }: &ListedModel) -> Value {
    json!({"id": about.name, "object": "model", "created": modified, "owned_by": "leap",
        "max_model_len": ctx_len})
}

/// Settings of a request for its answers, besides the prompts.
struct Form {
    wish: Wish,
    n: u64,
    is_streamed: bool,
    wants_usage: bool,
}

impl Form {
    fn read(
        service: &Service,
        fields: &Fields<'_>,
        (default, n_likeliest): (usize, Option<usize>),
    ) -> Result<Form, ApiError> {
        neutral::check_openai(fields)?;
        service.check_model(fields, "model")?;
        let lengths =
            ["max_completion_tokens", "max_tokens", "n_predict", "max_new_tokens", "num_predict"];
        let n_predict = first_length(fields, &lengths)?;
        let stop_strings = strings(fields, "stop", STOPS_MAX)?;
        let wants_usage = match fields.get("stream_options") {
            Some(options) => Fields::of(options, "stream_options")?.flag("include_usage")?,
            None => None,
        };
        let sampling = sampling(fields, service.seed(fields)?)?;
        let n_predict = n_predict.unwrap_or(default);
        let wish = Wish {
            sampling,
            rules: rules(fields)?,
            n_predict,
            stop_strings,
            thinking: Thinking::read(fields)?,
            template_variables: template_variables(fields)?,
            form: TextForm::of(fields)?,
            tools: Tools::read(fields)?,
            n_likeliest,
        };
        Ok(Form {
            wish,
            n: fields.whole("n", 1..=ANSWERS_MAX)?.unwrap_or(1) as u64,
            is_streamed: fields.flag("stream")?.unwrap_or(false),
            wants_usage: wants_usage.unwrap_or(false),
        })
    }

    /// A job for each of the `n` answers to a prompt, each with a seed of its own.
    fn answers(&self, job: &Job) -> impl Iterator<Item = Job> {
        let (job, sampling) = (job.clone(), self.wish.sampling);
        (0..self.n).map(move |index| {
            let seed = sampling.seed.wrapping_add(index);
            Job { sampling: Sampling { seed, ..sampling }, ..job.clone() }
        })
    }

    fn deliver(
        &self,
        (service, connection, request): (&Service, &mut Connection, &Request),
        (jobs, divider): (Vec<Job>, Divider),
        is_chat: bool,
    ) -> Result<Sent, ApiError> {
        let number = service.next_answer();
        let mut protocol = OpenAi {
            is_chat,
            id: format!(
                "{}-{:x}-{number}",
                if is_chat { "chatcmpl" } else { "cmpl" },
                service.house.started
            ),
            created: now(),
            model: service.model.about.name.clone(),
            wants_usage: self.wants_usage,
            // Jobs with the same prompt are adjacent.
            prompt_tokens: jobs.iter().step_by(self.n as usize).map(|job| job.prompt.len()).sum(),
            answers: vec![Progress::default(); jobs.len()],
            tokenizer: Arc::clone(&service.model.tokenizer),
            tells_odds: self.wish.n_likeliest.is_some(),
            answers_per_prompt: self.n as usize,
            cached_tokens: 0,
            completion_tokens: 0,
        };
        protocol.cached_tokens = protocol.prompt_tokens;
        deliver((service, connection, request), (jobs, divider), (&mut protocol, self.is_streamed))
    }
}

/// `POST /v1/chat/completions`.
pub(super) fn chat(
    service: &Service,
    connection: &mut Connection,
    Asked { request, body, .. }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let fields = Fields::of(body, "")?;
    let form = Form::read(service, &fields, (usize::MAX, odds::chat_wish(&fields)?))?;
    let messages = service.messages(&fields)?;
    let ChatJob { job, divider } = service.chat_job(&messages, &form.wish)?;
    form.deliver((service, connection, request), (form.answers(&job).collect(), divider), true)
}

/// `POST /v1/completions`.
pub(super) fn complete(
    service: &Service,
    connection: &mut Connection,
    Asked { request, body, .. }: Asked<'_>,
) -> Result<Sent, ApiError> {
    /// OpenAI's default number of tokens.
    const N_PREDICT: usize = 16;
    let fields = Fields::of(body, "")?;
    let form = Form::read(service, &fields, (N_PREDICT, odds::text_wish(&fields)?))?;
    let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
    let prompts = prompts(&fields)?;
    if prompts.len() * form.n as usize > ANSWERS_MAX as usize {
        return Err(fields.bad("prompt", &format!("and n ask for more than {ANSWERS_MAX} answers")));
    }
    let mut jobs = Vec::new();
    for prompt in prompts {
        let job = match prompt {
            Prompt::Text(text) => service.text_job(text, suffix, &form.wish)?,
            Prompt::Ids(_) if suffix.is_some() => {
                return Err(fields.bad("suffix", "goes with a prompt that is text"));
            }
            Prompt::Ids(ids) => service.job(ids, &form.wish),
        };
        jobs.extend(form.answers(&job));
    }
    form.deliver((service, connection, request), (jobs, Divider::default()), false)
}

enum Prompt<'v> {
    Text(&'v str),
    Ids(Vec<u32>),
}

/// Reads `prompt`: a text, texts, ids, or lists of ids.
fn prompts<'v>(fields: &Fields<'v>) -> Result<Vec<Prompt<'v>>, ApiError> {
    let bad = || fields.bad("prompt", "is no text, list of token ids, or array of one of these");
    let ids = |values: &[Value]| values.iter().map(token_id).collect::<Option<Vec<u32>>>();
    let one = |value: &'v Value| match value {
        Value::String(text) => Some(Prompt::Text(text)),
        Value::Array(values) => ids(values).map(Prompt::Ids),
        _ => None,
    };
    match fields.get("prompt").ok_or_else(bad)? {
        Value::Array(values) if values.iter().all(|v| v.is_array() || v.is_string()) => {
            match values.is_empty() {
                true => Err(bad()),
                false => values.iter().map(|value| one(value).ok_or_else(bad)).collect(),
            }
        }
        value => Ok(vec![one(value).ok_or_else(bad)?]),
    }
}

/// Id of call `at` of answer `index`: nine letters and digits, the form that Mistral's models want.
pub(super) fn call_id(answer: &str, index: usize, at: usize) -> String {
    let mut hasher = DefaultHasher::new();
    (answer, index, at).hash(&mut hasher);
    let mut left = hasher.finish();
    let mut digit = || {
        let digit = (left % 36) as u32;
        left /= 36;
        char::from_digit(digit, 36).unwrap_or('0')
    };
    (0..9).map(|_| digit()).collect()
}

/// State of the answers to one request in OpenAI's format.
struct OpenAi {
    is_chat: bool,
    id: String,
    created: u64,
    model: String,
    wants_usage: bool,
    answers: Vec<Progress>,
    tokenizer: Arc<Tokenizer>,
    tells_odds: bool,
    prompt_tokens: usize,
    answers_per_prompt: usize,
    /// Prompt tokens that were not computed again: all of them, less those that went through the model.
    cached_tokens: usize,
    completion_tokens: usize,
}

/// Whether a call is not complete behind these pieces.
fn is_call_open(pieces: &[CallPiece]) -> bool {
    pieces.last().is_some_and(|piece| *piece != CallPiece::End)
}

/// How much of an answer was sent.
#[derive(Clone, Copy, Default)]
struct Progress {
    n_calls: usize,
    /// Whether the last call is not complete.
    is_call_open: bool,
    /// Characters of the tokens that were sent.
    n_chars: usize,
}

impl OpenAi {
    /// `logprobs` of a choice.
    fn odds(&mut self, index: usize, tokens: &[TokenOdds]) -> Value {
        match (self.tells_odds, self.is_chat) {
            (false, _) => Value::Null,
            (true, true) => odds::chat(tokens, &self.tokenizer),
            (true, false) => odds::text(tokens, &self.tokenizer, &mut self.answers[index].n_chars),
        }
    }

    /// `tool_calls` of a whole answer.
    fn calls(&mut self, index: usize, pieces: &[CallPiece]) -> Value {
        let calls = joined(pieces);
        self.answers[index].n_calls = calls.len();
        self.answers[index].is_call_open = is_call_open(pieces);
        let call = |(at, call): (usize, &ToolCall)| {
            json!({"id": call_id(&self.id, index, at), "type": "function",
                "function": {"name": call.name, "arguments": call.arguments}})
        };
        calls.iter().enumerate().map(call).collect()
    }

    /// A line of a stream with more of a call.
    fn call_event(&mut self, index: usize, piece: &CallPiece) -> String {
        self.answers[index].is_call_open = is_call_open(std::slice::from_ref(piece));
        let n_calls = &mut self.answers[index].n_calls;
        let call = match piece {
            CallPiece::Begin(name) => {
                *n_calls += 1;
                let at = *n_calls - 1;
                json!({"index": at, "id": call_id(&self.id, index, at), "type": "function",
                    "function": {"name": name, "arguments": ""}})
            }
            CallPiece::Arguments(more) => {
                json!({"index": n_calls.saturating_sub(1), "function": {"arguments": more}})
            }
            CallPiece::End => return String::new(),
        };
        self.delta(index, json!({"tool_calls": [call]}), Value::Null)
    }

    /// Why answer `index` ended, in OpenAI's words.
    fn finish_reason(&self, index: usize, outcome: &Outcome) -> &'static str {
        match outcome.reason {
            StopReason::StopId(_) | StopReason::StopString | StopReason::Complete
                if self.answers[index].n_calls > 0 && !self.answers[index].is_call_open =>
            {
                "tool_calls"
            }
            StopReason::StopId(_) | StopReason::StopString | StopReason::Complete => "stop",
            _ => "length",
        }
    }

    /// A line of a stream with more of a conversation's answer.
    fn delta(&self, index: usize, delta: Value, odds: Value) -> String {
        let mut choice = json!({"index": index, "delta": delta, "finish_reason": null});
        if self.tells_odds {
            choice["logprobs"] = odds;
        }
        self.event(json!([choice]), None)
    }

    fn count(&mut self, index: usize, outcome: &Outcome) {
        self.completion_tokens += outcome.figures.generated_tokens;
        // A prompt counts once. Its first answer tells what was there before the request: the others share its tokens.
        if index.is_multiple_of(self.answers_per_prompt) {
            self.cached_tokens = self.cached_tokens.saturating_sub(outcome.figures.prompt_tokens);
        }
    }

    fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt_tokens, self.completion_tokens);
        json!({"prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens}})
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": kind, "created": self.created, "model": self.model,
            "choices": choices})
    }

    /// A line of a stream.
    fn event(&self, choices: Value, usage: Option<Value>) -> String {
        let kind = if self.is_chat { "chat.completion.chunk" } else { "text_completion" };
        let mut object = self.object(kind, choices);
        if self.wants_usage {
            object["usage"] = usage.unwrap_or(Value::Null);
        }
        format!("data: {}\n\n", json::compact(&object))
    }
}

impl OpenAi {
    /// A whole answer.
    fn choice(&mut self, index: usize, Whole { piece, outcome }: &Whole) -> Value {
        let odds = self.odds(index, &piece.tokens);
        let calls = self.calls(index, &piece.calls);
        let reason = self.finish_reason(index, outcome);
        let mut choice = json!({"index": index, "finish_reason": reason, "logprobs": odds});
        if !self.is_chat {
            choice["text"] = json!(piece.text);
            return choice;
        }
        let is_call_alone = piece.text.is_empty() && !piece.calls.is_empty();
        let content = if is_call_alone { Value::Null } else { json!(piece.text) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !piece.thought.is_empty() {
            message["reasoning_content"] = json!(piece.thought);
        }
        if !piece.calls.is_empty() {
            message["tool_calls"] = calls;
        }
        choice["message"] = message;
        choice
    }
}

impl Protocol for OpenAi {
    const STREAM_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self) -> String {
        let role = json!({"role": "assistant", "content": ""});
        let begun = |index| self.delta(index, role.clone(), Value::Null);
        match self.is_chat {
            true => (0..self.answers.len()).map(begun).collect(),
            false => String::new(),
        }
    }

    fn piece(&mut self, index: usize, piece: &Piece) -> String {
        let mut odds = self.odds(index, &piece.tokens);
        let mut events = String::new();
        if !self.is_chat {
            let text = &piece.text;
            let choice =
                json!({"index": index, "text": text, "finish_reason": null, "logprobs": odds});
            return self.event(json!([choice]), None);
        }
        if !piece.thought.is_empty() {
            let delta = json!({"reasoning_content": piece.thought});
            events += &self.delta(index, delta, odds.take());
        }
        if !piece.text.is_empty() || !odds.is_null() {
            events += &self.delta(index, json!({"content": piece.text}), odds);
        }
        for piece in &piece.calls {
            events += &self.call_event(index, piece);
        }
        events
    }

    fn end(&mut self, index: usize, outcome: &Outcome) -> String {
        self.count(index, outcome);
        let reason = self.finish_reason(index, outcome);
        let choice = match self.is_chat {
            true => json!({"index": index, "delta": {}, "finish_reason": reason}),
            false => json!({"index": index, "text": "", "finish_reason": reason, "logprobs": null}),
        };
        self.event(json!([choice]), None)
    }

    fn finish(&mut self) -> String {
        let usage = match self.wants_usage {
            true => self.event(json!([]), Some(self.usage())),
            false => String::new(),
        };
        usage + "data: [DONE]\n\n"
    }

    fn failed(&self, error: &ApiError) -> String {
        format!("data: {}\n\n", json::compact(&error.object()))
    }

    fn whole(&mut self, answers: &[Whole]) -> Value {
        let choices = answers.iter().enumerate().map(|(index, answer)| self.choice(index, answer));
        let choices: Vec<Value> = choices.collect();
        for (index, answer) in answers.iter().enumerate() {
            self.count(index, &answer.outcome);
        }
        let kind = if self.is_chat { "chat.completion" } else { "text_completion" };
        let mut object = self.object(kind, Value::Array(choices));
        object["usage"] = self.usage();
        object
    }
}
