//! Keys and values stored as int8: their layout, and how they are written.
//!
//! A head's part of a page is a sequence of blocks of 32 positions, like those of a softmax. A block consists of lines
//! of 64 bytes, which are aligned for vectors of any length. Columns are padded with zeros to a multiple of 16.
//!
//! A block of keys, for each 32 columns or fewer at the end:
//!
//! ```text
//! 1 line          scales, an f16 of each of 32 positions
//! 2 lines × n/4   for each four columns: the first 16 positions, four bytes each; then the others
//! ```
//!
//! A block of values, for each 128 columns or fewer at the end:
//!
//! ```text
//! 1 line          scales, an f16 of each of 32 positions
//! 8 lines × n/16  for each 16 columns, for each four positions: the columns, four bytes each
//! ```
//!
//! So four bytes whose products are summed, as `vpdpbusd` and `sdot` do, are neighbours: columns of a key for scores,
//! positions for weights of values. Scales take 1/16 and 1/64 of the values' bytes if heads are whole groups.
//!
//! # Meaning
//!
//! `x ≈ scale * q` with `q` in `-127..=127`: `scale` is the smallest f16 not less than `max|x| / 127`, and `q =
//! round_half_even(x * (1 / scale))`. Values beyond ±65504 become that first, as in f16. A NaN makes the scale NaN, and
//! with it the whole group. Keys have shorter groups because some of their columns are much larger than others.
//!
//! # Scores
//!
//! A query is quantised in groups of 32, like activations (see [`super`]). With `d` the exact sum of a group's
//! products, a score starts at 0, adds each group in order, and is scaled at the end:
//!
//! ```text
//! s = fma(d as f32 * key_scale, query_scale, s)
//! ```
//!
//! # Values
//!
//! A block's weights times the positions' scales become codes of 14 bits, which are multiplied as two times 7 bits.
//! With `w = weight * scale`, or 0 if the weight is 0,
//!
//! ```text
//! step = max(w) / 16383
//! code = round_half_even(w * (16383 / max(w)))     0, and so is step, if max(w) < 2^-100
//! out  = fma((Σ code * q) as f32, step, out * correction)
//! ```
//!
//! The sum is exact: `32 * 16383 * 127 < 2^27`. A position that is not looked at has the weight 0, and its bytes change
//! nothing. Weights that are NaN make `step` NaN.

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::float::{self, BLOCK};

pub(super) mod bodies;
pub(super) mod queries;
pub(super) mod store;

/// Positions of a block.
pub const KV_BLOCK: usize = BLOCK;

/// A line of int8 keys or values.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct KvLine(pub(super) [u8; LINE]);

const LINE: usize = 64;

/// Columns of keys or queries that share a scale.
pub(super) const KEY_GROUP: usize = 32;
/// Lines of a block of keys for a whole group of columns.
pub(super) const KEY_LINES: usize = 1 + KEY_GROUP / 2;

/// Columns of values that share scales.
pub(super) const VALUE_GROUP: usize = 128;
/// Lines of a block of values for a whole group of columns.
pub(super) const VALUE_LINES: usize = 1 + VALUE_GROUP / 2;
/// Lines of a block of values for 16 columns.
pub(super) const TILE_LINES: usize = BLOCK / 4;

/// Columns are padded to a multiple of this.
const COLUMNS: usize = 16;

impl KvLine {
    /// Zeros.
    pub(super) const ZERO: KvLine = KvLine([0; LINE]);

    /// A line of scales.
    pub(super) fn scales(&self) -> &[f16] {
        bytemuck::cast_slice(&self.0)
    }

    /// The line as four bytes for each of 16 positions or columns.
    pub(super) fn fours(&self) -> &[[i8; 4]; LINE / 4] {
        bytemuck::cast_ref(&self.0)
    }

    /// The line as two halves.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn halves(&self) -> &[[i8; LINE / 2]; 2] {
        bytemuck::cast_ref(&self.0)
    }

    /// The line as four quarters.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn quarters(&self) -> &[[i8; LINE / 4]; 4] {
        bytemuck::cast_ref(&self.0)
    }

    fn set_scale(&mut self, position: usize, scale: f16) {
        bytemuck::cast_slice_mut::<u8, f16>(&mut self.0)[position] = scale;
    }

    fn put(&mut self, at: usize, value: i8) {
        self.0[at] = value as u8;
    }
}

/// Lines of a block of keys, and of a block of values.
pub fn block_lines(head_dim: usize) -> [usize; 2] {
    let columns = head_dim.next_multiple_of(COLUMNS);
    [KEY_GROUP, VALUE_GROUP].map(|group| columns.div_ceil(group) + columns / 2)
}

/// Sets the positions from `n` on to zeros, in a block of int8 keys, or of values if not `is_key`, given as bytes.
///
/// # Panics
/// If a block has fewer positions.
pub fn clear_block(block: &mut [u8], is_key: bool, n: usize) {
    let (group, step) = if is_key { (KEY_LINES, 2) } else { (VALUE_LINES, TILE_LINES) };
    for lines in block.chunks_mut(group * LINE) {
        let (scales, lines) = lines.split_at_mut(LINE);
        scales[2 * n..].fill(0);
        for lines in lines.chunks_exact_mut(step * LINE) {
            clear_positions(lines, is_key, n);
        }
    }
}

/// Clears the positions from `n` on in the lines of four columns of keys, or of 16 columns of values.
fn clear_positions(lines: &mut [u8], is_key: bool, n: usize) {
    if is_key {
        lines[4 * n..].fill(0);
        return;
    }
    let (line, byte) = (n / 4, n % 4);
    lines[((line + 1) * LINE).min(BLOCK / 4 * LINE)..].fill(0);
    for four in lines[line * LINE..].as_chunks_mut::<4>().0.iter_mut().take(LINE / 4) {
        four[byte..].fill(0);
    }
}

/// A quantised query for int8 keys.
#[derive(Clone, Copy)]
pub(super) struct KeyQuery<'a> {
    /// Codes of each group, four columns each, padded with zeros.
    pub(super) q: &'a [[[i8; 4]; KEY_GROUP / 4]],
    /// The scale of each group.
    pub(super) scales: &'a [f32],
    /// `-128 * Σ q` of each group: cancels the bias of keys that are multiplied as unsigned bytes.
    pub(super) biases: &'a [i32],
}

/// Largest magnitude that is stored.
const STORED_MAX: f32 = 65504.0;

/// Quantises a group of keys or values, as the module describes, and returns its scale. `largest` and `round` are the
/// tier's, as for [`float::quantize_q8`].
#[inline(always)]
pub(super) fn quantize_kv(
    x: &[[f32; 32]],
    q: &mut [[i8; 32]],
    largest: impl Fn(&[[f32; 32]]) -> u32,
    round: impl Fn(&[[f32; 32]], f32, &mut [[i8; 32]]),
) -> f16 {
    // Without the sign bit, floats compare like their bits, with infinity and NaN on top.
    let max = f32::from_bits(largest(x));
    if max > STORED_MAX {
        let mut clamped = [[0.0; 32]; VALUE_GROUP / 32];
        for (to, x) in clamped.as_flattened_mut().iter_mut().zip(x.as_flattened()) {
            *to = x.clamp(-STORED_MAX, STORED_MAX);
        }
        return scaled(&clamped[..x.len()], STORED_MAX, q, round);
    }
    scaled(x, max, q, round)
}

#[inline(always)]
fn scaled(
    x: &[[f32; 32]],
    max: f32,
    q: &mut [[i8; 32]],
    round: impl Fn(&[[f32; 32]], f32, &mut [[i8; 32]]),
) -> f16 {
    let scale = round_up(max / 127.0);
    if scale > f16::ZERO {
        round(x, 1.0 / scale.to_f32(), q);
    } else {
        q.as_flattened_mut().fill(0);
    }
    scale
}

/// The smallest f16 not less than `x`, which is not negative; NaN for NaN.
fn round_up(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if nearest.to_f32() < x { f16::from_bits(nearest.to_bits() + 1) } else { nearest }
}

/// Weights of a block's positions times their values' scales, as the module describes.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    /// The upper 7 bits of each code, four positions together.
    pub(super) high: [[i8; 4]; BLOCK / 4],
    /// The lower 7 bits of each code.
    pub(super) low: [[i8; 4]; BLOCK / 4],
    /// Value of a code of 1.
    pub(super) step: f32,
}

/// Four bytes as one number that vectors are filled with. A plain expression is always inlined; an array's `map` is not
/// in a crate that is compiled in parts.
#[inline(always)]
pub(super) fn word([a, b, c, d]: [i8; 4]) -> i32 {
    i32::from_ne_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// Bits of a half of a code.
pub(super) const HALF_BITS: u32 = 7;
/// The largest code.
const CODE_MAX: f32 = 16383.0;
/// A block counts as zero if all its weights times scales are below this: 2^-100.
const LEAST: f32 = f32::from_bits((127 - 100) << 23);

impl Codes {
    /// The codes of zeros.
    pub(super) const ZERO: Codes =
        Codes { high: [[0; 4]; BLOCK / 4], low: [[0; 4]; BLOCK / 4], step: 0.0 };

    /// Sets the codes of `weights`; `largest` is the tier's.
    #[inline(always)]
    pub(super) fn set(
        &mut self,
        weights: &[f32; BLOCK],
        scales: &[f32; BLOCK],
        largest: impl Fn(&[[f32; 32]]) -> u32,
    ) {
        let mut w = [[0.0; BLOCK]; 1];
        for i in 0..BLOCK {
            w[0][i] = if weights[i] == 0.0 { 0.0 } else { weights[i] * scales[i] };
        }
        let max = f32::from_bits(largest(&w));
        let (step, factor) =
            if max < LEAST { (0.0, 0.0) } else { (max / CODE_MAX, CODE_MAX / max) };
        self.step = step;
        let mask = (1 << HALF_BITS) - 1;
        let (high, low) = (self.high.as_flattened_mut(), self.low.as_flattened_mut());
        for i in 0..BLOCK {
            let code = (w[0][i] * factor + float::ROUND).to_bits();
            high[i] = (code >> HALF_BITS & mask) as i8;
            low[i] = (code & mask) as i8;
        }
    }
}
