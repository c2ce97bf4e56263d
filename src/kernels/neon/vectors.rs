//! Vectors from memory and back, and dot products of floats.

use std::arch::aarch64::*;

use super::super::float;

/// Dot products of `x` with `N` of up to four rows as long as it; see [`float::dots`].
#[target_feature(enable = "neon")]
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
