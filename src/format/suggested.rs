//! Settings of answers that the publisher of a model suggests.

/// Settings of answers that the publisher of a model suggests, for users who say nothing else.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Suggested {
    /// From 0 on; 0 always takes the most likely token.
    pub(crate) temperature: Option<f32>,
    /// From 0 to 1.
    pub(crate) top_p: Option<f32>,
    /// 0 keeps all tokens.
    pub(crate) top_k: Option<usize>,
    /// From 0 to 1; 0 keeps all tokens.
    pub(crate) min_p: Option<f32>,
    /// Texts that end an answer.
    pub(crate) stop_strings: Vec<String>,
    /// Instructions for conversations that begin without any.
    pub(crate) system: Option<String>,
    /// Template of conversations, in Go's language as Ollama's are.
    pub(crate) template: Option<String>,
    /// Settings that cannot be used, each with the reason.
    pub(crate) left_out: Vec<String>,
}

/// Most characters of the instructions that a notice shows.
#[cfg(feature = "tools")]
const SYSTEM_SHOWN: usize = 60;

impl Suggested {
    /// The settings in words; empty if there are none.
    #[cfg(feature = "tools")]
    pub(crate) fn words(&self) -> String {
        let Suggested { temperature, top_p, top_k, min_p, stop_strings, system, template, .. } =
            self;
        let mut all = Vec::new();
        all.extend(temperature.map(|value| format!("temperature {value}")));
        all.extend(top_p.map(|value| format!("top-p {value}")));
        all.extend(top_k.map(|value| format!("top-k {value}")));
        all.extend(min_p.map(|value| format!("min-p {value}")));
        all.extend(stop_strings.iter().map(|text| format!("stop {text:?}")));
        let shown = |text: &String| match text.char_indices().nth(SYSTEM_SHOWN) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.clone(),
        };
        all.extend(system.as_ref().map(|text| format!("instructions {:?}", shown(text))));
        all.extend(template.as_ref().map(|_| "a template of conversations".to_owned()));
        all.join(", ")
    }
}
