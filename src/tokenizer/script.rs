//! Chat templates whose turns stand between markers, as data, and what they write.
//!
//! ```text
//! llama3   <|start_header_id|>R<|end_header_id|>↵↵S<|eot_id|>            (no line breaks between)
//!          with tools the system's begins with: Environment: ipython↵   (R of results: ipython)
//! chatml   <|im_start|>R↵S<|im_end|>↵
//! qwen3    the same; answers lose what stands before the last </think>
//! smollm3  the same, but for the system: <|im_start|>system↵ HEAD S TAIL
//! granite  <|start_of_role|>R<|end_of_role|>S<|end_of_text|>↵
//! gemma    <start_of_turn>user↵S↵↵U<end_of_turn>↵<start_of_turn>model↵A<end_of_turn>↵
//! phi3     <|R|>↵S<|end|>↵                                        (phi4: no line breaks)
//! harmony  HEAD<|start|>developer<|message|># Instructions↵↵S TAIL<|end|>
//!          <|start|>user<|message|>U<|end|><|start|>assistant<|channel|>final<|message|>A<|end|>
//! ```
//!
//! Llama 3 trims contents, Gemma those of user and model. HEAD, TAIL and what stands for a
//! missing system text come from the checkpoint's template ([`ChatTexts`]), in all of them.

use std::borrow::Cow;

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

/// A template's texts around the messages of a conversation.
struct Shape {
    /// Special tokens that the template names; the last one ends an answer.
    markers: &'static [&'static str],
    system: [&'static str; 2],
    user: [&'static str; 2],
    assistant: [&'static str; 2],
    /// Text after which the model writes its answer.
    prompt: &'static str,
}

const CHATML: Shape = Shape {
    markers: &["<|im_start|>", "<|im_end|>"],
    system: ["<|im_start|>system\n", "<|im_end|>\n"],
    user: ["<|im_start|>user\n", "<|im_end|>\n"],
    assistant: ["<|im_start|>assistant\n", "<|im_end|>\n"],
    prompt: "<|im_start|>assistant\n",
};

fn shape(template: ChatTemplate) -> Option<Shape> {
    Some(match template {
        ChatTemplate::Llama3 => Shape {
            markers: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
            system: ["<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"],
            user: ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"],
            assistant: ["<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"],
            prompt: "<|start_header_id|>assistant<|end_header_id|>\n\n",
        },
        ChatTemplate::ChatMl | ChatTemplate::Qwen3 => CHATML,
        ChatTemplate::SmolLm3 => Shape { system: ["<|im_start|>system\n", ""], ..CHATML },
        ChatTemplate::Granite => Shape {
            markers: &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"],
            system: ["<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"],
            user: ["<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"],
            assistant: ["<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"],
            prompt: "<|start_of_role|>assistant<|end_of_role|>",
        },
        ChatTemplate::Gemma => Shape {
            markers: &["<start_of_turn>", "<end_of_turn>"],
            system: ["", "\n\n"],
            user: ["<start_of_turn>user\n", "<end_of_turn>\n"],
            assistant: ["<start_of_turn>model\n", "<end_of_turn>\n"],
            prompt: "<start_of_turn>model\n",
        },
        ChatTemplate::Phi3 => Shape {
            markers: &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
            system: ["<|system|>\n", "<|end|>\n"],
            user: ["<|user|>\n", "<|end|>\n"],
            assistant: ["<|assistant|>\n", "<|end|>\n"],
            prompt: "<|assistant|>\n",
        },
        ChatTemplate::Phi4 => Shape {
            markers: &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
            system: ["<|system|>", "<|end|>"],
            user: ["<|user|>", "<|end|>"],
            assistant: ["<|assistant|>", "<|end|>"],
            prompt: "<|assistant|>",
        },
        ChatTemplate::Harmony => Shape {
            markers: &["<|start|>", "<|channel|>", "<|message|>", "<|end|>"],
            system: ["<|start|>developer<|message|># Instructions\n\n", "<|end|>"],
            user: ["<|start|>user<|message|>", "<|end|>"],
            assistant: ["<|start|>assistant<|channel|>final<|message|>", "<|end|>"],
            prompt: "<|start|>assistant",
        },
        _ => return None,
    })
}

/// A template of markers with the texts of a checkpoint.
pub struct ChatScript {
    template: ChatTemplate,
    shape: Shape,
    texts: ChatTexts,
    /// The options in use.
    pub options: ChatOptions,
}

impl ChatScript {
    /// `None` if `template` is not of this kind.
    pub fn new(template: ChatTemplate, texts: ChatTexts, options: ChatOptions) -> Option<Self> {
        Some(ChatScript { template, shape: shape(template)?, texts, options })
    }

    /// The special tokens that the template names; the last one ends an answer.
    pub fn markers(&self) -> &'static [&'static str] {
        self.shape.markers
    }

    /// Texts around the system's text, without the checkpoint's own; `None` if the system's text joins the first turn.
    pub fn around_system(&self) -> Option<[&'static str; 2]> {
        (self.template != ChatTemplate::Gemma).then_some(self.shape.system)
    }

    /// Whether the checkpoint's head is a turn of its own, before the system's.
    pub fn has_head_apart(&self) -> bool {
        self.template == ChatTemplate::Harmony
    }

    /// Whether the system's text has no turn of its own, but joins the user's.
    pub fn joins_system(template: ChatTemplate) -> bool {
        matches!(
            template,
            ChatTemplate::Gemma
                | ChatTemplate::Llama2
                | ChatTemplate::MistralV1
                | ChatTemplate::MistralV3
                | ChatTemplate::None
        )
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
        self.write_system(out, system, texts, has_tools);
        // Gemma's system text joins the first user text.
        let mut joined = system.filter(|_| self.template == ChatTemplate::Gemma);
        for (index, turn) in turns.iter().enumerate() {
            self.write_question(out, turn, &mut joined);
            match turn.answer {
                None if index + 1 < turns.len() => {}
                None => out.markup(&[self.shape.prompt, &texts.prompt].concat()),
                Some(answer) => self.write_answer(out, answer, texts),
            }
        }
        if turns.is_empty() {
            out.markup(&[self.shape.prompt, &texts.prompt].concat());
        }
    }

    /// Writes the question of a turn, with the texts around it.
    fn write_question(&self, out: &mut impl Sink, turn: &ChatTurn<'_>, joined: &mut Option<&str>) {
        let [open, close] = match turn.kind {
            TurnKind::Unasked => return,
            TurnKind::Result if self.template == ChatTemplate::Llama3 => {
                [LLAMA3_RESULT, self.shape.user[1]]
            }
            // The checkpoint's tail belongs only to the first system text.
            TurnKind::System if self.template == ChatTemplate::SmolLm3 => CHATML.system,
            TurnKind::System if self.template != ChatTemplate::Gemma => self.shape.system,
            _ => self.shape.user,
        };
        out.markup(open);
        if let TurnKind::WithTools(tools) = turn.kind {
            out.content(tools);
        }
        if let Some(system) = joined.take() {
            out.content(system);
            out.markup(self.shape.system[1]);
        }
        out.content(match turn.kind {
            TurnKind::Result => turn.user,
            _ => self.content(turn.user),
        });
        out.markup(close);
    }

    fn write_answer(&self, out: &mut impl Sink, answer: ChatAnswer<'_>, texts: &SystemTexts) {
        let [open, close] = self.shape.assistant;
        match answer {
            ChatAnswer::Text(text) => {
                // Only SmolLM3 keeps the mark that there were no thoughts.
                let is_kept = self.template == ChatTemplate::SmolLm3;
                let prompt = if is_kept { texts.prompt.as_str() } else { "" };
                out.markup(&[open, prompt].concat());
                out.content(self.answer(text));
                out.markup(close);
            }
            ChatAnswer::Calls(text) => {
                out.markup(open);
                out.content(text);
                out.markup(close);
            }
            ChatAnswer::Ids(ids) => {
                out.markup(self.shape.prompt);
                out.ids(ids);
                let end = self.shape.markers.last().copied().unwrap_or_default();
                out.markup(close.trim_start_matches(end));
            }
            // There is nothing to continue: the model begins its own answer.
            ChatAnswer::Begun("") => {
                out.markup(&[self.shape.prompt, &texts.prompt].concat());
            }
            // The begun answer comes after thoughts.
            ChatAnswer::Begun(text) => {
                out.markup(&[open, &self.texts.quiet.prompt].concat());
                out.content(text);
            }
        }
    }

    /// Texts of the checkpoint; SmolLM3 lets the system's text decide whether it may think.
    fn texts(&self, system: Option<&str>) -> &SystemTexts {
        let decides = self.template == ChatTemplate::SmolLm3;
        let says = |word| decides && system.is_some_and(|text| text.contains(word));
        let thinks = !says("/no_think") && (says("/think") || self.options.thinks != Some(false));
        if thinks { &self.texts.thinking } else { &self.texts.quiet }
    }

    /// Whether an answer begins inside thoughts.
    pub(super) fn begins_thinking(&self, system: Option<&str>) -> bool {
        self.texts(system).prompt.trim_end().ends_with("<think>")
    }

    fn write_system(
        &self,
        out: &mut impl Sink,
        system: Option<&str>,
        texts: &SystemTexts,
        has_tools: bool,
    ) {
        let mut head = self.filled(&texts.head);
        if has_tools && self.template == ChatTemplate::Llama3 {
            head.insert_str(0, "Environment: ipython\n");
        }
        let is_apart = self.has_head_apart();
        if is_apart {
            out.markup(&head);
        }
        let head = if is_apart { "" } else { head.as_str() };
        let text = system.and_then(|text| self.system(text, texts));
        let [open, close] = self.shape.system;
        match (text, &texts.default) {
            _ if self.template == ChatTemplate::Gemma => {}
            (None, None) if !has_tools => {}
            (Some(text), _)
                if self.template == ChatTemplate::SmolLm3 && text.contains(OVERRIDE) =>
            {
                out.markup(open);
                out.content(trim_end(&text.replace(OVERRIDE, "")));
                out.markup(CHATML.system[1]);
            }
            (text, default) => {
                out.markup(&[open, head].concat());
                match (text, default) {
                    (Some(text), _) => out.content(&text),
                    (None, default) => {
                        out.markup(&self.filled(default.as_deref().unwrap_or_default()))
                    }
                }
                out.markup(&[&self.filled(&texts.tail), close].concat());
            }
        }
    }

    /// The system's text as the template writes it; `None` where it is left out.
    fn system<'t>(&self, text: &'t str, texts: &SystemTexts) -> Option<Cow<'t, str>> {
        let text = match self.template {
            ChatTemplate::SmolLm3 => {
                let text = text.replace("/no_think", "").replace("/think", "");
                Cow::Owned(trim_end(&text).to_owned())
            }
            _ => Cow::Borrowed(if self.trims() { trim(text) } else { text }),
        };
        let needs_text = texts.skips_empty || self.template == ChatTemplate::SmolLm3;
        (!needs_text || !text.is_empty()).then_some(text)
    }

    fn trims(&self) -> bool {
        self.template == ChatTemplate::Llama3
    }

    fn content<'t>(&self, text: &'t str) -> &'t str {
        let trims = self.trims() || self.template == ChatTemplate::Gemma;
        if trims { trim(text) } else { text }
    }

    fn answer<'t>(&self, text: &'t str) -> &'t str {
        match self.template {
            ChatTemplate::Qwen3 => match text.rsplit_once("</think>") {
                Some((_, text)) => text.trim_start_matches('\n'),
                None => text,
            },
            ChatTemplate::SmolLm3 => text.trim_start_matches('\n'),
            _ => self.content(text),
        }
    }

    /// `text` with date and effort filled in. Files with other placeholders are refused when they are read.
    fn filled(&self, text: &str) -> String {
        filled(text, self.options.today, self.options.effort()).unwrap_or_default()
    }
}

/// Replaces the user's header before a tool's result.
const LLAMA3_RESULT: &str = "<|start_header_id|>ipython<|end_header_id|>\n\n";

/// With this in the system's text, SmolLM3's template adds nothing to that text.
const OVERRIDE: &str = "/system_override";

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
