//! Attention to int8 keys and values: a line is a vector. Keys become unsigned with a bias.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::avx2::vectors::{largest, widen};
use super::super::kv8::bodies::int8_kernels;
use super::super::kv8::{HALF_BITS, KvLine, word};

int8_kernels!(true, true, 2, 4, #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]);

type Sums = __m512i;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn sums_from(start: i32) -> Sums {
    _mm512_set1_epi32(start)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn floats(sums: Sums) -> [f32; 16] {
    let mut floats = [0.0; 16];
    // SAFETY: `floats` is 16 writable floats, and `storeu` needs no alignment.
    unsafe { _mm512_storeu_ps(floats.as_mut_ptr(), _mm512_cvtepi32_ps(sums)) };
    floats
}

/// Joins the sums of the codes' upper and lower halves.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn joined([high, low]: [Sums; 2]) -> Sums {
    _mm512_add_epi32(_mm512_slli_epi32::<HALF_BITS>(high), low)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_keys(line: &KvLine) -> __m512i {
    _mm512_xor_si512(load_values(line), _mm512_set1_epi8(-128))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn load_values(line: &KvLine) -> __m512i {
    // SAFETY: a line is 64 readable bytes, and `loadu` needs no alignment.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(line).cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_keys(sums: Sums, keys: __m512i, q: [i8; 4]) -> Sums {
    _mm512_dpbusd_epi32(sums, keys, broadcast(q))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_values(sums: Sums, values: __m512i, codes: [i8; 4]) -> Sums {
    _mm512_dpbusd_epi32(sums, broadcast(codes), values)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn broadcast(four: [i8; 4]) -> __m512i {
    _mm512_set1_epi32(word(four))
}

/// See [`int8_kernels`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn in_order(sums: &mut [Sums]) {
    for sum in sums {
        // SAFETY: no instructions. The compiler cannot assume that `sum` stays the same.
        unsafe {
            asm!(
                "/* {sum} */",
                sum = inout(zmm_reg) * sum,
                options(pure, nomem, nostack, preserves_flags)
            )
        };
    }
}
