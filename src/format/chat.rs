//! The chat templates that LEAP knows, and the texts that a checkpoint's own template adds.

use super::Date;

/// Form in which the turns of a conversation are written before they become ids.
///
/// Model and tokenizer files store the discriminant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ChatTemplate {
    /// Plain text for base models: turns are joined by line breaks.
    #[default]
    None = 0,
    /// Llama 2 and CodeLlama: `[INST] <<SYS>>…`.
    Llama2 = 1,
    /// Llama 3 to 3.3: `<|start_header_id|>…`.
    Llama3 = 2,
    /// Mistral 7B v0.1 and v0.2: `[INST]` as text, spaces around it.
    MistralV1 = 3,
    /// Mistral 7B v0.3: `[INST]` and `[/INST]` are control tokens.
    MistralV3 = 4,
    /// Zephyr and TinyLlama-Chat: `<|user|>` lines.
    Zephyr = 5,
    /// ChatML: `<|im_start|>…`; Qwen 2.5, SmolLM2 and others.
    ChatMl = 6,
    /// Qwen 3: ChatML with thoughts, which leave the context after the turn.
    Qwen3 = 7,
    /// SmolLM3: ChatML with thoughts, and a system turn with the date and the mode.
    SmolLm3 = 8,
    /// Granite 3: `<|start_of_role|>…`.
    Granite = 9,
    /// Gemma 2 and 3: `<start_of_turn>…`, where the system's text joins the first turn.
    Gemma = 10,
    /// Phi-3: `<|user|>` and `<|end|>` with line breaks.
    Phi3 = 11,
    /// Phi-4-mini: like Phi-3, without line breaks.
    Phi4 = 12,
    /// gpt-oss: channels; the last one is the answer.
    Harmony = 13,
    /// The checkpoint's own template, which LEAP has no name for ([`OwnText`]).
    Own = 255,
}

impl ChatTemplate {
    /// Every template that can be written, in the order of their ids.
    pub const ALL: [ChatTemplate; 14] = [
        ChatTemplate::None,
        ChatTemplate::Llama2,
        ChatTemplate::Llama3,
        ChatTemplate::MistralV1,
        ChatTemplate::MistralV3,
        ChatTemplate::Zephyr,
        ChatTemplate::ChatMl,
        ChatTemplate::Qwen3,
        ChatTemplate::SmolLm3,
        ChatTemplate::Granite,
        ChatTemplate::Gemma,
        ChatTemplate::Phi3,
        ChatTemplate::Phi4,
        ChatTemplate::Harmony,
    ];

    /// The template with this `id`, if this version knows it.
    pub fn from_id(id: u8) -> Option<ChatTemplate> {
        let own = (id == ChatTemplate::Own as u8).then_some(ChatTemplate::Own);
        Self::ALL.get(usize::from(id)).copied().or(own)
    }

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ChatTemplate::None => "none",
            ChatTemplate::Llama2 => "llama2",
            ChatTemplate::Llama3 => "llama3",
            ChatTemplate::MistralV1 => "mistral-v1",
            ChatTemplate::MistralV3 => "mistral-v3",
            ChatTemplate::Zephyr => "zephyr",
            ChatTemplate::ChatMl => "chatml",
            ChatTemplate::Qwen3 => "qwen3",
            ChatTemplate::SmolLm3 => "smollm3",
            ChatTemplate::Granite => "granite",
            ChatTemplate::Gemma => "gemma",
            ChatTemplate::Phi3 => "phi3",
            ChatTemplate::Phi4 => "phi4",
            ChatTemplate::Harmony => "harmony",
            ChatTemplate::Own => "own",
        }
    }

    /// The template called `name`; `tinyllama` and `mistral` are alternative names.
    pub fn from_name(name: &str) -> Option<ChatTemplate> {
        match name {
            "tinyllama" => Some(ChatTemplate::Zephyr),
            "mistral" => Some(ChatTemplate::MistralV1),
            _ => Self::ALL.into_iter().find(|t| t.name() == name),
        }
    }
}

/// Texts that a checkpoint's own template writes, found at export.
///
/// U+0002 and U+0003 enclose a placeholder, which is replaced when the text is used: a date's format, such as
/// `%d %B %Y`, or [`EFFORT`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTexts {
    /// Texts for a model that may think, or has no thoughts.
    pub thinking: SystemTexts,
    /// Texts for a model that must not think.
    pub quiet: SystemTexts,
    /// The template itself, if it can run.
    pub own: Option<OwnText>,
}

/// A checkpoint's own template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnText {
    /// Program in Jinja's language.
    pub text: String,
    /// Program for conversations with tools, if that is another one.
    pub tool_text: Option<String>,
    /// Name of the token that the template calls `bos_token`, or nothing.
    pub bos: String,
    /// Name of the token that the template calls `eos_token`, or nothing.
    pub eos: String,
}

impl OwnText {
    /// Whether the text of the template has `name` in it, or that of the one for tools.
    pub fn names(&self, name: &str) -> bool {
        self.text.contains(name) || self.tool_text.as_ref().is_some_and(|text| text.contains(name))
    }
}

/// Texts that a template writes around the system's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemTexts {
    /// Text before the system's.
    pub head: String,
    /// Text in place of a missing system text; `None` if there is no system turn then.
    pub default: Option<String>,
    /// Whether an empty system text counts as missing.
    pub skips_empty: bool,
    /// Text after the system's.
    pub tail: String,
    /// Start of an answer: a sign that the model must not think, or the tag that opens its thoughts.
    pub prompt: String,
}

/// Placeholder in [`ChatTexts`] for the reasoning effort: low, medium or high.
pub const EFFORT: &str = "reasoning_effort";

/// `text` with its placeholders replaced; `None` if it has an unknown placeholder.
pub fn filled(text: &str, today: Date, effort: &str) -> Option<String> {
    let mut parts = text.split('\u{2}');
    let mut filled = parts.next()?.to_owned();
    for part in parts {
        let (name, rest) = part.split_once('\u{3}')?;
        match name {
            EFFORT => filled.push_str(effort),
            format => filled.push_str(&today.format(format)?),
        }
        filled.push_str(rest);
    }
    Some(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_lead_back_to_the_template() {
        for template in ChatTemplate::ALL {
            assert_eq!(ChatTemplate::from_id(template as u8), Some(template));
            assert_eq!(ChatTemplate::from_name(template.name()), Some(template));
        }
        assert_eq!(ChatTemplate::from_id(14), None);
        assert_eq!(ChatTemplate::from_id(255), Some(ChatTemplate::Own));
        assert_eq!(ChatTemplate::from_name("own"), None);
        assert_eq!(ChatTemplate::from_name("Llama3"), None);
    }

    #[test]
    fn dates_and_effort_are_filled_in() {
        let today = Date::new(2026, 3, 9).unwrap();
        let text = "On \u{2}%B %d, %Y\u{3} think \u{2}reasoning_effort\u{3}ly";
        assert_eq!(filled(text, today, "high").unwrap(), "On March 09, 2026 think highly");
        for bad in ["\u{2}", "\u{2}%Y", "\u{2}%q\u{3}", "\u{2}%\u{3}"] {
            assert_eq!(filled(bad, today, "high"), None, "{bad:?}");
        }
    }
}
