//! Softmax and SwiGLU with an exponential function in assembly, on four vectors at a time, so that none waits for the
//! one before. Instructions that multiply and add overwrite their addend, so each constant is copied every time.
//! Loading it would take fewer instructions, but longer on small cores.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::float::{self, BLOCK, LANES, ScoresMut4, Softmax};
use super::registers::{floats, floats_by_lane, registers};
use super::vectors::{self, load_floats};

/// Factors.
static FACTORS: [f32; 4] =
    [std::f32::consts::LOG2_E, float::LN2[0], float::LN2[1], float::EXP_POLYNOMIAL[0]];

/// Addends of products; instructions contain 1 and 2 themselves.
static CONSTANTS: [f32; 4] = {
    let [_, a, b, c, one, two, and_two] = float::EXP_POLYNOMIAL;
    assert!(one == 1.0);
    assert!(two == 2.0);
    assert!(and_two == 2.0);
    [float::EXP_ROUND, a, b, c]
};

registers! {
    // For each of four vectors: `-y`, then its remainder; `power`, the exponent's float and later the power of two;
    // that float rounded; one polynomial, and the next.
    y0 = 4, y1 = 5, y2 = 6, y3 = 7,
    power0 = 8, power1 = 9, power2 = 10, power3 = 11,
    whole0 = 12, whole1 = 13, whole2 = 14, whole3 = 15,
    p0 = 16, p1 = 17, p2 = 18, p3 = 19, next0 = 20, next1 = 21, next2 = 22, next3 = 23,
    factors = 24, round = 25, constants = 26,
}

/// Copies a constant: a lane of `constants`, or a number within the instruction.
macro_rules! constant {
    ($lane:literal: $($to:ident)*) => {
        concat!($("dup v", r!($to), ".4s, v", r!(constants), ".s[", $lane, "]\n",)*)
    };
    (# $number:literal: $($to:ident)*) => {
        concat!($("fmov v", r!($to), ".4s, #", $number, "\n",)*)
    };
}

/// One instruction for each of four vectors.
macro_rules! each {
    ($name:literal $($to:ident $a:ident $b:ident),*) => {
        concat!($(floats!($name $to $a $b),)*)
    };
}

/// One instruction for each of several registers, with one lane of `factors`.
macro_rules! each_by_lane {
    ($name:literal $lane:literal: $($to:ident $a:ident),*) => {
        concat!($(floats_by_lane!($name $to $a factors $lane),)*)
    };
}

/// Makes a power of two from the integer in a float's low bits.
macro_rules! to_power {
    ($($power:ident)*) => {
        concat!($("shl v", r!($power), ".4s, v", r!($power), ".4s, #23\n",)*)
    };
}

/// A polynomial's next step: a constant less products with the remainder of `y`.
macro_rules! horner {
    ($(# $number:literal)? $($lane:literal)?: $a:ident $b:ident $c:ident $d:ident
     from $e:ident $f:ident $g:ident $h:ident) => {
        concat!(
            constant!($(# $number)? $($lane)?: $a $b $c $d),
            each!("fmls" $a $e y0, $b $f y1, $c $g y2, $d $h y3),
        )
    };
}

/// [`float::exp_to_one`] of `-y`, for `y` up to `-EXP_LEAST`. It computes with `-r`, which has exactly the magnitude of
/// `r`.
#[target_feature(enable = "neon")]
#[inline]
fn exp_of_negative(y: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let (factors, constants) = (load_floats(&FACTORS), load_floats(&CONSTANTS));
    let (a, b, c, d);
    // SAFETY: these instructions are in ARMv8.0 and use only named registers.
    unsafe {
        asm!(
            constant!(0: power0 power1 power2 power3),
            each_by_lane!("fmls" 0: power0 y0, power1 y1, power2 y2, power3 y3),
            each!("fsub" whole0 power0 round, whole1 power1 round, whole2 power2 round, whole3 power3 round),
            to_power!(power0 power1 power2 power3),
            each_by_lane!("fmla" 1: y0 whole0, y1 whole1, y2 whole2, y3 whole3),
            each_by_lane!("fmla" 2: y0 whole0, y1 whole1, y2 whole2, y3 whole3),
            constant!(1: p0 p1 p2 p3),
            each_by_lane!("fmls" 3: p0 y0, p1 y1, p2 y2, p3 y3),
            horner!(2: next0 next1 next2 next3 from p0 p1 p2 p3),
            horner!(3: p0 p1 p2 p3 from next0 next1 next2 next3),
            horner!(#1.0: next0 next1 next2 next3 from p0 p1 p2 p3),
            horner!(#2.0: p0 p1 p2 p3 from next0 next1 next2 next3),
            horner!(#2.0: next0 next1 next2 next3 from p0 p1 p2 p3),
            each!("fmul" next0 next0 power0, next1 next1 power1, next2 next2 power2, next3 next3 power3),
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

/// See [`float::soften_4`]. Operations across lanes serve all queries at once. The largest score may be a zero of the
/// other sign than [`float::soften`]'s; differences from it are the same.
#[target_feature(enable = "neon")]
pub(super) fn soften_4(scores: ScoresMut4<'_>, states: [&mut Softmax; 4]) -> [f32; 4] {
    let before = states.each_ref().map(|state| state.max);
    // SAFETY: `before` is four readable floats.
    let before = unsafe { vld1q_f32(before.as_ptr()) };
    // `vpmaxnmq` returns the number if the other operand is a NaN.
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

/// Four numbers that include the largest of a block's scores.
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
