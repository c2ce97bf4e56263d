//! Tiles of activations by blocks of GGUF files.

use std::arch::aarch64::*;

use super::vectors::sdot_lane;
use crate::kernels::neon::runs::run_tiles;
use crate::kernels::neon::vectors::load_bytes;
use crate::kernels::packed::layout::Layout;
use crate::quant::bcml1::BLOCK;

/// Rows of a panel.
const NR: usize = Layout::NEON_DOT.panel_rows();

/// Sums of four rows.
type Dots = int32x4_t;

run_tiles!("neon,dotprod", NR, 4);

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn begin(less: int32x4_t) -> Dots {
    less
}

/// Adds the products of half a run of four rows with row `i` of `M` of activations. The halves of a byte have codes of
/// steps of four columns that are two apart.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_products<const STEPS: usize, const M: usize>(
    mut dots: Dots,
    codes: [int8x16_t; 4],
    x: &Half<M>,
    i: usize,
) -> Dots {
    for (j, step) in [0, 2, 1, 3].into_iter().enumerate() {
        let at = step * M + i;
        dots = sdot_lane(dots, codes[j], vreinterpretq_s8_u8(load_bytes(&x[at / 4])), at % 4);
    }
    dots
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn finish<const STEPS: usize>(dots: Dots, _less: int32x4_t) -> int32x4_t {
    dots
}
