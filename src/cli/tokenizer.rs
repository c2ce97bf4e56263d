//! `leap tokenizer`: converts and applies tokenizers.

use argh::FromArgs;

use super::Failure;

/// Converts a tokenizer to tokenizer.bin, or encodes and decodes with one.
#[derive(FromArgs)]
#[argh(subcommand, name = "tokenizer")]
pub(super) struct Tokenizer {
    /// tokenizer.model, tokenizer.json, tokenizer.bin, or the folder that holds one
    #[argh(positional)]
    input: String,
}

impl Tokenizer {
    pub(super) fn execute(self) -> Result<(), Failure> {
        Err(Failure::Input(self.input))
    }
}
