//! The frames of a team's batch: PASS begins it, and PARTs gather the nodes' results. Little-endian.
//!
//! ```text
//! PASS, the lead's                                 PART, from each node to each
//! 12 u32 batch in its epoch                        12 u32 gather in its epoch
//! 16 u16 ids of the batch                          16 u32 offset in the part
//! 18 u16 spans of the batch                        20 u32 bytes of the part
//! 20 u16 first id here                             24 u32 computed, us
//! 22 u16 first span here                           28 bytes
//! 24 u16 ids here
//! 26 u16 spans here
//! 28 u16 rows (work 2)
//! 30 u16 work
//! 48 spans of 12 bytes, ids of 4
//! ```
//!
//! Work is 0 if ids are embedded and go through the layers, 1 if rows from the lead do (its part of the first gather),
//! and 2 if such rows become logits: then there are neither spans nor ids.
//!
//! A batch that is longer than a frame is several frames, spans first. A part is a node's columns of all rows, row
//! after row; a part that is longer than a frame is several frames. It has the node's time of computing since its last
//! part.

use super::WireError;
use super::fields::{HEADER_LEN, Writer, put, u16_at, u32_at};
use super::span::SPAN_LEN;

/// Offset of the bytes in a PART.
pub const PART_AT: usize = 28;

/// The work on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Embeds the ids and runs them through the layers. If these are the whole model, also computes the wanted logits.
    Ids,
    /// Runs rows from the lead through the layers.
    Rows,
    /// Turns this number of rows from the lead into logits.
    Logits(u16),
}

/// The part of a batch in a PASS: which spans and ids it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The epoch.
    pub epoch: u32,
    /// Number of the batch.
    pub batch: u32,
    /// The work on the batch.
    pub work: Work,
    /// Ids of the whole batch.
    pub n_tokens: u16,
    /// Spans of the whole batch.
    pub n_spans: u16,
    /// Ids in earlier frames.
    pub first_token: u16,
    /// Spans in earlier frames.
    pub first_span: u16,
    /// Ids in this frame.
    pub tokens: u16,
    /// Spans in this frame.
    pub spans: u16,
}

impl Pass {
    /// Offset of the ids in the frame.
    pub(super) fn tokens_at(&self) -> usize {
        HEADER_LEN + usize::from(self.spans) * SPAN_LEN
    }

    /// Bytes of the whole frame.
    pub(super) fn bytes(&self) -> usize {
        self.tokens_at() + 4 * usize::from(self.tokens)
    }

    /// Reads these fields from a frame's header.
    pub(super) fn parse(header: &[u8; HEADER_LEN]) -> Result<Pass, WireError> {
        Ok(Pass {
            epoch: u32_at(header, 8),
            batch: u32_at(header, 12),
            work: match u16_at(header, 30) {
                0 => Work::Ids,
                1 => Work::Rows,
                2 => Work::Logits(u16_at(header, 28)),
                _ => return Err(WireError::Field("work")),
            },
            n_tokens: u16_at(header, 16),
            n_spans: u16_at(header, 18),
            first_token: u16_at(header, 20),
            first_span: u16_at(header, 22),
            tokens: u16_at(header, 24),
            spans: u16_at(header, 26),
        })
    }

    /// Writes these fields to a frame's header.
    pub(super) fn emit(&self, header: &mut [u8; HEADER_LEN]) {
        put(header, 8, &self.epoch.to_le_bytes());
        let (work, rows) = match self.work {
            Work::Ids => (0, 0),
            Work::Rows => (1, 0),
            Work::Logits(rows) => (2, rows),
        };
        let mut out = Writer::new(&mut header[12..]);
        out.u32(self.batch).u16(self.n_tokens).u16(self.n_spans);
        out.u16(self.first_token).u16(self.first_span).u16(self.tokens).u16(self.spans);
        out.u16(rows).u16(work);
    }
}

/// The piece of a node's part of a gather in a PART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The epoch.
    pub epoch: u32,
    /// Number of the gather.
    pub gather: u32,
    /// Bytes of the part in earlier frames.
    pub offset: u32,
    /// Bytes of the whole part.
    pub part_bytes: u32,
    /// Microseconds that the node has computed since its last part.
    pub compute_us: u32,
}

impl Part {
    /// Reads the header of a PART; all bytes behind it belong to the part.
    pub(super) fn parse(bytes: &[u8]) -> Result<Part, WireError> {
        let have = bytes.len();
        if have <= PART_AT {
            return Err(WireError::Truncated { need: PART_AT + 1, have });
        }
        let (offset, part_bytes) = (u32_at(bytes, 16), u32_at(bytes, 20));
        if u64::from(offset) + (have - PART_AT) as u64 > u64::from(part_bytes) {
            return Err(WireError::Field("offset in the part"));
        }
        let (epoch, gather, compute_us) = (u32_at(bytes, 8), u32_at(bytes, 12), u32_at(bytes, 24));
        Ok(Part { epoch, gather, offset, part_bytes, compute_us })
    }

    /// Writes the fields behind the kind.
    pub(super) fn emit(&self, header: &mut [u8]) {
        let mut out = Writer::new(&mut header[8..PART_AT]);
        out.u32(self.epoch).u32(self.gather);
        out.u32(self.offset).u32(self.part_bytes).u32(self.compute_us);
    }
}
