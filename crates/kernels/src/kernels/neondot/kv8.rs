//! Attention to int8 keys and values: a line is four vectors, and its sums are four more.

use std::arch::aarch64::*;

use super::super::kv8::HALF_BITS;
use super::super::kv8::bodies::int8_kernels;
use super::super::neon::kv8::{broadcast, load_keys, load_values};
use super::super::neon::vectors::{largest, store, widen};
use super::vectors::sdot;

int8_kernels!(true, false, 1, 2, #[target_feature(enable = "neon,dotprod")]);

type Sums = [int32x4_t; 4];

#[target_feature(enable = "neon,dotprod")]
fn sums_from(start: i32) -> Sums {
    [vdupq_n_s32(start); 4]
}

#[target_feature(enable = "neon,dotprod")]
fn floats(sums: Sums) -> [f32; 16] {
    let mut floats = [0.0; 16];
    for (floats, sums) in floats.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        store(floats, vcvtq_f32_s32(sums));
    }
    floats
}

/// Joins the sums of the upper and lower halves of codes.
#[target_feature(enable = "neon,dotprod")]
fn joined([high, low]: [Sums; 2]) -> Sums {
    const BITS: i32 = HALF_BITS as i32;
    let mut sums = low;
    for i in 0..4 {
        sums[i] = vaddq_s32(vshlq_n_s32::<BITS>(high[i]), low[i]);
    }
    sums
}

#[target_feature(enable = "neon,dotprod")]
fn add_keys(mut sums: Sums, keys: [int8x16_t; 4], q: [i8; 4]) -> Sums {
    let q = broadcast(q);
    for i in 0..4 {
        sums[i] = sdot(sums[i], keys[i], q);
    }
    sums
}

#[target_feature(enable = "neon,dotprod")]
fn add_values(sums: Sums, values: [int8x16_t; 4], codes: [i8; 4]) -> Sums {
    add_keys(sums, values, codes)
}

/// See [`int8_kernels`]: there is nothing to do.
fn in_order(_: &mut [Sums]) {}
