//! The tokens that a Hugging Face `tokenizer.json` adds to its vocabulary.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::token::AddedToken;
use crate::format::excerpt;

/// The added tokens, with the ids that the library tokenizers gives them, whatever the file says: a name in the
/// vocabulary keeps its id, any other gets the next free id.
///
/// A note says which ids the file contradicts.
pub(super) fn parse(
    json: &Value,
    model: &Map<String, Value>,
    notes: &mut Vec<String>,
) -> Result<Vec<AddedToken>, String> {
    let vocab = model.get("vocab").and_then(Value::as_object);
    let n_vocab = vocab.map_or(0, |vocab| vocab.len() as u64);
    let of_vocab = |name: &str| vocab?.get(name)?.as_u64();
    let mut ids: HashMap<&str, u64> = HashMap::new();
    let mut largest = None;
    let (mut tokens, mut moved) = (Vec::new(), Vec::new());
    for token in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let stated = token.get("id").and_then(Value::as_u64);
        let name = token.get("content").and_then(Value::as_str);
        let (Some(stated), Some(name)) = (stated, name) else {
            return Err("an added token has no id or no content".to_owned());
        };
        if name.is_empty() {
            continue;
        }
        let next = largest.map_or(n_vocab, |largest: u64| n_vocab.max(largest + 1));
        let id = of_vocab(name).or(ids.get(name).copied()).unwrap_or(next);
        ids.insert(name, id);
        largest = largest.max(Some(id));
        if id != stated {
            moved.push((name, stated, id));
        }
        // No vocabulary has this many tokens: the draft leaves this one out.
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        let is = |key| token.get(key) == Some(&Value::Bool(true));
        tokens.push(AddedToken {
            id,
            name: name.to_owned(),
            is_special: is("special"),
            strips_right: is("rstrip"),
            strips_left: is("lstrip"),
            is_whole_word: is("single_word"),
        });
    }
    if let Some((name, stated, id)) = moved.first() {
        let (count, name) = (moved.len(), excerpt(name));
        notes.push(format!(
            "{count} added tokens have other ids than the file says, as in tokenizers, the first {name:?}: \
             {id} instead of {stated}"
        ));
    }
    Ok(tokens)
}
