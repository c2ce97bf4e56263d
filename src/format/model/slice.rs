//! The rows of a model's matrices that one board of a team has.

use std::ops::Range;

use crate::format::FormatError;
use crate::format::cursor::Cursor;

/// Bytes of a [`Slice`] in a file.
pub(super) const SLICE_LEN: usize = 128;

/// The rows of one node of a team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Query heads.
    pub heads: Range<usize>,
    /// KV heads of these query heads.
    pub kv_heads: Range<usize>,
    /// Rows of attention's output and down, whose results are added to the residual stream.
    pub dim: Range<usize>,
    /// Rows of gate and up.
    pub ffn: Range<usize>,
    /// Rows of the classifier.
    pub vocab: Range<usize>,
    /// Rows of gate and up in the dense layers of a mixture; empty if there are none.
    pub dense_ffn: Range<usize>,
    /// Rows of the projection to the convolution's inputs in recurrent layers; empty if there are none.
    pub mix_in: Range<usize>,
    /// Rows of the projection to the output's gate in recurrent layers; empty if there are none.
    pub mix_gate: Range<usize>,
    /// KV heads of these query heads in layers with heads of their own; empty if there are none.
    pub full_kv_heads: Range<usize>,
}

impl Slice {
    pub(super) fn ranges(&self) -> [&Range<usize>; 9] {
        let Slice { heads, kv_heads, dim, ffn, vocab, dense_ffn, mix_in, mix_gate, full_kv_heads } =
            self;
        [heads, kv_heads, dim, ffn, vocab, dense_ffn, mix_in, mix_gate, full_kv_heads]
    }

    /// Bytes of the slice in a file.
    pub(super) fn emit(&self) -> Vec<u8> {
        let ends = self.ranges().into_iter().flat_map(|range| [range.start, range.end]);
        let mut bytes: Vec<u8> = ends.flat_map(|end| (end as u32).to_le_bytes()).collect();
        bytes.resize(SLICE_LEN, 0);
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Slice, FormatError> {
        let mut r = Cursor::new(bytes);
        let mut range = || Ok(r.u32("first row")? as usize..r.u32("row behind the last")? as usize);
        let slice = Slice {
            heads: range()?,
            kv_heads: range()?,
            dim: range()?,
            ffn: range()?,
            vocab: range()?,
            dense_ffn: range()?,
            mix_in: range()?,
            mix_gate: range()?,
            full_kv_heads: range()?,
        };
        match slice.emit() == bytes {
            true => Ok(slice),
            false => Err(FormatError::Unsupported("rows with unknown fields".to_owned())),
        }
    }
}
