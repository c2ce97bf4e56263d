//! Fields of other servers that would change an answer and are not supported here: they are accepted with
//! values that change nothing. All other unknown names change no answer, and are ignored.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// Values of a field that change nothing, besides null, false and empty ones.
#[derive(Clone, Copy)]
enum Neutral {
    /// No others.
    None,
    /// True.
    True,
    /// Numbers up to this one.
    UpTo(f64),
    /// Numbers from this one on.
    From(f64),
    /// This number.
    Is(f64),
    /// One of these words, or a list of only such words.
    Words(&'static [&'static str]),
}

use Neutral::{From, Is, True, UpTo, Words};

/// Sampling fields of llama.cpp, vLLM and similar servers.
const SAMPLING: &[(&str, Neutral)] = &[
    ("typical_p", From(1.0)),
    ("tfs_z", From(1.0)),
    ("mirostat", UpTo(0.0)),
    ("mirostat_mode", UpTo(0.0)),
];

/// Further sampling fields, which Ollama's protocol lacks.
const SAMPLING_MORE: &[(&str, Neutral)] = &[
    ("top_a", UpTo(0.0)),
    ("top_n_sigma", UpTo(0.0)),
    ("xtc_probability", UpTo(0.0)),
    ("dry_multiplier", UpTo(0.0)),
    ("dynatemp_range", UpTo(0.0)),
    ("samplers", Neutral::None),
    ("no_repeat_ngram_size", UpTo(0.0)),
    ("length_penalty", Is(1.0)),
    ("epsilon_cutoff", UpTo(0.0)),
    ("eta_cutoff", UpTo(0.0)),
    ("smoothing_factor", UpTo(0.0)),
    ("encoder_repetition_penalty", Is(1.0)),
    ("guidance_scale", UpTo(1.0)),
    ("negative_prompt", Neutral::None),
    ("lora", Neutral::None),
    ("use_beam_search", Neutral::None),
    ("num_beams", UpTo(1.0)),
    ("best_of", UpTo(1.0)),
];

/// Fields about a text's form and its end, with the values that change nothing.
const FORMS: &[(&str, Neutral)] = &[
    ("grammar", Neutral::None),
    ("guided_json", Neutral::None),
    ("guided_regex", Neutral::None),
    ("guided_choice", Neutral::None),
    ("guided_grammar", Neutral::None),
    ("structured_outputs", Neutral::None),
    ("regex", Neutral::None),
    ("format", Words(&["text"])),
    ("ebnf", Neutral::None),
    ("ignore_eos", Neutral::None),
    ("min_tokens", UpTo(0.0)),
    ("stop_token_ids", Neutral::None),
    ("bad_words", Neutral::None),
    ("allowed_token_ids", Neutral::None),
    ("include_stop_str_in_output", Neutral::None),
    ("skip_special_tokens", True),
];

/// Fields about an answer's content, with the values that change nothing.
const CONTENTS: &[(&str, Neutral)] = &[
    ("functions", Neutral::None),
    ("function_call", Words(&["none", "auto"])),
    ("modalities", Words(&["text"])),
    ("audio", Neutral::None),
    ("web_search_options", Neutral::None),
    ("echo", Neutral::None),
    ("truncate_prompt_tokens", Neutral::None),
    ("chat_template", Neutral::None),
    ("documents", Neutral::None),
];

/// Fields about an embedding, with the values that change nothing.
const EMBEDDINGS: &[(&str, Neutral)] = &[
    ("stream", Neutral::None),
    ("truncate_prompt_tokens", Neutral::None),
    ("add_special_tokens", True),
    ("normalize", True),
    ("embd_normalize", Is(2.0)),
    ("normalized", True),
    ("input_type", Neutral::None),
    ("instruction", Neutral::None),
    ("task", Neutral::None),
    ("output_dimension", Neutral::None),
    ("output_dtype", Words(&["float"])),
    ("embedding_type", Words(&["float"])),
    ("late_chunking", Neutral::None),
];

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(false) if !matches!(self, True) => true,
            Value::Null => true,
            Value::Bool(is_so) => *is_so && matches!(self, True),
            Value::Number(number) => match (self, number.as_f64()) {
                (UpTo(most), Some(number)) => number <= most,
                (From(least), Some(number)) => number >= least,
                (Is(one), Some(number)) => number == one,
                _ => false,
            },
            Value::String(word) => match self {
                Words(words) => word.is_empty() || words.contains(&word.as_str()),
                _ => word.is_empty(),
            },
            Value::Array(values) => {
                values.iter().all(|value| matches!(self, Words(_)) && self.is(value))
            }
            Value::Object(fields) => fields.is_empty(),
        }
    }
}

fn check(fields: &Fields<'_>, tables: &[&[(&str, Neutral)]]) -> Result<(), ApiError> {
    for (name, neutral) in tables.iter().copied().flatten() {
        fields.only(name, |value| neutral.is(value))?;
    }
    Ok(())
}

/// Refuses fields that would change an answer of OpenAI's protocol.
pub(super) fn check_openai(fields: &Fields<'_>) -> Result<(), ApiError> {
    check(fields, &[SAMPLING, SAMPLING_MORE, FORMS, CONTENTS])
}

/// Refuses fields that would change an embedding.
pub(super) fn check_embeddings(fields: &Fields<'_>) -> Result<(), ApiError> {
    check(fields, &[EMBEDDINGS])
}

/// Refuses `options` that would change an answer of Ollama's protocol.
pub(super) fn check_ollama(options: &Fields<'_>) -> Result<(), ApiError> {
    check(options, &[SAMPLING])
}

/// Refuses fields that would change a response of OpenAI's protocol. This server stores no responses, so
/// references to earlier ones are unknown.
pub(super) fn check_responses(fields: &Fields<'_>) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some_and(|value| !Neutral::None.is(value)) {
            return Err(fields.bad(name, "names nothing: no answers are stored here"));
        }
    }
    check(
        fields,
        &[&[("prompt", Neutral::None), ("background", Neutral::None), ("n", UpTo(1.0))]],
    )?;
    check_openai(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_would_change_an_embedding_are_refused() {
        let neutral = json!({"stream": false, "normalize": true, "embd_normalize": 2, "input_type": null,
            "add_special_tokens": true, "user": "x", "instruction": ""});
        check_embeddings(&Fields::of(&neutral, "").unwrap()).unwrap();
        for (name, value) in [
            ("stream", json!(true)),
            ("truncate_prompt_tokens", json!(8)),
            ("add_special_tokens", json!(false)),
            ("normalize", json!(false)),
            ("embd_normalize", json!(-1)),
            ("input_type", json!("query")),
            ("instruction", json!("Find")),
            ("task", json!("retrieval.query")),
            ("output_dimension", json!(4)),
            ("embedding_type", json!("int8")),
            ("normalized", json!(false)),
            ("late_chunking", json!(true)),
        ] {
            let body = json!({name: value});
            let error = check_embeddings(&Fields::of(&body, "").unwrap()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(name), "{body}");
        }
    }

    #[test]
    fn neutral_values_pass_and_others_are_named() {
        let neutral = json!({
            "min_p": 0, "typical_p": 1, "tfs_z": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "top_n_sigma": -1,
            "xtc_probability": 0.0, "xtc_threshold": 0.1, "dry_multiplier": 0, "samplers": [], "best_of": 1,
            "grammar": "", "guided_json": null, "ignore_eos": false, "min_tokens": 0, "stop_token_ids": [],
            "skip_special_tokens": true, "functions": [], "function_call": "auto", "modalities": ["text"],
            "web_search_options": null, "echo": false, "chat_template": "", "min_keep": 3,
        });
        check_responses(&Fields::of(&neutral, "").unwrap()).unwrap();
        for (name, value) in [
            ("typical_p", json!(0.9)),
            ("mirostat", json!(2)),
            ("mirostat", json!("2")),
            ("grammar", json!("root ::= \"a\"")),
            ("guided_choice", json!(["a", "b"])),
            ("ignore_eos", json!(true)),
            ("skip_special_tokens", json!(false)),
            ("modalities", json!(["text", "audio"])),
            ("function_call", json!({"name": "f"})),
            ("web_search_options", json!({"search_context_size": "low"})),
            ("echo", json!(true)),
            ("best_of", json!(2)),
            ("mirostat_mode", json!(2)),
            ("encoder_repetition_penalty", json!(0.9)),
            ("lora", json!([{"id": 0, "scale": 1.0}])),
            ("documents", json!([{"text": "a"}])),
            ("format", json!("json")),
        ] {
            let body = json!({name: value});
            let error = check_openai(&Fields::of(&body, "").unwrap()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(name), "{body}");
        }
    }
}
