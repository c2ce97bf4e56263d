//! Attention of four queries. A compiler loads and checks more than it multiplies here, so the loops
//! are written in assembly.

use std::arch::asm;

use super::super::float::{self, LANES};
use super::super::neondot::gemm::{floats, floats_by_lane};
use super::vectors::dots;

/// Begins the sums of a query and a key with products of 16 floats, or adds these.
macro_rules! add_lanes {
    ($name:literal $a:literal $b:literal $c:literal $d:literal:
     $e:literal $f:literal $g:literal $h:literal, $i:literal $j:literal $k:literal $l:literal) => {
        concat!(
            floats!($name $a $e $i),
            floats!($name $b $f $j),
            floats!($name $c $g $k),
            floats!($name $d $h $l),
        )
    };
}

/// The same for two queries and two keys, and their next 16 floats.
macro_rules! add_lanes_2x2 {
    ($name:literal) => {
        concat!(
            "ld1 {{v16.4s, v17.4s, v18.4s, v19.4s}}, [{key}], #64\n",
            "ld1 {{v24.4s, v25.4s, v26.4s, v27.4s}}, [{a}], #64\n",
            add_lanes!($name 0 1 2 3: 16 17 18 19, 24 25 26 27),
            "ld1 {{v20.4s, v21.4s, v22.4s, v23.4s}}, [{next}], #64\n",
            add_lanes!($name 4 5 6 7: 20 21 22 23, 24 25 26 27),
            "ld1 {{v28.4s, v29.4s, v30.4s, v31.4s}}, [{b}], #64\n",
            add_lanes!($name 8 9 10 11: 16 17 18 19, 28 29 30 31),
            add_lanes!($name 12 13 14 15: 20 21 22 23, 28 29 30 31),
        )
    };
}

/// Joins sums to four, in the first register.
macro_rules! join {
    ($a:literal $b:literal $c:literal $d:literal) => {
        concat!(floats!("fadd" $a $a $c), floats!("fadd" $b $b $d), floats!("fadd" $a $a $b))
    };
}

/// Loads what was summed before times a correction.
macro_rules! correct {
    ($y:literal $a:literal $b:literal $c:literal $d:literal, $lane:literal) => {
        concat!(
            "ld1 {{v", $a, ".4s, v", $b, ".4s, v", $c, ".4s, v", $d, ".4s}}, [{", $y, "}]\n",
            floats_by_lane!("fmul" $a $a 24 $lane),
            floats_by_lane!("fmul" $b $b 24 $lane),
            floats_by_lane!("fmul" $c $c 24 $lane),
            floats_by_lane!("fmul" $d $d 24 $lane),
        )
    };
}

/// Adds the values of a position times a lane of each query's weights, by way of four registers.
macro_rules! add_values {
    ($lane:literal: $a:literal $b:literal $c:literal $d:literal) => {
        concat!(
            "ld1 {{v", $a, ".4s, v", $b, ".4s, v", $c, ".4s, v", $d, ".4s}}, [{values}], {stride}\n",
            weigh!(16 $lane: $a 0, $b 1, $c 2, $d 3),
            weigh!(17 $lane: $a 4, $b 5, $c 6, $d 7),
            weigh!(18 $lane: $a 8, $b 9, $c 10, $d 11),
            weigh!(19 $lane: $a 12, $b 13, $c 14, $d 15),
        )
    };
}

macro_rules! weigh {
    ($weights:literal $lane:literal: $($value:literal $sum:literal),*) => {
        concat!($(floats_by_lane!("fmla" $sum $value $weights $lane),)*)
    };
}

/// See [`float::score_4`].
#[target_feature(enable = "neon")]
pub(super) fn score_4(q: [&[f32]; 4], keys: &[f32], scale: f32, out: [&mut [f32]; 4]) {
    let head_dim = q[0].len();
    if head_dim < 2 * LANES || !head_dim.is_multiple_of(LANES) {
        for (q, out) in q.into_iter().zip(out) {
            float::score(q, keys, scale, out, |x, y| dots(x, y), |x, y| dots(x, y));
        }
        return;
    }
    let ([a, b, c, d], [y0, y1, y2, y3]) = (q, out);
    score_2([a, b], keys, scale, [y0, y1]);
    score_2([c, d], keys, scale, [y2, y3]);
}

/// Scores of two queries, two keys at a time. Sums begin with products rather than with zeros these
/// are added to: that can change the sign of a score of zero, and no weight for it.
#[target_feature(enable = "neon")]
fn score_2(q: [&[f32]; 2], keys: &[f32], scale: f32, out: [&mut [f32]; 2]) {
    let head_dim = q[0].len();
    let (n, rounds) = (keys.len() / head_dim, head_dim / (2 * LANES));
    let [a, b] = out;
    if n >= 2 {
        assert!(rounds != 0);
        assert!(head_dim.is_multiple_of(LANES));
        assert!(q[1].len() == head_dim);
        assert!(a.len() >= n);
        assert!(b.len() >= n);
        // SAFETY: for each two of `n` keys this reads both, each of the queries, and writes two floats
        // of each output; of rows, which are whole 16 floats and 32 at least, 16 and then, in `rounds`
        // of 32 that may begin in their middle, the others. So many were found to be there. Everything
        // else is registers that are named.
        unsafe {
            asm!(
                "2:",
                "mov {a}, {a_first}",
                "mov {b}, {b_first}",
                "add {next}, {key}, {key_bytes}",
                "mov {round}, {rounds}",
                add_lanes_2x2!("fmul"),
                // What is left of an even number of 16 floats is an odd one.
                "tbz {key_bytes}, #6, 4f",
                "3:",
                add_lanes_2x2!("fmla"),
                "4:",
                add_lanes_2x2!("fmla"),
                "subs {round}, {round}, #1",
                "b.ne 3b",
                "mov {key}, {next}",
                concat!(
                    join!(0 1 2 3), join!(4 5 6 7), join!(8 9 10 11), join!(12 13 14 15),
                ),
                "faddp v0.4s, v0.4s, v4.4s",
                "faddp v8.4s, v8.4s, v12.4s",
                "faddp v0.4s, v0.4s, v8.4s",
                "dup v1.4s, {scale:w}",
                "fmul v0.4s, v0.4s, v1.4s",
                "str d0, [{out_a}], #8",
                "st1 {{v0.d}}[1], [{out_b}], #8",
                "subs {pairs}, {pairs}, #1",
                "b.ne 2b",
                key = inout(reg) keys.as_ptr() => _, next = out(reg) _,
                a_first = in(reg) q[0].as_ptr(), b_first = in(reg) q[1].as_ptr(),
                a = out(reg) _, b = out(reg) _, key_bytes = in(reg) 4 * head_dim,
                out_a = inout(reg) a.as_mut_ptr() => _, out_b = inout(reg) b.as_mut_ptr() => _,
                pairs = inout(reg) n / 2 => _, rounds = in(reg) rounds, round = out(reg) _,
                scale = in(reg) scale.to_bits(),
                out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
                out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _,
                out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _,
                out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _,
                out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
                options(nostack)
            );
        }
    }
    if !n.is_multiple_of(2) {
        let key = &keys[(n - 1) * head_dim..][..head_dim];
        a[n - 1] = dots(q[0], [key])[0] * scale;
        b[n - 1] = dots(q[1], [key])[0] * scale;
    }
}

/// See [`float::weigh_4`].
#[target_feature(enable = "neon")]
pub(super) fn weigh_4(
    weights: [&[f32]; 4],
    values: &[f32],
    corrections: [f32; 4],
    mut out: [&mut [f32]; 4],
) {
    let head_dim = out[0].len();
    let whole = head_dim / LANES * LANES;
    if whole != 0 {
        weigh_lanes(weights, values, &corrections, out.each_mut().map(|out| &mut **out));
    }
    if whole != head_dim {
        float::weigh_4::<true, LANES>(weights, values, corrections, whole, out);
    }
}

/// All whole [`LANES`] of columns of four queries, 16 at a time.
#[target_feature(enable = "neon")]
fn weigh_lanes(weights: [&[f32]; 4], values: &[f32], corrections: &[f32; 4], out: [&mut [f32]; 4]) {
    let head_dim = out[0].len();
    let n = values.len() / head_dim;
    assert!(head_dim >= LANES);
    assert!(weights.iter().all(|weights| weights.len() >= n));
    assert!(out.iter().all(|out| out.len() == head_dim));
    let ([a, b, c, d], [y0, y1, y2, y3]) = (weights, out);
    // SAFETY: for each whole 16 columns, of which there is one at least, this reads and writes 16 floats
    // of each output, reads four corrections, and for each of `n` positions a weight of each query, and
    // 16 of `values`. So many were found to be there. Everything else is registers that are named.
    unsafe {
        asm!(
            "1:",
            "ldr q24, [{corrections}]",
            concat!(
                correct!("y0" 0 1 2 3, 0), correct!("y1" 4 5 6 7, 1),
                correct!("y2" 8 9 10 11, 2), correct!("y3" 12 13 14 15, 3),
            ),
            "ands {left}, {n}, #-4",
            "b.eq 3f",
            "2:",
            "ldr q16, [{a}], #16",
            "ldr q17, [{b}], #16",
            "ldr q18, [{c}], #16",
            "ldr q19, [{d}], #16",
            concat!(
                add_values!(0: 20 21 22 23), add_values!(1: 24 25 26 27),
                add_values!(2: 20 21 22 23), add_values!(3: 24 25 26 27),
            ),
            "subs {left}, {left}, #4",
            "b.ne 2b",
            "3:",
            "ands {left}, {n}, #3",
            "b.eq 5f",
            "4:",
            "ldr s16, [{a}], #4",
            "ldr s17, [{b}], #4",
            "ldr s18, [{c}], #4",
            "ldr s19, [{d}], #4",
            add_values!(0: 20 21 22 23),
            "subs {left}, {left}, #1",
            "b.ne 4b",
            "5:",
            "st1 {{v0.4s, v1.4s, v2.4s, v3.4s}}, [{y0}], #64",
            "st1 {{v4.4s, v5.4s, v6.4s, v7.4s}}, [{y1}], #64",
            "st1 {{v8.4s, v9.4s, v10.4s, v11.4s}}, [{y2}], #64",
            "st1 {{v12.4s, v13.4s, v14.4s, v15.4s}}, [{y3}], #64",
            "sub {a}, {a}, {n}, lsl #2",
            "sub {b}, {b}, {n}, lsl #2",
            "sub {c}, {c}, {n}, lsl #2",
            "sub {d}, {d}, {n}, lsl #2",
            "add {values}, {values}, {to_next}",
            "subs {columns}, {columns}, #1",
            "b.ne 1b",
            a = inout(reg) a.as_ptr() => _, b = inout(reg) b.as_ptr() => _,
            c = inout(reg) c.as_ptr() => _, d = inout(reg) d.as_ptr() => _,
            values = inout(reg) values.as_ptr() => _, stride = in(reg) 4 * head_dim,
            // From behind the last position's 16 columns to the first one's next.
            to_next = in(reg) 64_usize.wrapping_sub(4 * head_dim * n),
            y0 = inout(reg) y0.as_mut_ptr() => _, y1 = inout(reg) y1.as_mut_ptr() => _,
            y2 = inout(reg) y2.as_mut_ptr() => _, y3 = inout(reg) y3.as_mut_ptr() => _,
            corrections = in(reg) corrections.as_ptr(), n = in(reg) n, left = out(reg) _,
            columns = inout(reg) head_dim / LANES => _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
            out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _,
            out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _,
            out("v24") _, out("v25") _, out("v26") _, out("v27") _,
            options(nostack)
        );
    }
}
