//! PyTorch's files in builds without their reader.

use std::path::Path;

use super::stored::TensorTable;
use crate::export::error::ExportError;

/// Refuses the file at `path`.
///
/// # Errors
/// Always: says what to do.
pub(super) fn read(path: &Path, _: &[u8], _: usize) -> Result<TensorTable, ExportError> {
    Err(ExportError::Unsupported {
        path: path.to_owned(),
        what: "files of PyTorch, which this leap was built without: take the model's safetensors \
               or GGUF files, or build leap with `--features pickle`"
            .to_owned(),
    })
}
