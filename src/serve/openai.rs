//! OpenAI's protocol: models, chat completions and completions.

use serde_json::{Value, json};

use super::answer::{Protocol, Sent, Whole, deliver};
use super::error::ApiError;
use super::fields::{Fields, strings};
use super::http::{Connection, Reply, Request};
use super::service::{ChatJob, STOPS_MAX, Service, Thinking, Wish, messages, now};
use crate::engine::{Job, Outcome, StopReason};
use crate::sampler::Sampling;
use crate::tokenizer::{ChatOptions, ThoughtFilter};

/// Most answers of one request.
const ANSWERS_MAX: i64 = 16;

/// Fields that say how a text goes on.
const WISHES: &[&str] = &[
    "model",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "max_tokens",
    "n",
];

/// Fields that change no answer here.
const IGNORED: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
];

/// Fields that would change the answer, and are taken only where they do not.
const NEUTRAL: &[&str] = &[
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "response_format",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "logprobs",
    "top_logprobs",
    "min_p",
    "repetition_penalty",
    "modalities",
    "echo",
    "best_of",
];

fn check_neutral(fields: &Fields<'_>) -> Result<(), ApiError> {
    let is_empty = |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    for name in NEUTRAL {
        fields.only(name, |value| match *name {
            "response_format" => value["type"] == "text",
            "tool_choice" | "function_call" => value == "none" || value == "auto",
            "repetition_penalty" => value.as_f64() == Some(1.0),
            "best_of" => value.as_f64() == Some(1.0),
            "modalities" => *value == json!(["text"]),
            _ => is_empty(value) || *value == false || value.as_f64() == Some(0.0),
        })?;
    }
    Ok(())
}

/// `GET /v1/models`.
pub(super) fn models(service: &Service) -> Reply {
    Reply::json(200, &json!({"object": "list", "data": [model_object(service)]}))
}

/// `GET /v1/models/NAME`.
pub(super) fn model(service: &Service, name: &str) -> Result<Reply, ApiError> {
    match name == service.about.name {
        true => Ok(Reply::json(200, &model_object(service))),
        false => Err(service.unknown_model(name)),
    }
}

fn model_object(service: &Service) -> Value {
    let (id, created, max_model_len) = (&service.about.name, service.started, service.ctx_len);
    json!({"id": id, "object": "model", "created": created, "owned_by": "leap",
        "max_model_len": max_model_len})
}

/// `reasoning_effort`, of which `none` is no thoughts, and `chat_template_kwargs.enable_thinking`.
fn thinking(fields: &Fields<'_>) -> Result<Thinking, ApiError> {
    let mut thinking = Thinking::default();
    if let Some(effort) = fields.string("reasoning_effort")? {
        thinking.effort = ChatOptions::EFFORTS.into_iter().find(|known| *known == effort);
        match effort {
            "none" => thinking.thinks = Some(false),
            _ if thinking.effort.is_some() => {}
            _ => {
                return Err(fields.bad("reasoning_effort", "is none of none, low, medium and high"));
            }
        }
    }
    if let Some(kwargs) = fields.get("chat_template_kwargs") {
        let kwargs = Fields::of(kwargs, "chat_template_kwargs")?;
        kwargs.check_names(&[&["enable_thinking"]])?;
        thinking.thinks = kwargs.flag("enable_thinking")?.or(thinking.thinks);
    }
    Ok(thinking)
}

/// What a request says about its answers, beside their prompts.
struct Form {
    wish: Wish,
    n: u64,
    is_streamed: bool,
    wants_usage: bool,
}

impl Form {
    fn read(service: &Service, fields: &Fields<'_>, default: usize) -> Result<Form, ApiError> {
        check_neutral(fields)?;
        service.check_model(fields, "model")?;
        let n_predict = match fields.whole("max_completion_tokens", 1..=i64::MAX)? {
            None => fields.whole("max_tokens", 1..=i64::MAX)?,
            found => found,
        };
        let stop_strings = strings(fields, "stop", STOPS_MAX)?;
        if stop_strings.iter().any(String::is_empty) {
            return Err(fields.bad("stop", "holds an empty string"));
        }
        let wants_usage = match fields.get("stream_options") {
            Some(options) => Fields::of(options, "stream_options")?.flag("include_usage")?,
            None => None,
        };
        let sampling = Sampling {
            temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0),
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
            top_k: fields.whole("top_k", -1..=i64::MAX)?.map_or(0, |k| k.max(0) as usize),
            seed: service.seed(fields)?,
        };
        let n_predict = n_predict.map_or(default, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Ok(Form {
            wish: Wish { sampling, n_predict, stop_strings, thinking: thinking(fields)? },
            n: fields.whole("n", 1..=ANSWERS_MAX)?.unwrap_or(1) as u64,
            is_streamed: fields.flag("stream")?.unwrap_or(false),
            wants_usage: wants_usage.unwrap_or(false),
        })
    }

    /// As many answers to the same prompt as are wanted, each with a seed of its own.
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
        (jobs, thoughts): (Vec<Job>, Option<ThoughtFilter>),
        is_chat: bool,
    ) -> Result<Sent, ApiError> {
        let number = service.next_answer();
        let mut protocol = OpenAi {
            is_chat,
            id: format!(
                "{}-{:x}-{number}",
                if is_chat { "chatcmpl" } else { "cmpl" },
                service.started
            ),
            created: now(),
            model: service.about.name.clone(),
            wants_usage: self.wants_usage,
            // The answers of one prompt follow each other.
            prompt_tokens: jobs.iter().step_by(self.n as usize).map(|job| job.prompt.len()).sum(),
            n_answers: jobs.len(),
            cached_tokens: 0,
            completion_tokens: 0,
        };
        protocol.cached_tokens = jobs.iter().map(|job| job.prompt.len()).sum();
        deliver((service, connection, request), jobs, thoughts, (&mut protocol, self.is_streamed))
    }
}

/// `POST /v1/chat/completions`.
pub(super) fn chat(
    service: &Service,
    connection: &mut Connection,
    (request, body): (&Request, &Value),
) -> Result<Sent, ApiError> {
    let fields = Fields::of(body, "")?;
    fields.check_names(&[
        WISHES,
        IGNORED,
        NEUTRAL,
        &["messages", "max_completion_tokens", "reasoning_effort", "chat_template_kwargs"],
    ])?;
    let form = Form::read(service, &fields, usize::MAX)?;
    let messages = messages(fields.array("messages")?.unwrap_or_default())?;
    let ChatJob { job, thoughts } = service.chat_job(&messages, &form.wish)?;
    form.deliver((service, connection, request), (form.answers(&job).collect(), thoughts), true)
}

/// `POST /v1/completions`.
pub(super) fn complete(
    service: &Service,
    connection: &mut Connection,
    (request, body): (&Request, &Value),
) -> Result<Sent, ApiError> {
    /// What OpenAI generates where nothing is said.
    const N_PREDICT: usize = 16;
    let fields = Fields::of(body, "")?;
    fields.check_names(&[WISHES, IGNORED, NEUTRAL, &["prompt", "suffix"]])?;
    let form = Form::read(service, &fields, N_PREDICT)?;
    let suffix = fields.string("suffix")?;
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
    form.deliver((service, connection, request), (jobs, None), false)
}

enum Prompt<'v> {
    Text(&'v str),
    Ids(Vec<u32>),
}

/// A text, texts, ids, or lists of ids.
fn prompts<'v>(fields: &Fields<'v>) -> Result<Vec<Prompt<'v>>, ApiError> {
    let bad = || fields.bad("prompt", "is no text, list of token ids, or array of one of these");
    let ids = |values: &[Value]| -> Option<Vec<u32>> {
        values.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
    };
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

/// The words of OpenAI's protocol for one request.
struct OpenAi {
    is_chat: bool,
    id: String,
    created: u64,
    model: String,
    wants_usage: bool,
    n_answers: usize,
    prompt_tokens: usize,
    /// Tokens of prompts that did not go through the model again: all, less those that did.
    cached_tokens: usize,
    completion_tokens: usize,
}

impl OpenAi {
    fn count(&mut self, outcome: &Outcome) {
        self.completion_tokens += outcome.figures.generated_tokens;
        self.cached_tokens = self.cached_tokens.saturating_sub(outcome.figures.prompt_tokens);
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
        format!("data: {object}\n\n")
    }
}

/// Why an answer ended, in OpenAI's words.
fn finish_reason(outcome: &Outcome) -> &'static str {
    match outcome.reason {
        StopReason::StopId(_) | StopReason::StopString => "stop",
        _ => "length",
    }
}

impl Protocol for OpenAi {
    const STREAM_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self) -> String {
        let role = |index: usize| {
            let delta = json!({"role": "assistant", "content": ""});
            self.event(json!([{"index": index, "delta": delta, "finish_reason": null}]), None)
        };
        match self.is_chat {
            true => (0..self.n_answers).map(role).collect(),
            false => String::new(),
        }
    }

    fn thought(&mut self, index: usize, text: &str) -> String {
        let delta = json!({"reasoning_content": text});
        self.event(json!([{"index": index, "delta": delta, "finish_reason": null}]), None)
    }

    fn piece(&mut self, index: usize, text: &str) -> String {
        let choice = match self.is_chat {
            true => json!({"index": index, "delta": {"content": text}, "finish_reason": null}),
            false => json!({"index": index, "text": text, "finish_reason": null}),
        };
        self.event(json!([choice]), None)
    }

    fn end(&mut self, index: usize, outcome: &Outcome) -> String {
        self.count(outcome);
        let reason = finish_reason(outcome);
        let choice = match self.is_chat {
            true => json!({"index": index, "delta": {}, "finish_reason": reason}),
            false => json!({"index": index, "text": "", "finish_reason": reason}),
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
        format!("data: {}\n\n", error.object())
    }

    fn whole(&mut self, answers: &[Whole]) -> Value {
        let choice = |(index, answer): (usize, &Whole)| {
            let (text, reason) = (&answer.text, finish_reason(&answer.outcome));
            let mut message = json!({"role": "assistant", "content": text, "refusal": null});
            if !answer.thought.is_empty() {
                message["reasoning_content"] = json!(answer.thought);
            }
            match self.is_chat {
                true => json!({"index": index, "finish_reason": reason, "logprobs": null,
                    "message": message}),
                false => {
                    json!({"index": index, "finish_reason": reason, "logprobs": null, "text": text})
                }
            }
        };
        let choices: Vec<Value> = answers.iter().enumerate().map(choice).collect();
        answers.iter().for_each(|answer| self.count(&answer.outcome));
        let kind = if self.is_chat { "chat.completion" } else { "text_completion" };
        let mut object = self.object(kind, Value::Array(choices));
        object["usage"] = self.usage();
        object
    }
}
