//! How a checkpoint's own template writes thoughts, learned from what it writes.

use serde_json::{Value as Json, json};

use crate::tokenizer::thoughts::Tags;

/// Tags of templates that write no thoughts, but take them from answers, or show them otherwise.
pub(super) const KNOWN: [[&str; 2]; 5] = [
    ["<think>", "</think>"],
    ["[THINK]", "[/THINK]"],
    ["<|channel>thought", "<channel|>"],
    ["<seed:think>", "</seed:think>"],
    ["<|inner_prefix|>", "<|inner_suffix|>"],
];

const FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];
const THOUGHT: &str = "Thoughtq.";
const SAID: &str = "Saidq.";

/// How a template writes thoughts.
pub(super) struct Learned {
    /// The field of messages in which it looks for them; none if it wants them in parts of the content.
    pub(super) field: Option<&'static str>,
    pub(super) tags: Option<Tags>,
    /// Text between them and the answer.
    pub(super) after: String,
}

/// Learns from what the template writes for an answer; `None` if it writes no thoughts.
pub(super) fn learn(write: &dyn Fn(Json) -> Option<String>) -> Option<Learned> {
    let said = json!({"role": "assistant", "content": SAID});
    let mut answers: Vec<(Option<&'static str>, Json)> = Vec::new();
    for field in FIELDS {
        let mut answer = said.clone();
        answer[field] = THOUGHT.into();
        answers.push((Some(field), answer));
    }
    let parts = json!([{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": SAID}]);
    answers.push((None, json!({"role": "assistant", "content": parts})));
    answers.into_iter().find_map(|(field, answer)| {
        let text = write(answer)?;
        let (before, rest) = text.split_once(THOUGHT)?;
        let after = rest.split_once(SAID)?.0.to_owned();
        let tags = tags(before.trim_end(), after.trim_start());
        (field.is_some() || tags.is_some()).then_some(Learned { field, tags, after })
    })
}

/// The tags at the end of the text before thoughts, and at the start of the text behind them. They have a word in
/// common, as no other two neighbours do.
fn tags(before: &str, after: &str) -> Option<Tags> {
    let open = &before[before.rfind(['<', '['])?..];
    let close = &after[..=after.find(['>', ']'])?];
    let word = |text: &str| text.to_ascii_lowercase();
    let words: Vec<String> =
        word(open).split(|c: char| !c.is_alphabetic()).map(str::to_owned).collect();
    let shares = |name: &String| {
        name.len() >= 4 && !matches!(name.as_str(), "begin" | "start") && word(close).contains(name)
    };
    let is_pair = open.ends_with(['>', ']']) && close.starts_with(['<', '[']);
    (is_pair && words.iter().any(shares))
        .then(|| Tags { open: open.to_owned().into(), close: close.to_owned().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_that_stand_around_thoughts() {
        for (before, after, wanted) in [
            ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n", Some(["<think>", "</think>"])),
            ("[/INST][THINK]", "[/THINK]", Some(["[THINK]", "[/THINK]"])),
            (
                "<|CHATBOT_TOKEN|><|START_THINKING|>",
                "<|END_THINKING|><|START_TEXT|>",
                Some(["<|START_THINKING|>", "<|END_THINKING|>"]),
            ),
            ("<|begin_assistant|>\n", "\n[BEGIN FINAL RESPONSE]\n", None),
            ("<|begin|>assistant<|think|>", "<|end|><|begin|>assistant<|content|>", None),
        ] {
            let write = |answer: Json| {
                let is_known = answer["reasoning"].is_string();
                is_known.then(|| format!("{before}{THOUGHT}{after}{SAID}"))
            };
            let learned = learn(&write).unwrap();
            assert_eq!((learned.field, learned.after.as_str()), (Some("reasoning"), after));
            assert_eq!(learned.tags, wanted.map(Tags::of));
        }
        assert!(learn(&|_| Some("Saidq.".to_owned())).is_none());
    }
}
