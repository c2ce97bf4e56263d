//! Little-endian fields at fixed offsets of a buffer whose length was checked before.

/// Bytes of the header of a frame.
pub const HEADER_LEN: usize = 48;

/// The `N` bytes at `at`.
///
/// # Panics
/// If the buffer ends before them; callers check its length first.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Writes a buffer's fields one after the other.
pub(super) struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, at: 0 }
    }

    pub(super) fn put(&mut self, field: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Writes `n` reserved bytes, which are zero.
    pub(super) fn zero(&mut self, n: usize) -> &mut Self {
        self.bytes[self.at..self.at + n].fill(0);
        self.at += n;
        self
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> usize {
        self.at
    }
}

/// Writes `bytes` at `at`.
pub(super) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}
