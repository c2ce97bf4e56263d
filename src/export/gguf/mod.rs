//! GGUF files: named values, then a table of tensors, then their bytes.
//!
//! ```text
//! u32 "GGUF", u32 version 2 or 3, u64 number of tensors, u64 number of fields
//! each field:   string key, u32 type, value
//! each tensor:  string name, u32 number of dimensions, u64 × dimensions (columns first),
//!               u32 type, u64 offset from the start of the data
//! padding to `general.alignment` (32 if the file does not say), then the data
//! ```
//!
//! A string is a u64 length and its bytes; a list is a u32 type, a u64 length and its values. Everything is
//! little-endian. [`Gguf::parse`] walks fields and table once, so that its result can be read without further checks of
//! lengths. No allocation is sized by a number in the file.

mod head;
mod reader;
mod value;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use head::ALIGNMENT;
use reader::GgufReader;

use crate::format::excerpt;
pub(super) use head::{F32, GgufHead, MAGIC};
pub(super) use value::{GgufList, GgufValue};

/// Limits far above what any model has: they bound the memory that a damaged file can ask for.
const FIELDS_MAX: u64 = 1 << 16;
const TENSORS_MAX: u64 = 1 << 16;
/// Limits of ggml.
const DIMENSIONS_MAX: u32 = 4;
const NAME_BYTES_MAX: usize = 1 << 12;
const ALIGNMENT_MAX: u64 = 1 << 20;

/// A file's fields and table of tensors.
pub(super) struct Gguf<'a> {
    fields: BTreeMap<&'a str, GgufValue<'a>>,
    /// In the order of the file.
    pub(super) tensors: Vec<GgufTensor<'a>>,
    /// Where the tensors' bytes begin.
    pub(super) data: usize,
    /// Alignment of tensors' offsets.
    pub(super) alignment: u64,
}

/// A row of the table of tensors.
pub(super) struct GgufTensor<'a> {
    pub(super) name: &'a str,
    /// Dimensions, rows first.
    pub(super) shape: Vec<usize>,
    /// ggml's number of the type.
    pub(super) dtype: u32,
    /// Offset in bytes from the start of the data.
    pub(super) offset: u64,
}

impl<'a> Gguf<'a> {
    /// Reads all but the tensors' bytes of `file`, the whole file.
    ///
    /// # Errors
    /// Says what is damaged, or which version is unknown.
    pub(super) fn parse(file: &'a [u8]) -> Result<Gguf<'a>, String> {
        let mut r = GgufReader::new(file);
        if r.take("magic", 4)? != MAGIC {
            return Err("no GGUF file: it does not start with \"GGUF\"".to_owned());
        }
        check_version(r.u32("version")?)?;
        let n_tensors = r.count("number of tensors", TENSORS_MAX)?;
        let n_fields = r.count("number of fields", FIELDS_MAX)?;
        let mut fields = BTreeMap::new();
        for _ in 0..n_fields {
            let key = name(&mut r, "key")?;
            let value =
                GgufValue::read(&mut r).map_err(|what| format!("{}: {what}", excerpt(key)))?;
            match fields.entry(key) {
                Entry::Vacant(slot) => slot.insert(value),
                Entry::Occupied(_) => {
                    return Err(format!("the field {} is there twice", excerpt(key)));
                }
            };
        }
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            tensors.push(GgufTensor::read(&mut r)?);
        }
        let mut gguf = Gguf { fields, tensors, data: 0, alignment: ALIGNMENT };
        gguf.alignment = gguf.unsigned("general.alignment")?.unwrap_or(ALIGNMENT);
        if !gguf.alignment.is_power_of_two() || gguf.alignment > ALIGNMENT_MAX {
            let found = gguf.alignment;
            return Err(format!("general.alignment is {found}, wanted a power of two"));
        }
        // A file without tensors may end before the padding.
        gguf.data = r.pos().next_multiple_of(gguf.alignment as usize).min(file.len());
        Ok(gguf)
    }

    /// The value of a field.
    pub(super) fn get(&self, key: &str) -> Option<&GgufValue<'a>> {
        self.fields.get(key)
    }

    /// A whole number that is not negative.
    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>, String> {
        self.read(key, "a whole number, not negative", GgufValue::unsigned)
    }

    /// A number above 0 that fits the model file's signed fields.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, String> {
        let size = |value: &GgufValue<'a>| {
            let size = value.unsigned().filter(|&size| size > 0 && size <= i32::MAX as u64)?;
            usize::try_from(size).ok()
        };
        self.read(key, "a whole number above 0 and below 2^31", size)
    }

    /// A number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, String> {
        self.read(key, "a number", GgufValue::number)
    }

    /// A flag.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.read(key, "true or false", GgufValue::flag)
    }

    /// A string.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        self.read(key, "a string of UTF-8", GgufValue::text)
    }

    /// A list.
    pub(super) fn list(&self, key: &str) -> Result<Option<GgufList<'a>>, String> {
        self.read(key, "a list", GgufValue::list)
    }

    fn read<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&GgufValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // Some programs write one value for each layer though all are the same.
        let found = read(value).or_else(|| read(&value.only()?));
        found.map(Some).ok_or_else(|| format!("{key} is {value}, wanted {wanted}"))
    }
}

fn check_version(version: u32) -> Result<(), String> {
    match version {
        2 | 3 => Ok(()),
        _ if matches!(version.swap_bytes(), 1..=3) => {
            Err("a big-endian GGUF file; LEAP reads little-endian ones".to_owned())
        }
        _ => Err(format!("GGUF version {version}; LEAP reads versions 2 and 3")),
    }
}

/// A string that names something.
fn name<'a>(r: &mut GgufReader<'a>, what: &str) -> Result<&'a str, String> {
    let at = r.pos();
    let bytes = r.string(what)?;
    match std::str::from_utf8(bytes) {
        Ok(name) if bytes.len() <= NAME_BYTES_MAX => Ok(name),
        _ => Err(format!("the {what} at byte {at} is no UTF-8, or too long")),
    }
}

impl<'a> GgufTensor<'a> {
    fn read(r: &mut GgufReader<'a>) -> Result<GgufTensor<'a>, String> {
        let name = name(r, "tensor name")?;
        let n_dimensions = r.u32("number of dimensions")?;
        if n_dimensions > DIMENSIONS_MAX {
            return Err(format!("tensor {} has {n_dimensions} dimensions", excerpt(name)));
        }
        let mut shape = Vec::new();
        for _ in 0..n_dimensions {
            let size = r.u64("dimension")?;
            shape.push(usize::try_from(size).map_err(|_| format!("tensor {name} is too large"))?);
        }
        shape.reverse();
        Ok(GgufTensor { name, shape, dtype: r.u32("tensor type")?, offset: r.u64("offset")? })
    }
}

#[cfg(test)]
mod tests;
