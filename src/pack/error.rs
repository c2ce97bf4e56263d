//! Why a cache or a receipt cannot be used or written.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a cache cannot be used or built.
#[derive(Debug)]
#[non_exhaustive]
pub enum CacheError {
    /// The file cannot be read or written.
    Io {
        /// Path of the cache.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is damaged, or belongs to another model, tier or version.
    Mismatch {
        /// Path of the cache.
        path: PathBuf,
        /// The difference.
        what: &'static str,
    },
    /// The path is that of a file of another kind, which is not replaced.
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheError::Io { path, source } => {
                write!(f, "weight cache {}: {source}", path.display())
            }
            CacheError::Mismatch { path, what } => {
                write!(f, "weight cache {}: {what} does not match", path.display())
            }
            CacheError::Foreign { path } => write!(
                f,
                "{} is no file of packed weights, and is not replaced; name another file or a folder",
                path.display()
            ),
        }
    }
}

impl std::error::Error for CacheError {}
