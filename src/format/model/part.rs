//! A part of a model file as a file of its own: some of its layers, or some rows of these.

use std::ops::Range;

use super::header::{FileShare, Header};
use super::slice::Slice;

/// A byte range that a part copies from the whole model's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the part's file.
    pub at: u64,
    /// First byte in the whole file.
    pub from: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The header of a part, and where its other bytes come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Header of the part's file.
    pub header: Header,
    /// Byte ranges of tensors and checksums, in the order of the part's file. Bytes in between are zero. For
    /// a part that has only some rows, checksums are missing: the whole file does not have them.
    pub extents: Vec<Extent>,
}

impl Header {
    /// The part with `layers` of the file with this header: the same bytes as `leap export --layers` writes.
    /// Layer 0 brings the embedding, the final norm and the classifier. With a `slice` the part has only
    /// these rows of each matrix that is multiplied. `fingerprint` is that of the model. `None` if the file
    /// does not hold these layers and rows, or has no checksums.
    pub fn part(
        &self,
        layers: Range<usize>,
        slice: Option<Slice>,
        fingerprint: u64,
    ) -> Option<Part> {
        let (held, has_ends) = match &self.share {
            Some(share) => (share.layers.clone(), share.has_ends),
            None => (0..self.n_layers, true),
        };
        let needs_ends = layers.start == 0;
        let is_held = held.start <= layers.start && layers.end <= held.end;
        let is_known = self.has_extension && !layers.is_empty() && self.slice().is_none();
        if !is_known || !is_held || (needs_ends && !has_ends) {
            return None;
        }
        let is_whole = layers.len() == self.n_layers && slice.is_none();
        let share = FileShare { layers, has_ends: needs_ends, fingerprint, slice };
        let header = Header { share: Some(share).filter(|_| !is_whole), ..self.clone() };
        header.check().ok()?;
        let extents = self.extents_of(&header);
        Some(Part { header, extents })
    }

    /// Header of the file with all layers and rows, if this header is that of a part.
    pub fn whole(&self) -> Header {
        Header { share: None, ..self.clone() }
    }

    fn extents_of(&self, part: &Header) -> Vec<Extent> {
        let table = self.tensors_end();
        let own: Vec<_> = self.tensors().enumerate().collect();
        let (mut tensors, mut checksums) = (Vec::new(), Vec::new());
        let mut table_at = part.tensors_end();
        for tensor in part.tensors() {
            let found = own.iter().find(|(_, own)| own.id == tensor.id);
            let (index, from) = found.expect("the part's tensors are held");
            let mut at = tensor.offset;
            for place in part.places_in(self, from) {
                let bytes = place.end - place.start;
                tensors.push(Extent { at, from: from.offset + place.start, bytes });
                at += bytes;
            }
            checksums.push(Extent { at: table_at, from: table + 4 * *index as u64, bytes: 4 });
            table_at += 4;
        }
        match part.slice() {
            None => joined(tensors.into_iter().chain(checksums)),
            Some(_) => joined(tensors.into_iter()),
        }
    }
}

/// Joins extents that are neighbours in both files.
fn joined(extents: impl Iterator<Item = Extent>) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    for extent in extents.filter(|extent| extent.bytes > 0) {
        match out.last_mut() {
            Some(last)
                if last.from + last.bytes == extent.from && last.at + last.bytes == extent.at =>
            {
                last.bytes += extent.bytes;
            }
            _ => out.push(extent),
        }
    }
    out
}

impl Part {
    /// Length of the part's file in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.header.tensors_end() + 4 * self.header.n_tensors() as u64
    }

    /// Pieces of `range` of the part's file that the whole file has, too: position in the part, position in
    /// the whole, number of bytes.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let first = self.extents.partition_point(|extent| extent.at + extent.bytes <= range.start);
        let extents = self.extents[first..].iter();
        extents.take_while(move |extent| extent.at < range.end).map(move |extent| {
            let at = extent.at.max(range.start);
            let end = (extent.at + extent.bytes).min(range.end);
            (at, extent.from + (at - extent.at), end - at)
        })
    }
}
