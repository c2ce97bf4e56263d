//! A stage's KV of the streams, in the types of the ring.

use std::ops::Range;

use super::frames;
use crate::engine::prefix::{self, Store};
use crate::model::{KvPlace, PiecePlace, Stage, StageInfo};
use crate::ring::{Held, KvPart, KvParts, PagesToRead};
use crate::sys::memory;
use crate::wire::frame::{FrameKeep, FramePage, KvPiece, Sizes, Streams};

/// Access to the KV of a stage.
pub(super) struct StageParts<'a, S: Stage + ?Sized>(pub(super) &'a mut S);

fn place(part: KvPart) -> KvPlace {
    KvPlace { layer: part.layer as usize, page: part.page as usize }
}

fn piece(part: KvPart) -> PiecePlace {
    PiecePlace { layer: part.layer as usize, piece: part.page }
}

impl<S: Stage + ?Sized> StageParts<'_, S> {
    fn is_recurrent(&self, layer: u32) -> bool {
        let header = self.0.about().header;
        (layer as usize) < header.n_layers && header.mixer(layer as usize).is_some()
    }
}

impl<S: Stage + ?Sized> KvParts for StageParts<'_, S> {
    fn part_bytes(&self, layer: u32) -> Option<usize> {
        match self.is_recurrent(layer) {
            true => Some(self.0.state_piece_bytes()).filter(|bytes| *bytes > 0),
            false => self.0.kv_part_bytes(layer as usize),
        }
    }

    fn n_pieces(&self, layer: u32) -> Option<u32> {
        self.is_recurrent(layer).then(|| self.0.n_state_pieces())
    }

    fn is_windowed(&self, layer: u32) -> bool {
        self.0.is_windowed(layer as usize)
    }

    fn read(&mut self, part: KvPart, out: &mut [u8]) -> bool {
        match self.is_recurrent(part.layer) {
            true => self.0.read_state_piece(piece(part), out),
            false => self.0.read_kv(place(part), out),
        }
    }

    fn write(&mut self, part: KvPart, first: usize, bytes: &[u8]) -> bool {
        match self.is_recurrent(part.layer) {
            true => self.0.write_state_piece(piece(part), first, bytes),
            false => self.0.write_kv(place(part), first, bytes),
        }
    }
}

/// Layers of a stage.
pub(super) fn layers(stage: &(impl Stage + ?Sized)) -> Range<u32> {
    let StageInfo { share, .. } = stage.about();
    share.layers.start as u32..share.layers.end as u32
}

/// Copies the KV of a stage that is about to lose it, using at most half of the free memory.
pub(super) fn set_aside(held: &mut Held, stage: &mut (impl Stage + ?Sized)) {
    let room = memory::available_bytes().map_or(u64::MAX, |free| free / 2);
    held.set_aside(layers(stage), room, &mut StageParts(stage));
}

/// Implements [`Rows::take_kv`](crate::ring::Rows::take_kv).
pub(super) fn take(
    held: &mut Held,
    (piece, bytes): (&KvPiece, &[u8]),
    (own, sizes): (&Range<u32>, &Sizes),
    stage: &mut (impl Stage + ?Sized),
) -> Option<bool> {
    let is_own = own.contains(&piece.layer);
    is_own.then(|| held.take(piece, (bytes, sizes), &mut StageParts(stage)))
}

/// Implements [`Rows::set_page`](crate::ring::Rows::set_page).
pub(super) fn set_page(
    held: &mut Held,
    (page, sizes): (&FramePage, &Sizes),
    stage: &mut (impl Stage + ?Sized),
) -> bool {
    let is_there = stage.change_page(&frames::from_page(page));
    if is_there {
        held.has_page(page, sizes);
    }
    is_there
}

/// Implements [`Rows::keep`](crate::ring::Rows::keep).
pub(super) fn keep(
    prefixes: Option<&mut Store>,
    (page, sizes): (&FrameKeep, &Sizes),
    stage: &mut (impl Stage + ?Sized),
) -> bool {
    let StageInfo { plan, header, .. } = stage.about();
    let is_checkpoint = |number: u8| usize::from(number) < plan.checkpoints(header);
    let is_there = page.stream < sizes.n_streams
        && page.at.0 < sizes.n_pages
        && page.state.is_none_or(is_checkpoint);
    if let Some(prefixes) = prefixes.filter(|_| is_there && prefix::can_keep(stage)) {
        prefixes.keep_or_miss(stage, &frames::from_keep(page));
    }
    is_there
}

/// Reads pages in an epoch, at most the first `n_max`. Returns the number of pages read.
pub(super) fn read(
    held: &mut Held,
    prefixes: Option<&mut Store>,
    (wanted, n_max): (&PagesToRead, usize),
    (epoch, sizes): (u32, &Sizes),
    stage: &mut (impl Stage + ?Sized),
) -> usize {
    let prefixes = prefixes.filter(|_| n_max > 0 && prefix::can_keep(stage));
    let Some(prefixes) = prefixes else { return 0 };
    let pages = frames::from_read(&wanted.pages[..n_max.min(wanted.pages.len())]);
    prefixes.begin_text();
    let n_read = prefixes.read(stage, (&wanted.ids, wanted.is_long), &pages);
    for page in &wanted.pages[..n_read] {
        held.has_read(page, sizes);
    }
    if n_read > 0 {
        held.computed(epoch, sizes);
    }
    n_read
}

/// A node's claim about the KV that it has of epoch `from`.
pub(super) fn said(held: &Held, from: Option<u32>, sizes: &Sizes) -> Streams {
    if held.has(from, sizes) { Streams::Kept } else { Streams::Empty }
}
