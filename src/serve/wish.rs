//! A request's settings for its answer.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Fields, token_id};
use super::tools::Tools;
use crate::engine::{LogitRules, RepeatPenalty};
use crate::sampler::Sampling;
use crate::tokenizer::ChatOptions;

/// Most ids whose logits a request changes.
const BIASES_MAX: usize = 1024;

/// Settings of an answer, from its request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    pub(super) sampling: Sampling,
    pub(super) rules: LogitRules,
    pub(super) n_predict: usize,
    pub(super) stop_strings: Vec<String>,
    pub(super) thinking: Thinking,
    /// The form that the answer has to have.
    pub(super) form: Option<TextForm>,
    pub(super) tools: Option<Tools>,
    /// How many alternatives are reported for each token; `None` reports no probabilities.
    pub(super) n_likeliest: Option<usize>,
}

/// Settings of the model's thoughts, from the request; `None` where the request has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Thinking {
    /// Whether the model may think.
    pub(super) thinks: Option<bool>,
    /// How much the model thinks.
    pub(super) effort: Option<&'static str>,
}

/// A schema, and the field that holds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TextForm {
    pub(super) schema: Value,
    pub(super) field: &'static str,
}

impl TextForm {
    /// Reads `format`, the value of `field`: text, any JSON object, or JSON of a schema, with its wrapper or without.
    pub(super) fn read(format: &Value, field: &'static str) -> Result<Option<TextForm>, ApiError> {
        let format = Fields::of(format, field)?;
        let flat = format.get("schema").cloned();
        let schema = match format.string("type")? {
            Some("text") => return Ok(None),
            Some("json_object") => flat.unwrap_or_else(|| json!({"type": "object"})),
            Some("json_schema") => match (flat, format.get("json_schema")) {
                (Some(schema), None) => schema,
                (None, None) => return Err(format.bad("schema", "is missing")),
                (_, Some(named)) => {
                    let named = Fields::of(named, &format.path_of("json_schema"))?;
                    named.get("schema").ok_or_else(|| named.bad("schema", "is missing"))?.clone()
                }
            },
            _ => return Err(format.bad("type", "is none of text, json_object and json_schema")),
        };
        Ok(Some(TextForm { schema, field }))
    }
}

impl Thinking {
    /// Reads an effort; `none` turns thinking off. Models without degrees of effort only know on and off.
    pub(super) fn with_effort(word: &str) -> Thinking {
        if matches!(word, "" | "auto" | "default") {
            return Thinking::default();
        }
        let effort = match word {
            "none" | "minimal" => Some("low"),
            "xhigh" | "max" => Some("high"),
            word => ChatOptions::EFFORTS.into_iter().find(|known| *known == word),
        };
        Thinking { thinks: Some(word != "none"), effort }
    }
}

impl Wish {
    /// Whether the answer has to have a form from its first token on.
    pub(super) fn is_formed(&self) -> bool {
        self.form.is_some() || self.tools.as_ref().is_some_and(Tools::is_required)
    }
}

/// Most tokens to generate, from the field `name`. A negative number means no limit.
pub(super) fn length(fields: &Fields<'_>, name: &str) -> Result<Option<usize>, ApiError> {
    match fields.whole(name, i64::MIN..=i64::MAX)? {
        Some(0) => Err(fields.bad(name, "is 0: nothing is asked for")),
        n => Ok(n.map(|n| usize::try_from(n).unwrap_or(usize::MAX))),
    }
}

/// `repeat_penalty` applies to the last `repeat_last_n` ids, as llama.cpp defines it. `repetition_penalty`, as in other
/// servers, applies to all ids unless `repeat_last_n` is given.
fn repeat(fields: &Fields<'_>) -> Result<Option<RepeatPenalty>, ApiError> {
    /// llama.cpp's default.
    const LAST_N: i64 = 64;
    let penalty = |name| fields.number(name, 0.01..=100.0);
    let last_n = fields.whole("repeat_last_n", -1..=i64::MAX)?;
    let others = penalty("repetition_penalty")?;
    let (penalty, last_n) = match penalty("repeat_penalty")? {
        Some(penalty) => (penalty, last_n.unwrap_or(LAST_N)),
        None => (others.unwrap_or(1.0), last_n.unwrap_or(-1)),
    };
    let last_n = usize::try_from(last_n).unwrap_or(usize::MAX);
    Ok((penalty != 1.0 && last_n > 0).then_some(RepeatPenalty { penalty, last_n }))
}

/// Penalties for repetition in a request.
pub(super) fn penalties(fields: &Fields<'_>) -> Result<LogitRules, ApiError> {
    let penalty = |name| fields.number(name, -2.0..=2.0);
    Ok(LogitRules {
        bias: Vec::new(),
        repeat: repeat(fields)?,
        presence_penalty: penalty("presence_penalty")?.unwrap_or(0.0),
        frequency_penalty: penalty("frequency_penalty")?.unwrap_or(0.0),
    })
}

/// `logit_bias`: an object whose keys are ids.
pub(super) fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = fields.get("logit_bias") else { return Ok(Vec::new()) };
    let wanted =
        format!("is no object of up to {BIASES_MAX} token ids, each with a bias of -100 to 100");
    let bad = || fields.bad("logit_bias", &wanted);
    if value.as_array().is_some_and(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let object = value.as_object().filter(|object| object.len() <= BIASES_MAX).ok_or_else(bad)?;
    let one = |(id, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let id = id.parse().ok().or_else(|| token_id(&serde_json::from_str(id).ok()?));
        Ok((id.ok_or_else(bad)?, bias.ok_or_else(bad)? as f32))
    };
    object.iter().map(one).collect()
}
