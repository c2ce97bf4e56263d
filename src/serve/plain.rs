//! LEAP's own endpoints: health, metrics, tokens.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, token_id};
use super::http::Reply;
use super::service::Service;
use crate::format::json;

/// Most JSON values of a body: enough for a context of ids and the rest of a request.
const VALUES_MAX: usize = 1 << 18;

/// The JSON of a body.
pub(super) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    json::parse(body, VALUES_MAX)
        .map_err(|problem| ApiError::new(400, format!("the body: {problem}")))
}

/// `GET /health`: the server answers as soon as the model is ready.
pub(super) fn health() -> Reply {
    Reply::json(200, &json!({"status": "ok"}))
}

/// `GET /metrics`.
pub(super) fn metrics(service: &Service) -> Reply {
    Reply::text("text/plain; version=0.0.4", service.metrics.text(service.meter.as_deref()))
}

/// `POST /tokenize`: the ids of `content`, with BOS only if `add_special` is true.
pub(super) fn tokenize(service: &Service, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    fields.check_names(&[&["content", "add_special"]])?;
    let text = fields.string("content")?.ok_or_else(|| fields.bad("content", "is not there"))?;
    let bos = service
        .model
        .tokenizer
        .bos()
        .filter(|_| fields.flag("add_special").is_ok_and(|f| f == Some(true)));
    fields.flag("add_special")?;
    let mut ids: Vec<u32> = bos.into_iter().collect();
    service.model.tokenizer.encode(text, &mut ids);
    Ok(Reply::json(200, &json!({"tokens": ids})))
}

/// `POST /detokenize`: the text of `tokens`.
pub(super) fn detokenize(service: &Service, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    fields.check_names(&[&["tokens"]])?;
    let values = fields.array("tokens")?.ok_or_else(|| fields.bad("tokens", "is not there"))?;
    let mut ids = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let id = token_id(value).filter(|&id| service.model.tokenizer.token_kind(id).is_some());
        ids.push(id.ok_or_else(|| fields.bad(&format!("tokens[{index}]"), "is no token id"))?);
    }
    Ok(Reply::json(200, &json!({"content": service.model.tokenizer.decode(&ids, true)})))
}
