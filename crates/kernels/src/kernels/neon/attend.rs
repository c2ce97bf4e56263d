//! Attention of four queries, in assembly: compiled loops would load and check more than they multiply.

use std::arch::asm;

use super::super::float::{self, LANES};
use super::registers::{floats, floats_by_lane, load_4, registers, store_4};
use super::vectors::dots;

registers! {
    // Scores: 16 running sums of a query `a` or `b` with a key, or with the next key.
    a0 = 0, a1 = 1, a2 = 2, a3 = 3, a_next0 = 4, a_next1 = 5, a_next2 = 6, a_next3 = 7,
    b0 = 8, b1 = 9, b2 = 10, b3 = 11, b_next0 = 12, b_next1 = 13, b_next2 = 14, b_next3 = 15,
    // 16 floats of the keys and of the queries.
    key0 = 16, key1 = 17, key2 = 18, key3 = 19, next0 = 20, next1 = 21, next2 = 22, next3 = 23,
    qa0 = 24, qa1 = 25, qa2 = 26, qa3 = 27, qb0 = 28, qb1 = 29, qb2 = 30, qb3 = 31,
    // When sums are joined: factor of scores.
    scale = 1,
    // Values: sums of four queries, 16 columns each.
    ya0 = 0, ya1 = 1, ya2 = 2, ya3 = 3, yb0 = 4, yb1 = 5, yb2 = 6, yb3 = 7,
    yc0 = 8, yc1 = 9, yc2 = 10, yc3 = 11, yd0 = 12, yd1 = 13, yd2 = 14, yd3 = 15,
    // Each query's weights of four positions; values of a position and of the next one; corrections of all queries, at
    // the end of a block.
    weights_a = 16, weights_b = 17, weights_c = 18, weights_d = 19,
    v0 = 20, v1 = 21, v2 = 22, v3 = 23, w0 = 24, w1 = 25, w2 = 26, w3 = 27,
    corrections = 24,
}

/// Begins or continues the sums of a query and a key with products of 16 floats.
macro_rules! add_lanes {
    ($name:literal $a:ident $b:ident $c:ident $d:ident:
     $e:ident $f:ident $g:ident $h:ident, $i:ident $j:ident $k:ident $l:ident) => {
        concat!(
            floats!($name $a $e $i),
            floats!($name $b $f $j),
            floats!($name $c $g $k),
            floats!($name $d $h $l),
        )
    };
}

/// Adds the products of two queries and two keys, 16 floats each.
macro_rules! add_lanes_2x2 {
    ($name:literal) => {
        concat!(
            load_4!("4s" key0 key1 key2 key3, "key", "#64"),
            load_4!("4s" qa0 qa1 qa2 qa3, "a", "#64"),
            add_lanes!($name a0 a1 a2 a3: key0 key1 key2 key3, qa0 qa1 qa2 qa3),
            load_4!("4s" next0 next1 next2 next3, "next", "#64"),
            add_lanes!($name a_next0 a_next1 a_next2 a_next3: next0 next1 next2 next3, qa0 qa1 qa2 qa3),
            load_4!("4s" qb0 qb1 qb2 qb3, "b", "#64"),
            add_lanes!($name b0 b1 b2 b3: key0 key1 key2 key3, qb0 qb1 qb2 qb3),
            add_lanes!($name b_next0 b_next1 b_next2 b_next3: next0 next1 next2 next3, qb0 qb1 qb2 qb3),
        )
    };
}

/// Joins 16 sums to four, in the first register.
macro_rules! join {
    ($a:ident $b:ident $c:ident $d:ident) => {
        concat!(floats!("fadd" $a $a $c), floats!("fadd" $b $b $d), floats!("fadd" $a $a $b))
    };
}

/// Sets a query's sums to zero.
macro_rules! begin_block {
    ($($sum:ident)*) => {
        concat!($("movi v", r!($sum), ".4s, #0\n",)*)
    };
}

/// Adds earlier sums, times a correction, to a block's sums, and stores them.
macro_rules! join_block {
    ($y:literal $a:ident $b:ident $c:ident $d:ident, $lane:literal) => {
        concat!(
            load_4!("4s" v0 v1 v2 v3, $y),
            floats_by_lane!("fmla" $a v0 corrections $lane),
            floats_by_lane!("fmla" $b v1 corrections $lane),
            floats_by_lane!("fmla" $c v2 corrections $lane),
            floats_by_lane!("fmla" $d v3 corrections $lane),
            store_4!($a $b $c $d, $y, "#64"),
        )
    };
}

/// Adds the values of a position times a lane of each query's weights, loaded into four registers.
macro_rules! add_values {
    ($lane:literal: $a:ident $b:ident $c:ident $d:ident) => {
        concat!(
            load_4!("4s" $a $b $c $d, "values", "{stride}"),
            weigh!(weights_a $lane: $a ya0, $b ya1, $c ya2, $d ya3),
            weigh!(weights_b $lane: $a yb0, $b yb1, $c yb2, $d yb3),
            weigh!(weights_c $lane: $a yc0, $b yc1, $c yc2, $d yc3),
            weigh!(weights_d $lane: $a yd0, $b yd1, $c yd2, $d yd3),
        )
    };
}

macro_rules! weigh {
    ($weights:ident $lane:literal: $($value:ident $sum:ident),*) => {
        concat!($(floats_by_lane!("fmla" $sum $value $weights $lane),)*)
    };
}

/// Loads weights of a query: four (`q`, `#16`), or one (`s`, `#4`).
macro_rules! load_weights {
    ($width:literal $weights:ident, $from:literal, $step:literal) => {
        concat!("ldr ", $width, r!($weights), ", [{", $from, "}], ", $step, "\n")
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

/// Scores of two queries, two keys at a time. Sums begin with products, not with zeros. This can change the sign of a
/// zero score, but no weight.
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
        // SAFETY: for each two of `n` keys this reads both keys and each query, and writes two floats of each output.
        // Rows are whole 16 floats, at least 32: it reads them as `rounds` of 32, after 16 more if their number is odd.
        // The lengths were checked above. Everything else is in named registers.
        unsafe {
            asm!(
                "2:",
                "mov {a}, {a_first}",
                "mov {b}, {b_first}",
                "add {next}, {key}, {key_bytes}",
                "mov {round}, {rounds}",
                add_lanes_2x2!("fmul"),
                // Rows of an odd number of 16 floats have 16 left.
                "tbz {key_bytes}, #6, 4f",
                "3:",
                add_lanes_2x2!("fmla"),
                "4:",
                add_lanes_2x2!("fmla"),
                "subs {round}, {round}, #1",
                "b.ne 3b",
                "mov {key}, {next}",
                concat!(
                    join!(a0 a1 a2 a3), join!(a_next0 a_next1 a_next2 a_next3),
                    join!(b0 b1 b2 b3), join!(b_next0 b_next1 b_next2 b_next3),
                ),
                floats!("faddp" a0 a0 a_next0),
                floats!("faddp" b0 b0 b_next0),
                floats!("faddp" a0 a0 b0),
                concat!("dup v", r!(scale), ".4s, {scale:w}"),
                floats!("fmul" a0 a0 scale),
                concat!("str d", r!(a0), ", [{out_a}], #8"),
                concat!("st1 {{v", r!(a0), ".d}}[1], [{out_b}], #8"),
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

/// [`weigh_4`] for all whole [`LANES`] of columns, 16 at a time.
#[target_feature(enable = "neon")]
fn weigh_lanes(weights: [&[f32]; 4], values: &[f32], corrections: &[f32; 4], out: [&mut [f32]; 4]) {
    let head_dim = out[0].len();
    let n = values.len() / head_dim;
    assert!(head_dim >= LANES);
    assert!(weights.iter().all(|weights| weights.len() >= n));
    assert!(out.iter().all(|out| out.len() == head_dim));
    let ([a, b, c, d], [ya, yb, yc, yd]) = (weights, out);
    // SAFETY: for each whole 16 columns, of which there is at least one, this reads and writes 16 floats of each
    // output, and reads four corrections; for each of `n` positions it reads a weight of each query and 16 of `values`.
    // The lengths were checked above. Everything else is in named registers.
    unsafe {
        asm!(
            "1:",
            concat!(
                begin_block!(ya0 ya1 ya2 ya3 yb0 yb1 yb2 yb3), begin_block!(yc0 yc1 yc2 yc3 yd0 yd1 yd2 yd3),
            ),
            "ands {left}, {n}, #-4",
            "b.eq 3f",
            "2:",
            load_weights!("q" weights_a, "a", "#16"),
            load_weights!("q" weights_b, "b", "#16"),
            load_weights!("q" weights_c, "c", "#16"),
            load_weights!("q" weights_d, "d", "#16"),
            concat!(
                add_values!(0: v0 v1 v2 v3), add_values!(1: w0 w1 w2 w3),
                add_values!(2: v0 v1 v2 v3), add_values!(3: w0 w1 w2 w3),
            ),
            "subs {left}, {left}, #4",
            "b.ne 2b",
            "3:",
            "ands {left}, {n}, #3",
            "b.eq 5f",
            "4:",
            load_weights!("s" weights_a, "a", "#4"),
            load_weights!("s" weights_b, "b", "#4"),
            load_weights!("s" weights_c, "c", "#4"),
            load_weights!("s" weights_d, "d", "#4"),
            add_values!(0: v0 v1 v2 v3),
            "subs {left}, {left}, #1",
            "b.ne 4b",
            "5:",
            concat!("ldr q", r!(corrections), ", [{corrections}]"),
            join_block!("ya" ya0 ya1 ya2 ya3, 0),
            join_block!("yb" yb0 yb1 yb2 yb3, 1),
            join_block!("yc" yc0 yc1 yc2 yc3, 2),
            join_block!("yd" yd0 yd1 yd2 yd3, 3),
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
            // Distance from the end of the last position's 16 columns to the first position's next columns.
            to_next = in(reg) 64_usize.wrapping_sub(4 * head_dim * n),
            ya = inout(reg) ya.as_mut_ptr() => _, yb = inout(reg) yb.as_mut_ptr() => _,
            yc = inout(reg) yc.as_mut_ptr() => _, yd = inout(reg) yd.as_mut_ptr() => _,
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
