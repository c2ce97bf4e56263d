#![allow(unsafe_code)]
//! The arithmetic, one table of functions per instruction set, chosen once at start.
//!
//! # One answer
//!
//! Every tier gives the same bits for the same input, floats included (a NaN is a NaN; which one
//! is not promised). So a ring of unequal boards gives one text, and a wrong answer in the field
//! can be blamed on a tier or cleared of it by forcing [`Isa::Scalar`]. The rules that make it so:
//!
//! - Products of floats are added by fused multiply-add, rounded once. Where the hardware has none
//!   the scalar tier computes it exactly through f64.
//! - A float dot product has [`LANES`] running sums; element `i` goes to sum `i % LANES`, a short
//!   tail is padded with zeros, and the sums are joined by one fixed tree. Against exact arithmetic
//!   it is off by at most `(k / LANES + 5) * 2^-24 * Σ|a·b|`.
//! - `exp` is one polynomial (within `1e-7` relative where the result is normal).
//! - A result never depends on how work is split: not on the batch size `m`, the tile shape, the
//!   rows a thread was given, the queries beside this one, or where a KV cache's runs are cut.
//!
//! # Int8
//!
//! Weights are any `i8` in groups along a row ([`Q8Matrix`]). Activations are quantised per row and
//! group, `s = max|x| / 127`, `q = round_half_even(x * (1 / s))`, and lie in `-127..=127`:
//!
//! - zeros, and values so small that `1 / s` overflows: `s = 0`, `q = 0`;
//! - a NaN or an infinity in the group: `s = NaN`, `q = 0`, so that it shows in the output.
//!
//! Groups of activations are those of the weights. An output starts at 0 and takes each group in
//! order, `d` being the exact sum of its products in `i32`, which a group of 65536 does not overflow
//! ([`GROUP_MAX`](crate::quant::GROUP_MAX)):
//!
//! ```text
//! y = fma(d as f32 * w_scale, x_scale, y)
//! ```
//!
//! # 4 bits
//!
//! Weights are blocks of 32 along a row, `w = code * multiplier + offset` ([`Bcml1Matrix`]);
//! activations are as above, their group one or more whole blocks
//! ([`activation_group`](crate::quant::bcml1::activation_group)). Of a block `b`, `D(b)` is the sum of
//! all `code * q` from the activation group's start to the end of `b`, and `s(b)` the sum of its own
//! `q`, both exact in `i32`; multiplier and offset are widened from f16 exactly:
//!
//! ```text
//! t = -0
//! t = fma(s(b), offset(b), t)                              for each b
//! t = fma(D(b), multiplier(b) - multiplier(b + 1), t)      where it is 0 behind the last
//! y = fma(t, x_scale, y)
//! ```
//!
//! which is the sum of `multiplier * d + offset * s` with `d` a block's own products, by parts: sums
//! go on where they would have to start anew.
//!
//! # Adding a tier
//!
//! A tier is a `Table` in a file of its own and an arm of [`Kernels::for_isa`]. `float.rs` holds
//! bodies written once and compiled for each tier's features; what a compiler makes no good vectors
//! of (int8 tiles, float dot products, quantising, f16 conversion) is written by hand. Tiles are 1
//! or 4 activation rows by 4 weight rows, from row-major weights as a file has them.

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
mod float;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neondot;
#[cfg(target_arch = "aarch64")]
mod neoni8mm;
mod packed;
pub mod peak;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod stream;
#[cfg(target_arch = "x86_64")]
mod ymm;
#[cfg(target_arch = "x86_64")]
mod zmm;

#[cfg(test)]
mod tests;

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

use half::f16;

use crate::quant::bcml1::{self, Block};
use crate::quant::{self, Bcml1Matrix, Q8Activations, Q8Matrix, Q8Row};

pub use attend::{Attended, HEAD_DIM_MAX, KvRun, QUERIES as ATTEND_QUERIES};
pub use float::LANES;
pub use packed::{GROUP_MAX as PACKED_GROUP_MAX, Layout, PackError, PackedQ4, PackedQ8, Q8Tiles};

/// An instruction set that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: runs everywhere and defines the right answer.
    Scalar,
    /// ARMv8.0 Advanced SIMD: Cortex-A53, A72.
    Neon,
    /// NEON with the dot product instructions: Cortex-A55, A76, A78AE.
    NeonDot,
    /// NEON with int8 matrix products too: Neoverse, Cortex-A510 and later.
    NeonI8mm,
    /// AVX2 with FMA and F16C: Haswell, Zen, N100.
    Avx2,
    /// AVX2 with AVX-VNNI: Alder Lake, N100.
    AvxVnni,
    /// AVX-512 with VNNI: Zen 4 and 5, servers.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set, the better ones of an architecture later.
    pub const ALL: &[Isa] = &[
        Isa::Scalar,
        Isa::Neon,
        Isa::NeonDot,
        Isa::NeonI8mm,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512Vnni,
    ];

    /// The name people use for it, as in `LEAP_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonDot => "neondot",
            Isa::NeonI8mm => "neoni8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512Vnni => "avx512vnni",
        }
    }

    /// How its kernels want weights packed; `None` if they take them as they are.
    pub fn layout(self) -> Option<Layout> {
        match self {
            Isa::Scalar => None,
            Isa::Neon => Some(Layout::NEON),
            Isa::NeonDot => Some(Layout::NEON_DOT),
            Isa::NeonI8mm => Some(Layout::NEON_I8MM),
            Isa::Avx2 => Some(Layout::AVX2),
            Isa::AvxVnni => Some(Layout::AVX_VNNI),
            Isa::Avx512Vnni => Some(Layout::AVX512_VNNI),
        }
    }

    /// The instruction set whose layout has this number.
    pub fn from_layout(id: u32) -> Option<Isa> {
        let has_id = |isa: &Isa| isa.layout().is_some_and(|layout| layout.id() == id);
        Isa::ALL.iter().copied().find(has_id)
    }

    /// The instruction set called `name`.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.iter().copied().find(|isa| isa.name() == name)
    }
}

/// Four rows of one operand.
type Rows4<'a> = [Q8Row<'a>; 4];

/// Rows of floats of four queries.
type Floats4<'a> = [&'a [f32]; 4];

/// The same to be written.
type FloatsMut4<'a> = [&'a mut [f32]; 4];

/// Four rows of 4-bit weights.
type Blocks4<'a> = [&'a [Block]; 4];

/// An activation row with the sums of each 32 of its values.
#[derive(Clone, Copy)]
struct SummedRow<'a> {
    row: Q8Row<'a>,
    sums: &'a [i32],
}

/// The functions of one tier. Callers have checked lengths; a function may assume what its method
/// in [`Kernels`] asserts, but breaks no memory if that is wrong.
struct Table {
    // One or four activation rows by four weight rows; the last argument is the activations' group.
    dot_q8_q8_f32_1x4: unsafe fn(&Q8Row<'_>, &Rows4<'_>, usize) -> [f32; 4],
    dot_q8_q8_f32_4x4: unsafe fn(&Rows4<'_>, &Rows4<'_>, usize) -> [[f32; 4]; 4],
    dot_q8_q4_f32_1x4: unsafe fn(&SummedRow<'_>, &Blocks4<'_>, usize) -> [f32; 4],
    dot_q8_q4_f32_4x4: unsafe fn(&[SummedRow<'_>; 4], &Blocks4<'_>, usize) -> [[f32; 4]; 4],
    dot_f32_f32_f32_1x4: unsafe fn(&[f32], [&[f32]; 4]) -> [f32; 4],
    quantize_q8: unsafe fn(&[f32], usize, &mut [i8], &mut [f32]),
    sum_q8: unsafe fn(&[i8], &mut [i32]),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    rope: unsafe fn(&mut [f32], usize, &[f32], &[f32]),
    swiglu: unsafe fn(&[f32], &[f32], &mut [f32]),
    add: unsafe fn(&mut [f32], &[f32]),
    score: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    soften: unsafe fn(&mut [f32; float::BLOCK], &mut float::Softmax) -> f32,
    weigh: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    // The same for four queries.
    score_4: unsafe fn(Floats4<'_>, &[f32], f32, FloatsMut4<'_>),
    soften_4: unsafe fn(float::ScoresMut4<'_>, [&mut float::Softmax; 4]) -> [f32; 4],
    weigh_4: unsafe fn(Floats4<'_>, &[f32], [f32; 4], FloatsMut4<'_>),
    /// Set where many queries take keys in another order.
    block_scores: Option<attend::BlockScores>,
    widen: unsafe fn(&[f16], &mut [f32]),
    narrow: unsafe fn(&[f32], &mut [f16]),
    read_all: unsafe fn(&[u8]) -> u64,
    spin_int8: unsafe fn(usize) -> i32,
    /// For each group, -128 * its sum: see [`packed`].
    biases: unsafe fn(&[i8], usize, &mut [i32]),
    /// `None` where weights are used as they are.
    packed: Option<packed::PackedTable>,
}

/// The kernels of one instruction set. One that exists can run on this CPU.
#[derive(Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    table: &'static Table,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa).finish()
    }
}

impl Kernels {
    /// The kernels for `isa`, or `None` if this CPU cannot run them.
    pub fn for_isa(isa: Isa) -> Option<Kernels> {
        let table = match isa {
            Isa::Scalar => &scalar::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c") =>
            {
                stream::better(&avx2::TABLE, &avx2::TABLE_PAST_L2)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni
                if Kernels::for_isa(Isa::Avx2).is_some() && is_x86_feature_detected!("avxvnni") =>
            {
                stream::better(&avxvnni::TABLE, &avxvnni::TABLE_PAST_L2)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni
                if Kernels::for_isa(Isa::Avx2).is_some()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni") =>
            {
                stream::better(&avx512vnni::TABLE, &avx512vnni::TABLE_PAST_L2)
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon if is_aarch64_feature_detected!("neon") => &neon::TABLE,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot
                if is_aarch64_feature_detected!("neon")
                    && is_aarch64_feature_detected!("dotprod") =>
            {
                &neondot::TABLE
            }
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm
                if Kernels::for_isa(Isa::NeonDot).is_some()
                    && is_aarch64_feature_detected!("i8mm") =>
            {
                &neoni8mm::TABLE
            }
            _ => return None,
        };
        Some(Kernels { isa, table })
    }

    /// The best kernels this CPU can run.
    pub fn best() -> Kernels {
        let scalar = Kernels { isa: Isa::Scalar, table: &scalar::TABLE };
        Isa::ALL.iter().rev().find_map(|isa| Kernels::for_isa(*isa)).unwrap_or(scalar)
    }

    /// The instruction set of these kernels.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `out = x · wᵀ`: weights `w` are `[rows, k]`, `x` is `[m, k]`, `out` has `m` rows.
    ///
    /// # Panics
    ///
    /// When `k` is 0, `w` or `x` is no whole number of rows, or `out` is not `m` rows of as many
    /// values as there are weight rows.
    pub fn matmul_f32(&self, w: &[f32], k: usize, x: &[f32], out: &mut [&mut [f32]]) {
        matmul::matmul_f32(self.table, w, k, x, out);
    }

    /// `out = x · wᵀ` of quantised rows, as the module describes. `out` has a row for each row of
    /// `x`, with a value for each row of `w`: threads take their own rows of `w`.
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or in their groups, or `out` has not that shape.
    pub fn matmul_q8(&self, w: Q8Matrix<'_>, x: Q8Activations<'_>, out: &mut [&mut [f32]]) {
        matmul::matmul_q8(self.table, w, x, out);
    }

    /// How these kernels want weights packed; `None` if they take them as they are.
    pub fn layout(&self) -> Option<Layout> {
        self.table.packed.as_ref().map(|packed| packed.layout)
    }

    /// Rows of activations that are taken together with packed weights.
    pub fn tile_rows(&self) -> usize {
        self.table.packed.as_ref().map_or(1, packed::PackedTable::mr)
    }

    /// Packs `w`, whole panels of a matrix or its end, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_q8`](Layout::bytes_q8).
    pub fn pack_q8(&self, w: Q8Matrix<'_>, out: &mut [u8]) {
        packed::pack_q8(self.table.packed().layout, w, out);
    }

    /// `out = x · wᵀ` as [`Kernels::matmul_q8`], to the bit, with packed weights.
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or in their groups, either is not in the layout of these
    /// kernels, or `out` is not `m` rows of as many values as there are weight rows.
    pub fn matmul_packed_q8(&self, w: PackedQ8<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul_q8(self.table.packed(), w, x, out);
    }

    /// Packs `w`, whole panels of a 4-bit matrix or its end, into `out`.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], or `out` is not as long as its
    /// [`bytes_q4`](Layout::bytes_q4).
    pub fn pack_q4(&self, w: Bcml1Matrix<'_>, out: &mut [u8]) {
        packed::pack_q4(self.table.packed().layout, w, out);
    }

    /// `out = x · wᵀ` as [`Kernels::matmul_q4`], to the bit, with packed weights.
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k` or are not in the layout of these kernels, `x` has no sums,
    /// or `out` is not `m` rows of as many values as there are weight rows.
    pub fn matmul_packed_q4(&self, w: PackedQ4<'_>, x: Q8Tiles<'_>, out: &mut [&mut [f32]]) {
        packed::matmul_q4(self.table.packed(), w, x, out);
    }

    /// As [`Kernels::quantize_tile_row`], for packed 4-bit weights: `group` is of the activations,
    /// `out` is values, scales and sums.
    ///
    /// # Panics
    ///
    /// As [`Kernels::quantize_tile_row`].
    pub fn quantize_tile_row_summed(
        &self,
        x: &[f32],
        place: (usize, usize),
        group: usize,
        out: (&mut [i8], &mut [f32], &mut [f32]),
    ) {
        packed::quantize_tile_row_summed(self.table, x, place, group, out);
    }

    /// Quantises `x`, a row of a tile of activations, for packed weights in groups of `group`.
    /// `place` is the row's number in the tile and how many rows that has, up to
    /// [`Kernels::tile_rows`]; `out` is the tile's part of what [`Q8Tiles`] joins: values, scales
    /// and zeros, which stay as they are where no kernel reads them.
    ///
    /// # Panics
    ///
    /// When there is no [`Kernels::layout`], the group cannot be packed or does not divide the row,
    /// the tile has no such row or is too high, or the lengths do not fit together.
    pub fn quantize_tile_row(
        &self,
        x: &[f32],
        place: (usize, usize),
        group: usize,
        out: (&mut [i8], &mut [f32], &mut [f32]),
    ) {
        packed::quantize_tile_row(self.table, x, place, group, out);
    }

    /// `out = x · wᵀ` of 4-bit and quantised rows, as the module describes; otherwise as
    /// [`Kernels::matmul_q8`]. `sums` are those of `x`: [`Kernels::sum_q8`].
    ///
    /// # Panics
    ///
    /// When `w` and `x` differ in `k`, `sums` are not `[m, k / 32]`, or `out` has not that shape.
    pub fn matmul_q4(
        &self,
        w: Bcml1Matrix<'_>,
        x: Q8Activations<'_>,
        sums: &[i32],
        out: &mut [&mut [f32]],
    ) {
        matmul::matmul_q4(self.table, w, x, sums, out);
    }

    /// Quantises activations as the module describes. `x` may be any number of rows: groups are
    /// independent.
    ///
    /// # Panics
    ///
    /// When `group` is 0 or no multiple of 32, `x` is no whole number of groups, or `q` or `scales`
    /// does not fit it.
    pub fn quantize_q8(&self, x: &[f32], group: usize, q: &mut [i8], scales: &mut [f32]) {
        assert!(group != 0);
        assert!(group.is_multiple_of(quant::GROUP_MIN));
        assert!(x.len().is_multiple_of(group));
        assert_eq!(x.len(), q.len());
        assert_eq!(x.len() / group, scales.len());
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.quantize_q8)(x, group, q, scales) }
    }

    /// Adds up each 32 of `q`: what [`Kernels::matmul_q4`] multiplies offsets by.
    ///
    /// # Panics
    ///
    /// When `q` is not 32 values for each of `sums`.
    pub fn sum_q8(&self, q: &[i8], sums: &mut [i32]) {
        assert_eq!(q.len(), sums.len() * bcml1::BLOCK);
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.sum_q8)(q, sums) }
    }

    /// `out = q * scale`: rows of a quantised embedding.
    ///
    /// # Panics
    ///
    /// As [`quant::dequantize`].
    pub fn dequantize_q8(&self, q: &[i8], scales: &[f32], group: usize, out: &mut [f32]) {
        quant::dequantize(q, scales, group, out);
    }

    /// `out = x / sqrt(mean(x²) + eps) * weight` (RMSNorm, arXiv:1910.07467), for one row.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len());
        assert_eq!(x.len(), out.len());
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.rms_norm)(x, weight, eps, out) }
    }

    /// Rotates each pair `(2i, 2i + 1)` of each head by its angle (RoPE, arXiv:2104.09864).
    ///
    /// `x` is `[n_heads, head_dim]` of one position; `cos` and `sin` are `[head_dim / 2]`.
    ///
    /// # Panics
    ///
    /// When `head_dim` is 0 or odd, or a length does not fit it.
    pub fn rope(&self, x: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        assert!(head_dim != 0);
        assert!(head_dim.is_multiple_of(2));
        assert!(x.len().is_multiple_of(head_dim));
        assert_eq!(cos.len(), head_dim / 2);
        assert_eq!(sin.len(), head_dim / 2);
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.rope)(x, head_dim, cos, sin) }
    }

    /// `out = silu(gate) * up` with `silu(g) = g / (1 + exp(-g))` (SwiGLU, arXiv:2002.05202).
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn swiglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), up.len());
        assert_eq!(gate.len(), out.len());
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.swiglu)(gate, up, out) }
    }

    /// `x += y`.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len());
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.add)(x, y) }
    }

    /// Attention of queries that share one key/value head: `softmax(q · Kᵀ * scale) · V`.
    ///
    /// `q` and `out` have a row for each of consecutive positions, `[n_q, head_dim]` of the query
    /// heads that share the keys and values. Each query looks at its own position and up to
    /// `window - 1` before it; a sliding window's ring buffer gives them in two runs. Scores that
    /// overflow or are NaN make their query's output NaN.
    ///
    /// # Panics
    ///
    /// When `head_dim` is 0 or above [`HEAD_DIM_MAX`], `window` is 0, the runs do not hold the
    /// positions from the first one looked at to the last query's, or a length does not fit.
    pub fn attend(&self, q: &[&[f32]], to: &Attended<'_>, out: &mut [&mut [f32]]) {
        attend::attend(self.table, q, to, out);
    }

    /// Converts a key or value for the cache: to the nearest f16, ties to even. What lies outside
    /// f16, infinities too, becomes its largest finite value (±65504), so that one outlier does
    /// not turn a whole softmax into NaN. A NaN stays one.
    ///
    /// # Panics
    ///
    /// When the lengths differ.
    pub fn store_kv(&self, x: &[f32], out: &mut [f16]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.table.narrow)(x, out) }
    }
}
