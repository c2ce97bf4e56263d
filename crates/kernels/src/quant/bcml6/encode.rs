//! Encodes weights into blocks of 6 bits.
//!
//! The encoder tries some multipliers below the one that fits a block's largest magnitude, and keeps the one with the
//! least squared error. A row's step is its largest multiplier divided by 127. Then each block takes the scale, near
//! its multiplier, with the least squared error.
//!
//! Sixteen blocks are encoded side by side, one in each lane of a vector, in plain loops that compilers vectorise.
//! Nothing depends on the machine: a file is the same everywhere.

use super::super::bcml1::WEIGHT_MAX;
use super::super::q8::QuantError;
use super::super::rows::begin_row;
use super::{BLOCK, Block, ZERO, row_bytes};

/// Blocks encoded side by side.
const LANES: usize = 16;

/// One number for each block.
type Lanes = [f32; LANES];

/// The values of blocks side by side.
type Values = [Lanes; BLOCK];

/// Largest scale.
const SCALE_MAX: f32 = 127.0;

/// Least and largest value in units of a scale.
const VALUES: (f32, f32) = (-32.0, 31.0);

/// Multipliers to try put the largest magnitude at 28, 28.5, … 32 of their units: first, step, count.
const LARGEST: (f32, f32, usize) = (28.0, 0.5, 9);

/// Scales tried on both sides of the nearest.
const AROUND: i32 = 2;

/// Adding and then subtracting this rounds a small float to an integer.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Encodes whole rows of `k` weights to their bytes.
///
/// # Errors
///
/// Names the first weight that is not a number up to [`WEIGHT_MAX`] in magnitude.
///
/// # Panics
///
/// When `k` is no whole number of blocks, `w` no whole number of rows, or `out` is not as long as they need.
#[inline(always)]
pub fn encode(w: &[f32], k: usize, out: &mut [u8]) -> Result<(), QuantError> {
    assert!(w.len().is_multiple_of(k));
    assert_eq!(out.len(), w.len() / k * row_bytes(k));
    let mut multipliers = vec![0.0; k / BLOCK];
    for (n, (w, out)) in w.chunks_exact(k).zip(out.chunks_exact_mut(row_bytes(k))).enumerate() {
        encode_row(w, &mut multipliers, out).map_err(|error| error.counted_from(n * k))?;
    }
    Ok(())
}

/// Encodes one row; `multipliers` is scratch space of one number for each of its blocks.
///
/// # Errors
///
/// Fails like [`encode`].
///
/// # Panics
///
/// When the lengths do not fit together.
#[inline(always)]
pub fn encode_row(w: &[f32], multipliers: &mut [f32], out: &mut [u8]) -> Result<(), QuantError> {
    assert_eq!(w.len(), multipliers.len() * BLOCK);
    let is_number = |w: &f32| w.abs() <= WEIGHT_MAX;
    if let Some(index) = w.iter().position(|w| !is_number(w)) {
        return Err(QuantError::Value { index, value: w[index] });
    }
    let tiles = w.as_chunks::<BLOCK>().0.chunks(LANES);
    let mut largest = 0.0;
    for (w, multipliers) in tiles.clone().zip(multipliers.chunks_mut(LANES)) {
        let found = best_multipliers(&side_by_side(w));
        for (multiplier, found) in multipliers.iter_mut().zip(found) {
            *multiplier = found;
            largest = f32::max(largest, found);
        }
    }
    let step = largest / SCALE_MAX;
    let step = if (1.0 / step).is_finite() { step } else { 0.0 };
    let blocks = begin_row::<Block>(step, multipliers.len(), out);
    for ((w, multipliers), out) in
        tiles.zip(multipliers.chunks(LANES)).zip(blocks.chunks_mut(LANES))
    {
        let values = side_by_side(w);
        let near = std::array::from_fn(|i| {
            rounded(multipliers[i.min(multipliers.len() - 1)] * inverse(step))
        });
        put(&values, &best_scales(&values, &near, step), step, out);
    }
    Ok(())
}

/// The values of up to sixteen blocks; the last block stands in for missing ones.
#[inline(always)]
fn side_by_side(w: &[[f32; BLOCK]]) -> Values {
    let mut values = [[0.0; LANES]; BLOCK];
    for i in 0..LANES {
        for (values, w) in values.iter_mut().zip(&w[i.min(w.len() - 1)]) {
            values[i] = *w;
        }
    }
    values
}

/// The multiplier with the least squared error for each block.
#[inline(always)]
fn best_multipliers(values: &Values) -> Lanes {
    let mut magnitude = [0.0; LANES];
    for values in values {
        for i in 0..LANES {
            let value = values[i].abs();
            magnitude[i] = if value > magnitude[i] { value } else { magnitude[i] };
        }
    }
    let (mut best, mut least) = ([0.0; LANES], [f32::INFINITY; LANES]);
    let (first, apart, n) = LARGEST;
    for n in 0..n {
        let multiplier = magnitude.map(|magnitude| magnitude / (first + apart * n as f32));
        keep_better((&mut best, &mut least), &multiplier, &error(values, &multiplier));
    }
    best
}

/// The scales near `near` with the least squared errors.
#[inline(always)]
fn best_scales(values: &Values, near: &Lanes, step: f32) -> Lanes {
    let mut best = [0.0; LANES];
    let mut least = error(values, &best);
    for around in -AROUND..=AROUND {
        let scale = near.map(|near| {
            let scale = near + around as f32;
            let scale = if scale > 0.0 { scale } else { 0.0 };
            if scale < SCALE_MAX { scale } else { SCALE_MAX }
        });
        let multiplier = scale.map(|scale| step * scale);
        keep_better((&mut best, &mut least), &scale, &error(values, &multiplier));
    }
    best
}

/// Replaces numbers of blocks whose error with `new` is less.
#[inline(always)]
fn keep_better((best, least): (&mut Lanes, &mut Lanes), new: &Lanes, error: &Lanes) {
    for i in 0..LANES {
        let is_less = error[i] < least[i];
        least[i] = if is_less { error[i] } else { least[i] };
        best[i] = if is_less { new[i] } else { best[i] };
    }
}

/// Squared errors of `values`.
#[inline(always)]
fn error(values: &Values, multiplier: &Lanes) -> Lanes {
    let inverse = multiplier.map(inverse);
    let mut error = [0.0; LANES];
    for values in values {
        for i in 0..LANES {
            let off = values[i] - nearest(values[i] * inverse[i]) * multiplier[i];
            error[i] += off * off;
        }
    }
    error
}

/// Writes blocks with these scales.
#[inline(always)]
fn put(values: &Values, scale: &Lanes, step: f32, out: &mut [Block]) {
    let inverse = scale.map(|scale| inverse(step * scale));
    let mut codes = [[0; LANES]; BLOCK];
    for (codes, values) in codes.iter_mut().zip(values) {
        for i in 0..LANES {
            codes[i] = (nearest(values[i] * inverse[i]) + f32::from(ZERO)) as u8;
        }
    }
    for (i, out) in out.iter_mut().enumerate() {
        *out = Block::new(scale[i] as u8, codes.map(|codes| codes[i]));
    }
}

/// `1 / x`, or 0 if every code stands for 0.
#[inline(always)]
fn inverse(x: f32) -> f32 {
    if x > 0.0 { 1.0 / x } else { 0.0 }
}

/// The nearest value of a code, in units of the scale.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    let x = if x > VALUES.0 { x } else { VALUES.0 };
    rounded(if x < VALUES.1 { x } else { VALUES.1 })
}

/// The nearest integer of a small number.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    (x + ROUND) - ROUND
}
