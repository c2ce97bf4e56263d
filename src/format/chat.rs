//! Names and stored ids of the chat templates LEAP knows.

/// How the turns of a conversation are written before they become ids.
///
/// The discriminant is what model and tokenizer files store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ChatTemplate {
    /// Plain text: turns are joined by line breaks, for base models.
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
    /// ChatML: `<|im_start|>…`.
    ChatMl = 6,
}

impl ChatTemplate {
    /// Every template, in the order of their ids.
    pub const ALL: [ChatTemplate; 7] = [
        ChatTemplate::None,
        ChatTemplate::Llama2,
        ChatTemplate::Llama3,
        ChatTemplate::MistralV1,
        ChatTemplate::MistralV3,
        ChatTemplate::Zephyr,
        ChatTemplate::ChatMl,
    ];

    /// The template stored as `id`, if this version knows it.
    pub fn from_id(id: u8) -> Option<ChatTemplate> {
        Self::ALL.get(usize::from(id)).copied()
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
        }
    }

    /// The template called `name`; `tinyllama` and `mistral` are accepted as other names.
    pub fn from_name(name: &str) -> Option<ChatTemplate> {
        match name {
            "tinyllama" => Some(ChatTemplate::Zephyr),
            "mistral" => Some(ChatTemplate::MistralV1),
            _ => Self::ALL.into_iter().find(|t| t.name() == name),
        }
    }
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
        assert_eq!(ChatTemplate::from_id(7), None);
        assert_eq!(ChatTemplate::from_name("Llama3"), None);
    }
}
