//! Products of a tile of few rows: `smmla` takes two of them at once, and the last of an odd tile twice.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::neon::{load, load_floats, store};
use super::super::packed::layout::Layout;

/// Rows of a panel: four strips.
pub(super) const NR: usize = Layout::NEON_I8MM.panel_rows();

/// Bytes of a strip of 16 columns, or of a packed block's codes in it.
pub(super) const STRIP: usize = 64;

/// Sums of a strip: of its first two rows, of the others.
pub(super) type PairSums<const PAIRS: usize> = [[int32x4_t; 2]; PAIRS];

/// Each of four values twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn twice(x: float32x4_t) -> [float32x4_t; 2] {
    [vzip1q_f32(x, x), vzip2q_f32(x, x)]
}

/// A value of each row of weights as the sums of pair `pair` have them: twice, but for an odd last
/// row's.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn of_pair<const M: usize>(pair: usize, x: float32x4_t) -> [float32x4_t; 2] {
    if 2 * pair + 1 < M { twice(x) } else { [x; 2] }
}

/// Sums with those of an odd last row, which was paired with itself, once.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn by_rows<const M: usize, const PAIRS: usize>(
    sums: &PairSums<PAIRS>,
) -> PairSums<PAIRS> {
    let mut sums = *sums;
    if !M.is_multiple_of(2) {
        let [low, high] = sums[PAIRS - 1];
        sums[PAIRS - 1] = [vuzp1q_s32(low, high); 2];
    }
    sums
}

/// The two values of pair `pair` of a tile's rows, twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn pair_of<const M: usize>(x: &[f32; M], pair: usize) -> float32x4_t {
    match x.as_chunks::<2>().0.get(pair) {
        Some(two) => vreinterpretq_f32_u64(vdupq_n_u64(bytemuck::cast(*two))),
        None => vdupq_n_f32(x[M - 1]),
    }
}

/// Adds the products of eight columns.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn eight_columns<const M: usize, const PAIRS: usize>(
    dots: &mut PairSums<PAIRS>,
    w: [int8x16_t; 2],
    x: &[[u8; 8]; M],
) {
    let pairs = bytemuck::cast_slice::<[u8; 8], i8>(x).as_chunks::<16>().0;
    for i in 0..PAIRS {
        let x = if 2 * i + 1 < M { load(&pairs[i]) } else { load_eight(&x[M - 1]) };
        for h in 0..2 {
            dots[i][h] = smmla(dots[i][h], w[h], x);
        }
    }
}

/// Eight bytes, twice.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn load_eight(x: &[u8; 8]) -> int8x16_t {
    vreinterpretq_s8_u64(vdupq_n_u64(u64::from_ne_bytes(*x)))
}

/// Adds a strip's totals times the rows' scales to results.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn add_pairs<const M: usize, const PAIRS: usize>(
    y: &mut [[float32x4_t; 2]; PAIRS],
    totals: &[[float32x4_t; 2]; PAIRS],
    scales: &[f32; M],
) {
    for pair in 0..PAIRS {
        let scale = pair_of(scales, pair);
        for h in 0..2 {
            y[pair][h] = vfmaq_f32(y[pair][h], totals[pair][h], scale);
        }
    }
}

/// Results of a strip; [`place`](super) has their order.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn load_pairs<const M: usize, const PAIRS: usize>(
    out: &[[f32; 4]; M],
) -> [[float32x4_t; 2]; PAIRS] {
    let mut y = [[vdupq_n_f32(0.0); 2]; PAIRS];
    for (i, out) in out.iter().enumerate() {
        y[i / 2][i % 2] = load_floats(out);
    }
    y
}

/// Puts them back.
#[target_feature(enable = "neon,i8mm")]
#[inline]
pub(super) fn store_pairs<const M: usize, const PAIRS: usize>(
    out: &mut [[f32; 4]; M],
    y: &[[float32x4_t; 2]; PAIRS],
) {
    for (i, out) in out.iter_mut().enumerate() {
        store(out, y[i / 2][i % 2]);
    }
}

/// Adds the products of two rows of eight by two rows of eight, as the intrinsic `vmmlaq_s32` does,
/// which is not stable.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn smmla(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function's features include the instruction, which works on registers alone.
    unsafe {
        asm!("smmla {sums:v}.4s, {w:v}.16b, {x:v}.16b", sums = inout(vreg) sums, w = in(vreg) w,
            x = in(vreg) x, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}
