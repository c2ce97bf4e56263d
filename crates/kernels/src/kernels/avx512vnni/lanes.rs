//! Operations on vectors of 64 bytes, for products that unpack codes in registers.

use std::arch::x86_64::*;

pub(super) use super::vectors::in_order;

/// Rows of a panel.
pub(in crate::kernels) const NR: usize =
    crate::kernels::packed::layout::Layout::AVX512_VNNI.panel_rows();

/// Bytes of a vector.
pub(in crate::kernels) const LINE: usize = 64;

/// Numbers in a vector.
const LANES: usize = NR / 2;

pub(in crate::kernels) type Ints = __m512i;
pub(in crate::kernels) type Floats = __m512;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn zero_ints() -> Ints {
    _mm512_setzero_si512()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn zero_floats() -> Floats {
    _mm512_setzero_ps()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn set_ints(x: i32) -> Ints {
    _mm512_set1_epi32(x)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn set_bytes(x: u8) -> Ints {
    _mm512_set1_epi8(x as i8)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn set_floats(x: f32) -> Floats {
    _mm512_set1_ps(x)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn and(a: Ints, b: Ints) -> Ints {
    _mm512_and_si512(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn or(a: Ints, b: Ints) -> Ints {
    _mm512_or_si512(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn sub_ints(a: Ints, b: Ints) -> Ints {
    _mm512_sub_epi32(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn add_ints(a: Ints, b: Ints) -> Ints {
    _mm512_add_epi32(a, b)
}

/// Products of integers of 32 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn mul_ints(a: Ints, b: Ints) -> Ints {
    _mm512_mullo_epi32(a, b)
}

/// Products of integers of 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn mul_shorts(a: Ints, b: Ints) -> Ints {
    _mm512_mullo_epi16(a, b)
}

/// Sums of two products of integers of 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn mul_pairs(a: Ints, b: Ints) -> Ints {
    _mm512_madd_epi16(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn times_16(x: Ints) -> Ints {
    _mm512_slli_epi32::<4>(x)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn over_16(x: Ints) -> Ints {
    _mm512_srai_epi32::<4>(x)
}

/// Moves the high half of each byte to its low half, below other bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn shift_right_4(bytes: Ints) -> Ints {
    _mm512_srli_epi16::<4>(bytes)
}

/// Moves bit `from` of each byte to bit 0; bits above its own seven are any.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn to_bit_0(bytes: Ints, from: usize) -> Ints {
    _mm512_srl_epi16(bytes, _mm_cvtsi64_si128(from as i64))
}

/// Moves bit `from` of each byte to bit 4; other bits are any.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn to_bit_4(bytes: Ints, from: usize) -> Ints {
    let distance = _mm_cvtsi64_si128(4_i64.abs_diff(from as i64) as i64);
    match from {
        0..4 => _mm512_sll_epi16(bytes, distance),
        4 => bytes,
        _ => _mm512_srl_epi16(bytes, distance),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn mul(a: Floats, b: Floats) -> Floats {
    _mm512_mul_ps(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
    _mm512_fmadd_ps(a, b, c)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn add_floats(a: Floats, b: Floats) -> Floats {
    _mm512_add_ps(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn sub_floats(a: Floats, b: Floats) -> Floats {
    _mm512_sub_ps(a, b)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn floats_of(x: Ints) -> Floats {
    _mm512_cvtepi32_ps(x)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn load(x: &[u8; LINE]) -> Ints {
    // SAFETY: `x` is a vector of readable bytes, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn store_floats(out: &mut [f32; LANES], x: Floats) {
    // SAFETY: `out` is a vector of writable floats, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
}

/// f16 to f32, exact.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn widen_halves(x: &[u8; 2 * NR]) -> [Floats; 2] {
    let x = load(x);
    let (low, high) = (_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
    [_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)]
}

/// bf16 to f32, exact.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn widen_bfloats(x: &[u8; 2 * NR]) -> [Floats; 2] {
    let x = load(x);
    let low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    let high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(x));
    [
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(low)),
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(high)),
    ]
}

/// Sixteen bytes in each quarter of a vector.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn load_table(table: &[u8; 16]) -> Ints {
    // SAFETY: `table` is 16 readable bytes, and `loadu` needs no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

/// The bytes of a table at places below 16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn look_up(table: Ints, places: Ints) -> Ints {
    _mm512_shuffle_epi8(table, places)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn load_lanes(x: &[u8; LANES]) -> __m128i {
    // SAFETY: `x` is 16 readable bytes, and `loadu` needs no alignment.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn widen_signed(x: &[u8; LANES]) -> Floats {
    floats_of(_mm512_cvtepi8_epi32(load_lanes(x)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn widen_bytes(x: &[u8; LANES]) -> Ints {
    _mm512_cvtepu8_epi32(load_lanes(x))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn widen_unsigned(x: &[u8; LANES]) -> Floats {
    floats_of(widen_bytes(x))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn store(out: &mut [u8; LINE], x: Ints) {
    // SAFETY: `out` is a vector of writable bytes, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn store_ints(out: &mut [i32; LANES], x: Ints) {
    // SAFETY: `out` is a vector of writable integers, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn load_ints(x: &[i32; LANES]) -> Ints {
    // SAFETY: `x` is a vector of readable integers, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn load_floats(x: &[f32; LANES]) -> Floats {
    // SAFETY: `x` is a vector of readable floats, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

/// Bits of integers as those of floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(in crate::kernels) fn floats_at(x: Ints) -> Floats {
    _mm512_castsi512_ps(x)
}
