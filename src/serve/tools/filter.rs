//! Finds tool calls in a text that comes in pieces, and reports them piece by piece.

use super::call::ToolCall;
use super::words::{Marks, Words};

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
    /// Behind arguments.
    After,
}

/// Finds calls. Text that may be the start of one is held back.
#[derive(Clone)]
pub(in crate::serve) struct CallFilter {
    marks: &'static Marks,
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
    /// A filter at the start of an answer, which has to be calls if `is_forced`.
    pub(in crate::serve) fn new(words: Words, is_forced: bool) -> CallFilter {
        CallFilter {
            marks: words.marks(),
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
            Place::Arguments(_) => false,
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
        let place = std::mem::replace(&mut self.place, Place::Text);
        let (next, found) = match &place {
            Place::Text => return self.find_sign(text),
            Place::Head => (Place::Name, eaten(&self.held, self.marks.head)),
            Place::Name => match name(&self.held) {
                Ok((name, n)) => (Place::Middle(name), Ok(n)),
                Err(lack) => (Place::Text, Err(lack)),
            },
            Place::Middle(name) => {
                let found = eaten(&self.held, self.marks.middle);
                if found.is_ok() {
                    calls.push(CallPiece::Begin(name.clone()));
                    self.has_calls = true;
                }
                (Place::Arguments(Braces::default()), found)
            }
            Place::Arguments(braces) => {
                return self.put_arguments(braces.clone(), calls);
            }
            Place::After => self.after(),
        };
        match found {
            Ok(n) => {
                let is_sure = matches!(next, Place::Arguments(_) | Place::Text);
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
                *text += &std::mem::take(&mut self.doubtful);
                // Text that only looked like a sign is text, and is not looked at again.
                self.is_plain = true;
                true
            }
        }
    }

    fn find_sign(&mut self, text: &mut String) -> bool {
        let Marks { sign, is_whole, .. } = *self.marks;
        if is_whole && !self.is_plain {
            match eaten(&self.held, sign) {
                Ok(n) => self.doubt(n),
                Err(Lack::More) => return false,
                Err(Lack::Other) => self.is_plain = true,
            }
            return true;
        }
        if let Some(at) = self.held.find(sign).filter(|_| !is_whole) {
            // Line breaks between a text and a call belong to neither.
            let before = self.held[..at].trim_end_matches('\n').len();
            *text += &self.held[..before];
            self.held.drain(..before);
            self.doubt(at - before + sign.len());
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

    fn put_arguments(&mut self, mut braces: Braces, calls: &mut Vec<CallPiece>) -> bool {
        if !braces.has_begun {
            let n = self.held.len() - self.held.trim_ascii_start().len();
            self.held.drain(..n);
        }
        let n = braces.push(&self.held);
        let more: String = self.held.drain(..n).collect();
        match calls.last_mut() {
            _ if more.is_empty() => {}
            Some(CallPiece::Arguments(before)) => *before += &more,
            _ => calls.push(CallPiece::Arguments(more)),
        }
        let is_over = braces.is_over();
        self.place = if is_over { Place::After } else { Place::Arguments(braces) };
        is_over
    }

    /// Whether a call ends, or another one follows.
    fn after(&self) -> (Place, Result<usize, Lack>) {
        let end = eaten(&self.held, self.marks.end);
        match (end, self.marks.next.map(|next| eaten(&self.held, next))) {
            (Ok(n), _) => (Place::Text, Ok(n)),
            (_, Some(Ok(n))) => (Place::Name, Ok(n)),
            (Err(Lack::More), _) | (_, Some(Err(Lack::More))) => (Place::Text, Err(Lack::More)),
            (Err(Lack::Other), _) => (Place::Text, Err(Lack::Other)),
        }
    }
}

/// Why something is not found at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// More text may complete it.
    More,
    /// Other text is there.
    Other,
}

/// Length of the start of `text` that equals `wanted`, ignoring white space in both.
fn eaten(text: &str, wanted: &str) -> Result<usize, Lack> {
    let mut left = wanted.bytes().filter(|byte| !byte.is_ascii_whitespace()).peekable();
    for (at, byte) in text.bytes().enumerate() {
        match left.peek() {
            None => return Ok(at),
            _ if byte.is_ascii_whitespace() => {}
            Some(&next) if next == byte => drop(left.next()),
            Some(_) => return Err(Lack::Other),
        }
    }
    if left.peek().is_none() { Ok(text.len()) } else { Err(Lack::More) }
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
    let part = (1..sign.len()).rev().find(|&n| text.ends_with(&sign[..n])).unwrap_or(0);
    let before = &text[..text.len() - part];
    part + before.len() - before.trim_end_matches('\n').len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what is found in a text, however it is cut in two.
    fn check(words: Words, whole: &str, wanted: &[(&str, &str)], text: &str) {
        for cut in (0..=whole.len()).filter(|&at| whole.is_char_boundary(at)) {
            let mut filter = CallFilter::new(words, false);
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
        check(Words::Hermes, &whole, &calls, &format!("I look.{none}"));
        let call = "{\"name\": \"f\\u0041\", \"parameters\": {}}";
        check(Words::Llama3, call, &[("fA", "{}")], "");
        check(Words::Llama3, " {\"no\": 1}", &[], " {\"no\": 1}");
        check(Words::Llama3, "{\"name\": 1}", &[], "{\"name\": 1}");
        check(Words::Llama3, &format!("x{call}"), &[], &format!("x{call}"));
        let calls = "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"ä\": {}}}, {\"name\": \"g\", \"arguments\": {}}]";
        check(Words::Mistral, calls, &[("f", "{\"ä\": {}}"), ("g", "{}")], "");
        // A call whose rest is missing is reported as far as it came.
        let cut = "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"a";
        check(Words::Mistral, cut, &[("f", "{\"a")], "");
        check(Words::Mistral, "[TOOL_CALLS] [{\"na", &[], "[TOOL_CALLS] [{\"na");
    }

    #[test]
    fn no_markup_of_a_call_that_was_cut_short_is_text() {
        let call = r#"{"name": "at", "arguments": {"x": [1]}}"#;
        let hermes = format!("<tool_call>\n{call}\n</tool_call>");
        let wholes = [
            (Words::Hermes, format!("{hermes}\n{hermes}")),
            (Words::Llama3, r#"{"name": "at", "parameters": {"x": [1]}}"#.to_owned()),
            (Words::Mistral, format!("[TOOL_CALLS] [{call}, {call}]")),
        ];
        for (words, whole) in wholes {
            for cut in 0..whole.len() {
                let mut filter = CallFilter::new(words, true);
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
            let mut filter = CallFilter::new(Words::Hermes, false);
            let (mut rest, mut calls) = (String::new(), Vec::new());
            filter.push(whole, &mut rest, &mut calls);
            filter.flush(true, &mut rest, &mut calls);
            assert_eq!((&*rest, calls), (text, vec![]), "{whole:?}");
        }
    }
}
