//! Pieces of a file that a board has already: in the unfinished file of an interrupted call, and in other files that
//! it keeps.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::kept::Kept;
use crate::wire::give::{Offer, PIECE_BYTES};

/// Bytes that may be a piece: the giver's hash decides.
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    /// Whether the bytes are at the piece's place in the file.
    pub(super) is_in_place: bool,
}

/// Where pieces are looked for.
pub(super) struct Here<'a> {
    part: &'a File,
    /// Length of `part`; the next field is the length of the offered file.
    len: u64,
    whole_len: u64,
    kept: Option<Kept>,
}

impl<'a> Here<'a> {
    /// Looks into `part`, which is cut off where the offered file ends, and into `kept`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(part: &'a File, offer: &Offer, kept: Option<Kept>) -> io::Result<Here<'a>> {
        let len = part.metadata()?.len().min(offer.bytes);
        part.set_len(len)?;
        Ok(Here { part, len, whole_len: offer.bytes, kept })
    }

    /// Bytes for which the disk needs room.
    pub(super) fn missing(&self) -> io::Result<u64> {
        // Blocks of 512 bytes; a file with holes has fewer than its length says.
        let taken = self.part.metadata()?.blocks().saturating_mul(512).min(self.len);
        Ok(self.whole_len - taken)
    }

    /// Finds bytes that may be this piece.
    pub(super) fn find(&self, index: u64) -> Option<Found> {
        let kept = || self.kept.as_ref()?.piece(index);
        let in_place = self.in_place(index).map(|bytes| Found { bytes, is_in_place: true });
        in_place.or_else(|| kept().map(|bytes| Found { bytes, is_in_place: false }))
    }

    /// Bytes in the place of this piece, if it was written.
    fn in_place(&self, index: u64) -> Option<Vec<u8>> {
        let start = index.checked_mul(PIECE_BYTES)?;
        let end = start.checked_add(PIECE_BYTES)?.min(self.whole_len);
        let n = end.checked_sub(start).filter(|n| *n > 0 && end <= self.len)?;
        let mut bytes = vec![0; n as usize];
        self.part.read_exact_at(&mut bytes, start).ok()?;
        // Pieces do not come in order: a missing one is zeros.
        bytes.iter().any(|byte| *byte != 0).then_some(bytes)
    }
}
