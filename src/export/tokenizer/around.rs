//! The tokens that a `tokenizer.json` puts before and behind a text.

use serde_json::Value;

use super::draft::Draft;

/// The ids before and behind a text, as the post-processors say.
pub(super) fn parse(json: &Value, draft: &Draft) -> [Option<u32>; 2] {
    let rule = json.get("post_processor").unwrap_or(&Value::Null);
    let steps = rule.get("processors").and_then(Value::as_array);
    let steps = steps.map_or(std::slice::from_ref(rule), Vec::as_slice);
    let mut around = [None; 2];
    for step in steps {
        let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
        let found = match kind {
            "TemplateProcessing" => template(step, draft),
            // A list of name and id.
            "BertProcessing" | "RobertaProcessing" => {
                ["cls", "sep"].map(|name| id(step.get(name)?.get(1)?))
            }
            _ => [None; 2],
        };
        around = [found[0].or(around[0]), found[1].or(around[1])];
    }
    around
}

/// The special tokens beside the text in a template for one text.
fn template(step: &Value, draft: &Draft) -> [Option<u32>; 2] {
    let pieces = step.get("single").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let Some(text) = pieces.iter().position(|piece| piece.get("Sequence").is_some()) else {
        return [None; 2];
    };
    let special = |piece: &Value| {
        let name = piece.pointer("/SpecialToken/id")?.as_str()?;
        let listed = step.get("special_tokens").and_then(|all| all.get(name)?.get("ids")?.get(0));
        listed.and_then(id).or_else(|| draft.find(name))
    };
    [text.checked_sub(1), Some(text + 1)].map(|at| special(pieces.get(at?)?))
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
