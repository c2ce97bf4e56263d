//! A note that a model's weights were compared with their checksums, so that later starts with the same file
//! can skip it.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic "LEAR"
//! 4       u32      format version, 2
//! 8       u64      inode of the model's file
//! 16      u64      length of the model's file
//! 24      i64 × 2  times of its last modification and of its last status change, in nanoseconds
//! 40      u64      fingerprint of the model
//! 48      u32      number of the model's parts
//! 52               a bit for each part, set if it was compared, the lowest bit first; zeros up to a byte
//! …       u32      CRC32 of everything before
//! ```
//!
//! The caller defines the parts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::error::CacheError;
use super::file::{u32_at, u64_at};
use crate::sys::file::AtomicFile;
use crate::sys::map::Stamp;

const MAGIC: u32 = u32::from_le_bytes(*b"LEAR");
const VERSION: u32 = 2;
/// Bytes before the parts' bits.
const HEAD_LEN: usize = 52;

/// The parts of a model file that were compared with their checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Stamp of the model's file at that time.
    pub stamp: Stamp,
    /// Fingerprint of the model's content.
    pub fingerprint: u64,
    /// Whether each part was compared.
    pub checked: Vec<bool>,
}

impl Receipt {
    /// The receipt in `folder` for the file with this stamp; `None` if there is none or the file has changed.
    pub fn read(folder: &Path, stamp: &Stamp) -> Option<Receipt> {
        let bytes = fs::read(place(folder, stamp)).ok()?;
        let receipt = Receipt::parse(&bytes)?;
        (receipt.stamp == *stamp).then_some(receipt)
    }

    /// Writes the receipt to `folder`.
    ///
    /// # Errors
    /// If the receipt cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), CacheError> {
        let path = place(folder, &self.stamp);
        let io_error = |source| CacheError::Io { path: path.clone(), source };
        let mut file = AtomicFile::create(&path).map_err(io_error)?;
        file.write_all(&self.emit()).map_err(io_error)?;
        file.commit().map_err(io_error)
    }

    fn parse(bytes: &[u8]) -> Option<Receipt> {
        let (rest, crc) = bytes.split_last_chunk()?;
        let (head, bits) = rest.split_at_checked(HEAD_LEN)?;
        let is_sound = u32_at(head, 0) == MAGIC
            && u32_at(head, 4) == VERSION
            && u32::from_le_bytes(*crc) == crc32fast::hash(rest);
        let n_parts = u32_at(head, 48) as usize;
        let bit = |part: usize| bits[part / 8] >> (part % 8) & 1 == 1;
        (is_sound && bits.len() == n_parts.div_ceil(8)).then(|| Receipt {
            stamp: Stamp {
                inode: u64_at(head, 8),
                bytes: u64_at(head, 16),
                modified_ns: u64_at(head, 24).cast_signed(),
                changed_ns: u64_at(head, 32).cast_signed(),
            },
            fingerprint: u64_at(head, 40),
            checked: (0..n_parts).map(bit).collect(),
        })
    }

    fn emit(&self) -> Vec<u8> {
        let Stamp { inode, bytes, modified_ns, changed_ns } = self.stamp;
        let times = [modified_ns, changed_ns].map(i64::cast_unsigned);
        let mut out = [MAGIC.to_le_bytes(), VERSION.to_le_bytes()].concat();
        for long in [inode, bytes, times[0], times[1], self.fingerprint] {
            out.extend_from_slice(&long.to_le_bytes());
        }
        out.extend_from_slice(&(self.checked.len() as u32).to_le_bytes());
        for parts in self.checked.chunks(8) {
            out.push(parts.iter().rev().fold(0, |byte, &part| byte << 1 | u8::from(part)));
        }
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }
}

fn place(folder: &Path, stamp: &Stamp) -> PathBuf {
    folder.join(format!("{:x}-{:x}.checked", stamp.inode, stamp.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_for_one_state_of_one_file() {
        let folder = std::env::temp_dir().join(format!("leap-receipt-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let stamp = Stamp { inode: 7, bytes: 1 << 40, modified_ns: -5, changed_ns: i64::MAX };
        let checked = (0..21).map(|part| part % 3 == 1).collect();
        let receipt = Receipt { stamp, fingerprint: 1 << 63, checked };
        assert_eq!(Receipt::read(&folder, &stamp), None);
        receipt.write(&folder).unwrap();
        assert_eq!(Receipt::read(&folder, &stamp), Some(receipt.clone()));
        assert_eq!(Receipt::read(&folder, &Stamp { changed_ns: 0, ..stamp }), None);
        assert_eq!(Receipt::read(&folder, &Stamp { inode: 8, ..stamp }), None);
        let path = place(&folder, &stamp);
        let good = fs::read(&path).unwrap();
        assert_eq!(good.len(), HEAD_LEN + 3 + 4);
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(Receipt::read(&folder, &stamp), None, "{at}");
            fs::write(&path, &good[..at]).unwrap();
            assert_eq!(Receipt::read(&folder, &stamp), None, "{at}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
