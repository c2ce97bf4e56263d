//! The rows of a model's matrices that one board of a team has.

use std::ops::Range;

use crate::format::FormatError;
use crate::format::cursor::Cursor;

/// Bytes of a [`Slice`] in a file.
pub(super) const SLICE_LEN: usize = 128;

/// Two places in a file that had rows of recurrent layers once, and are refused if they are not empty.
const UNUSED: Range<usize> = 0..0;

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
    /// KV heads of these query heads in layers with heads of their own; empty if there are none.
    pub full_kv_heads: Range<usize>,
    /// Parts of recurrent layers, see [`MixParts`](super::MixParts); empty if there are none.
    pub mix: Range<usize>,
}

impl Slice {
    pub(super) fn ranges(&self) -> [&Range<usize>; 8] {
        let Slice { heads, kv_heads, dim, ffn, vocab, dense_ffn, full_kv_heads, mix } = self;
        [heads, kv_heads, dim, ffn, vocab, dense_ffn, full_kv_heads, mix]
    }

    /// Bytes of the slice in a file.
    pub(super) fn emit(&self) -> Vec<u8> {
        let [heads, kv_heads, dim, ffn, vocab, dense_ffn, full_kv_heads, mix] = self.ranges();
        let ranges =
            [heads, kv_heads, dim, ffn, vocab, dense_ffn, &UNUSED, &UNUSED, full_kv_heads, mix];
        let ends = ranges.into_iter().flat_map(|range| [range.start, range.end]);
        let mut bytes: Vec<u8> = ends.flat_map(|end| (end as u32).to_le_bytes()).collect();
        bytes.resize(SLICE_LEN, 0);
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Slice, FormatError> {
        let mut r = Cursor::new(bytes);
        let mut range = || Ok(r.u32("first row")? as usize..r.u32("row behind the last")? as usize);
        let [heads, kv_heads, dim, ffn, vocab] = [range()?, range()?, range()?, range()?, range()?];
        let [dense_ffn, _, _, full_kv_heads, mix] =
            [range()?, range()?, range()?, range()?, range()?];
        let slice = Slice { heads, kv_heads, dim, ffn, vocab, dense_ffn, full_kv_heads, mix };
        match slice.emit() == bytes {
            true => Ok(slice),
            false => Err(FormatError::Unsupported("rows with unknown fields".to_owned())),
        }
    }
}
