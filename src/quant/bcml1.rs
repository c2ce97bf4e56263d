//! BCML1: 4 bits in blocks of 32 consecutive values of a row, `w = code * multiplier + offset`.
//!
//! ```text
//! offset  type     field
//! 0       f16      multiplier
//! 2       f16      offset
//! 4       u8 × 16  codes: byte i holds value i in its low four bits and value i + 16 in its high
//! ```
//!
//! A matrix is its blocks in the order of its row-major values, without gaps. Numbers are
//! little-endian; a block may stand at any address.
//!
//! The encoder looks for the multiplier and offset, among those f16 has, with the least squared
//! error of the block. It takes the range of the values and narrower ones, rounds to codes, fits a
//! line to those by least squares, and again with the codes nearest to that line (Lloyd, 1982,
//! for levels that are evenly spaced). What it keeps is never worse than the plain range.

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::Error;

/// Values of a block.
pub const BLOCK: usize = 32;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = size_of::<Block>();

const _: () = assert!(BLOCK_BYTES == 20);

/// Largest magnitude of a weight that can be encoded: the largest finite f16.
pub const WEIGHT_MAX: f32 = 65504.0;

/// 32 values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// Multiplier, then offset.
    parameters: [u8; 4],
    /// Value `i` in the low four bits of byte `i`, value `i + 16` in the high ones.
    pub codes: [u8; 16],
}

impl Block {
    /// What a code is multiplied by.
    pub fn multiplier(&self) -> f16 {
        f16::from_bits(self.parameters() as u16)
    }

    /// What is added.
    pub fn offset(&self) -> f16 {
        f16::from_bits((self.parameters() >> 16) as u16)
    }

    /// The bits of the multiplier, and above them those of the offset.
    pub fn parameters(&self) -> u32 {
        u32::from_le_bytes(self.parameters)
    }

    /// The codes in the order of the values.
    pub fn codes(&self) -> [u8; BLOCK] {
        let mut codes = [0; BLOCK];
        let (low, high) = codes.split_at_mut(BLOCK / 2);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(self.codes) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
        codes
    }

    /// The 32 values. A product is exact in f32; the sum is rounded.
    pub fn decode(&self) -> [f32; BLOCK] {
        let (multiplier, offset) = (self.multiplier().to_f32(), self.offset().to_f32());
        self.codes().map(|code| f32::from(code) * multiplier + offset)
    }
}

/// A weight matrix `[rows, k]` in blocks. One that exists has whole rows; multipliers and offsets
/// may be any f16, as files hold what they like.
#[derive(Debug, Clone, Copy)]
pub struct Bcml1Matrix<'a> {
    blocks: &'a [Block],
    /// Blocks in a row.
    row_blocks: usize,
}

impl<'a> Bcml1Matrix<'a> {
    /// Takes the bytes of `[rows, k / 32]` blocks; the row count follows from them.
    ///
    /// # Errors
    ///
    /// When `k` is no whole number of blocks, or the bytes no whole number of rows.
    pub fn new(bytes: &'a [u8], k: usize) -> Result<Self, Error> {
        if k == 0 || !k.is_multiple_of(BLOCK) {
            return Err(Error::RowLen { k, group: BLOCK });
        }
        let row_blocks = k / BLOCK;
        match bytemuck::try_cast_slice::<u8, Block>(bytes) {
            Ok(blocks) if blocks.len().is_multiple_of(row_blocks) => {
                Ok(Bcml1Matrix { blocks, row_blocks })
            }
            _ => Err(Error::Bytes { found: bytes.len(), k }),
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.blocks.len() / self.row_blocks
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.row_blocks * BLOCK
    }

    /// The blocks of one row, `[k / 32]`.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`Bcml1Matrix::rows`].
    pub fn row(&self, index: usize) -> &'a [Block] {
        &self.blocks[index * self.row_blocks..][..self.row_blocks]
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..rows`.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Bcml1Matrix<'a> {
        let blocks = &self.blocks[range.start * self.row_blocks..range.end * self.row_blocks];
        Bcml1Matrix { blocks, ..*self }
    }
}

/// `out = code * multiplier + offset`, block by block.
///
/// # Panics
///
/// When `out` is not 32 values for each block.
pub fn decode(blocks: &[Block], out: &mut [f32]) {
    assert_eq!(blocks.len() * BLOCK, out.len());
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
        *out = block.decode();
    }
}

/// Encodes whole blocks of weights. Blocks are independent, so pieces of a tensor can be done by
/// different threads.
///
/// # Errors
///
/// Names the first weight that is not a number up to [`WEIGHT_MAX`] in magnitude.
///
/// # Panics
///
/// When `w` is not 32 values for each block.
pub fn encode(w: &[f32], blocks: &mut [Block]) -> Result<(), Error> {
    assert_eq!(blocks.len() * BLOCK, w.len());
    for (index, (w, block)) in w.as_chunks::<BLOCK>().0.iter().zip(blocks).enumerate() {
        *block = encode_block(w)
            .map_err(|at| Error::Value { index: index * BLOCK + at, value: w[at] })?;
    }
    Ok(())
}

/// Encodes one block, or gives the index of the value that cannot be.
fn encode_block(w: &[f32; BLOCK]) -> Result<Block, usize> {
    let (low, high) = range(w);
    // A NaN is in neither of them, nor equal to anything.
    let is_sound = |w: &f32| w.abs() <= WEIGHT_MAX;
    if !w.iter().fold(true, |all, w| all & is_sound(w)) {
        return Err(w.iter().position(|w| !is_sound(w)).unwrap_or(0));
    }
    let values = Values::new(w, low);
    let width = high - low;
    let mut best = values.try_line(Line::nearest(width / 15.0, 0.0, low));
    let plain = best;
    values.improve(&mut best, plain);
    for clip in CLIPS {
        let line = Line::nearest(width * (1.0 - 2.0 * clip) / 15.0, width * clip, low);
        values.improve(&mut best, values.try_line(line));
    }
    if best.error > 0.0 && is_flat(low, width) {
        values.improve(&mut best, values.try_line(Line::from_below(low, high)));
    }
    Ok(values.block(best.line))
}

/// What parts of the range are cut off at both ends to start from.
const CLIPS: [f32; 2] = [0.04, 0.08];

/// Lines fitted in a row to their own codes, at most.
const FITS: usize = 3;

/// How much less the squared error must be to count as less. More than roundings can add up to.
const GAIN: f32 = 1.0 - 1e-5;

/// Whether the offset's roundings are no longer small beside the range.
fn is_flat(low: f32, width: f32) -> bool {
    width < low.abs() / 64.0
}

/// A straight line from codes to values.
#[derive(Clone, Copy)]
struct Line {
    multiplier: f16,
    offset: f16,
    /// The offset, less the smallest value of the block.
    shift: f32,
}

impl Line {
    /// The line f16 has next to `value = code * multiplier + shift + low`.
    fn nearest(multiplier: f32, shift: f32, low: f32) -> Line {
        let offset = f16::from_f32(low + shift);
        Line { multiplier: f16::from_f32(multiplier), offset, shift: offset.to_f32() - low }
    }

    /// A line with an offset that is not above any value, so that the multiplier can make up for
    /// what f16 rounds off the offset.
    fn from_below(low: f32, high: f32) -> Line {
        let mut offset = f16::from_f32(low);
        if offset.to_f32() > low {
            // Towards negative infinity; there is no zero to cross below a normal `low`.
            let step = if offset.is_sign_negative() { 1 } else { u16::MAX };
            offset = f16::from_bits(offset.to_bits().wrapping_add(step));
        }
        let shift = offset.to_f32() - low;
        Line { multiplier: f16::from_f32((high - low - shift) / 15.0), offset, shift }
    }
}

/// A line with the codes nearest to it: its squared error, and sums over those codes.
#[derive(Clone, Copy)]
struct Trial {
    line: Line,
    error: f32,
    codes: f32,
    codes_squared: f32,
    codes_times_values: f32,
}

/// A block to encode.
struct Values {
    /// What is above the smallest value.
    above: [f32; BLOCK],
    low: f32,
    /// Sum of `above`.
    sum: f32,
}

impl Values {
    fn new(w: &[f32; BLOCK], low: f32) -> Values {
        let above = w.map(|w| w - low);
        let mut lanes = [0.0; LANES];
        for above in above.as_chunks::<LANES>().0 {
            for i in 0..LANES {
                lanes[i] += above[i];
            }
        }
        Values { above, low, sum: lanes.iter().sum() }
    }

    fn try_line(&self, line: Line) -> Trial {
        let (multiplier, shift) = (line.multiplier.to_f32(), line.shift);
        let inverse = inverse(multiplier);
        let [mut error, mut codes, mut squares, mut products] = [[0.0; LANES]; 4];
        for above in self.above.as_chunks::<LANES>().0 {
            for i in 0..LANES {
                let code = code(above[i] - shift, inverse);
                let off = above[i] - (code * multiplier + shift);
                error[i] += off * off;
                codes[i] += code;
                squares[i] += code * code;
                products[i] += code * above[i];
            }
        }
        Trial {
            line,
            error: error.iter().sum(),
            codes: codes.iter().sum(),
            codes_squared: squares.iter().sum(),
            codes_times_values: products.iter().sum(),
        }
    }

    /// Fits lines from `trial` on and keeps what is better in `best`.
    fn improve(&self, best: &mut Trial, mut trial: Trial) {
        for _ in 0..FITS {
            if trial.error < best.error * GAIN {
                *best = trial;
            }
            let Some(line) = self.fit(&trial) else { return };
            let next = self.try_line(line);
            if next.error >= trial.error * GAIN {
                return;
            }
            trial = next;
        }
        if trial.error < best.error * GAIN {
            *best = trial;
        }
    }

    /// The line through the trial's codes with the least squared error.
    fn fit(&self, trial: &Trial) -> Option<Line> {
        let n = BLOCK as f32;
        let spread = n * trial.codes_squared - trial.codes * trial.codes;
        if spread <= 0.0 {
            return None;
        }
        let multiplier = (n * trial.codes_times_values - trial.codes * self.sum) / spread;
        // The offset is fitted to the multiplier that f16 has.
        let multiplier = f16::from_f32(multiplier).to_f32();
        let shift = (self.sum - multiplier * trial.codes) / n;
        Some(Line::nearest(multiplier, shift, self.low))
    }

    fn block(&self, line: Line) -> Block {
        let inverse = inverse(line.multiplier.to_f32());
        let codes = self.above.map(|above| code(above - line.shift, inverse) as u8);
        let (low, high) = codes.split_at(BLOCK / 2);
        let mut packed = [0; BLOCK / 2];
        for ((packed, low), high) in packed.iter_mut().zip(low).zip(high) {
            *packed = low | high << 4;
        }
        let [m, o] = [line.multiplier, line.offset].map(f16::to_le_bytes);
        Block { parameters: [m[0], m[1], o[0], o[1]], codes: packed }
    }
}

/// Values that are summed side by side.
const LANES: usize = 8;

/// The least and the largest of the values that are numbers.
fn range(w: &[f32; BLOCK]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for w in w.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            low[i] = if w[i] < low[i] { w[i] } else { low[i] };
            high[i] = if w[i] > high[i] { w[i] } else { high[i] };
        }
    }
    (low.into_iter().fold(f32::INFINITY, f32::min), high.into_iter().fold(f32::MIN, f32::max))
}

/// `1 / multiplier`, or 0 where every code stands for the same value.
fn inverse(multiplier: f32) -> f32 {
    if multiplier > 0.0 { 1.0 / multiplier } else { 0.0 }
}

/// The code whose value is nearest.
#[inline(always)]
fn code(above: f32, inverse: f32) -> f32 {
    /// Adding this leaves the nearest integer in the low bits of a small float.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let code = above * inverse;
    let code = if code > 0.0 { code } else { 0.0 };
    let code = if code < 15.0 { code } else { 15.0 };
    (code + ROUND) - ROUND
}
