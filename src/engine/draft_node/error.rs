//! Why a draft node does not draft.

use std::fmt;

use crate::channel::ChannelError;
use crate::transport::TransportError;

/// Why the draft node does not draft.
#[derive(Debug)]
pub enum DraftNodeError {
    /// The node's host name cannot be resolved.
    Place(TransportError),
    /// The connection ended, or could not be made.
    Channel(ChannelError),
    /// The node refuses, with this reason.
    Refused(String),
    /// The node's model has another number of tokens.
    Vocabulary {
        /// Number of tokens of the node's model.
        node: u32,
        /// Number of tokens of the own model.
        wanted: u32,
    },
    /// A token of the node's model differs.
    Token {
        /// Id of the token.
        id: u32,
        /// The token's bytes on the node, possibly truncated.
        node: Vec<u8>,
        /// The token's bytes in the own model.
        wanted: Vec<u8>,
    },
    /// Some tokens of the node's model differ.
    Tokens,
}

impl fmt::Display for DraftNodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = "wanted a model of the same tokenizer";
        match self {
            DraftNodeError::Place(e) => write!(f, "{e}"),
            DraftNodeError::Channel(ChannelError::Key) => {
                write!(f, "{}, or is no draft node", ChannelError::Key)
            }
            DraftNodeError::Channel(e) => write!(f, "{e}"),
            DraftNodeError::Refused(why) => f.write_str(why),
            DraftNodeError::Vocabulary { node, wanted } => {
                write!(f, "it knows {node} tokens, the model {wanted}; {same}")
            }
            DraftNodeError::Token { id, node, wanted } => {
                let [node, wanted] = [node, wanted].map(|bytes| String::from_utf8_lossy(bytes));
                write!(f, "token {id} is {node:?}, the model's {wanted:?}; {same}")
            }
            DraftNodeError::Tokens => write!(f, "its tokens are others; {same}"),
        }
    }
}

impl std::error::Error for DraftNodeError {}

impl From<ChannelError> for DraftNodeError {
    fn from(error: ChannelError) -> DraftNodeError {
        DraftNodeError::Channel(error)
    }
}

impl DraftNodeError {
    /// Whether the user ended the work.
    pub fn is_interruption(&self) -> bool {
        matches!(self, DraftNodeError::Channel(ChannelError::Interrupted))
    }

    /// Whether the node's model can never be used: its tokens differ.
    pub fn is_of_tokens(&self) -> bool {
        matches!(self, DraftNodeError::Vocabulary { .. } | DraftNodeError::Token { .. })
    }
}

/// The error of a node that breaks the protocol, which `what` describes.
pub(super) fn broken(what: &'static str) -> DraftNodeError {
    DraftNodeError::Channel(ChannelError::Broken(what))
}
