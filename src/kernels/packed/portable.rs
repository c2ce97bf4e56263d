//! Products with packed weights of BCML2 in plain Rust, for tiers that have none of their own.

use super::layout::Layout;
use super::tile::Q8Tile;
use crate::quant::bcml1::BLOCK;
use crate::quant::bcml2::{BLOCK_BYTES, ZERO_PARTS};

/// One row of activations by a panel in `layout`.
pub(in crate::kernels) fn gemv_q8_b2(
    layout: Layout,
    panel: &[u8],
    x: &Q8Tile<'_>,
    out: &mut [f32],
) {
    let nr = layout.panel_rows();
    let block_bytes = nr * BLOCK_BYTES;
    for (row, out) in out.iter_mut().enumerate() {
        let groups = panel.chunks_exact(x.blocks() * block_bytes);
        let values = x.q.chunks_exact(x.group).zip(x.int_sums().chunks_exact(x.blocks()));
        for ((w, (q, sums)), x_scale) in groups.zip(values).zip(x.scales) {
            let blocks = w.chunks_exact(block_bytes).zip(q.as_chunks::<BLOCK>().0).zip(sums);
            let total: i32 = blocks.map(|((w, q), sum)| layout.b2_term(w, row, q, *sum)).sum();
            *out = (total as f32).mul_add(*x_scale, *out);
        }
    }
}

impl Layout {
    /// What a row of a packed block adds to its group's integer.
    fn b2_term(&self, block: &[u8], row: usize, q: &[i8; BLOCK], sum: i32) -> i32 {
        let nr = self.panel_rows();
        let place = self.b2_parameter(row);
        let bias = if self.has_biased_codes(row) { 0x80 } else { 0 };
        let (scale, zero) = (i32::from(block[place]), i32::from(block[nr + place] ^ bias));
        let codes = self.b2_codes(&block[2 * nr..], row);
        let dot: i32 = codes.iter().zip(q).map(|(w, q)| i32::from(*w) * i32::from(*q)).sum();
        scale * (ZERO_PARTS * dot - zero * sum)
    }
}
