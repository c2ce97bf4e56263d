//! Where keys and values lie.

use std::ops::Range;

use half::f16;

use super::super::kv8::KvLine;

/// Where keys and values lie, with those of other heads and streams.
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
/// Places count what [`KvStored`] is made of: values, or lines.
#[derive(Debug, Clone, Copy)]
pub struct KvPages<'a> {
    /// All pages.
    pub stored: KvStored<'a>,
    /// Which page has the positions `i << page_shift` and following is said by element `i`; where the
    /// table ends it begins again.
    pub table: &'a [u32],
    /// A page has `1 << page_shift` positions, which are whole blocks.
    pub page_shift: u32,
    /// From the beginning of a page to that of the next.
    pub page_step: usize,
    /// Where in a page the head's keys begin, `[positions, head_dim]` or blocks of int8.
    pub keys_at: usize,
    /// Where in a page the head's values begin.
    pub values_at: usize,
}

impl KvPages<'_> {
    /// Where the keys or values of `positions` lie, all of one page, if a row has `row` values.
    pub(super) fn range(&self, part: KvPart, positions: &Range<usize>, row: usize) -> Range<usize> {
        let index = positions.start >> self.page_shift;
        let first = positions.start - (index << self.page_shift);
        // Only a window's table begins again; a division costs more than to see that.
        let index = if index < self.table.len() { index } else { index % self.table.len() };
        let at = match part {
            KvPart::Keys => self.keys_at,
            KvPart::Values => self.values_at,
        };
        let start = self.table[index] as usize * self.page_step + at + first * row;
        start..start + positions.len() * row
    }
}

/// The keys and values of one head that queries of consecutive positions look at.
#[derive(Debug, Clone, Copy)]
pub struct Attended<'a> {
    /// Pages of all positions that any of the queries looks at.
    pub kv: KvPages<'a>,
    /// The position of the first query.
    pub pos: usize,
    /// How many positions each query looks at, its own included and the last of them.
    pub window: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// One more score for each of a row's heads, as it is, of a position without a value; empty if
    /// there is none.
    pub sinks: &'a [f32],
}

#[derive(Clone, Copy)]
pub(super) enum KvPart {
    Keys,
    Values,
}
