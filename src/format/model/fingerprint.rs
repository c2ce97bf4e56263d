//! Fingerprints that identify models.

use super::header::{HEADER_LEN, Header};

/// Fingerprint of a model's content, from its header and its table of checksums. Only [`HEADER_LEN`] bytes of
/// `header` count; they include the checksum of a block of features.
pub fn fingerprint(header: &[u8], checksums: &[u8]) -> u64 {
    let mut hash = Fnv::new();
    hash.add(&header[..HEADER_LEN]);
    hash.add(checksums);
    hash.0
}

/// Fingerprint of `fingerprint`'s content together with `bytes`.
pub(super) fn fingerprint_with(fingerprint: u64, bytes: &[u8]) -> u64 {
    let mut hash = Fnv(fingerprint);
    hash.add(bytes);
    hash.0
}

impl Header {
    /// Fingerprint of the whole model's content: header and checksums of all tensors. It does not depend on
    /// packing, or on which layers the file holds. Checksums that a file does not store are computed from all
    /// of its bytes.
    ///
    /// `file` is the whole file that this header was parsed from.
    pub fn fingerprint(&self, file: &[u8]) -> u64 {
        if let Some(share) = &self.share {
            return share.fingerprint;
        }
        if let Some(packed) = self.packed {
            return packed.fingerprint;
        }
        if self.has_extension {
            return fingerprint(file, &file[self.tensors_end() as usize..]);
        }
        let crcs = self.tensors().map(|tensor| crc32fast::hash(tensor.of(file)));
        fingerprint(file, &crcs.flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
    }
}

/// FNV-1a, 64 bit (Fowler, Noll, Vo).
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
