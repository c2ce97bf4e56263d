//! Macros that begin a tier's file: its table, and float kernels compiled for its features.

/// A tier's table, and those of its functions whose bodies `float.rs` has, compiled with `$attr` (its target features).
/// The tier's file has the table's other functions, and `dots`, `largest` and `round`, which the bodies call.
macro_rules! float_kernels {
    ($fma:expr, $packed:expr $(, #[$attr:meta])?) => {
        $(#[$attr])?
        pub(super) fn dot_f32_f32_f32_1x4(x: &[f32], w: [&[f32]; 4]) -> [f32; 4] {
            dots(x, w)
        }

        $(#[$attr])?
        pub(super) fn quantize_q8(x: &[f32], group: usize, q: &mut [i8], scales: &mut [f32]) {
            let round = |x: &[_], factor, q: &mut [_]| round(x, factor, q);
            $crate::kernels::float::quantize_q8(x, group, q, scales, |x| largest(x), round);
        }

        $(#[$attr])?
        pub(super) fn quantize_kv(x: &[[f32; 32]], q: &mut [[i8; 32]]) -> half::f16 {
            let round = |x: &[_], factor, q: &mut [_]| round(x, factor, q);
            $crate::kernels::kv8::quantize_kv(x, q, |x| largest(x), round)
        }

        $(#[$attr])?
        pub(super) fn biases(q: &[i8], group: usize, biases: &mut [i32]) {
            $crate::kernels::float::biases(q, group, biases);
        }

        $(#[$attr])?
        pub(super) fn unpack_b6(
            layout: $crate::kernels::packed::layout::Layout,
            steps: &[u8],
            blocks: &[u8],
            out: &mut [u8],
        ) {
            $crate::kernels::packed::six::unpack(layout, steps, blocks, out);
        }

        $(#[$attr])?
        pub(super) fn add_offsets(
            layout: $crate::kernels::packed::layout::Layout,
            offsets: $crate::kernels::packed::ggml::Offsets<'_>,
            x: &$crate::kernels::packed::tile::Q8Tile<'_>,
            out: &mut [f32],
        ) {
            $crate::kernels::packed::ggml::add_offsets::<{ $fma }>(layout, offsets, x, out);
        }

        $(#[$attr])?
        pub(super) fn sum_q8(q: &[i8], sums: &mut [i32]) {
            $crate::kernels::float::sum_q8(q, sums);
        }

        $(#[$attr])?
        pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
            $crate::kernels::float::rms_norm(x, weight, eps, out, |x, rows| dots(x, rows));
        }

        $(#[$attr])?
        pub(super) fn rope(x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
            $crate::kernels::float::rope::<{ $fma }>(x, head_dim, cos, sin);
        }

        $(#[$attr])?
        pub(super) fn add(x: &mut [f32], y: &[f32]) {
            $crate::kernels::float::add(x, y);
        }

        $(#[$attr])?
        pub(super) fn score(q: &[f32], keys: &[f32], scale: f32, out: &mut [f32]) {
            $crate::kernels::float::score(q, keys, scale, out, |x, y| dots(x, y), |x, y| dots(x, y));
        }

        $(#[$attr])?
        pub(super) fn soften(
            scores: &mut [f32; $crate::kernels::float::BLOCK],
            state: &mut $crate::kernels::float::Softmax,
        ) -> f32 {
            $crate::kernels::float::soften::<{ $fma }>(scores, state)
        }

        $(#[$attr])?
        pub(super) fn weigh(weights: &[f32], values: &[f32], correction: f32, out: &mut [f32]) {
            $crate::kernels::float::weigh::<{ $fma }>(weights, values, correction, out);
        }

        $(#[$attr])?
        pub(super) fn gelu(x: &[f32], out: &mut [f32]) {
            $crate::kernels::float::gelu(x, out);
        }

        $(#[$attr])?
        pub(super) fn convolve(
            inputs: &[&[f32]],
            convolution: $crate::kernels::recurrence::Convolution<'_>,
            out: &mut [f32],
        ) {
            $crate::kernels::recurrence::convolve::<{ $fma }>(inputs, convolution, out);
        }

        $(#[$attr])?
        pub(super) fn steps(x: &mut [f32], bias: &[f32]) {
            $crate::kernels::recurrence::steps::<{ $fma }>(x, bias);
        }

        $(#[$attr])?
        pub(super) fn scan(
            steps: &[$crate::kernels::recurrence::ScanStep<'_>],
            factors: (f32, f32),
            state: &mut [f32],
            out: &mut [f32],
        ) {
            $crate::kernels::recurrence::scan::<{ $fma }>(steps, factors, state, out);
        }

        $(#[$attr])?
        pub(super) fn gate(gate: &[f32], out: &mut [f32]) {
            $crate::kernels::recurrence::gate::<{ $fma }>(gate, out);
        }

        $(#[$attr])?
        pub(super) fn delta_controls(controls: &mut [f32], decay: &[f32], bias: &[f32]) {
            $crate::kernels::recurrence::delta_controls::<{ $fma }>(controls, decay, bias);
        }

        $(#[$attr])?
        pub(super) fn delta_rule(
            steps: &[$crate::kernels::recurrence::DeltaStep<'_>],
            state: &mut [f32],
            out: &mut [f32],
        ) {
            $crate::kernels::recurrence::delta_rule::<{ $fma }>(steps, state, out);
        }

        /// The tier's functions.
        pub(super) static TABLE: $crate::kernels::table::Table = $crate::kernels::table::Table {
            dot_q8_q8_f32_1x4,
            dot_q8_q8_f32_4x4,
            dot_q8_q4_f32_1x4,
            dot_q8_q4_f32_4x4,
            dot_f32_f32_f32_1x4,
            quantize_q8,
            sum_q8,
            rms_norm,
            rope,
            swiglu,
            add,
            convolve,
            gate,
            gelu,
            delta_controls,
            delta_rule,
            steps,
            scan,
            score,
            soften,
            weigh,
            score_4,
            soften_4,
            weigh_4,
            block_scores: None,
            score_i8,
            score_i8_4,
            weigh_i8,
            weigh_i8_4,
            quantize_kv,
            widen,
            narrow,
            read_all,
            spin_int8,
            biases,
            unpack_b6,
            add_offsets,
            packed: $packed,
        };
    };
}

/// `score_4` with a tier's `dots44`, and `weigh_4`, `soften_4` and `swiglu` with the bodies of `float.rs`, for tiers
/// without code of their own.
macro_rules! tile_kernels {
    ($fma:expr $(, #[$attr:meta])?) => {
        $(#[$attr])?
        pub(super) fn score_4(q: [&[f32]; 4], keys: &[f32], scale: f32, out: [&mut [f32]; 4]) {
            let dots = |x: &[f32], row: [&[f32]; 1]| dots(x, row);
            $crate::kernels::float::score_4(q, keys, scale, out, dots, |q, keys| dots44(q, keys));
        }

        $(#[$attr])?
        pub(super) fn weigh_4(
            weights: [&[f32]; 4],
            values: &[f32],
            corrections: [f32; 4],
            out: [&mut [f32]; 4],
        ) {
            $crate::kernels::float::weigh_4::<{ $fma }, 16>(weights, values, corrections, 0, out);
        }

        $(#[$attr])?
        pub(super) fn soften_4(
            scores: $crate::kernels::float::ScoresMut4<'_>,
            states: [&mut $crate::kernels::float::Softmax; 4],
        ) -> [f32; 4] {
            $crate::kernels::float::soften_4::<{ $fma }>(scores, states)
        }

        $(#[$attr])?
        pub(super) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
            $crate::kernels::float::swiglu::<{ $fma }>(gate, up, out);
        }
    };
}

pub(super) use {float_kernels, tile_kernels};
