//! Tiles of activations by blocks of GGUF files.

use std::arch::x86_64::*;

use crate::kernels::byte_tiles::byte_tiles;
use crate::kernels::run_tiles::run_tiles;
use crate::kernels::ymm::lanes::*;

run_tiles!("avx2,fma,f16c,avxvnni", (add_two, add_two), 127, true, [1 2 3 4 5 6]);
byte_tiles!("avx2,fma,f16c,avxvnni", (add, add_two, add), false, 127, [1 2 3 4 5 6]);

/// Adds the products of two steps to eight sums.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn add_two(sums: Ints, w: [Ints; 2], x: [Ints; 2]) -> Ints {
    add(add(sums, w[0], x[0]), w[1], x[1])
}

/// Adds the products of a step to eight sums.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn add(sums: Ints, w: Ints, x: Ints) -> Ints {
    _mm256_dpbusd_avx_epi32(sums, w, x)
}
