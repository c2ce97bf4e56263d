//! Tiles of activations by blocks of GGUF files.

use std::arch::x86_64::*;

use super::lanes::*;
use crate::kernels::byte_tiles::byte_tiles;
use crate::kernels::run_tiles::run_tiles;

run_tiles!("avx512f,avx512bw,avx512vl,avx512vnni", (add_two, add_two), 127, true, [1 2 3 4 5 6 7 8]);
byte_tiles!("avx512f,avx512bw,avx512vl,avx512vnni", (add, add_two, add), false, 127, [1 2 3 4 5 6 7 8]);

/// Adds the products of two steps to 16 sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_two(sums: Ints, w: [Ints; 2], x: [Ints; 2]) -> Ints {
    add(add(sums, w[0], x[0]), w[1], x[1])
}

/// Adds the products of a step to 16 sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add(sums: Ints, w: Ints, x: Ints) -> Ints {
    _mm512_dpbusd_epi32(sums, w, x)
}
