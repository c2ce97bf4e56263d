//! A node's stored positions of the streams, and how they move with layers.

use std::ops::Range;

use super::Sizes;
use crate::wire::frame::{FetchKind, FetchPage, FramePage, KvPiece};

/// Keys and values in the form that the caller stores them: a page has a part of each layer that stores them, of a size
/// that depends on the layer. Layers with a window may have pages of their own. Recurrent layers have states instead, in
/// pieces.
pub(crate) trait KvParts {
    /// Bytes of a layer's part, or of a piece; 0 if the layer uses an earlier one's keys and values. `None` if there are
    /// none to be had.
    fn part_bytes(&self, layer: u32) -> Option<usize>;

    /// Number of a layer's pieces, of which some may have no state; `None` if the layer has keys and values.
    fn n_pieces(&self, _layer: u32) -> Option<u32> {
        None
    }

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
    /// The page: of those of layers with a window if it is one. The piece, of a recurrent layer.
    pub(crate) page: u32,
}

/// Copies of all that a node had stored before its layers changed.
struct Aside {
    epoch: (u32, Sizes),
    named: [Vec<bool>; 2],
    /// Each part, and where its bytes end.
    parts: Vec<(KvPart, usize)>,
    /// The bytes of the parts, one behind the other.
    bytes: Vec<u8>,
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
            // All checkpoints that have a state move with their layers.
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
        let (mut all, mut bytes) = (Vec::new(), Vec::new());
        for layer in layers {
            let Some(part_bytes) = parts.part_bytes(layer) else { return };
            if part_bytes == 0 {
                continue;
            }
            let n_pieces = parts.n_pieces(layer);
            let named = &self.named[usize::from(parts.is_windowed(layer))];
            let pages =
                || (0..).zip(named).filter(|(_, is_named)| **is_named).map(|(page, _)| page);
            let pages: Vec<u32> = n_pieces.map_or_else(|| pages().collect(), |n| (0..n).collect());
            for page in pages {
                let (start, part) = (bytes.len(), KvPart { layer, page });
                let end = start + part_bytes;
                if end as u64 > room || bytes.try_reserve(part_bytes).is_err() {
                    return;
                }
                bytes.resize(end, 0);
                match parts.read(part, &mut bytes[start..]) {
                    true => all.push((part, end)),
                    // A stream or checkpoint without a state.
                    false if n_pieces.is_some() => bytes.truncate(start),
                    false => return,
                }
            }
        }
        let named = self.named.clone();
        self.aside = Some(Aside { epoch, named, parts: all, bytes, next: (0, 0) });
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
        let mut start = 0;
        for &(part, end) in &aside.parts {
            if layers.contains(&part.layer) {
                parts.write(part, 0, &aside.bytes[start..end]);
            }
            start = end;
        }
    }

    /// Writes the next piece of KV of layers that are not among the node's `own` any more; `None` if there is
    /// no more.
    pub(crate) fn give(&mut self, own: &Range<u32>, out: &mut [u8]) -> Option<KvPiece> {
        let aside = self.aside.as_mut()?;
        while own.contains(&aside.parts.get(aside.next.0)?.0.layer) {
            aside.next.0 += 1;
        }
        let (index, first) = aside.next;
        let (KvPart { layer, page }, end) = aside.parts[index];
        let start = index.checked_sub(1).map_or(0, |before| aside.parts[before].1);
        let bytes = out.len().min(end - start - first);
        out[..bytes].copy_from_slice(&aside.bytes[start + first..][..bytes]);
        let is_whole = start + first + bytes == end;
        aside.next = if is_whole { (index + 1, 0) } else { (index, first + bytes) };
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
        if is_stored && parts.n_pieces(layer).is_none() {
            self.name(parts.is_windowed(layer), page, sizes);
        }
        is_stored
    }

    /// Ends a move: all layers have what they need to go on in this epoch.
    pub(crate) fn moved(&mut self, epoch: u32, sizes: &Sizes) {
        (self.epoch, self.aside) = (Some((epoch, *sizes)), None);
    }
}
