//! `leap run`: generates text.

use argh::FromArgs;

use super::Failure;

/// Generates text, or holds a conversation with --chat.
#[derive(FromArgs)]
#[argh(subcommand, name = "run")]
pub(super) struct Run {
    /// model file; the built-in demo model if absent
    #[argh(positional)]
    model: Option<String>,
}

impl Run {
    pub(super) fn execute(self) -> Result<(), Failure> {
        Err(Failure::Usage(format!("cannot run {:?}", self.model)))
    }
}
