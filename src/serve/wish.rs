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
    /// Variables that the client gives the checkpoint's own template.
    pub(super) template_variables: Vec<(String, Value)>,
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
    /// Most tokens of thoughts; `usize::MAX` asks for no limit.
    pub(super) max_tokens: Option<usize>,
}

/// A schema, and the field that holds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TextForm {
    pub(super) schema: Value,
    pub(super) field: &'static str,
}

impl TextForm {
    /// Reads `response_format`, or `json_schema` as llama.cpp's server has it.
    pub(super) fn of(fields: &Fields<'_>) -> Result<Option<TextForm>, ApiError> {
        let is_something =
            |value: &&Value| value.as_object().is_none_or(|object| !object.is_empty());
        match (fields.get("response_format").filter(is_something), fields.get("json_schema")) {
            (Some(format), _) => TextForm::read(format, "response_format"),
            (None, Some(schema)) => {
                Ok(Some(TextForm { schema: schema.clone(), field: "json_schema" }))
            }
            (None, None) => Ok(None),
        }
    }

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
    /// Reads all fields in which clients of OpenAI's protocol and its relatives say how a model thinks. The last one in
    /// this order counts: `reasoning_effort`, `reasoning`, `think`, `thinking`, a budget of tokens, `enable_thinking`,
    /// `chat_template_kwargs`.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Thinking, ApiError> {
        let mut thinking = Thinking::default();
        thinking.take_effort(fields, "reasoning_effort")?;
        if let Some(reasoning) = fields.get("reasoning").filter(|value| value.is_object()) {
            let reasoning = Fields::of(reasoning, "reasoning")?;
            thinking.take_effort(&reasoning, "effort")?;
            thinking.take_flag(&reasoning, "enabled")?;
            thinking.take_budget(&reasoning, "max_tokens")?;
        }
        for name in ["think", "thinking"] {
            match fields.get(name) {
                Some(object @ Value::Object(_)) => {
                    thinking.take_type(&Fields::of(object, name)?)?;
                }
                Some(Value::String(_)) => thinking.take_effort(fields, name)?,
                _ => thinking.take_flag(fields, name)?,
            }
        }
        for name in
            ["reasoning_budget", "thinking_budget", "thinking_budget_tokens", "max_thinking_tokens"]
        {
            thinking.take_budget(fields, name)?;
        }
        thinking.take_flag(fields, "enable_thinking")?;
        if let Some(kwargs) = fields.get("chat_template_kwargs") {
            let kwargs = Fields::of(kwargs, "chat_template_kwargs")?;
            thinking.take_effort(&kwargs, "reasoning_effort")?;
            thinking.take_flag(&kwargs, "thinking")?;
            thinking.take_flag(&kwargs, "enable_thinking")?;
        }
        Ok(thinking)
    }

    fn take_effort(&mut self, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
        let max_tokens = self.max_tokens;
        *self = fields.string(name)?.map_or(*self, Thinking::with_effort);
        self.max_tokens = max_tokens;
        Ok(())
    }

    fn take_flag(&mut self, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
        self.thinks = fields.flag(name)?.or(self.thinks);
        Ok(())
    }

    /// A budget of 0 tokens turns thinking off; a negative one is no limit, whatever the server's is.
    fn take_budget(&mut self, fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
        match fields.whole(name, i64::MIN..=i64::MAX)? {
            None => Ok(()),
            Some(i64::MIN..0) => {
                self.max_tokens = Some(usize::MAX);
                Ok(())
            }
            Some(0) => {
                self.thinks = Some(false);
                Ok(())
            }
            Some(n) => {
                self.max_tokens = usize::try_from(n).ok();
                Ok(())
            }
        }
    }

    /// `type` as Anthropic's protocol has it: `enabled`, `adaptive` or `disabled`.
    fn take_type(&mut self, fields: &Fields<'_>) -> Result<(), ApiError> {
        match fields.string("type")? {
            Some("disabled") => self.thinks = Some(false),
            Some("enabled") => self.thinks = Some(true),
            None | Some("adaptive" | "auto") => {}
            Some(_) => return Err(fields.bad("type", "is none of enabled, disabled and adaptive")),
        }
        self.take_budget(fields, "budget_tokens")
    }

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
        Thinking { thinks: Some(word != "none"), effort, max_tokens: None }
    }
}

impl Wish {
    /// Whether the answer has to have a form from its first token on.
    pub(super) fn is_formed(&self) -> bool {
        self.form.is_some() || self.tools.as_ref().is_some_and(Tools::is_required)
    }
}

/// `chat_template_kwargs` of a request, for the checkpoint's own template. Those that say how the model thinks are in
/// [`Thinking`].
pub(super) fn template_variables(fields: &Fields<'_>) -> Result<Vec<(String, Value)>, ApiError> {
    const OWN: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
    const THINKING: [&str; 3] = ["enable_thinking", "thinking", "reasoning_effort"];
    let Some(kwargs) = fields.get("chat_template_kwargs") else { return Ok(Vec::new()) };
    let named = Fields::of(kwargs, "chat_template_kwargs")?;
    let all = kwargs.as_object().into_iter().flatten();
    let others = all.filter(|(name, _)| !THINKING.contains(&name.as_str()));
    let one = |(name, value): (&String, &Value)| match OWN.contains(&name.as_str()) {
        true => Err(named.bad(name, "is not for clients to set")),
        false => Ok((name.clone(), value.clone())),
    };
    others.map(one).collect()
}

/// How tokens are drawn, with this seed.
pub(super) fn sampling(fields: &Fields<'_>, seed: u64) -> Result<Sampling, ApiError> {
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(1.0),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        top_k: fields.whole("top_k", -1..=i64::MAX)?.map_or(0, |k| k.max(0) as usize),
        min_p: min_p(fields)?.unwrap_or(0.0),
        seed,
    })
}

/// Reads `min_p`; below 0 it is off, as at other servers.
pub(super) fn min_p(fields: &Fields<'_>) -> Result<Option<f32>, ApiError> {
    Ok(fields.number("min_p", -1.0..=1.0)?.map(|min_p| min_p.max(0.0)))
}

/// Changes of logits: biases, and penalties for repetition.
pub(super) fn rules(fields: &Fields<'_>) -> Result<LogitRules, ApiError> {
    Ok(LogitRules { bias: logit_bias(fields)?, ..penalties(fields)? })
}

/// Most tokens to generate, from the first of the fields `names` that is there.
pub(super) fn first_length(fields: &Fields<'_>, names: &[&str]) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for name in names {
        found = found.or(length(fields, name)?);
    }
    Ok(found)
}

/// Most tokens to generate, from the field `name`. A negative number means no limit.
fn length(fields: &Fields<'_>, name: &str) -> Result<Option<usize>, ApiError> {
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
fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn thinking(body: &Value) -> Result<Thinking, ApiError> {
        Thinking::read(&Fields::of(body, "").unwrap())
    }

    #[test]
    fn every_way_to_say_how_a_model_thinks_is_followed_or_refused() {
        for off in [
            json!({"reasoning_effort": "none"}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"reasoning": {"enabled": false}}),
            json!({"reasoning": {"max_tokens": 0}}),
            json!({"think": false}),
            json!({"think": "none"}),
            json!({"thinking": false}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"reasoning_budget": 0}),
            json!({"thinking_budget": 0}),
            json!({"enable_thinking": false}),
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            json!({"chat_template_kwargs": {"thinking": false}}),
        ] {
            assert_eq!(thinking(&off).unwrap().thinks, Some(false), "{off}");
        }
        let on = json!({"thinking": {"type": "enabled"}, "think": "high", "reasoning_budget": -1});
        let wanted =
            Thinking { thinks: Some(true), effort: Some("high"), max_tokens: Some(usize::MAX) };
        assert_eq!(thinking(&on).unwrap(), wanted);
        for default in [json!({}), json!({"reasoning": null, "thinking": null, "think": null})] {
            assert_eq!(thinking(&default).unwrap(), Thinking::default(), "{default}");
        }
        for budget in [
            json!({"reasoning": {"max_tokens": 9}}),
            json!({"thinking": {"type": "enabled", "budget_tokens": 9}}),
            json!({"thinking_budget": 9, "reasoning_effort": "low"}),
            json!({"max_thinking_tokens": 9}),
        ] {
            assert_eq!(thinking(&budget).unwrap().max_tokens, Some(9), "{budget}");
        }
        for (body, field) in [
            (json!({"thinking": {"type": "loud"}}), "thinking.type"),
            (json!({"thinking_budget": "much"}), "thinking_budget"),
        ] {
            assert_eq!(thinking(&body).unwrap_err().field.as_deref(), Some(field), "{body}");
        }
    }
}
