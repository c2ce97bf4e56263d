//! Why a tokenizer could not be read.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Which file is at fault, and why.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The folder holds no tokenizer.
    NotFound {
        /// The folder.
        folder: PathBuf,
    },
    /// A file could not be read.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is damaged, or asks for something that LEAP cannot do.
    Bad {
        /// The file.
        path: PathBuf,
        /// The fault, in words.
        what: String,
    },
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::NotFound { folder } => {
                let folder = folder.display();
                write!(f, "{folder}: no tokenizer.model and no tokenizer.json")
            }
            ImportError::Io { path, .. } => write!(f, "{}: cannot be read", path.display()),
            ImportError::Bad { path, what } => write!(f, "{}: {what}", path.display()),
        }
    }
}

impl std::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ImportError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
