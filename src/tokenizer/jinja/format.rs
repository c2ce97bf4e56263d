//! Writes conversations in the checkpoint's own template.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::written::{Written, joined};
use super::{Facts, OwnTemplate, Talk};
use crate::tokenizer::script::{ChatAnswer, ChatOptions, ChatTurn, Sink, TurnKind};
use crate::tokenizer::thoughts::Thoughts;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// Stands behind the beginning of an answer that is to go on, while the template runs: of private use, in plane 0.
const CUT: char = '\u{f8ff}';

/// The checkpoint's own template with options.
pub(in crate::tokenizer) struct OwnFormat {
    template: Arc<OwnTemplate>,
    options: ChatOptions,
}

impl OwnFormat {
    pub(in crate::tokenizer) fn new(
        template: &Arc<OwnTemplate>,
        options: ChatOptions,
    ) -> OwnFormat {
        OwnFormat { template: Arc::clone(template), options }
    }

    fn facts(&self) -> &Facts {
        self.template.facts(self.options.today)
    }

    /// The field of messages in which the template looks for thoughts, if it does.
    pub(in crate::tokenizer) fn thought_field(&self) -> Option<&'static str> {
        self.facts().thought_field
    }

    /// The template's text between thoughts and the answer.
    pub(in crate::tokenizer) fn after_thoughts(&self) -> &str {
        &self.facts().after_thoughts
    }

    pub(in crate::tokenizer) fn thoughts(&self) -> Option<Thoughts> {
        self.facts().thoughts.clone()
    }

    /// Whether the system's text has no turn of its own.
    pub(in crate::tokenizer) fn joins_system(&self) -> bool {
        !self.facts().takes_system
    }

    /// The first special token after an answer.
    pub(in crate::tokenizer) fn end(&self, tok: &Tokenizer) -> Option<u32> {
        let markup = self.facts().after_answer.iter().filter_map(|part| match part {
            Written::Markup(text) => Some(text),
            Written::Text(_) => None,
        });
        let mut ids = markup.flat_map(|text| tok.controls(text)).map(|(_, id)| id);
        ids.next()
    }

    /// Whether an answer begins inside thoughts, in a conversation of a few words.
    pub(in crate::tokenizer) fn begins_thinking(&self, system: Option<&str>) -> bool {
        let Some(Thoughts::Tags(tags)) = self.thoughts() else { return false };
        let turn = ChatTurn { user: "Hi.", kind: TurnKind::User, answer: None };
        let parts = self.parts(None, system, &[turn]);
        parts.is_ok_and(|parts| joined(&parts).trim_end().ends_with(&*tags.open))
    }

    /// Writes a conversation, ready for the answer to its last turn.
    pub(in crate::tokenizer) fn write(
        &self,
        tok: &Tokenizer,
        system: Option<&str>,
        turns: &[ChatTurn<'_>],
        out: &mut impl Sink,
    ) -> Result<(), TokenizerError> {
        send(&self.parts(Some(tok), system, turns)?, out);
        Ok(())
    }

    /// Ends the thoughts in which an answer begins.
    pub(in crate::tokenizer) fn end_thoughts(&self, out: &mut impl Sink) {
        out.markup(self.facts().after_thoughts.trim_start());
    }

    /// Writes a conversation of the template's own objects, with further variables, and returns its text. It may end in
    /// an answer that has begun with the text of `begun`.
    pub(in crate::tokenizer) fn write_values(
        &self,
        messages: Vec<Json>,
        variables: Vec<(String, Json)>,
        begun: Option<&str>,
        out: &mut impl Sink,
    ) -> Result<String, TokenizerError> {
        let begins = begins_answer(&variables);
        let mut all = self.variables();
        all.extend(variables);
        let parts = self.talk(messages, all, begins, begun)?;
        send(&parts, out);
        Ok(joined(&parts))
    }

    /// The text of a conversation that is made up to learn how the template writes; `None` if it refuses it.
    #[cfg(feature = "serve")]
    pub(in crate::tokenizer) fn trial(
        &self,
        messages: Vec<Json>,
        variables: Vec<(String, Json)>,
    ) -> Option<String> {
        let begins_answer = begins_answer(&variables);
        let mut all = self.variables();
        all.extend(variables);
        let today = self.options.today;
        let talk = Talk { messages, variables: all, today, begins_answer, is_trial: true };
        self.template.write(talk).ok().map(|parts| joined(&parts))
    }

    /// Why the template does not run any more, if it does not. The first call learns how it writes.
    pub(in crate::tokenizer) fn stopped(&self) -> Option<String> {
        self.facts();
        self.template.stopped()
    }

    /// The template's text of a conversation, which may end in an answer that has begun.
    fn talk(
        &self,
        mut messages: Vec<Json>,
        variables: Vec<(String, Json)>,
        begins_answer: bool,
        begun: Option<&str>,
    ) -> Result<Vec<Written>, TokenizerError> {
        let begun = begun.filter(|text| !text.trim().is_empty());
        messages.extend(
            begun.map(|text| json!({"role": "assistant", "content": format!("{text}{CUT}")})),
        );
        let talk = Talk {
            messages,
            variables,
            today: self.options.today,
            begins_answer: begins_answer && begun.is_none(),
            is_trial: false,
        };
        let parts = self.template.write(talk).map_err(TokenizerError::Template)?;
        match begun {
            None => Ok(parts),
            Some(_) => cut(parts).ok_or_else(|| {
                TokenizerError::Template("it does not write an answer that is to go on".to_owned())
            }),
        }
    }

    fn parts(
        &self,
        tok: Option<&Tokenizer>,
        system: Option<&str>,
        turns: &[ChatTurn<'_>],
    ) -> Result<Vec<Written>, TokenizerError> {
        let mut messages: VecDeque<Json> = VecDeque::new();
        let mut say = |role, text: &str| messages.push_back(json!({"role": role, "content": text}));
        let mut begun = None;
        for turn in turns {
            match turn.kind {
                TurnKind::Unasked => {}
                TurnKind::User | TurnKind::WithTools(_) => say("user", turn.user),
                TurnKind::Result => say("tool", turn.user),
                TurnKind::System => say("system", turn.user),
            }
            match turn.answer {
                None => {}
                Some(ChatAnswer::Text(text) | ChatAnswer::Calls(text)) => say("assistant", text),
                Some(ChatAnswer::Ids(ids)) => {
                    say("assistant", &tok.map(|tok| tok.decode(ids, false)).unwrap_or_default());
                }
                Some(ChatAnswer::Begun(text)) => begun = Some(text),
            }
        }
        if let Some(system) = system {
            self.tell(system, &mut messages);
        }
        self.talk(messages.into(), self.variables(), true, begun)
    }

    /// Puts the system's text before the messages, or before the first user's text if it has no turn of its own.
    fn tell(&self, system: &str, messages: &mut VecDeque<Json>) {
        let first = messages.front_mut().filter(|first| first["role"] == "user");
        match first {
            Some(first) if self.joins_system() => {
                let user = first["content"].as_str().unwrap_or_default();
                first["content"] = format!("{system}\n\n{user}").into();
            }
            _ => messages.push_front(json!({"role": "system", "content": system})),
        }
    }

    fn variables(&self) -> Vec<(String, Json)> {
        let ChatOptions { thinks, effort, .. } = self.options;
        let thinks = thinks.into_iter().flat_map(|thinks| {
            ["enable_thinking", "thinking"].map(|name| (name.to_owned(), thinks.into()))
        });
        let effort = effort.map(|effort| ("reasoning_effort".to_owned(), effort.into()));
        thinks.chain(effort).collect()
    }
}

/// Whether the template writes the start of an answer, as its variables say.
fn begins_answer(variables: &[(String, Json)]) -> bool {
    let is_set = |name: &&(String, Json)| name.0 == "add_generation_prompt";
    let begins = variables.iter().find(is_set).and_then(|(_, value)| value.as_bool());
    begins.unwrap_or(true)
}

fn send(parts: &[Written], out: &mut impl Sink) {
    for part in parts {
        match part {
            Written::Markup(text) => out.markup(text),
            Written::Text(text) => out.content(text),
        }
    }
}

/// The parts before the last [`CUT`].
pub(super) fn cut(parts: Vec<Written>) -> Option<Vec<Written>> {
    let mut left = joined(&parts).rfind(CUT)?;
    let mut kept = Vec::new();
    for part in parts {
        let len = part.text().len().min(left);
        left -= len;
        kept.push(match part {
            Written::Markup(text) => Written::Markup(text[..len].to_owned()),
            Written::Text(text) => Written::Text(text[..len].to_owned()),
        });
    }
    Some(kept)
}
