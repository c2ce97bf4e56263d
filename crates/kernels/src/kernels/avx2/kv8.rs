//! Attention to int8 keys and values: 16 sums in two vectors.
//!
//! Products of keys are made of magnitudes and signs, like those of weights ([`add_products`]). Codes of weights are 0
//! to 127: two products fit an i16.

use std::arch::x86_64::*;

use super::super::kv8::bodies::int8_kernels;
use super::super::kv8::{HALF_BITS, KvLine, word};
use super::vectors::{add_products, largest, load, widen};

int8_kernels!(true, false, 1, 4, #[target_feature(enable = "avx2,fma,f16c")]);

type Sums = [__m256i; 2];

#[target_feature(enable = "avx2,fma,f16c")]
fn sums_from(start: i32) -> Sums {
    [_mm256_set1_epi32(start); 2]
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn floats(sums: Sums) -> [f32; 16] {
    let mut floats = [0.0; 16];
    for (floats, sums) in floats.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
        // SAFETY: `floats` is eight writable floats, and `storeu` needs no alignment.
        unsafe { _mm256_storeu_ps(floats.as_mut_ptr(), _mm256_cvtepi32_ps(sums)) };
    }
    floats
}

/// Joins the sums of the codes' upper and lower halves.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn joined([high, low]: [Sums; 2]) -> Sums {
    const BITS: i32 = HALF_BITS as i32;
    [
        _mm256_add_epi32(_mm256_slli_epi32::<BITS>(high[0]), low[0]),
        _mm256_add_epi32(_mm256_slli_epi32::<BITS>(high[1]), low[1]),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
fn load_keys(line: &KvLine) -> [__m256i; 2] {
    load_values(line)
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn load_values(line: &KvLine) -> [__m256i; 2] {
    let [low, high] = line.halves();
    [load(low), load(high)]
}

#[target_feature(enable = "avx2,fma,f16c")]
fn add_keys(sums: Sums, keys: [__m256i; 2], q: [i8; 4]) -> Sums {
    let q = _mm256_set1_epi32(word(q));
    [add_products(sums[0], q, keys[0]), add_products(sums[1], q, keys[1])]
}

#[target_feature(enable = "avx2,fma,f16c")]
fn add_values(mut sums: Sums, values: [__m256i; 2], codes: [i8; 4]) -> Sums {
    let codes = _mm256_set1_epi32(word(codes));
    for i in 0..2 {
        let pairs = _mm256_maddubs_epi16(codes, values[i]);
        let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        sums[i] = _mm256_add_epi32(sums[i], fours);
    }
    sums
}

/// See [`int8_kernels`]: there is nothing to do.
fn in_order(_: &mut [Sums]) {}
