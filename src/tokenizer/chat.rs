//! Writes conversations as each model family was trained to read them.
//!
//! White space is that of the families' own code, character by character:
//!
//! ```text
//! llama2      <s>[INST] <<SYS>>↵S↵<</SYS>>↵↵U [/INST] A </s><s>[INST] U [/INST]
//! llama3      <|begin_of_text|><|start_header_id|>system<|end_header_id|>↵↵S<|eot_id|>
//!             <|start_header_id|>user<|end_header_id|>↵↵U<|eot_id|>
//!             <|start_header_id|>assistant<|end_header_id|>↵↵A<|eot_id|>…   (no line breaks between)
//! mistral-v1  <s>[INST] S↵↵U [/INST] A</s> [INST] U [/INST]
//! mistral-v3  <s>[INST] S↵↵U[/INST] A</s>[INST] U[/INST]
//! zephyr      <s><|system|>↵S</s>↵<|user|>↵U</s>↵<|assistant|>↵A</s>↵
//! chatml      <|im_start|>system↵S<|im_end|>↵<|im_start|>user↵U<|im_end|>↵<|im_start|>assistant↵A<|im_end|>↵
//! none        S↵U↵A↵
//! ```
//!
//! Llama 2, Llama 3: contents are trimmed; Mistral: spaces after an answer are; the others
//! trim nothing. Where a template has no system turn, the first user turn carries it. A
//! model's BOS starts the conversation, once (Llama 2: every user turn).
//!
//! Contents are encoded as plain text, so they cannot forge a special token.

use super::{Tokenizer, TokenizerError};
use crate::format::ChatTemplate;

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl ChatRole {
    fn name(self) -> &'static str {
        match self {
            ChatRole::System => "system",
            ChatRole::User => "user",
            ChatRole::Assistant => "assistant",
        }
    }
}

/// A chat template, joined to a vocabulary.
///
/// A conversation is [`start`](Self::start), then [`user`](Self::user) for every turn; the
/// model's answer follows each. To drop old turns, start again with the oldest one that is
/// kept; [`answer`](Self::answer) writes the answers that the model gave.
pub struct ChatFormat {
    template: ChatTemplate,
    bos: Option<u32>,
    /// Before a turn: header or `[INST]`.
    open: u32,
    /// After the role, or `[/INST]`.
    close: u32,
    /// Ends an answer; `None` in plain text.
    end: Option<u32>,
    stop_ids: Vec<u32>,
}

impl ChatFormat {
    /// # Errors
    ///
    /// If the vocabulary lacks a special token of the template.
    pub fn new(
        template: ChatTemplate,
        tokenizer: &Tokenizer,
    ) -> Result<ChatFormat, TokenizerError> {
        let special = |token| {
            tokenizer.special(token).ok_or(TokenizerError::MissingSpecial { template, token })
        };
        let eos = || {
            tokenizer
                .eos()
                .ok_or(TokenizerError::MissingSpecial { template, token: "end of sequence" })
        };
        let (open, close, end) = match template {
            ChatTemplate::None => (0, 0, None),
            ChatTemplate::Llama2 | ChatTemplate::MistralV1 | ChatTemplate::Zephyr => {
                (0, 0, Some(eos()?))
            }
            ChatTemplate::Llama3 => (
                special("<|start_header_id|>")?,
                special("<|end_header_id|>")?,
                Some(special("<|eot_id|>")?),
            ),
            ChatTemplate::MistralV3 => (special("[INST]")?, special("[/INST]")?, Some(eos()?)),
            ChatTemplate::ChatMl => (special("<|im_start|>")?, 0, Some(special("<|im_end|>")?)),
        };
        let mut stop_ids = tokenizer.stop_ids().to_vec();
        stop_ids.extend(end.filter(|end| !stop_ids.contains(end)));
        Ok(ChatFormat { template, bos: tokenizer.bos(), open, close, end, stop_ids })
    }

    /// The template.
    pub fn template(&self) -> ChatTemplate {
        self.template
    }

    /// Tokens that end an answer: the tokenizer's and the template's.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Appends the start of a conversation: BOS, system turn, first user turn and all that
    /// comes before the answer.
    pub fn start(&self, tok: &Tokenizer, system: Option<&str>, user: &str, out: &mut Vec<u32>) {
        out.extend(self.bos);
        match (self.template, system) {
            (_, None) => self.put_user(tok, user, true, out),
            (ChatTemplate::Llama2, Some(system)) => {
                let user = format!("<<SYS>>\n{system}\n<</SYS>>\n\n{user}");
                self.put_user(tok, &user, true, out);
            }
            (ChatTemplate::MistralV1 | ChatTemplate::MistralV3, Some(system)) => {
                self.put_user(tok, &format!("{system}\n\n{user}"), true, out);
            }
            (ChatTemplate::None, Some(system)) => {
                self.put_user(tok, &format!("{system}\n{user}"), true, out);
            }
            (_, Some(system)) => {
                self.put_turn(tok, ChatRole::System, system, true, out);
                self.put_user(tok, user, false, out);
            }
        }
    }

    /// Appends a later user turn and all that stands between the answers around it.
    ///
    /// The context ends with [`end_of_answer`](Self::end_of_answer), whether the model or
    /// the caller put it there.
    pub fn user(&self, tok: &Tokenizer, text: &str, out: &mut Vec<u32>) {
        if self.template == ChatTemplate::Llama2 {
            out.extend(self.bos);
        }
        self.put_user(tok, text, false, out);
    }

    /// Appends an answer that was given before, with its end.
    pub fn answer(&self, tok: &Tokenizer, text: &str, out: &mut Vec<u32>) {
        match self.template {
            ChatTemplate::Llama2 => tok.encode(&format!("{} ", trim(text)), out),
            ChatTemplate::MistralV1 | ChatTemplate::MistralV3 => {
                tok.encode(text.trim_end_matches(' '), out);
            }
            ChatTemplate::Llama3 => tok.encode_continuing(trim(text), out),
            _ => tok.encode_continuing(text, out),
        }
        out.extend(self.end);
    }

    /// What to append after an answer that stopped without an end token.
    pub fn end_of_answer(&self) -> Option<u32> {
        self.end
    }

    /// Appends a whole conversation, ready for the answer to its last message.
    ///
    /// Only the first message may be the system's, and answers follow a user turn; what has
    /// no place in a template is left out.
    pub fn render(&self, tok: &Tokenizer, messages: &[(ChatRole, &str)], out: &mut Vec<u32>) {
        let system = messages.first().filter(|m| m.0 == ChatRole::System).map(|m| m.1);
        let mut has_started = false;
        for &(role, text) in messages {
            match role {
                ChatRole::User if has_started => self.user(tok, text, out),
                ChatRole::User => self.start(tok, system, text, out),
                ChatRole::Assistant if has_started => self.answer(tok, text, out),
                ChatRole::System | ChatRole::Assistant => continue,
            }
            has_started = true;
        }
    }

    /// A user turn and the header of the answer.
    fn put_user(&self, tok: &Tokenizer, text: &str, is_first: bool, out: &mut Vec<u32>) {
        match self.template {
            ChatTemplate::Llama2 => tok.encode(&format!("[INST] {} [/INST]", trim(text)), out),
            ChatTemplate::MistralV1 => tok.encode(&format!("[INST] {text} [/INST]"), out),
            ChatTemplate::MistralV3 => {
                out.push(self.open);
                tok.encode(text, out);
                out.push(self.close);
            }
            ChatTemplate::None if is_first => tok.encode(&format!("{text}\n"), out),
            ChatTemplate::None => tok.encode_continuing(&format!("\n{text}\n"), out),
            ChatTemplate::Llama3 | ChatTemplate::Zephyr | ChatTemplate::ChatMl => {
                self.put_turn(tok, ChatRole::User, text, is_first, out);
                self.put_header(tok, ChatRole::Assistant, "", false, out);
            }
        }
    }

    /// Header, text and end of a turn.
    fn put_turn(
        &self,
        tok: &Tokenizer,
        role: ChatRole,
        text: &str,
        is_first: bool,
        out: &mut Vec<u32>,
    ) {
        let text = if self.template == ChatTemplate::Llama3 { trim(text) } else { text };
        self.put_header(tok, role, text, is_first, out);
        out.extend(self.end);
    }

    /// Header and text of a turn. They are encoded together, as their templates write one
    /// text before it is tokenised.
    fn put_header(
        &self,
        tok: &Tokenizer,
        role: ChatRole,
        text: &str,
        is_first: bool,
        out: &mut Vec<u32>,
    ) {
        let role = role.name();
        match self.template {
            ChatTemplate::Zephyr if is_first => tok.encode(&format!("<|{role}|>\n{text}"), out),
            ChatTemplate::Zephyr => {
                tok.encode_after_special(&format!("\n<|{role}|>\n{text}"), out);
            }
            ChatTemplate::ChatMl => {
                if !is_first {
                    tok.encode_after_special("\n", out);
                }
                out.push(self.open);
                tok.encode_after_special(&format!("{role}\n{text}"), out);
            }
            _ => {
                out.push(self.open);
                tok.encode_after_special(role, out);
                out.push(self.close);
                tok.encode_after_special(&format!("\n\n{text}"), out);
            }
        }
    }
}

/// Takes white space off both ends, as the templates' language does: it counts the
/// separators U+001C to U+001F, which Unicode's White_Space leaves out.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}
