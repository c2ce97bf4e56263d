//! The rows of batches, from the master's side.

use super::frames;
use super::streams;
use crate::engine::own_stage::OwnStage;
use crate::model::{Precision, Stage};
use crate::ring::{Held, Rows};
use crate::wire::Dtype;
use crate::wire::frame::{FrameKeep, FramePage, KvPiece, Sizes};

/// Rows of results, in the form in which they arrived.
pub(super) struct Returned {
    precision: Precision,
    row_bytes: usize,
    /// `[n_rows, row_bytes]`.
    bytes: Vec<u8>,
}

impl Returned {
    /// Zeroed room for `n_rows` rows.
    pub(super) fn new(n_rows: usize, width: usize, wire: Dtype) -> Returned {
        let precision = frames::precision(wire);
        let row_bytes = width * precision.bytes();
        Returned { precision, row_bytes, bytes: vec![0; n_rows * row_bytes] }
    }

    /// Bytes of `n` rows from row `first` on, with their precision.
    pub(super) fn rows(&self, first: usize, n: usize) -> (Precision, &[u8]) {
        (self.precision, &self.bytes[first * self.row_bytes..][..n * self.row_bytes])
    }
}

/// Rows of the master: it sends the stage's, and receives the last node's.
pub(super) struct MasterRows<'a> {
    pub(super) stage: &'a mut OwnStage,
    pub(super) returned: &'a mut Returned,
    pub(super) held: &'a mut Held,
}

impl Rows for MasterRows<'_> {
    fn put(&mut self, first: usize, _: Dtype, bytes: &[u8]) {
        let Returned { row_bytes, bytes: rows, .. } = &mut *self.returned;
        rows[first * *row_bytes..][..bytes.len()].copy_from_slice(bytes);
    }

    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]) {
        self.stage.get_row(row, frames::precision(dtype), out);
    }

    fn set_page(&mut self, page: &FramePage, sizes: &Sizes) -> bool {
        streams::set_page(self.held, (page, sizes), self.stage)
    }

    fn keep(&mut self, page: &FrameKeep, sizes: &Sizes) -> bool {
        let mut prefixes = self.stage.prefixes.take();
        let is_there = streams::keep(prefixes.as_mut(), (page, sizes), self.stage);
        self.stage.prefixes = prefixes;
        is_there
    }

    fn give_kv(&mut self, out: &mut [u8]) -> Option<KvPiece> {
        self.held.give(&streams::layers(self.stage), out)
    }

    fn take_kv(&mut self, piece: &KvPiece, bytes: &[u8], sizes: &Sizes) -> Option<bool> {
        let own = streams::layers(self.stage);
        streams::take(self.held, (piece, bytes), (&own, sizes), self.stage)
    }

    fn moved(&mut self, epoch: u32, sizes: &Sizes) {
        self.held.moved(epoch, sizes);
    }
}
