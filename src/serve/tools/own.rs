//! How a checkpoint's own template speaks of tools, learned from what it writes.
//!
//! The template writes a few conversations with calls of made-up tools. The text around the names and arguments are the
//! marks of its calls. They are taken only if the calls are read back with them.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::call::{ToolCall, written};
use super::families::{CHANNELS, GRANITE, HERMES, LFM2};
use super::filter::{CallFilter, joined};
use super::marks::{Arguments, ID, Marks, Pairs, Values};
use crate::tokenizer::{ChatFormat, Thoughts, Tokenizer};

/// Words of the made-up user and model.
const ASKED: &str = "Askq.";
const SAID: &str = "Saidq.";
/// The made-up tools, and ids of their calls.
const TOOLS: [&str; 2] = ["fnq", "gnq"];
const IDS: [&str; 2] = ["a1b2c3d4e", "f6g7h8i9j"];
/// Their parameters.
const KEYS: [&str; 2] = ["aq", "bq"];
/// Names of templates' variables for the definitions of tools; the second one is SmolLM3's.
const VARIABLES: [&str; 2] = ["tools", "xml_tools"];
/// Longest mark. What is longer has other things in it.
const MARK_BYTES_MAX: usize = 256;

/// How the checkpoint's own template speaks of tools.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::serve) struct OwnWords {
    pub(super) marks: Arc<Marks>,
    calls: Calls,
    /// The template's name for the definitions of tools.
    variable: &'static str,
}

/// How the template gets calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    /// With arguments that are objects.
    Objects,
    /// With arguments that are text of JSON.
    Texts,
    /// In an answer's text: the template only knows definitions.
    Spoken,
}

impl OwnWords {
    /// Learns from what the template of `chat` writes; `None` if it has no place for tools, or if the calls that it
    /// writes cannot be read.
    pub(in crate::serve) fn learn(chat: &ChatFormat, tokenizer: &Tokenizer) -> Option<OwnWords> {
        let definitions = TOOLS.map(definition);
        let written = |variable: &str, messages: &[Value], begins_answer: bool| {
            let variables = [
                (variable.to_owned(), definitions.to_vec().into()),
                ("add_generation_prompt".to_owned(), begins_answer.into()),
            ];
            chat.trial(messages, &variables)
        };
        let write = |messages: &[Value], begins_answer: bool| {
            written(VARIABLES[0], messages, begins_answer)
        };
        let names =
            |text: &str| tokenizer.controls(text).into_iter().map(|(name, _)| name).collect();
        let name = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let stops = chat.stop_ids().iter().copied().chain(chat.end_of_answer()).map(name);
        let stops = stops.filter(|name| !name.is_empty()).collect();
        let in_channels = chat.thoughts() == Some(Thoughts::Channels);
        let mut probe = Probe { write: &write, names: &names, stops, takes_text: false };
        let learned = [Calls::Objects, Calls::Texts].into_iter().find_map(|calls| {
            probe.takes_text = calls == Calls::Texts;
            let marks = match in_channels {
                true => probe.writes_to_functions().then_some(CHANNELS),
                false => probe.marks(),
            };
            Some((marks?, calls))
        });
        if let Some((marks, calls)) = learned {
            return Some(OwnWords { marks: Arc::new(marks), calls, variable: VARIABLES[0] });
        }
        let asked = [json!({"role": "user", "content": ASKED})];
        VARIABLES.into_iter().filter(|_| !in_channels).find_map(|variable| {
            let text = written(variable, &asked, true).filter(|text| text.contains(TOOLS[0]))?;
            let marks = Arc::new(told(&text, tokenizer)?);
            Some(OwnWords { marks, calls: Calls::Spoken, variable })
        })
    }

    /// The template's variable for the definitions of tools.
    pub(in crate::serve) fn variable(&self) -> &'static str {
        self.variable
    }

    /// An answer with calls as the template gets it.
    pub(in crate::serve) fn answer(&self, said: &str, calls: &[ToolCall]) -> Value {
        let mut answer = json!({"role": "assistant", "content": said});
        match self.calls {
            Calls::Spoken => {
                let gap = if said.is_empty() { "" } else { "\n" };
                answer["content"] = format!("{said}{gap}{}", written(&self.marks, calls)).into();
            }
            Calls::Objects | Calls::Texts => {
                let takes_text = self.calls == Calls::Texts;
                let one =
                    |call: &ToolCall| object_of(&call.id, &call.name, &call.arguments, takes_text);
                answer["tool_calls"] = calls.iter().map(one).collect();
            }
        }
        answer
    }
}

/// The marks of calls in a template that only knows definitions: those of a family whose token or word for calls there
/// is in the vocabulary, or in the `text` of the definitions.
fn told(text: &str, tokenizer: &Tokenizer) -> Option<Marks> {
    let has = |name: &str| tokenizer.special(name).is_some();
    if has(&LFM2.sign) {
        return Some(LFM2);
    }
    if has(&GRANITE.sign) {
        let close = "<|/tool_call|>";
        let end = if has(close) { format!("{}{close}", GRANITE.end).into() } else { GRANITE.end };
        return Some(Marks { end, ..GRANITE });
    }
    let shown = text.split_whitespace().collect::<String>();
    shown.contains("<tool_call>{\"name\":").then_some(HERMES)
}

/// The definition of a made-up tool.
fn definition(name: &str) -> Value {
    let parameter = json!({"type": "string", "description": "A word."});
    let parameters = json!({"type": "object", "properties": {KEYS[0]: parameter, KEYS[1]: parameter},
        "required": KEYS});
    let function = json!({"name": name, "description": "Does a thing.", "parameters": parameters});
    json!({"type": "function", "function": function})
}

fn object_of(id: &str, name: &str, arguments: &str, as_text: bool) -> Value {
    let arguments: Value = match as_text {
        true => arguments.into(),
        false => serde_json::from_str(arguments).unwrap_or_default(),
    };
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Writes conversations in a template.
struct Probe<'a> {
    /// The template's text for messages, with the start of an answer behind them or not; `None` if it refuses.
    write: &'a dyn Fn(&[Value], bool) -> Option<String>,
    /// Where the names of special tokens stand in a text.
    names: &'a dyn Fn(&str) -> Vec<Range<usize>>,
    /// Names of the tokens that end answers.
    stops: Vec<String>,
    takes_text: bool,
}

/// Where a call stands in a text.
struct Found {
    name: Range<usize>,
    arguments: Range<usize>,
    is_json: bool,
}

impl Probe<'_> {
    /// The template's text behind the question: an answer of the text `said` with calls of the first `n` tools.
    fn answer(&self, said: &str, n: usize, arguments: &Value) -> Option<String> {
        let call = |(name, id): (&&str, &&str)| {
            object_of(id, name, &arguments.to_string(), self.takes_text)
        };
        let mut answer = json!({"role": "assistant", "content": said});
        if n > 0 {
            answer["tool_calls"] = TOOLS.iter().zip(&IDS).take(n).map(call).collect();
        }
        let text = (self.write)(&[json!({"role": "user", "content": ASKED}), answer], false)?;
        let at = text.rfind(ASKED)? + ASKED.len();
        Some(text[at..].to_owned())
    }

    /// Whether calls are messages to functions.
    fn writes_to_functions(&self) -> bool {
        let arguments = json!({KEYS[0]: 7001, KEYS[1]: 7002});
        let text = self.answer("", 1, &arguments).unwrap_or_default();
        let name = format!("{}{}", CHANNELS.sign, TOOLS[0]);
        text.contains(&name)
            && find(&text, 0, TOOLS[0], &arguments).is_some_and(|call| call.is_json)
    }

    fn marks(&self) -> Option<Marks> {
        let arguments = json!({KEYS[0]: 7001, KEYS[1]: 7002});
        let one = self.answer("", 1, &arguments).filter(|one| !one.contains(ID))?;
        let call = find(&one, 0, TOOLS[0], &arguments)?;
        let mut open = with_ids(&self.open(&one[..call.name.start], &arguments)?);
        let mut middle = with_ids(&one[call.name.end..call.arguments.start]);
        let mut end = with_ids(self.end(&one[call.arguments.end..]));
        let two = self.answer("", 2, &arguments);
        let mut next =
            two.as_ref().and_then(|two| self.next(two, &arguments)).map(|next| with_ids(&next));
        // Several calls may be several turns, which do not follow each other in one answer.
        next = next.filter(|next| !self.stops.iter().any(|stop| next.contains(stop)));
        next = next.filter(|next| !next.trim().is_empty());
        let mut written = Arguments::Json;
        if !call.is_json {
            let (pairs, opens) = self.pairs(&one[call.name.end..])?;
            middle = with_ids(opens.strip_suffix(&*pairs.open)?);
            end = end.strip_prefix(&*pairs.close)?.to_owned();
            next = next.and_then(|next| Some(next.strip_prefix(&*pairs.close)?.to_owned()));
            written = Arguments::Pairs(pairs);
        }
        let is_readable = [&open, &middle, &end].into_iter().chain(&next).all(|mark| {
            let mut foreign = self.stops.iter().map(String::as_str).chain(TOOLS).chain(KEYS);
            mark.len() <= MARK_BYTES_MAX && !foreign.any(|name| mark.contains(name))
        });
        if !is_readable || (end.trim().is_empty() && !call.is_json) {
            return None;
        }
        let tail = taken_tail(&mut end, &mut next);
        let is_quoted = open.ends_with('"') && middle.starts_with('"');
        if is_quoted {
            // A name is a JSON string.
            open.pop();
            middle.remove(0);
            next = next.and_then(|next| Some(next.strip_suffix('"')?.to_owned()));
        }
        let (sign, is_whole) = self.sign(&open);
        let mut marks = Marks {
            sign: sign.to_owned().into(),
            is_whole,
            head: open[sign.len()..].to_owned().into(),
            quotes_names: is_quoted,
            middle: middle.into(),
            arguments: written,
            tail: tail.map(Into::into),
            next: next.map(Into::into),
            end: end.into(),
        };
        if !two.is_some_and(|two| self.reads(&marks, &two, &TOOLS, &arguments)) {
            marks.next = None;
        }
        self.reads(&marks, &one, &TOOLS[..1], &arguments).then_some(marks)
    }

    /// The text with which a call opens, from the text between the question and the call's name.
    fn open(&self, before: &str, arguments: &Value) -> Option<String> {
        let spoken = self.answer(SAID, 1, arguments).unwrap_or_default();
        let behind = find(&spoken, 0, TOOLS[0], arguments).and_then(|call| {
            // Where the model also speaks, the call stands behind what it says.
            let behind =
                &spoken[spoken[..call.name.start].rfind(SAID)? + SAID.len()..call.name.start];
            Some(self.next_border(before, before.len() - same_end(before, behind)))
        });
        let question = json!({"role": "user", "content": ASKED});
        let prompt = (self.write)(&[question], true).unwrap_or_default();
        let start = prompt.rfind(ASKED).map(|at| {
            let prompt = &prompt[at + ASKED.len()..];
            self.last_border(before, same_start(before, prompt))
        });
        let open = before[behind.max(start)?..].trim_start();
        (!open.is_empty()).then(|| open.to_owned())
    }

    /// The text with which a call ends, from the text behind its arguments.
    fn end<'t>(&self, after: &'t str) -> &'t str {
        let said = self.answer(SAID, 0, &Value::Null).unwrap_or_default();
        let behind = said.rfind(SAID).map_or("", |at| &said[at + SAID.len()..]);
        let cut = self.next_border(after, after.len() - same_end(after, behind));
        let mut end = &after[..cut];
        for stop in &self.stops {
            end = end.split(stop.as_str()).next().unwrap_or_default();
        }
        end.trim_end()
    }

    /// The text between the arguments of a call and the name of the next one.
    fn next(&self, two: &str, arguments: &Value) -> Option<String> {
        let first = find(two, 0, TOOLS[0], arguments)?;
        let second = find(two, first.arguments.end, TOOLS[1], arguments)?;
        Some(two[first.arguments.end..second.name.start].to_owned())
    }

    /// The text around arguments that come one by one, and the text before the first one of them. `after` begins behind
    /// the name of a call with numbers as arguments.
    fn pairs(&self, after: &str) -> Option<(Pairs, String)> {
        let numbers = around(after, ["7001", "7002"])?;
        let words = ["Wordq", "Textq"];
        let strings = json!({KEYS[0]: words[0], KEYS[1]: words[1]});
        let spoken = self.answer("", 1, &strings)?;
        let at = spoken.find(words[0])?;
        let name = spoken[..at].rfind(TOOLS[0])? + TOOLS[0].len();
        let strings = around(&spoken[name..], words)?;
        let [open, equals, between, after] = numbers;
        let quote = strings[1]
            .strip_prefix(equals)
            .filter(|quote| !quote.is_empty() && strings[2].strip_prefix(*quote) == Some(between));
        if let Some(quote) = quote {
            let values = match quote {
                "'" | "\"" => Values::Python,
                mark => Values::Marked(mark.to_owned()),
            };
            let pairs = Pairs {
                open: "".into(),
                equals: [equals.to_owned().into(), equals.to_owned().into()],
                close: "".into(),
                comma: between.to_owned().into(),
                values,
            };
            return Some((pairs, open.to_owned()));
        }
        let same = &open[open.len() - same_end(open, between)..];
        let key = &same[same.rfind('<').unwrap_or(0)..];
        let rest = between.strip_suffix(key)?;
        let (close, comma) = rest.split_at(same_start(rest, after));
        let pairs = Pairs {
            open: key.to_owned().into(),
            equals: [strings[1].to_owned().into(), equals.to_owned().into()],
            close: close.to_owned().into(),
            comma: comma.to_owned().into(),
            values: Values::Plain,
        };
        (!close.trim().is_empty()).then(|| (pairs, open.to_owned()))
    }

    /// The part of a call's opening text that shows that a call comes, and whether it does so only at the start of an
    /// answer.
    fn sign<'t>(&self, open: &'t str) -> (&'t str, bool) {
        let token = (self.names)(open).first().filter(|name| name.start == 0).map(|name| name.end);
        let tag = || open.starts_with('<').then(|| open.find('>').map(|at| at + 1));
        let all = open.trim_end().len();
        match (token, tag()) {
            (Some(n), _) => (&open[..n], false),
            (None, Some(n)) => (&open[..n.unwrap_or(all)], false),
            (None, None) => (&open[..all], true),
        }
    }

    /// Whether the calls in `text` are read back with `marks`.
    fn reads(&self, marks: &Marks, text: &str, names: &[&str], arguments: &Value) -> bool {
        let Some(call) = find(text, 0, names[0], arguments) else { return false };
        let Some(start) = text[..call.name.start].rfind(&*marks.sign) else { return false };
        let schema =
            json!({"properties": {KEYS[0]: {"type": "integer"}, KEYS[1]: {"type": "integer"}}});
        let schemas = names.iter().map(|name| ((*name).to_owned(), schema.clone())).collect();
        let mut filter = CallFilter::new(Arc::new(marks.clone()), schemas, true);
        let (mut rest, mut pieces) = (String::new(), Vec::new());
        filter.push(&text[start..], &mut rest, &mut pieces);
        filter.flush(true, &mut rest, &mut pieces);
        let calls = joined(&pieces);
        calls.len() == names.len()
            && calls.iter().zip(names).all(|(call, name)| {
                call.name == *name
                    && serde_json::from_str::<Value>(&call.arguments).ok().as_ref()
                        == Some(arguments)
            })
    }

    /// `at`, or the end of the name or tag that `at` is in.
    fn next_border(&self, text: &str, at: usize) -> usize {
        let names = (self.names)(text).into_iter();
        let tags = tags(text);
        let within = names.chain(tags).filter(|name| name.start < at && at < name.end);
        within.map(|name| name.end).max().unwrap_or(at)
    }

    /// `at`, or the start of the name or tag that `at` is in.
    fn last_border(&self, text: &str, at: usize) -> usize {
        let names = (self.names)(text).into_iter();
        let tags = tags(text);
        let within = names.chain(tags).filter(|name| name.start < at && at < name.end);
        within.map(|name| name.start).min().unwrap_or(at)
    }
}

/// Where tags stand in a text.
fn tags(text: &str) -> Vec<Range<usize>> {
    let end = |at: usize| text[at..].find(['>', '\n']).map(|n| at..at + n + 1);
    text.match_indices('<').filter_map(|(at, _)| end(at)).collect()
}

/// The call of the tool `name` with these arguments, behind `from`.
fn find(text: &str, from: usize, name: &str, arguments: &Value) -> Option<Found> {
    let json = text[from..].match_indices('{').find_map(|(at, _)| {
        let at = from + at;
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        let is_it = values.next()?.ok()? == *arguments;
        is_it.then(|| at..at + values.byte_offset())
    });
    let is_json = json.is_some();
    let pairs = || {
        let start = from + text[from..].find(KEYS[0])?;
        let last = arguments[KEYS[1]].to_string();
        let end = start + text[start..].find(KEYS[1])?;
        Some(start..end + text[end..].find(&last)? + last.len())
    };
    let arguments = json.or_else(pairs)?;
    let at = from + text[from..arguments.start].rfind(name)?;
    Some(Found { name: at..at + name.len(), arguments, is_json })
}

/// The texts around two arguments with these values: before the first key, between it and its value, between that and
/// the second key, and behind the second value.
fn around<'t>(text: &'t str, values: [&str; 2]) -> Option<[&'t str; 4]> {
    let (before, rest) = text.split_once(KEYS[0])?;
    let (equals, rest) = rest.split_once(values[0])?;
    let (between, rest) = rest.split_once(KEYS[1])?;
    let (_, after) = rest.split_once(values[1])?;
    Some([before, equals, between, after])
}

/// Bytes of the start that two texts share.
fn same_start(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// Bytes of the end that two texts share.
fn same_end(a: &str, b: &str) -> usize {
    let pairs = a.chars().rev().zip(b.chars().rev());
    pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

/// `text` with [`ID`] in place of the ids and the numbers of calls.
fn with_ids(text: &str) -> String {
    let mark = ID.to_string();
    let text = IDS.iter().fold(text.to_owned(), |text, id| text.replace(id, &mark));
    let mut out = String::new();
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let stands_alone =
            !before.is_alphanumeric() && !chars.peek().copied().is_some_and(char::is_alphanumeric);
        out.push(if matches!(c, '0'..='2') && stands_alone { ID } else { c });
        before = c;
    }
    out
}

/// Takes a call's id behind its arguments out of the texts there.
fn taken_tail(end: &mut String, next: &mut Option<String>) -> Option<String> {
    let at = end.find(ID).filter(|_| end.starts_with(','))? + ID.len_utf8();
    let n = at + usize::from(end[at..].starts_with('"'));
    let tail = end[..n].to_owned();
    if let Some(next) = next {
        *next = next.strip_prefix(tail.as_str())?.to_owned();
    }
    end.drain(..n);
    Some(tail)
}

#[cfg(any(fuzzing, all(test, feature = "forms")))]
pub(in crate::serve) mod trial;

#[cfg(all(test, feature = "forms"))]
mod tests;
