//! Tiles of activations by blocks of GGUF files.

use std::arch::aarch64::*;

use crate::kernels::neon::runs::run_tiles;
use crate::kernels::neondot::vectors::sdot;
use crate::kernels::packed::layout::Layout;
use crate::quant::bcml1::BLOCK;

/// Rows of a panel.
const NR: usize = Layout::NEON_I8MM.panel_rows();

/// Sums of two rows, each in two parts, and of two others.
type Dots = [int32x4_t; 2];

run_tiles!("neon,dotprod,i8mm", NR, 8);

#[target_feature(enable = "neon,dotprod,i8mm")]
#[inline]
fn begin(_less: int32x4_t) -> Dots {
    [vdupq_n_s32(0); 2]
}

/// Adds the products of half a run of four rows with row `i` of `M` of activations. A vector has two rows; the halves of
/// a byte have codes of neighbouring steps of eight columns.
#[target_feature(enable = "neon,dotprod,i8mm")]
#[inline]
fn add_products<const STEPS: usize, const M: usize>(
    mut dots: Dots,
    codes: [int8x16_t; 4],
    x: &Half<M>,
    i: usize,
) -> Dots {
    let x: &[[[u8; 8]; M]; 2] = bytemuck::cast_ref(x);
    for step in 0..2 {
        let x = vreinterpretq_s8_u64(vdupq_n_u64(u64::from_ne_bytes(x[step][i])));
        dots[0] = sdot(dots[0], codes[step], x);
        dots[1] = sdot(dots[1], codes[2 + step], x);
    }
    dots
}

#[target_feature(enable = "neon,dotprod,i8mm")]
#[inline]
fn finish<const STEPS: usize>(dots: Dots, less: int32x4_t) -> int32x4_t {
    vaddq_s32(vpaddq_s32(dots[0], dots[1]), less)
}
