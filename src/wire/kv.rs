//! Pieces of KV, and changes of the streams' KV pages, as frames have them.

use super::WireError;
use super::fields::{put, u16_at, u32_at};

/// Bytes of a stream's page in a frame.
pub const PAGE_LEN: usize = 24;
/// Most pages in one frame.
pub const PAGES_MAX: usize = 1024;

/// Value for a missing page.
const NO_PAGE: u32 = u32::MAX;

/// Position of a frame's keys and values: bytes of one layer's part of a KV page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPiece {
    /// The layer.
    pub layer: u32,
    /// The KV page, counted among those of layers with a window if the layer has one.
    pub page: u32,
    /// Offset of the first byte.
    pub first: u32,
    /// Number of bytes.
    pub bytes: u32,
}

impl KvPiece {
    /// Reads these fields from a frame's header.
    pub(super) fn parse<const N: usize>(header: &[u8; N]) -> KvPiece {
        KvPiece {
            layer: u32_at(header, 12),
            page: u32_at(header, 16),
            first: u32_at(header, 36),
            bytes: u32_at(header, 40),
        }
    }

    /// Writes these fields to a frame's header.
    pub(super) fn emit(&self, header: &mut [u8]) {
        put(header, 12, &self.layer.to_le_bytes());
        put(header, 16, &self.page.to_le_bytes());
        put(header, 36, &self.first.to_le_bytes());
        put(header, 40, &self.bytes.to_le_bytes());
    }
}

/// A KV page, and the page of layers with a window, if known.
pub type FramePair = (u32, Option<u32>);

/// A page that a stream gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePage {
    /// The stream.
    pub stream: u16,
    /// Index of the page in the stream.
    pub index: u32,
    /// KV pages that store its positions.
    pub to: FramePair,
    /// KV pages to copy there first.
    pub from: Option<FramePair>,
}

/// Writes a page that a stream gets.
pub(super) fn emit_page(page: &FramePage, out: &mut [u8; PAGE_LEN]) {
    out.fill(0);
    let (from, from_window) = page.from.unwrap_or((NO_PAGE, None));
    put(out, 0, &page.stream.to_le_bytes());
    let window = |window: Option<u32>| window.unwrap_or(NO_PAGE);
    for (at, value) in [
        (4, page.index),
        (8, page.to.0),
        (12, window(page.to.1)),
        (16, from),
        (20, window(from_window)),
    ] {
        put(out, at, &value.to_le_bytes());
    }
}

/// Reads a page that a stream gets. A page without `to` is an error.
pub(super) fn parse_page(bytes: &[u8; PAGE_LEN]) -> Result<FramePage, WireError> {
    let page = |at: usize| Some(u32_at(bytes, at)).filter(|page| *page != NO_PAGE);
    let to = page(8).ok_or(WireError::Field("page"))?;
    Ok(FramePage {
        stream: u16_at(bytes, 0),
        index: u32_at(bytes, 4),
        to: (to, page(12)),
        from: page(16).map(|from| (from, page(20))),
    })
}
