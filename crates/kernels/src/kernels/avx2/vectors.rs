//! Loads of vectors, and operations on single vectors.

use std::arch::x86_64::*;

use half::f16;

use super::super::scalar;

/// Adds 32 products to eight sums.
///
/// `vpmaddubsw` multiplies unsigned by signed bytes and adds neighbours in i16, so this computes
/// `w * x = |w| * (sign(w) * x)`: `|w| <= 128` is a `u8`, and `|x| <= 127` can be negated in an `i8`. Two
/// products are at most `2 * 128 * 127 = 32512`, an `i16`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn add_products(sums: __m256i, x: __m256i, w: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Bits of the largest magnitude. Without the sign bit, floats compare like their bits as integers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn largest(x: &[[f32; 32]]) -> u32 {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let mut max = [_mm256_setzero_si256(); 4];
    for x in x {
        let x = load_32(x);
        for i in 0..4 {
            let bits = _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude);
            max[i] = _mm256_max_epi32(max[i], bits);
        }
    }
    let max = _mm256_max_epi32(_mm256_max_epi32(max[0], max[1]), _mm256_max_epi32(max[2], max[3]));
    let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    _mm_cvtsi128_si32(max) as u32
}

/// f16 to f32, exact.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn widen(x: &[f16], out: &mut [f32]) {
    let ((x, x_tail), (out, out_tail)) = (x.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, out) in x.iter().zip(out) {
        // SAFETY: `x` is 16 readable bytes, and `loadu` needs no alignment.
        let x = unsafe { _mm_loadu_si128(x.as_ptr().cast()) };
        // SAFETY: `out` is eight writable floats, and `storeu` needs no alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(x)) };
    }
    scalar::widen(x_tail, out_tail);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn load(x: &[i8; 32]) -> __m256i {
    // SAFETY: `x` is 32 readable bytes, and `loadu` needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn load_lanes(x: &[f32; 16]) -> [__m256; 2] {
    let (eights, _) = x.as_chunks();
    [load_8(&eights[0]), load_8(&eights[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn load_32(x: &[f32; 32]) -> [__m256; 4] {
    let (eights, _) = x.as_chunks();
    [load_8(&eights[0]), load_8(&eights[1]), load_8(&eights[2]), load_8(&eights[3])]
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::kernels) fn load_8(x: &[f32; 8]) -> __m256 {
    // SAFETY: `x` is eight readable floats, and `loadu` needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}
