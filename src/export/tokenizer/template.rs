//! Recognises chat templates by what they write.

use crate::format::ChatTemplate;

/// The template whose Jinja text this is.
///
/// Mistral's versions differ in whether `[INST]` is a token, which the vocabulary tells.
pub(super) fn recognise(jinja: &str, has_inst_token: bool) -> Option<ChatTemplate> {
    let writes = |marker| jinja.contains(marker);
    if writes("<|start_header_id|>") {
        Some(ChatTemplate::Llama3)
    } else if writes("<|im_start|>") {
        Some(ChatTemplate::ChatMl)
    } else if writes("<<SYS>>") {
        Some(ChatTemplate::Llama2)
    } else if writes("[INST]") && has_inst_token {
        Some(ChatTemplate::MistralV3)
    } else if writes("[INST]") {
        Some(ChatTemplate::MistralV1)
    } else if writes("<|user|>") && writes("eos_token") && !writes("<|end|>") {
        Some(ChatTemplate::Zephyr)
    } else {
        None
    }
}

/// The template that a vocabulary was made for, where no file names one.
pub(super) fn implied(has_token: impl Fn(&str) -> bool) -> ChatTemplate {
    let is_for = |template| markers(template).iter().all(|name| has_token(name));
    [ChatTemplate::Llama3, ChatTemplate::MistralV3]
        .into_iter()
        .find(|&template| is_for(template))
        .unwrap_or_default()
}

/// The special tokens that a template writes between contents.
pub(super) fn markers(template: ChatTemplate) -> &'static [&'static str] {
    match template {
        ChatTemplate::Llama3 => &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        ChatTemplate::MistralV3 => &["[INST]", "[/INST]"],
        ChatTemplate::ChatMl => &["<|im_start|>", "<|im_end|>"],
        _ => &[],
    }
}

/// Tokens after which an answer in this template is over.
pub(super) fn stops(template: ChatTemplate) -> &'static [&'static str] {
    match template {
        ChatTemplate::Llama3 => &["<|eom_id|>", "<|eot_id|>"],
        ChatTemplate::ChatMl => &["<|im_end|>"],
        _ => &[],
    }
}
