//! What nodes of a ring tell each other, inside the frames of a link.
//!
//! ```text
//!  0 u32 magic "LEPR"          16 u16 rows of the whole batch     28 u16 figures
//!  4 u8  kind                  18 u16 first row that is here      30 u16 0
//!  5 u8  dtype of the rows     20 u16 rows that are here          32 u32 tokens done so far
//!  6 u16 spans                 22 u16 flags                       36 [12] 0
//!  8 u32 epoch                 24 u32 dim                         48 what the kind has
//! 12 u32 batch
//!
//! ACTIVATIONS: spans, figures, zeros up to a multiple of 16, rows [rows here, dim]
//! OPEN: plan, then a line for each node that it has passed
//! DOWN: the name of the node that lost its neighbour   CLOSE: nothing
//!
//! span, 12 bytes            plan, 16 bytes           line, 96 bytes
//!  0 u16 stream              0 u32 context           0 [32] name, ended by 0
//!  2 u16 rows                4 u16 streams          32 u32 first layer
//!  4 u32 position            6 u16 rows of a batch  36 u32 layer behind its last
//!  8 u16 1 = wants logits,   8 u16 lines            40 u32 round trip to next, microseconds
//!        2 = of its last    10 [6] 0                44 u32 threads
//!        row only                                   48 u64 bytes of weights read per token
//! 10 u16 0                                          56 [8] carrier   64 [16] kernels   80 [16] 0
//! ```
//!
//! Figures are microseconds that nodes computed, in the order of the ring.

use super::datagram::FRAME_MAX;
use super::fields::{Writer, array, u16_at, u32_at, u64_at};
use super::hello::{NAME_MAX, Name, printable};
use super::{Dtype, Error};

/// "LEPR" as it stands on the wire.
pub const MAGIC: u32 = u32::from_le_bytes(*b"LEPR");
/// Bytes of a ring frame before what its kind has.
pub const HEADER_LEN: usize = 48;
/// Bytes of a [`Span`].
pub const SPAN_LEN: usize = 12;
/// Most nodes of a ring.
pub const NODES_MAX: usize = 64;
/// Bytes of a [`Plan`].
pub const PLAN_LEN: usize = 16;
/// Bytes of a [`Line`].
pub const LINE_LEN: usize = 96;

/// What a ring frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The master begins an epoch; each node adds its line.
    Open = 0,
    /// Rows of a batch.
    Activations = 1,
    /// A node lost its neighbour; the master is to begin a new epoch.
    Down = 2,
    /// The master goes away.
    Close = 3,
}

/// The fixed part of a ring frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is for.
    pub kind: Kind,
    /// Type of the rows.
    pub dtype: Dtype,
    /// Spans that follow.
    pub n_spans: u16,
    /// The master's epoch.
    pub epoch: u32,
    /// Number of the batch within the epoch.
    pub batch: u32,
    /// Rows of the whole batch.
    pub n_rows: u16,
    /// The first row that is in this frame.
    pub first_row: u16,
    /// Rows that are in this frame.
    pub rows_here: u16,
    /// Bits whose meaning is the ring's.
    pub flags: u16,
    /// Elements of a row.
    pub dim: u32,
    /// Figures that follow the spans.
    pub n_figures: u16,
    /// Tokens that the master has done; a figure for messages.
    pub tokens: u32,
}

/// Rows of one stream that follow each other in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Index of the stream.
    pub stream: u16,
    /// Rows of the span.
    pub n_rows: u16,
    /// Position of the first row.
    pub pos: u32,
    /// Whether the master wants logits of its rows.
    pub wants_logits: bool,
    /// Of these, only the last row's.
    pub last_only: bool,
}

/// What the master wants of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Positions of a stream's KV cache.
    pub ctx_len: u32,
    /// Streams.
    pub n_streams: u16,
    /// Most rows of a batch.
    pub batch_rows: u16,
    /// Lines that follow.
    pub n_lines: u16,
}

/// What a node says of itself when a ring opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Name of the node.
    pub name: Name,
    /// Its first layer.
    pub first_layer: u32,
    /// The layer behind its last.
    pub end_layer: u32,
    /// Round trip to its next node in microseconds.
    pub rtt_us: u32,
    /// Threads it computes with.
    pub threads: u32,
    /// Bytes of weights it reads for a token.
    pub bytes_per_token: u64,
    /// Carrier of the link to its next node.
    pub carrier: heapless::String<8>,
    /// Its kernels.
    pub isa: heapless::String<16>,
}

/// A ring frame whose lengths are proven; nothing in it is judged.
#[derive(Clone, Copy, Debug)]
pub struct Frame<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Frame<T> {
    /// Wraps `buffer`, all of one frame. After this no accessor panics.
    ///
    /// # Errors
    /// [`Error::Magic`], [`Error::Field`], and [`Error::Truncated`] if spans, figures, rows or
    /// lines are not exactly what the header promises.
    pub fn new_checked(buffer: T) -> Result<Frame<T>, Error> {
        let have = buffer.as_ref().len();
        if have < HEADER_LEN {
            return Err(Error::Truncated { need: HEADER_LEN, have });
        }
        if have > FRAME_MAX {
            return Err(Error::Oversize { len: have });
        }
        let bytes = buffer.as_ref();
        if u32_at(bytes, 0) != MAGIC {
            return Err(Error::Magic);
        }
        let header = Header::fields(bytes)?;
        let need = header.frame_bytes(bytes)?;
        if have != need {
            return Err(Error::Truncated { need, have });
        }
        Ok(Frame { buffer })
    }

    /// The fixed part.
    pub fn header(&self) -> Header {
        Header::fields(self.buffer.as_ref()).expect("the fields were read before")
    }

    /// The spans of ACTIVATIONS; none of other kinds.
    pub fn spans(&self) -> impl ExactSizeIterator<Item = Span> {
        let bytes = self.buffer.as_ref();
        let end = HEADER_LEN + usize::from(self.header().n_spans) * SPAN_LEN;
        let (spans, _) = bytes[HEADER_LEN..end].as_chunks::<SPAN_LEN>();
        spans.iter().map(Span::parse)
    }

    /// The figures of ACTIVATIONS, in microseconds; none of other kinds.
    pub fn figures(&self) -> impl ExactSizeIterator<Item = u32> {
        let header = self.header();
        let start = HEADER_LEN + usize::from(header.n_spans) * SPAN_LEN;
        let end = start + usize::from(header.n_figures) * 4;
        let (figures, _) = self.buffer.as_ref()[start..end].as_chunks::<4>();
        figures.iter().map(|figure| u32::from_le_bytes(*figure))
    }

    /// The rows of ACTIVATIONS as bytes, `[rows_here, dim]` of the header's dtype.
    pub fn rows(&self) -> &[u8] {
        let header = self.header();
        match header.kind {
            Kind::Activations => &self.buffer.as_ref()[header.rows_offset()..],
            _ => &[],
        }
    }

    /// The plan of an OPEN.
    pub fn plan(&self) -> Option<Plan> {
        let is_open = self.header().kind == Kind::Open;
        is_open.then(|| Plan::parse(&self.buffer.as_ref()[HEADER_LEN..]))
    }

    /// The lines of an OPEN; none of other kinds.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = Line> {
        let start = match self.header().kind {
            Kind::Open => HEADER_LEN + PLAN_LEN,
            _ => self.buffer.as_ref().len(),
        };
        let (lines, _) = self.buffer.as_ref()[start..].as_chunks::<LINE_LEN>();
        lines.iter().map(Line::parse)
    }

    /// The node that a DOWN names.
    pub fn down(&self) -> Option<Name> {
        let is_down = self.header().kind == Kind::Down;
        is_down.then(|| text(&self.buffer.as_ref()[HEADER_LEN..]))
    }
}

impl Header {
    /// A header of `kind` with everything else zero.
    pub fn new(kind: Kind, epoch: u32) -> Header {
        Header {
            kind,
            dtype: Dtype::F32,
            n_spans: 0,
            epoch,
            batch: 0,
            n_rows: 0,
            first_row: 0,
            rows_here: 0,
            flags: 0,
            dim: 0,
            n_figures: 0,
            tokens: 0,
        }
    }

    fn fields(bytes: &[u8]) -> Result<Header, Error> {
        let kinds = [Kind::Open, Kind::Activations, Kind::Down, Kind::Close];
        let header = Header {
            kind: *kinds.get(usize::from(bytes[4])).ok_or(Error::Field("kind"))?,
            dtype: Dtype::from_code(bytes[5]).ok_or(Error::Field("dtype"))?,
            n_spans: u16_at(bytes, 6),
            epoch: u32_at(bytes, 8),
            batch: u32_at(bytes, 12),
            n_rows: u16_at(bytes, 16),
            first_row: u16_at(bytes, 18),
            rows_here: u16_at(bytes, 20),
            flags: u16_at(bytes, 22),
            dim: u32_at(bytes, 24),
            n_figures: u16_at(bytes, 28),
            tokens: u32_at(bytes, 32),
        };
        let end = u32::from(header.first_row) + u32::from(header.rows_here);
        if end > u32::from(header.n_rows) {
            return Err(Error::Field("n_rows"));
        }
        let is_plain = header.n_spans == 0 && header.n_figures == 0 && header.n_rows == 0;
        if header.kind != Kind::Activations && !is_plain {
            return Err(Error::Field("n_spans"));
        }
        Ok(header)
    }

    /// Where the rows of ACTIVATIONS begin: a multiple of 16.
    pub fn rows_offset(&self) -> usize {
        let figures = usize::from(self.n_figures) * 4;
        (HEADER_LEN + usize::from(self.n_spans) * SPAN_LEN + figures).next_multiple_of(16)
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.dim) * self.dtype.bytes() as u64
    }

    /// Bytes of ACTIVATIONS with this header; `None` if that is more than a frame holds.
    pub fn activations_bytes(&self) -> Option<usize> {
        let rows = u64::from(self.rows_here) * self.row_bytes();
        let bytes = self.rows_offset() as u64 + rows;
        usize::try_from(bytes).ok().filter(|&bytes| bytes <= FRAME_MAX)
    }

    /// Bytes that a frame with this header has. `bytes` has the header at least.
    fn frame_bytes(&self, bytes: &[u8]) -> Result<usize, Error> {
        match self.kind {
            Kind::Activations => {
                self.activations_bytes().ok_or(Error::Oversize { len: self.row_bytes() as usize })
            }
            Kind::Open => {
                let need = HEADER_LEN + PLAN_LEN;
                if bytes.len() < need {
                    return Err(Error::Truncated { need, have: bytes.len() });
                }
                let n_lines = usize::from(Plan::parse(&bytes[HEADER_LEN..]).n_lines);
                if n_lines > NODES_MAX {
                    return Err(Error::Field("n_lines"));
                }
                Ok(need + n_lines * LINE_LEN)
            }
            Kind::Down => Ok(HEADER_LEN + NAME_MAX),
            Kind::Close => Ok(HEADER_LEN),
        }
    }

    /// Writes the fixed part.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let mut out = Writer::new(out);
        out.u32(MAGIC).u8(self.kind as u8).u8(self.dtype as u8).u16(self.n_spans);
        out.u32(self.epoch).u32(self.batch).u16(self.n_rows).u16(self.first_row);
        out.u16(self.rows_here).u16(self.flags).u32(self.dim).u16(self.n_figures).u16(0);
        out.u32(self.tokens).zero(12);
    }

    /// Writes ACTIVATIONS up to the rows, and returns where they begin. Counts of spans and
    /// figures are taken from the slices. `None` if `out` or a frame is too short for it all.
    pub fn emit_activations(
        mut self,
        spans: &[Span],
        figures: &[u32],
        out: &mut [u8],
    ) -> Option<usize> {
        self.n_spans = u16::try_from(spans.len()).ok()?;
        self.n_figures = u16::try_from(figures.len()).ok()?;
        let bytes = self.activations_bytes()?;
        let rows_offset = self.rows_offset();
        let (header, rest) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
        self.emit(header);
        let mut out = Writer::new(&mut rest[..rows_offset - HEADER_LEN]);
        spans.iter().for_each(|span| span.emit(&mut out));
        for figure in figures {
            out.u32(*figure);
        }
        let written = HEADER_LEN + out.len();
        out.zero(rows_offset - written);
        Some(rows_offset)
    }
}

/// Writes an OPEN and returns its length. `None` if `out` is too short or there are too many
/// lines; `plan.n_lines` is taken from the slice.
pub fn emit_open(epoch: u32, plan: &Plan, lines: &[Line], out: &mut [u8]) -> Option<usize> {
    if lines.len() > NODES_MAX {
        return None;
    }
    let bytes = HEADER_LEN + PLAN_LEN + lines.len() * LINE_LEN;
    let (header, rest) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Header::new(Kind::Open, epoch).emit(header);
    let mut out = Writer::new(rest);
    Plan { n_lines: lines.len() as u16, ..*plan }.emit(&mut out);
    lines.iter().for_each(|line| line.emit(&mut out));
    Some(bytes)
}

/// Writes a DOWN and returns its length; `None` if `out` is too short.
pub fn emit_down(epoch: u32, node: &Name, out: &mut [u8]) -> Option<usize> {
    let bytes = HEADER_LEN + NAME_MAX;
    let (header, rest) = out.get_mut(..bytes)?.split_first_chunk_mut()?;
    Header::new(Kind::Down, epoch).emit(header);
    Writer::new(rest).put(node.as_bytes()).zero(NAME_MAX - node.len());
    Some(bytes)
}

/// Writes a CLOSE and returns its length; `None` if `out` is too short.
pub fn emit_close(epoch: u32, out: &mut [u8]) -> Option<usize> {
    Header::new(Kind::Close, epoch).emit(out.first_chunk_mut()?);
    Some(HEADER_LEN)
}

impl Span {
    fn parse(bytes: &[u8; SPAN_LEN]) -> Span {
        let flags = u16_at(bytes, 8);
        Span {
            stream: u16_at(bytes, 0),
            n_rows: u16_at(bytes, 2),
            pos: u32_at(bytes, 4),
            wants_logits: flags & 1 != 0,
            last_only: flags & 2 != 0,
        }
    }

    fn emit(&self, out: &mut Writer<'_>) {
        let flags = u16::from(self.wants_logits) | u16::from(self.last_only) << 1;
        out.u16(self.stream).u16(self.n_rows).u32(self.pos).u16(flags).u16(0);
    }
}

impl Plan {
    fn parse(bytes: &[u8]) -> Plan {
        Plan {
            ctx_len: u32_at(bytes, 0),
            n_streams: u16_at(bytes, 4),
            batch_rows: u16_at(bytes, 6),
            n_lines: u16_at(bytes, 8),
        }
    }

    fn emit(&self, out: &mut Writer<'_>) {
        out.u32(self.ctx_len).u16(self.n_streams).u16(self.batch_rows).u16(self.n_lines).zero(6);
    }
}

impl Line {
    fn parse(bytes: &[u8; LINE_LEN]) -> Line {
        Line {
            name: text(&array::<NAME_MAX>(bytes, 0)),
            first_layer: u32_at(bytes, 32),
            end_layer: u32_at(bytes, 36),
            rtt_us: u32_at(bytes, 40),
            threads: u32_at(bytes, 44),
            bytes_per_token: u64_at(bytes, 48),
            carrier: text(&array::<8>(bytes, 56)),
            isa: text(&array::<16>(bytes, 64)),
        }
    }

    fn emit(&self, out: &mut Writer<'_>) {
        out.put(self.name.as_bytes()).zero(NAME_MAX - self.name.len());
        out.u32(self.first_layer).u32(self.end_layer).u32(self.rtt_us).u32(self.threads);
        out.u64(self.bytes_per_token);
        out.put(self.carrier.as_bytes()).zero(8 - self.carrier.len());
        out.put(self.isa.as_bytes()).zero(16 - self.isa.len()).zero(16);
    }
}

/// Printable text up to the first zero; damaged UTF-8 ends it.
fn text<const N: usize>(bytes: &[u8]) -> heapless::String<N> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let valid = bytes[..end].utf8_chunks().next().map_or("", |chunk| chunk.valid());
    printable(valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::hello::name;

    const SPANS: [Span; 2] = [
        Span { stream: 1, n_rows: 2, pos: 7, wants_logits: true, last_only: false },
        Span { stream: 3, n_rows: 1, pos: 70_000, wants_logits: true, last_only: true },
    ];

    fn activations() -> Header {
        Header {
            dtype: Dtype::F16,
            n_spans: 2,
            batch: 9,
            n_rows: 3,
            rows_here: 3,
            dim: 8,
            n_figures: 3,
            tokens: 5,
            ..Header::new(Kind::Activations, 4)
        }
    }

    fn emitted() -> Vec<u8> {
        let mut bytes = vec![0xa5; 48 + 24 + 12 + 12 + 3 * 16];
        let rows = activations().emit_activations(&SPANS, &[10, 20, 30], &mut bytes).unwrap();
        assert_eq!(rows, 96);
        bytes
    }

    fn line() -> Line {
        Line {
            name: name("küche"),
            first_layer: 2,
            end_layer: 6,
            rtt_us: 120,
            threads: 4,
            bytes_per_token: 1 << 33,
            carrier: "udp".try_into().unwrap(),
            isa: "neondot".try_into().unwrap(),
        }
    }

    #[test]
    fn activations_parse_to_what_was_emitted() {
        let bytes = emitted();
        let frame = Frame::new_checked(&bytes).unwrap();
        assert_eq!(frame.header(), activations());
        assert_eq!(frame.spans().collect::<Vec<_>>(), SPANS);
        assert_eq!(frame.figures().collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(frame.rows(), [0xa5; 48]);
        assert_eq!((frame.plan(), frame.lines().len(), frame.down()), (None, 0, None));
    }

    #[test]
    fn open_down_and_close_parse_to_what_was_emitted() {
        let plan = Plan { ctx_len: 4096, n_streams: 4, batch_rows: 32, n_lines: 2 };
        let mut bytes = [0xa5; 512];
        let len = emit_open(8, &plan, &[line(), Line::default()], &mut bytes).unwrap();
        let frame = Frame::new_checked(&bytes[..len]).unwrap();
        assert_eq!((frame.header().kind, frame.header().epoch), (Kind::Open, 8));
        assert_eq!(frame.plan(), Some(plan));
        assert_eq!(frame.lines().collect::<Vec<_>>(), [line(), Line::default()]);

        let len = emit_down(8, &name("n1"), &mut bytes).unwrap();
        let frame = Frame::new_checked(&bytes[..len]).unwrap();
        assert_eq!(frame.down(), Some(name("n1")));

        let len = emit_close(8, &mut bytes).unwrap();
        assert_eq!(Frame::new_checked(&bytes[..len]).unwrap().header().kind, Kind::Close);
    }

    #[test]
    fn a_frame_has_these_bytes() {
        let wanted = [
            &[b'L', b'E', b'P', b'R', 1, 1, 2, 0, 4, 0, 0, 0, 9, 0, 0, 0][..],
            &[3, 0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0],
            &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 2, 0, 7, 0, 0, 0, 1, 0, 0, 0],
            &[3, 0, 1, 0, 0x70, 0x11, 1, 0, 3, 0, 0, 0],
            &[10, 0, 0, 0, 20, 0, 0, 0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(emitted()[..96], wanted.concat());
    }

    #[test]
    fn every_truncation_is_refused() {
        let mut bytes = [0; 512];
        let plan = Plan { ctx_len: 1, n_streams: 1, batch_rows: 1, n_lines: 0 };
        let open = emit_open(1, &plan, &[line()], &mut bytes).unwrap();
        let mut down = [0; 512];
        let down_len = emit_down(1, &name("a"), &mut down).unwrap();
        for frame in [&emitted()[..], &bytes[..open], &down[..down_len]] {
            for len in 0..frame.len() {
                assert!(Frame::new_checked(&frame[..len]).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn headers_that_promise_too_much_are_refused() {
        let forged = |at: usize, with: &[u8]| {
            let mut bytes = emitted();
            bytes[at..at + with.len()].copy_from_slice(with);
            Frame::new_checked(&bytes).map(|_| ())
        };
        assert_eq!(forged(4, &[4]), Err(Error::Field("kind")));
        assert_eq!(forged(5, &[2]), Err(Error::Field("dtype")));
        assert_eq!(forged(16, &[2]), Err(Error::Field("n_rows")));
        assert_eq!(forged(18, &[1]), Err(Error::Field("n_rows")));
        assert!(matches!(forged(6, &[255, 255]), Err(Error::Oversize { .. })));
        assert!(matches!(forged(24, &[255; 4]), Err(Error::Oversize { .. })));
        assert!(matches!(forged(28, &[9]), Err(Error::Truncated { .. })));
        assert_eq!(forged(4, &[3]), Err(Error::Field("n_spans")));
    }

    #[test]
    fn what_does_not_fit_is_not_emitted() {
        assert_eq!(activations().emit_activations(&SPANS, &[], &mut [0; 100]), None);
        let wide = Header { dim: u32::MAX, ..activations() };
        assert_eq!(wide.emit_activations(&SPANS, &[], &mut vec![0; FRAME_MAX]), None);
        let plan = Plan { ctx_len: 1, n_streams: 1, batch_rows: 1, n_lines: 0 };
        let lines = vec![line(); NODES_MAX + 1];
        assert_eq!(emit_open(1, &plan, &lines, &mut vec![0; FRAME_MAX]), None);
    }
}
