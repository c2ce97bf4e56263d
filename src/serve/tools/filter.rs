//! Finds tool calls in a text that comes in pieces, and reports them piece by piece.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Value, json};

use super::call::ToolCall;
use super::marks::{Arguments, Lack, Marks, Pairs, Values, eaten};
use super::values::{Types, literal, plain};
use crate::format::json;

/// A piece of an answer's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum CallPiece {
    /// A call of the tool of this name begins.
    Begin(String),
    /// More of the call's arguments, as the model writes them.
    Arguments(String),
    /// The call is complete.
    End,
}

/// The calls in the pieces of a whole answer. A call that was cut short has incomplete arguments.
pub(in crate::serve) fn joined(pieces: &[CallPiece]) -> Vec<ToolCall> {
    let mut calls: Vec<ToolCall> = Vec::new();
    for piece in pieces {
        match (piece, calls.last_mut()) {
            (CallPiece::Begin(name), _) => calls.push(ToolCall {
                id: String::new(),
                name: name.clone(),
                arguments: String::new(),
            }),
            (CallPiece::Arguments(more), Some(call)) => call.arguments += more,
            (CallPiece::Arguments(_) | CallPiece::End, _) => {}
        }
    }
    calls
}

/// Position within a call.
#[derive(Clone, Debug)]
enum Place {
    Text,
    /// Behind the sign.
    Head,
    Name,
    /// Behind this name.
    Middle(String),
    Arguments(Braces),
    /// Between arguments that come one by one, behind so many of the tool of this name.
    Pair(String, usize),
    /// Behind arguments.
    After,
}

/// Finds calls. Text that may be the start of one is held back.
#[derive(Clone)]
pub(in crate::serve) struct CallFilter {
    marks: Arc<Marks>,
    /// Schemas of the tools' arguments.
    schemas: Arc<[(String, Value)]>,
    place: Place,
    /// Text that has not been examined yet.
    held: String,
    /// Text that may be the start of a call, until that is certain.
    doubtful: String,
    /// Whether the answer is text, in formats where calls are the whole answer or none of it.
    is_plain: bool,
    /// Whether the answer has to be calls from its first token on.
    is_forced: bool,
    /// Whether a call has begun.
    has_calls: bool,
}

impl CallFilter {
    /// A filter at the start of an answer, which has to be calls if `is_forced`, of tools whose arguments have these
    /// `schemas`.
    pub(super) fn new(
        marks: Arc<Marks>,
        schemas: Arc<[(String, Value)]>,
        is_forced: bool,
    ) -> CallFilter {
        CallFilter {
            marks,
            schemas,
            place: Place::Text,
            held: String::new(),
            doubtful: String::new(),
            is_plain: false,
            is_forced,
            has_calls: false,
        }
    }

    /// Takes more text. Adds what is certainly no call to `text`, and pieces of calls to `calls`.
    pub(in crate::serve) fn push(
        &mut self,
        more: &str,
        text: &mut String,
        calls: &mut Vec<CallPiece>,
    ) {
        self.held += more;
        while self.step(text, calls) {}
    }

    /// Ends the answer, which was cut short if `is_cut`. A call with whole arguments is complete without its end mark.
    /// The beginning of a call that was cut short is no text; if the model ended the answer there, it is.
    pub(in crate::serve) fn flush(
        &mut self,
        is_cut: bool,
        text: &mut String,
        calls: &mut Vec<CallPiece>,
    ) {
        let doubtful = std::mem::take(&mut self.doubtful);
        let held = std::mem::take(&mut self.held);
        let is_text = match self.place {
            Place::Text if self.has_calls => !is_cut && !held.trim().is_empty(),
            Place::Text => !(is_cut && self.is_forced),
            Place::Head | Place::Name | Place::Middle(_) => !is_cut,
            Place::Arguments(_) | Place::Pair(..) => false,
            Place::After => {
                calls.push(CallPiece::End);
                false
            }
        };
        if is_text {
            *text += &doubtful;
            *text += &held;
        }
    }

    /// Advances to the next place. Returns false if that needs more text.
    fn step(&mut self, text: &mut String, calls: &mut Vec<CallPiece>) -> bool {
        let marks = Arc::clone(&self.marks);
        let place = std::mem::replace(&mut self.place, Place::Text);
        let (next, found) = match &place {
            Place::Text => return self.find_sign(text),
            Place::Head => (Place::Name, eaten(&self.held, &marks.head)),
            Place::Name => match self.name() {
                Ok((name, n)) => (Place::Middle(name), Ok(n)),
                Err(lack) => (Place::Text, Err(lack)),
            },
            Place::Middle(name) => {
                let found = self.middle();
                if found.is_ok() {
                    calls.push(CallPiece::Begin(name.clone()));
                    self.has_calls = true;
                }
                let next = match marks.arguments {
                    Arguments::Json | Arguments::Message => Place::Arguments(Braces::default()),
                    Arguments::Pairs(_) => Place::Pair(name.clone(), 0),
                };
                (next, found)
            }
            Place::Arguments(braces) => {
                return self.put_arguments(braces.clone(), calls);
            }
            Place::Pair(name, n_before) => return self.put_pair(name, *n_before, calls),
            Place::After => self.after(),
        };
        match found {
            Ok(n) => {
                let is_sure = !matches!(next, Place::Name | Place::Middle(_));
                let taken: String = self.held.drain(..n).collect();
                self.doubtful += &taken;
                if is_sure {
                    self.doubtful.clear();
                }
                if matches!(place, Place::After) {
                    calls.push(CallPiece::End);
                }
                self.place = next;
                true
            }
            Err(Lack::More) => {
                self.place = place;
                false
            }
            Err(Lack::Other) => {
                if matches!(place, Place::After) {
                    calls.push(CallPiece::End);
                }
                *text += &std::mem::take(&mut self.doubtful);
                // Text that only looked like a sign is text, and is not looked at again.
                self.is_plain = true;
                true
            }
        }
    }

    fn find_sign(&mut self, text: &mut String) -> bool {
        let Marks { sign, is_whole, .. } = &*self.marks;
        let is_whole = *is_whole;
        if is_whole && !self.is_plain {
            match eaten(&self.held, sign) {
                Ok(n) => self.doubt(n),
                Err(Lack::More) => return false,
                Err(Lack::Other) => self.is_plain = true,
            }
            return true;
        }
        if let Some(at) = self.held.find(&**sign).filter(|_| !is_whole) {
            // Line breaks between a text and a call belong to neither.
            let before = self.held[..at].trim_end_matches('\n').len();
            *text += &self.held[..before];
            let n = at - before + sign.len();
            self.held.drain(..before);
            self.doubt(n);
            return true;
        }
        let n = self.held.len() - if is_whole { 0 } else { open_len(&self.held, sign) };
        *text += &self.held[..n];
        self.held.drain(..n);
        false
    }

    fn doubt(&mut self, n: usize) {
        self.doubtful = self.held.drain(..n).collect();
        self.place = Place::Head;
    }

    /// The name that the text begins with, and the bytes up to its end.
    fn name(&self) -> Result<(String, usize), Lack> {
        if self.marks.quotes_names {
            return name(&self.held);
        }
        let start = self.held.len() - self.held.trim_start().len();
        let names = self.schemas.iter().map(|(name, _)| name.as_str());
        match known(&self.held[start..], names, &[""]) {
            Ok((name, n)) => return Ok((name, start + n)),
            Err(Lack::More) => return Err(Lack::More),
            Err(Lack::Other) => {}
        }
        let is_end = |c: char| c.is_whitespace() || self.marks.name_ends().any(|end| end == c);
        match self.held[start..].find(is_end) {
            Some(0) => Err(Lack::Other),
            Some(n) => Ok((self.held[start..start + n].to_owned(), start + n)),
            None => Err(Lack::More),
        }
    }

    /// Length of the text between a name and its arguments.
    fn middle(&self) -> Result<usize, Lack> {
        let n = eaten(&self.held, &self.marks.middle)?;
        match self.marks.arguments {
            Arguments::Pairs(_) => Ok(n),
            // Other values than objects are no arguments.
            Arguments::Json | Arguments::Message => begins_object(&self.held[n..]).map(|()| n),
        }
    }

    fn put_arguments(&mut self, mut braces: Braces, calls: &mut Vec<CallPiece>) -> bool {
        if !braces.has_begun {
            let n = self.held.len() - self.held.trim_ascii_start().len();
            self.held.drain(..n);
        }
        let n = braces.push(&self.held);
        let more: String = self.held.drain(..n).collect();
        put(more, calls);
        let is_over = braces.is_over();
        self.place = if is_over { Place::After } else { Place::Arguments(braces) };
        is_over
    }

    /// Takes the next of the arguments that come one by one, behind `n_before` others of the tool `name`, or their end.
    fn put_pair(&mut self, name: &str, n_before: usize, calls: &mut Vec<CallPiece>) -> bool {
        let marks = Arc::clone(&self.marks);
        let Arguments::Pairs(pairs) = &marks.arguments else { return false };
        let found = match self.after().1 {
            Err(Lack::Other) => self.pair(pairs, name, n_before).map(Some),
            Err(Lack::More) => Err(Lack::More),
            Ok(_) => Ok(None),
        };
        match found {
            Err(Lack::More) => {
                self.place = Place::Pair(name.to_owned(), n_before);
                return false;
            }
            Ok(Some((key, value, n))) => {
                self.held.drain(..n);
                let open = if n_before == 0 { "{" } else { ", " };
                put(format!("{open}{}: {value}", json!(key)), calls);
                self.place = Place::Pair(name.to_owned(), n_before + 1);
            }
            Ok(None) | Err(Lack::Other) => {
                put(if n_before == 0 { "{}" } else { "}" }.to_owned(), calls);
                self.place = Place::After;
            }
        }
        true
    }

    /// The argument at the start of the text: its name, its value as JSON, and the bytes up to its end.
    fn pair(
        &self,
        pairs: &Pairs,
        tool: &str,
        n_before: usize,
    ) -> Result<(String, String, usize), Lack> {
        let comma = if n_before == 0 { "" } else { &pairs.comma };
        let mut at = eaten(&self.held, comma)?;
        at += eaten(&self.held[at..], &pairs.open)?;
        let schema = self.schemas.iter().find(|(name, _)| name == tool).map(|(_, schema)| schema);
        let root = schema.unwrap_or(&Value::Null);
        let keys = root["properties"].as_object().into_iter().flatten();
        let (key, n) = key(&self.held[at..], keys.map(|(key, _)| key.as_str()), &pairs.equals)?;
        at += n;
        let (before, held) = self.held.split_at(at);
        let (value, n) = match pairs.values {
            Values::Python | Values::Marked(_) => {
                let (value, n) = literal(held, &pairs.values)?;
                (json::spaced(&value), n)
            }
            Values::Plain => {
                let [string, other] = pairs.equals.each_ref().map(|equals| equals.trim());
                let others = &root["additionalProperties"];
                let schema = match string != other && before.trim_end().ends_with(string) {
                    true => &json!({"type": "string"}),
                    false => root["properties"].get(&key).unwrap_or(others),
                };
                plain_value(held, pairs, (schema, root))?
            }
        };
        Ok((key, value, at + n))
    }

    /// Whether a call ends, or another one follows.
    fn after(&self) -> (Place, Result<usize, Lack>) {
        let Marks { tail, next, end, .. } = &*self.marks;
        let start = match tail.as_deref().map(|tail| eaten(&self.held, tail)) {
            Some(Ok(n)) => n,
            Some(Err(Lack::More)) => return (Place::Text, Err(Lack::More)),
            Some(Err(Lack::Other)) | None => 0,
        };
        let held = &self.held[start..];
        let found = |found: Result<usize, Lack>| found.map(|n| start + n);
        match (eaten(held, end), next.as_deref().map(|next| eaten(held, next))) {
            (_, Some(Ok(n))) if end.is_empty() => (Place::Name, found(Ok(n))),
            // Another call or text follows a call that has no end mark.
            (Ok(_), Some(Err(Lack::More))) if end.is_empty() => (Place::Text, Err(Lack::More)),
            (Ok(n), _) => (Place::Text, found(Ok(n))),
            (Err(Lack::More), _) | (_, Some(Err(Lack::More))) => (Place::Text, Err(Lack::More)),
            (_, Some(Ok(n))) => (Place::Name, found(Ok(n))),
            (Err(Lack::Other), _) => (Place::Text, Err(Lack::Other)),
        }
    }
}

/// Adds `more` to the arguments of the last call.
fn put(more: String, calls: &mut Vec<CallPiece>) {
    match calls.last_mut() {
        _ if more.is_empty() => {}
        Some(CallPiece::Arguments(before)) => *before += &more,
        _ => calls.push(CallPiece::Arguments(more)),
    }
}

/// The longest of `names` at the start of `text` with one of `ends` behind it, and the bytes up to what follows.
fn known<'n>(
    text: &str,
    names: impl Iterator<Item = &'n str>,
    ends: &[&str],
) -> Result<(String, usize), Lack> {
    let mut found = Err(Lack::Other);
    for name in names.filter(|name| !name.is_empty()) {
        for end in ends {
            let whole = format!("{name}{end}");
            let is_longer = found.as_ref().is_ok_and(|(_, n)| *n >= whole.len());
            if whole.len() > text.len() && whole.starts_with(text) {
                return Err(Lack::More);
            }
            if text.starts_with(&whole) && !is_longer {
                found = Ok((name.to_owned(), whole.len()));
            }
        }
    }
    found
}

/// The key at the start of `text`, and the bytes up to its value. One of `equals` is between them. The schema's own `keys`
/// may have such a text in them.
fn key<'k>(
    text: &str,
    keys: impl Iterator<Item = &'k str>,
    equals: &[Cow<'static, str>; 2],
) -> Result<(String, usize), Lack> {
    /// Longest key.
    const BYTES_MAX: usize = 1 << 10;
    let signs = equals.each_ref().map(|equals| equals.trim());
    match known(text, keys, &signs) {
        Err(Lack::Other) => {}
        found => return found,
    }
    let found = signs.iter().filter_map(|sign| Some((text.find(sign)?, sign.len())));
    match found.min_by_key(|&(at, len)| (at, std::cmp::Reverse(len))) {
        Some((at, len)) => Ok((text[..at].trim().to_owned(), at + len)),
        None if text.len() > BYTES_MAX => Err(Lack::Other),
        None => Err(Lack::More),
    }
}

/// The value at the start of `text` as JSON, and the bytes up to what follows its closing mark. If it is no string, it may
/// have that mark in it.
fn plain_value(
    text: &str,
    pairs: &Pairs,
    (schema, root): (&Value, &Value),
) -> Result<(String, usize), Lack> {
    let close = pairs.close.trim();
    let takes_strings = Types::of(schema, root).allow_strings();
    if !takes_strings {
        let start = text.len() - text.trim_start().len();
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(_)) => {
                let end = start + values.byte_offset();
                let n = end + eaten(&text[end..], close)?;
                return Ok((text[start..end].to_owned(), n));
            }
            Some(Err(e)) if e.is_eof() => return Err(Lack::More),
            Some(Err(_)) => {}
            None => return Err(Lack::More),
        }
    }
    let (value, n) = plain_text(text, pairs)?;
    if !takes_strings && serde_json::from_str::<Value>(value.trim()).is_ok() {
        return Ok((value.trim().to_owned(), n));
    }
    Ok((json::spaced(&plain(value, schema, root)), n))
}

/// The value at the start of `text` up to its closing mark, and the bytes up to what follows. Line breaks of the marks
/// do not belong to it.
fn plain_text<'a>(text: &'a str, pairs: &Pairs) -> Result<(&'a str, usize), Lack> {
    let close = pairs.close.trim();
    let end = text.find(close).ok_or(Lack::More)?;
    let mut value = &text[..end];
    if pairs.equals[0].ends_with('\n') {
        value = value.strip_prefix('\n').unwrap_or(value);
    }
    if pairs.close.starts_with('\n') {
        value = value.strip_suffix('\n').unwrap_or(value);
    }
    Ok((value, end + close.len()))
}

/// The JSON string at the start of `text`, and the bytes up to its end.
fn name(text: &str) -> Result<(String, usize), Lack> {
    let start = text.len() - text.trim_ascii_start().len();
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if at == start && byte != b'"' => return Err(Lack::Other),
            _ if at == start => {}
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => {
                let name = serde_json::from_str(&text[start..=at]).map_err(|_| Lack::Other)?;
                return Ok((name, at + 1));
            }
            _ => {}
        }
    }
    Err(Lack::More)
}

/// Checks that an object of JSON begins here.
fn begins_object(text: &str) -> Result<(), Lack> {
    match text.trim_ascii_start().bytes().next() {
        Some(b'{') => Ok(()),
        Some(_) => Err(Lack::Other),
        None => Err(Lack::More),
    }
}

/// Finds the end of a JSON object.
#[derive(Clone, Debug, Default)]
struct Braces {
    depth: usize,
    has_begun: bool,
    is_string: bool,
    is_escaped: bool,
}

impl Braces {
    /// Takes more of the text. Returns how many of its bytes belong to the object.
    fn push(&mut self, text: &str) -> usize {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_string => self.is_escaped = true,
                b'"' => self.is_string = !self.is_string,
                _ if self.is_string => {}
                b'{' | b'[' => {
                    self.depth += 1;
                    self.has_begun = true;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.has_begun = true;
                }
                _ => {}
            }
            if self.is_over() {
                return at + 1;
            }
        }
        text.len()
    }

    fn is_over(&self) -> bool {
        self.has_begun && self.depth == 0
    }
}

/// Length of the end of `text` that may be line breaks and the start of `sign`.
fn open_len(text: &str, sign: &str) -> usize {
    let mut lens = sign.char_indices().map(|(at, _)| at).rev();
    let part = lens.find(|&n| text.ends_with(&sign[..n])).unwrap_or(0);
    let before = &text[..text.len() - part];
    part + before.len() - before.trim_end_matches('\n').len()
}

#[cfg(test)]
mod tests {
    use super::super::families::{HERMES, LLAMA3, MISTRAL};
    use super::*;

    fn filter(marks: &Marks, is_forced: bool) -> CallFilter {
        CallFilter::new(Arc::new(marks.clone()), Arc::new([]), is_forced)
    }

    /// Checks what is found in a text, however it is cut in two.
    fn check(marks: Marks, whole: &str, wanted: &[(&str, &str)], text: &str) {
        for cut in (0..=whole.len()).filter(|&at| whole.is_char_boundary(at)) {
            let mut filter = filter(&marks, false);
            let (mut rest, mut calls) = (String::new(), Vec::new());
            filter.push(&whole[..cut], &mut rest, &mut calls);
            filter.push(&whole[cut..], &mut rest, &mut calls);
            filter.flush(false, &mut rest, &mut calls);
            let calls = joined(&calls);
            let calls: Vec<(&str, &str)> =
                calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
            assert_eq!((calls.as_slice(), &*rest), (wanted, text), "{whole:?} cut at {cut}");
        }
    }

    #[test]
    fn calls_come_apart_from_the_text_however_it_is_cut() {
        let call =
            "<tool_call>\n{\"name\": \"at\", \"arguments\": {\"x\":[1,\"}\\\"\"]}}\n</tool_call>";
        let none = "\n<tool_call>\nnothing\n</tool_call> <tool";
        let calls = [("at", "{\"x\":[1,\"}\\\"\"]}"); 2];
        let whole = format!("I look.\n{call}\n{call}{none}");
        check(HERMES, &whole, &calls, &format!("I look.{none}"));
        let call = "{\"name\": \"f\\u0041\", \"parameters\": {}}";
        check(LLAMA3, call, &[("fA", "{}")], "");
        check(LLAMA3, " {\"no\": 1}", &[], " {\"no\": 1}");
        check(LLAMA3, "{\"name\": 1}", &[], "{\"name\": 1}");
        check(LLAMA3, &format!("x{call}"), &[], &format!("x{call}"));
        let calls = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"ä\": {}}}, {\"name\": \"g\", \"arguments\": {}}]";
        check(MISTRAL, calls, &[("f", "{\"ä\": {}}"), ("g", "{}")], "");
        // A call whose rest is missing is reported as far as it came.
        let cut = "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"a";
        check(MISTRAL, cut, &[("f", "{\"a")], "");
        check(MISTRAL, "[TOOL_CALLS] [{\"na", &[], "[TOOL_CALLS] [{\"na");
    }

    #[test]
    fn no_markup_of_a_call_that_was_cut_short_is_text() {
        let call = r#"{"name": "at", "arguments": {"x": [1]}}"#;
        let hermes = format!("<tool_call>\n{call}\n</tool_call>");
        let wholes = [
            (HERMES, format!("{hermes}\n{hermes}")),
            (LLAMA3, r#"{"name": "at", "parameters": {"x": [1]}}"#.to_owned()),
            (MISTRAL, format!("[TOOL_CALLS] [{call}, {call}]")),
        ];
        for (marks, whole) in wholes {
            for cut in 0..whole.len() {
                let mut filter = filter(&marks, true);
                let (mut rest, mut calls) = (String::new(), Vec::new());
                filter.push(&whole[..cut], &mut rest, &mut calls);
                filter.flush(true, &mut rest, &mut calls);
                assert_eq!(rest, "", "{whole:?} cut at {cut}");
                let count =
                    |wanted: fn(&CallPiece) -> bool| calls.iter().filter(|p| wanted(p)).count();
                let n_begun = count(|piece| matches!(piece, CallPiece::Begin(_)));
                let n_ended = count(|piece| *piece == CallPiece::End);
                let arguments = joined(&calls).into_iter().map(|call| call.arguments);
                let n_whole = arguments.filter(|text| text == r#"{"x": [1]}"#).count();
                assert!(n_begun - n_ended <= 1 && n_ended == n_whole, "{whole:?} cut at {cut}");
            }
        }
        // In an answer that may be text, the beginning of a mark is text, but not of a call.
        for (whole, text) in [("a <tool", "a <tool"), ("a\n<tool_call>\n{\"na", "a")] {
            let mut filter = filter(&HERMES, false);
            let (mut rest, mut calls) = (String::new(), Vec::new());
            filter.push(whole, &mut rest, &mut calls);
            filter.flush(true, &mut rest, &mut calls);
            assert_eq!((&*rest, calls), (text, vec![]), "{whole:?}");
        }
    }
}
