//! PyTorch's container: a zip archive of a pickle and of each storage's bytes.
//!
//! The archive holds, in a folder of any name, `data.pkl` ([`pickle`]), `data/KEY` for every
//! storage, and `byteorder`. Nothing in it is compressed, so tensors are used where they lie.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use rawzip::{CompressionMethod, ZipArchive, ZipFileHeaderRecord, ZipSliceArchive};

use super::dtype::ValueType;
use super::pickle::{self, PickledTensor};
use super::stored::{StoredTensor, TensorPiece, TensorTable, bad_tensor, single};
use crate::export::error::ExportError;
use crate::format::excerpt;

/// Most files of an archive; the largest published models have some 1200 tensors a file.
const ENTRIES_MAX: usize = 1 << 16;

/// How an archive begins.
const ZIP: &[u8] = b"PK\x03\x04";
/// How files of PyTorch before 1.6 begin: a pickle of a number that is always the same.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";

/// Reads the tensors of `bytes`, the whole file at `path`, which is file number `file`. Each
/// value of each tensor lies inside `bytes`.
pub(super) fn read(path: &Path, bytes: &[u8], file: usize) -> Result<TensorTable, ExportError> {
    let bad = |problem| ExportError::BadFile { path: path.to_owned(), problem };
    check_magic(bytes).map_err(bad)?;
    let archive = ZipArchive::from_slice(bytes).map_err(|e| bad(damaged(&e)))?;
    let entries = Entries::read(&archive).map_err(bad)?;
    let file_of = |name: &str| entries.find(name).map(|range| &bytes[range]);
    if file_of("byteorder").is_some_and(|order| order != b"little") {
        return Err(
            bad("was written by a big-endian machine; save it again on another".to_owned()),
        );
    }
    let Some(table) = file_of("data.pkl") else {
        return Err(bad("no weights saved by PyTorch: data.pkl is missing".to_owned()));
    };
    let tensors = pickle::read(table).map_err(|what| bad(format!("data.pkl: {what}")))?;
    let stored = tensors.into_iter().map(|(name, tensor)| {
        let place = entries.find(&format!("data/{}", tensor.storage.key));
        let stored = place_in(file, place, tensor);
        Ok((name.to_owned(), stored.map_err(|problem| bad_tensor(name, path, problem))?))
    });
    stored.collect()
}

fn check_magic(bytes: &[u8]) -> Result<(), String> {
    if bytes.starts_with(ZIP) {
        return Ok(());
    }
    let problem = match bytes {
        [] => "the file is empty",
        _ if bytes.starts_with(LEGACY) => {
            "has the format of PyTorch before 1.6: load it with PyTorch and save it again \
             (torch.save(torch.load(file, map_location=\"cpu\"), file))"
        }
        _ => "no PyTorch file: it does not begin as a zip archive does",
    };
    Err(problem.to_owned())
}

fn damaged(error: &rawzip::Error) -> String {
    format!("truncated or damaged zip archive: {error}")
}

/// The files of an archive by name, as ranges of its bytes.
struct Entries<'a> {
    /// The folder they are all in, with a slash.
    root: &'a str,
    ranges: HashMap<&'a str, Range<usize>>,
}

impl<'a> Entries<'a> {
    /// Reads the directory of `archive`. No two files share a byte.
    fn read(archive: &'a ZipSliceArchive<&[u8]>) -> Result<Entries<'a>, String> {
        let mut places: Vec<(usize, Range<usize>, &str)> = Vec::new();
        let mut records = archive.entries();
        while let Some(record) = records.next_entry().map_err(|e| damaged(&e))? {
            if places.len() == ENTRIES_MAX {
                return Err(format!("the archive has more than {ENTRIES_MAX} files"));
            }
            let (header, range) = place_of(archive, &record)?;
            places.push((header, range, name_of(&record)?));
        }
        let root = places.first().and_then(|(.., name)| name.split_inclusive('/').next());
        places.sort_unstable_by_key(|&(header, ..)| header);
        let pairs = places.iter().zip(places.iter().skip(1));
        let overlap = pairs.into_iter().find(|(first, second)| first.1.end > second.0);
        if let Some(((.., first), (.., second))) = overlap {
            return Err(format!("{first} and {second} overlap in the archive"));
        }
        let n = places.len();
        let ranges: HashMap<_, _> =
            places.into_iter().map(|(_, range, name)| (name, range)).collect();
        match ranges.len() == n {
            true => Ok(Entries { root: root.unwrap_or_default(), ranges }),
            false => Err("the archive has two files of one name".to_owned()),
        }
    }

    fn find(&self, name: &str) -> Option<Range<usize>> {
        self.ranges.get(format!("{}{name}", self.root).as_str()).cloned()
    }
}

fn name_of<'a>(record: &ZipFileHeaderRecord<'a>) -> Result<&'a str, String> {
    let name = str::from_utf8(record.file_path().as_bytes());
    name.map_err(|_| "a name in the archive is not UTF-8".to_owned())
}

/// Where a file's header begins, and where its bytes are.
fn place_of(
    archive: &ZipSliceArchive<&[u8]>,
    record: &ZipFileHeaderRecord<'_>,
) -> Result<(usize, Range<usize>), String> {
    let name = name_of(record)?;
    if record.flags().is_encrypted() {
        return Err(format!("{} is encrypted", excerpt(name)));
    }
    let (packed, whole) = (record.compressed_size_hint(), record.uncompressed_size_hint());
    if record.compression_method() != CompressionMethod::STORE || packed != whole {
        return Err(format!(
            "{name} is compressed, which PyTorch's own files are not: load it with PyTorch and \
             save it again"
        ));
    }
    let entry = archive.get_entry(record.wayfinder()).map_err(|e| damaged(&e))?;
    // Both are inside a slice.
    let (start, end) = entry.compressed_data_range();
    Ok((record.local_header_offset() as usize, start as usize..end as usize))
}

/// The tensor of file number `file` whose storage has the bytes `place`.
fn place_in(
    file: usize,
    place: Option<Range<usize>>,
    tensor: PickledTensor<'_>,
) -> Result<StoredTensor, String> {
    let key = tensor.storage.key;
    let place =
        place.ok_or_else(|| format!("is in data/{}, which the archive lacks", excerpt(key)))?;
    if let Ok(dtype) = tensor.storage.dtype {
        check_extent(&tensor, dtype, place.len())?;
    }
    let PickledTensor { storage, offset, shape, strides } = tensor;
    let dtype = storage.dtype.map_err(str::to_owned);
    // The offset of an empty tensor means nothing.
    let offset = if shape.contains(&0) { 0 } else { offset };
    let values = single(dtype, &shape, |[_, cols], dtype| TensorPiece {
        file,
        start: place.start + dtype.bytes(offset),
        strides: match strides[..] {
            // The stride of a single column means nothing.
            [rows, _] if cols == 1 => [rows, 1],
            [rows, cols] => [rows, cols],
            [step] if cols > 1 => [0, step],
            _ => [0, 1],
        },
    });
    Ok(StoredTensor { file, shape, values })
}

/// Checks that all values lie in the storage of `bytes` bytes, each in a place of its own.
fn check_extent(tensor: &PickledTensor<'_>, dtype: ValueType, bytes: usize) -> Result<(), String> {
    let PickledTensor { storage, offset, shape, strides } = tensor;
    if storage.len.checked_mul(dtype.bytes(1)).is_none_or(|wanted| wanted > bytes) {
        return Err(format!(
            "is in data/{}, which is too short: {bytes} bytes for {} values of type {dtype:?}",
            storage.key, storage.len
        ));
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let mut steps: Vec<(usize, usize)> =
        strides.iter().zip(shape).filter(|&(_, &size)| size > 1).map(|(&a, &b)| (a, b)).collect();
    steps.sort_unstable();
    // Distance of the last value from the first, over the dimensions seen.
    let mut extent = 0_usize;
    for (stride, size) in steps {
        if stride <= extent {
            return Err(format!("has values that overlap: shape {shape:?}, strides {strides:?}"));
        }
        extent = stride.saturating_mul(size - 1).saturating_add(extent);
    }
    match extent.checked_add(*offset).is_some_and(|last| last < storage.len) {
        true => Ok(()),
        false => Err(format!(
            "reaches beyond data/{}, which has {} values: shape {shape:?}, strides {strides:?}, \
             first value {offset}",
            storage.key, storage.len
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pytorch");
        std::fs::read(folder.join(name)).unwrap()
    }

    #[test]
    fn file_cut_anywhere_is_refused() {
        let bytes = golden("meta3/consolidated.00.pth");
        let path = Path::new("consolidated.00.pth");
        assert_eq!(read(path, &bytes, 0).unwrap().len(), 12);
        for len in 0..bytes.len() {
            assert!(read(path, &bytes[..len], 0).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn tensors_lie_in_the_file_as_saved() {
        let bytes = golden("views/pytorch_model.bin");
        let table = read(Path::new("pytorch_model.bin"), &bytes, 7).unwrap();
        let piece = |name: &str| {
            let (_, stored) = table.iter().find(|(found, _)| found == name).unwrap();
            stored.values.as_ref().unwrap().pieces[0]
        };
        let layer = |name: &str| piece(&format!("model.layers.0.{name}.weight"));
        // A slice of the matrix that wq, wk and wv share, the column of one, a transpose.
        let [q, k] = ["self_attn.q_proj", "self_attn.k_proj"].map(layer);
        assert_eq!((k.start - q.start, k.strides), (2 * 32 * 32, [32, 1]));
        assert_eq!(layer("input_layernorm").strides, [0, 3]);
        let strides: Vec<_> = table
            .iter()
            .filter_map(|(_, stored)| {
                let values = stored.values.as_ref().unwrap();
                (stored.shape == [24, 32]).then_some(values.pieces[0].strides)
            })
            .collect();
        assert_eq!(strides, [[1, 24], [1, 24]]);
        assert!(table.iter().all(|(_, stored)| stored.file == 7));
    }
}
