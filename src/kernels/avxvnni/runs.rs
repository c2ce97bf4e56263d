//! Few rows of activations by blocks of GGUF files.

use super::add_products;
use crate::kernels::run_tiles::run_tiles;
use crate::kernels::ymm::lanes::*;

run_tiles!("avx2,fma,f16c,avxvnni", add_two, true);

/// Adds the products of two steps to eight sums.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
fn add_two(sums: Ints, w: [Ints; 2], x: [Ints; 2]) -> Ints {
    add_products(add_products(sums, x[0], w[0]), x[1], w[1])
}
