//! Int8 in groups: `q` and one f32 scale for each group of consecutive values, `w = q * scale`.
//!
//! ```text
//! q       [rows, k]          i8, row-major
//! scales  [rows, k / group]  f32, row-major
//! ```
//!
//! A group divides `k`, so it never crosses a row. It is a multiple of [`GROUP_MIN`], so a vector never crosses a
//! group, and at most [`GROUP_MAX`], so the products of a group add up exactly in an `i32`.

use std::fmt;

/// Shortest group; every group is a multiple of it.
pub const GROUP_MIN: usize = 32;

/// Values that share a scale in files made here, unless another number is asked for; the same as in llama.cpp's Q8_0.
/// `docs/benchmarks.md` lists the loss of groups of 32, 64 and 128 on real models.
pub const GROUP_DEFAULT: usize = 32;

/// Longest group: `GROUP_MAX * 128 * 128 <= i32::MAX`.
pub const GROUP_MAX: usize = 1 << 16;

const _: () = assert!(GROUP_MAX * 128 * 128 <= i32::MAX as usize);

/// Reason why numbers do not make a quantised matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum QuantError {
    /// No group of at least [`GROUP_MIN`] divides every column count.
    NoGroup {
        /// The group size asked for.
        wanted: usize,
        /// The column count that the last group size did not divide.
        cols: usize,
    },
    /// The group size is not a multiple of [`GROUP_MIN`] up to [`GROUP_MAX`].
    BadGroup {
        /// The group size found.
        group: usize,
    },
    /// Rows are empty or no whole number of groups.
    RowLen {
        /// Values in a row.
        k: usize,
        /// The group size.
        group: usize,
    },
    /// The values are no whole number of rows.
    Values {
        /// Values found.
        found: usize,
        /// Values in a row.
        k: usize,
    },
    /// The number of scales is not that of the groups.
    Scales {
        /// Scales found.
        found: usize,
        /// Scales wanted.
        wanted: usize,
    },
    /// The bytes are no whole number of rows of 4-bit blocks.
    Bytes {
        /// Bytes found.
        found: usize,
        /// Values in a row.
        k: usize,
    },
    /// A weight is outside the range of 4-bit blocks.
    Value {
        /// Index of the weight.
        index: usize,
        /// The weight.
        value: f32,
    },
}

impl QuantError {
    /// Adds `start` to the index of a refused weight.
    pub(super) fn counted_from(self, start: usize) -> QuantError {
        match self {
            QuantError::Value { index, value } => QuantError::Value { index: start + index, value },
            other => other,
        }
    }
}

impl fmt::Display for QuantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QuantError::NoGroup { wanted, cols } => {
                write!(
                    f,
                    "no group of {wanted}, halved down to {GROUP_MIN}, divides {cols} columns"
                )
            }
            QuantError::BadGroup { group } => {
                write!(f, "group of {group}: not a multiple of {GROUP_MIN} up to {GROUP_MAX}")
            }
            QuantError::RowLen { k, group } => {
                write!(f, "rows of {k} values are no whole number of groups of {group}")
            }
            QuantError::Values { found, k } => {
                write!(f, "{found} values are no whole number of rows of {k}")
            }
            QuantError::Scales { found, wanted } => write!(f, "{found} scales for {wanted} groups"),
            QuantError::Bytes { found, k } => {
                write!(f, "{found} bytes are no whole number of rows of {k} values in blocks")
            }
            QuantError::Value { index, value } => {
                write!(f, "value {index} is {value:e}, beyond the range of f16")
            }
        }
    }
}

impl std::error::Error for QuantError {}

/// One row of a quantised matrix.
#[derive(Debug, Clone, Copy)]
pub struct Q8Row<'a> {
    /// Values, `[k]`.
    pub q: &'a [i8],
    /// Scales, `[k / group]`.
    pub scales: &'a [f32],
}

/// A quantised weight matrix, `[rows, k]`, of consistent lengths. Values may be any `i8` and scales any f32, because
/// files may hold anything.
#[derive(Debug, Clone, Copy)]
pub struct Q8Matrix<'a> {
    q: &'a [i8],
    scales: &'a [f32],
    k: usize,
    group: usize,
    /// Groups in a row.
    groups: usize,
}

impl<'a> Q8Matrix<'a> {
    /// Joins values `[rows, k]` and scales `[rows, k / group]`; the row count follows from them.
    ///
    /// # Errors
    ///
    /// When `group` is out of bounds or does not divide `k`, or the lengths do not fit together.
    pub fn new(q: &'a [i8], scales: &'a [f32], k: usize, group: usize) -> Result<Self, QuantError> {
        if !is_group(group) {
            return Err(QuantError::BadGroup { group });
        }
        if k == 0 || !k.is_multiple_of(group) {
            return Err(QuantError::RowLen { k, group });
        }
        if !q.len().is_multiple_of(k) {
            return Err(QuantError::Values { found: q.len(), k });
        }
        if scales.len() != q.len() / group {
            return Err(QuantError::Scales { found: scales.len(), wanted: q.len() / group });
        }
        Ok(Q8Matrix { q, scales, k, group, groups: k / group })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.q.len() / self.k
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Values that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// One row.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`Q8Matrix::rows`].
    pub fn row(&self, index: usize) -> Q8Row<'a> {
        Q8Row {
            q: &self.q[index * self.k..][..self.k],
            scales: &self.scales[index * self.groups..][..self.groups],
        }
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..rows`.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Q8Matrix<'a> {
        Q8Matrix {
            q: &self.q[range.start * self.k..range.end * self.k],
            scales: &self.scales[range.start * self.groups..range.end * self.groups],
            ..*self
        }
    }
}

/// Quantised activations, `[m, k]`. Every value is in `-127..=127`, the range of the activation quantiser: kernels need
/// the absence of -128 for exact sums.
#[derive(Debug, Clone, Copy)]
pub struct Q8Activations<'a>(Q8Matrix<'a>);

impl<'a> Q8Activations<'a> {
    /// Joins values `[m, k]` and scales `[m, k / group]`.
    ///
    /// # Errors
    ///
    /// Fails like [`Q8Matrix::new`].
    pub fn new(q: &'a [i8], scales: &'a [f32], k: usize, group: usize) -> Result<Self, QuantError> {
        debug_assert!(!q.contains(&i8::MIN));
        Q8Matrix::new(q, scales, k, group).map(Q8Activations)
    }

    /// Number of rows (tokens).
    pub fn m(&self) -> usize {
        self.0.rows()
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.0.k
    }

    /// Values that share a scale.
    pub fn group(&self) -> usize {
        self.0.group
    }

    /// One row.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`Q8Activations::m`].
    pub fn row(&self, index: usize) -> Q8Row<'a> {
        self.0.row(index)
    }

    /// The rows of `range`.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..m`.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Q8Activations<'a> {
        Q8Activations(self.0.slice_rows(range))
    }
}

/// The group size for matrices with these column counts: `wanted`, halved until it divides all.
///
/// # Errors
///
/// If no multiple of [`GROUP_MIN`] on the way down divides all.
pub fn group_size_for(
    cols: impl IntoIterator<Item = usize> + Clone,
    wanted: usize,
) -> Result<usize, QuantError> {
    let mut group = wanted;
    loop {
        let refused = cols.clone().into_iter().find(|c| *c == 0 || !c.is_multiple_of(group.max(1)));
        match refused {
            None if is_group(group) => return Ok(group),
            _ if group > GROUP_MIN => group /= 2,
            Some(cols) => return Err(QuantError::NoGroup { wanted, cols }),
            None => return Err(QuantError::BadGroup { group: wanted }),
        }
    }
}

/// Quantises whole groups of weights with [`quantize_group`]. Groups are independent: threads can quantise pieces of a
/// tensor.
///
/// # Panics
///
/// When `w` is no whole number of groups, or `q` or `scales` does not fit it.
#[inline(always)]
pub fn quantize(w: &[f32], group: usize, q: &mut [i8], scales: &mut [f32]) {
    assert!(is_group(group));
    assert!(w.len().is_multiple_of(group));
    assert_eq!(w.len(), q.len());
    assert_eq!(w.len() / group, scales.len());
    let groups = w.chunks_exact(group).zip(q.chunks_exact_mut(group));
    for ((w, q), scale) in groups.zip(scales) {
        *scale = quantize_group(w, q);
    }
}

/// Quantises one group of weights and returns its scale: `s = max|w| / 127`, `q = round_half_away(w * (1 / s))`.
///
/// Zeros, and values so small that `1 / s` overflows, give scale 0 and zeros. A group with a NaN
/// or an infinity gives scale NaN and zeros: the caller can refuse it by its scale.
///
/// # Panics
///
/// When the lengths differ.
#[inline(always)]
pub fn quantize_group(w: &[f32], q: &mut [i8]) -> f32 {
    assert_eq!(w.len(), q.len());
    let Some((scale, inverse)) = scale_of(w) else {
        q.fill(0);
        return if w.iter().all(|w| w.is_finite()) { 0.0 } else { f32::NAN };
    };
    for (q, w) in q.iter_mut().zip(w) {
        *q = round_half_away(w * inverse);
    }
    scale
}

/// `out = q * scale`, group by group.
///
/// # Panics
///
/// When `q` is no whole number of groups, or `scales` or `out` does not fit it.
pub fn dequantize(q: &[i8], scales: &[f32], group: usize, out: &mut [f32]) {
    assert!(is_group(group));
    assert!(q.len().is_multiple_of(group));
    assert_eq!(q.len() / group, scales.len());
    assert_eq!(q.len(), out.len());
    let groups = q.chunks_exact(group).zip(out.chunks_exact_mut(group));
    for ((q, out), scale) in groups.zip(scales) {
        for (out, q) in out.iter_mut().zip(q) {
            *out = f32::from(*q) * scale;
        }
    }
}

#[inline(always)]
fn is_group(group: usize) -> bool {
    group != 0 && group.is_multiple_of(GROUP_MIN) && group <= GROUP_MAX
}

/// Scale of a group and its inverse; `None` if either is not finite. Compares magnitudes as bits: this is exact, and
/// puts infinities and NaNs on top.
#[inline(always)]
fn scale_of(w: &[f32]) -> Option<(f32, f32)> {
    let max_bits = w.iter().map(|w| w.abs().to_bits()).max().unwrap_or(0);
    let scale = f32::from_bits(max_bits) / 127.0;
    let inverse = 1.0 / scale;
    (scale.is_finite() && inverse.is_finite()).then_some((scale, inverse))
}

/// `v.round()` for the `|v| <= 127.5` that occur here, in operations that vectors have: no library call, and no cast
/// that saturates.
#[inline(always)]
fn round_half_away(v: f32) -> i8 {
    /// Adding this to a small float leaves its nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    let magnitude = v.abs();
    let even = (magnitude + ROUND) - ROUND;
    // Halves were rounded to the even neighbour.
    let nearest = if magnitude - even == 0.5 { even + 1.0 } else { even };
    (nearest.copysign(v) + ROUND).to_bits() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_halved_until_it_divides_every_column_count() {
        assert_eq!(group_size_for([2048, 5632], 64), Ok(64));
        assert_eq!(group_size_for([288, 768], 64), Ok(32));
        assert_eq!(group_size_for([64], 256), Ok(64));
        assert_eq!(group_size_for([96], 96), Ok(96));
    }

    #[test]
    fn group_that_would_fall_below_the_shortest_is_refused() {
        assert_eq!(group_size_for([48, 64], 64), Err(QuantError::NoGroup { wanted: 64, cols: 48 }));
        assert_eq!(group_size_for([0], 64), Err(QuantError::NoGroup { wanted: 64, cols: 0 }));
        assert_eq!(group_size_for([64], 0), Err(QuantError::BadGroup { group: 0 }));
        assert_eq!(group_size_for([64], 16), Err(QuantError::BadGroup { group: 16 }));
        assert_eq!(group_size_for([1 << 20], 1 << 20), Ok(GROUP_MAX));
        assert!(group_size_for([96], 48).is_err());
    }

    #[test]
    fn weights_round_half_away_from_zero() {
        let mut w = [0.0; 32];
        // The scale is exactly 1, so the rounding sees these values.
        w[..8].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 1.5, -2.5, 0.49999997, 126.49999]);
        let mut q = [99; 32];
        assert_eq!(quantize_group(&w, &mut q), 1.0);
        assert_eq!(q[..8], [127, -127, 1, -1, 2, -3, 0, 126]);
        assert_eq!(q[8..], [0; 24]);
    }

    #[test]
    fn rounding_agrees_with_the_library_around_every_half() {
        for n in -127..=126 {
            let half = n as f32 + 0.5;
            for v in [half.next_down().next_down(), half.next_down(), half, half.next_up()] {
                assert_eq!(i32::from(round_half_away(v)), v.round() as i32, "{v:?}");
            }
            assert_eq!(i32::from(round_half_away(n as f32)), n);
        }
        assert_eq!(round_half_away(127.0_f32.next_up()), 127);
    }

    #[test]
    fn zero_and_vanishing_groups_get_scale_zero() {
        for tiny in [0.0, -0.0, f32::from_bits(1), f32::MIN_POSITIVE] {
            let mut q = [1; 32];
            assert_eq!(quantize_group(&[tiny; 32], &mut q).to_bits(), 0);
            assert_eq!(q, [0; 32]);
        }
        let mut q = [1; 32];
        let scale = quantize_group(&[1e-36; 32], &mut q);
        assert!(scale > 0.0 && q == [127; 32]);
    }

    #[test]
    fn group_with_a_nan_or_infinity_gets_scale_nan() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut w = [1.0; 32];
            w[17] = bad;
            let mut q = [1; 32];
            assert!(quantize_group(&w, &mut q).is_nan());
            assert_eq!(q, [0; 32]);
        }
    }

    #[test]
    fn dequantised_weights_are_within_half_a_step() {
        let w: Vec<f32> = (0..256).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        let (mut q, mut scales, mut back) = (vec![0; 256], vec![0.0; 4], vec![0.0; 256]);
        quantize(&w, 64, &mut q, &mut scales);
        dequantize(&q, &scales, 64, &mut back);
        for (i, (w, b)) in w.iter().zip(&back).enumerate() {
            assert!((w - b).abs() <= scales[i / 64] * 0.500001, "{i}: {w} {b}");
        }
    }

    #[test]
    fn matrix_of_inconsistent_lengths_is_refused() {
        let (q, s) = (vec![0_i8; 128], vec![0.0; 4]);
        assert!(Q8Matrix::new(&q, &s, 64, 32).is_ok());
        assert!(matches!(Q8Matrix::new(&q, &s, 64, 48), Err(QuantError::BadGroup { group: 48 })));
        assert!(matches!(Q8Matrix::new(&q, &s, 64, 0), Err(QuantError::BadGroup { .. })));
        assert!(matches!(Q8Matrix::new(&q, &s, 48, 32), Err(QuantError::RowLen { .. })));
        assert!(matches!(Q8Matrix::new(&q, &s, 0, 32), Err(QuantError::RowLen { .. })));
        assert!(matches!(Q8Matrix::new(&q[1..], &s, 64, 32), Err(QuantError::Values { .. })));
        assert!(matches!(Q8Matrix::new(&q, &s[1..], 64, 32), Err(QuantError::Scales { .. })));
    }

    #[test]
    fn a_slice_of_rows_has_those_rows() {
        let q: Vec<i8> = (0..96).collect();
        let s = [1.0, 2.0, 3.0];
        let matrix = Q8Matrix::new(&q, &s, 32, 32).unwrap().slice_rows(1..3);
        assert_eq!(matrix.rows(), 2);
        assert_eq!(matrix.row(1).q, &q[64..]);
        assert_eq!(matrix.row(1).scales, [3.0]);
    }
}
