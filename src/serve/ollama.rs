//! Ollama's protocol: chat, generate, and information about models.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answer::{Protocol, Sent, Whole, deliver};
use super::asked::Asked;
use super::divide::{Divider, Piece};
use super::error::ApiError;
use super::fields::{Fields, strings};
use super::http::{Connection, Reply, Request};
use super::jobs::TokenOdds;
use super::keep_alive::KeepAlive;
use super::messages::Message;
use super::models::{Models, Shown};
use super::neutral;
use super::odds;
use super::service::{ChatJob, ModelAbout, STOPS_MAX, Service, now, untagged};
use super::source::ListedModel;
use super::tools::{CallPiece, Tools, finite, joined};
use super::wish::{TextForm, Thinking, Wish, min_p, penalties};
use crate::engine::{Outcome, StopReason};
use crate::format::json;
use crate::sampler::Sampling;
use crate::tokenizer::{ChatRole, Tokenizer};

/// Ollama's defaults where a request says nothing.
const TEMPERATURE: f32 = 0.8;
const TOP_P: f32 = 0.9;
const TOP_K: usize = 40;

/// The version of Ollama whose protocol is spoken here. Clients check it for features, and refuse old ones.
const VERSION: &str = "0.12.6";

/// Expiry time of a model that is never unloaded: clients show such a time as forever.
const NEVER: &str = "2318-03-07T00:00:00Z";
/// [`NEVER`] in seconds since 1970. Clients cannot read much later times.
const NEVER_S: u64 = 10_987_401_600;

/// `GET /api/version`.
pub(super) fn version() -> Reply {
    Reply::json(200, &json!({"version": VERSION, "leap": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`.
pub(super) fn tags(models: &Models) -> Reply {
    let object = |ListedModel { about, modified, .. }: &ListedModel| {
        let name = tagged(&about.name);
        json!({"name": name, "model": name, "modified_at": rfc3339(*modified),
            "size": about.bytes, "digest": about.digest, "details": details(about)})
    };
    let all: Vec<Value> = models.list().iter().map(object).collect();
    Reply::json(200, &json!({"models": all}))
}

/// A model's name as Ollama writes it, with a tag.
fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}:latest") }
}

/// `GET /api/ps`: the loaded models.
pub(super) fn running(models: &Models) -> Reply {
    let object = |Shown { service, memory, stays }: &Shown| {
        let about = &service.model.about;
        let name = tagged(&about.name);
        let size = if *memory == 0 { about.bytes } else { *memory };
        let expires = stays.and_then(|time| now().checked_add(time.as_secs()));
        let expires = expires.filter(|time| *time < NEVER_S);
        let expires = expires.map_or(NEVER.to_owned(), rfc3339);
        json!({"name": name, "model": name, "size": size, "digest": about.digest,
            "details": details(about), "expires_at": expires, "size_vram": about.device_memory,
            "context_length": service.ctx_len})
    };
    let all: Vec<Value> = models.shown().iter().map(object).collect();
    Reply::json(200, &json!({"models": all}))
}

/// `POST /api/show`: a model, which is not loaded for that.
pub(super) fn show(models: &Models, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let name = match fields.string("model")? {
        Some(name) => Some(name),
        None => fields.string("name")?,
    };
    let modified = models.find(name)?.modified;
    let service = &*models.words_of(name)?;
    service.check_model(&fields, "model")?;
    service.check_model(&fields, "name")?;
    let family = &service.model.about.family;
    let info = json!({
        "general.architecture": family,
        "general.basename": service.model.about.name,
        format!("{family}.context_length"): service.ctx_len,
        format!("{family}.embedding_length"): service.model.about.dim,
    });
    Ok(Reply::json(
        200,
        &json!({"details": details(&service.model.about), "capabilities": capabilities(service),
            "model_info": info, "modified_at": rfc3339(modified)}),
    ))
}

/// The model's capabilities: Home Assistant looks for `tools` here.
fn capabilities(service: &Service) -> Vec<&'static str> {
    if service.model.embeds.is_some() {
        return vec!["embedding"];
    }
    let thinks = service.thoughts().is_some();
    let all = [
        ("completion", true),
        ("tools", service.can_call_tools()),
        ("thinking", service.can_chat() && thinks),
        ("insert", service.model.tokenizer.can_infill()),
    ];
    all.into_iter().filter(|(_, is_so)| *is_so).map(|(name, _)| name).collect()
}

fn details(about: &ModelAbout) -> Value {
    let ModelAbout { family, quantization, .. } = about;
    json!({"format": "leap", "family": family, "families": [family],
        "quantization_level": quantization})
}

/// Reads `think`: true, false, or an effort.
fn thinking(service: &Service, fields: &Fields<'_>) -> Result<Thinking, ApiError> {
    match fields.get("think") {
        None => Ok(Thinking::default()),
        // Ollama refuses this, too.
        Some(Value::Bool(true)) if service.thoughts().is_none() => {
            Err(fields.bad("think", "is true, but this model cannot think"))
        }
        Some(Value::Bool(thinks)) => Ok(Thinking { thinks: Some(*thinks), ..Thinking::default() }),
        Some(Value::String(word)) => Ok(Thinking::with_effort(word)),
        Some(_) => Err(fields.bad("think", "is neither true, false nor a word")),
    }
}

struct Form {
    wish: Wish,
    is_streamed: bool,
}

impl Form {
    fn read(
        service: &Service,
        fields: &Fields<'_>,
        tools: Option<Tools>,
    ) -> Result<Form, ApiError> {
        service.check_model(fields, "model")?;
        let schema = match fields.get("format") {
            None => None,
            Some(Value::String(word)) if word.is_empty() => None,
            Some(Value::String(word)) if word == "json" => Some(json!({"type": "object"})),
            Some(schema @ Value::Object(_)) => Some(schema.clone()),
            Some(_) => return Err(fields.bad("format", "is neither json nor a schema")),
        };
        let form = schema.map(|schema| TextForm { schema, field: "format" });
        let none = json!({});
        let options = Fields::of(fields.get("options").unwrap_or(&none), "options")?;
        let options = options.cutting_fractions();
        neutral::check_ollama(&options)?;
        let stop_strings = strings(&options, "stop", STOPS_MAX)?;
        let usual = &service.model.suggested;
        let sampling = Sampling {
            temperature: options
                .number("temperature", 0.0..=100.0)?
                .unwrap_or(usual.temperature.unwrap_or(TEMPERATURE)),
            top_p: options.number("top_p", 0.0..=1.0)?.unwrap_or(usual.top_p.unwrap_or(TOP_P)),
            top_k: match options.whole("top_k", -1..=i64::MAX)? {
                Some(k) => k.max(0) as usize,
                None => usual.top_k.unwrap_or(TOP_K),
            },
            min_p: min_p(&options)?.or(usual.min_p).unwrap_or(0.0),
            seed: service.seed(&options)?,
        };
        // Zero and negative numbers mean no limit.
        let n_predict = options.whole("num_predict", i64::MIN..=i64::MAX)?.filter(|n| *n > 0);
        let n_predict = n_predict.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let rules = penalties(&options)?;
        let thinking = thinking(service, fields)?;
        let wish = Wish {
            sampling,
            rules,
            n_predict,
            stop_strings,
            thinking,
            template_variables: Vec::new(),
            form,
            tools,
            n_likeliest: odds::chat_wish(fields)?,
        };
        Ok(Form { wish, is_streamed: fields.flag("stream")?.unwrap_or(true) })
    }

    fn deliver(
        &self,
        to: (&Service, &mut Connection, &Request),
        ChatJob { job, divider }: ChatJob,
        (is_chat, waited, start): (bool, Duration, Instant),
    ) -> Result<Sent, ApiError> {
        let mut protocol = Ollama {
            is_chat,
            model: to.0.model.about.name.clone(),
            prompt_tokens: job.prompt.len(),
            calls: Vec::new(),
            waited,
            start,
            teller: job.n_likeliest.map(|_| Arc::clone(&to.0.model.tokenizer)),
        };
        deliver(to, (vec![job], divider), (&mut protocol, self.is_streamed))
    }
}

/// A piece without text of an answer that has not begun: lines of JSON have no comments.
pub(super) fn waiting(model: &str, is_chat: bool) -> String {
    line(&object((model, is_chat), "", false))
}

/// The reply to a request without a prompt, which asks to load the model.
fn loaded(service: &Service, fields: &Fields<'_>, is_chat: bool) -> Result<Reply, ApiError> {
    service.check_model(fields, "model")?;
    let mut object = object((&service.model.about.name, is_chat), "", true);
    object["done_reason"] = json!("load");
    Ok(Reply::json(200, &object))
}

/// The reply to a request without a prompt that asks to unload a model; `None` if `fields` are those of another. The only
/// model of a server stays loaded all the same.
pub(super) fn unload(
    models: &Models,
    path: &str,
    fields: &Fields<'_>,
) -> Result<Option<Reply>, ApiError> {
    let is_chat = path == "/api/chat";
    let is_empty = match path {
        "/api/chat" => fields.array("messages")?.unwrap_or_default().is_empty(),
        "/api/generate" => fields.string("prompt")?.unwrap_or_default().is_empty(),
        _ => false,
    };
    if !is_empty || !KeepAlive::read(fields)?.is_some_and(KeepAlive::is_zero) {
        return Ok(None);
    }
    let asked = fields.string("model")?;
    let name = models.find(asked)?.about.name;
    let is_other = |asked: &&str| *asked != name && untagged(asked) != name;
    if let Some(asked) = asked.filter(is_other).filter(|_| models.source().is_none()) {
        return Err(models.unknown(asked));
    }
    models.unload(&name);
    let mut object = object((&name, is_chat), "", true);
    object["done_reason"] = json!("unload");
    Ok(Some(Reply::json(200, &object)))
}

/// An object of a stream, or all of an answer.
fn object((model, is_chat): (&str, bool), text: &str, is_done: bool) -> Value {
    let created_at = rfc3339(now());
    match is_chat {
        true => json!({"model": model, "created_at": created_at, "done": is_done,
            "message": {"role": "assistant", "content": text}}),
        false => {
            json!({"model": model, "created_at": created_at, "done": is_done, "response": text})
        }
    }
}

/// `POST /api/chat`.
pub(super) fn chat(
    service: &Service,
    connection: &mut Connection,
    Asked { request, body, waited }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let start = Instant::now();
    let fields = Fields::of(body, "")?;
    if fields.array("messages")?.unwrap_or_default().is_empty() {
        return Ok(Sent::Reply(loaded(service, &fields, true)?));
    }
    let form = Form::read(service, &fields, Tools::read(&fields)?)?;
    let messages = service.messages(&fields)?;
    let job = service.chat_job(&messages, &form.wish)?;
    form.deliver((service, connection, request), job, (true, waited, start))
}

/// `POST /api/generate`. As in Ollama the prompt is a user's message, unless `raw` makes it a text to
/// continue.
pub(super) fn generate(
    service: &Service,
    connection: &mut Connection,
    Asked { request, body, waited }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let start = Instant::now();
    let fields = Fields::of(body, "")?;
    for name in ["template", "context", "images"] {
        fields.only(name, |value| *value == "" || value.as_array().is_some_and(Vec::is_empty))?;
    }
    let prompt = fields.string("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(Sent::Reply(loaded(service, &fields, false)?));
    }
    let form = Form::read(service, &fields, None)?;
    let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
    let is_raw = fields.flag("raw")?.unwrap_or(false) || suffix.is_some() || !service.can_chat();
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let job = match (is_raw, system) {
        (true, Some(_)) => return Err(fields.bad("system", "has no place in a raw prompt")),
        (true, None) => {
            let job = service.text_job(prompt, suffix, &form.wish)?;
            ChatJob { job, divider: Divider::default() }
        }
        (false, system) => {
            let message = |role, text: &str| Message::new(role, text);
            let system = system.map(|system| message(ChatRole::System, system));
            let messages: Vec<Message> =
                system.into_iter().chain([message(ChatRole::User, prompt)]).collect();
            service.chat_job(&messages, &form.wish)?
        }
    };
    form.deliver((service, connection, request), job, (false, waited, start))
}

/// State of an answer in Ollama's format.
struct Ollama {
    is_chat: bool,
    model: String,
    prompt_tokens: usize,
    /// Pieces of a call that is not complete yet.
    calls: Vec<CallPiece>,
    /// Names tokens in log probabilities; `None` if the client does not want these.
    teller: Option<Arc<Tokenizer>>,
    /// How long the request waited for the model.
    waited: Duration,
    /// The end of that wait.
    start: Instant,
}

impl Ollama {
    fn object(&self, text: &str, is_done: bool) -> Value {
        object((&self.model, self.is_chat), text, is_done)
    }

    fn put_thought(&self, object: &mut Value, text: &str) {
        let place = if self.is_chat { &mut object["message"] } else { object };
        place["thinking"] = json!(text);
    }

    fn put_odds(&self, object: &mut Value, tokens: &[TokenOdds]) {
        if let Some(tokenizer) = &self.teller {
            object["logprobs"] = odds::chat(tokens, tokenizer)["content"].take();
        }
    }

    fn ended(&self, text: &str, outcome: &Outcome) -> Value {
        let mut object = self.object(text, true);
        let figures = &outcome.figures;
        let ns = |time: Duration| time.as_nanos() as u64;
        let reason = match outcome.reason {
            StopReason::StopId(_) | StopReason::StopString | StopReason::Complete => "stop",
            _ => "length",
        };
        object["done_reason"] = json!(reason);
        object["total_duration"] = json!(ns(self.waited + self.start.elapsed()));
        object["load_duration"] = json!(ns(self.waited));
        object["prompt_eval_count"] = json!(self.prompt_tokens);
        object["prompt_eval_duration"] = json!(ns(figures.ttft));
        object["eval_count"] = json!(figures.generated_tokens);
        object["eval_duration"] = json!(ns(figures.decode));
        object
    }
}

impl Protocol for Ollama {
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn begin(&mut self) -> String {
        String::new()
    }

    fn piece(&mut self, _: usize, piece: &Piece) -> String {
        let mut objects = Vec::new();
        if !piece.thought.is_empty() {
            let mut object = self.object("", false);
            self.put_thought(&mut object, &piece.thought);
            objects.push(object);
        }
        self.calls.extend_from_slice(&piece.calls);
        let n =
            self.calls.iter().rposition(|piece| *piece == CallPiece::End).map_or(0, |at| at + 1);
        let calls: Vec<CallPiece> = self.calls.drain(..n).collect();
        let has_odds_alone = objects.is_empty() && !piece.tokens.is_empty();
        if !piece.text.is_empty() || !calls.is_empty() || has_odds_alone {
            let mut object = self.object(&piece.text, false);
            put_calls(&mut object, &calls);
            objects.push(object);
        }
        if let Some(last) = objects.last_mut() {
            self.put_odds(last, &piece.tokens);
        }
        objects.iter().map(line).collect()
    }

    fn end(&mut self, _: usize, outcome: &Outcome) -> String {
        line(&self.ended("", outcome))
    }

    fn finish(&mut self) -> String {
        String::new()
    }

    /// Lines of JSON have no comments, but clients of Ollama accept pieces without text.
    fn waiting(&self) -> String {
        line(&self.object("", false))
    }

    fn failed(&self, error: &ApiError) -> String {
        line(&json!({"error": error.message}))
    }

    fn whole(&mut self, answers: &[Whole]) -> Value {
        match answers {
            [Whole { piece, outcome }, ..] => {
                let mut object = self.ended(&piece.text, outcome);
                if !piece.thought.is_empty() {
                    self.put_thought(&mut object, &piece.thought);
                }
                put_calls(&mut object, &piece.calls);
                self.put_odds(&mut object, &piece.tokens);
                object
            }
            [] => Value::Null,
        }
    }
}

/// Adds tool calls, which only conversations have. The arguments of a call are an object here, so a call that was cut
/// short is left out.
fn put_calls(object: &mut Value, pieces: &[CallPiece]) {
    let mut calls = Vec::new();
    for call in joined(pieces) {
        if let Some(arguments @ Value::Object(_)) = finite::read(&call.arguments) {
            calls.push(json!({"function": {"name": call.name, "arguments": arguments}}));
        }
    }
    if !calls.is_empty() {
        object["message"]["tool_calls"] = Value::Array(calls);
    }
}

/// Seconds since 1970 as RFC 3339 writes them, in UTC.
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // Howard Hinnant's civil_from_days: years begin in March, so that the odd day is a year's last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A line of an answer that is sent in pieces.
fn line(object: &Value) -> String {
    json::compact(object) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::answer::tests::first_line_while_waiting;

    /// Clients of Ollama give up on streams that say nothing, and know no comments.
    #[test]
    fn a_stream_that_waits_sends_pieces_without_text() {
        for is_chat in [true, false] {
            let (model, calls) = ("demo".to_owned(), Vec::new());
            let (waited, start) = (Duration::ZERO, Instant::now());
            let protocol =
                Ollama { is_chat, model, prompt_tokens: 1, calls, teller: None, waited, start };
            let piece: Value = serde_json::from_str(&first_line_while_waiting(protocol)).unwrap();
            let text = if is_chat { &piece["message"]["content"] } else { &piece["response"] };
            assert_eq!((text, &piece["done"]), (&json!(""), &json!(false)), "{piece}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(NEVER_S), NEVER);
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(rfc3339(4_102_444_799), "2099-12-31T23:59:59Z");
    }
}
