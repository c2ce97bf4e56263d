//! Ring frames: what nodes tell each other, inside the frames of a link. Little-endian.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic "LEPF"
//! 4       u8       kind: 0 OPEN, 1 ACTIVATIONS, 2 DOWN, 3 CLOSE, 4 KV, 5 MOVED, 6 BOARDS (of a team), 7 PAGES,
//!                  8 KEEP, 9 FETCH
//! 5       u8       type of activations: 0 f32, 1 f16
//! 6       u8       type of keys and values (OPEN); reason (DOWN): 0 silent, 1 back, 2 reset,
//!                  3 missing, 4 busy, 5 packing, 6 lost, 7 incomplete
//! 7       u8       whether streams go on from an earlier epoch (OPEN; 0, 1); whether all have moved (MOVED; 0, 1);
//!                  whether the text is a long one (FETCH; 0, 1)
//! 8       u32      epoch
//! 12      u32      batch (also FETCH); seconds (DOWN, busy); percent (DOWN, packing); layer (KV)
//! 16      u32      dim: width of a row; page (KV); ids (FETCH)
//! 20      u16      rows of the whole batch; of the largest batch (OPEN)
//! 22      u16      first row in this frame; most rows that may want logits (OPEN)
//! 24      u16      rows in this frame; streams (OPEN); pages that all nodes so far have read (FETCH)
//! 26      u16      spans (ACTIVATIONS); lines (OPEN); pages (PAGES, KEEP, FETCH)
//! 28      u16      figures (ACTIVATIONS); assigned shares (OPEN)
//! 30      u16      numerics (OPEN)
//! 32      u32      context length (OPEN)
//! 36      u32      that epoch (OPEN); first byte in the page's part (KV)
//! 40      u32      bytes (KV); pages of keys and values (OPEN)
//! 44      4 × u8   zero
//! 48               OPEN: assigned shares of 8 bytes, lines of 100. DOWN: a name of 32 bytes.
//!                  ACTIVATIONS: spans of 12 bytes, figures of 8 bytes, rows. KV: the bytes.
//!                  PAGES: pages of 24 bytes. KEEP: pages of 276 bytes. FETCH: pages of 8 bytes, ids (u32)
//!
//! span:   u16 stream, u8 wanted logits (0 none, 1 of the last row, 2 of all), u8 whether the text is
//!         a long one (0, 1), u32 position, u16 rows, u16 zero
//! figure: u32 microseconds of computing, u32 hundredths of a joule spent so far (all bits: unknown)
//! page:   u16 stream, u16 zero, u32 which of its pages, u32 × 2 page and that of layers with a window,
//!         u32 × 2 what is copied there first (all bits: none, or not told)
//! keep:   u16 stream, u8 whether the text is a long one (0, 1), u8 ids, u32 which of its pages, u32 full
//!         pages of its prompt, u32 × 2 page and that of layers with a window (all bits: none), u32 × 64 ids
//! fetch:  u32 which page of the text (highest bit: that of layers with a window), u32 where it goes
//! share:  u32 × 2 layers
//! line:   name (32 bytes), instruction set (16 bytes), u32 × 2 layers, u64 bytes per token,
//!         u32 round trip in µs, u16 threads, u8 status, u8 what it has of streams (0 not told,
//!         1 nothing, 2 what that epoch left), u32 detail, carrier (8 bytes),
//!         u32 bytes of a datagram, u32 × 2 layers of the file, u16 boards, u16 whether it
//!         keeps prefixes (0, 1)
//! ```
//!
//! An OPEN assigns layers to the nodes in their order, the master first: each adds its line, so the number of
//! lines says whose turn it is. Without assigned shares every node takes those that its own user wants.
//! Layers are the first and the one behind the last. Names are UTF-8 padded with zeros. Each node that the
//! batch has been through has a figure. A batch larger than a frame is several frames with the same number
//! and spans, and ascending rows.

use std::ops::Range;

use super::datagram::FRAME_MAX;
use super::fields::{put, u16_at, u32_at};
use super::kept::{emit_keep, parse_fetch_page, parse_keep};
use super::kv::{emit_page, parse_page};
use super::line::{emit_line, parse_line};
use super::name::{NAME_MAX, Name, put_text, text};
use super::span::{emit_span, parse_span};
use super::{Dtype, WireError, boards};
use crate::numerics::NUMERICS;

pub use super::activations::Activations;
pub use super::boards::{BOARDS_MAX, BoardReport, BoardsReport};
pub use super::fields::HEADER_LEN;
pub use super::figures::{FIGURES_LEN, Heat, MachineReading, WorkFigures};
pub use super::kept::{FETCH_LEN, Fetch, FetchPage, FrameKeep, KEEP_IDS, KEEP_LEN, KEEPS_MAX};
pub use super::kv::{FramePage, FramePair, KvPiece, PAGE_LEN, PAGE_WORDS, PAGES_MAX};
pub use super::line::{LINE_LEN, NodeLine, Status, Streams};
pub use super::reason::Reason;
pub use super::sizes::Sizes;
pub use super::span::{FrameSpan, FrameWants, SPAN_LEN};

/// Bytes of an assigned share.
pub const ASSIGNED_LEN: usize = 8;
/// Most lines or figures of a frame: nodes of a ring.
pub const NODES_MAX: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"LEPF");

/// Purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The master begins an epoch; every node adds its line.
    Open,
    /// Rows of a batch.
    Activations,
    /// A report to the master about a node or the one before it.
    Down,
    /// The master goes.
    Close,
    /// A piece of the keys and values of a layer that another node has from now on.
    Kv,
    /// All nodes before have sent theirs, or all nodes have.
    Moved,
    /// A report about the boards of a place that is a team.
    Boards,
    /// Streams have other pages, before the batch that comes next.
    Pages,
    /// Pages of prompts are computed, and to be kept in files.
    Keep,
    /// Pages are to be read from files.
    Fetch,
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    /// Begins an epoch.
    Open {
        /// The epoch.
        epoch: u32,
        /// The epoch whose KV the streams continue with, if all of its batches are known to have been round.
        from: Option<u32>,
        /// Sizes that nodes have to be ready for.
        sizes: Sizes,
        /// Shares that are assigned.
        n_assigned: u16,
        /// Lines that follow.
        n_lines: u16,
    },
    /// Rows of a batch.
    Activations(Activations),
    /// A failure of the named node, or of the one before it.
    Down {
        /// The epoch.
        epoch: u32,
        /// The reason.
        reason: Reason,
    },
    /// The master goes.
    Close {
        /// The epoch.
        epoch: u32,
    },
    /// A piece of keys and values.
    Kv {
        /// The epoch.
        epoch: u32,
        /// Which.
        piece: KvPiece,
    },
    /// All nodes before have sent their pieces.
    Moved {
        /// The epoch.
        epoch: u32,
        /// Whether all nodes have, and what they sent is ahead of this.
        is_over: bool,
    },
    /// A report about so many boards of a place.
    Boards(u16),
    /// Streams have other pages.
    Pages {
        /// The epoch.
        epoch: u32,
        /// How many.
        n_pages: u16,
    },
    /// Pages of prompts are to be kept.
    Keep {
        /// The epoch.
        epoch: u32,
        /// How many.
        n_pages: u16,
    },
    /// Pages are to be read.
    Fetch(Fetch),
}

/// A frame whose parts lie inside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
    repr: Repr,
}

impl<'a> Frame<'a> {
    /// Reads a frame; afterwards no accessor panics.
    ///
    /// # Errors
    /// If it is not as long as its fields say, or a field has no meaning.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let have = bytes.len();
        let truncated = |need| WireError::Truncated { need, have };
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(truncated(HEADER_LEN))?;
        let repr = Repr::parse(header)?;
        let wanted = match &repr {
            Repr::Open { n_assigned, n_lines, .. } => {
                open_lines_at(*n_assigned) + usize::from(*n_lines) * LINE_LEN
            }
            Repr::Activations(activations) => {
                // At most 2^16 rows of 2^34 bytes: no overflow in 64 bits.
                let rows = u64::from(activations.rows) * u64::from(activations.dim);
                let rows = rows * activations.dtype.bytes() as u64;
                match activations.rows_at() as u64 + rows {
                    bytes if bytes <= FRAME_MAX as u64 => bytes as usize,
                    bytes => return Err(WireError::Oversize { len: bytes as usize }),
                }
            }
            Repr::Down { .. } => HEADER_LEN + NAME_MAX,
            Repr::Close { .. } | Repr::Moved { .. } => HEADER_LEN,
            Repr::Kv { piece, .. } => HEADER_LEN.saturating_add(piece.bytes as usize),
            Repr::Boards(n) => HEADER_LEN + boards::bytes(*n),
            Repr::Pages { n_pages, .. } => HEADER_LEN + usize::from(*n_pages) * PAGE_LEN,
            Repr::Keep { n_pages, .. } => HEADER_LEN + usize::from(*n_pages) * KEEP_LEN,
            Repr::Fetch(fetch) => fetch.bytes(),
        };
        match have == wanted {
            true => Ok(Frame { bytes, repr }),
            false => Err(truncated(wanted)),
        }
    }

    /// The fixed part.
    pub fn repr(&self) -> Repr {
        self.repr
    }

    /// The spans of ACTIVATIONS; those with impossible fields are errors.
    pub fn spans(&self) -> impl Iterator<Item = Result<FrameSpan, WireError>> + use<'a> {
        let n = match self.repr {
            Repr::Activations(activations) => activations.n_spans.into(),
            _ => 0,
        };
        let spans = &self.bytes[HEADER_LEN..HEADER_LEN + n * SPAN_LEN];
        spans.as_chunks::<SPAN_LEN>().0.iter().map(parse_span)
    }

    /// The figures of ACTIVATIONS.
    pub fn figures(&self) -> impl Iterator<Item = WorkFigures> + use<'a> {
        let range = match self.repr {
            Repr::Activations(activations) => {
                let at = activations.rows_at();
                at - usize::from(activations.n_figures) * FIGURES_LEN..at
            }
            _ => 0..0,
        };
        self.bytes[range].as_chunks::<FIGURES_LEN>().0.iter().map(WorkFigures::parse)
    }

    /// The rows of ACTIVATIONS, `[rows, dim]`.
    pub fn rows(&self) -> &'a [u8] {
        match self.repr {
            Repr::Activations(activations) => &self.bytes[activations.rows_at()..],
            _ => &[],
        }
    }

    /// The bytes of KV.
    pub fn kv(&self) -> &'a [u8] {
        match self.repr {
            Repr::Kv { .. } => &self.bytes[HEADER_LEN..],
            _ => &[],
        }
    }

    /// The pages of PAGES; those with impossible fields are errors.
    pub fn pages(&self) -> impl Iterator<Item = Result<FramePage, WireError>> + use<'a> {
        let pages = match self.repr {
            Repr::Pages { .. } => &self.bytes[HEADER_LEN..],
            _ => &[],
        };
        pages.as_chunks::<PAGE_LEN>().0.iter().map(parse_page)
    }

    /// The pages of KEEP; those with impossible fields are errors.
    pub fn keeps(&self) -> impl Iterator<Item = Result<FrameKeep, WireError>> + use<'a> {
        let pages = match self.repr {
            Repr::Keep { .. } => &self.bytes[HEADER_LEN..],
            _ => &[],
        };
        pages.as_chunks::<KEEP_LEN>().0.iter().map(parse_keep)
    }

    /// The pages of FETCH, and the ids of their text.
    pub fn fetch(&self) -> (impl Iterator<Item = FetchPage>, impl Iterator<Item = u32>) {
        let (pages, ids): (&[u8], &[u8]) = match self.repr {
            Repr::Fetch(fetch) => fetch.parts(&self.bytes[HEADER_LEN..]),
            _ => (&[], &[]),
        };
        let pages = pages.as_chunks::<FETCH_LEN>().0.iter().map(parse_fetch_page);
        (pages, ids.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)))
    }

    /// The shares that OPEN assigns; those that are empty are errors.
    pub fn assigned(&self) -> impl Iterator<Item = Result<Range<u32>, WireError>> + use<'a> {
        let shares = match self.repr {
            Repr::Open { n_assigned, .. } => &self.bytes[HEADER_LEN..open_lines_at(n_assigned)],
            _ => &[],
        };
        let share = |bytes: &[u8; ASSIGNED_LEN]| u32_at(bytes, 0)..u32_at(bytes, 4);
        shares.as_chunks::<ASSIGNED_LEN>().0.iter().map(share).map(|layers| {
            // One that leaves has none.
            let is_range = layers.start <= layers.end;
            if is_range { Ok(layers) } else { Err(WireError::Field("assigned layers")) }
        })
    }

    /// The lines of OPEN; those with impossible fields are errors.
    pub fn lines(&self) -> impl Iterator<Item = Result<NodeLine, WireError>> + use<'a> {
        let lines = match self.repr {
            Repr::Open { n_assigned, .. } => &self.bytes[open_lines_at(n_assigned)..],
            _ => &[],
        };
        lines.as_chunks::<LINE_LEN>().0.iter().map(parse_line)
    }

    /// The report in a BOARDS frame.
    pub fn boards(&self) -> Option<BoardsReport> {
        matches!(self.repr, Repr::Boards(_)).then(|| boards::parse(self.bytes, HEADER_LEN))
    }

    /// The name in DOWN; empty in other kinds.
    pub fn name(&self) -> Name {
        match self.repr {
            Repr::Down { .. } => text(&self.bytes[HEADER_LEN..]),
            _ => Name::new(),
        }
    }
}

impl Repr {
    fn parse(header: &[u8; HEADER_LEN]) -> Result<Repr, WireError> {
        if u32_at(header, 0) != MAGIC {
            return Err(WireError::Magic);
        }
        let epoch = u32_at(header, 8);
        let wire = dtype(header[5])?;
        match header[4] {
            0 => {
                let (n_lines, n_assigned) = (u16_at(header, 26), u16_at(header, 28));
                if usize::from(n_lines.max(n_assigned)) > NODES_MAX {
                    return Err(WireError::Field("number of nodes"));
                }
                if u16_at(header, 30) != u16::from(NUMERICS) {
                    return Err(WireError::Field("numerics"));
                }
                let sizes = Sizes::parse(header, wire)?;
                let from = match header[7] {
                    0 => None,
                    1 => Some(u32_at(header, 36)),
                    _ => return Err(WireError::Field("earlier epoch")),
                };
                Ok(Repr::Open { epoch, from, sizes, n_assigned, n_lines })
            }
            1 => match Activations::parse(header, wire) {
                rows if usize::from(rows.n_figures) <= NODES_MAX => Ok(Repr::Activations(rows)),
                _ => Err(WireError::Field("number of figures")),
            },
            2 => {
                let reason = Reason::parse(header[6], u32_at(header, 12))?;
                Ok(Repr::Down { epoch, reason })
            }
            3 => Ok(Repr::Close { epoch }),
            4 => Ok(Repr::Kv { epoch, piece: KvPiece::parse(header) }),
            5 => match header[7] {
                0 | 1 => Ok(Repr::Moved { epoch, is_over: header[7] == 1 }),
                _ => Err(WireError::Field("whether all have moved")),
            },
            6 => match boards::count(header) {
                n if usize::from(n) <= BOARDS_MAX => Ok(Repr::Boards(n)),
                _ => Err(WireError::Field("number of boards")),
            },
            7 => match u16_at(header, 26) {
                n_pages if usize::from(n_pages) <= PAGES_MAX => Ok(Repr::Pages { epoch, n_pages }),
                _ => Err(WireError::Field("number of pages")),
            },
            8 => match u16_at(header, 26) {
                n_pages if usize::from(n_pages) <= KEEPS_MAX => Ok(Repr::Keep { epoch, n_pages }),
                _ => Err(WireError::Field("number of pages")),
            },
            9 => Ok(Repr::Fetch(Fetch::parse(header))),
            _ => Err(WireError::Field("kind")),
        }
    }

    /// Purpose of the frame.
    pub fn kind(&self) -> Kind {
        match self {
            Repr::Open { .. } => Kind::Open,
            Repr::Activations(_) => Kind::Activations,
            Repr::Down { .. } => Kind::Down,
            Repr::Close { .. } => Kind::Close,
            Repr::Kv { .. } => Kind::Kv,
            Repr::Moved { .. } => Kind::Moved,
            Repr::Boards(_) => Kind::Boards,
            Repr::Pages { .. } => Kind::Pages,
            Repr::Keep { .. } => Kind::Keep,
            Repr::Fetch(_) => Kind::Fetch,
        }
    }

    /// Writes every byte of the header.
    pub fn emit(&self, header: &mut [u8; HEADER_LEN]) {
        header.fill(0);
        put(header, 0, &MAGIC.to_le_bytes());
        header[4] = self.kind() as u8;
        match self {
            Repr::Open { epoch, from, sizes, n_assigned, n_lines } => {
                sizes.emit(header);
                header[7] = from.is_some().into();
                put(header, 36, &from.unwrap_or(0).to_le_bytes());
                put(header, 8, &epoch.to_le_bytes());
                put(header, 26, &n_lines.to_le_bytes());
                put(header, 28, &n_assigned.to_le_bytes());
                put(header, 30, &u16::from(NUMERICS).to_le_bytes());
            }
            Repr::Activations(activations) => activations.emit(header),
            Repr::Down { epoch, reason } => {
                let (code, number) = reason.code();
                header[6] = code;
                put(header, 8, &epoch.to_le_bytes());
                put(header, 12, &number.to_le_bytes());
            }
            Repr::Close { epoch } => put(header, 8, &epoch.to_le_bytes()),
            Repr::Moved { epoch, is_over } => {
                header[7] = u8::from(*is_over);
                put(header, 8, &epoch.to_le_bytes());
            }
            Repr::Kv { epoch, piece } => {
                put(header, 8, &epoch.to_le_bytes());
                piece.emit(header);
            }
            Repr::Boards(_) => {}
            Repr::Fetch(fetch) => fetch.emit(header),
            Repr::Pages { epoch, n_pages } | Repr::Keep { epoch, n_pages } => {
                put(header, 8, &epoch.to_le_bytes());
                put(header, 26, &n_pages.to_le_bytes());
            }
        }
    }
}

/// Where the lines of an OPEN begin.
fn open_lines_at(n_assigned: u16) -> usize {
    HEADER_LEN + usize::from(n_assigned) * ASSIGNED_LEN
}

/// Writes an OPEN into `out`, for an epoch and the one that it continues, with these shares and `lines`;
/// returns its length, `None` if it does not fit.
pub fn emit_open(
    (epoch, from): (u32, Option<u32>),
    sizes: &Sizes,
    assigned: &[Range<u32>],
    lines: &[NodeLine],
    out: &mut [u8],
) -> Option<usize> {
    let count = |n: usize| u16::try_from(n).ok().filter(|_| n <= NODES_MAX);
    let (n_assigned, n_lines) = (count(assigned.len())?, count(lines.len())?);
    let bytes = open_lines_at(n_assigned) + lines.len() * LINE_LEN;
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Open { epoch, from, sizes: *sizes, n_assigned, n_lines }.emit(header);
    let (shares, body) = body.split_at_mut(assigned.len() * ASSIGNED_LEN);
    for (layers, out) in assigned.iter().zip(shares.as_chunks_mut::<ASSIGNED_LEN>().0) {
        put(out, 0, &layers.start.to_le_bytes());
        put(out, 4, &layers.end.to_le_bytes());
    }
    for (line, out) in lines.iter().zip(body.as_chunks_mut::<LINE_LEN>().0) {
        emit_line(line, out);
    }
    Some(bytes)
}

/// Writes a DOWN of the node called `name` into `out`; returns its length, `None` if it does
/// not fit.
pub fn emit_down(epoch: u32, reason: Reason, name: &str, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + NAME_MAX;
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Down { epoch, reason }.emit(header);
    put_text(body, name);
    Some(bytes)
}

/// Writes a BOARDS into `out`; returns its length, `None` if it does not fit.
pub fn emit_boards(report: &BoardsReport, out: &mut [u8]) -> Option<usize> {
    let n = report.boards.len() as u16;
    let bytes = HEADER_LEN + boards::bytes(n);
    let (header, body) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Repr::Boards(n).emit(header);
    boards::emit(report, header, body);
    Some(bytes)
}

/// Writes a CLOSE into `out`; returns its length, `None` if it does not fit.
pub fn emit_close(epoch: u32, out: &mut [u8]) -> Option<usize> {
    Repr::Close { epoch }.emit(out.first_chunk_mut()?);
    Some(HEADER_LEN)
}

/// Writes a MOVED into `out`; returns its length, `None` if it does not fit.
pub fn emit_moved(epoch: u32, is_over: bool, out: &mut [u8]) -> Option<usize> {
    Repr::Moved { epoch, is_over }.emit(out.first_chunk_mut()?);
    Some(HEADER_LEN)
}

/// Writes a PAGES with as many of `pages`, from the first, as fit into `out`; returns its length, and their
/// number. `None` if none fit.
pub fn emit_pages(epoch: u32, pages: &[FramePage], out: &mut [u8]) -> Option<(usize, usize)> {
    let (header, body) = out.split_first_chunk_mut()?;
    let n = pages.len().min(PAGES_MAX).min(body.len() / PAGE_LEN);
    // No more than PAGES_MAX.
    Repr::Pages { epoch, n_pages: n as u16 }.emit(header);
    for (page, out) in pages[..n].iter().zip(body.as_chunks_mut::<PAGE_LEN>().0) {
        emit_page(page, out);
    }
    (n > 0).then_some((HEADER_LEN + n * PAGE_LEN, n))
}

/// Writes a KEEP with the first of `pages`, as [`emit_pages`] does.
pub fn emit_keeps(epoch: u32, pages: &[FrameKeep], out: &mut [u8]) -> Option<(usize, usize)> {
    let (header, body) = out.split_first_chunk_mut()?;
    let n = pages.len().min(KEEPS_MAX).min(body.len() / KEEP_LEN);
    // No more than KEEPS_MAX.
    Repr::Keep { epoch, n_pages: n as u16 }.emit(header);
    for (page, out) in pages[..n].iter().zip(body.as_chunks_mut::<KEEP_LEN>().0) {
        emit_keep(page, out);
    }
    (n > 0).then_some((HEADER_LEN + n * KEEP_LEN, n))
}

/// Writes a FETCH with these pages and ids into `out`; returns its length, `None` if it does not fit.
///
/// # Panics
/// If `fetch` counts others.
pub fn emit_fetch(
    fetch: &Fetch,
    pages: &[FetchPage],
    ids: &[u32],
    out: &mut [u8],
) -> Option<usize> {
    let (header, body) = out.get_mut(..fetch.bytes())?.split_first_chunk_mut()?;
    Repr::Fetch(*fetch).emit(header);
    fetch.emit_body(pages, ids, body);
    Some(fetch.bytes())
}

/// Writes a KV into `out`, whose bytes are there already; returns its length, `None` if it does not fit.
pub fn emit_kv(epoch: u32, piece: KvPiece, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + piece.bytes as usize;
    Repr::Kv { epoch, piece }.emit(out.get_mut(..bytes)?.first_chunk_mut()?);
    Some(bytes)
}

/// Writes ACTIVATIONS without its rows into `out`; returns the room for them, `[rows, dim]`,
/// `None` if it does not fit.
///
/// # Panics
/// If `header` counts other spans or figures.
pub fn emit_activations<'o>(
    header: &Activations,
    spans: &[FrameSpan],
    figures: &[WorkFigures],
    out: &'o mut [u8],
) -> Option<&'o mut [u8]> {
    assert_eq!(usize::from(header.n_spans), spans.len());
    assert_eq!(usize::from(header.n_figures), figures.len());
    let (head, body) = out.get_mut(..header.bytes())?.split_first_chunk_mut()?;
    Repr::Activations(*header).emit(head);
    let (span_bytes, body) = body.split_at_mut(spans.len() * SPAN_LEN);
    for (span, out) in spans.iter().zip(span_bytes.as_chunks_mut::<SPAN_LEN>().0) {
        emit_span(span, out);
    }
    let (figure_bytes, rows) = body.split_at_mut(figures.len() * FIGURES_LEN);
    for (figure, out) in figures.iter().zip(figure_bytes.as_chunks_mut::<FIGURES_LEN>().0) {
        figure.emit(out);
    }
    Some(rows)
}

fn dtype(code: u8) -> Result<Dtype, WireError> {
    Dtype::from_code(code).ok_or(WireError::Field("dtype"))
}

#[cfg(test)]
mod tests;
