//! Masks the special tokens that a template writes, in its source.
//!
//! A name in the text between the tags is written. One in a string may be written, or looked for: `'</think>' in text`,
//! `text.split('</think>')`. Its neighbours tell. Where they mislead, the result is not the template's text, and is not
//! used.

use super::written::Written;

/// First mask: of a plane that Unicode does not use.
const FIRST: u32 = 0x5_0000;
const MASKS_MAX: usize = 0x1_0000;

/// Methods and filters that look for their arguments.
const SEARCHES: [&str; 13] = [
    "split",
    "rsplit",
    "partition",
    "rpartition",
    "replace",
    "startswith",
    "endswith",
    "find",
    "rfind",
    "index",
    "count",
    "strip",
    "get",
];

/// A template's source with masks in place of the special tokens that it writes.
pub(super) struct Marked {
    source: String,
    text: String,
    /// Names of special tokens, in the order of their masks.
    names: Vec<String>,
}

/// Whether `text` has a character that may be a mask.
pub(super) fn has_mark(text: &str) -> bool {
    text.chars().any(|c| index(c).is_some())
}

/// Bytes of the longest tag of a template.
pub(super) fn longest_tag(source: &str) -> usize {
    let bytes = |region: &Region<'_>| match region {
        Region::Tag(tag) => tag.len(),
        Region::Text(_) | Region::Comment(_) => 0,
    };
    regions(source).iter().map(bytes).max().unwrap_or(0)
}

/// Text between tags, a tag, or a comment.
enum Region<'a> {
    Text(&'a str),
    Tag(&'a str),
    Comment(&'a str),
}

impl Marked {
    /// Masks the names in `source`; those in texts of `set` only if it `masks_variables`, as these may be looked for later.
    pub(super) fn new(
        source: &str,
        masks_variables: bool,
        name_at: &dyn Fn(&str, usize) -> Option<usize>,
    ) -> Marked {
        let mut marked =
            Marked { source: source.to_owned(), text: String::new(), names: Vec::new() };
        for region in regions(source) {
            match region {
                Region::Text(text) => marked.push_marked(text, name_at),
                Region::Tag(tag) if is_set(tag) && !masks_variables => marked.text.push_str(tag),
                Region::Tag(tag) => marked.push_tag(tag, name_at),
                Region::Comment(text) => marked.text.push_str(text),
            }
        }
        marked
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The source with masks.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Adds a mask for `name`, if this is the name of a special token.
    pub(super) fn add(&mut self, name: &str, name_at: &dyn Fn(&str, usize) -> Option<usize>) {
        if !name.is_empty() && name_at(name, 0) == Some(name.len()) {
            self.mask(name);
        }
    }

    /// `name`, or its mask if it has one.
    pub(super) fn of(&self, name: &str) -> String {
        let at = self.names.iter().position(|known| known == name);
        at.and_then(mask_at).map_or_else(|| name.to_owned(), String::from)
    }

    /// The parts of a text that the masked template wrote.
    pub(super) fn parts(&self, text: &str) -> Vec<Written> {
        let (mut parts, mut run) = (Vec::new(), String::new());
        for c in text.chars() {
            match index(c).and_then(|at| self.names.get(at)) {
                None => run.push(c),
                Some(name) => {
                    if !run.is_empty() {
                        parts.push(Written::Text(std::mem::take(&mut run)));
                    }
                    parts.push(Written::Markup(name.clone()));
                }
            }
        }
        if !run.is_empty() {
            parts.push(Written::Text(run));
        }
        parts
    }

    fn mask(&mut self, name: &str) -> Option<char> {
        let at = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        mask_at(at)
    }

    /// Appends `text` with masks in place of names.
    fn push_marked(&mut self, text: &str, name_at: &dyn Fn(&str, usize) -> Option<usize>) {
        let (mut rest, mut at) = (0, 0);
        while at < text.len() {
            match name_at(text, at).filter(|_| text.is_char_boundary(at)) {
                Some(end) => {
                    self.text.push_str(&text[rest..at]);
                    match self.mask(&text[at..end]) {
                        Some(mask) => self.text.push(mask),
                        None => self.text.push_str(&text[at..end]),
                    }
                    (rest, at) = (end, end);
                }
                None => at += 1,
            }
        }
        self.text.push_str(&text[rest..]);
    }

    /// Appends a tag with masks in those of its strings that are written.
    fn push_tag(&mut self, tag: &str, name_at: &dyn Fn(&str, usize) -> Option<usize>) {
        let words = words(tag);
        let mut open = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let before = words[..at].iter().rfind(|word| !word.trim().is_empty()).copied();
            let after = words[at + 1..].iter().find(|word| !word.trim().is_empty()).copied();
            match word.chars().next() {
                Some('(' | '[') => open.push(is_search(before, open.last().copied())),
                Some(')' | ']') => {
                    open.pop();
                }
                _ => {}
            }
            let is_text = word.starts_with(['"', '\'']);
            let is_looked_for =
                open.last() == Some(&true) || is_compared(before) || is_compared(after);
            match is_text && !is_looked_for {
                true => self.push_marked(word, name_at),
                false => self.text.push_str(word),
            }
        }
    }
}

/// Whether a tag sets a variable.
fn is_set(tag: &str) -> bool {
    tag.strip_prefix("{%")
        .is_some_and(|tag| tag.trim_start_matches(['-', '+', ' ']).starts_with("set "))
}

/// Whether what stands between brackets behind `before` is looked for.
fn is_search(before: Option<&str>, around: Option<bool>) -> bool {
    let before = before.unwrap_or_default();
    SEARCHES.contains(&before) || is_compared(Some(before)) || around == Some(true)
}

fn is_compared(word: Option<&str>) -> bool {
    matches!(word, Some("in" | "not" | "is" | "==" | "!=" | "<" | ">"))
}

fn mask_at(at: usize) -> Option<char> {
    let at = u32::try_from(at).ok().filter(|_| at < MASKS_MAX)?;
    char::from_u32(FIRST + at)
}

fn index(c: char) -> Option<usize> {
    let at = u32::from(c).checked_sub(FIRST)? as usize;
    (at < MASKS_MAX).then_some(at)
}

/// Divides a template into its tags and what is between them.
fn regions(source: &str) -> Vec<Region<'_>> {
    let (mut regions, mut rest) = (Vec::new(), source);
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        let (text, tag) = rest.split_at(at);
        regions.push(Region::Text(text));
        let is_comment = tag.starts_with("{#");
        let end = match is_comment {
            true => tag.find("#}").map(|at| at + 2),
            false => tag_end(tag),
        };
        let (tag, after) = tag.split_at(end.unwrap_or(tag.len()));
        regions.push(if is_comment { Region::Comment(tag) } else { Region::Tag(tag) });
        rest = after;
    }
    regions.push(Region::Text(rest));
    regions
}

/// Where the tag at the start of `text` ends: strings may hold what looks like its end.
fn tag_end(text: &str) -> Option<usize> {
    let close = if text.starts_with("{{") { "}}" } else { "%}" };
    let mut at = 2;
    let mut depth = 0_usize;
    loop {
        let rest = &text[at..];
        if depth == 0 && rest.starts_with(close) {
            return Some(at + 2);
        }
        match rest.chars().next()? {
            '"' | '\'' => at += string_len(rest),
            c => {
                match c {
                    '{' => depth += 1,
                    '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                at += c.len_utf8();
            }
        }
    }
}

/// Length of the string at the start of `text`, with its quotation marks.
fn string_len(text: &str) -> usize {
    let quote = text.as_bytes().first().copied();
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            byte if Some(byte) == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Divides a tag into strings, words, runs of the same sign, and single other characters.
fn words(tag: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), tag);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_sign = |c: char| matches!(c, '=' | '!' | '<' | '>');
    while let Some(c) = rest.chars().next() {
        let run = |is_one: &dyn Fn(char) -> bool| rest.find(|c| !is_one(c)).unwrap_or(rest.len());
        let len = match c {
            '"' | '\'' => string_len(rest),
            c if is_word(c) => run(&is_word),
            c if is_sign(c) => run(&is_sign),
            c => c.len_utf8(),
        };
        let (word, after) = rest.split_at(len);
        words.push(word);
        rest = after;
    }
    words
}
