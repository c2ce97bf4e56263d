//! Team frames: what the nodes of a team tell each other, inside the frames of a link. Little-endian.
//!
//! ```text
//! offset  type     field
//! 0       u32      magic "LEPT"
//! 4       u8       kind: 0 OPEN, 1 READY, 2 REFUSED, 3 PASS, 4 PART, 5 FAILED, 6 CLOSE, 7 MISSING
//! 5       u8       zero
//! 6       u16      the node it goes to (OPEN); the node that is lost or missed (FAILED, MISSING)
//! 8       u32      epoch
//! 12      u32      number of the batch (PASS), of the gather (PART) in its epoch
//! 16               the kind's fields
//!
//! OPEN, the lead's      READY, a member's         PASS, the lead's            PART, from each node to each
//! 16 u32 context        16 [32] name              16 u16 ids of the batch     16 u32 offset in the part
//! 20 u16 streams        48 [16] instruction set   18 u16 spans of the batch   20 u32 bytes of the part
//! 22 u16 largest batch  64 u64 bytes per token    20 u16 first id here        24 u32 computed, us
//! 24 u16 most logits    72 u16 threads            22 u16 first span here      28 bytes
//! 26 u8  kind of KV     74 u8 embeds (0, 1)       24 u16 ids here             REFUSED, a member's
//! 27 u8  type of gathers                          26 u16 spans here           16 [200] why
//! 28 u8  has ends (0, 1)                          28 u16 rows (work 2)
//! 29 u8  numerics       75 [5] zero               30 u16 work
//! 32 u16 nodes                                    32 spans of 12 bytes,
//! 34 [2] zero                                        ids of 4
//! 36 u32 pages of KV
//! 40 [32] the lead
//! 72 u32 × 2 layers
//! 80 u16 × nodes shares
//! ```
//!
//! Work is 0 where ids are embedded and go through the layers, 1 where rows do that the lead gives by the first
//! gather, 2 where rows that it gives so become logits, which has neither spans nor ids, 3 where streams have other pages of
//! keys and values from the next batch on: the ids are what [`super::frame`] has of them, word by word. Layers are the first and
//! the one behind the last. Types are those of [`super::Dtype`].
//!
//! FAILED, CLOSE and MISSING have no more fields. Spans are those of [`super::frame`]. A batch that is longer
//! than a frame is several, spans first. A part is a node's columns of all rows, row after row; one that is
//! longer than a frame is several. It tells how long the node has computed since its last part. Texts are UTF-8, padded with
//! zeros. The protocol's version is the links' HELLO's.

use std::ops::Range;

use super::fields::{Writer, u16_at, u32_at, u64_at};
use super::frame::{FrameSpan, SPAN_LEN};
use super::name::{NAME_MAX, Name, put_text, text};
use super::span::{emit_span, parse_span};
use super::{Dtype, KvType, WireError};
use crate::numerics::NUMERICS;

/// Most nodes of a team.
pub const NODES_MAX: usize = 16;
/// Bytes before the bytes of a PART.
pub const PART_AT: usize = 28;
/// Most bytes of the reason for a refusal.
pub const TEXT_MAX: usize = 200;

const MAGIC: u32 = u32::from_le_bytes(*b"LEPT");
const HEADER_LEN: usize = 16;
const SHARES_AT: usize = 80;
const READY_LEN: usize = 80;
const REFUSED_LEN: usize = HEADER_LEN + TEXT_MAX;
const SPANS_AT: usize = 32;
const ISA_MAX: usize = 16;

/// Why a member refuses.
pub type Text = heapless::String<TEXT_MAX>;

/// A lead's request to a member to be ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Longest context of a stream, in tokens.
    pub ctx_len: u32,
    /// Streams.
    pub n_streams: u16,
    /// Pages of keys and values that they share.
    pub n_pages: u32,
    /// Most rows of a batch.
    pub max_batch: u16,
    /// Most rows of a batch that may want logits.
    pub max_logits: u16,
    /// How keys and values are kept.
    pub kv: KvType,
    /// How what is added to rows is gathered.
    pub wire: Dtype,
    /// The layers that the team has.
    pub layers: Range<u32>,
    /// Whether it also embeds ids and turns rows into logits.
    pub has_ends: bool,
    /// The nodes' shares of the work, relative to each other, the lead's first.
    pub shares: heapless::Vec<u16, NODES_MAX>,
    /// Index of the member that this goes to; the lead sets it.
    pub node: u16,
    /// Name of the lead.
    pub lead: Name,
}

/// A member's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamLine {
    /// Name of the member.
    pub name: Name,
    /// Instruction set of its kernels.
    pub isa: heapless::String<ISA_MAX>,
    /// Threads that compute.
    pub threads: u16,
    /// Bytes of weights that it reads for a token.
    pub bytes_per_token: u64,
    /// Whether it can embed ids, where the team has the model's ends: else rows are given to it.
    pub embeds: bool,
    /// Round trip between it and the lead, in microseconds; 0 if unknown. It does not travel.
    pub rtt_us: u32,
}

/// The work on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Its ids are embedded, and go through the layers; where these are the whole model, to the logits that are
    /// wanted.
    Ids,
    /// Rows that the lead gives go through the layers.
    Rows,
    /// So many rows that the lead gives become logits.
    Logits(u16),
    /// Its ids are words of pages that streams have from then on.
    Pages,
}

/// Spans and ids of a batch, or a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassPiece<'a> {
    /// The work on the batch.
    pub work: Work,
    /// Ids of the whole batch.
    pub n_tokens: u16,
    /// Spans of the whole batch.
    pub n_spans: u16,
    /// How many ids came before.
    pub first_token: u16,
    /// How many spans came before.
    pub first_span: u16,
    spans: &'a [[u8; SPAN_LEN]],
    tokens: &'a [[u8; 4]],
}

impl<'a> PassPiece<'a> {
    /// The spans in this frame; those with impossible fields are errors.
    pub fn spans(&self) -> impl ExactSizeIterator<Item = Result<FrameSpan, WireError>> + use<'a> {
        self.spans.iter().map(parse_span)
    }

    /// The ids in this frame.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.tokens.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// Bytes of a node's part of a gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPiece<'a> {
    /// How many came before.
    pub offset: u32,
    /// Bytes of the whole part.
    pub part_bytes: u32,
    /// How long the node has computed since its last part, in microseconds.
    pub compute_us: u32,
    /// Bytes in this frame.
    pub bytes: &'a [u8],
}

/// A frame that is as long as its fields say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamFrame<'a> {
    /// The lead begins an epoch.
    Open(u32, Opening),
    /// A member is ready for this epoch.
    Ready(u32, TeamLine),
    /// A member cannot be ready for this epoch.
    Refused(u32, Text),
    /// A batch of this epoch, with its number.
    Pass(u32, u32, PassPiece<'a>),
    /// A part of a gather of this epoch, with its number.
    Part(u32, u32, PartPiece<'a>),
    /// A node has given up this epoch, because of the node with this index.
    Failed(u32, u16),
    /// The lead goes.
    Close(u32),
    /// A member would be ready, but has no link to the node with this index.
    Missing(u32, u16),
}

impl<'a> TeamFrame<'a> {
    /// Reads a frame.
    ///
    /// # Errors
    /// If it is not as long as its fields say, or a field has no meaning.
    pub fn parse(bytes: &'a [u8]) -> Result<TeamFrame<'a>, WireError> {
        need(bytes, HEADER_LEN)?;
        if u32_at(bytes, 0) != MAGIC {
            return Err(WireError::Magic);
        }
        let (node, epoch, seq) = (u16_at(bytes, 6), u32_at(bytes, 8), u32_at(bytes, 12));
        match bytes[4] {
            0 => Ok(TeamFrame::Open(epoch, parse_opening(bytes, node)?)),
            1 => Ok(TeamFrame::Ready(epoch, parse_line(bytes)?)),
            2 => {
                exactly(bytes, REFUSED_LEN)?;
                Ok(TeamFrame::Refused(epoch, text(&bytes[HEADER_LEN..])))
            }
            3 => Ok(TeamFrame::Pass(epoch, seq, parse_pass(bytes)?)),
            4 => Ok(TeamFrame::Part(epoch, seq, parse_part(bytes)?)),
            5 => exactly(bytes, HEADER_LEN).map(|()| TeamFrame::Failed(epoch, node)),
            6 => exactly(bytes, HEADER_LEN).map(|()| TeamFrame::Close(epoch)),
            7 => exactly(bytes, HEADER_LEN).map(|()| TeamFrame::Missing(epoch, node)),
            _ => Err(WireError::Field("kind")),
        }
    }
}

fn need(bytes: &[u8], need: usize) -> Result<(), WireError> {
    let have = bytes.len();
    if have < need { Err(WireError::Truncated { need, have }) } else { Ok(()) }
}

fn exactly(bytes: &[u8], len: usize) -> Result<(), WireError> {
    need(bytes, len)?;
    if bytes.len() > len { Err(WireError::Oversize { len: bytes.len() }) } else { Ok(()) }
}

fn parse_opening(bytes: &[u8], node: u16) -> Result<Opening, WireError> {
    need(bytes, SHARES_AT)?;
    let n_nodes = usize::from(u16_at(bytes, 32));
    if !(2..=NODES_MAX).contains(&n_nodes) || usize::from(node) >= n_nodes {
        return Err(WireError::Field("number of nodes"));
    }
    exactly(bytes, SHARES_AT + 2 * n_nodes)?;
    if bytes[29] != NUMERICS {
        return Err(WireError::Field("numerics"));
    }
    let layers = u32_at(bytes, 72)..u32_at(bytes, 76);
    if layers.is_empty() {
        return Err(WireError::Field("layers"));
    }
    let shares = bytes[SHARES_AT..].as_chunks().0.iter().map(|share| u16::from_le_bytes(*share));
    Ok(Opening {
        ctx_len: u32_at(bytes, 16),
        n_streams: u16_at(bytes, 20),
        n_pages: u32_at(bytes, 36),
        max_batch: u16_at(bytes, 22),
        max_logits: u16_at(bytes, 24),
        kv: KvType::from_code(bytes[26]).ok_or(WireError::Field("kind of keys and values"))?,
        wire: Dtype::from_code(bytes[27]).ok_or(WireError::Field("type of gathers"))?,
        layers,
        has_ends: match bytes[28] {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("ends")),
        },
        shares: shares.collect(),
        node,
        lead: text(&bytes[40..40 + NAME_MAX]),
    })
}

fn parse_line(bytes: &[u8]) -> Result<TeamLine, WireError> {
    exactly(bytes, READY_LEN)?;
    Ok(TeamLine {
        name: text(&bytes[16..16 + NAME_MAX]),
        isa: text(&bytes[48..48 + ISA_MAX]),
        bytes_per_token: u64_at(bytes, 64),
        threads: u16_at(bytes, 72),
        embeds: match bytes[74] {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("whether it embeds")),
        },
        rtt_us: 0,
    })
}

fn parse_pass(bytes: &[u8]) -> Result<PassPiece<'_>, WireError> {
    need(bytes, SPANS_AT)?;
    let (tokens, spans) = (usize::from(u16_at(bytes, 24)), usize::from(u16_at(bytes, 26)));
    let tokens_at = SPANS_AT + spans * SPAN_LEN;
    exactly(bytes, tokens_at + 4 * tokens)?;
    let work = match u16_at(bytes, 30) {
        0 => Work::Ids,
        1 => Work::Rows,
        2 => Work::Logits(u16_at(bytes, 28)),
        3 => Work::Pages,
        _ => return Err(WireError::Field("work")),
    };
    Ok(PassPiece {
        work,
        n_tokens: u16_at(bytes, 16),
        n_spans: u16_at(bytes, 18),
        first_token: u16_at(bytes, 20),
        first_span: u16_at(bytes, 22),
        spans: bytes[SPANS_AT..tokens_at].as_chunks().0,
        tokens: bytes[tokens_at..].as_chunks().0,
    })
}

fn parse_part(bytes: &[u8]) -> Result<PartPiece<'_>, WireError> {
    need(bytes, PART_AT + 1)?;
    let (offset, part_bytes) = (u32_at(bytes, 16), u32_at(bytes, 20));
    let piece = &bytes[PART_AT..];
    if u64::from(offset) + piece.len() as u64 > u64::from(part_bytes) {
        return Err(WireError::Field("offset in the part"));
    }
    Ok(PartPiece { offset, part_bytes, compute_us: u32_at(bytes, 24), bytes: piece })
}

fn header<'o>(out: &'o mut [u8], kind: u8, node: u16, epoch: u32, seq: u32) -> Writer<'o> {
    let mut out = Writer::new(out);
    out.u32(MAGIC).u8(kind).zero(1).u16(node).u32(epoch).u32(seq);
    out
}

/// Writes an OPEN for the member with index `node` into `out`; returns its length, `None` if it does not fit.
pub fn emit_open(epoch: u32, opening: &Opening, node: u16, out: &mut [u8]) -> Option<usize> {
    let bytes = SHARES_AT + 2 * opening.shares.len();
    let mut out = header(out.get_mut(..bytes)?, 0, node, epoch, 0);
    out.u32(opening.ctx_len).u16(opening.n_streams).u16(opening.max_batch).u16(opening.max_logits);
    out.u8(opening.kv as u8).u8(opening.wire as u8).u8(opening.has_ends.into());
    out.u8(NUMERICS).zero(2);
    out.u16(opening.shares.len() as u16).zero(2).u32(opening.n_pages);
    out.put(&padded::<NAME_MAX>(&opening.lead));
    out.u32(opening.layers.start).u32(opening.layers.end);
    for share in &opening.shares {
        out.u16(*share);
    }
    Some(bytes)
}

/// Writes a READY into `out`; returns its length, `None` if it does not fit.
pub fn emit_ready(epoch: u32, line: &TeamLine, out: &mut [u8]) -> Option<usize> {
    let mut out = header(out.get_mut(..READY_LEN)?, 1, 0, epoch, 0);
    out.put(&padded::<NAME_MAX>(&line.name)).put(&padded::<ISA_MAX>(&line.isa));
    out.u64(line.bytes_per_token).u16(line.threads).u8(line.embeds.into()).zero(5);
    Some(READY_LEN)
}

/// Writes a REFUSED with as much of `why` as fits into `out`; returns its length, `None` if it does not fit.
pub fn emit_refused(epoch: u32, why: &str, out: &mut [u8]) -> Option<usize> {
    header(out.get_mut(..REFUSED_LEN)?, 2, 0, epoch, 0).put(&padded::<TEXT_MAX>(why));
    Some(REFUSED_LEN)
}

/// Writes a FAILED because of the node with index `node` into `out`; returns its length, `None` if it does
/// not fit.
pub fn emit_failed(epoch: u32, node: u16, out: &mut [u8]) -> Option<usize> {
    Some(header(out.get_mut(..HEADER_LEN)?, 5, node, epoch, 0).len())
}

/// Writes a CLOSE into `out`; returns its length, `None` if it does not fit.
pub fn emit_close(epoch: u32, out: &mut [u8]) -> Option<usize> {
    Some(header(out.get_mut(..HEADER_LEN)?, 6, 0, epoch, 0).len())
}

/// Writes a MISSING of the node with index `node` into `out`; returns its length, `None` if it does not fit.
pub fn emit_missing(epoch: u32, node: u16, out: &mut [u8]) -> Option<usize> {
    Some(header(out.get_mut(..HEADER_LEN)?, 7, node, epoch, 0).len())
}

/// Writes as much of a batch as fits into `out`, a PASS, after its first `n_sent` spans and ids. Returns its
/// length, and how many spans and ids are sent with it; `None` if nothing fits.
///
/// # Panics
/// If a batch has more than 65,535 ids or spans.
pub fn emit_pass(
    (epoch, seq): (u32, u32),
    work: Work,
    spans: &[FrameSpan],
    tokens: &[u32],
    n_sent: (usize, usize),
    out: &mut [u8],
) -> Option<(usize, (usize, usize))> {
    assert!(spans.len().max(tokens.len()) <= usize::from(u16::MAX));
    // None of them is more than these.
    let count = |n: usize| n as u16;
    let room = out.len().checked_sub(SPANS_AT)?;
    let span_end = spans.len().min(n_sent.0 + room / SPAN_LEN);
    let room = room - (span_end - n_sent.0) * SPAN_LEN;
    let token_end = match span_end == spans.len() {
        true => tokens.len().min(n_sent.1 + room / 4),
        false => n_sent.1,
    };
    let (spans_here, tokens_here) = (&spans[n_sent.0..span_end], &tokens[n_sent.1..token_end]);
    let mut out = header(out, 3, 0, epoch, seq);
    out.u16(count(tokens.len())).u16(count(spans.len())).u16(count(n_sent.1)).u16(count(n_sent.0));
    let (code, rows) = match work {
        Work::Ids => (0, 0),
        Work::Rows => (1, 0),
        Work::Logits(rows) => (2, rows),
        Work::Pages => (3, 0),
    };
    out.u16(count(tokens_here.len())).u16(count(spans_here.len())).u16(rows).u16(code);
    for span in spans_here {
        let mut bytes = [0; SPAN_LEN];
        emit_span(span, &mut bytes);
        out.put(&bytes);
    }
    for token in tokens_here {
        out.u32(*token);
    }
    Some((out.len(), (span_end, token_end)))
}

/// Writes a PART without its bytes into `out`: those from `offset` of the `part_bytes` that the part has, computed in
/// `compute_us`.
/// Returns the room for as many as fit, `None` if none do.
pub fn emit_part(
    (epoch, seq): (u32, u32),
    offset: usize,
    part_bytes: u32,
    compute_us: u32,
    out: &mut [u8],
) -> Option<&mut [u8]> {
    let (head, room) = out.split_at_mut_checked(PART_AT)?;
    let n = room.len().min((part_bytes as usize).checked_sub(offset)?);
    header(head, 4, 0, epoch, seq).u32(offset as u32).u32(part_bytes).u32(compute_us);
    Some(&mut room[..n]).filter(|room| !room.is_empty())
}

/// The part of `text` that fits, and zeros.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    put_text(&mut bytes, text);
    bytes
}

#[cfg(test)]
mod tests;
