//! Why a vocabulary cannot be used.

use std::fmt;

use crate::format::{ChatTemplate, FormatError};

/// A defect of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The bytes are not a tokenizer file.
    Format(FormatError),
    /// No token stands for any byte, so no text could be encoded.
    NoBytes,
    /// Two tokens are listed to merge, but together they are no token.
    MissingMerge {
        /// Id of the left token.
        left: u32,
        /// Id of the right token.
        right: u32,
    },
    /// A chat template needs a special token that is not there.
    MissingSpecial {
        /// The template.
        template: ChatTemplate,
        /// Name of the token.
        token: &'static str,
    },
    /// A chat template needs texts of the checkpoint's own template, and that is a different template.
    MissingTexts(ChatTemplate),
    /// The checkpoint's own chat template is not in the tokenizer file.
    NoTemplate,
    /// The checkpoint's own chat template cannot be used, or not for this conversation.
    Template(String),
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerError::Format(e) => e.fmt(f),
            TokenizerError::NoBytes => f.write_str("the vocabulary has no token for any byte"),
            TokenizerError::MissingMerge { left, right } => {
                write!(f, "tokens {left} and {right} are to merge, but into no token")
            }
            TokenizerError::MissingTexts(template) => write!(
                f,
                "chat template {} needs texts that only a checkpoint with that template has; \
                 name another with --chat-template",
                template.name()
            ),
            TokenizerError::NoTemplate => f.write_str(
                "the tokenizer file lacks the checkpoint's chat template; export it again, or name one with --chat-template",
            ),
            TokenizerError::Template(what) => write!(f, "the model's chat template: {what}"),
            TokenizerError::MissingSpecial { template, token } => {
                let template = template.name();
                write!(
                    f,
                    "chat template {template} needs the special token {token}, which the vocabulary lacks"
                )
            }
        }
    }
}

impl std::error::Error for TokenizerError {}

impl From<FormatError> for TokenizerError {
    fn from(error: FormatError) -> TokenizerError {
        TokenizerError::Format(error)
    }
}
