//! The bytes of a model file that boards get.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::format::model::{HEADER_LEN, Header, Part, Slice, Tensor};
use crate::wire::give::{PIECE_BYTES, Rows};

/// The rows of a node of a team in a model with this header, or the reason why there is no such node.
pub(crate) type Cut = fn(&Header, &Rows) -> Result<Slice, String>;

/// Bytes of a file that are read at once to compute a checksum.
const READ_BYTES: usize = 1 << 18;

/// A model file whose layers are given. It stays the same file even if it is renamed.
pub(crate) struct Content {
    path: PathBuf,
    file: File,
    /// The file's state when its tensors were compared.
    stamp: Mutex<Stamp>,
    /// Header and checksums of the file at that time.
    identity: Vec<u8>,
    header: Header,
    fingerprint: u64,
    cut: Cut,
    /// Tensors that are known to match their checksums.
    matching: Mutex<Vec<bool>>,
}

/// Length and time of the last change of a file, which show that it was written to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp(u64, Option<SystemTime>);

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let about = file.metadata()?;
        Ok(Stamp(about.len(), about.modified().ok()))
    }
}

/// A part of a model file, as a file of its own.
pub(super) struct PartBytes<'a> {
    content: &'a Content,
    head: Vec<u8>,
    part: Part,
    /// Known checksums of a part that has only some rows; empty for other parts.
    checksums: RefCell<Vec<Option<u32>>>,
}

impl Content {
    /// The file at `path`, which has this header and is of the model with this fingerprint.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(
        path: &Path,
        header: &Header,
        fingerprint: u64,
        cut: Cut,
    ) -> io::Result<Content> {
        let matching = Mutex::new(vec![false; header.n_tensors()]);
        let (path, file, header) = (path.to_owned(), File::open(path)?, header.clone());
        let stamp = Mutex::new(Stamp::of(&file)?);
        let identity = identity(&file, &header)?;
        Ok(Content { path, file, stamp, identity, header, fingerprint, cut, matching })
    }

    /// Fails if other bytes were written into the file since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), String> {
        let mut stamp = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Stamp::of(&self.file).map_err(|e| self.unreadable(&e))?;
        if *stamp == now {
            return Ok(());
        }
        let overwritten = || {
            let path = self.path.display();
            format!("its model file {path} was overwritten while it ran: start that master again")
        };
        // Without checksums the change cannot be checked.
        if !self.header.has_extension {
            return Err(overwritten());
        }
        // Another model's file has checksums that fit it.
        if identity(&self.file, &self.header).ok().as_ref() != Some(&self.identity) {
            return Err(overwritten());
        }
        // A changed time alone does not mean other bytes.
        self.matching.lock().unwrap_or_else(PoisonError::into_inner).fill(false);
        for tensor in self.header.tensors() {
            if let Err(e) = self.check(&tensor) {
                log::debug!("{}: {e}", self.path.display());
                return Err(overwritten());
            }
        }
        *stamp = now;
        Ok(())
    }

    fn unreadable(&self, error: &io::Error) -> String {
        format!("its model file {} cannot be read: {error}", self.path.display())
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(super) fn n_layers(&self) -> usize {
        self.header.n_layers
    }

    /// The part with these layers, or these rows of them, or why there is none.
    pub(super) fn part(
        &self,
        layers: Range<usize>,
        rows: Option<&Rows>,
    ) -> Result<PartBytes<'_>, String> {
        self.check_unchanged()?;
        let Range { start, end } = layers.clone();
        let slice = rows.map(|rows| (self.cut)(&self.header, rows)).transpose()?;
        let part = self.header.part(layers, slice, self.fingerprint).ok_or_else(|| {
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
        let n_checksums = part.header.slice().map_or(0, |_| part.header.n_tensors());
        let checksums = RefCell::new(vec![None; n_checksums]);
        Ok(PartBytes { content: self, head: part.header.emit(), part, checksums })
    }

    /// Compares tensor `id` with its checksum, unless that was done before.
    fn check(&self, of: &Tensor) -> io::Result<()> {
        let found = self.header.tensors().enumerate().find(|(_, tensor)| tensor.id == of.id);
        let Some((index, tensor)) = found else { return Ok(()) };
        // A list of flags is sound even after a panic.
        let matching = || self.matching.lock().unwrap_or_else(PoisonError::into_inner);
        if matching()[index] {
            return Ok(());
        }
        let mut stored = [0; 4];
        self.file.read_exact_at(&mut stored, self.header.tensors_end() + 4 * index as u64)?;
        let place = tensor.offset..tensor.offset + tensor.bytes;
        let crc = crc(place, &mut |at, out| self.file.read_exact_at(out, at))?;
        if crc != u32::from_le_bytes(stored) {
            let what = format!("its model file is damaged: {}", of.id);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        matching()[index] = true;
        Ok(())
    }
}

impl PartBytes<'_> {
    pub(super) fn len(&self) -> u64 {
        self.part.len_bytes()
    }

    /// Fingerprint of the part's rows; 0 if it has all rows.
    pub(super) fn rows(&self) -> u64 {
        let fingerprint = self.content.fingerprint;
        self.part.header.slice().map_or(0, |_| self.part.header.fingerprint_of_rows(fingerprint))
    }

    /// Reads a piece into `out`, which gets the piece's length; `None` if there is no such piece.
    ///
    /// # Errors
    /// If reading fails; for a part of some rows, also if the file does not match its checksums.
    pub(super) fn piece(&self, index: u32, out: &mut Vec<u8>) -> io::Result<Option<()>> {
        let start = u64::from(index) * PIECE_BYTES;
        let end = self.len().min(start + PIECE_BYTES);
        if start >= end {
            return Ok(None);
        }
        if self.part.header.slice().is_some() {
            self.sum_up(start..end)?;
        }
        out.clear();
        out.resize((end - start) as usize, 0);
        self.read(start, out)?;
        Ok(Some(()))
    }

    /// Reads the part's bytes from `start` on.
    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        let end = start + out.len() as u64;
        let head = self.head.get(start as usize..).unwrap_or_default();
        let n_head = head.len().min(out.len());
        out[..n_head].copy_from_slice(&head[..n_head]);
        for (at, from, n) in self.part.within(start..end) {
            let place = &mut out[(at - start) as usize..][..n as usize];
            self.content.file.read_exact_at(place, from)?;
        }
        let table = self.part.header.tensors_end();
        for (index, checksum) in self.checksums.borrow().iter().enumerate() {
            for (at, byte) in (table + 4 * index as u64..).zip(checksum.unwrap_or(0).to_le_bytes())
            {
                if (start..end).contains(&at) {
                    out[(at - start) as usize] = byte;
                }
            }
        }
        Ok(())
    }

    /// Computes the checksums of the tensors in `range`; of all tensors if the range has checksums in it.
    /// Each tensor is summed up whole.
    fn sum_up(&self, range: Range<u64>) -> io::Result<()> {
        let needs_all = range.end > self.part.header.tensors_end();
        for (index, tensor) in self.part.header.tensors().enumerate() {
            let place = tensor.offset..tensor.offset + tensor.bytes;
            let is_in = place.start < range.end && range.start < place.end;
            let is_known = self.checksums.borrow()[index].is_some();
            if is_known || !(is_in || needs_all) {
                continue;
            }
            self.content.check(&tensor)?;
            let crc = crc(place, &mut |at, out| self.read(at, out))?;
            self.checksums.borrow_mut()[index] = Some(crc);
        }
        Ok(())
    }
}

/// The header of `file`, and its checksums if it has some.
fn identity(file: &File, header: &Header) -> io::Result<Vec<u8>> {
    let n_checksums = if header.has_extension { header.n_tensors() } else { 0 };
    let mut bytes = vec![0; HEADER_LEN + 4 * n_checksums];
    let (head, checksums) = bytes.split_at_mut(HEADER_LEN);
    file.read_exact_at(head, 0)?;
    file.read_exact_at(checksums, header.tensors_end())?;
    Ok(bytes)
}

/// The checksum of the bytes in `place`, which are read by `read` from where they are.
fn crc(
    place: Range<u64>,
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<u32> {
    let (mut crc, mut bytes) = (crc32fast::Hasher::new(), vec![0; READ_BYTES]);
    let mut at = place.start;
    while at < place.end {
        let n = (place.end - at).min(READ_BYTES as u64) as usize;
        bytes[..n].fill(0);
        read(at, &mut bytes[..n])?;
        crc.update(&bytes[..n]);
        at += n as u64;
    }
    Ok(crc.finalize())
}
