//! The bytes of a cache file.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic "LEAW"
//! 4       u32      format version, 2
//! 8       u64      fingerprint of the model
//! 16      u32 × 2  layout of the kernels, order of the tensors
//! 24      u64      offset of the index
//! 32      u32 × 2  entries, CRC32 of the index
//! 40      u32      CRC32 of bytes 0 to 40
//! 65536            packed tensors, each at a multiple of 128
//! …                index: per entry u64 key, u64 offset, u64 bytes, u32 CRC32, u32 zero
//! ```
//!
//! Entries may share bytes. The file ends with its index.

/// First four bytes of every cache file.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LEAW");
const VERSION: u32 = 2;
/// Offset of the first tensor: the largest page size in use, so that tensors can be mapped on every system.
pub(super) const DATA_AT: u64 = 65536;
/// Alignment of tensors in bytes.
pub(super) const ALIGN: u64 = 128;
pub(super) const HEADER_LEN: usize = 44;
const ENTRY_LEN: usize = 32;

/// Model and kernels that a cache was built for. All fields must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheIdentity {
    /// Fingerprint of the model's content.
    pub fingerprint: u64,
    /// Id of the layout that the kernels read.
    pub layout: u32,
    /// Version of the tensors' order and meaning.
    pub order: u32,
}

/// One packed tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Key that the caller gave the tensor.
    pub key: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC32 of the tensor's bytes.
    pub crc: u32,
}

/// Header and index of a cache file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSummary {
    /// Model and kernels that the cache was built for.
    pub identity: CacheIdentity,
    /// Tensors, in the order of their keys.
    pub entries: Vec<CacheEntry>,
}

/// Reads header and index of `file`, the whole file's bytes.
///
/// Every entry of the result lies inside the file.
///
/// # Errors
/// The part that is damaged.
pub fn summary(file: &[u8]) -> Result<CacheSummary, &'static str> {
    let header: &[u8; HEADER_LEN] = file.first_chunk().ok_or("length")?;
    if u32_at(header, 0) != MAGIC || u32_at(header, 4) != VERSION {
        return Err("magic or format version");
    }
    if u32_at(header, 40) != crc32fast::hash(&header[..40]) {
        return Err("header checksum");
    }
    let identity = CacheIdentity {
        fingerprint: u64_at(header, 8),
        layout: u32_at(header, 16),
        order: u32_at(header, 20),
    };
    let start = usize::try_from(u64_at(header, 24)).map_err(|_| "index offset")?;
    let index = file.get(start..).ok_or("index offset")?;
    let n_entries = u32_at(header, 32) as usize;
    if n_entries.checked_mul(ENTRY_LEN) != Some(index.len()) {
        return Err("index length");
    }
    if u32_at(header, 36) != crc32fast::hash(index) {
        return Err("index checksum");
    }
    let entries =
        index.as_chunks::<ENTRY_LEN>().0.iter().map(|entry| parse_entry(entry, start as u64));
    Ok(CacheSummary { identity, entries: entries.collect::<Result<_, _>>()? })
}

fn parse_entry(bytes: &[u8], end: u64) -> Result<CacheEntry, &'static str> {
    let entry = CacheEntry {
        key: u64_at(bytes, 0),
        offset: u64_at(bytes, 8),
        bytes: u64_at(bytes, 16),
        crc: u32_at(bytes, 24),
    };
    let is_inside = entry.offset.checked_add(entry.bytes).is_some_and(|last| last <= end);
    match is_inside && entry.offset >= DATA_AT && entry.offset.is_multiple_of(ALIGN) {
        true => Ok(entry),
        false => Err("place of a tensor"),
    }
}

/// Compares the bytes of every entry of `file` with their checksum.
///
/// # Errors
/// If the bytes of a tensor do not match.
pub fn verify(file: &[u8], entries: &[CacheEntry]) -> Result<(), &'static str> {
    let is_intact = |entry: &CacheEntry| {
        let start = entry.offset as usize;
        let bytes = file.get(start..start + entry.bytes as usize);
        bytes.is_some_and(|bytes| crc32fast::hash(bytes) == entry.crc)
    };
    match entries.iter().all(is_intact) {
        true => Ok(()),
        false => Err("checksum of a tensor"),
    }
}

/// The header of a file whose index begins at `index_at`.
pub(super) fn emit_header(
    identity: &CacheIdentity,
    index_at: u64,
    index: &[u8],
) -> [u8; HEADER_LEN] {
    let mut words: heapless::Vec<u8, HEADER_LEN> = heapless::Vec::new();
    let n_entries = (index.len() / ENTRY_LEN) as u32;
    let parts: [&[u8]; 8] = [
        &MAGIC.to_le_bytes(),
        &VERSION.to_le_bytes(),
        &identity.fingerprint.to_le_bytes(),
        &identity.layout.to_le_bytes(),
        &identity.order.to_le_bytes(),
        &index_at.to_le_bytes(),
        &n_entries.to_le_bytes(),
        &crc32fast::hash(index).to_le_bytes(),
    ];
    for part in parts {
        // The parts have 40 bytes in all.
        let _ = words.extend_from_slice(part);
    }
    let mut header = [0; HEADER_LEN];
    header[..40].copy_from_slice(&words);
    header[40..].copy_from_slice(&crc32fast::hash(&words).to_le_bytes());
    header
}

/// The index of `entries`, which are in the order of their keys.
pub(super) fn emit_index(entries: &[CacheEntry]) -> Vec<u8> {
    let mut index = Vec::with_capacity(entries.len() * ENTRY_LEN);
    for entry in entries {
        for word in [entry.key, entry.offset, entry.bytes, u64::from(entry.crc)] {
            index.extend_from_slice(&word.to_le_bytes());
        }
    }
    index
}

/// Reads four bytes, which the caller has checked to exist.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(array)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
