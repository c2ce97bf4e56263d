//! Separates a model's thoughts from its answer while the text comes.

use std::borrow::Cow;

use super::families::{Thinks, family};
use crate::format::ChatTemplate;

/// How a model marks its thoughts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// Between two tags, before the answer.
    Tags(Tags),
    /// In all channels but the final one: gpt-oss. Seen only in text that names its control tokens.
    Channels,
}

/// The tags around thoughts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Begins thoughts.
    pub open: Cow<'static, str>,
    /// Ends them.
    pub close: Cow<'static, str>,
}

impl Tags {
    /// `<think>` and `</think>`, as most families have them.
    pub const THINK: Tags = Tags::of(["<think>", "</think>"]);

    pub(super) const fn of([open, close]: [&'static str; 2]) -> Tags {
        Tags { open: Cow::Borrowed(open), close: Cow::Borrowed(close) }
    }
}

impl Thoughts {
    /// How a model with this template marks its thoughts; `None` if it has none.
    pub fn of(template: ChatTemplate) -> Option<Thoughts> {
        match family(template)?.answer.thoughts {
            Thinks::InTags => Some(Thoughts::Tags(Tags::THINK)),
            Thinks::InChannels => Some(Thoughts::Channels),
            Thinks::Never => None,
        }
    }

    /// The tags around thoughts, if there are any.
    pub fn tags(&self) -> Option<&Tags> {
        match self {
            Thoughts::Tags(tags) => Some(tags),
            Thoughts::Channels => None,
        }
    }

    /// Text that ends thoughts in the middle of a sentence.
    pub(super) fn closing(&self) -> String {
        match self {
            Thoughts::Tags(tags) => format!("\n{}\n\n", tags.close),
            Thoughts::Channels => FINAL.to_owned(),
        }
    }

    /// The texts that begin and end thoughts.
    fn signs(&self) -> impl Iterator<Item = &str> {
        let tags = self.tags().into_iter().flat_map(|Tags { open, close }| [&**open, &**close]);
        tags.chain(CHANNELS.into_iter().filter(|_| *self == Thoughts::Channels))
    }
}

/// Kind of a stretch of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Thoughts.
    Thought,
    /// A tag around thoughts.
    Tag,
    /// The answer.
    Answer,
    /// Names of channels, and other signs that are no text.
    Sign,
    /// The name of a function, to which a message goes. [`Part::Arguments`] follow.
    Function,
    /// A message to a function.
    Arguments,
}

const CHANNELS: [&str; 6] =
    ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|return|>", "<|call|>"];

/// Between thoughts in a channel and an answer in the final one.
const FINAL: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";
/// Before the name of a function in a header.
const FUNCTIONS: &str = " to=functions.";

/// Divides a text that comes in pieces. Text that may be the start of a sign is held back.
///
/// Thoughts between tags come before the answer. Once it has begun, a tag is text like any other.
#[derive(Clone, Debug)]
pub struct ThoughtFilter {
    kind: Thoughts,
    held: String,
    part: Part,
    /// The header of the current channel.
    channel: String,
    /// The function to which the current message goes.
    function: Option<String>,
    /// Whether line breaks that come next belong to the thoughts.
    drops_newlines: bool,
    /// Whether thoughts between tags may begin: nothing of the answer has come.
    may_think: bool,
}

impl ThoughtFilter {
    /// A filter at the start of an answer, or of thoughts before it.
    pub fn new(kind: Thoughts, begins_thinking: bool) -> ThoughtFilter {
        let part = match kind {
            Thoughts::Tags(_) if begins_thinking => Part::Thought,
            Thoughts::Tags(_) => Part::Answer,
            Thoughts::Channels => Part::Sign,
        };
        let (held, channel) = (String::new(), String::new());
        let may_think = kind != Thoughts::Channels;
        let (function, drops_newlines) = (None, false);
        ThoughtFilter { kind, held, part, channel, function, drops_newlines, may_think }
    }

    /// A filter in the middle of an answer, after which no thoughts come between tags.
    pub fn within_answer(kind: Thoughts) -> ThoughtFilter {
        ThoughtFilter { may_think: false, part: Part::Answer, ..ThoughtFilter::new(kind, false) }
    }

    /// Kind of the text that comes next.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Takes more text, and calls `tell` with the parts whose kind is certain.
    pub fn push(&mut self, text: &str, tell: &mut dyn FnMut(Part, &str)) {
        self.held.push_str(text);
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        while let Some((at, len)) = self.next_sign(rest) {
            if self.is_answer_begun(&rest[..at]) {
                break;
            }
            self.tell_before_sign(&rest[..at], tell);
            self.take_sign(&rest[at..at + len], tell);
            rest = &rest[at + len..];
        }
        let open = match self.is_before_tags() {
            true => self.possible_start_len(rest),
            false => self.possible_sign_len(rest),
        };
        let sure = rest.len() - open;
        self.tell(&rest[..sure], tell);
        self.held.push_str(&rest[sure..]);
    }

    /// Calls `tell` with the text that was held back, at the end of the text.
    pub fn flush(&mut self, tell: &mut dyn FnMut(Part, &str)) {
        let held = std::mem::take(&mut self.held);
        self.tell(&held, tell);
    }

    /// Where the next sign stands, and its length.
    fn next_sign(&self, text: &str) -> Option<(usize, usize)> {
        let starts = |c: char| self.kind.signs().any(|sign| sign.starts_with(c));
        let sign_at = |at: usize| self.kind.signs().find(|sign| text[at..].starts_with(*sign));
        text.match_indices(starts).find_map(|(at, _)| Some((at, sign_at(at)?.len())))
    }

    /// Length of the end of `text` that may be the start of a sign.
    fn possible_sign_len(&self, text: &str) -> usize {
        let of_one = |sign: &str| {
            let mut lens = sign.char_indices().map(|(at, _)| at).rev();
            lens.find(|&n| text.ends_with(&sign[..n])).unwrap_or(0)
        };
        self.kind.signs().map(of_one).max().unwrap_or(0)
    }

    /// Whether this is text between tags that is no thought.
    fn is_before_tags(&self) -> bool {
        self.kind != Thoughts::Channels && self.part == Part::Answer
    }

    /// Whether a sign behind `before` is text, because an answer has begun.
    fn is_answer_begun(&mut self, before: &str) -> bool {
        if self.is_before_tags() {
            self.may_think &= before.trim_start().is_empty();
            return !self.may_think;
        }
        false
    }

    /// Length of a text between tags that may still be no answer: white space, and the possible start of a tag.
    fn possible_start_len(&mut self, text: &str) -> usize {
        let start = text.trim_start();
        self.may_think &= self.kind.signs().any(|tag| tag.starts_with(start));
        if self.may_think { text.len() } else { 0 }
    }

    fn take_sign(&mut self, sign: &str, tell: &mut dyn FnMut(Part, &str)) {
        match &self.kind {
            Thoughts::Channels => self.take_channel_sign(sign, tell),
            Thoughts::Tags(tags) => {
                let opens = sign == tags.open;
                self.part = if opens { Part::Thought } else { Part::Answer };
                self.drops_newlines |= !opens;
                tell(Part::Tag, sign);
            }
        }
    }

    fn take_channel_sign(&mut self, sign: &str, tell: &mut dyn FnMut(Part, &str)) {
        match sign {
            "<|message|>" => {
                self.find_function();
                let is_final = self.channel.trim_start().starts_with("final");
                self.part = match self.function.take() {
                    Some(function) => {
                        tell(Part::Function, &function);
                        Part::Arguments
                    }
                    None if is_final => Part::Answer,
                    None => Part::Thought,
                };
            }
            _ => {
                if self.part == Part::Thought {
                    tell(Part::Thought, "\n");
                }
                match sign {
                    "<|channel|>" => self.find_function(),
                    _ => self.function = None,
                }
                self.part = Part::Sign;
                self.channel.clear();
            }
        }
    }

    /// Takes the name of a function from a header: it stands before or behind the name of the channel.
    fn find_function(&mut self) {
        let name =
            self.channel.split(FUNCTIONS).nth(1).and_then(|name| name.split([' ', '<']).next());
        let name = name.filter(|name| self.part == Part::Sign && !name.is_empty());
        self.function = name.map(str::to_owned).or(self.function.take());
    }

    /// Calls `tell` with the text before a sign. White space before a tag, at a text's start or after thoughts, belongs
    /// to the thoughts.
    fn tell_before_sign(&mut self, text: &str, tell: &mut dyn FnMut(Part, &str)) {
        match self.is_before_tags() {
            true if text.is_empty() => {}
            true => tell(Part::Thought, text),
            false => self.tell(text, tell),
        }
    }

    fn tell(&mut self, text: &str, tell: &mut dyn FnMut(Part, &str)) {
        if self.part == Part::Sign {
            self.channel.push_str(text);
        }
        let mut text = text;
        if self.drops_newlines && self.part == Part::Answer {
            let answer = text.trim_start_matches('\n');
            let (newlines, _) = text.split_at(text.len() - answer.len());
            if !newlines.is_empty() {
                tell(Part::Thought, newlines);
            }
            self.drops_newlines = answer.is_empty();
            text = answer;
        }
        if !text.is_empty() {
            tell(self.part, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags() -> Thoughts {
        Thoughts::Tags(Tags::THINK)
    }

    /// The parts of `text` that are told, with it cut after every `step` characters.
    fn parts(kind: Thoughts, text: &str, step: usize) -> [String; 2] {
        let mut filter = ThoughtFilter::new(kind, false);
        let mut parts = [String::new(), String::new()];
        let mut tell = |part, text: &str| match part {
            Part::Thought | Part::Tag => parts[0].push_str(text),
            Part::Answer => parts[1].push_str(text),
            Part::Sign | Part::Function | Part::Arguments => {}
        };
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(step) {
            filter.push(&piece.iter().collect::<String>(), &mut tell);
        }
        filter.flush(&mut tell);
        parts
    }

    #[test]
    fn thoughts_end_at_their_tag_however_the_text_comes() {
        let text = "<think>\na < b, <thin\n</think>\n\nYes, <b> é.\n<th";
        for step in [1, 2, 3, 7, 100] {
            let [thought, answer] = parts(tags(), text, step);
            assert_eq!(thought, "<think>\na < b, <thin\n</think>\n\n");
            assert_eq!(answer, "Yes, <b> é.\n<th");
        }
        assert_eq!(parts(tags(), "\n<<think>", 1)[1], "\n<<think>");
        assert_eq!(parts(tags(), "plain", 2), ["".to_owned(), "plain".to_owned()]);
    }

    #[test]
    fn an_answer_keeps_the_tags_that_it_speaks_of() {
        for (thought, answer) in [
            ("", "{\"a\": \"x <think> y </think> z\"}"),
            ("<think>\na\n</think>\n\n", "Write <think>\n\nand </think>\n\n, or <thi"),
            (" \n<think>a</think>\n<think>b</think>\n", "x </think> <think>c</think>"),
            ("</think>\n\n", "x"),
            ("<think>only", ""),
        ] {
            let text = [thought, answer].concat();
            for step in [1, 2, 3, 7, 100] {
                assert_eq!(parts(tags(), &text, step), [thought, answer], "{step}");
            }
        }
        let mut filter = ThoughtFilter::within_answer(tags());
        let mut told = Vec::new();
        filter.push("<think>x</think>", &mut |part, text| told.push((part, text.to_owned())));
        assert_eq!(told, [(Part::Answer, "<think>x</think>".to_owned())]);
    }

    #[test]
    fn final_channel_is_the_answer() {
        let text = "<|channel|>analysis<|message|>Hm. <|x|><|end|><|start|>assistant<|channel|>final\
            <|message|>Hello <b>.<|return|>";
        for step in [1, 2, 5, 100] {
            let [thought, answer] = parts(Thoughts::Channels, text, step);
            assert_eq!((thought.as_str(), answer.as_str()), ("Hm. <|x|>\n", "Hello <b>."));
        }
    }

    #[test]
    fn a_message_to_a_function_has_its_name_before_or_behind_the_channel() {
        for header in [
            " to=functions.f<|channel|>commentary json",
            " to=functions.f<|constrain|>json",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary \
             to=functions.f <|constrain|>json",
        ] {
            let text = format!("{header}<|message|>{{\"a\": 1}}<|call|>");
            for step in [1, 3, 100] {
                let mut filter = ThoughtFilter::new(Thoughts::Channels, false);
                let mut told = [String::new(), String::new(), String::new()];
                let mut tell = |part, text: &str| match part {
                    Part::Function => told[0] += text,
                    Part::Arguments => told[1] += text,
                    Part::Answer => told[2] += text,
                    Part::Thought | Part::Tag | Part::Sign => {}
                };
                let chars: Vec<char> = text.chars().collect();
                for piece in chars.chunks(step) {
                    filter.push(&piece.iter().collect::<String>(), &mut tell);
                }
                filter.flush(&mut tell);
                assert_eq!(told, ["f", "{\"a\": 1}", ""], "{text}");
            }
        }
    }

    #[test]
    fn a_megabyte_of_beginnings_is_divided_in_time() {
        for kind in [tags(), Thoughts::Channels] {
            let text = ["<", "<think", "<|", "<|end|>"].concat().repeat(1 << 16);
            let whole = parts(kind.clone(), &text, text.len());
            assert_eq!(parts(kind, &text, 3), whole);
        }
    }
}
