//! Products of a tile of few rows: four activations, in a lane, by a strip of weights.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::packed::layout::Layout;

/// Rows of a panel: four strips.
pub(super) const NR: usize = Layout::NEON_DOT.panel_rows();

/// Adds the products of columns `4 * C..4 * C + 4` of sixteen, of each of which `M` rows' values stand
/// in `x`, by weights of a strip in `w`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
pub(super) fn four_columns<const M: usize, const C: usize>(
    dots: &mut [int32x4_t; M],
    w: uint8x16_t,
    x: &[int8x16_t; M],
) {
    for i in 0..M {
        let at = C * M + i;
        dots[i] = sdot_lane(dots[i], vreinterpretq_s8_u8(w), x[at / 4], at % 4);
    }
}

/// Adds the products of each four of `w` with the four of `x` in `lane`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot_lane(sums: int32x4_t, w: int8x16_t, x: int8x16_t, lane: usize) -> int32x4_t {
    match lane {
        0 => sdot_by::<0>(sums, w, x),
        1 => sdot_by::<1>(sums, w, x),
        2 => sdot_by::<2>(sums, w, x),
        _ => sdot_by::<3>(sums, w, x),
    }
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn sdot_by<const LANE: usize>(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]", sums = inout(vreg) sums,
            w = in(vreg) w, x = in(vreg) x, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
