//! The safetensors container.

use std::path::Path;

use safetensors::tensor::{SafeTensorError, SafeTensors, TensorInfo};

use super::dtype::ValueType;
use super::stored::{StoredTensor, TensorPiece, TensorTable, single};
use crate::export::error::ExportError;
use crate::format::excerpt;

/// Reads the table of `bytes`, the whole file at `path`, which is file number `file`. The
/// tensors are in the order of the file.
///
/// Each range lies inside `bytes` and is as long as type and shape say: the library checks
/// that tensors cover the file without gap or overlap.
pub(super) fn read(path: &Path, bytes: &[u8], file: usize) -> Result<TensorTable, ExportError> {
    let bad = |e| ExportError::BadFile { path: path.to_owned(), problem: explain(&e, bytes.len()) };
    let (header_len, metadata) = SafeTensors::read_metadata(bytes).map_err(bad)?;
    let data = 8 + header_len;
    let names = metadata.offset_keys().into_iter();
    Ok(names
        .filter_map(|name| {
            let stored = stored(metadata.info(&name)?, data, file);
            Some((name, stored))
        })
        .collect())
}

fn stored(info: &TensorInfo, data: usize, file: usize) -> StoredTensor {
    let start = data + info.data_offsets.0;
    let piece = |[_, cols]: [usize; 2], _| TensorPiece { file, start, strides: [cols, 1] };
    let values = single(dtype(info.dtype), &info.shape, piece);
    StoredTensor { file, shape: info.shape.clone(), values }
}

fn dtype(dtype: safetensors::Dtype) -> Result<ValueType, String> {
    match dtype {
        safetensors::Dtype::F32 => Ok(ValueType::F32),
        safetensors::Dtype::F16 => Ok(ValueType::F16),
        safetensors::Dtype::BF16 => Ok(ValueType::Bf16),
        safetensors::Dtype::I8 => Ok(ValueType::I8),
        safetensors::Dtype::F8_E4M3 => Ok(ValueType::F8E4M3),
        safetensors::Dtype::BOOL => Ok(ValueType::Bool),
        safetensors::Dtype::U8 => Ok(ValueType::U8),
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
        other => format!("damaged safetensors table: {}", excerpt(&other.to_string())),
    }
}
