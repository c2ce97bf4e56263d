//! The boards of `--boards`, and where their split is kept.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::ring::Address;
use crate::ring::plan::Board;
use crate::sys::file::AtomicFile;
use crate::wire::seal::Key;

/// Boards that were called.
#[derive(Clone)]
pub(in crate::cli) struct Fleet {
    /// This one, and what the others said of themselves, in the same order as `called`.
    pub(super) boards: Vec<Board>,
    /// Where the others are called.
    pub(super) called: Vec<Address>,
    pub(super) key: Key,
    /// Port on which this board gives layers.
    pub(super) port: u16,
    /// Where the split is kept.
    pub(super) kept_at: PathBuf,
}

impl Fleet {
    /// Keeps a split, as a ring file.
    pub(super) fn keep_split(&self, ring: &str) -> io::Result<()> {
        let mut file = AtomicFile::create(&self.kept_at)?;
        file.write_all(ring.as_bytes())?;
        file.commit()
    }
}
