//! Writes conversations as each model family was trained to read them: `script` those of the templates with names, `jinja`
//! those of the checkpoint's own.
//!
//! Contents are encoded as plain text, so they cannot forge a special token.

use super::families::{Family, Thinks, family, sign};
use super::jinja::OwnFormat;
use super::script::{ChatAnswer, ChatOptions, ChatScript, ChatTurn, Sink, TurnKind};
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

/// A chat template, joined to a vocabulary.
///
/// To drop old turns, write the conversation again with the oldest one that is kept.
pub struct ChatFormat {
    template: ChatTemplate,
    /// Writes a template that has a name.
    script: Option<ChatScript>,
    /// Runs the checkpoint's own template.
    own: Option<OwnFormat>,
    bos: Option<u32>,
    /// Ends an answer; `None` in plain text.
    end: Option<u32>,
    stop_ids: Vec<u32>,
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
        let Some(family) = family(template) else {
            return ChatFormat::of_checkpoint(tokenizer, options);
        };
        let missing = |token| TokenizerError::MissingSpecial { template, token };
        let is_own = template == tokenizer.chat_template();
        let mut texts = ChatTexts::default();
        if is_own {
            texts.clone_from(tokenizer.chat_texts());
        } else {
            texts.quiet.prompt.push_str(family.answer.quiet);
        }
        if family.system.needs_texts && texts.thinking.head.is_empty() {
            return Err(TokenizerError::MissingTexts(template));
        }
        let mut end = None;
        for marker in family.markers {
            end = Some(tokenizer.special(marker).ok_or(missing(marker))?);
        }
        if family.ends_by_eos() {
            end = Some(tokenizer.eos().ok_or(missing("end of sequence"))?);
        }
        let mut stop_ids = tokenizer.stop_ids().to_vec();
        let ends_answer = family.answer.thoughts != Thinks::InChannels;
        stop_ids.extend(end.filter(|end| ends_answer && !stop_ids.contains(end)));
        let bos = tokenizer.bos().filter(|_| !(is_own && tokenizer.flags.chat_without_bos));
        let mut script = ChatScript::of(family, texts, options);
        script.has_tool_tokens =
            family.tools.markers.iter().all(|name| tokenizer.special(name).is_some());
        script.tells_last = is_own && tokenizer.flags.system_in_last_turn;
        Ok(ChatFormat { template, script: Some(script), own: None, bos, end, stop_ids })
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
            end,
            stop_ids,
        })
    }

    /// Whether the vocabulary has the special tokens for calls of tools, if the template needs any.
    pub fn has_tool_tokens(&self) -> bool {
        self.script.as_ref().is_none_or(|script| script.has_tool_tokens)
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
            (None, script) => {
                out.extend(self.bos);
                let mut ids = Ids::new(tok, out, self.bos.is_none());
                ids.edges = [self.bos, self.end];
                ids.signs = script.as_ref().and_then(ChatScript::signs);
                script.iter().for_each(|script| script.write(&mut ids, system, turns));
                ids.flush();
            }
        }
        Ok(())
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
}

/// Answers the last turn. If that has an answer, the new answer becomes a turn without a question.
fn put_answer<'a>(turns: &mut Vec<ChatTurn<'a>>, answer: ChatAnswer<'a>) {
    match turns.last_mut() {
        Some(turn) if turn.answer.is_none() => turn.answer = Some(answer),
        _ => turns.push(ChatTurn { user: "", kind: TurnKind::Unasked, answer: Some(answer) }),
    }
}

/// Encodes what a script writes: the text between two special tokens as one.
struct Ids<'a> {
    tok: &'a Tokenizer,
    out: &'a mut Vec<u32>,
    text: String,
    before: Before,
    /// Whether the token before the text strips white space.
    strips: bool,
    /// The tokens at the beginning and the end of texts.
    edges: [Option<u32>; 2],
    /// The family, if its texts have signs. They name no other special tokens than its own.
    signs: Option<&'static Family>,
}

/// Kind of the token before a text, if there is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Token,
    Text,
}

impl<'a> Ids<'a> {
    fn new(tok: &'a Tokenizer, out: &'a mut Vec<u32>, is_first: bool) -> Ids<'a> {
        let before = if is_first { Before::Nothing } else { Before::Token };
        Ids { tok, out, text: String::new(), before, strips: false, edges: [None; 2], signs: None }
    }

    fn flush(&mut self) {
        let text = if self.strips { self.text.trim_start() } else { &self.text };
        match self.before {
            Before::Nothing => self.tok.encode(text, self.out),
            Before::Token => self.tok.encode_after_special(text, self.out),
            Before::Text => self.tok.encode_continuing(text, self.out),
        }
        self.text.clear();
    }

    /// Takes a template's text, in which special tokens are named.
    fn put(&mut self, text: &str) {
        let mut rest = 0;
        for (name, id) in self.tok.controls(text) {
            if self.signs.is_none_or(|family| family.names(&text[name.clone()])) {
                self.text.push_str(&text[rest..name.start]);
                self.ids(&[id]);
                rest = name.end;
            }
        }
        self.text.push_str(&text[rest..]);
    }

    /// Takes a sign of a template, which changes how the text behind it becomes tokens.
    fn obey(&mut self, sign: char) {
        let [bos, end] = self.edges;
        match sign {
            sign::BOS => bos.into_iter().for_each(|id| self.ids(&[id])),
            sign::EOS => end.into_iter().for_each(|id| self.ids(&[id])),
            _ => {
                self.flush();
                self.before = if sign == sign::NEW { Before::Nothing } else { Before::Text };
                self.strips = false;
            }
        }
    }
}

impl Sink for Ids<'_> {
    fn markup(&mut self, text: &str) {
        let has_signs = self.signs.is_some();
        let is_sign = |c: char| has_signs && sign::ALL.contains(&c);
        for part in text.split_inclusive(is_sign) {
            let sign = part.chars().next_back().filter(|c| is_sign(*c));
            self.put(&part[..part.len() - sign.map_or(0, char::len_utf8)]);
            sign.into_iter().for_each(|sign| self.obey(sign));
        }
    }

    fn content(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn ids(&mut self, ids: &[u32]) {
        self.flush();
        self.out.extend_from_slice(ids);
        self.before = Before::Token;
        self.strips = ids.last().is_some_and(|&id| self.tok.strips_right(id));
    }
}
