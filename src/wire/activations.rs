//! Header fields of a frame with activations.

use super::Dtype;
use super::fields::{HEADER_LEN, put, u16_at, u32_at};
use super::figures::FIGURES_LEN;
use super::span::SPAN_LEN;

/// A batch's rows in one frame, as the frame's header describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activations {
    /// The epoch.
    pub epoch: u32,
    /// Number of the batch.
    pub batch: u32,
    /// Type of the values.
    pub dtype: Dtype,
    /// Values in a row.
    pub dim: u32,
    /// Rows of the whole batch.
    pub n_rows: u16,
    /// Index of the first row in this frame.
    pub first_row: u16,
    /// Rows in this frame.
    pub rows: u16,
    /// Spans of the batch, which lie before the rows.
    pub n_spans: u16,
    /// Nodes' figures, which lie between spans and rows.
    pub n_figures: u16,
}

impl Activations {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.dim as usize * self.dtype.bytes()
    }

    /// Offset of the rows in the frame.
    pub fn rows_at(&self) -> usize {
        HEADER_LEN
            + usize::from(self.n_spans) * SPAN_LEN
            + usize::from(self.n_figures) * FIGURES_LEN
    }

    /// Bytes of the whole frame.
    pub fn bytes(&self) -> usize {
        self.rows_at() + usize::from(self.rows) * self.row_bytes()
    }

    /// Reads these fields from a frame's header.
    pub(super) fn parse<const N: usize>(header: &[u8; N], dtype: Dtype) -> Activations {
        Activations {
            epoch: u32_at(header, 8),
            batch: u32_at(header, 12),
            dtype,
            dim: u32_at(header, 16),
            n_rows: u16_at(header, 20),
            first_row: u16_at(header, 22),
            rows: u16_at(header, 24),
            n_spans: u16_at(header, 26),
            n_figures: u16_at(header, 28),
        }
    }

    /// Writes these fields to a frame's header.
    pub(super) fn emit(&self, header: &mut [u8]) {
        header[5] = self.dtype as u8;
        put(header, 8, &self.epoch.to_le_bytes());
        put(header, 12, &self.batch.to_le_bytes());
        put(header, 16, &self.dim.to_le_bytes());
        for (at, value) in [
            (20, self.n_rows),
            (22, self.first_row),
            (24, self.rows),
            (26, self.n_spans),
            (28, self.n_figures),
        ] {
            put(header, at, &value.to_le_bytes());
        }
    }
}
