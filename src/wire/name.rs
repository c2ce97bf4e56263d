//! Names of nodes, which a peer may have made up.

use heapless::String;

use super::WireError;

/// Most bytes of a node's name.
pub const NAME_MAX: usize = 32;

/// A node's name; control characters are replaced when it is read.
pub type Name = String<NAME_MAX>;

/// The part of `name` that fits, with '?' for control characters.
pub fn name(name: &str) -> Name {
    printable(name)
}

/// The part of `text` that fits, with '?' for control characters.
pub(super) fn printable<const N: usize>(text: &str) -> String<N> {
    let mut out = String::new();
    for c in text.chars() {
        let c = if c.is_control() { '?' } else { c };
        if out.push(c).is_err() {
            break;
        }
    }
    out
}

/// The name in the first `len` of the [`NAME_MAX`] bytes at `at`.
pub(super) fn name_at(bytes: &[u8], at: usize, len: u8) -> Result<Name, WireError> {
    let stored = bytes[at..at + NAME_MAX].get(..len.into()).ok_or(WireError::Field("name"))?;
    let stored = std::str::from_utf8(stored).map_err(|_| WireError::Field("name"))?;
    Ok(name(stored))
}

/// The printable text up to the first zero or the first damaged UTF-8.
pub(super) fn text<const N: usize>(bytes: &[u8]) -> heapless::String<N> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let valid = bytes[..end].utf8_chunks().next().map_or("", |chunk| chunk.valid());
    printable(valid)
}

/// Fills `out` with the part of `text` that fits, then zeros.
pub(super) fn put_text(out: &mut [u8], text: &str) {
    out.fill(0);
    let mut len = text.len().min(out.len());
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
}
