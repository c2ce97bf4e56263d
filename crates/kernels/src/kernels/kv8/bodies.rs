//! Attention to int8 keys and values, written once for all tiers, which differ in how they multiply bytes.

use super::super::float::{BLOCK, fma};

/// The functions of a tier, compiled with `$attr` (its target features). The caller has in scope:
///
/// - `widen` and `largest`, as for `float_kernels!`;
/// - `Sums`, 16 sums of i32; `sums_from`, which sets all to one number; and `floats`, their values;
/// - `load_keys` and `load_values`, which give a `Line` of a `KvLine`;
/// - `add_keys`, which adds to each sum the products of four bytes of the line and of a query. Keys have a bias of
///   128 if `$has_bias`; `$halves` lines of 16 keys are taken at once, and `$at_once` queries (4, 2 or 1) have two
///   `Sums` each in registers;
/// - `in_order`, which keeps a compiler from adding all products of one sum before those of the next, where each
///   addition would wait for the one before;
/// - `add_values`, like `add_keys` with bytes of values and of codes, which are not negative.
macro_rules! int8_kernels {
    ($fma:expr, $has_bias:literal, $halves:literal, $at_once:literal $(, #[$attr:meta])?) => {
        $(#[$attr])?
        pub(super) fn score_i8(
            q: $crate::kernels::kv8::KeyQuery<'_>,
            keys: &[$crate::kernels::kv8::KvLine],
            scale: f32,
            out: &mut [f32; $crate::kernels::float::BLOCK],
        ) {
            scores_i8([q], keys, scale, [out]);
        }

        $(#[$attr])?
        pub(super) fn score_i8_4(
            q: [$crate::kernels::kv8::KeyQuery<'_>; 4],
            keys: &[$crate::kernels::kv8::KvLine],
            scale: f32,
            out: [&mut [f32; $crate::kernels::float::BLOCK]; 4],
        ) {
            scores_i8(q, keys, scale, out);
        }

        /// Scores of queries for a block of keys.
        $(#[$attr])?
        #[inline]
        fn scores_i8<const N: usize>(
            q: [$crate::kernels::kv8::KeyQuery<'_>; N],
            keys: &[$crate::kernels::kv8::KvLine],
            scale: f32,
            out: [&mut [f32; $crate::kernels::float::BLOCK]; N],
        ) {
            use $crate::kernels::kv8::{KEY_LINES, KvLine};
            let mut scores = [[0.0; $crate::kernels::float::BLOCK]; N];
            let (whole, rest) = keys.as_chunks::<KEY_LINES>();
            for (g, keys) in whole.iter().enumerate() {
                score_group_i8(&q, g, keys, &mut scores);
            }
            if !rest.is_empty() {
                let mut keys = [KvLine::ZERO; KEY_LINES];
                keys[..rest.len()].copy_from_slice(rest);
                score_group_i8(&q, whole.len(), &keys, &mut scores);
            }
            for (out, scores) in out.into_iter().zip(scores) {
                for (out, score) in out.iter_mut().zip(scores) {
                    *out = score * scale;
                }
            }
        }

        /// Adds the products of a group of columns.
        $(#[$attr])?
        #[inline]
        fn score_group_i8<const N: usize>(
            q: &[$crate::kernels::kv8::KeyQuery<'_>; N],
            g: usize,
            keys: &[$crate::kernels::kv8::KvLine; $crate::kernels::kv8::KEY_LINES],
            scores: &mut [[f32; $crate::kernels::float::BLOCK]; N],
        ) {
            let mut scales = [0.0; $crate::kernels::float::BLOCK];
            widen(keys[0].scales(), &mut scales);
            let mut quads = [&q[0].q[g]; N];
            for i in 1..N {
                quads[i] = &q[i].q[g];
            }
            let lines = keys[1..].as_chunks::<2>().0;
            for from in (0..2).step_by($halves) {
                let mut sums = [[sums_from(0); $halves]; N];
                if $has_bias {
                    for i in 0..N {
                        sums[i] = [sums_from(q[i].biases[g]); $halves];
                    }
                }
                for (c, lines) in lines.iter().enumerate() {
                    for half in 0..$halves {
                        let line = load_keys(&lines[from + half]);
                        for i in 0..N {
                            sums[i][half] = add_keys(sums[i][half], line, quads[i][c]);
                        }
                    }
                    in_order(sums.as_flattened_mut());
                }
                for i in 0..N {
                    let (scales, scores) =
                        (scales.as_chunks::<16>().0, scores[i].as_chunks_mut::<16>().0);
                    for half in from..from + $halves {
                        let (d, q_scale) = (floats(sums[i][half - from]), q[i].scales[g]);
                        $crate::kernels::kv8::bodies::add_scaled::<{ $fma }>(
                            &mut scores[half], &d, &scales[half], q_scale,
                        );
                    }
                }
            }
        }

        $(#[$attr])?
        pub(super) fn weigh_i8(
            weights: &[f32; $crate::kernels::float::BLOCK],
            values: &[$crate::kernels::kv8::KvLine],
            correction: f32,
            out: &mut [f32],
        ) {
            weighed_i8([weights], values, [correction], [out]);
        }

        $(#[$attr])?
        pub(super) fn weigh_i8_4(
            weights: [&[f32; $crate::kernels::float::BLOCK]; 4],
            values: &[$crate::kernels::kv8::KvLine],
            corrections: [f32; 4],
            out: [&mut [f32]; 4],
        ) {
            let ([a, b, c, d], [ya, yb, yc, yd]) = (weights, out);
            let [ca, cb, cc, cd] = corrections;
            match $at_once {
                4 => weighed_i8([a, b, c, d], values, corrections, [ya, yb, yc, yd]),
                2 => {
                    weighed_i8([a, b], values, [ca, cb], [ya, yb]);
                    weighed_i8([c, d], values, [cc, cd], [yc, yd]);
                }
                _ => {
                    weighed_i8([a], values, [ca], [ya]);
                    weighed_i8([b], values, [cb], [yb]);
                    weighed_i8([c], values, [cc], [yc]);
                    weighed_i8([d], values, [cd], [yd]);
                }
            }
        }

        /// Adds a block of a group's values times weights.
        $(#[$attr])?
        #[inline]
        fn weighed_i8<const N: usize>(
            weights: [&[f32; $crate::kernels::float::BLOCK]; N],
            values: &[$crate::kernels::kv8::KvLine],
            corrections: [f32; N],
            out: [&mut [f32]; N],
        ) {
            use $crate::kernels::kv8::{Codes, TILE_LINES, bodies};
            let mut scales = [0.0; $crate::kernels::float::BLOCK];
            widen(values[0].scales(), &mut scales);
            let mut codes = [Codes::ZERO; N];
            for i in 0..N {
                codes[i].set(weights[i], &scales, |x| largest(x));
            }
            for (t, tile) in values[1..].as_chunks::<TILE_LINES>().0.iter().enumerate() {
                // Keeps the compiler from storing a vector for each code of all queries before the loop.
                let codes = std::hint::black_box(&codes);
                let mut sums = [[sums_from(0); 2]; N];
                for (j, line) in tile.iter().enumerate() {
                    let line = load_values(line);
                    for i in 0..N {
                        sums[i][0] = add_values(sums[i][0], line, codes[i].high[j]);
                        sums[i][1] = add_values(sums[i][1], line, codes[i].low[j]);
                    }
                    in_order(sums.as_flattened_mut());
                }
                for i in 0..N {
                    let d = floats(joined(sums[i]));
                    let out = &mut out[i][16 * t..];
                    bodies::add_tile::<{ $fma }>(out, &d, codes[i].step, corrections[i]);
                }
            }
        }
    };
}

pub(in crate::kernels) use int8_kernels;

/// Adds a group's products to the scores of 16 positions.
#[inline(always)]
pub(in crate::kernels) fn add_scaled<const FMA: bool>(
    scores: &mut [f32; BLOCK / 2],
    d: &[f32; 16],
    key_scales: &[f32; 16],
    query_scale: f32,
) {
    for i in 0..16 {
        scores[i] = fma::<FMA>(d[i] * key_scales[i], query_scale, scores[i]);
    }
}

/// Adds products to the first 16 of `out`, or to all if there are fewer.
#[inline(always)]
pub(in crate::kernels) fn add_tile<const FMA: bool>(
    out: &mut [f32],
    d: &[f32; 16],
    step: f32,
    correction: f32,
) {
    if let Some(out) = out.first_chunk_mut::<16>() {
        for i in 0..16 {
            out[i] = fma::<FMA>(d[i], step, out[i] * correction);
        }
    } else {
        for (out, d) in out.iter_mut().zip(d) {
            *out = fma::<FMA>(*d, step, *out * correction);
        }
    }
}
