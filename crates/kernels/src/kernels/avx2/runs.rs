//! Tiles of activations by blocks of GGUF files.

use std::arch::x86_64::*;

use crate::kernels::byte_tiles::byte_tiles;
use crate::kernels::run_tiles::run_tiles;
use crate::kernels::ymm::lanes::*;

run_tiles!("avx2,fma,f16c", (add_two, add_wide), 0, false, [1 2 3 4]);
byte_tiles!("avx2,fma,f16c", (add, add_two, add_signed), true, 0, [1 2 3 4]);

/// Adds the products of two steps to eight sums. Four products of codes of six bits are at most `4 * 63 * 127 = 32004`,
/// an `i16`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_two(sums: Ints, w: [Ints; 2], x: [Ints; 2]) -> Ints {
    let fours =
        _mm256_add_epi16(_mm256_maddubs_epi16(w[0], x[0]), _mm256_maddubs_epi16(w[1], x[1]));
    _mm256_add_epi32(sums, _mm256_madd_epi16(fours, _mm256_set1_epi16(1)))
}

/// Adds the products of two steps of signed codes up to 127. Two products are at most `2 * 127 * 127 = 32258`, an `i16`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_wide(sums: Ints, w: [Ints; 2], x: [Ints; 2]) -> Ints {
    add_signed(add_signed(sums, w[0], x[0]), w[1], x[1])
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_signed(sums: Ints, w: Ints, x: Ints) -> Ints {
    let twos = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)))
}

/// Adds the products of a step of unsigned codes to eight sums.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add(sums: Ints, w: Ints, x: Ints) -> Ints {
    let twos = _mm256_maddubs_epi16(w, x);
    _mm256_add_epi32(sums, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)))
}
