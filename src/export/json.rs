//! JSON files of checkpoints.

use std::path::Path;

use serde_json::Value;

use super::error::ExportError;
use crate::format::json::parse;
use crate::sys::map::Map;

/// Whether a folder names a file at `path`. A link whose file is missing counts: it is to be reported, not passed over.
pub(super) fn is_named(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Reads the file at `path` if it holds no more than `values_max` values.
pub(super) fn read(path: &Path, values_max: usize) -> Result<Value, ExportError> {
    let map =
        Map::open(path).map_err(|source| ExportError::Read { path: path.to_owned(), source })?;
    parse(map.as_bytes(), values_max)
        .map_err(|problem| ExportError::BadFile { path: path.to_owned(), problem })
}
