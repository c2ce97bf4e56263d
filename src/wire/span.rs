//! Spans of a batch, as frames have them.

use super::WireError;
use super::fields::{put, u16_at, u32_at};

/// Bytes of a span.
pub const SPAN_LEN: usize = 12;

/// Consecutive rows of one stream in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    /// The stream.
    pub stream: u16,
    /// Rows whose logits are wanted.
    pub wants: FrameWants,
    /// Position of the first row.
    pub pos: u32,
    /// Number of rows.
    pub n_rows: u16,
    /// Whether the text is a long one.
    pub is_long: bool,
    /// Checkpoint of a state that the span continues, and checkpoint to keep the state in that follows its last row; both
    /// below 255.
    pub state: [Option<u8>; 2],
}

/// Rows of a span whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameWants {
    /// No row.
    None,
    /// The last row.
    Last,
    /// All rows.
    All,
}

impl FrameSpan {
    /// Number of rows whose logits are wanted.
    pub fn n_wanted(&self) -> usize {
        match self.wants {
            FrameWants::None => 0,
            FrameWants::Last => usize::from(self.n_rows.min(1)),
            FrameWants::All => self.n_rows.into(),
        }
    }

    /// Whether the span's only row is a stream's next token.
    pub fn is_next_token(&self) -> bool {
        self.n_rows == 1 && self.wants != FrameWants::None
    }
}

/// Writes a span.
pub(super) fn emit_span(span: &FrameSpan, out: &mut [u8; SPAN_LEN]) {
    out.fill(0);
    put(out, 0, &span.stream.to_le_bytes());
    out[2] = span.wants as u8;
    out[3] = span.is_long.into();
    put(out, 4, &span.pos.to_le_bytes());
    put(out, 8, &span.n_rows.to_le_bytes());
    let [from, to] = span.state.map(|checkpoint| checkpoint.map_or(0, |index| index + 1));
    (out[10], out[11]) = (from, to);
}

/// Reads a span. A span with impossible fields is an error.
pub(super) fn parse_span(bytes: &[u8; SPAN_LEN]) -> Result<FrameSpan, WireError> {
    let wants = match bytes[2] {
        0 => FrameWants::None,
        1 => FrameWants::Last,
        2 => FrameWants::All,
        _ => return Err(WireError::Field("wanted logits")),
    };
    let is_long = match bytes[3] {
        0 => false,
        1 => true,
        _ => return Err(WireError::Field("long text")),
    };
    Ok(FrameSpan {
        stream: u16_at(bytes, 0),
        wants,
        is_long,
        pos: u32_at(bytes, 4),
        n_rows: u16_at(bytes, 8),
        state: [bytes[10], bytes[11]].map(|checkpoint| checkpoint.checked_sub(1)),
    })
}
