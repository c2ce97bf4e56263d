//! Shared by kernels with pairs of rows.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::packed::layout::Layout;
use crate::quant::bcml1::BLOCK_BYTES;
use crate::quant::bcml2;

/// Rows of a panel: four strips.
pub(super) const NR: usize = Layout::NEON_I8MM.panel_rows();

/// Bytes of a block of a panel of BCML2: scales and zeros, then codes.
pub(super) const PANEL_BLOCK_B2: usize = NR * bcml2::BLOCK_BYTES;

/// Bytes of a strip of 16 columns, or of a packed block's codes in it.
pub(super) const STRIP: usize = 64;

/// Bytes of a block of 4-bit weights of a panel.
pub(super) const PANEL_BLOCK: usize = NR * BLOCK_BYTES;

/// Adds the products of two rows of eight by two rows of eight, like the intrinsic `vmmlaq_s32`, which is not stable.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn smmla(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which uses only registers.
    unsafe {
        asm!("smmla {sums:v}.4s, {w:v}.16b, {x:v}.16b", sums = inout(vreg) sums, w = in(vreg) w,
            x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
