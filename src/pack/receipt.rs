//! The note that a model's weights were compared with their checksums, so that later starts of the
//! same file need not.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic "LEAR"
//! 4       u32      format version, 1
//! 8       u64      inode of the model's file
//! 16      u64      its length
//! 24      i64 × 2  when it was written to, and when it changed, in nanoseconds
//! 40      u64      fingerprint of the model
//! 48      u32 × 2  layers that were compared: the first, and the one after the last
//! 56      u32      1 if embedding, final norm and classifier were too, else 0
//! 60      u32      CRC32 of bytes 0 to 60
//! ```

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Error;
use super::file::{u32_at, u64_at};
use crate::sys::file::AtomicFile;
use crate::sys::map::Stamp;

const MAGIC: u32 = u32::from_le_bytes(*b"LEAR");
const VERSION: u32 = 1;
const LEN: usize = 64;

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The model's file as it was then.
    pub stamp: Stamp,
    /// Stands for the model's content.
    pub fingerprint: u64,
    /// First layer and layer after the last.
    pub layers: (u32, u32),
    /// Whether embedding, final norm and classifier were compared too.
    pub has_ends: bool,
}

impl Receipt {
    /// The receipt in `folder` for a file that still has this stamp.
    pub fn read(folder: &Path, stamp: &Stamp) -> Option<Receipt> {
        let bytes = fs::read(place(folder, stamp)).ok()?;
        let receipt = Receipt::parse(bytes.as_slice().try_into().ok()?)?;
        (receipt.stamp == *stamp).then_some(receipt)
    }

    /// Leaves the receipt in `folder`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let path = place(folder, &self.stamp);
        let io_error = |source| Error::Io { path: path.clone(), source };
        let mut file = AtomicFile::create(&path).map_err(io_error)?;
        file.write_all(&self.emit()).map_err(io_error)?;
        file.commit().map_err(io_error)
    }

    fn parse(bytes: &[u8; LEN]) -> Option<Receipt> {
        let is_sound = u32_at(bytes, 0) == MAGIC
            && u32_at(bytes, 4) == VERSION
            && u32_at(bytes, 60) == crc32fast::hash(&bytes[..60]);
        is_sound.then(|| Receipt {
            stamp: Stamp {
                inode: u64_at(bytes, 8),
                bytes: u64_at(bytes, 16),
                modified_ns: u64_at(bytes, 24).cast_signed(),
                changed_ns: u64_at(bytes, 32).cast_signed(),
            },
            fingerprint: u64_at(bytes, 40),
            layers: (u32_at(bytes, 48), u32_at(bytes, 52)),
            has_ends: u32_at(bytes, 56) != 0,
        })
    }

    fn emit(&self) -> [u8; LEN] {
        let Stamp { inode, bytes, modified_ns, changed_ns } = self.stamp;
        let longs = [
            inode,
            bytes,
            modified_ns.cast_unsigned(),
            changed_ns.cast_unsigned(),
            self.fingerprint,
        ];
        let words = [self.layers.0, self.layers.1, u32::from(self.has_ends)];
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        for (out, long) in out[8..48].as_chunks_mut().0.iter_mut().zip(longs) {
            *out = long.to_le_bytes();
        }
        for (out, word) in out[48..60].as_chunks_mut().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
        let crc = crc32fast::hash(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
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
        let receipt = Receipt { stamp, fingerprint: 1 << 63, layers: (2, 9), has_ends: true };
        assert_eq!(Receipt::read(&folder, &stamp), None);
        receipt.write(&folder).unwrap();
        assert_eq!(Receipt::read(&folder, &stamp), Some(receipt));
        assert_eq!(Receipt::read(&folder, &Stamp { changed_ns: 0, ..stamp }), None);
        assert_eq!(Receipt::read(&folder, &Stamp { inode: 8, ..stamp }), None);
        let path = place(&folder, &stamp);
        let good = fs::read(&path).unwrap();
        for at in 0..LEN {
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
