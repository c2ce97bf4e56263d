//! Loads and stores of vectors, and dot products of floats.

use std::arch::aarch64::*;
use std::arch::asm;

use half::f16;

use super::super::{float, scalar};

/// Dot products of `x` with up to four rows of its length; see [`float::dots`].
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn dots<const N: usize>(x: &[f32], rows: [&[f32]; N]) -> [f32; 4] {
    let mut sums = [[vdupq_n_f32(0.0); 4]; N];
    let (x_chunks, rows_chunks) = (float::chunks(x), float::chunks_of(rows, x.len()));
    for c in 0..x_chunks.len() {
        let x = load_lanes(&x_chunks[c]);
        for i in 0..N {
            sums[i] = add_lanes(sums[i], x, load_lanes(&rows_chunks[i][c]));
        }
    }
    if !x.len().is_multiple_of(float::LANES) {
        let x = load_lanes(&float::last_chunk(x));
        for i in 0..N {
            sums[i] = add_lanes(sums[i], x, load_lanes(&float::last_chunk(rows[i])));
        }
    }
    let mut fours = [vdupq_n_f32(0.0); 4];
    for i in 0..N {
        let [a, b, c, d] = sums[i];
        fours[i] = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
    }
    let [a, b, c, d] = fours;
    let mut y = [0.0; 4];
    store(&mut y, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
    y
}

#[target_feature(enable = "neon")]
fn add_lanes(sums: [float32x4_t; 4], a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
    [
        vfmaq_f32(sums[0], a[0], b[0]),
        vfmaq_f32(sums[1], a[1], b[1]),
        vfmaq_f32(sums[2], a[2], b[2]),
        vfmaq_f32(sums[3], a[3], b[3]),
    ]
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn load(x: &[i8; 16]) -> int8x16_t {
    // SAFETY: `x` is 16 readable bytes.
    unsafe { vld1q_s8(x.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn load_bytes(x: &[u8; 16]) -> uint8x16_t {
    // SAFETY: `x` is 16 readable bytes.
    unsafe { vld1q_u8(x.as_ptr()) }
}

/// Four bytes, twice.
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn load_four(x: &[u8; 4]) -> int8x8_t {
    vreinterpret_s8_u32(vdup_n_u32(u32::from_ne_bytes(*x)))
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn load_32(x: &[i8; 32]) -> [int8x16_t; 2] {
    let (halves, _) = x.as_chunks();
    [load(&halves[0]), load(&halves[1])]
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn load_lanes(x: &[f32; 16]) -> [float32x4_t; 4] {
    let (fours, _) = x.as_chunks::<4>();
    [load_floats(&fours[0]), load_floats(&fours[1]), load_floats(&fours[2]), load_floats(&fours[3])]
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn load_floats(x: &[f32; 4]) -> float32x4_t {
    // SAFETY: `x` is four readable floats.
    unsafe { vld1q_f32(x.as_ptr()) }
}

#[target_feature(enable = "neon")]
pub(in crate::kernels) fn store(out: &mut [f32; 4], x: float32x4_t) {
    // SAFETY: `out` is four writable floats.
    unsafe { vst1q_f32(out.as_mut_ptr(), x) };
}

/// Bits of the largest magnitude. Without the sign bit, floats compare like their bits as integers.
#[target_feature(enable = "neon")]
#[inline]
pub(in crate::kernels) fn largest(x: &[[f32; 32]]) -> u32 {
    let mut max = [vdupq_n_u32(0); 8];
    for x in x {
        for (max, x) in max.iter_mut().zip(x.as_chunks().0) {
            *max = vmaxq_u32(*max, vreinterpretq_u32_f32(vabsq_f32(load_floats(x))));
        }
    }
    let [a, b, c, d, e, f, g, h] = max;
    let (ab, cd, ef, gh) = (vmaxq_u32(a, b), vmaxq_u32(c, d), vmaxq_u32(e, f), vmaxq_u32(g, h));
    vmaxvq_u32(vmaxq_u32(vmaxq_u32(ab, cd), vmaxq_u32(ef, gh)))
}

/// Eight f16 to f32, exact.
#[target_feature(enable = "neon")]
pub(in crate::kernels) fn widen_8(x: uint16x8_t) -> [float32x4_t; 2] {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: `fcvtl` is in ARMv8.0 and uses only registers.
    unsafe {
        asm!("fcvtl {low:v}.4s, {x:v}.4h", "fcvtl2 {high:v}.4s, {x:v}.8h", x = in(vreg) x,
            low = out(vreg) low, high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags));
    }
    [low, high]
}

/// f16 to f32, exact.
#[target_feature(enable = "neon")]
pub(in crate::kernels) fn widen(x: &[f16], out: &mut [f32]) {
    let ((x, x_tail), (out, out_tail)) = (x.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, out) in x.iter().zip(out) {
        // SAFETY: `x` is 16 readable bytes, aligned as its elements are.
        let [low, high] = widen_8(unsafe { vld1q_u16(x.as_ptr().cast()) });
        // SAFETY: `out` is eight writable floats; these are the first four.
        unsafe { vst1q_f32(out.as_mut_ptr(), low) };
        // SAFETY: `out` is eight writable floats; these are the last four.
        unsafe { vst1q_f32(out[4..].as_mut_ptr(), high) };
    }
    scalar::widen(x_tail, out_tail);
}
