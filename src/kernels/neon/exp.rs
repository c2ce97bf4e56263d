//! Softmax and SwiGLU, with an exponential function in assembly: four vectors at a time, so that none
//! waits for the one before. Instructions that multiply and add overwrite what they add to, so each
//! constant is copied every time. To load it takes fewer instructions, but longer on small cores.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::float::{self, BLOCK, LANES, ScoresMut4, Softmax};
use super::super::neondot::gemm::{floats, floats_by_lane};
use super::vectors::{self, load_floats};

/// What is multiplied by.
static FACTORS: [f32; 4] =
    [std::f32::consts::LOG2_E, float::LN2[0], float::LN2[1], float::EXP_POLYNOMIAL[0]];

/// What products are added to; 1 and 2 are instructions' own.
static CONSTANTS: [f32; 4] = {
    let [_, a, b, c, one, two, and_two] = float::EXP_POLYNOMIAL;
    assert!(one == 1.0);
    assert!(two == 2.0);
    assert!(and_two == 2.0);
    [float::EXP_ROUND, a, b, c]
};

/// Copies a constant.
macro_rules! constant {
    ($name:literal $from:literal: $($to:literal)*) => {
        concat!($($name, " v", $to, ".4s, ", $from, "\n",)*)
    };
}

/// One instruction for each of four vectors.
macro_rules! each {
    ($name:literal $($to:literal $a:literal $b:literal),*) => {
        concat!($(floats!($name $to $a $b),)*)
    };
}

/// The same by a factor.
macro_rules! each_by_lane {
    ($name:literal $lane:literal: $($to:literal $a:literal),*) => {
        concat!($(floats_by_lane!($name $to $a 24 $lane),)*)
    };
}

/// A constant less products with v4 to v7.
macro_rules! horner {
    ($name:literal $constant:literal: $a:literal $b:literal $c:literal $d:literal
     from $e:literal $f:literal $g:literal $h:literal) => {
        concat!(
            constant!($name $constant: $a $b $c $d),
            each!("fmls" $a $e 4, $b $f 5, $c $g 6, $d $h 7),
        )
    };
}

/// [`float::exp_to_one`] of `-y`, where no `y` is above `-EXP_LEAST`. All is done with `-r`, which is
/// as far from 0 as `r` to the bit.
#[target_feature(enable = "neon")]
#[inline]
fn exp_of_negative(y: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let (factors, constants) = (load_floats(&FACTORS), load_floats(&CONSTANTS));
    let (a, b, c, d);
    // SAFETY: these instructions are in ARMv8.0 and work on registers that are named.
    unsafe {
        asm!(
            constant!("dup" "v26.s[0]": 8 9 10 11),
            each_by_lane!("fmls" 0: 8 4, 9 5, 10 6, 11 7),
            each!("fsub" 12 8 25, 13 9 25, 14 10 25, 15 11 25),
            "shl v8.4s, v8.4s, #23", "shl v9.4s, v9.4s, #23",
            "shl v10.4s, v10.4s, #23", "shl v11.4s, v11.4s, #23",
            each_by_lane!("fmla" 1: 4 12, 5 13, 6 14, 7 15),
            each_by_lane!("fmla" 2: 4 12, 5 13, 6 14, 7 15),
            constant!("dup" "v26.s[1]": 16 17 18 19),
            each_by_lane!("fmls" 3: 16 4, 17 5, 18 6, 19 7),
            horner!("dup" "v26.s[2]": 20 21 22 23 from 16 17 18 19),
            horner!("dup" "v26.s[3]": 16 17 18 19 from 20 21 22 23),
            horner!("fmov" "#1.0": 20 21 22 23 from 16 17 18 19),
            horner!("fmov" "#2.0": 16 17 18 19 from 20 21 22 23),
            horner!("fmov" "#2.0": 20 21 22 23 from 16 17 18 19),
            each!("fmul" 20 20 8, 21 21 9, 22 22 10, 23 23 11),
            in("v24") factors, in("v25") vdupq_n_f32(float::EXP_ROUND), in("v26") constants,
            inout("v4") y[0] => _, inout("v5") y[1] => _, inout("v6") y[2] => _,
            inout("v7") y[3] => _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _,
            out("v18") _, out("v19") _, out("v20") a, out("v21") b, out("v22") c, out("v23") d,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [a, b, c, d]
}

/// See [`float::swiglu`].
#[target_feature(enable = "neon")]
pub(super) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let (gate, gate_rest) = gate.as_chunks::<LANES>();
    let (up, up_rest) = up.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let (least, most) = (vdupq_n_f32(-float::EXP_MOST), vdupq_n_f32(-float::EXP_LEAST));
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        let (x, up) = (load(gate), load(up));
        let exp = exp_of_negative(x.map(|x| vmaxq_f32(vminq_f32(x, most), least)));
        let mut y = x;
        for i in 0..4 {
            y[i] = vmulq_f32(vdivq_f32(x[i], vaddq_f32(vdupq_n_f32(1.0), exp[i])), up[i]);
        }
        store(out, y);
    }
    float::swiglu::<true>(gate_rest, up_rest, out_rest);
}

/// See [`float::soften_4`]. What goes across lanes is done for all queries at once. Of zeros, the
/// largest score may be another than [`float::soften`]'s; their differences are the same.
#[target_feature(enable = "neon")]
pub(super) fn soften_4(scores: ScoresMut4<'_>, states: [&mut Softmax; 4]) -> [f32; 4] {
    let before = states.each_ref().map(|state| state.max);
    // SAFETY: `before` is four readable floats.
    let before = unsafe { vld1q_f32(before.as_ptr()) };
    // Of a NaN and a number, it gives the number.
    let [a, b, c, d] = scores.each_ref().map(|scores| largest(scores));
    let largest = vpmaxnmq_f32(vpmaxnmq_f32(a, b), vpmaxnmq_f32(c, d));
    let max = vmaxnmq_f32(before, largest);
    let most = vdupq_n_f32(-float::EXP_LEAST);
    let [correction, ..] = exp_of_negative([vminq_f32(vsubq_f32(max, before), most); 4]);
    let (mut maxima, mut corrections, mut sums) = ([0.0; 4], [0.0; 4], [0.0; 4]);
    vectors::store(&mut maxima, max);
    vectors::store(&mut corrections, correction);
    let mut totals = [vdupq_n_f32(0.0); 4];
    for ((scores, max), total) in scores.into_iter().zip(maxima).zip(&mut totals) {
        let halves = scores.as_chunks_mut::<LANES>().0;
        let mut exp = [[vdupq_n_f32(0.0); 4]; 2];
        for (half, exp) in halves.iter_mut().zip(&mut exp) {
            let y = load(half).map(|x| vminq_f32(vsubq_f32(vdupq_n_f32(max), x), most));
            *exp = exp_of_negative(y);
            store(half, *exp);
        }
        let sum = |i: usize| vaddq_f32(exp[0][i], exp[1][i]);
        *total = vaddq_f32(vaddq_f32(sum(0), sum(2)), vaddq_f32(sum(1), sum(3)));
    }
    let [a, b, c, d] = totals;
    vectors::store(&mut sums, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
    for (i, state) in states.into_iter().enumerate() {
        let sum = state.sum.mul_add(corrections[i], sums[i]);
        *state = Softmax { max: maxima[i], sum };
    }
    corrections
}

/// The largest of a block's scores are among these.
#[target_feature(enable = "neon")]
#[inline]
fn largest(scores: &[f32; BLOCK]) -> float32x4_t {
    let [low, high] = [0, 1].map(|half| load(&scores.as_chunks().0[half]));
    let max = |i: usize| vmaxnmq_f32(low[i], high[i]);
    vmaxnmq_f32(vmaxnmq_f32(max(0), max(1)), vmaxnmq_f32(max(2), max(3)))
}

#[target_feature(enable = "neon")]
#[inline]
fn load(x: &[f32; LANES]) -> [float32x4_t; 4] {
    // SAFETY: `x` is 16 readable floats.
    let float32x4x4_t(a, b, c, d) = unsafe { vld1q_f32_x4(x.as_ptr()) };
    [a, b, c, d]
}

#[target_feature(enable = "neon")]
#[inline]
fn store(out: &mut [f32; LANES], [a, b, c, d]: [float32x4_t; 4]) {
    // SAFETY: `out` is 16 writable floats.
    unsafe { vst1q_f32_x4(out.as_mut_ptr(), float32x4x4_t(a, b, c, d)) };
}
