//! A model file's part with some of its layers, as a file of its own.

use std::ops::Range;

use super::header::{FileShare, Header};

/// Bytes of a part that stand in the file of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the part.
    pub at: u64,
    /// First byte in the file.
    pub from: u64,
    /// How many.
    pub bytes: u64,
}

/// The header of a part, and where the rest of it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What its file says about the model.
    pub header: Header,
    /// Its tensors and their checksums, in the order of its file, without gaps behind the header.
    pub extents: Vec<Extent>,
}

impl Header {
    /// The part with `layers` of the file with this header, the very bytes that `leap export --layers`
    /// writes; layer 0 brings the embedding, the final norm and the classifier. `fingerprint` is that of
    /// the model. `None` if the file does not hold these layers, or has no checksums.
    pub fn part(&self, layers: Range<usize>, fingerprint: u64) -> Option<Part> {
        let (held, has_ends) = match &self.share {
            Some(share) => (share.layers.clone(), share.has_ends),
            None => (0..self.n_layers, true),
        };
        let needs_ends = layers.start == 0;
        let is_held = held.start <= layers.start && layers.end <= held.end;
        let is_known = self.has_extension && !layers.is_empty();
        if !is_known || !is_held || (needs_ends && !has_ends) {
            return None;
        }
        let is_whole = layers.len() == self.n_layers;
        let share = FileShare { layers, has_ends: needs_ends, fingerprint };
        let header = Header { share: Some(share).filter(|_| !is_whole), ..self.clone() };
        let extents = self.extents_of(&header);
        Some(Part { header, extents })
    }

    fn extents_of(&self, part: &Header) -> Vec<Extent> {
        let table = self.tensors_end();
        let own: Vec<_> = self.tensors().enumerate().collect();
        let (mut tensors, mut checksums) = (Vec::new(), Vec::new());
        let mut at = part.tensors_end();
        for tensor in part.tensors() {
            let found = own.iter().find(|(_, own)| own.id == tensor.id);
            let (index, from) = found.expect("the part's tensors are held");
            tensors.push(Extent { at: tensor.offset, from: from.offset, bytes: from.bytes });
            checksums.push(Extent { at, from: table + 4 * *index as u64, bytes: 4 });
            at += 4;
        }
        joined(tensors.into_iter().chain(checksums))
    }
}

/// The same, with neighbours in both files made one.
fn joined(extents: impl Iterator<Item = Extent>) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    for extent in extents {
        match out.last_mut() {
            Some(last) if last.from + last.bytes == extent.from => last.bytes += extent.bytes,
            _ => out.push(extent),
        }
    }
    out
}

impl Part {
    /// Bytes of its file.
    pub fn len_bytes(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.at + last.bytes)
    }
}
