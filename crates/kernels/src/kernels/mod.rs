#![allow(unsafe_code)]
//! The arithmetic: one table of functions for each instruction set, chosen once at start.
//!
//! # One answer
//!
//! Every tier gives the same bits for the same input, floats included (a NaN is a NaN; which one is not promised). So a
//! ring of unequal boards gives one text, and forcing [`Isa::Scalar`] shows whether a tier is to blame for a wrong
//! answer in the field. The rules for this:
//!
//! - Products of floats are added by fused multiply-add, rounded once. If the hardware has none, the scalar tier
//!   computes it exactly through f64.
//! - A float dot product has [`LANES`] running sums. Element `i` goes to sum `i % LANES`, a short tail is padded with
//!   zeros, and one fixed tree joins the sums. The error is at most `(k / LANES + 5) * 2^-24 * Σ|a·b|`.
//! - `exp` is one polynomial (within `1e-7` relative where the result is normal).
//! - A result never depends on how work is split: not on the batch size `m`, the tile shape, the rows of a thread,
//!   the other queries of a pass, or where a KV cache's runs are cut.
//!
//! # Words
//!
//! ```text
//! tier               the kernels of one instruction set (Isa): a Table of functions
//! lane               an element of a vector register; a float dot product has LANES sums whatever the tier
//! m, k, rows         a product is of [m, k] activations by [rows, k] weights
//! group              consecutive values of a row that share a scale
//! activation scale   s of x ≈ s * q: a group of activations has one, as has a group of int8 weights
//! block              32 weights of 4 bits with a multiplier and an offset; also 32 positions of a softmax
//! code               a weight of 4 bits, 0..=15, or of 6, 0..=63
//! row-major          weights as a file has them; tiles of 1 or 4 activation rows by 4 weight rows
//! packed             weights in a tier's own order (Layout)
//! panel              nr weight rows packed together
//! strip              those rows of a panel that a kernel takes at once, a vector for each kr columns
//! tile               up to mr activation rows that are multiplied by a panel at once
//! part               some groups of a panel, few enough for a level of cache
//! u8 bias, flipped   weights w of i8 kept as u8, w + 128, for instructions that multiply u8 by i8;
//!                    the bits are those of w with the sign bit flipped
//! zero point         what a sum of such products starts at, so that the bias cancels
//! ```
//!
//! # Int8
//!
//! Weights are any `i8` in groups along a row ([`Q8Matrix`](crate::quant::Q8Matrix)). Activations
//! are quantised per row and group, `s = max|x| / 127`, `q = round_half_even(x * (1 / s))`, and lie in `-127..=127`:
//!
//! - zeros, and values so small that `1 / s` overflows: `s = 0`, `q = 0`;
//! - a NaN or an infinity in the group: `s = NaN`, `q = 0`, so that it shows in the output.
//!
//! Groups of activations are those of the weights. An output starts at 0 and adds each group in order. `d` is the exact
//! sum of a group's products in `i32`, which a group of 65536 does not overflow
//! ([`GROUP_MAX`](crate::quant::GROUP_MAX)):
//!
//! ```text
//! y = fma(d as f32 * w_scale, x_scale, y)
//! ```
//!
//! # Blocks of GGUF files
//!
//! Weights are runs of 32 along a row, `w = scale * code + offset` ([`GgmlMatrix`](crate::quant::GgmlMatrix)); codes are
//! `i8`, and scale and offset are exact in f32. Activations are as above, in groups of 32. A run is multiplied like a
//! group of int8 weights. Types with a scale for each half of a run have a `y` for the first halves and one for the
//! second, and add them at the end. Types with offsets add `y` and, with `s = Σ q` of the run,
//!
//! ```text
//! z = fma(offset, x_scale * s as f32, z)
//! ```
//!
//! # 4 bits
//!
//! Weights are blocks of 32 along a row, `w = code * multiplier + offset` ([`Bcml1Matrix`](crate::quant::Bcml1Matrix)).
//! Activations are as above, in groups of one or more whole blocks; those of a model are one block. Multiplier and
//! offset are widened from f16 exactly. For each block `b` of an activation group, `d(b) = Σ code * q` and `s(b) = Σ q`
//! over the block, and `D(b) = d(first) + … + d(b)`, all exact in `i32`. Then
//!
//! ```text
//! Σ w * q = Σ multiplier(b) * d(b) + offset(b) * s(b)
//!         = Σ (multiplier(b) - multiplier(b + 1)) * D(b) + offset(b) * s(b)
//! ```
//!
//! with 0 for the multiplier behind the group's last. The second line is summation by parts: integer sums run on
//! through a group, without being cleared for each block. In floats:
//!
//! ```text
//! t = -0
//! t = fma(s(b), offset(b), t)                              for each b
//! t = fma(D(b), multiplier(b) - multiplier(b + 1), t)      for each b
//! y = fma(t, x_scale, y)
//! ```
//!
//! # 4 bits with scales in two levels
//!
//! Weights are rows of BCML2, `w = step * (scale * (16 * code - zero))` ([`Bcml2Matrix`](crate::quant::Bcml2Matrix)).
//! With `d(b)` and `s(b)` as above, the sum of an activation group is one integer. A block's part is at most `127 *
//! (240 + 255) * 32 * 127`, so the sum stays below 2^31 for groups of up to 256 ([`PACKED_GROUP_MAX`]). An output
//! starts at 0 and adds each group in order:
//!
//! ```text
//! i = Σ scale(b) * (16 * d(b) - zero(b) * s(b))
//! y = fma(i as f32, x_scale, y)
//! ```
//!
//! and at the end becomes `y * step`.
//!
//! # 6 bits
//!
//! Weights are rows of BCML6, `w = (step * scale) * (code - 32)` ([`Bcml6Matrix`](crate::quant::Bcml6Matrix)). A block
//! is a group of 32 int8 weights with the scale `step * scale`, rounded once, and is multiplied like int8.
//!
//! # Adding a tier
//!
//! A tier is a `Table` in a file of its own and an arm of [`Kernels::for_isa`]. `float.rs` holds bodies written once
//! and compiled for each tier's features. What compilers vectorise badly (int8 tiles, float dot products, quantising,
//! f16 conversion) is written by hand.

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512vnni;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "x86_64")]
mod byte_tiles;
mod dispatch;
mod float;
mod isa;
mod kv8;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neondot;
#[cfg(target_arch = "aarch64")]
mod neoni8mm;
mod packed;
pub mod peak;
mod recurrence;
#[cfg(target_arch = "x86_64")]
mod run_tiles;
mod scalar;
mod softmax;
#[cfg(target_arch = "x86_64")]
mod stream;
mod table;
mod tier;
#[cfg(target_arch = "x86_64")]
mod ymm;
#[cfg(target_arch = "x86_64")]
mod zmm;

#[cfg(test)]
mod tests;

pub use attend::{Attended, HEAD_DIM_MAX, KvPages, KvStored, QUERIES as ATTEND_QUERIES};
pub use dispatch::Kernels;
pub use float::LANES;
pub use isa::Isa;
pub use kv8::{KV_BLOCK, KvLine, block_lines as kv_block_lines, clear_block as clear_kv_block};
pub use packed::activations::{ActivationRow, Groups, Q8Tiles, TileParts, TilePartsMut, TileRow};
pub use packed::cut::{CUT_ROWS, TileCut};
pub use packed::layout::{
    GROUP_MAX as PACKED_GROUP_MAX, Layout, MatrixDims, PANEL_ROWS, PackedB2, PackedB6,
    PackedBytesError, PackedGgml, PackedQ4, PackedQ8, PackedSteps,
};
pub use recurrence::{Convolution, DELTA_COLUMNS, DeltaStep, ScanStep};
pub use softmax::{sigmoids, softmax_terms};
