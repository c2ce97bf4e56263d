//! Location of keys and values.

use std::ops::Range;

use half::f16;

use super::super::kv8::KvLine;

/// Stored keys and values, with those of other heads and streams.
#[derive(Debug, Clone, Copy)]
pub enum KvStored<'a> {
    /// Values as the model computed them.
    F32(&'a [f32]),
    /// Values that [`store_kv`](crate::kernels::Kernels::store_kv) stored.
    F16(&'a [f16]),
    /// Lines that [`store_key_i8`](crate::kernels::Kernels::store_key_i8) and
    /// [`store_value_i8`](crate::kernels::Kernels::store_value_i8) stored.
    Int8(&'a [KvLine]),
}

/// Keys and values of one head, in pages that each hold consecutive positions.
///
/// Offsets count elements of [`KvStored`]: values, or lines.
#[derive(Debug, Clone, Copy)]
pub struct KvPages<'a> {
    /// Memory of all pages.
    pub stored: KvStored<'a>,
    /// Element `i` is the page of the positions from `i << page_shift` on. After its end the table begins again.
    pub table: &'a [u32],
    /// A page has `1 << page_shift` positions, which are whole blocks.
    pub page_shift: u32,
    /// Distance of two pages' beginnings.
    pub page_step: usize,
    /// Offset of the head's keys in a page, `[positions, head_dim]` or blocks of int8.
    pub keys_at: usize,
    /// Offset of the head's values in a page.
    pub values_at: usize,
}

impl KvPages<'_> {
    /// Range of the keys or values of `positions`, all of one page, with `row` elements per position.
    pub(super) fn range(&self, part: KvPart, positions: &Range<usize>, row: usize) -> Range<usize> {
        let index = positions.start >> self.page_shift;
        let first = positions.start - (index << self.page_shift);
        // Only a window's table begins again, and this comparison is cheaper than a division.
        let index = if index < self.table.len() { index } else { index % self.table.len() };
        let at = match part {
            KvPart::Keys => self.keys_at,
            KvPart::Values => self.values_at,
        };
        let start = self.table[index] as usize * self.page_step + at + first * row;
        start..start + positions.len() * row
    }
}

/// The keys and values of one head for queries of consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct Attended<'a> {
    /// Pages of all positions that any query looks at.
    pub kv: KvPages<'a>,
    /// The position of the first query.
    pub pos: usize,
    /// Number of positions that each query looks at, up to and including its own.
    pub window: usize,
    /// End of the text, if queries look at later positions, too: at as many as at earlier ones.
    pub end: Option<usize>,
    /// Values of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// One more score for each of a row's heads, used unscaled, of a position without a value; empty if there is none.
    pub sinks: &'a [f32],
}

#[derive(Clone, Copy)]
pub(super) enum KvPart {
    Keys,
    Values,
}
