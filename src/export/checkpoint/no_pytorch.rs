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

#[cfg(test)]
mod tests {
    use super::super::Checkpoint;
    use super::*;

    #[test]
    fn pytorch_files_are_refused_with_what_to_do() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let refusals = [
            (Checkpoint::hugging_face(&golden.join("mistral-tiny")), "pytorch_model.bin: "),
            (Checkpoint::meta(&golden.join("pytorch/meta3")), "consolidated.00.pth: "),
        ];
        for (refused, file) in refusals {
            let error = refused.err().expect("the reader is not in this build").to_string();
            for part in [file, "safetensors", "--features pickle"] {
                assert!(error.contains(part), "{error}");
            }
        }
        assert!(Checkpoint::hugging_face(&golden.join("llama3-tiny")).is_ok());
    }
}
