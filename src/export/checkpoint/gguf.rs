//! Tensors of GGUF files.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::dtype::ValueType;
use super::stored::{Axis, StoredTensor, TensorPiece, TensorTable, Values, bad_tensor, grid};
use crate::export::error::ExportError;
use crate::export::gguf::{Gguf, GgufTensor};
use crate::quant::Ggml;

/// Most files that a model is split into.
const SPLITS_MAX: usize = 1000;

/// Reads the table of `bytes`, the whole file at `path`, which is file number `file`. The
/// tensors are in the order of the file.
///
/// Each tensor of a type that can be converted lies inside `bytes`, and none overlaps another.
pub(super) fn read(path: &Path, bytes: &[u8], file: usize) -> Result<TensorTable, ExportError> {
    let gguf = Gguf::parse(bytes).map_err(|problem| bad(path, problem))?;
    let (mut table, mut places) = (Vec::new(), Vec::new());
    for info in &gguf.tensors {
        let (stored, range) =
            stored(info, &gguf, bytes.len(), file).map_err(|p| bad_tensor(info.name, path, p))?;
        table.push((info.name.to_owned(), stored));
        places.push((range.start, range.end, info.name));
    }
    places.retain(|(start, end, _)| start < end);
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        None => Ok(table),
        Some(pair) => Err(bad_tensor(pair[1].2, path, format!("overlaps tensor {}", pair[0].2))),
    }
}

/// Every file of the model whose first one is at `path`, which is `bytes`.
pub(super) fn files(path: &Path, bytes: &[u8]) -> Result<Vec<PathBuf>, ExportError> {
    let refuse = |problem| bad(path, problem);
    let gguf = Gguf::parse(bytes).map_err(refuse)?;
    let count = gguf.unsigned("split.count").map_err(refuse)?.unwrap_or(0);
    if count <= 1 {
        return Ok(vec![path.to_owned()]);
    }
    let count = usize::try_from(count).ok().filter(|&count| count <= SPLITS_MAX);
    let count = count.ok_or_else(|| refuse("split.count is beyond reason".to_owned()))?;
    let name = |index: usize| format!("-{:05}-of-{count:05}.gguf", index + 1);
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let index = gguf.unsigned("split.no").map_err(refuse)?.unwrap_or(0);
    if index != 0 {
        let own = usize::try_from(index).ok().filter(|index| *index < count).map(name);
        let stem = own.and_then(|own| file_name.strip_suffix(&own)).unwrap_or("…");
        let problem = format!(
            "one of {count} files of a model; name the first, {stem}{}, with the others in its folder",
            name(0)
        );
        return Err(refuse(problem));
    }
    let Some(stem) = file_name.strip_suffix(&name(0)) else {
        let problem = format!("the first of {count} files, so its name should end in {}", name(0));
        return Err(refuse(problem));
    };
    Ok((0..count).map(|index| path.with_file_name(format!("{stem}{}", name(index)))).collect())
}

/// Refuses a model of several files of which one is not there.
pub(super) fn check_all_there(paths: &[PathBuf]) -> Result<(), ExportError> {
    let missing: Vec<&PathBuf> = paths.iter().filter(|path| !path.exists()).collect();
    let (Some(first), Some(path)) = (missing.first(), paths.first()) else { return Ok(()) };
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let others = match missing.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let n = paths.len();
    let problem = format!(
        "the first of the {n} files of a model, without {name}{others} in this folder; \
         download all {n} to one folder"
    );
    Err(bad(path, problem))
}

/// Refuses the file at `path`, `bytes`, if it is not number `index` of `count`.
pub(super) fn check_split(
    path: &Path,
    bytes: &[u8],
    index: usize,
    count: usize,
) -> Result<(), ExportError> {
    let gguf = Gguf::parse(bytes).map_err(|problem| bad(path, problem))?;
    for (key, wanted) in [("split.no", index), ("split.count", count)] {
        let found = gguf.unsigned(key).map_err(|problem| bad(path, problem))?;
        if found != Some(wanted as u64) {
            let found = found.map_or("missing".to_owned(), |found| found.to_string());
            return Err(bad(path, format!("{key} is {found}, wanted {wanted}")));
        }
    }
    Ok(())
}

/// Refuses a model of several files if they hold another number of tensors than its first one, `bytes` at `path`, says.
pub(super) fn check_n_tensors(path: &Path, bytes: &[u8], found: usize) -> Result<(), ExportError> {
    let wanted = Gguf::parse(bytes).and_then(|gguf| gguf.unsigned("split.tensors.count"));
    match wanted.map_err(|problem| bad(path, problem))? {
        Some(wanted) if wanted != found as u64 => {
            let problem = format!(
                "the first of the files of a model with {wanted} tensors, and they hold {found}"
            );
            Err(bad(path, problem))
        }
        _ => Ok(()),
    }
}

fn bad(path: &Path, problem: String) -> ExportError {
    ExportError::BadFile { path: path.to_owned(), problem }
}

/// The tensor, and the bytes it takes if its type is known.
fn stored(
    info: &GgufTensor<'_>,
    gguf: &Gguf<'_>,
    file_len: usize,
    file: usize,
) -> Result<(StoredTensor, Range<usize>), String> {
    let shape = info.shape.clone();
    let dtype = match dtype(info.dtype) {
        Ok(dtype) => dtype,
        Err(other) => {
            let problem = format!("has values of type {other}, which LEAP does not convert");
            return Ok((StoredTensor { file, shape, values: Err(problem) }, 0..0));
        }
    };
    let range = range(info, dtype, gguf, file_len)?;
    let values = grid(&shape).map(|[_, cols]| {
        let piece = TensorPiece { file, start: range.start, strides: [cols, 1] };
        Values { dtype, pieces: vec![piece], axis: Axis::Rows }
    });
    Ok((StoredTensor { file, shape, values }, range))
}

fn range(
    info: &GgufTensor<'_>,
    dtype: ValueType,
    gguf: &Gguf<'_>,
    file_len: usize,
) -> Result<Range<usize>, String> {
    let (block, block_bytes) = dtype.block();
    let cols = info.shape.last().copied().unwrap_or(1);
    if !cols.is_multiple_of(block) {
        return Err(format!("has rows of {cols} values in blocks of {block}"));
    }
    if !info.offset.is_multiple_of(gguf.alignment) {
        let (offset, alignment) = (info.offset, gguf.alignment);
        return Err(format!("is at offset {offset}, no multiple of {alignment}"));
    }
    let place = || {
        let values = info.shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size))?;
        let bytes = (values / block).checked_mul(block_bytes)?;
        let start = gguf.data.checked_add(usize::try_from(info.offset).ok()?)?;
        let end = start.checked_add(bytes)?;
        (end <= file_len).then_some(start..end)
    };
    let shape = &info.shape;
    place().ok_or_else(|| format!("of shape {shape:?} ends beyond the file's {file_len} bytes"))
}

/// The type that ggml numbers `id`, or its name.
fn dtype(id: u32) -> Result<ValueType, String> {
    if let Some(kind) = Ggml::from_id(id) {
        return Ok(ValueType::Blocks(kind));
    }
    let name = match id {
        0 => return Ok(ValueType::F32),
        1 => return Ok(ValueType::F16),
        30 => return Ok(ValueType::Bf16),
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        _ => return Err(format!("number {id} of ggml")),
    };
    Err(name.to_owned())
}

#[cfg(test)]
mod tests;
