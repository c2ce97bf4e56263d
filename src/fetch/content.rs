//! The bytes of a model file that boards get.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::format::model::{Header, Part};
use crate::wire::give::PIECE_BYTES;

/// A model file whose layers are given. It stays the same file whatever becomes of its name.
pub(crate) struct Content {
    file: File,
    header: Header,
    fingerprint: u64,
}

/// A part of it, as a file of its own.
pub(super) struct PartBytes<'a> {
    file: &'a File,
    head: Vec<u8>,
    part: Part,
}

impl Content {
    /// The file at `path`, which has this header and is of the model with this fingerprint.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(path: &Path, header: &Header, fingerprint: u64) -> io::Result<Content> {
        Ok(Content { file: File::open(path)?, header: header.clone(), fingerprint })
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn n_layers(&self) -> usize {
        self.header.n_layers
    }

    /// The part with these layers, or why there is none.
    pub(super) fn part(&self, layers: Range<usize>) -> Result<PartBytes<'_>, String> {
        let Range { start, end } = layers.clone();
        let part = self.header.part(layers, self.fingerprint).ok_or_else(|| {
            let n_layers = self.header.n_layers;
            match &self.header.share {
                _ if !self.header.has_extension => {
                    "its model file has no checksums; `leap export` writes one that has".to_owned()
                }
                Some(share) => format!(
                    "it has layers {}..{} of {n_layers}, and not {start}..{end}",
                    share.layers.start, share.layers.end
                ),
                None => format!("{start}..{end} are no layers of 0..{n_layers}"),
            }
        })?;
        Ok(PartBytes { file: &self.file, head: part.header.emit(), part })
    }
}

impl PartBytes<'_> {
    pub(super) fn len(&self) -> u64 {
        self.part.len_bytes()
    }

    /// Puts a piece into `out`, whose length follows; `None` if there is no such piece.
    ///
    /// # Errors
    /// What reading gives.
    pub(super) fn piece(&self, index: u32, out: &mut Vec<u8>) -> io::Result<Option<()>> {
        let start = u64::from(index) * PIECE_BYTES;
        let end = self.len().min(start + PIECE_BYTES);
        if start >= end {
            return Ok(None);
        }
        out.resize((end - start) as usize, 0);
        let head = self.head.get(start as usize..).unwrap_or_default();
        let n_head = head.len().min(out.len());
        out[..n_head].copy_from_slice(&head[..n_head]);
        for extent in &self.part.extents {
            let (first, last) = (extent.at.max(start), (extent.at + extent.bytes).min(end));
            if first < last {
                let place = (first - start) as usize..(last - start) as usize;
                self.file.read_exact_at(&mut out[place], extent.from + (first - extent.at))?;
            }
        }
        Ok(Some(()))
    }
}
