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
const OTHERS: [(&str, f64); 8] = [
    ("repeat_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("typical_p", 1.0),
    ("tfs_z", 1.0),
    ("mirostat", 0.0),
    ("num_predict", -1.0),
    ("seed", 0.0),
];

/// The settings in `bytes`; parameters that LEAP does not know, and values that are out of range, are left out.
pub(super) fn suggested(bytes: &[u8]) -> Suggested {
    let Some(parameters) = json::parse(bytes, VALUES).ok().filter(Value::is_object) else {
        let why = "its parameters are left out: they are no JSON object".to_owned();
        return Suggested { left_out: vec![why], ..Suggested::default() };
    };
    let mut left_out = Vec::new();
    let mut number = |name: &str, most: f64| {
        let value = parameters[name].as_f64().filter(|value| (0.0..=most).contains(value));
        if value.is_none() && !parameters[name].is_null() {
            left_out.push(format!("its {name} of {} is left out", parameters[name]));
        }
        value.map(|value| value as f32)
    };
    let (temperature, top_p) = (number("temperature", 100.0), number("top_p", 1.0));
    let min_p = number("min_p", 1.0);
    let stops = match &parameters["stop"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<&str>>(),
    };
    let other = |(name, neutral): (&str, f64)| {
        let value = parameters[name].as_f64().filter(|value| *value != neutral)?;
        Some(format!("its {name} of {value} is left out"))
    };
    left_out.extend(OTHERS.into_iter().filter_map(other));
    let n_stops = stops.iter().filter(|text| !text.is_empty()).count();
    let is_right = |text: &&str| !text.is_empty() && text.len() <= STOP_BYTES;
    let stop_strings: Vec<String> =
        stops.into_iter().filter(is_right).take(STOPS_MAX).map(str::to_owned).collect();
    if stop_strings.len() < n_stops {
        let n = n_stops - stop_strings.len();
        left_out.push(format!(
            "{n} of its stop strings are left out: at most {STOPS_MAX}, of up to {STOP_BYTES} bytes"
        ));
    }
    let top_k = parameters["top_k"].as_u64().and_then(|k| usize::try_from(k).ok());
    Suggested { temperature, top_p, top_k, min_p, stop_strings, left_out, ..Suggested::default() }
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
        for (odd, n_told) in [
            ("", 1),
            ("[]", 1),
            ("\0", 1),
            ("{}", 0),
            (
                "{\"temperature\": -1, \"top_p\": 2, \"top_k\": -1, \"min_p\": \"0.1\", \"stop\": 1}",
                3,
            ),
        ] {
            let mut found = read(odd);
            assert_eq!(std::mem::take(&mut found.left_out).len(), n_told, "{odd}");
            assert_eq!(found, Suggested::default(), "{odd}");
        }
        let stops: Vec<String> = (0..20).map(|n| n.to_string().repeat(1 + 300 * (n % 2))).collect();
        let stops = serde_json::json!({"stop": stops, "num_predict": 3, "seed": 0}).to_string();
        let found = read(&stops);
        assert_eq!(found.stop_strings.len(), 10);
        assert!(
            found.left_out[0].contains("num_predict of 3")
                && found.left_out[1].starts_with("10 of")
        );
    }
}
