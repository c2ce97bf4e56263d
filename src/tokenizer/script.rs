//! Writes conversations as the rows of `families` say.

use std::borrow::Cow;

use super::families::{Family, Loses, Place, System, Trims, family};
use crate::format::{ChatTemplate, ChatTexts, Date, SystemTexts, filled};

/// A user's text and the model's answer.
#[derive(Clone, Copy, Debug)]
pub struct ChatTurn<'a> {
    /// The user's text, or the tool's.
    pub user: &'a str,
    /// Kind of the text.
    pub kind: TurnKind<'a>,
    /// The answer; `None` in the last turn, as a rule.
    pub answer: Option<ChatAnswer<'a>>,
}

/// Kind of the text that begins a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnKind<'a> {
    /// A user's text.
    #[default]
    User,
    /// The user's text, after this description of the tools.
    WithTools(&'a str),
    /// A tool's text: the result of a call.
    Result,
    /// A system text behind the start of the conversation.
    System,
    /// No text: the model speaks without being asked.
    Unasked,
}

/// An answer of the conversation.
#[derive(Clone, Copy, Debug)]
pub enum ChatAnswer<'a> {
    /// An answer as text.
    Text(&'a str),
    /// A call of tools, in the template's format.
    Calls(&'a str),
    /// The ids that the model chose, with the one that ended it.
    Ids(&'a [u32]),
    /// The beginning of the wanted answer, to be continued.
    Begun(&'a str),
}

/// Options of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatOptions {
    /// Whether the model may think before it answers; `None` leaves it to the template.
    pub thinks: Option<bool>,
    /// How much the model thinks; `None` leaves it to the template.
    pub effort: Option<&'static str>,
    /// The date that dated templates print.
    pub today: Date,
    /// Whether the conversation has tools. Some checkpoints have a template of its own for that.
    pub has_tools: bool,
}

impl ChatOptions {
    /// All values of `effort`.
    pub const EFFORTS: [&str; 3] = ["low", "medium", "high"];

    /// The default options.
    pub fn new(today: Date) -> ChatOptions {
        ChatOptions { thinks: None, effort: None, today, has_tools: false }
    }

    /// How much the model thinks, in LEAP's own templates.
    pub fn effort(&self) -> &'static str {
        self.effort.unwrap_or("medium")
    }
}

/// Receiver of a template's output.
pub(super) trait Sink {
    /// The template's own text, in which special tokens are named.
    fn markup(&mut self, text: &str);
    /// Text of a message, without special tokens in it.
    fn content(&mut self, text: &str);
    /// Tokens.
    fn ids(&mut self, ids: &[u32]);
}

impl Sink for String {
    fn markup(&mut self, text: &str) {
        self.push_str(text);
    }

    fn content(&mut self, text: &str) {
        self.push_str(text);
    }

    /// Ids have no text without a vocabulary.
    fn ids(&mut self, _ids: &[u32]) {}
}

/// A template with a name, with the texts of a checkpoint.
pub struct ChatScript {
    family: &'static Family,
    texts: ChatTexts,
    /// The options in use.
    pub options: ChatOptions,
    /// Whether the vocabulary has the special tokens for tools.
    pub(super) has_tool_tokens: bool,
    /// Whether the last user turn carries the system's text, not the first one.
    pub(super) tells_last: bool,
}

/// State before the next turn of a conversation.
struct Start<'a> {
    /// Whether nothing stands before the turn.
    is_first: bool,
    /// System text that the next user turn carries.
    system: Option<&'a str>,
}

impl ChatScript {
    /// `None` if the turns of `template` do not stand between markers.
    pub fn new(template: ChatTemplate, texts: ChatTexts, options: ChatOptions) -> Option<Self> {
        let family = family(template).filter(|family| family.is_marked())?;
        Some(ChatScript::of(family, texts, options))
    }

    pub(super) fn of(family: &'static Family, texts: ChatTexts, options: ChatOptions) -> Self {
        ChatScript { family, texts, options, has_tool_tokens: true, tells_last: false }
    }

    /// The family, if its texts have signs.
    pub(super) fn signs(&self) -> Option<&'static Family> {
        Some(self.family).filter(|family| !family.is_marked())
    }

    /// The special tokens that a template names.
    pub fn markers(template: ChatTemplate) -> &'static [&'static str] {
        family(template).map_or(&[], |family| family.markers)
    }

    /// Tokens after which an answer in a template is over.
    pub fn stops(template: ChatTemplate) -> &'static [&'static str] {
        let stops = family(template).and_then(|family| family.answer.stops);
        let last = || ChatScript::markers(template).last();
        stops.unwrap_or_else(|| last().map_or(&[], std::slice::from_ref))
    }

    /// Texts around the system's text, without the checkpoint's own; `None` if the system's text joins the first turn.
    pub fn around_system(&self) -> Option<[&'static str; 2]> {
        let system = &self.family.system;
        (system.place != Place::User).then_some(system.around)
    }

    /// Whether the checkpoint's head is a turn of its own, before the system's.
    pub fn has_head_apart(&self) -> bool {
        self.family.system.place == Place::Behind
    }

    /// Whether the system's text has no turn of its own, but joins the user's.
    pub fn joins_system(template: ChatTemplate) -> bool {
        family(template).is_some_and(|family| family.system.place == Place::User)
    }

    /// The template's text of a conversation, up to the answer to its last turn.
    pub fn text(&self, system: Option<&str>, turns: &[ChatTurn<'_>]) -> String {
        let mut text = String::new();
        self.write(&mut text, system, turns);
        text
    }

    pub(super) fn write(&self, out: &mut impl Sink, system: Option<&str>, turns: &[ChatTurn<'_>]) {
        let texts = self.texts(system);
        let has_tools = turns.iter().any(|turn| matches!(turn.kind, TurnKind::WithTools(_)));
        let mut start = Start { is_first: true, system: None };
        let mut told_last = None;
        let is_user =
            |turn: &ChatTurn<'_>| matches!(turn.kind, TurnKind::User | TurnKind::WithTools(_));
        let last_user = turns.iter().rposition(is_user).filter(|_| self.tells_last);
        match (self.family.system.place, last_user) {
            (Place::User, None) => start.system = system,
            (Place::User, Some(_)) => told_last = system,
            _ => start.is_first = !self.write_system(out, system, texts, has_tools),
        }
        for (index, turn) in turns.iter().enumerate() {
            if last_user == Some(index) {
                start.system = told_last.take();
            }
            self.write_question(out, turn, &mut start);
            match turn.answer {
                None if index + 1 < turns.len() => {}
                None => self.write_prompt(out, texts, start.is_first),
                Some(answer) => self.write_answer(out, answer, texts, start.is_first),
            }
            start.is_first = false;
        }
        if turns.is_empty() {
            self.write_prompt(out, texts, start.is_first);
        }
    }

    /// Writes the text behind which the model answers.
    fn write_prompt(&self, out: &mut impl Sink, texts: &SystemTexts, is_first: bool) {
        let answer = &self.family.answer;
        out.markup(&[answer.before[usize::from(!is_first)], answer.prompt, &texts.prompt].concat());
    }

    /// Writes the question of a turn, with the texts around it.
    fn write_question(&self, out: &mut impl Sink, turn: &ChatTurn<'_>, start: &mut Start<'_>) {
        let Family { system, user, tools, .. } = self.family;
        let result = tools.result.filter(|_| turn.kind == TurnKind::Result && self.has_tool_tokens);
        let [open, close] = match turn.kind {
            TurnKind::Unasked => return,
            TurnKind::Result => result.unwrap_or(user.around),
            TurnKind::System if system.place != Place::User => system.alone,
            _ => user.around,
        };
        let before = user.before[usize::from(!start.is_first)];
        match (turn.kind, tools.around) {
            (TurnKind::WithTools(text), Some([start, end])) if self.has_tool_tokens => {
                out.markup(start);
                out.content(text);
                out.markup(&[end, before, open].concat());
            }
            (TurnKind::WithTools(text), None) => {
                out.markup(&[before, open].concat());
                out.content(text);
            }
            _ => out.markup(&[before, open].concat()),
        }
        start.is_first = false;
        let text = match (turn.kind, user.trims) {
            (_, Trims::Nothing | Trims::Turn) | (TurnKind::Result, _) => turn.user,
            _ => trim(turn.user),
        };
        let carried = if result.is_none() { start.system.take() } else { None };
        let [before, behind] = system.around;
        match (carried, user.trims) {
            (Some(system), Trims::Turn) => {
                out.content(trim(&[before, system, behind, text].concat()));
            }
            (None, Trims::Turn) => out.content(trim(text)),
            (Some(system), _) => {
                out.markup(before);
                out.content(system);
                out.markup(behind);
                out.content(text);
            }
            (None, _) => out.content(text),
        }
        out.markup(close);
    }

    fn write_answer(
        &self,
        out: &mut impl Sink,
        answer: ChatAnswer<'_>,
        texts: &SystemTexts,
        is_first: bool,
    ) {
        let family = self.family;
        let before = family.answer.before[usize::from(!is_first)];
        let [open, close] = family.answer.around;
        match answer {
            ChatAnswer::Text(text) => {
                // Where the system's text decides about thoughts, the mark that there were none stays.
                let is_kept = family.system.words.is_some();
                let prompt = if is_kept { texts.prompt.as_str() } else { "" };
                out.markup(&[before, open, prompt].concat());
                out.content(self.answer(text));
                out.markup(close);
            }
            ChatAnswer::Calls(text) => {
                let calls = family.tools.calls.filter(|_| self.has_tool_tokens);
                out.markup(&[before, calls.unwrap_or(open)].concat());
                out.content(text);
                out.markup(close);
            }
            ChatAnswer::Ids(ids) => {
                out.markup(&[before, family.answer.prompt].concat());
                out.ids(ids);
                let end = family.markers.last().filter(|_| !family.ends_by_eos());
                out.markup(end.and_then(|end| close.strip_prefix(end)).unwrap_or_default());
            }
            // There is nothing to continue: the model begins its own answer.
            ChatAnswer::Begun("") => self.write_prompt(out, texts, is_first),
            // The begun answer comes after thoughts.
            ChatAnswer::Begun(text) => {
                let begun = family.answer.begun;
                out.markup(&[before, open, begun, &self.texts.quiet.prompt].concat());
                out.content(text);
            }
        }
    }

    /// Texts of the checkpoint. In some families the system's text decides whether the model may think.
    fn texts(&self, system: Option<&str>) -> &SystemTexts {
        let words = self.family.system.words;
        let says =
            |word: Option<&str>| word.zip(system).is_some_and(|(word, text)| text.contains(word));
        let may_think = says(words.map(|words| words.think)) || self.options.thinks != Some(false);
        let thinks = !says(words.map(|words| words.no_think)) && may_think;
        if thinks { &self.texts.thinking } else { &self.texts.quiet }
    }

    /// Whether an answer begins inside thoughts.
    pub(super) fn begins_thinking(&self, system: Option<&str>) -> bool {
        self.texts(system).prompt.trim_end().ends_with("<think>")
    }

    /// Writes the system's turn, and returns whether there is one.
    fn write_system(
        &self,
        out: &mut impl Sink,
        system: Option<&str>,
        texts: &SystemTexts,
        has_tools: bool,
    ) -> bool {
        let mut head = self.filled(&texts.head);
        if has_tools {
            head.insert_str(0, self.family.tools.system);
        }
        let is_apart = self.has_head_apart();
        if is_apart {
            out.markup(&head);
        }
        let head = if is_apart { "" } else { head.as_str() };
        let text = system.and_then(|text| self.system(text, texts));
        let System { around: [open, close], alone, words, .. } = self.family.system;
        let before = self.family.user.before[0];
        let alone_word = words.map(|words| words.alone);
        match (text, &texts.default) {
            (None, None) if !has_tools => return false,
            (Some(text), _) if alone_word.is_some_and(|word| text.contains(word)) => {
                out.markup(alone[0]);
                out.content(trim_end(&text.replace(alone_word.unwrap_or_default(), "")));
                out.markup(alone[1]);
            }
            (text, default) => {
                out.markup(&[before, open, head].concat());
                match (text, default) {
                    (Some(text), _) => out.content(&text),
                    (None, default) => {
                        out.markup(&self.filled(default.as_deref().unwrap_or_default()))
                    }
                }
                out.markup(&[&self.filled(&texts.tail), close].concat());
            }
        }
        true
    }

    /// The system's text as the template writes it; `None` where it is left out.
    fn system<'t>(&self, text: &'t str, texts: &SystemTexts) -> Option<Cow<'t, str>> {
        let Family { system, user, .. } = self.family;
        let text = match system.words {
            Some(words) => {
                let text = text.replace(words.no_think, "").replace(words.think, "");
                Cow::Owned(trim_end(&text).to_owned())
            }
            None => Cow::Borrowed(if user.trims == Trims::All { trim(text) } else { text }),
        };
        let needs_text = texts.skips_empty || system.words.is_some();
        (!needs_text || !text.is_empty()).then_some(text)
    }

    fn answer<'t>(&self, text: &'t str) -> &'t str {
        match self.family.answer.loses {
            Loses::Nothing => text,
            Loses::White => trim(text),
            Loses::Spaces => text.trim_end_matches(' '),
            Loses::Breaks => text.trim_start_matches('\n'),
            Loses::Thoughts => match text.rsplit_once("</think>") {
                Some((_, text)) => text.trim_start_matches('\n'),
                None => text,
            },
        }
    }

    /// `text` with date and effort filled in. Files with other placeholders are refused when they are read.
    fn filled(&self, text: &str) -> String {
        filled(text, self.options.today, self.options.effort()).unwrap_or_default()
    }
}

/// Removes white space from both ends, as the templates' language does.
pub(super) fn trim(text: &str) -> &str {
    text.trim_matches(is_white)
}

fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_white)
}

/// Whether the templates' language counts `c` as white space: with the separators U+001C to U+001F, which Unicode's
/// White_Space leaves out.
pub(super) fn is_white(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
