//! The reason why a model was not found, fetched or removed.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

/// The reason why a model was not found, fetched or removed, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreError {
    /// A name that means nothing, or files that are not right.
    Input(String),
    /// The network, a disk or another program is in the way.
    Runtime(String),
    /// The caller asked for the end.
    #[cfg(feature = "pull")]
    Interrupted,
}

impl StoreError {
    /// The failure to read or write the file at `path`.
    pub(super) fn io(verb: &str, path: &Path, error: &io::Error) -> StoreError {
        StoreError::Runtime(format!("cannot {verb} {}: {error}", path.display()))
    }

    /// Files in `path` that the program they belong to does not write.
    pub(super) fn refused(path: &Path, why: &str) -> StoreError {
        StoreError::Input(format!("{}: {why}", path.display()))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Input(what) | StoreError::Runtime(what) => f.write_str(what),
            #[cfg(feature = "pull")]
            StoreError::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl Error for StoreError {}
