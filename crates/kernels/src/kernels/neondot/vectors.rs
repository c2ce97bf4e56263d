//! Products of vectors.

use std::arch::aarch64::*;
use std::arch::asm;

/// Adds 16 products to four sums, like the intrinsic `vdotq_s32`, which is not stable.
#[target_feature(enable = "neon,dotprod")]
#[inline]
pub(in crate::kernels) fn sdot(mut sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which uses only registers.
    unsafe {
        asm!("sdot {sums:v}.4s, {x:v}.16b, {w:v}.16b", sums = inout(vreg) sums, x = in(vreg) x,
            w = in(vreg) w, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds 16 products of weights with four activations, those of lane `lane`, to four sums.
#[target_feature(enable = "neon,dotprod")]
#[inline]
pub(super) fn sdot_lane(sums: int32x4_t, w: int8x16_t, x: int8x16_t, lane: usize) -> int32x4_t {
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
    // SAFETY: this function's features include the instruction, which uses only registers.
    unsafe {
        asm!("sdot {sums:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]", sums = inout(vreg) sums, w = in(vreg) w,
            x = in(vreg) x, lane = const LANE, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
