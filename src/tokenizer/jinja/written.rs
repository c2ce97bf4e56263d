//! Parts of what a template writes.

/// A part of a text that a template wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tokenizer) enum Written {
    /// The template's own text, in which special tokens are named.
    Markup(String),
    /// Text in which nothing is a special token.
    Text(String),
}

impl Written {
    pub(super) fn text(&self) -> &str {
        match self {
            Written::Markup(text) | Written::Text(text) => text,
        }
    }

    /// Memory of the text.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Written::Markup(text) | Written::Text(text) => text.capacity(),
        }
    }
}

/// The text of all parts.
pub(super) fn joined(parts: &[Written]) -> String {
    parts.iter().map(Written::text).collect()
}
