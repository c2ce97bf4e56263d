//! Entry points of the fuzz targets. They reach every value that a table promises.

use std::path::Path;

use super::stored::{TensorTable, grid};
use super::{gguf as blocks, pickle as table, pytorch as zip, safetensors as flat};

/// Reads a pickle.
pub fn pickle(bytes: &[u8]) {
    let _ = table::read(bytes);
}

/// Reads a PyTorch file and the values of its tensors.
pub fn pytorch(bytes: &[u8]) {
    visit(bytes, zip::read(Path::new("fuzz.pth"), bytes, 0));
}

/// Reads a safetensors file and the values of its tensors.
pub fn safetensors(bytes: &[u8]) {
    visit(bytes, flat::read(Path::new("fuzz.safetensors"), bytes, 0));
}

/// Reads a GGUF file and the values of its tensors.
pub fn gguf(bytes: &[u8]) {
    visit(bytes, blocks::read(Path::new("fuzz.gguf"), bytes, 0));
    let _ = blocks::files(Path::new("fuzz-00001-of-00002.gguf"), bytes);
    let _ = blocks::check_split(Path::new("fuzz.gguf"), bytes, 1, 2);
}

fn visit<E>(bytes: &[u8], table: Result<TensorTable, E>) {
    for (_, stored) in table.into_iter().flatten() {
        let (Ok([rows, cols]), Ok(values)) = (grid(&stored.shape), &stored.values) else {
            continue;
        };
        if rows == 0 || cols == 0 {
            continue;
        }
        let mut out = vec![0.0; cols];
        for row in [0, rows / 2, rows - 1] {
            for piece in &values.pieces {
                piece.widen_row(values.dtype, bytes, row, &mut out);
                let range = piece.byte_range(values.dtype, row..row + 1, cols);
                assert!(range.is_none_or(|range| range.end <= bytes.len()));
            }
        }
    }
}
