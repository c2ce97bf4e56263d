//! The packed-weight cache: one file with every matrix in the layout of one kernel tier.
//!
//! The file is built once, tensor by tensor, then mapped read-only and shared by all
//! processes that run the same model on the same tier. What is stored is opaque here: bytes
//! under a key. [`Cache`] offers the four calls of a weights-cache provider (as XNNPACK's):
//! [`look_up`](Builder::look_up), [`reserve_space`](Builder::reserve_space),
//! [`look_up_or_insert`](Builder::look_up_or_insert) while building, and
//! [`offset_to_addr`](Cache::offset_to_addr) on what was built.
//!
//! A file that does not match its [`Identity`] is never patched: it is built anew, under a
//! temporary name, and renamed when it is complete. Whoever builds one has compared the weights
//! with their checksums; a [`Receipt`] tells later starts of that.

mod cache;
mod file;
mod receipt;

use std::fmt;
use std::io;
use std::path::PathBuf;

pub use cache::{Builder, Cache};
pub use file::{Entry, Identity, MAGIC, Summary, summary, verify};
pub use receipt::Receipt;

/// Why a cache cannot be used or built.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read or written.
    Io {
        /// Path of the cache.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is damaged, or belongs to another model, tier or version.
    Mismatch {
        /// Path of the cache.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => write!(f, "weight cache {}: {source}", path.display()),
            Error::Mismatch { path, what } => {
                write!(f, "weight cache {}: {what} does not match", path.display())
            }
        }
    }
}

impl std::error::Error for Error {}
