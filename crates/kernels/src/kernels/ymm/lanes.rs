//! Operations on vectors of 32 bytes, for products that unpack codes in registers.

use std::arch::asm;
use std::arch::x86_64::*;

/// Rows of a panel.
pub(in crate::kernels) const NR: usize = crate::kernels::packed::layout::Layout::AVX2.panel_rows();

/// Bytes of a vector.
pub(in crate::kernels) const LINE: usize = 32;

/// Numbers in a vector.
const LANES: usize = NR / 2;

pub(in crate::kernels) type Ints = __m256i;
pub(in crate::kernels) type Floats = __m256;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn zero_ints() -> Ints {
    _mm256_setzero_si256()
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn zero_floats() -> Floats {
    _mm256_setzero_ps()
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn set_ints(x: i32) -> Ints {
    _mm256_set1_epi32(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn set_bytes(x: u8) -> Ints {
    _mm256_set1_epi8(x as i8)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn set_floats(x: f32) -> Floats {
    _mm256_set1_ps(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn and(a: Ints, b: Ints) -> Ints {
    _mm256_and_si256(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn or(a: Ints, b: Ints) -> Ints {
    _mm256_or_si256(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn sub_ints(a: Ints, b: Ints) -> Ints {
    _mm256_sub_epi32(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn add_ints(a: Ints, b: Ints) -> Ints {
    _mm256_add_epi32(a, b)
}

/// Products of integers of 32 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn mul_ints(a: Ints, b: Ints) -> Ints {
    _mm256_mullo_epi32(a, b)
}

/// Products of integers of 16 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn mul_shorts(a: Ints, b: Ints) -> Ints {
    _mm256_mullo_epi16(a, b)
}

/// Sums of two products of integers of 16 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn mul_pairs(a: Ints, b: Ints) -> Ints {
    _mm256_madd_epi16(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn times_16(x: Ints) -> Ints {
    _mm256_slli_epi32::<4>(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn over_16(x: Ints) -> Ints {
    _mm256_srai_epi32::<4>(x)
}

/// Moves the high half of each byte to its low half, below other bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn shift_right_4(bytes: Ints) -> Ints {
    _mm256_srli_epi16::<4>(bytes)
}

/// Moves bit `from` of each byte to bit 0; bits above its own seven are any.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn to_bit_0(bytes: Ints, from: usize) -> Ints {
    _mm256_srl_epi16(bytes, _mm_cvtsi64_si128(from as i64))
}

/// Moves bit `from` of each byte to bit 4; other bits are any.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn to_bit_4(bytes: Ints, from: usize) -> Ints {
    let distance = _mm_cvtsi64_si128(4_i64.abs_diff(from as i64) as i64);
    match from {
        0..4 => _mm256_sll_epi16(bytes, distance),
        4 => bytes,
        _ => _mm256_srl_epi16(bytes, distance),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn mul(a: Floats, b: Floats) -> Floats {
    _mm256_mul_ps(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
    _mm256_fmadd_ps(a, b, c)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn add_floats(a: Floats, b: Floats) -> Floats {
    _mm256_add_ps(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn sub_floats(a: Floats, b: Floats) -> Floats {
    _mm256_sub_ps(a, b)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn floats_of(x: Ints) -> Floats {
    _mm256_cvtepi32_ps(x)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn load(x: &[u8; LINE]) -> Ints {
    // SAFETY: `x` is a vector of readable bytes, and `loadu` needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn store_floats(out: &mut [f32; LANES], x: Floats) {
    // SAFETY: `out` is a vector of writable floats, and `storeu` needs no alignment.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
}

/// f16 to f32, exact.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn widen_halves(x: &[u8; 2 * NR]) -> [Floats; 2] {
    let x = load(x);
    let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
}

/// bf16 to f32, exact.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn widen_bfloats(x: &[u8; 2 * NR]) -> [Floats; 2] {
    let x = load(x);
    let low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x));
    let high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256::<1>(x));
    [
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
    ]
}

/// Sixteen bytes in each half of a vector.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn load_table(table: &[u8; 16]) -> Ints {
    // SAFETY: `table` is 16 readable bytes, and `loadu` needs no alignment.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

/// The bytes of a table at places below 16.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn look_up(table: Ints, places: Ints) -> Ints {
    _mm256_shuffle_epi8(table, places)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_lanes(x: &[u8; LANES]) -> __m128i {
    _mm_cvtsi64_si128(i64::from_le_bytes(*x))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn widen_signed(x: &[u8; LANES]) -> Floats {
    floats_of(_mm256_cvtepi8_epi32(load_lanes(x)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn widen_bytes(x: &[u8; LANES]) -> Ints {
    _mm256_cvtepu8_epi32(load_lanes(x))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn widen_unsigned(x: &[u8; LANES]) -> Floats {
    floats_of(widen_bytes(x))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn store(out: &mut [u8; LINE], x: Ints) {
    // SAFETY: `out` is a vector of writable bytes, and `storeu` needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn store_ints(out: &mut [i32; LANES], x: Ints) {
    // SAFETY: `out` is a vector of writable integers, and `storeu` needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn load_ints(x: &[i32; LANES]) -> Ints {
    // SAFETY: `x` is a vector of readable integers, and `loadu` needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn load_floats(x: &[f32; LANES]) -> Floats {
    // SAFETY: `x` is a vector of readable floats, and `loadu` needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

/// Bits of integers as those of floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn floats_at(x: Ints) -> Floats {
    _mm256_castsi256_ps(x)
}

/// Keeps the compiler from delaying the additions to `sums`: it would load all steps of a loop first, and spill what it
/// has no registers for.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::kernels) fn in_order<const M: usize>(sums: &mut [[Ints; 2]; M]) {
    for sum in sums.as_flattened_mut() {
        // SAFETY: no instructions. The compiler cannot assume that `sum` stays the same.
        unsafe {
            asm!("/* {} */", inout(ymm_reg) * sum, options(pure, nomem, nostack, preserves_flags));
        }
    }
}
