//! Rules of a grammar in llguidance's dialect of Lark.

use serde_json::json;

use super::marks::ID;
use crate::format::json;
use crate::tokenizer::Tokenizer;

/// An id, or a name of which nothing is known.
pub(super) const WORD: &str = "/[A-Za-z0-9_-]{1,64}/";
/// Most rules of a grammar.
const RULES_MAX: usize = 20_000;

/// Rules of a grammar.
pub(super) struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    text: String,
    n: usize,
}

impl<'a> Rules<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Rules<'a> {
        Rules { tokenizer, text: String::new(), n: 0 }
    }

    /// All rules.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Adds a rule, or a token if its name has capitals.
    pub(super) fn put(&mut self, name: &str, what: &str) {
        self.text += &format!("{name}: {what}\n");
    }

    /// A name that no other rule has.
    ///
    /// # Errors
    /// If there are too many rules.
    pub(super) fn fresh(&mut self, word: &str) -> Result<String, String> {
        self.n += 1;
        match self.n {
            ..=RULES_MAX => Ok(format!("{word}{}", self.n)),
            _ => Err("it has too many parts".to_owned()),
        }
    }

    /// Whether there is a rule of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.text.contains(&format!("\n{name}: "))
    }

    /// The special tokens that `text` names.
    pub(super) fn controls(&self, text: &str) -> Vec<(std::ops::Range<usize>, u32)> {
        self.tokenizer.controls(text)
    }

    /// `text`, in which special tokens are named, and [`ID`] stands for any id.
    pub(super) fn mark(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), 0);
        for (name, id) in self.controls(text) {
            parts.extend(plain(&text[rest..name.start]));
            parts.push(format!("<[{id}]>"));
            rest = name.end;
        }
        parts.extend(plain(&text[rest..]));
        match parts.is_empty() {
            true => quoted(""),
            false => parts.join(" "),
        }
    }
}

/// `text` without special tokens, in which [`ID`] stands for any id.
fn plain(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for (index, part) in text.split(ID).enumerate() {
        parts.extend((index > 0).then(|| WORD.to_owned()));
        parts.extend((!part.is_empty()).then(|| quoted(part)));
    }
    parts
}

/// `text` as a string literal of a grammar.
pub(super) fn quoted(text: &str) -> String {
    json::compact(&json!(text))
}
