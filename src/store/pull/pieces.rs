//! A file that arrives in pieces, and the record of them beside it, by which a later download goes on.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::disk::O_NOFOLLOW;

/// Bytes of a piece, but for the last one.
const PIECE_BYTES: u64 = 32 << 20;
/// Start of a record; it changes with the record's form.
const MAGIC: [u8; 8] = *b"LEAPPART";
/// Bytes of a record before the pieces' figures: magic, then the file's length.
const HEAD_BYTES: u64 = 16;

/// A file that is arriving.
pub(super) struct Pieces {
    file: File,
    record: File,
    part: PathBuf,
    total: u64,
    /// Bytes of each piece that had arrived when this download began.
    began: Vec<u64>,
    /// The next piece that no connection has taken.
    next: Mutex<usize>,
}

/// A piece that one connection fetches.
pub(super) struct Piece {
    index: usize,
    /// Where the next byte goes, and where the piece ends.
    pub(super) at: u64,
    pub(super) end: u64,
}

impl Pieces {
    /// Opens or begins the file at `part`, of `total` bytes.
    pub(super) fn open(part: &Path, total: u64) -> io::Result<Pieces> {
        let open = |path: &Path| {
            let mut open = OpenOptions::new();
            open.read(true).write(true).create(true).truncate(false);
            open.custom_flags(O_NOFOLLOW).open(path)
        };
        let (file, record) = (open(part)?, open(&record_of(part))?);
        let n = usize::try_from(total.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        let mut pieces = Pieces {
            file,
            record,
            part: part.to_owned(),
            total,
            began: vec![0; n],
            next: Mutex::new(0),
        };
        if !pieces.resume()? {
            pieces.record.set_len(0)?;
            pieces.file.set_len(0)?;
            pieces.record.write_all_at(&MAGIC, 0)?;
            pieces.record.write_all_at(&total.to_le_bytes(), 8)?;
            pieces.record.set_len(HEAD_BYTES + 8 * n as u64)?;
            pieces.began.fill(0);
        }
        pieces.file.set_len(total)?;
        Ok(pieces)
    }

    /// Bytes of the file at `part` that have arrived, if it has been begun.
    pub(super) fn arrived(part: &Path, total: u64) -> u64 {
        let is_there = part.is_file() && record_of(part).is_file();
        let pieces = is_there.then(|| Pieces::open(part, total).ok()).flatten();
        pieces.map_or(0, |pieces| pieces.resumed_bytes())
    }

    /// The bytes of each piece that the record names.
    fn figures(&self) -> io::Result<Vec<u64>> {
        let mut figures = vec![0; 8 * self.began.len()];
        self.record.read_exact_at(&mut figures, HEAD_BYTES)?;
        Ok(figures.as_chunks::<8>().0.iter().map(|figure| u64::from_le_bytes(*figure)).collect())
    }

    /// Whether all bytes have arrived.
    pub(super) fn are_complete(&self) -> io::Result<bool> {
        Ok(self.figures()?.iter().sum::<u64>() == self.total)
    }

    /// Reads the record; false if it is of another file, or damaged.
    fn resume(&mut self) -> io::Result<bool> {
        let mut head = [0; HEAD_BYTES as usize];
        let read = self.record.read_exact_at(&mut head, 0);
        let Ok(figures) = read.and_then(|()| self.figures()) else { return Ok(false) };
        if head[..8] != MAGIC || head[8..] != self.total.to_le_bytes() {
            return Ok(false);
        }
        // Bytes that the record names, but the file lacks, were lost with the machine's power.
        let n_bytes = self.file.metadata()?.len();
        for (index, done) in figures.into_iter().enumerate() {
            let (start, end) = self.range(index);
            if done > end - start || (done > 0 && start + done > n_bytes) {
                return Ok(false);
            }
            self.began[index] = done;
        }
        Ok(true)
    }

    fn range(&self, index: usize) -> (u64, u64) {
        let start = index as u64 * PIECE_BYTES;
        (start, (start + PIECE_BYTES).min(self.total))
    }

    /// Bytes that had arrived when this download began.
    pub(super) fn resumed_bytes(&self) -> u64 {
        self.began.iter().sum()
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Number of pieces.
    pub(super) fn count(&self) -> usize {
        self.began.len()
    }

    /// A piece that is not complete, and that no connection has; none if there is no other.
    pub(super) fn take(&self) -> Option<Piece> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(done) = self.began.get(*next) {
            let index = *next;
            *next += 1;
            let (start, end) = self.range(index);
            if start + done < end {
                return Some(Piece { index, at: start + done, end });
            }
        }
        None
    }

    /// Leaves no piece to other connections, and gives all of them to the caller, from the file's start on.
    pub(super) fn take_all(&self) -> Vec<Piece> {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = self.began.len();
        let piece = |index| {
            let (at, end) = self.range(index);
            Piece { index, at, end }
        };
        (0..self.began.len()).map(piece).collect()
    }

    /// Writes `bytes` where `piece` stands.
    pub(super) fn write(&self, piece: &mut Piece, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, piece.at)?;
        piece.at += bytes.len() as u64;
        Ok(())
    }

    /// Notes how much of `piece` has arrived.
    pub(super) fn note(&self, piece: &Piece) -> io::Result<()> {
        let done = piece.at - piece.index as u64 * PIECE_BYTES;
        self.record.write_all_at(&done.to_le_bytes(), HEAD_BYTES + 8 * piece.index as u64)
    }

    /// Reads `bytes` of the file at `offset`.
    pub(super) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Gives the complete file its name.
    pub(super) fn commit(self, path: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.part, path)?;
        let _ = fs::remove_file(record_of(&self.part));
        Ok(())
    }

    /// Removes the file, whose bytes are wrong.
    pub(super) fn discard(self) {
        let _ = fs::remove_file(&self.part);
        let _ = fs::remove_file(record_of(&self.part));
    }
}

/// `path` with `end` behind its name.
pub(super) fn longer(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Path of the record of the file at `part`.
fn record_of(part: &Path) -> PathBuf {
    longer(part, ".pieces")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::process;

    #[test]
    fn download_goes_on_behind_what_arrived() {
        let folder = env::temp_dir().join(format!("leap-pieces-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (part, total) = (folder.join("x.part"), PIECE_BYTES + 10);
        let pieces = Pieces::open(&part, total).unwrap();
        let (mut first, mut second) = (pieces.take().unwrap(), pieces.take().unwrap());
        assert!(pieces.take().is_none());
        pieces.write(&mut first, b"abc").unwrap();
        pieces.note(&first).unwrap();
        pieces.write(&mut second, b"0123456789").unwrap();
        pieces.note(&second).unwrap();
        drop(pieces);

        let pieces = Pieces::open(&part, total).unwrap();
        assert_eq!(pieces.resumed_bytes(), 13);
        let rest = pieces.take().unwrap();
        assert_eq!((rest.at, rest.end), (3, PIECE_BYTES));
        assert!(pieces.take().is_none());
        drop(pieces);

        // Another length, or a file that lost its bytes, begins anew.
        assert_eq!(Pieces::open(&part, total + 1).unwrap().resumed_bytes(), 0);
        let pieces = Pieces::open(&part, total).unwrap();
        let mut first = pieces.take().unwrap();
        pieces.write(&mut first, b"abc").unwrap();
        pieces.note(&first).unwrap();
        File::create(&part).unwrap();
        assert_eq!(Pieces::open(&part, total).unwrap().resumed_bytes(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
