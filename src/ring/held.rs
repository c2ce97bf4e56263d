//! A node's stored positions of the streams, and how they move with layers.

use std::ops::Range;

use super::Sizes;
use crate::wire::frame::{FetchKind, FetchPage, FramePage, KvPiece};

/// Keys and values in the form that the caller stores them: a page has a part of each layer, all of the same
/// length. Layers with a window may have pages of their own.
pub(crate) trait KvParts {
    /// Bytes of a part; 0 if there are none to be had.
    fn part_bytes(&self) -> usize;

    /// Whether a layer's pages are those of layers with a window.
    fn is_windowed(&self, layer: u32) -> bool;

    /// Reads a part, `[part_bytes]`; `false` if there is no such.
    fn read(&mut self, part: KvPart, out: &mut [u8]) -> bool;

    /// Writes bytes of a part from `first` on; `false` if there are no such.
    fn write(&mut self, part: KvPart, first: usize, bytes: &[u8]) -> bool;
}

/// The part of a layer in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvPart {
    /// The layer.
    pub(crate) layer: u32,
    /// The page: of those of layers with a window if it is one.
    pub(crate) page: u32,
}

/// Copies of all that a node had stored before its layers changed.
struct Aside {
    epoch: (u32, Sizes),
    named: [Vec<bool>; 2],
    parts: Vec<KvPart>,
    /// The bytes of each part, one behind the other.
    bytes: Vec<u8>,
    part_bytes: usize,
    /// The next to give away: a part, and bytes of it.
    next: (usize, usize),
}

/// A node's stored positions of the streams.
///
/// Once all batches of an epoch have been round, every node has stored the same positions of the texts. When
/// layers move then, KV stays on its node unless the layer becomes another node's: that part travels there
/// (`Held::give`, `Held::take`). The copies made for that are dropped with the next batch.
#[derive(Default)]
pub struct Held {
    /// The epoch whose batches have been through the node's layers, and its sizes; `None` if the stored
    /// positions are unknown.
    epoch: Option<(u32, Sizes)>,
    /// Pages that streams have had, whose contents may be used; and those of layers with a window.
    named: [Vec<bool>; 2],
    aside: Option<Aside>,
}

impl Held {
    /// Whether all is there that was stored in epoch `from`.
    pub(crate) fn has(&self, from: Option<u32>, sizes: &Sizes) -> bool {
        let aside = self.aside.as_ref().map(|aside| aside.epoch);
        from.is_some_and(|epoch| [self.epoch, aside].contains(&Some((epoch, *sizes))))
    }

    /// Whether all that was stored in epoch `from` is there, and where it was stored.
    pub(crate) fn is_intact(&self, from: Option<u32>, sizes: &Sizes) -> bool {
        from.is_some_and(|epoch| self.epoch == Some((epoch, *sizes)))
    }

    /// The node's streams are empty.
    pub(crate) fn clear(&mut self) {
        self.epoch = None;
        self.named.iter_mut().for_each(Vec::clear);
    }

    /// A stream has this page, which the node's layers have.
    pub(crate) fn has_page(&mut self, page: &FramePage, sizes: &Sizes) {
        self.name(false, page.to.0, sizes);
        if let Some(window) = page.to.1 {
            self.name(true, window, sizes);
        }
    }

    /// A page has been read that a stream may go on from.
    pub(crate) fn has_read(&mut self, page: &FetchPage, sizes: &Sizes) {
        match page.kind {
            FetchKind::Whole => self.name(false, page.page, sizes),
            FetchKind::Windowed => self.name(true, page.page, sizes),
            // Checkpoints do not move with layers.
            FetchKind::State => {}
        }
    }

    fn name(&mut self, is_windowed: bool, page: u32, sizes: &Sizes) {
        let named = &mut self.named[usize::from(is_windowed)];
        // There are no more of either kind.
        named.resize(sizes.n_pages as usize, false);
        if let Some(is_named) = named.get_mut(page as usize) {
            *is_named = true;
        }
    }

    /// A batch of this epoch has been through the node's layers.
    pub(crate) fn computed(&mut self, epoch: u32, sizes: &Sizes) {
        (self.epoch, self.aside) = (Some((epoch, *sizes)), None);
    }

    /// Copies the KV of `layers`, which are about to change, as far as it is valid and not copied yet. Beyond
    /// `room` bytes no copies are made, and all is recomputed.
    pub(crate) fn set_aside(&mut self, layers: Range<u32>, room: u64, parts: &mut impl KvParts) {
        let Some(epoch) = self.epoch.take() else { return };
        if parts.part_bytes() == 0 {
            return;
        }
        let mut all = Vec::new();
        for layer in layers {
            let named = &self.named[usize::from(parts.is_windowed(layer))];
            let pages = (0..).zip(named).filter(|(_, is_named)| **is_named);
            all.extend(pages.map(|(page, _)| KvPart { layer, page }));
        }
        let part_bytes = parts.part_bytes();
        let mut bytes = Vec::new();
        let Some(n_bytes) = part_bytes.checked_mul(all.len()) else { return };
        if n_bytes as u64 > room || bytes.try_reserve_exact(n_bytes).is_err() {
            return;
        }
        bytes.resize(n_bytes, 0);
        let mut places = all.iter().zip(bytes.chunks_exact_mut(part_bytes));
        if places.all(|(part, out)| parts.read(*part, out)) {
            let named = self.named.clone();
            self.aside = Some(Aside { epoch, named, parts: all, bytes, part_bytes, next: (0, 0) });
        }
    }

    /// Copies KV set aside in epoch `from` to `layers`, which are the node's now; copies of other epochs are
    /// dropped.
    pub(crate) fn restore(
        &mut self,
        from: Option<u32>,
        (layers, sizes): (Range<u32>, &Sizes),
        parts: &mut impl KvParts,
    ) {
        self.clear();
        // Copies of another epoch are of no use any more.
        let aside = self.aside.take();
        self.aside = aside.filter(|aside| from.is_some_and(|epoch| aside.epoch == (epoch, *sizes)));
        let Some(aside) = &mut self.aside else { return };
        aside.next = (0, 0);
        self.named.clone_from(&aside.named);
        for (part, bytes) in aside.parts.iter().zip(aside.bytes.chunks_exact(aside.part_bytes)) {
            if layers.contains(&part.layer) {
                parts.write(*part, 0, bytes);
            }
        }
    }

    /// Writes the next piece of KV of layers that are not among the node's `own` any more; `None` if there is
    /// no more.
    pub(crate) fn give(&mut self, own: &Range<u32>, out: &mut [u8]) -> Option<KvPiece> {
        let aside = self.aside.as_mut()?;
        let len = aside.part_bytes;
        while own.contains(&aside.parts.get(aside.next.0)?.layer) {
            aside.next.0 += 1;
        }
        let (index, first) = aside.next;
        let KvPart { layer, page } = aside.parts[index];
        let bytes = out.len().min(len - first);
        out[..bytes].copy_from_slice(&aside.bytes[index * len + first..][..bytes]);
        aside.next = if first + bytes == len { (index + 1, 0) } else { (index, first + bytes) };
        Some(KvPiece { layer, page, first: first as u32, bytes: bytes as u32 })
    }

    /// Stores a piece of KV, of a layer of this node, that another node had; `false` if there is no place for
    /// it.
    pub(crate) fn take(
        &mut self,
        piece: &KvPiece,
        (bytes, sizes): (&[u8], &Sizes),
        parts: &mut impl KvParts,
    ) -> bool {
        let KvPiece { layer, page, first, .. } = *piece;
        let is_stored = parts.write(KvPart { layer, page }, first as usize, bytes);
        if is_stored {
            self.name(parts.is_windowed(layer), page, sizes);
        }
        is_stored
    }

    /// Ends a move: all layers have what they need to go on in this epoch.
    pub(crate) fn moved(&mut self, epoch: u32, sizes: &Sizes) {
        (self.epoch, self.aside) = (Some((epoch, *sizes)), None);
    }
}
