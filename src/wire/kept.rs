//! Pages and states of prompts that nodes keep in files, as frames have them.

use super::WireError;
use super::fields::{HEADER_LEN, put, u16_at, u32_at};
use super::kv::FramePair;

/// Most ids of a page.
pub const KEEP_IDS: usize = 64;
/// Bytes of a page to keep.
pub const KEEP_LEN: usize = IDS_AT + 4 * KEEP_IDS;
/// Most pages to keep in one frame.
pub const KEEPS_MAX: usize = 64;
/// Bytes of a page to read.
pub const FETCH_LEN: usize = 8;

const STATE_AT: usize = 20;
const IDS_AT: usize = 24;
/// Value for a missing page.
const NO_PAGE: u32 = u32::MAX;
/// Flag of layers with a window, and of a state.
const WINDOWED: u32 = 1 << 31;
const STATE: u32 = 1 << 30;

/// A page of a stream's prompt that has been computed and is to be kept, or a state behind the beginning of a page. The
/// pages of a prompt come in order, from the first on, and the states of a page behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKeep {
    /// The stream.
    pub stream: u16,
    /// Whether the text is a long one.
    pub is_long: bool,
    /// Index of the page in the prompt.
    pub index: u32,
    /// Full pages of the prompt.
    pub n_whole: u32,
    /// KV pages with the page's positions.
    pub at: FramePair,
    /// Number of the checkpoint with the state behind the ids; `None` for the page alone.
    pub state: Option<u8>,
    /// Number of ids.
    pub n_ids: u8,
    /// The ids, then zeros.
    pub ids: [u32; KEEP_IDS],
}

impl FrameKeep {
    /// The ids of the page, or of its part before the state.
    pub fn ids(&self) -> &[u32] {
        &self.ids[..self.n_ids.into()]
    }
}

/// Content of a file that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchKind {
    /// A page of layers without a window.
    Whole,
    /// A page of layers with a window.
    Windowed,
    /// A state of recurrent layers.
    State,
}

/// A page of a text, or the state behind the text, that is to be read from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPage {
    /// Index of the page in the text.
    pub index: u32,
    /// Content of the file.
    pub kind: FetchKind,
    /// KV page, or number of the checkpoint, to read it into.
    pub page: u32,
}

/// Pages to read, of the text whose ids follow them in the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// The epoch.
    pub epoch: u32,
    /// Number of this request among the batches.
    pub batch: u32,
    /// Whether the text is a long one.
    pub is_long: bool,
    /// Number of pages.
    pub n_pages: u16,
    /// Number of pages, from the first on, that all nodes so far have read.
    pub n_found: u16,
    /// Number of ids of the text.
    pub n_ids: u32,
}

impl Fetch {
    /// Reads these fields from a frame's header.
    pub(super) fn parse<const N: usize>(header: &[u8; N]) -> Fetch {
        Fetch {
            epoch: u32_at(header, 8),
            batch: u32_at(header, 12),
            is_long: header[7] == 1,
            n_pages: u16_at(header, 26),
            n_found: u16_at(header, 24),
            n_ids: u32_at(header, 16),
        }
    }

    /// Writes these fields to a frame's header.
    pub(super) fn emit(&self, header: &mut [u8]) {
        header[7] = u8::from(self.is_long);
        put(header, 8, &self.epoch.to_le_bytes());
        put(header, 12, &self.batch.to_le_bytes());
        put(header, 16, &self.n_ids.to_le_bytes());
        put(header, 24, &self.n_found.to_le_bytes());
        put(header, 26, &self.n_pages.to_le_bytes());
    }

    /// Bytes of the whole frame.
    pub fn bytes(&self) -> usize {
        let ids = (self.n_ids as usize).saturating_mul(4);
        (HEADER_LEN + usize::from(self.n_pages) * FETCH_LEN).saturating_add(ids)
    }

    /// The pages and the ids in a frame's `body`.
    pub(super) fn parts<'a>(&self, body: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        body.split_at(usize::from(self.n_pages) * FETCH_LEN)
    }

    /// Writes pages and ids, whose numbers must be those of `self`.
    pub(super) fn emit_body(&self, pages: &[FetchPage], ids: &[u32], body: &mut [u8]) {
        assert_eq!((usize::from(self.n_pages), self.n_ids as usize), (pages.len(), ids.len()));
        let (page_bytes, id_bytes) = body.split_at_mut(pages.len() * FETCH_LEN);
        for (page, out) in pages.iter().zip(page_bytes.as_chunks_mut::<FETCH_LEN>().0) {
            emit_fetch_page(page, out);
        }
        for (id, out) in ids.iter().zip(id_bytes.as_chunks_mut().0) {
            *out = id.to_le_bytes();
        }
    }
}

pub(super) fn emit_keep(keep: &FrameKeep, out: &mut [u8; KEEP_LEN]) {
    put(out, 0, &keep.stream.to_le_bytes());
    (out[2], out[3]) = (keep.is_long.into(), keep.n_ids);
    let (page, window) = (keep.at.0, keep.at.1.unwrap_or(NO_PAGE));
    for (at, value) in [(4, keep.index), (8, keep.n_whole), (12, page), (16, window)] {
        put(out, at, &value.to_le_bytes());
    }
    let state = keep.state.map_or(0, |number| number.saturating_add(1));
    put(out, STATE_AT, &u32::from(state).to_le_bytes());
    for (id, out) in keep.ids.iter().zip(out[IDS_AT..].as_chunks_mut().0) {
        *out = id.to_le_bytes();
    }
}

/// Reads a page to keep. A page with too many ids, or none, is an error.
pub(super) fn parse_keep(bytes: &[u8; KEEP_LEN]) -> Result<FrameKeep, WireError> {
    let n_ids = bytes[3];
    if !(1..=KEEP_IDS).contains(&n_ids.into()) || bytes[2] > 1 {
        return Err(WireError::Field("page that is to be kept"));
    }
    let ids = bytes[IDS_AT..].as_chunks().0;
    Ok(FrameKeep {
        stream: u16_at(bytes, 0),
        is_long: bytes[2] == 1,
        index: u32_at(bytes, 4),
        n_whole: u32_at(bytes, 8),
        at: (u32_at(bytes, 12), Some(u32_at(bytes, 16)).filter(|page| *page != NO_PAGE)),
        state: bytes[STATE_AT].checked_sub(1),
        n_ids,
        ids: std::array::from_fn(|at| u32::from_le_bytes(ids[at])),
    })
}

fn emit_fetch_page(page: &FetchPage, out: &mut [u8; FETCH_LEN]) {
    let kind = match page.kind {
        FetchKind::Whole => 0,
        FetchKind::Windowed => WINDOWED,
        FetchKind::State => STATE,
    };
    put(out, 0, &(page.index | kind).to_le_bytes());
    put(out, 4, &page.page.to_le_bytes());
}

pub(super) fn parse_fetch_page(bytes: &[u8; FETCH_LEN]) -> FetchPage {
    let (index, page) = (u32_at(bytes, 0), u32_at(bytes, 4));
    let (kind, flag) = match index {
        index if index & WINDOWED != 0 => (FetchKind::Windowed, WINDOWED),
        index if index & STATE != 0 => (FetchKind::State, STATE),
        _ => (FetchKind::Whole, 0),
    };
    FetchPage { index: index & !flag, kind, page }
}
