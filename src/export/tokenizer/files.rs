//! Reads files that are no larger than a tokenizer may be.

use std::fs;
use std::path::Path;

use super::error::ImportError;
use crate::format::{stand_in, without_mark};
use crate::sys::file::read_file;

/// Longest tokenizer file; the largest published ones are some 30 MB.
const FILE_BYTES_MAX: u64 = 1 << 29;
/// Most JSON values; the largest published file, of half a million merges as pairs, has 1.8 million.
pub(super) const VALUES_MAX: usize = 1 << 22;

/// The bytes of the file at `path`, without a byte order mark before them.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ImportError> {
    let io = |source| ImportError::Io { path: path.to_path_buf(), source };
    let bytes = fs::metadata(path).map_err(io)?.len();
    if bytes > FILE_BYTES_MAX {
        let what = format!("{bytes} bytes are too many for a tokenizer");
        return Err(ImportError::Bad { path: path.to_path_buf(), what });
    }
    let bytes = read_file(path).map_err(io)?;
    if let Some(what) = stand_in(&bytes) {
        return Err(ImportError::Bad { path: path.to_path_buf(), what: what.to_owned() });
    }
    Ok(without_mark(&bytes).to_vec())
}
