//! Replaces [`grammar`](super) in builds without the feature `forms`, where no answer can be kept in a form.

use std::sync::Arc;

use serde_json::Value;

use crate::engine::TokenFilter;
use crate::tokenizer::{Tags, Tokenizer};

const PROBLEM: &str = "this build of LEAP lacks the feature `forms`";

/// Grammars of a build without them.
pub(super) enum Grammars {}

/// Filter of a build without grammars.
#[derive(Clone, Copy, Debug)]
pub(super) enum GrammarFilter {}

/// Sign of a build without grammars.
pub(super) struct Sign;

impl Sign {
    pub(super) fn new(_: &str, _: Option<&Tags>, _: bool) -> Sign {
        Sign
    }

    pub(super) fn at_start(_: &str) -> Sign {
        Sign
    }

    pub(super) fn token(_: u32) -> Sign {
        Sign
    }

    pub(super) fn in_header(_: &str, _: [u32; 3]) -> Sign {
        Sign
    }
}

impl Grammars {
    pub(super) fn new(_: Arc<Tokenizer>, _: usize, _: &[u32]) -> Result<Grammars, String> {
        Err(PROBLEM.to_owned())
    }

    pub(super) fn schema(&self, _: &Value, _: &[u32]) -> Result<GrammarFilter, String> {
        match *self {}
    }

    pub(super) fn lark(
        &self,
        _: String,
        _: Option<Sign>,
        _: &[u32],
    ) -> Result<GrammarFilter, String> {
        match *self {}
    }
}

pub(super) fn check_len(_: &Value) -> Result<(), String> {
    Ok(())
}

pub(super) fn with_options(schema: Value) -> Value {
    schema
}

pub(super) fn pattern_of(pattern: &str) -> String {
    pattern.to_owned()
}

impl GrammarFilter {
    pub(super) fn behind(self, _: &str) -> Result<GrammarFilter, String> {
        match self {}
    }
}

impl TokenFilter for GrammarFilter {
    fn restrict(&mut self, _: &mut [f32]) -> Result<(), String> {
        match *self {}
    }

    fn take(&mut self, _: u32) -> Result<bool, String> {
        match *self {}
    }

    fn another(&self) -> Box<dyn TokenFilter> {
        Box::new(*self)
    }
}
