//! Frames: the messages between the nodes of a group, inside the frames of a link. Little-endian.
//!
//! Rings and teams use the same frames. A ring passes a batch on as ACTIVATIONS; a team runs it with PASS and PART.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic "LEPF"
//! 4       u8       kind: 0 OPEN, 1 ACTIVATIONS, 2 REPORT, 3 CLOSE, 4 KV, 5 MOVED, 6 BOARDS (of a team), 7 PAGES,
//!                  8 KEEP, 9 FETCH, 10 READY, 11 REFUSE, 12 PASS, 13 PART
//! 5       u8       type of activations, or of gathers (OPEN): 0 f32, 1 f16
//! 6       u8       type of keys and values (OPEN); reason (REPORT): 0 silent, 1 back, 2 reset,
//!                  3 missing, 4 busy, 5 packing, 6 lost, 7 incomplete, 8 given up
//! 7       u8       whether streams go on from an earlier epoch (OPEN; 0, 1); whether all have moved (MOVED; 0, 1);
//!                  whether the text is a long one (FETCH; 0, 1)
//! 8       u32      epoch
//! 12      u32      batch (ACTIVATIONS, FETCH, PASS); gather (PART); layer (KV); in a REPORT seconds (busy), percent
//!                  (packing), index of the node (missing: 0 if it is the one before; given up).
//!                  OPEN: u8 kind of the parts (0 layers, 1 rows, 2 none: drafts are wanted); for rows also u8
//!                  whether the group has the model's ends (0, 1), u16 index of the node that receives the frame
//! 16      u32      dim: width of a row; page (KV); ids (FETCH)
//! 20      u16      rows of the whole batch; of the largest batch (OPEN)
//! 22      u16      first row in this frame; most rows that may want logits (OPEN)
//! 24      u16      rows in this frame; streams (OPEN); pages that all nodes so far have read (FETCH)
//! 26      u16      spans (ACTIVATIONS); lines (OPEN); pages (PAGES, KEEP, FETCH)
//! 28      u16      figures (ACTIVATIONS); parts (OPEN)
//! 30      u16      numerics (OPEN)
//! 32      u32      context length (OPEN)
//! 36      u32      earlier epoch that streams go on from (OPEN); first byte in the page's part (KV)
//! 40      u32      bytes (KV); pages of keys and values (OPEN)
//! 44      4 × u8   zero
//! 48               OPEN: parts of 8 bytes, lines of 100. READY: a line. REFUSE: the reason, 200 bytes. REPORT: a
//!                  name of 32 bytes. ACTIVATIONS: spans of 12 bytes, figures of 8 bytes, rows. KV: the bytes.
//!                  PAGES: pages of 24 bytes. KEEP: pages of 276 bytes. FETCH: pages of 8 bytes, ids (u32).
//!                  PASS: spans of 12 bytes, ids (u32)
//!
//! PASS and PART have other fields from 16 on: see `pass`. The bytes of a PART begin at 28. BOARDS has other fields
//! from 12 on: see `boards`.
//!
//! span:   u16 stream, u8 wanted logits (0 none, 1 of the last row, 2 of all), u8 whether the text is
//!         a long one (0, 1), u32 position, u16 rows, u8 × 2 checkpoint of a state that the span continues, and
//!         one to keep the state in that follows it (number + 1, 0 none)
//! figure: u24 microseconds of computing, u8 temperature, u32 hundredths of a joule spent so far: see `figures`
//! page:   u16 stream, u16 zero, u32 index of the page, u32 × 2 KV page and that of layers with a window,
//!         u32 × 2 KV pages to copy there first (all bits: none, or unknown)
//! keep:   u16 stream, u8 whether the text is a long one (0, 1), u8 ids, u32 index of the page, u32 full pages
//!         of its prompt, u32 × 2 KV page and that of layers with a window (all bits: none), u8 checkpoint with a
//!         state behind the ids (number + 1, 0 none), u24 zero, u32 × 64 ids
//! fetch:  u32 index of the page (highest bit: page of layers with a window; second highest: state), u32 KV page
//!         or checkpoint to read it into
//! part:   u32 × 2 layers; or u32 share of each layer's rows, u32 zero
//! line:   name (32 bytes), instruction set (16 bytes), u32 × 2 layers, u64 bytes per token,
//!         u32 round trip in µs, u16 threads, u8 status, u8 its KV of streams (0 unknown, 1 none,
//!         2 that of the earlier epoch), u32 detail, carrier (8 bytes),
//!         u32 bytes of a datagram, u32 × 2 layers of the file, u16 boards, u8 whether it
//!         keeps prefixes (0, 1), u8 whether it can embed ids (0, 1)
//! ```
//!
//! An OPEN of layers goes round a ring. Its parts are for the nodes in their order, the master first. Each node adds
//! its line, so the number of lines identifies the next node. Without parts, every node takes the layers that its own
//! user wants. An OPEN of rows goes from a team's lead to each member: its one line is the lead's, and has the team's
//! layers. The member answers READY with its own line, or REFUSE. An OPEN for drafts goes to a draft node, which
//! answers in the same way; see `draft` for what follows.
//!
//! A range of layers is given as its first layer and the layer behind its last. Texts are UTF-8 padded with zeros.
//! There is a figure for each node that the batch has been through. A batch larger than a frame is several frames with
//! equal numbers and spans, and ascending rows. The protocol version in the links' HELLO covers these frames, too.

mod emit;

use std::ops::Range;

use super::datagram::FRAME_MAX;
use super::fields::{put, u16_at, u32_at};
use super::kept::{parse_fetch_page, parse_keep};
use super::kv::parse_page;
use super::line::parse_line;
use super::name::{NAME_MAX, Name, text};
use super::span::parse_span;
use super::{Dtype, WireError, boards};
use crate::numerics::NUMERICS;

pub use super::activations::Activations;
pub use super::boards::{BOARDS_MAX, BoardReport, BoardsReport};
pub use super::fields::HEADER_LEN;
pub use super::figures::{FIGURES_LEN, Heat, MachineReading, WorkFigures};
pub use super::kept::{
    FETCH_LEN, Fetch, FetchKind, FetchPage, FrameKeep, KEEP_IDS, KEEP_LEN, KEEPS_MAX,
};
pub use super::kv::{FramePage, FramePair, KvPiece, PAGE_LEN, PAGES_MAX};
pub use super::line::{LINE_LEN, NodeLine, Status, Streams, Way};
pub use super::parts::{Parts, Split};
pub use super::pass::{PART_AT, Part, Pass, Work};
pub use super::reason::Reason;
pub use super::sizes::Sizes;
pub use super::span::{FrameSpan, FrameWants, SPAN_LEN};
pub use emit::{
    emit_activations, emit_boards, emit_close, emit_fetch, emit_keeps, emit_kv, emit_moved,
    emit_open, emit_pages, emit_part, emit_pass, emit_ready, emit_refuse, emit_report,
};

/// Bytes of one node's part in an OPEN.
pub const ASSIGNED_LEN: usize = 8;
/// Most lines or figures in a frame: the most nodes of a ring.
pub const NODES_MAX: usize = 64;
/// Most nodes of a team.
pub const TEAM_NODES_MAX: usize = 16;
/// Most bytes of the reason for a refusal.
pub const WHY_MAX: usize = 200;

/// A node's reason for a refusal.
pub type Why = heapless::String<WHY_MAX>;

/// First bytes of every frame.
const MAGIC: u32 = u32::from_le_bytes(*b"LEPF");

/// Purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first node begins an epoch.
    Open,
    /// Rows of a batch.
    Activations,
    /// A node's report about itself or a neighbour.
    Report,
    /// The first node leaves.
    Close,
    /// A piece of the KV of a layer that moves to another node.
    Kv,
    /// All earlier nodes have sent the KV of moved layers, or all nodes have.
    Moved,
    /// A report about the boards of a place that is a team.
    Boards,
    /// Changes of streams' KV pages, which precede the next batch.
    Pages,
    /// Computed pages of prompts, to keep in files.
    Keep,
    /// Pages to read from files.
    Fetch,
    /// A member is ready for the epoch.
    Ready,
    /// A member cannot be ready for the epoch.
    Refuse,
    /// A batch that all members run.
    Pass,
    /// A node's part of a gather.
    Part,
}

/// The fixed fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    /// Begins an epoch.
    Open {
        /// The epoch.
        epoch: u32,
        /// The earlier epoch whose KV the streams continue with, if all of its batches are known to be complete.
        from: Option<u32>,
        /// Sizes that nodes must be ready for.
        sizes: Sizes,
        /// The kind of the parts.
        split: Split,
        /// Number of assigned parts.
        n_assigned: u16,
        /// Number of lines that follow.
        n_lines: u16,
    },
    /// Rows of a batch.
    Activations(Activations),
    /// A report about the named node, or from it.
    Report {
        /// The epoch.
        epoch: u32,
        /// The reason.
        reason: Reason,
    },
    /// The first node leaves.
    Close {
        /// The epoch.
        epoch: u32,
    },
    /// A piece of keys and values.
    Kv {
        /// The epoch.
        epoch: u32,
        /// Position of the piece.
        piece: KvPiece,
    },
    /// All earlier nodes have sent their pieces.
    Moved {
        /// The epoch.
        epoch: u32,
        /// Whether all nodes have, so that all pieces are ahead of this frame.
        is_over: bool,
    },
    /// A report about this number of boards of a place.
    Boards(u16),
    /// Changes of streams' KV pages.
    Pages {
        /// The epoch.
        epoch: u32,
        /// Number of pages.
        n_pages: u16,
    },
    /// Pages of prompts to keep.
    Keep {
        /// The epoch.
        epoch: u32,
        /// Number of pages.
        n_pages: u16,
    },
    /// Pages to read.
    Fetch(Fetch),
    /// A member is ready.
    Ready {
        /// The epoch.
        epoch: u32,
    },
    /// A member cannot be ready.
    Refuse {
        /// The epoch.
        epoch: u32,
    },
    /// A batch that all members run, or a piece of it.
    Pass(Pass),
    /// A part of a gather, or a piece of it.
    Part(Part),
}

/// A frame whose variable parts are read from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
    repr: Repr,
}

impl<'a> Frame<'a> {
    /// Reads a frame. No accessor panics after this check.
    ///
    /// # Errors
    /// If the length does not match the fields, or a field has no meaning.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let have = bytes.len();
        let truncated = |need| WireError::Truncated { need, have };
        if bytes.get(4) == Some(&(Kind::Part as u8)) {
            check_magic(bytes)?;
            return Ok(Frame { bytes, repr: Repr::Part(Part::parse(bytes)?) });
        }
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
            Repr::Report { .. } => HEADER_LEN + NAME_MAX,
            Repr::Ready { .. } => HEADER_LEN + LINE_LEN,
            Repr::Refuse { .. } => HEADER_LEN + WHY_MAX,
            Repr::Pass(pass) => pass.bytes(),
            // Read above.
            Repr::Part(_) => have,
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

    /// The fixed fields.
    pub fn repr(&self) -> Repr {
        self.repr
    }

    /// The spans of ACTIVATIONS and PASS; a span with impossible fields is an error.
    pub fn spans(&self) -> impl ExactSizeIterator<Item = Result<FrameSpan, WireError>> + use<'a> {
        let spans = match self.repr {
            Repr::Activations(activations) => {
                &self.bytes[HEADER_LEN..][..usize::from(activations.n_spans) * SPAN_LEN]
            }
            Repr::Pass(pass) => &self.bytes[HEADER_LEN..pass.tokens_at()],
            _ => &[],
        };
        spans.as_chunks::<SPAN_LEN>().0.iter().map(parse_span)
    }

    /// The ids of PASS.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        let tokens = match self.repr {
            Repr::Pass(pass) => &self.bytes[pass.tokens_at()..],
            _ => &[],
        };
        tokens.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id))
    }

    /// The bytes of PART.
    pub fn part(&self) -> &'a [u8] {
        match self.repr {
            Repr::Part(_) => &self.bytes[PART_AT..],
            _ => &[],
        }
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

    /// The pages of PAGES; a page with impossible fields is an error.
    pub fn pages(&self) -> impl Iterator<Item = Result<FramePage, WireError>> + use<'a> {
        let pages = match self.repr {
            Repr::Pages { .. } => &self.bytes[HEADER_LEN..],
            _ => &[],
        };
        pages.as_chunks::<PAGE_LEN>().0.iter().map(parse_page)
    }

    /// The pages of KEEP; a page with impossible fields is an error.
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

    /// The parts of OPEN, as bytes.
    fn parts(&self) -> &'a [[u8; ASSIGNED_LEN]] {
        match self.repr {
            Repr::Open { n_assigned, .. } => &self.bytes[HEADER_LEN..open_lines_at(n_assigned)],
            _ => &[],
        }
        .as_chunks()
        .0
    }

    /// The layers that OPEN assigns; a range that ends before it starts is an error.
    pub fn assigned(&self) -> impl Iterator<Item = Result<Range<u32>, WireError>> + use<'a> {
        let share = |bytes: &[u8; ASSIGNED_LEN]| u32_at(bytes, 0)..u32_at(bytes, 4);
        self.parts().iter().map(share).map(|layers| {
            // A node that leaves has an empty range.
            let is_range = layers.start <= layers.end;
            if is_range { Ok(layers) } else { Err(WireError::Field("assigned layers")) }
        })
    }

    /// The shares of rows that OPEN assigns; a share that is too large is an error.
    pub fn shares(&self) -> impl Iterator<Item = Result<u16, WireError>> + use<'a> {
        let share = |bytes: &[u8; ASSIGNED_LEN]| u16::try_from(u32_at(bytes, 0));
        self.parts().iter().map(share).map(|share| share.map_err(|_| WireError::Field("share")))
    }

    /// The lines of OPEN, or the line of READY; a line with impossible fields is an error.
    pub fn lines(&self) -> impl Iterator<Item = Result<NodeLine, WireError>> + use<'a> {
        let lines = match self.repr {
            Repr::Open { n_assigned, .. } => &self.bytes[open_lines_at(n_assigned)..],
            Repr::Ready { .. } => &self.bytes[HEADER_LEN..],
            _ => &[],
        };
        lines.as_chunks::<LINE_LEN>().0.iter().map(parse_line)
    }

    /// The reason in REFUSE; empty in other kinds.
    pub fn why(&self) -> Why {
        match self.repr {
            Repr::Refuse { .. } => text(&self.bytes[HEADER_LEN..]),
            _ => Why::new(),
        }
    }

    /// The report in a BOARDS frame.
    pub fn boards(&self) -> Option<BoardsReport> {
        matches!(self.repr, Repr::Boards(_)).then(|| boards::parse(self.bytes, HEADER_LEN))
    }

    /// The name in REPORT; empty in other kinds.
    pub fn name(&self) -> Name {
        match self.repr {
            Repr::Report { .. } => text(&self.bytes[HEADER_LEN..]),
            _ => Name::new(),
        }
    }
}

impl Repr {
    fn parse(header: &[u8; HEADER_LEN]) -> Result<Repr, WireError> {
        check_magic(header)?;
        let epoch = u32_at(header, 8);
        let wire = dtype(header[5])?;
        match header[4] {
            0 => Repr::parse_open(header, wire),
            1 => match Activations::parse(header, wire) {
                rows if usize::from(rows.n_figures) <= NODES_MAX => Ok(Repr::Activations(rows)),
                _ => Err(WireError::Field("number of figures")),
            },
            2 => {
                let reason = Reason::parse(header[6], u32_at(header, 12))?;
                Ok(Repr::Report { epoch, reason })
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
            10 => Ok(Repr::Ready { epoch }),
            11 => Ok(Repr::Refuse { epoch }),
            12 => Ok(Repr::Pass(Pass::parse(header)?)),
            _ => Err(WireError::Field("kind")),
        }
    }

    fn parse_open(header: &[u8; HEADER_LEN], wire: Dtype) -> Result<Repr, WireError> {
        let (n_lines, n_assigned) = (u16_at(header, 26), u16_at(header, 28));
        if usize::from(n_lines.max(n_assigned)) > NODES_MAX {
            return Err(WireError::Field("number of nodes"));
        }
        if u16_at(header, 30) != u16::from(NUMERICS) {
            return Err(WireError::Field("numerics"));
        }
        let from = match header[7] {
            0 => None,
            1 => Some(u32_at(header, 36)),
            _ => return Err(WireError::Field("earlier epoch")),
        };
        let split = match (header[12], header[13], u16_at(header, 14)) {
            (0, 0, 0) => Split::Layers,
            (1, has_ends @ (0 | 1), node) => Split::Rows { node, has_ends: has_ends == 1 },
            (2, 0, 0) => Split::Drafts,
            _ => return Err(WireError::Field("what the parts are")),
        };
        if let Split::Rows { node, .. } = split {
            let is_team = (2..=TEAM_NODES_MAX).contains(&n_assigned.into());
            if !is_team || node >= n_assigned || n_lines != 1 {
                return Err(WireError::Field("number of nodes"));
            }
        }
        if split == Split::Drafts && (n_assigned, n_lines) != (0, 0) {
            return Err(WireError::Field("number of nodes"));
        }
        let (epoch, sizes) = (u32_at(header, 8), Sizes::parse(header, wire)?);
        Ok(Repr::Open { epoch, from, sizes, split, n_assigned, n_lines })
    }

    /// Whether only nodes of a ring send this frame.
    pub fn is_of_ring(&self) -> bool {
        match self {
            Repr::Open { split, .. } => *split == Split::Layers,
            Repr::Activations(_) | Repr::Kv { .. } | Repr::Moved { .. } => true,
            Repr::Boards(_) | Repr::Keep { .. } | Repr::Fetch(_) => true,
            _ => false,
        }
    }

    /// Whether nodes of a ring never send this frame.
    pub fn is_of_others(&self) -> bool {
        match self {
            Repr::Open { split, .. } => *split != Split::Layers,
            Repr::Ready { .. } | Repr::Refuse { .. } | Repr::Pass(_) | Repr::Part(_) => true,
            _ => false,
        }
    }

    /// Purpose of the frame.
    pub fn kind(&self) -> Kind {
        match self {
            Repr::Open { .. } => Kind::Open,
            Repr::Activations(_) => Kind::Activations,
            Repr::Report { .. } => Kind::Report,
            Repr::Close { .. } => Kind::Close,
            Repr::Kv { .. } => Kind::Kv,
            Repr::Moved { .. } => Kind::Moved,
            Repr::Boards(_) => Kind::Boards,
            Repr::Pages { .. } => Kind::Pages,
            Repr::Keep { .. } => Kind::Keep,
            Repr::Fetch(_) => Kind::Fetch,
            Repr::Ready { .. } => Kind::Ready,
            Repr::Refuse { .. } => Kind::Refuse,
            Repr::Pass(_) => Kind::Pass,
            Repr::Part(_) => Kind::Part,
        }
    }

    /// Writes every byte of the header.
    pub fn emit(&self, header: &mut [u8; HEADER_LEN]) {
        header.fill(0);
        put(header, 0, &MAGIC.to_le_bytes());
        header[4] = self.kind() as u8;
        match self {
            Repr::Open { epoch, from, sizes, split, n_assigned, n_lines } => {
                sizes.emit(header);
                match split {
                    Split::Layers => {}
                    Split::Rows { node, has_ends } => {
                        (header[12], header[13]) = (1, u8::from(*has_ends));
                        put(header, 14, &node.to_le_bytes());
                    }
                    Split::Drafts => header[12] = 2,
                }
                header[7] = from.is_some().into();
                put(header, 36, &from.unwrap_or(0).to_le_bytes());
                put(header, 8, &epoch.to_le_bytes());
                put(header, 26, &n_lines.to_le_bytes());
                put(header, 28, &n_assigned.to_le_bytes());
                put(header, 30, &u16::from(NUMERICS).to_le_bytes());
            }
            Repr::Activations(activations) => activations.emit(header),
            Repr::Report { epoch, reason } => {
                let (code, number) = reason.code();
                header[6] = code;
                put(header, 8, &epoch.to_le_bytes());
                put(header, 12, &number.to_le_bytes());
            }
            Repr::Close { epoch } | Repr::Ready { epoch } | Repr::Refuse { epoch } => {
                put(header, 8, &epoch.to_le_bytes());
            }
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
            Repr::Pass(pass) => pass.emit(header),
            Repr::Part(part) => part.emit(header),
            Repr::Pages { epoch, n_pages } | Repr::Keep { epoch, n_pages } => {
                put(header, 8, &epoch.to_le_bytes());
                put(header, 26, &n_pages.to_le_bytes());
            }
        }
    }
}

/// Offset of the lines in an OPEN.
fn open_lines_at(n_assigned: u16) -> usize {
    HEADER_LEN + usize::from(n_assigned) * ASSIGNED_LEN
}

/// Checks the magic in the first of 5 or more bytes.
fn check_magic(bytes: &[u8]) -> Result<(), WireError> {
    if u32_at(bytes, 0) == MAGIC { Ok(()) } else { Err(WireError::Magic) }
}

fn dtype(code: u8) -> Result<Dtype, WireError> {
    Dtype::from_code(code).ok_or(WireError::Field("dtype"))
}

#[cfg(test)]
mod tests;
