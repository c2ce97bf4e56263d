//! LEAP's own endpoints: health, metrics, tokens.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, token_id};
use super::http::Reply;
use super::models::Models;
use super::odds;
use super::service::Service;
use crate::engine::ends;
use crate::format::json;
use crate::tokenizer::Tokenizer;

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
pub(super) fn metrics(models: &Models) -> Reply {
    Reply::text("text/plain; version=0.0.4", models.metrics())
}

/// `POST /tokenize`: the ids of `content`; if `add_special` is true, with BOS, or with the ids that a model of embeddings
/// wants around a text. Names of special tokens in the text are text, unless `parse_special` is true. `with_pieces` adds
/// the text of each token, as llama.cpp's server does.
pub(super) fn tokenize(service: &Service, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    service.check_model(&fields, "model")?;
    let text = fields.string("content")?.ok_or_else(|| fields.bad("content", "is not there"))?;
    let flag = |name| Ok::<bool, ApiError>(fields.flag(name)?.unwrap_or(false));
    let tokenizer = &service.model.tokenizer;
    let [first, last] = match (flag("add_special")?, &service.model.embeds) {
        (false, _) => [None; 2],
        (true, Some(header)) => ends(header, tokenizer),
        (true, None) => [tokenizer.bos(), None],
    };
    let mut ids: Vec<u32> = first.into_iter().collect();
    match flag("parse_special")? {
        true => tokenizer.encode_with_special(text, &mut ids),
        false => tokenizer.encode(text, &mut ids),
    }
    ids.extend(last);
    match flag("with_pieces")? {
        true => Ok(Reply::text("application/json", pieces(&ids, tokenizer))),
        false => Ok(Reply::json(200, &json!({"tokens": ids}))),
    }
}

/// Ids with their texts. Bytes that are no text are an array. The JSON is written token by token, because values of
/// a long text would take many times its memory.
fn pieces(ids: &[u32], tokenizer: &Tokenizer) -> String {
    let mut text = r#"{"tokens":["#.to_owned();
    for (index, &id) in ids.iter().enumerate() {
        let piece = match String::from_utf8(odds::bytes(id, tokenizer)) {
            Ok(piece) => json!(piece),
            Err(e) => json!(e.into_bytes()),
        };
        text += if index == 0 { "" } else { "," };
        text += &json::compact(&json!({"id": id, "piece": piece}));
    }
    text + "]}"
}

/// `POST /detokenize`: the text of `tokens`.
pub(super) fn detokenize(service: &Service, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    service.check_model(&fields, "model")?;
    let values = fields.array("tokens")?.ok_or_else(|| fields.bad("tokens", "is not there"))?;
    let mut ids = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        let id = token_id(value).filter(|&id| service.model.tokenizer.token_kind(id).is_some());
        ids.push(id.ok_or_else(|| fields.bad(&format!("tokens[{index}]"), "is no token id"))?);
    }
    Ok(Reply::json(200, &json!({"content": service.model.tokenizer.decode(&ids, true)})))
}
