//! Attention to int8 keys and values, see [`super::super::avx2::kv8`]. Keys become unsigned with a bias.

use std::arch::x86_64::*;

use super::super::avx2::kv8::{floats, joined, load_values};
use super::super::avx2::vectors::{largest, widen};
use super::super::kv8::bodies::int8_kernels;
use super::super::kv8::{KvLine, word};

int8_kernels!(true, true, 1, 4, #[target_feature(enable = "avx2,fma,f16c,avxvnni")]);

type Sums = [__m256i; 2];

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn sums_from(start: i32) -> Sums {
    [_mm256_set1_epi32(start); 2]
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn load_keys(line: &KvLine) -> [__m256i; 2] {
    let [low, high] = load_values(line);
    let bias = _mm256_set1_epi8(-128);
    [_mm256_xor_si256(low, bias), _mm256_xor_si256(high, bias)]
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_keys(sums: Sums, keys: [__m256i; 2], q: [i8; 4]) -> Sums {
    let q = _mm256_set1_epi32(word(q));
    [_mm256_dpbusd_avx_epi32(sums[0], keys[0], q), _mm256_dpbusd_avx_epi32(sums[1], keys[1], q)]
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_values(sums: Sums, values: [__m256i; 2], codes: [i8; 4]) -> Sums {
    let codes = _mm256_set1_epi32(word(codes));
    [
        _mm256_dpbusd_avx_epi32(sums[0], codes, values[0]),
        _mm256_dpbusd_avx_epi32(sums[1], codes, values[1]),
    ]
}

/// See [`int8_kernels`]: there is nothing to do.
fn in_order(_: &mut [Sums]) {}
