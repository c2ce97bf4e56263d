//! The safetensors container.

use std::path::Path;

use safetensors::tensor::{Metadata, SafeTensorError, SafeTensors};

use super::{Dtype, Stored};
use crate::export::Error;

/// Reads the table of `bytes`, the whole file at `path`, which is file number `file`.
///
/// Each range lies inside `bytes` and is as long as type and shape say: the library checks
/// that tensors cover the file without gap or overlap.
pub(super) fn read(path: &Path, bytes: &[u8], file: usize) -> Result<Vec<(String, Stored)>, Error> {
    let bad = |e| Error::BadFile { path: path.to_owned(), problem: explain(&e, bytes.len()) };
    let (header_len, metadata) = SafeTensors::read_metadata(bytes).map_err(bad)?;
    let data = 8 + header_len;
    Ok(metadata.tensors().into_keys().map(|name| stored(&metadata, name, data, file)).collect())
}

fn stored(metadata: &Metadata, name: String, data: usize, file: usize) -> (String, Stored) {
    #[expect(clippy::expect_used, reason = "the name comes from this table")]
    let info = metadata.info(&name).expect("name of the table");
    let (start, end) = info.data_offsets;
    let stored = Stored {
        file,
        dtype: dtype(info.dtype),
        shape: info.shape.clone(),
        range: data + start..data + end,
    };
    (name, stored)
}

fn dtype(dtype: safetensors::Dtype) -> Result<Dtype, String> {
    match dtype {
        safetensors::Dtype::F32 => Ok(Dtype::F32),
        safetensors::Dtype::F16 => Ok(Dtype::F16),
        safetensors::Dtype::BF16 => Ok(Dtype::Bf16),
        other => Err(format!("{other:?}")),
    }
}

fn explain(error: &SafeTensorError, len: usize) -> String {
    match error {
        SafeTensorError::HeaderTooSmall
        | SafeTensorError::HeaderTooLarge
        | SafeTensorError::InvalidHeaderLength => {
            format!("truncated or no safetensors file: its table does not fit into {len} bytes")
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("truncated or damaged: its tensors do not end where the file does, at {len}")
        }
        other => format!("damaged safetensors table: {other}"),
    }
}
