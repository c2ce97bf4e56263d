//! Why a board does not get its layers.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::channel::ChannelError;

/// Why a board does not get its layers.
#[derive(Debug)]
pub enum FetchError {
    /// The connection ended, or never was.
    Channel(ChannelError),
    /// The other board does not have these layers, in its own words.
    Refused(String),
    /// The file cannot be written.
    File(PathBuf, io::Error),
    /// The disk lacks this many bytes for the rest of the file.
    Full(PathBuf, u64),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Channel(ChannelError::Key) => {
                write!(f, "{}, or gives nothing", ChannelError::Key)
            }
            FetchError::Channel(e) => write!(f, "{e}"),
            FetchError::Refused(why) => f.write_str(why),
            FetchError::File(path, e) => write!(f, "cannot write {}: {e}", path.display()),
            FetchError::Full(folder, bytes) => write!(
                f,
                "{} has too little room: {:.1} MB are missing",
                folder.display(),
                *bytes as f64 / 1e6
            ),
        }
    }
}

impl std::error::Error for FetchError {}

impl From<ChannelError> for FetchError {
    fn from(error: ChannelError) -> FetchError {
        FetchError::Channel(error)
    }
}

impl FetchError {
    /// Whether the same call may work later without a change by the user.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, FetchError::Channel(ChannelError::Io(_)))
    }

    /// Whether the user interrupted the fetch.
    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, FetchError::Channel(ChannelError::Interrupted))
    }
}

/// The error of a message without meaning.
pub(super) fn broken(what: &'static str) -> FetchError {
    FetchError::Channel(ChannelError::Broken(what))
}
