//! How a conversation speaks of tools: in a family's words, or in those of the checkpoint's own template.

use std::sync::Arc;

use super::call::ToolCall;
use super::marks::Marks;
use super::named::{Family, family};
use super::own::OwnWords;
use crate::format::ChatTemplate;
use crate::tokenizer::{ChatRole, Tokenizer};

/// How a conversation speaks of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Words {
    /// The words of a family that has a name.
    Named(&'static Family),
    /// The checkpoint's own template speaks of them.
    Own(Arc<OwnWords>),
}

impl Words {
    /// The words of `template`, if it has any.
    pub(in crate::serve) fn of(template: ChatTemplate) -> Option<Words> {
        family(template).map(Words::Named)
    }

    pub(super) fn marks(&self) -> Arc<Marks> {
        match self {
            Words::Named(family) => Arc::new(family.marks.clone()),
            Words::Own(own) => Arc::clone(&own.marks),
        }
    }

    /// Whether an answer may have several calls.
    pub(in crate::serve) fn repeats(&self) -> bool {
        self.marks().next.is_some()
    }

    /// Whether calls need ids that the model can read: nine letters and digits.
    pub(in crate::serve) fn needs_ids(&self) -> bool {
        matches!(self, Words::Named(family) if family.names_ids())
    }

    /// Whether calls have special tokens, so that the answer's text has to name these.
    pub(in crate::serve) fn names_special(&self, tokenizer: &Tokenizer) -> bool {
        let marks = self.marks();
        marks.texts().any(|text| !tokenizer.controls(text).is_empty())
    }

    /// The role and text of a message with `calls`. The calls follow `text`, if the template has a place for it.
    pub(in crate::serve) fn calls(&self, text: &str, calls: &[ToolCall]) -> (ChatRole, String) {
        match self {
            Words::Named(family) => family.calls(text, calls),
            Words::Own(_) => (ChatRole::Calls, text.to_owned()),
        }
    }

    /// The role and text of the result of the call `id`.
    pub(in crate::serve) fn result(&self, content: &str, id: &str) -> (ChatRole, String) {
        match self {
            Words::Named(family) => family.result(content, id),
            Words::Own(_) => (ChatRole::Tool, content.to_owned()),
        }
    }
}
