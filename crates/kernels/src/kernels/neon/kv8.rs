//! Attention to int8 keys and values: a line is four vectors. Products of two positions or columns are added to their
//! neighbours, which makes two sums for each.

use std::arch::aarch64::*;

use super::super::kv8::bodies::int8_kernels;
use super::super::kv8::{HALF_BITS, KvLine, word};
use super::vectors::{largest, load, store, widen};

int8_kernels!(true, false, 1, 1, #[target_feature(enable = "neon")]);

/// Two vectors for each four positions or columns; each position has two partial sums.
type Sums = [[int32x4_t; 2]; 4];

#[target_feature(enable = "neon")]
fn sums_from(start: i32) -> Sums {
    // Each sum is split in two: one of them starts at 0.
    let first = vsetq_lane_s32::<2>(start, vsetq_lane_s32::<0>(start, vdupq_n_s32(0)));
    [[first; 2]; 4]
}

#[target_feature(enable = "neon")]
fn floats(sums: Sums) -> [f32; 16] {
    let mut floats = [0.0; 16];
    for (floats, [low, high]) in floats.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        store(floats, vcvtq_f32_s32(vpaddq_s32(low, high)));
    }
    floats
}

/// Joins the sums of the upper and lower halves of codes.
#[target_feature(enable = "neon")]
fn joined([high, low]: [Sums; 2]) -> Sums {
    const BITS: i32 = HALF_BITS as i32;
    let mut sums = low;
    for i in 0..4 {
        for j in 0..2 {
            sums[i][j] = vaddq_s32(vshlq_n_s32::<BITS>(high[i][j]), low[i][j]);
        }
    }
    sums
}

#[target_feature(enable = "neon")]
pub(in super::super) fn load_keys(line: &KvLine) -> [int8x16_t; 4] {
    let [a, b, c, d] = line.quarters();
    [load(a), load(b), load(c), load(d)]
}

#[target_feature(enable = "neon")]
pub(in super::super) fn load_values(line: &KvLine) -> [int8x16_t; 4] {
    load_keys(line)
}

#[target_feature(enable = "neon")]
fn add_keys(mut sums: Sums, keys: [int8x16_t; 4], q: [i8; 4]) -> Sums {
    let q = broadcast(q);
    for i in 0..4 {
        let low = vmull_s8(vget_low_s8(keys[i]), vget_low_s8(q));
        sums[i][0] = vpadalq_s16(sums[i][0], low);
        sums[i][1] = vpadalq_s16(sums[i][1], vmull_high_s8(keys[i], q));
    }
    sums
}

#[target_feature(enable = "neon")]
fn add_values(sums: Sums, values: [int8x16_t; 4], codes: [i8; 4]) -> Sums {
    add_keys(sums, values, codes)
}

#[target_feature(enable = "neon")]
pub(in super::super) fn broadcast(four: [i8; 4]) -> int8x16_t {
    vreinterpretq_s8_s32(vdupq_n_s32(word(four)))
}

/// See [`int8_kernels`]: there is nothing to do.
fn in_order(_: &mut [Sums]) {}
