//! Pieces of a part that the board already has, in other files of the model.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::content::Cut;
use crate::format::model::{Extent, Header, Part};
use crate::sys::map::Map;
use crate::wire::give::{Offer, PIECE_BYTES, Rows};

/// A part that is offered, and files with other layers and rows of its model.
///
/// Places in files are compared by where their bytes stand in the file of the whole model.
pub(super) struct Kept {
    part: Part,
    head: Vec<u8>,
    files: Vec<KeptFile>,
}

struct KeptFile {
    file: File,
    /// In the order of [`Extent::from`].
    extents: Vec<Extent>,
}

impl Kept {
    /// Finds the kept files in `folder`; `None` if none is of this model.
    pub(super) fn find(
        folder: &Path,
        offer: &Offer,
        rows: Option<&Rows>,
        cut: Cut,
    ) -> Option<Kept> {
        let begin = format!("{:016x}-", offer.fingerprint);
        let is_meant = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&begin) && name.ends_with(".bin"))
        };
        let paths = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let paths = paths.filter(|path| is_meant(path));
        let opened = paths.filter_map(|path| KeptFile::open(&path, offer.fingerprint));
        let (headers, files): (Vec<_>, Vec<_>) = opened.unzip();
        let whole = headers.into_iter().next()?;
        let slice = rows.map(|rows| cut(&whole, rows)).transpose().ok()?;
        let layers = offer.layers.start as usize..offer.layers.end as usize;
        let part = whole.part(layers, slice, offer.fingerprint)?;
        let head = part.header.emit();
        (part.len_bytes() == offer.bytes).then_some(Kept { part, head, files })
    }

    /// The bytes of a piece, if all of them are here. They come from other files unchecked: the giver of the
    /// part has their hash.
    pub(super) fn piece(&self, index: u64) -> Option<Vec<u8>> {
        let start = index * PIECE_BYTES;
        let end = self.part.len_bytes().min(start + PIECE_BYTES);
        // A part with some rows has checksums of its own, which stand in no other file.
        let is_known = self.part.header.slice().is_none() || end <= self.part.header.tensors_end();
        if !is_known || start >= end {
            return None;
        }
        let mut bytes = vec![0; (end - start) as usize];
        let head = self.head.get(start as usize..).unwrap_or_default();
        let n_head = head.len().min(bytes.len());
        bytes[..n_head].copy_from_slice(&head[..n_head]);
        for (at, from, n) in self.part.within(start..end) {
            self.read(from, &mut bytes[(at - start) as usize..][..n as usize])?;
        }
        Some(bytes)
    }

    /// Reads what stands at `from` in the file of the whole model, from one file or more.
    fn read(&self, from: u64, out: &mut [u8]) -> Option<()> {
        let mut n_read = 0;
        while n_read < out.len() {
            let rest = &mut out[n_read..];
            n_read += self.files.iter().find_map(|file| file.read(from + n_read as u64, rest))?;
        }
        Some(())
    }
}

impl KeptFile {
    /// The file at `path`, and the header of the whole model's file.
    fn open(path: &Path, fingerprint: u64) -> Option<(Header, KeptFile)> {
        let header = Header::parse(Map::open(path).ok()?.as_bytes()).ok()?;
        let whole = header.whole();
        let (layers, slice) = match &header.share {
            Some(share) => (share.layers.clone(), share.slice.clone()),
            None => (0..header.n_layers, None),
        };
        let Part { header: of_part, mut extents } = whole.part(layers, slice, fingerprint)?;
        extents.sort_unstable_by_key(|extent| extent.from);
        let file = File::open(path).ok()?;
        (of_part == header).then_some((whole, KeptFile { file, extents }))
    }

    /// Reads the bytes that the file has from `from` on, and returns their number; `None` if there are none.
    fn read(&self, from: u64, out: &mut [u8]) -> Option<usize> {
        let behind = self.extents.partition_point(|extent| extent.from <= from);
        let extent = self.extents[..behind].last()?;
        let skipped = from - extent.from;
        let n = extent.bytes.checked_sub(skipped)?.min(out.len() as u64) as usize;
        self.file.read_exact_at(&mut out[..n], extent.at + skipped).ok()?;
        (n > 0).then_some(n)
    }
}
