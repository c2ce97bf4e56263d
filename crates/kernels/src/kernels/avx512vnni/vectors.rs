//! Vector operations of products with packed weights: loads, unpacking, multiplication, stores.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::packed::layout::Layout;
use super::super::stream::prefetch_ahead;

/// Rows of a panel.
pub(super) const NR: usize = Layout::AVX512_VNNI.panel_rows();

/// Adds the products of four columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn add_products<const M: usize>(
    dots: &mut [[__m512i; 2]; M],
    w: [__m512i; 2],
    x: &[[u8; 4]; M],
) {
    for i in 0..M {
        let x = _mm512_set1_epi32(i32::from_ne_bytes(x[i]));
        for j in 0..2 {
            dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], w[j], x);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn load_16(x: &[f32; 16]) -> __m512 {
    // SAFETY: `x` is 16 readable floats, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn store_16(out: &mut [f32; 16], x: __m512) {
    // SAFETY: `out` is 16 writable floats, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn and([a, b]: [__m512i; 2], mask: __m512i) -> [__m512i; 2] {
    [_mm512_and_si512(a, mask), _mm512_and_si512(b, mask)]
}

/// The high codes of each byte, below other bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn shift([a, b]: [__m512i; 2]) -> [__m512i; 2] {
    [_mm512_srli_epi16::<4>(a), _mm512_srli_epi16::<4>(b)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn load(x: &[u8; 4 * NR]) -> [__m512i; 2] {
    let (vectors, _) = x.as_chunks::<64>();
    let mut loaded = [_mm512_setzero_si512(); 2];
    for j in 0..2 {
        // SAFETY: `vectors[j]` is 64 readable bytes, and `loadu` needs no alignment.
        loaded[j] = unsafe { _mm512_loadu_si512(vectors[j].as_ptr().cast()) };
    }
    loaded
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn load_floats(x: &[u8; 4 * NR]) -> [__m512; 2] {
    let [a, b] = load(x);
    [_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)]
}

/// Writes half `j` of `out` (0 or 1).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn store(out: &mut [u8; 4 * NR], j: usize, x: __m512i) {
    let half = &mut out.as_chunks_mut::<64>().0[j];
    // SAFETY: `half` is 64 writable bytes, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_si512(half.as_mut_ptr().cast(), x) };
}

/// Prefetches both lines some way behind `w`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn prefetch_both<const HINT: i32>(w: &[u8; 4 * NR]) {
    prefetch_ahead::<HINT>(w[..64].as_ptr());
    prefetch_ahead::<HINT>(w[64..].as_ptr());
}

/// Adds each row's totals times its scale to `out`, `[M, 32]`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn add_scaled<const M: usize>(
    out: &mut [f32],
    totals: &[[__m512; 2]; M],
    scales: &[f32; M],
) {
    let out = &mut out.as_chunks_mut::<16>().0.as_chunks_mut::<2>().0[..M];
    for i in 0..M {
        for j in 0..2 {
            add_scaled_to(&mut out[i][j], totals[i][j], scales[i]);
        }
    }
}

/// Adds a total times its row's scale.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn add_scaled_to(out: &mut [f32; 16], total: __m512, scale: f32) {
    let sum = _mm512_fmadd_ps(total, _mm512_set1_ps(scale), load_16(out));
    store_16(out, sum);
}

/// Keeps the compiler from delaying the additions to `sums`: it would load all steps of a loop first, and spill what it
/// has no registers for.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn in_order<const M: usize>(sums: &mut [[__m512i; 2]; M]) {
    for sum in sums.as_flattened_mut() {
        // SAFETY: no instructions. The compiler cannot assume that `sum` stays the same.
        unsafe {
            asm!("/* {} */", inout(zmm_reg) * sum, options(pure, nomem, nostack, preserves_flags));
        }
    }
}
