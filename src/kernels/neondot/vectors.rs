//! Products of vectors.

use std::arch::aarch64::*;
use std::arch::asm;

/// Adds 16 products to four sums, like the intrinsic `vdotq_s32`, which is not stable.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn sdot(mut sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which uses only registers.
    unsafe {
        asm!("sdot {sums:v}.4s, {x:v}.16b, {w:v}.16b", sums = inout(vreg) sums, x = in(vreg) x,
            w = in(vreg) w, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
