//! Numbers that tell models apart.

use super::header::{HEADER_LEN, Header};

/// Stands for the content of a model whose header and table of checksums are these. Of `header`
/// [`HEADER_LEN`] bytes count, among which is the checksum of a block of features.
pub fn fingerprint(header: &[u8], checksums: &[u8]) -> u64 {
    let mut hash = Fnv::new();
    hash.add(&header[..HEADER_LEN]);
    hash.add(checksums);
    hash.0
}

/// Stands for what `fingerprint` does, and these bytes.
pub(super) fn fingerprint_with(fingerprint: u64, bytes: &[u8]) -> u64 {
    let mut hash = Fnv(fingerprint);
    hash.add(bytes);
    hash.0
}

impl Header {
    /// Stands for the whole model's content, however its matrices are packed and whichever of
    /// its layers the file holds: the header and the checksums of all tensors. Those that a file
    /// does not store are computed, from all of its bytes.
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
