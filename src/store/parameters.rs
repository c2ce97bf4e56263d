//! Ollama's files of a model's parameters and of its instructions.

use serde_json::Value;

use crate::format::{Suggested, json};

/// Media type of the layer with the parameters.
pub(super) const PARAMETERS: &str = "application/vnd.ollama.image.params";
/// Media type of the layer with the instructions.
pub(super) const SYSTEM: &str = "application/vnd.ollama.image.system";
/// Media type of the layer with the template of conversations.
pub(super) const TEMPLATE: &str = "application/vnd.ollama.image.template";
/// Media type of the configuration, of which one field says whether Ollama uses the template.
pub(super) const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// Longest file of parameters, of a template or of a configuration.
pub(super) const TEXT_BYTES: u64 = 64 << 10;
/// Longest instructions: more than the contexts of most models.
pub(super) const SYSTEM_BYTES: u64 = 1 << 20;
/// Most values in the parameters.
const VALUES: usize = 4096;
/// Most stop strings, and the longest one in bytes.
const STOPS_MAX: usize = 16;
const STOP_BYTES: usize = 256;

/// Parameters that change texts and that LEAP does not take from a model, with the value that changes nothing.
const OTHERS: [(&str, f64); 6] = [
    ("repeat_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("typical_p", 1.0),
    ("tfs_z", 1.0),
    ("mirostat", 0.0),
];

/// The settings in `bytes`; parameters that LEAP does not know, and values that are out of range, are left out.
pub(super) fn suggested(bytes: &[u8]) -> Suggested {
    let parameters = json::parse(bytes, VALUES).unwrap_or_default();
    let number = |name: &str, most: f64| {
        let value = parameters[name].as_f64().filter(|value| (0.0..=most).contains(value));
        value.map(|value| value as f32)
    };
    let stops = match &parameters["stop"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<&str>>(),
    };
    let other = |(name, neutral): (&str, f64)| {
        let value = parameters[name].as_f64().filter(|value| *value != neutral)?;
        Some(format!("its {name} of {value} is left out"))
    };
    let is_right = |text: &&str| !text.is_empty() && text.len() <= STOP_BYTES;
    Suggested {
        temperature: number("temperature", 100.0),
        top_p: number("top_p", 1.0),
        top_k: parameters["top_k"].as_u64().and_then(|k| usize::try_from(k).ok()),
        min_p: number("min_p", 1.0),
        stop_strings: stops
            .into_iter()
            .filter(is_right)
            .take(STOPS_MAX)
            .map(str::to_owned)
            .collect(),
        left_out: OTHERS.into_iter().filter_map(other).collect(),
        ..Suggested::default()
    }
}

/// Whether the configuration in `bytes` says that Ollama writes conversations by a part of its program, not by the
/// template.
pub(super) fn has_renderer(bytes: &[u8]) -> bool {
    let config = json::parse(bytes, VALUES).unwrap_or_default();
    config["renderer"].as_str().is_some_and(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_ollama_are_read() {
        let read = |text: &str| suggested(text.as_bytes());
        let found = read(
            r#"{"stop": ["<|im_end|>", ""], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "num_ctx": 1,
                "min_p": 0.05}"#,
        );
        assert_eq!(
            found.words(),
            r#"temperature 0.6, top-p 0.95, top-k 20, min-p 0.05, stop "<|im_end|>""#
        );
        assert_eq!(read(r#"{"stop": "x"}"#).stop_strings, ["x"]);
        let others =
            r#"{"repeat_penalty": 1.1, "presence_penalty": 0, "typical_p": 1.0, "num_ctx": 9}"#;
        assert_eq!(read(others).left_out, ["its repeat_penalty of 1.1 is left out"]);
        for odd in [
            "",
            "[]",
            "{\"temperature\": -1, \"top_p\": 2, \"top_k\": -1, \"min_p\": 2, \"stop\": 1}",
            "\0",
        ] {
            assert_eq!(read(odd), Suggested::default(), "{odd}");
        }
    }
}
