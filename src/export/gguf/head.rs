//! Writes the head of a GGUF file: its fields, and the table of its tensors.

use super::value::{BOOL, FLOAT32, INT32, LIST, STRING, UINT32};

/// The first four bytes of a file.
pub(in crate::export) const MAGIC: &[u8; 4] = b"GGUF";
/// Version of the files that are written.
const VERSION: u32 = 3;
/// Alignment of tensors, unless a file names another.
pub(super) const ALIGNMENT: u64 = 32;
/// The type of f32 values in the table of tensors.
pub(in crate::export) const F32: u8 = 0;

/// The head of a GGUF file under construction, and the offsets of its tensors.
#[derive(Default)]
pub(in crate::export) struct GgufHead {
    fields: Vec<u8>,
    n_fields: u64,
    tensors: Vec<u8>,
    n_tensors: u64,
    /// Bytes of all tensors, each padded to the alignment.
    data_bytes: u64,
}

impl GgufHead {
    /// Adds a string.
    pub(in crate::export) fn text(&mut self, key: &str, value: &str) {
        self.field(key, STRING);
        put_string(&mut self.fields, value.as_bytes());
    }

    /// Adds a whole number.
    pub(in crate::export) fn number(&mut self, key: &str, value: u32) {
        self.field(key, UINT32);
        self.fields.extend(value.to_le_bytes());
    }

    /// Adds a float.
    pub(in crate::export) fn float(&mut self, key: &str, value: f32) {
        self.field(key, FLOAT32);
        self.fields.extend(value.to_le_bytes());
    }

    /// Adds a flag.
    pub(in crate::export) fn flag(&mut self, key: &str, value: bool) {
        self.field(key, BOOL);
        self.fields.push(value.into());
    }

    /// Adds a list of flags.
    pub(in crate::export) fn flags(&mut self, key: &str, values: &[bool]) {
        self.list(key, BOOL, values.len());
        self.fields.extend(values.iter().map(|flag| u8::from(*flag)));
    }

    /// Adds a list of strings.
    pub(in crate::export) fn texts(&mut self, key: &str, values: &[Vec<u8>]) {
        self.list(key, STRING, values.len());
        values.iter().for_each(|value| put_string(&mut self.fields, value));
    }

    /// Adds a list of whole numbers.
    pub(in crate::export) fn numbers(&mut self, key: &str, values: &[i32]) {
        self.list(key, INT32, values.len());
        self.fields.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Adds a list of floats.
    pub(in crate::export) fn floats(&mut self, key: &str, values: &[f32]) {
        self.list(key, FLOAT32, values.len());
        self.fields.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Adds a tensor of `bytes` bytes, and returns its offset from the start of the data. The shape has columns first.
    pub(in crate::export) fn tensor(
        &mut self,
        name: &str,
        (shape, kind): (&[usize], u8),
        bytes: u64,
    ) -> u64 {
        let offset = self.data_bytes;
        put_string(&mut self.tensors, name.as_bytes());
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        self.tensors.extend(shape.iter().flat_map(|size| (*size as u64).to_le_bytes()));
        self.tensors.extend(u32::from(kind).to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.n_tensors += 1;
        self.data_bytes += bytes.next_multiple_of(ALIGNMENT);
        offset
    }

    /// Bytes of all tensors.
    pub(in crate::export) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The bytes of the file before its tensors' data.
    pub(in crate::export) fn finish(&self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend(VERSION.to_le_bytes());
        head.extend(self.n_tensors.to_le_bytes());
        head.extend(self.n_fields.to_le_bytes());
        head.extend(&self.fields);
        head.extend(&self.tensors);
        head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
        head
    }

    fn field(&mut self, key: &str, kind: u32) {
        put_string(&mut self.fields, key.as_bytes());
        self.fields.extend(kind.to_le_bytes());
        self.n_fields += 1;
    }

    fn list(&mut self, key: &str, kind: u32, len: usize) {
        self.field(key, LIST);
        self.fields.extend(kind.to_le_bytes());
        self.fields.extend((len as u64).to_le_bytes());
    }
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}
