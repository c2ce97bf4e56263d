//! Embeddings: OpenAI's `/v1/embeddings`, and Ollama's `/api/embed` and older `/api/embeddings`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::answer::Sent;
use super::asked::Asked;
use super::error::ApiError;
use super::fields::{Fields, token_id};
use super::http::{Connection, Reply};
use super::neutral;
use super::service::Service;
use super::vectors::EmbedTicket;
use crate::engine::{TextIds, VectorForm};
use crate::format::json;
use crate::format::model::{EmbeddingModel, Header};

/// Interval between checks of a waiting client.
const LOOK: Duration = Duration::from_millis(100);
/// Most texts of a request, as at OpenAI.
const TEXTS_MAX: usize = 2048;

/// Refuses a model of embeddings where text is written, and any other where vectors are asked for.
pub(super) fn check(service: &Service, path: &str) -> Result<(), ApiError> {
    let wants_vectors = matches!(path, "/v1/embeddings" | "/api/embed" | "/api/embeddings");
    let problem = match (service.model.embeds.is_some(), wants_vectors) {
        (true, false) => {
            "computes embeddings, and writes no text: ask /v1/embeddings or /api/embed"
        }
        (false, true) => "writes text: it is not a model of embeddings",
        _ => return Ok(()),
    };
    Err(ApiError::field("model", format!("{} {problem}", service.model.about.name)))
}

/// `POST /v1/embeddings`.
pub(super) fn openai(
    service: &Service,
    connection: &mut Connection,
    Asked { body, .. }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let fields = Fields::of(body, "")?;
    service.check_model(&fields, "model")?;
    let is_base64 = match fields.string("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.bad("encoding_format", "is neither float nor base64")),
    };
    neutral::check_embeddings(&fields)?;
    let wish = Wish::read(service, &fields, false)?;
    let texts = wish.texts(&fields, "input")?;
    let Some((vectors, n_tokens)) = compute(service, connection, texts, wish.form)? else {
        return Ok(Sent::Gone);
    };
    let mut text = r#"{"object":"list","data":["#.to_owned();
    for (index, vector) in vectors.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, r#"{comma}{{"object":"embedding","index":{index},"embedding":"#);
        match is_base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                let _ = write!(text, "\"{}\"", BASE64_STANDARD.encode(bytes));
            }
            false => put(&mut text, vector),
        }
        text.push('}');
    }
    let model = json::compact(&json!(service.model.about.name));
    let usage = json::compact(&json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens}));
    let _ = write!(text, r#"],"model":{model},"usage":{usage}}}"#);
    Ok(Sent::Reply(Reply::text("application/json", text)))
}

/// `POST /api/embed`.
pub(super) fn ollama(
    service: &Service,
    connection: &mut Connection,
    Asked { body, waited, .. }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let start = Instant::now();
    let fields = Fields::of(body, "")?;
    service.check_model(&fields, "model")?;
    let wish = Wish::read(service, &fields, fields.flag("truncate")?.unwrap_or(true))?;
    // Clients have a model loaded that way.
    let texts = match fields.get("input") {
        None => Vec::new(),
        Some(_) => wish.texts(&fields, "input")?,
    };
    let Some((vectors, n_tokens)) = compute(service, connection, texts, wish.form)? else {
        return Ok(Sent::Gone);
    };
    let model = json::compact(&json!(service.model.about.name));
    let mut text = format!(r#"{{"model":{model},"embeddings":["#);
    for (index, vector) in vectors.iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        put(&mut text, vector);
    }
    let total = (waited + start.elapsed()).as_nanos();
    let load = waited.as_nanos();
    let _ = write!(
        text,
        r#"],"total_duration":{total},"load_duration":{load},"prompt_eval_count":{n_tokens}}}"#
    );
    Ok(Sent::Reply(Reply::text("application/json", text)))
}

/// `POST /api/embeddings`, which Ollama's older clients ask: one text, the `prompt`.
pub(super) fn old_ollama(
    service: &Service,
    connection: &mut Connection,
    Asked { body, .. }: Asked<'_>,
) -> Result<Sent, ApiError> {
    let fields = Fields::of(body, "")?;
    service.check_model(&fields, "model")?;
    let wish = Wish::read(service, &fields, true)?;
    let prompt = fields.string("prompt")?.ok_or_else(|| fields.bad("prompt", "is not there"))?;
    let texts = vec![wish.ids(prompt, "prompt")?];
    let Some((vectors, _)) = compute(service, connection, texts, wish.form)? else {
        return Ok(Sent::Gone);
    };
    let mut text = r#"{"embedding":"#.to_owned();
    vectors.iter().for_each(|vector| put(&mut text, vector));
    text.push('}');
    Ok(Sent::Reply(Reply::text("application/json", text)))
}

/// A request's settings, besides its texts.
struct Wish<'s> {
    service: &'s Service,
    header: Arc<Header>,
    form: VectorForm,
    /// Most tokens of a text.
    limit: usize,
    truncates: bool,
    /// Text before each text.
    prompt: String,
}

impl<'s> Wish<'s> {
    fn read(
        service: &'s Service,
        fields: &Fields<'_>,
        truncates: bool,
    ) -> Result<Wish<'s>, ApiError> {
        let header = service.model.embeds.clone();
        let header = header.ok_or_else(|| ApiError::new(500, "no model of embeddings"))?;
        let dimensions = fields.whole("dimensions", 1..=header.dim as i64)?;
        let form = VectorForm {
            // Both protocols' vectors have the length 1.
            is_normalised: true,
            dimensions: dimensions.map(|n| n as usize),
            ..VectorForm::of(&header)
        };
        let name = fields.string("prompt_name")?;
        let embedding = header.embedding();
        let prompt = embedding.and_then(|of| of.prompt(name));
        if prompt.is_none() && name.is_some() {
            let names = embedding.map(EmbeddingModel::prompt_names).unwrap_or_default();
            let problem = format!("is no prompt of this model, which has {names:?}");
            return Err(fields.bad("prompt_name", &problem));
        }
        let prompt = prompt.unwrap_or_default().to_owned();
        let limit = service.ctx_len.min(num_ctx(fields)?);
        Ok(Wish { service, header, form, limit, truncates, prompt })
    }

    /// The ids of the texts in `name`: a text, several, the ids of one, or those of several.
    fn texts(&self, fields: &Fields<'_>, name: &str) -> Result<Vec<Vec<u32>>, ApiError> {
        let wanted = "is neither a text, nor an array of texts or token ids";
        let values = match fields.get(name) {
            None => return Err(fields.bad(name, "is not there")),
            Some(Value::String(text)) => return Ok(vec![self.ids(text, name)?]),
            Some(Value::Array(values)) => values,
            Some(_) => return Err(fields.bad(name, wanted)),
        };
        if values.first().is_some_and(Value::is_number) {
            return Ok(vec![self.given(values, name)?]);
        }
        if values.len() > TEXTS_MAX {
            return Err(fields.bad(name, &format!("has more than {TEXTS_MAX} texts")));
        }
        let text = |(index, value): (usize, &Value)| {
            let name = format!("{name}[{index}]");
            match value {
                Value::String(text) => self.ids(text, &name),
                Value::Array(ids) => self.given(ids, &name),
                _ => Err(ApiError::field(name.clone(), format!("{name} {wanted}"))),
            }
        };
        values.iter().enumerate().map(text).collect()
    }

    fn ids(&self, text: &str, name: &str) -> Result<Vec<u32>, ApiError> {
        let ids = TextIds {
            tokenizer: &self.service.model.tokenizer,
            header: &self.header,
            limit: self.limit,
            truncates: self.truncates,
        };
        ids.of(&self.prompt, text).map_err(|error| {
            let message = format!("{name}: {error}");
            ApiError { field: Some(name.to_owned()), message, ..ApiError::from(error) }
        })
    }

    /// Ids that the client gives instead of a text.
    fn given(&self, values: &[Value], name: &str) -> Result<Vec<u32>, ApiError> {
        let bad = |problem: String| ApiError::field(name, format!("{name} {problem}"));
        let is_known = |id: &u32| (*id as usize) < self.service.vocab_size;
        let ids: Option<Vec<u32>> =
            values.iter().map(|value| token_id(value).filter(is_known)).collect();
        let ids = ids.ok_or_else(|| bad("has values that are no token ids".to_owned()))?;
        let (n, limit) = (ids.len(), self.limit);
        match n {
            0 => Err(bad("is empty".to_owned())),
            n if n > limit && !self.truncates => {
                let code = Some("context_length_exceeded");
                let problem = format!("has {n} tokens, the context is {limit}");
                Err(ApiError { code, ..bad(problem) })
            }
            _ => Ok(ids.into_iter().take(limit).collect()),
        }
    }
}

/// `num_ctx` in Ollama's `options`, the context where texts end. The other options are about text that is written.
fn num_ctx(fields: &Fields<'_>) -> Result<usize, ApiError> {
    let Some(options) = fields.get("options") else { return Ok(usize::MAX) };
    let options = Fields::of(options, "options")?.cutting_fractions();
    // Zero and negative numbers are none.
    let num_ctx = options.whole("num_ctx", i64::MIN..=i64::MAX)?.filter(|n| *n > 0);
    Ok(num_ctx.map_or(usize::MAX, |n| n as usize))
}

/// Vectors of texts, and the number of the texts' tokens.
type Computed = (Vec<Vec<f32>>, usize);

/// Computes the vectors of texts, and counts their tokens; `None` if the client has gone meanwhile.
fn compute(
    service: &Service,
    connection: &mut Connection,
    texts: Vec<Vec<u32>>,
    form: VectorForm,
) -> Result<Option<Computed>, ApiError> {
    if texts.is_empty() {
        return Ok(Some((Vec::new(), 0)));
    }
    let (start, n_tokens) = (Instant::now(), texts.iter().map(Vec::len).sum());
    let mut ticket = EmbedTicket::submit(&service.queue, texts, form)?;
    loop {
        if let Some(vectors) = ticket.wait(LOOK) {
            let vectors = vectors?;
            service.metrics.count_vectors(n_tokens, Some(start.elapsed()));
            return Ok(Some((vectors, n_tokens)));
        }
        if connection.look_after().is_err() {
            service.metrics.count_vectors(n_tokens, None);
            return Ok(None);
        }
    }
}

/// Appends a vector as JSON. Numbers have the shortest digits that lead back to them.
fn put(text: &mut String, vector: &[f32]) {
    text.push('[');
    for (index, x) in vector.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{x}");
    }
    text.push(']');
}
