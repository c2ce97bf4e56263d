//! Writes conversations as each model family was trained to read them.
//!
//! Most templates are written by `script`. The others have the white space of the families' own code, character by
//! character:
//!
//! ```text
//! llama2      <s>[INST] <<SYS>>↵S↵<</SYS>>↵↵U [/INST] A </s><s>[INST] U [/INST]
//! mistral-v1  <s>[INST] S↵↵U [/INST] A</s> [INST] U [/INST]
//! mistral-v3  <s>[INST] S↵↵U[/INST] A</s>[AVAILABLE_TOOLS] T[/AVAILABLE_TOOLS][INST] U[/INST]
//!             [TOOL_CALLS] C</s>[TOOL_RESULTS] R[/TOOL_RESULTS]
//! zephyr      <s><|system|>↵S</s>↵<|user|>↵U</s>↵<|assistant|>↵A</s>↵
//! none        S↵U↵A↵
//! ```
//!
//! Llama 2 trims contents, Mistral trims spaces after an answer, the others trim nothing. If a template has no system
//! turn, the first user turn carries the system's text, or the last one if the checkpoint's own template does so. A
//! model's BOS starts the conversation, once (Llama 2: every user turn).
//!
//! Contents are encoded as plain text, so they cannot forge a special token.

use super::jinja::OwnFormat;
use super::script::{ChatAnswer, ChatOptions, ChatScript, ChatTurn, Sink, TurnKind, trim};
use super::thoughts::{Tags, Thoughts};
use super::{Tokenizer, TokenizerError};
use crate::format::{ChatTemplate, ChatTexts};

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The model, calling tools.
    Calls,
    /// Description of the tools for the model, before a user's text.
    Tools,
    /// A tool, with the result of a call.
    Tool,
    /// The model, with the beginning of an answer that is to be continued; the last message of a conversation.
    Begun,
}

/// Mistral's tokens around definitions of tools, before calls, and around results.
const MISTRAL_TOOLS: [&str; 5] = [
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
];

/// A chat template, joined to a vocabulary.
///
/// To drop old turns, write the conversation again with the oldest one that is kept.
pub struct ChatFormat {
    template: ChatTemplate,
    /// Writes the templates of markers.
    script: Option<ChatScript>,
    /// Runs the checkpoint's own template.
    own: Option<OwnFormat>,
    bos: Option<u32>,
    /// Mistral's `[INST]` and `[/INST]`, if they are tokens.
    inst: [u32; 2],
    /// Ids of [`MISTRAL_TOOLS`], if the vocabulary has all of them.
    tools: Option<[u32; 5]>,
    /// Ends an answer; `None` in plain text.
    end: Option<u32>,
    stop_ids: Vec<u32>,
    /// Whether the last user turn carries the system's text, not the first one.
    tells_last: bool,
}

impl ChatFormat {
    /// # Errors
    ///
    /// If the vocabulary lacks a special token of the template, if the template needs texts that only the checkpoint's
    /// own template has, or if that cannot run.
    pub fn new(
        template: ChatTemplate,
        tokenizer: &Tokenizer,
        options: ChatOptions,
    ) -> Result<ChatFormat, TokenizerError> {
        if template == ChatTemplate::Own {
            return ChatFormat::of_checkpoint(tokenizer, options);
        }
        let special = |token| {
            tokenizer.special(token).ok_or(TokenizerError::MissingSpecial { template, token })
        };
        let is_own = template == tokenizer.chat_template();
        let mut texts = ChatTexts::default();
        if is_own {
            texts.clone_from(tokenizer.chat_texts());
        } else if template == ChatTemplate::Qwen3 {
            texts.quiet.prompt.push_str("<think>\n\n</think>\n\n");
        }
        let needs_texts = [ChatTemplate::SmolLm3, ChatTemplate::Harmony].contains(&template);
        if needs_texts && texts.thinking.head.is_empty() {
            return Err(TokenizerError::MissingTexts(template));
        }
        let script = ChatScript::new(template, texts, options);
        let (mut inst, mut end) = ([0; 2], None);
        if template == ChatTemplate::MistralV3 {
            inst = [special("[INST]")?, special("[/INST]")?];
        }
        match &script {
            Some(script) => {
                for marker in script.markers() {
                    end = Some(special(marker)?);
                }
            }
            None if template == ChatTemplate::None => {}
            None => {
                let token = "end of sequence";
                let missing = TokenizerError::MissingSpecial { template, token };
                end = Some(tokenizer.eos().ok_or(missing)?);
            }
        }
        let mut stop_ids = tokenizer.stop_ids().to_vec();
        // In gpt-oss the end token ends a channel, and the next one follows.
        let ends_answer = template != ChatTemplate::Harmony;
        stop_ids.extend(end.filter(|end| ends_answer && !stop_ids.contains(end)));
        let bos = tokenizer.bos().filter(|_| !(is_own && tokenizer.flags.chat_without_bos));
        let mut tools = Some([0; 5]);
        for (index, name) in MISTRAL_TOOLS.iter().enumerate() {
            tools = tools.zip(tokenizer.special(name)).map(|(mut ids, id)| {
                ids[index] = id;
                ids
            });
        }
        let tools = tools.filter(|_| template == ChatTemplate::MistralV3);
        let tells_last = is_own && tokenizer.flags.system_in_last_turn;
        let own = None;
        Ok(ChatFormat { template, script, own, bos, inst, tools, end, stop_ids, tells_last })
    }

    /// The checkpoint's own template, which writes its BOS itself.
    fn of_checkpoint(
        tokenizer: &Tokenizer,
        options: ChatOptions,
    ) -> Result<ChatFormat, TokenizerError> {
        let own = OwnFormat::new(tokenizer.own_template(options.has_tools)?, options);
        if let Some(why) = own.stopped() {
            return Err(TokenizerError::Template(why));
        }
        let end = own.end(tokenizer);
        let mut stop_ids = tokenizer.stop_ids().to_vec();
        // Where answers come in channels, the end token ends one, and the next one follows.
        let ends_answer = own.thoughts() != Some(Thoughts::Channels);
        stop_ids.extend(end.filter(|end| ends_answer && !stop_ids.contains(end)));
        Ok(ChatFormat {
            template: ChatTemplate::Own,
            script: None,
            own: Some(own),
            bos: None,
            inst: [0; 2],
            tools: None,
            end,
            stop_ids,
            tells_last: false,
        })
    }

    /// Whether the vocabulary has the special tokens for calls of tools, if the template needs any.
    pub fn has_tool_tokens(&self) -> bool {
        self.template != ChatTemplate::MistralV3 || self.tools.is_some()
    }

    /// The template.
    pub fn template(&self) -> ChatTemplate {
        self.template
    }

    /// How the model marks its thoughts, which do not stay in a conversation; `None` if it has none.
    pub fn thoughts(&self) -> Option<Thoughts> {
        match &self.own {
            Some(own) => own.thoughts(),
            None => Thoughts::of(self.template),
        }
    }

    /// The field of messages in which the checkpoint's own template looks for thoughts, if it does.
    pub fn thought_field(&self) -> Option<&'static str> {
        self.own.as_ref().and_then(OwnFormat::thought_field)
    }

    /// Whether thoughts are seen only in a text that names its special tokens.
    pub fn names_special(&self, tok: &Tokenizer) -> bool {
        match self.thoughts() {
            Some(Thoughts::Channels) => true,
            Some(Thoughts::Tags(Tags { open, close })) => {
                self.own.is_some() && [open, close].iter().any(|tag| !tok.controls(tag).is_empty())
            }
            None => false,
        }
    }

    /// Whether the system's text has no turn of its own, but joins the user's.
    pub fn joins_system(&self) -> bool {
        match &self.own {
            Some(own) => own.joins_system(),
            None => ChatScript::joins_system(self.template),
        }
    }

    /// Whether answers stay in a conversation as text, without the ids that the model chose.
    pub fn keeps_text(&self) -> bool {
        self.own.is_some() || self.thoughts().is_some()
    }

    /// Whether the answer to the conversation `ids` begins inside thoughts.
    pub fn opens_thoughts(&self, tok: &Tokenizer, ids: &[u32], system: Option<&str>) -> bool {
        const TOKENS: usize = 16;
        match (&self.own, self.thoughts()) {
            (Some(_), Some(Thoughts::Tags(tags))) => {
                let end = tok.decode(&ids[ids.len().saturating_sub(TOKENS)..], true);
                end.trim_end().ends_with(&*tags.open)
            }
            (Some(_), _) => false,
            (None, _) => self.begins_thinking(system),
        }
    }

    /// Whether an answer begins inside thoughts, as far as the system's text tells.
    pub fn begins_thinking(&self, system: Option<&str>) -> bool {
        match &self.own {
            Some(own) => own.begins_thinking(system),
            None => self.script.as_ref().is_some_and(|script| script.begins_thinking(system)),
        }
    }

    /// Appends the end of the thoughts in which an answer begins, and returns whether the template is one whose thoughts
    /// cannot be turned off otherwise.
    pub fn end_thoughts(&self, tok: &Tokenizer, out: &mut Vec<u32>) -> bool {
        let Some(own) = &self.own else { return false };
        let mut ids = Ids::new(tok, out, false);
        own.end_thoughts(&mut ids);
        ids.flush();
        true
    }

    /// The ids that end thoughts in the middle of a sentence.
    pub fn closing_ids(&self, tok: &Tokenizer) -> Vec<u32> {
        let own = self.own.as_ref().map(|own| own.after_thoughts().to_owned());
        let text = own.or_else(|| self.thoughts().map(|thoughts| thoughts.closing()));
        let mut out = Vec::new();
        let mut ids = Ids::new(tok, &mut out, false);
        ids.markup(&text.unwrap_or_default());
        ids.flush();
        out
    }

    /// Tokens that end an answer: the tokenizer's and the template's.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The token to append after an answer that stopped without an end token.
    pub fn end_of_answer(&self) -> Option<u32> {
        self.end
    }

    /// Appends a whole conversation, ready for the answer to its last turn.
    ///
    /// # Errors
    ///
    /// If the checkpoint's own template refuses the conversation.
    pub fn write(
        &self,
        tok: &Tokenizer,
        system: Option<&str>,
        turns: &[ChatTurn<'_>],
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match (&self.own, &self.script) {
            (Some(own), _) => {
                let mut ids = Ids::new(tok, out, true);
                own.write(tok, system, turns, &mut ids)?;
                ids.flush();
            }
            (None, Some(script)) => {
                out.extend(self.bos);
                let mut ids = Ids::new(tok, out, self.bos.is_none());
                script.write(&mut ids, system, turns);
                ids.flush();
            }
            (None, None) => self.write_unscripted(tok, system, turns, out),
        }
        Ok(())
    }

    /// Appends a conversation in one of the templates whose texts and markers are one text before they are tokens.
    fn write_unscripted(
        &self,
        tok: &Tokenizer,
        system: Option<&str>,
        turns: &[ChatTurn<'_>],
        out: &mut Vec<u32>,
    ) {
        out.extend(self.bos);
        let mut start = Start { is_first: true, system };
        let is_user =
            |turn: &ChatTurn<'_>| matches!(turn.kind, TurnKind::User | TurnKind::WithTools(_));
        let last_user = turns.iter().rposition(is_user).filter(|_| self.tells_last);
        let mut told_last = last_user.and_then(|_| start.system.take());
        if self.template == ChatTemplate::Zephyr
            && let Some(system) = start.system.take()
        {
            self.put_turn(tok, "system", system, true, out);
            start.is_first = false;
        }
        for (index, turn) in turns.iter().enumerate() {
            if last_user == Some(index) {
                start.system = told_last.take();
            }
            self.put_question(tok, turn, &mut start, out);
            let is_answered = turn.answer.is_some() || index + 1 == turns.len();
            if self.template == ChatTemplate::Zephyr && is_answered {
                self.put_header(tok, "assistant", "", start.is_first, out);
            }
            let is_first = std::mem::take(&mut start.is_first);
            match turn.answer {
                Some(ChatAnswer::Calls(text)) => {
                    out.extend(self.tools.map(|ids| ids[2]));
                    tok.encode(text, out);
                    out.extend(self.end);
                }
                Some(ChatAnswer::Text(text)) => {
                    self.put_answer(tok, text, is_first && turn.kind == TurnKind::Unasked, out);
                }
                Some(ChatAnswer::Ids(ids)) => out.extend_from_slice(ids),
                Some(ChatAnswer::Begun(text)) => match self.continues_text() {
                    true => tok.encode_continuing(text, out),
                    false => tok.encode(text, out),
                },
                None => {}
            }
        }
        if turns.is_empty() && self.template == ChatTemplate::Zephyr {
            self.put_header(tok, "assistant", "", start.is_first, out);
        }
    }

    /// Whether an answer's text continues the text before it.
    fn continues_text(&self) -> bool {
        matches!(self.template, ChatTemplate::Zephyr | ChatTemplate::None)
    }

    /// Appends the question of a turn, with what comes before it.
    fn put_question(
        &self,
        tok: &Tokenizer,
        turn: &ChatTurn<'_>,
        start: &mut Start<'_>,
        out: &mut Vec<u32>,
    ) {
        if let (TurnKind::WithTools(text), Some([open, close, ..])) = (turn.kind, self.tools) {
            put_between([open, close], tok, text, out);
        }
        match (turn.kind, self.tools) {
            (TurnKind::Unasked, _) => {}
            (TurnKind::Result, Some([_, _, _, open, close])) => {
                put_between([open, close], tok, turn.user, out);
            }
            (TurnKind::System, _) if self.template == ChatTemplate::Zephyr => {
                self.put_turn(tok, "system", turn.user, start.is_first, out);
                start.is_first = false;
            }
            _ => {
                if self.template == ChatTemplate::Llama2 && !start.is_first {
                    out.extend(self.bos);
                }
                match start.system.take() {
                    None => self.put_user(tok, turn.user, start.is_first, out),
                    Some(system) => {
                        let text = self.joined(system, turn.user);
                        self.put_user(tok, &text, start.is_first, out);
                    }
                }
                start.is_first &= self.template != ChatTemplate::Zephyr;
            }
        }
    }

    /// The text of a user turn that carries the system's text.
    fn joined(&self, system: &str, user: &str) -> String {
        match self.template {
            ChatTemplate::Llama2 => format!("<<SYS>>\n{system}\n<</SYS>>\n\n{user}"),
            ChatTemplate::None => format!("{system}\n{user}"),
            _ => format!("{system}\n\n{user}"),
        }
    }

    /// Appends a conversation of messages, ready for the answer to the last one.
    ///
    /// Texts that the template has no place for are left out: for example, system texts behind the first message if the
    /// system has no turns ([`ChatFormat::joins_system`]).
    ///
    /// # Errors
    ///
    /// If the checkpoint's own template refuses the conversation.
    pub fn render(
        &self,
        tok: &Tokenizer,
        messages: &[(ChatRole, &str)],
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let system = messages.first().filter(|m| m.0 == ChatRole::System).map(|m| m.1);
        let mut turns: Vec<ChatTurn<'_>> = Vec::new();
        let mut kind = TurnKind::User;
        for (index, &(role, text)) in messages.iter().enumerate() {
            let turn = |kind| ChatTurn { user: text, kind, answer: None };
            match role {
                ChatRole::Tools => kind = TurnKind::WithTools(text),
                ChatRole::User => turns.push(turn(std::mem::take(&mut kind))),
                ChatRole::Tool => turns.push(turn(TurnKind::Result)),
                ChatRole::System if index == 0 => {}
                ChatRole::System if self.joins_system() => {}
                ChatRole::System => turns.push(turn(TurnKind::System)),
                ChatRole::Assistant => put_answer(&mut turns, ChatAnswer::Text(text)),
                ChatRole::Calls => put_answer(&mut turns, ChatAnswer::Calls(text)),
                ChatRole::Begun => put_answer(&mut turns, ChatAnswer::Begun(text)),
            }
        }
        self.write(tok, system, &turns, out)
    }

    /// Appends a conversation of objects that the checkpoint's own template knows, with further variables of it, and
    /// returns its text; `None` if the template is another one. It may end in an answer that has begun with the text of
    /// `begun`.
    ///
    /// # Errors
    ///
    /// If the template refuses the conversation.
    #[cfg(any(feature = "templates", feature = "serve"))]
    pub(crate) fn render_values(
        &self,
        tok: &Tokenizer,
        messages: &[serde_json::Value],
        variables: &[(String, serde_json::Value)],
        begun: Option<&str>,
        out: &mut Vec<u32>,
    ) -> Result<Option<String>, TokenizerError> {
        let Some(own) = &self.own else { return Ok(None) };
        let mut ids = Ids::new(tok, out, true);
        let text = own.write_values(messages.to_vec(), variables.to_vec(), begun, &mut ids)?;
        ids.flush();
        Ok(Some(text))
    }

    /// The text of a conversation that is made up to learn how the checkpoint's own template writes; `None` if there is
    /// none, or if it refuses the conversation. All of them share the time in which a template is learned.
    #[cfg(feature = "serve")]
    pub(crate) fn trial(
        &self,
        messages: &[serde_json::Value],
        variables: &[(String, serde_json::Value)],
    ) -> Option<String> {
        self.own.as_ref()?.trial(messages.to_vec(), variables.to_vec())
    }

    /// Appends an answer that was given before, and its end.
    fn put_answer(&self, tok: &Tokenizer, text: &str, is_first: bool, out: &mut Vec<u32>) {
        match self.template {
            ChatTemplate::Llama2 => tok.encode(&format!("{} ", trim(text)), out),
            ChatTemplate::MistralV1 | ChatTemplate::MistralV3 => {
                tok.encode(text.trim_end_matches(' '), out);
            }
            ChatTemplate::None if is_first => tok.encode(text, out),
            _ => tok.encode_continuing(text, out),
        }
        out.extend(self.end);
    }

    /// Appends a user turn.
    fn put_user(&self, tok: &Tokenizer, text: &str, is_first: bool, out: &mut Vec<u32>) {
        match self.template {
            ChatTemplate::Llama2 => tok.encode(&format!("[INST] {} [/INST]", trim(text)), out),
            ChatTemplate::MistralV1 => tok.encode(&format!("[INST] {text} [/INST]"), out),
            ChatTemplate::MistralV3 => {
                out.push(self.inst[0]);
                tok.encode(text, out);
                out.push(self.inst[1]);
            }
            ChatTemplate::None if is_first => tok.encode(&format!("{text}\n"), out),
            ChatTemplate::None => tok.encode_continuing(&format!("\n{text}\n"), out),
            _ => self.put_turn(tok, "user", text, is_first, out),
        }
    }

    /// Appends a turn of Zephyr. Header, text and end are one text before it is tokenised.
    fn put_turn(
        &self,
        tok: &Tokenizer,
        role: &str,
        text: &str,
        is_first: bool,
        out: &mut Vec<u32>,
    ) {
        self.put_header(tok, role, text, is_first, out);
        out.extend(self.end);
    }

    fn put_header(
        &self,
        tok: &Tokenizer,
        role: &str,
        text: &str,
        is_first: bool,
        out: &mut Vec<u32>,
    ) {
        match is_first {
            true => tok.encode(&format!("<|{role}|>\n{text}"), out),
            false => tok.encode_after_special(&format!("\n<|{role}|>\n{text}"), out),
        }
    }
}

/// State before the next turn of a conversation.
struct Start<'a> {
    /// Whether at most the BOS stands before the turn.
    is_first: bool,
    /// System text that the next user turn carries.
    system: Option<&'a str>,
}

/// Answers the last turn. If that has an answer, the new answer becomes a turn without a question.
fn put_answer<'a>(turns: &mut Vec<ChatTurn<'a>>, answer: ChatAnswer<'a>) {
    match turns.last_mut() {
        Some(turn) if turn.answer.is_none() => turn.answer = Some(answer),
        _ => turns.push(ChatTurn { user: "", kind: TurnKind::Unasked, answer: Some(answer) }),
    }
}

/// Appends a text between two special tokens.
fn put_between([open, close]: [u32; 2], tok: &Tokenizer, text: &str, out: &mut Vec<u32>) {
    out.push(open);
    tok.encode(text, out);
    out.push(close);
}

/// Encodes what a script writes: the text between two special tokens as one.
struct Ids<'a> {
    tok: &'a Tokenizer,
    out: &'a mut Vec<u32>,
    text: String,
    /// Whether nothing stands before the text.
    is_first: bool,
    /// Whether the token before the text strips white space.
    strips: bool,
}

impl<'a> Ids<'a> {
    fn new(tok: &'a Tokenizer, out: &'a mut Vec<u32>, is_first: bool) -> Ids<'a> {
        Ids { tok, out, text: String::new(), is_first, strips: false }
    }

    fn flush(&mut self) {
        let text = if self.strips { self.text.trim_start() } else { &self.text };
        match self.is_first {
            true => self.tok.encode(text, self.out),
            false => self.tok.encode_after_special(text, self.out),
        }
        self.text.clear();
    }
}

impl Sink for Ids<'_> {
    fn markup(&mut self, text: &str) {
        let mut rest = 0;
        for (name, id) in self.tok.controls(text) {
            self.text.push_str(&text[rest..name.start]);
            self.ids(&[id]);
            rest = name.end;
        }
        self.text.push_str(&text[rest..]);
    }

    fn content(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn ids(&mut self, ids: &[u32]) {
        self.flush();
        self.out.extend_from_slice(ids);
        self.is_first = false;
        self.strips = ids.last().is_some_and(|&id| self.tok.strips_right(id));
    }
}
