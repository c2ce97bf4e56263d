//! Reads the fields of a file in order. Each read names its field.

use super::FormatError;

/// Reads four bytes, which the caller has checked to exist.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(array)
}

/// A read position in `bytes`, which only moves forward.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, pos: 0 }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    pub(super) fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], FormatError> {
        let end = self.pos.checked_add(len);
        let Some(taken) = end.and_then(|end| self.bytes.get(self.pos..end)) else {
            return Err(FormatError::Truncated {
                what: what.to_owned(),
                need: self.pos as u64 + len as u64,
                have: self.bytes.len() as u64,
            });
        };
        self.pos += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(what, N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, FormatError> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, FormatError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, FormatError> {
        self.array(what).map(i32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, FormatError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn f32(&mut self, what: &'static str) -> Result<f32, FormatError> {
        self.array(what).map(f32::from_le_bytes)
    }

    pub(super) fn f64(&mut self, what: &'static str) -> Result<f64, FormatError> {
        self.array(what).map(f64::from_le_bytes)
    }
}
