//! Steps of a `tokenizer.json`.

use serde_json::{Map, Value};

/// Whether the field is true.
pub(super) fn is_true(object: &Map<String, Value>, key: &str) -> bool {
    object.get(key) == Some(&Value::Bool(true))
}

/// The steps of a normalizer or pre-tokenizer, also if there are none or they are nested.
pub(super) fn steps<'a>(step: Option<&'a Value>, list: &str) -> Vec<&'a Value> {
    match step {
        None | Some(Value::Null) => Vec::new(),
        Some(step) if step.get("type") == Some(&Value::from("Sequence")) => {
            let inner = step.get(list).and_then(Value::as_array).into_iter().flatten();
            inner.flat_map(|step| steps(Some(step), list)).collect()
        }
        Some(step) => vec![step],
    }
}
