//! Log probabilities of tokens in OpenAI's format, which Ollama's protocol shares.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::jobs::TokenOdds;
use crate::tokenizer::Tokenizer;

/// Most alternatives that are reported for each token.
const LIKELIEST_MAX: i64 = 20;

/// Reads `logprobs` and `top_logprobs` of a conversation: how many alternatives to report for each token.
pub(super) fn chat_wish(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wants = fields.flag("logprobs")?.unwrap_or(false);
    match fields.whole("top_logprobs", 0..=LIKELIEST_MAX)? {
        Some(n) if n > 0 && !wants => Err(fields.bad("top_logprobs", "needs logprobs")),
        n => Ok(wants.then_some(n.unwrap_or(0) as usize)),
    }
}

/// Reads `logprobs` of a completion, a number.
pub(super) fn text_wish(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    if fields.get("logprobs").is_some_and(|value| *value == false) {
        return Ok(None);
    }
    Ok(fields.whole("logprobs", 0..=LIKELIEST_MAX)?.map(|n| n as usize))
}

/// `logprobs` of a conversation's choice.
pub(super) fn chat(tokens: &[TokenOdds], tokenizer: &Tokenizer) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = bytes(id, tokenizer);
        json!({"token": String::from_utf8_lossy(&bytes), "logprob": told(logprob), "bytes": bytes})
    };
    let content = tokens.iter().map(|token| {
        let mut object = one(token.id, token.logprob);
        let likeliest = token.likeliest.iter().map(|&(id, logprob)| one(id, logprob));
        object["top_logprobs"] = likeliest.collect();
        object
    });
    json!({"content": content.collect::<Value>(), "refusal": null})
}

/// `logprobs` of a completion's choice, whose text before these tokens has `offset` characters.
pub(super) fn text(tokens: &[TokenOdds], tokenizer: &Tokenizer, offset: &mut usize) -> Value {
    let name = |id: u32| String::from_utf8_lossy(&bytes(id, tokenizer)).into_owned();
    let (mut names, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let text = name(token.id);
        offsets.push(*offset);
        *offset += text.chars().count();
        names.push(text);
        logprobs.push(told(token.logprob));
        let likeliest = token.likeliest.iter();
        tops.push(likeliest.map(|&(id, logprob)| (name(id), told(logprob))).collect::<Map<_, _>>());
    }
    json!({"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

/// The bytes of a token in a text, or its name.
pub(super) fn bytes(id: u32, tokenizer: &Tokenizer) -> Vec<u8> {
    let name = || tokenizer.token_bytes(id).unwrap_or_default().to_vec();
    tokenizer.text_bytes(id).unwrap_or_else(name)
}

/// JSON has no infinity: OpenAI writes -9999 for a token that is practically impossible.
fn told(logprob: f32) -> Value {
    json!(logprob.max(-9999.0))
}
