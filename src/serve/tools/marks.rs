//! Text around the names and arguments of calls.
//!
//! ```text
//! SIGN HEAD name MIDDLE arguments NEXT name MIDDLE arguments END        (arguments as JSON)
//! SIGN HEAD name MIDDLE OPEN key EQUALS value CLOSE COMMA OPEN … END    (arguments one by one)
//! ```

use std::borrow::Cow;

/// Stands for letters and digits that each call has of its own: its id, or its number.
pub(super) const ID: char = '\u{1}';

/// Text around the names and arguments of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// Start of a call. It may be a special token.
    pub(super) sign: Cow<'static, str>,
    /// Whether calls are the whole answer or none of it.
    pub(super) is_whole: bool,
    /// Between the sign and a name.
    pub(super) head: Cow<'static, str>,
    /// Whether a name is a JSON string.
    pub(super) quotes_names: bool,
    /// Between a name and its arguments.
    pub(super) middle: Cow<'static, str>,
    pub(super) arguments: Arguments,
    /// The call's id behind the arguments, which many models leave out.
    pub(super) tail: Option<Cow<'static, str>>,
    /// Between arguments and the next name, where several calls may follow each other.
    pub(super) next: Option<Cow<'static, str>>,
    /// Behind the last arguments.
    pub(super) end: Cow<'static, str>,
}

/// How the arguments of a call are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// They are a JSON object.
    Json,
    /// They are a JSON object in a message to a function, whose header has several forms.
    Message,
    /// One by one.
    Pairs(Pairs),
}

/// Text around arguments that come one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pairs {
    /// Before a key.
    pub(super) open: Cow<'static, str>,
    /// Between a key and its value: a string, or another one.
    pub(super) equals: [Cow<'static, str>; 2],
    /// Behind a value.
    pub(super) close: Cow<'static, str>,
    /// Between two arguments.
    pub(super) comma: Cow<'static, str>,
    pub(super) values: Values,
}

/// How values are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// Strings as they are, others as JSON.
    Plain,
    /// Values are Python's literals.
    Python,
    /// Strings between two of these marks, and names of fields without them.
    Marked(String),
}

impl Marks {
    /// All texts of which calls consist.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let Marks { sign, head, middle, next, end, .. } = self;
        let own = [sign, head, middle, end].into_iter().chain(next).map(|text| &**text);
        let pairs = match &self.arguments {
            Arguments::Json | Arguments::Message => None,
            Arguments::Pairs(pairs) => Some(pairs.texts()),
        };
        own.chain(pairs.into_iter().flatten())
    }

    /// Characters with one of which a name ends that is no JSON string, beside white space.
    pub(super) fn name_ends(&self) -> impl Iterator<Item = char> {
        let open = match &self.arguments {
            Arguments::Json | Arguments::Message => "{",
            Arguments::Pairs(pairs) => &pairs.open,
        };
        let behind = [&self.middle, open, &self.end].map(str::trim_start);
        behind.into_iter().filter_map(|text| text.chars().next())
    }
}

impl Pairs {
    fn texts(&self) -> impl Iterator<Item = &str> {
        let Pairs { open, equals: [string, other], close, comma, values } = self;
        let mark = match values {
            Values::Marked(mark) => mark,
            Values::Plain | Values::Python => "",
        };
        [open, string, other, close, comma, mark].into_iter()
    }
}

/// Why something is not found at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// More text may complete it.
    More,
    /// Other text is there.
    Other,
}

/// Length of the start of `text` that equals `wanted`, ignoring white space in both.
pub(super) fn eaten(text: &str, wanted: &str) -> Result<usize, Lack> {
    let mut left = wanted.bytes().filter(|byte| !byte.is_ascii_whitespace()).peekable();
    let mut has_id = false;
    for (at, byte) in text.bytes().enumerate() {
        if left.peek() == Some(&(ID as u8)) {
            if is_of_id(byte) {
                has_id = true;
                continue;
            }
            if !has_id {
                return Err(Lack::Other);
            }
            has_id = false;
            left.next();
        }
        match left.peek() {
            None => return Ok(at),
            _ if byte.is_ascii_whitespace() => {}
            Some(&next) if next == byte => drop(left.next()),
            // A cut within a character.
            Some(_) if text.ends_with('\u{fffd}') && at + 3 >= text.len() => {
                return Err(Lack::More);
            }
            Some(_) => return Err(Lack::Other),
        }
    }
    if left.peek().is_none() { Ok(text.len()) } else { Err(Lack::More) }
}

fn is_of_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_letters_and_digits_of_any_number() {
        for (text, wanted, found) in [
            ("f [ x", "f[", Ok(3)),
            ("\":a1-b\" c", "\":\u{1}\"", Ok(7)),
            ("\":\"", "\":\u{1}\"", Err(Lack::Other)),
            ("\":a1", "\":\u{1}\"", Err(Lack::More)),
            ("x", "y", Err(Lack::Other)),
            ("<\u{fffd}", "<｜end｜>", Err(Lack::More)),
            ("<\u{fffd}x", "<｜end｜>", Err(Lack::Other)),
        ] {
            assert_eq!(eaten(text, wanted), found, "{text}");
        }
    }
}
