//! Replaces [`jinja`](super) in builds without the feature `templates`, where only LEAP's own templates run.

use std::sync::Arc;

use super::script::{ChatOptions, ChatTurn, Sink};
use super::thoughts::Thoughts;
use super::{Tokenizer, TokenizerError};

enum Never {}

/// Template of a build that can run none.
pub(super) struct OwnTemplate(Never);

impl OwnTemplate {
    pub(super) fn new(
        _: &str,
        _: [String; 2],
        _: &dyn Fn(&str, usize) -> Option<usize>,
    ) -> Result<OwnTemplate, String> {
        Err("this build of LEAP lacks the feature `templates`; name one with --chat-template"
            .to_owned())
    }
}

/// Format of a build that can run no template.
pub(super) struct OwnFormat(Never);

impl OwnFormat {
    pub(super) fn new(template: &Arc<OwnTemplate>, _: ChatOptions) -> OwnFormat {
        match template.0 {}
    }

    pub(super) fn thought_field(&self) -> Option<&'static str> {
        match self.0 {}
    }

    pub(super) fn after_thoughts(&self) -> &str {
        match self.0 {}
    }

    pub(super) fn thoughts(&self) -> Option<Thoughts> {
        match self.0 {}
    }

    pub(super) fn joins_system(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn end(&self, _: &Tokenizer) -> Option<u32> {
        match self.0 {}
    }

    pub(super) fn begins_thinking(&self, _: Option<&str>) -> bool {
        match self.0 {}
    }

    pub(super) fn end_thoughts(&self, _: &mut impl Sink) {
        match self.0 {}
    }

    pub(super) fn stopped(&self) -> Option<String> {
        match self.0 {}
    }

    #[cfg(feature = "serve")]
    pub(super) fn trial(
        &self,
        _: Vec<serde_json::Value>,
        _: Vec<(String, serde_json::Value)>,
    ) -> Option<String> {
        match self.0 {}
    }

    #[cfg(feature = "serve")]
    pub(super) fn write_values(
        &self,
        _: Vec<serde_json::Value>,
        _: Vec<(String, serde_json::Value)>,
        _: Option<&str>,
        _: &mut impl Sink,
    ) -> Result<String, TokenizerError> {
        match self.0 {}
    }

    pub(super) fn write(
        &self,
        _: &Tokenizer,
        _: Option<&str>,
        _: &[ChatTurn<'_>],
        _: &mut impl Sink,
    ) -> Result<(), TokenizerError> {
        match self.0 {}
    }
}
