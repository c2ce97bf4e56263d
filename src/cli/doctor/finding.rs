//! Findings, and how they are shown.

use crate::cli::reads::TokenReads;
use crate::format::json::JsonObject;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FindingState {
    /// Nothing needs to be mended.
    Good,
    /// LEAP works, but slower than it could.
    Slow,
    /// LEAP will not work.
    Bad,
}

impl FindingState {
    fn name(self) -> &'static str {
        match self {
            FindingState::Good => "good",
            FindingState::Slow => "slow",
            FindingState::Bad => "bad",
        }
    }
}

/// A fact about this machine, and how much it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Subject of the finding: a word or two.
    pub(super) what: &'static str,
    pub(super) state: FindingState,
    pub(super) text: String,
    /// The command that mends the fault.
    pub(super) mend: Option<String>,
    /// Bytes that a token reads, shown as a table below the text.
    pub(super) reads: Option<TokenReads>,
}

impl Finding {
    pub(super) fn good(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { what, state: FindingState::Good, text: text.into(), mend: None, reads: None }
    }

    pub(super) fn slow(
        what: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding { mend: Some(mend.into()), state: FindingState::Slow, ..Finding::good(what, text) }
    }

    pub(super) fn bad(
        what: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding { mend: Some(mend.into()), state: FindingState::Bad, ..Finding::good(what, text) }
    }

    /// Lines for people: what was found, its table, and what to type.
    pub(super) fn as_text(&self) -> String {
        let mut text = format!("{:<5}{:<10} {}\n", self.state.name(), self.what, self.text);
        let table = self.reads.as_ref().map_or(String::new(), TokenReads::table);
        for line in table.lines() {
            text.push_str(&format!("{:16}{line}\n", ""));
        }
        if let Some(mend) = &self.mend {
            text.push_str(&format!("{:16}-> {mend}\n", ""));
        }
        text
    }

    /// One line for programs.
    pub(super) fn as_json(&self) -> String {
        let object = JsonObject::new()
            .string("what", self.what)
            .string("state", self.state.name())
            .string("text", &self.text);
        let object = match &self.reads {
            Some(reads) => reads.add_to(object),
            None => object,
        };
        match &self.mend {
            Some(mend) => object.string("mend", mend).finish(),
            None => object.finish(),
        }
    }
}
