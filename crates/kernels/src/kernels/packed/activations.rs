//! Quantised activations for packed weights, and their layout.

use std::ops::Range;
use std::ptr;

use super::super::table::{Table, call};
use super::cut::{CUT_ROWS, TileCut};
use super::layout::{GROUP_MAX, MatrixDims};
use super::tile::{Ahead, MR_MAX, Q8Tile, ZERO};
use crate::quant::Q8Row;
use crate::quant::bcml1::BLOCK;

/// Rows of `k` values in groups that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Values in a row.
    pub k: usize,
    /// Values in a group.
    pub group: usize,
}

/// A row of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileRow {
    /// Index of the row in the tile.
    pub row: usize,
    /// Rows of the tile.
    pub rows: usize,
}

/// A row of activations that is to be quantised, or already is.
#[derive(Debug, Clone, Copy)]
pub enum ActivationRow<'a> {
    /// Values.
    F32(&'a [f32]),
    /// Values that [`Kernels::quantize_q8`](super::super::Kernels::quantize_q8) has quantised.
    Q8(Q8Row<'a>),
}

impl<'a> ActivationRow<'a> {
    fn k(&self) -> usize {
        match self {
            ActivationRow::F32(x) => x.len(),
            ActivationRow::Q8(x) => x.q.len(),
        }
    }

    /// The row's groups `groups`.
    fn groups(&self, groups: Range<usize>, group: usize) -> ActivationRow<'a> {
        let values = groups.start * group..groups.end * group;
        match self {
            ActivationRow::F32(x) => ActivationRow::F32(&x[values]),
            ActivationRow::Q8(Q8Row { q, scales }) => {
                ActivationRow::Q8(Q8Row { q: &q[values], scales: &scales[groups] })
            }
        }
    }
}

/// The parts of quantised activations in tiles; `kernels/packed/mod.rs` describes their order.
#[derive(Debug, Clone, Copy)]
pub struct TileParts<'a> {
    /// Values.
    pub q: &'a [i8],
    /// A scale for each group.
    pub scales: &'a [f32],
    /// For int8 weights the zero of each group's sums; for 4-bit weights the sum of each 32 values.
    pub terms: &'a [f32],
}

/// Mutable parts of a tile of quantised activations, see [`TileParts`].
#[derive(Debug)]
pub struct TilePartsMut<'a> {
    /// Codes, see [`TileParts::q`].
    pub q: &'a mut [i8],
    /// Scales, see [`TileParts::scales`].
    pub scales: &'a mut [f32],
    /// Terms, see [`TileParts::terms`].
    pub terms: &'a mut [f32],
}

/// Quantised activations, `[m, k]`, in tiles of consistent lengths; `kernels/packed/mod.rs` describes their order.
/// Values come from [`Kernels::quantize_tile_row`](super::super::Kernels::quantize_tile_row) or
/// [`Kernels::quantize_tile_row_summed`](super::super::Kernels::quantize_tile_row_summed).
#[derive(Debug, Clone, Copy)]
pub struct Q8Tiles<'a> {
    q: &'a [i8],
    scales: &'a [f32],
    /// Zeros of sums, for int8 weights.
    zeros: &'a [f32],
    /// Sums of 32 values, for 4-bit weights.
    sums: &'a [f32],
    /// True if sums are the bits of integers.
    is_int: bool,
    k: usize,
    group: usize,
    cut: TileCut,
    /// Groups in a row.
    groups: usize,
}

impl<'a> Q8Tiles<'a> {
    /// For int8 weights: joins `[m, k]` values, `[m, k / group]` scales and as many zeros, written in the tiles of
    /// `cut`.
    ///
    /// # Panics
    ///
    /// When `k` is no whole number of groups, or the lengths do not fit together.
    pub fn new(parts: TileParts<'a>, groups: Groups, cut: TileCut) -> Self {
        assert_eq!(parts.terms.len(), parts.q.len() / groups.group);
        let tiles = Q8Tiles::without_terms(parts, groups, cut);
        Q8Tiles { zeros: parts.terms, ..tiles }
    }

    /// For 4-bit weights: joins `[m, k]` values, `[m, k / group]` scales and `[m, k / 32]` sums, written in the tiles
    /// of `cut`.
    ///
    /// # Panics
    ///
    /// When `k` is no whole number of groups, or the lengths do not fit together.
    pub fn summed(parts: TileParts<'a>, groups: Groups, cut: TileCut) -> Self {
        assert!(groups.group.is_multiple_of(BLOCK));
        assert_eq!(parts.terms.len(), parts.q.len() / BLOCK);
        let tiles = Q8Tiles::without_terms(parts, groups, cut);
        Q8Tiles { sums: parts.terms, ..tiles }
    }

    /// For weights of BCML2: like [`Q8Tiles::summed`], with sums that
    /// [`Kernels::quantize_tile_row_int_summed`](super::super::Kernels::quantize_tile_row_int_summed) wrote.
    ///
    /// # Panics
    ///
    /// See [`Q8Tiles::summed`].
    pub fn int_summed(parts: TileParts<'a>, groups: Groups, cut: TileCut) -> Self {
        Q8Tiles { is_int: true, ..Q8Tiles::summed(parts, groups, cut) }
    }

    fn without_terms(parts: TileParts<'a>, groups: Groups, cut: TileCut) -> Self {
        let (TileParts { q, scales, .. }, Groups { k, group }) = (parts, groups);
        assert!(k != 0);
        assert!(k.is_multiple_of(group));
        assert!(q.len().is_multiple_of(k));
        assert_eq!(scales.len(), q.len() / group);
        debug_assert!(!q.contains(&i8::MIN));
        let (zeros, sums, is_int) = (&[][..], &[][..], false);
        Q8Tiles { q, scales, zeros, sums, is_int, k, group, cut, groups: k / group }
    }

    pub(super) fn has_zeros(&self) -> bool {
        self.zeros.len() == self.q.len() / self.group
    }

    pub(super) fn has_sums(&self) -> bool {
        !self.is_int && self.sums.len() == self.q.len() / BLOCK
    }

    pub(super) fn has_int_sums(&self) -> bool {
        self.is_int && self.sums.len() == self.q.len() / BLOCK
    }

    /// Scales of all groups, in any order.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// Number of rows (tokens).
    pub fn m(&self) -> usize {
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

    /// The cut of rows into tiles.
    pub(super) fn cut(&self) -> TileCut {
        self.cut
    }

    /// The rows of `range`.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..m`, does not start with a tile, or ends inside a tile that is not the last.
    pub fn slice_rows(&self, range: Range<usize>) -> Q8Tiles<'a> {
        assert!(range.start.is_multiple_of(CUT_ROWS));
        assert!(range.end == self.m() || range.end.is_multiple_of(CUT_ROWS));
        let part = |per_row: usize| range.start * per_row..range.end * per_row;
        Q8Tiles {
            q: &self.q[part(self.k)],
            scales: &self.scales[part(self.groups)],
            zeros: if self.zeros.is_empty() { &[] } else { &self.zeros[part(self.groups)] },
            sums: if self.sums.is_empty() { &[] } else { &self.sums[part(self.k / BLOCK)] },
            ..*self
        }
    }

    /// The whole tile of rows `range`.
    pub(super) fn tile(&self, range: Range<usize>) -> Q8Tile<'a> {
        self.part(range, 0..self.groups)
    }

    /// Groups `groups` of the tile of rows `range`.
    #[inline(always)]
    pub(super) fn part(&self, range: Range<usize>, groups: Range<usize>) -> Q8Tile<'a> {
        let t = range.len();
        let first = range.start * self.groups + groups.start * t;
        let part = |each: usize| first * each..(first + groups.len() * t) * each;
        let blocks = self.group / BLOCK;
        Q8Tile {
            q: &self.q[part(self.group)],
            scales: &self.scales[part(1)],
            zeros: if self.zeros.is_empty() { &[] } else { &self.zeros[part(1)] },
            sums: if self.sums.is_empty() { &[] } else { &self.sums[part(blocks)] },
            group: self.group,
            ahead: Ahead { w: ptr::null(), w_step: 0, n_tiles: 0, rows: &[], column: 0 },
        }
    }
}

/// See [`super::super::Kernels::quantize_tile_row`].
pub(in crate::kernels) fn quantize_tile_row(
    table: &Table,
    x: ActivationRow<'_>,
    place: TileRow,
    group: usize,
    out: TilePartsMut<'_>,
) {
    let (TileRow { row, rows }, TilePartsMut { q, scales, terms: zeros }) = (place, out);
    assert_eq!(zeros.len(), rows * x.k() / group);
    quantize(table, x, place, group, (q, scales), |g, q| {
        let mut bias = [0];
        find_biases(table, q, group, &mut bias);
        // Exact: both are integers below 2^24.
        zeros[g * rows + row] = ZERO + bias[0] as f32;
    });
}

/// See [`super::super::Kernels::quantize_tile_row_summed`].
pub(in crate::kernels) fn quantize_tile_row_summed(
    table: &Table,
    x: ActivationRow<'_>,
    place: TileRow,
    group: usize,
    out: TilePartsMut<'_>,
) {
    // Exact: a sum of 32 bytes is a small integer.
    quantize_with_sums(table, x, place, group, out, |bias| bias as f32 * (-1.0 / 128.0));
}

/// See [`super::super::Kernels::quantize_tile_row_int_summed`].
pub(in crate::kernels) fn quantize_tile_row_int_summed(
    table: &Table,
    x: ActivationRow<'_>,
    place: TileRow,
    group: usize,
    out: TilePartsMut<'_>,
) {
    quantize_with_sums(table, x, place, group, out, |bias| {
        f32::from_bits((bias / -128).cast_unsigned())
    });
}

/// Quantises a row of a tile, and stores `sum(-128 * s)` for each block with the sum `s`.
#[inline(always)]
fn quantize_with_sums(
    table: &Table,
    x: ActivationRow<'_>,
    place: TileRow,
    group: usize,
    out: TilePartsMut<'_>,
    sum_of: impl Fn(i32) -> f32,
) {
    let (TileRow { row, rows }, TilePartsMut { q, scales, terms: sums }) = (place, out);
    assert_eq!(sums.len(), rows * x.k() / BLOCK);
    let n = group / BLOCK;
    quantize(table, x, place, group, (q, scales), |g, q| {
        let mut biases = [0; GROUP_MAX / BLOCK];
        find_biases(table, q, BLOCK, &mut biases[..n]);
        let sums = sums[g * n * rows + row..].iter_mut().step_by(rows);
        for (sum, bias) in sums.zip(&biases[..n]) {
            *sum = sum_of(*bias);
        }
    });
}

/// -128 times the sum of each `group` of values. The results are written into the caller's memory: moving them would
/// wait for the writes.
fn find_biases(table: &Table, q: &[i8], group: usize, biases: &mut [i32]) {
    call!(table.biases(q, group, biases));
}

/// See [`super::super::Kernels::quantize_row`].
pub(in crate::kernels) fn quantize_row(
    table: &Table,
    x: ActivationRow<'_>,
    group: usize,
    (q, scales): (&mut [i8], &mut [f32]),
) {
    match x {
        ActivationRow::F32(x) => call!(table.quantize_q8(x, group, q, scales)),
        ActivationRow::Q8(x) => {
            assert_eq!(q.len(), x.q.len());
            // Kernels need the absence of -128, and another node may have sent this row.
            q.iter_mut().zip(x.q).for_each(|(q, x)| *q = (*x).max(-i8::MAX));
            scales.copy_from_slice(x.scales);
        }
    }
}

/// Values of a row that are quantised before they are copied to their places: whole groups that fit the stack.
const PIECE: usize = 4 * GROUP_MAX;

/// Quantises a row of a tile in groups of `group` and calls `note(g, q)` for each.
fn quantize(
    table: &Table,
    x: ActivationRow<'_>,
    TileRow { row, rows: t }: TileRow,
    group: usize,
    (q, scales): (&mut [i8], &mut [f32]),
    mut note: impl FnMut(usize, &[i8]),
) {
    let layout = table.packed().layout;
    let k = x.k();
    assert!(row < t);
    assert!(t <= MR_MAX);
    assert!(layout.bytes_q8(MatrixDims { rows: 1, k }, group).is_some());
    assert_eq!(q.len(), t * k);
    assert_eq!(scales.len(), t * k / group);
    if t == 1 {
        quantize_row(table, x, group, (q, scales));
        return q.chunks_exact(group).enumerate().for_each(|(g, q)| note(g, q));
    }
    let (mut row_q, mut row_scales) = ([0; PIECE], [0.0; PIECE / BLOCK]);
    for first in (0..k / group).step_by(PIECE / group) {
        let groups = first..(first + PIECE / group).min(k / group);
        let (row_q, row_scales) =
            (&mut row_q[..groups.len() * group], &mut row_scales[..groups.len()]);
        quantize_row(
            table,
            x.groups(groups.clone(), group),
            group,
            (&mut *row_q, &mut *row_scales),
        );
        for ((g, scale), q) in groups.clone().zip(row_scales).zip(row_q.chunks_exact(group)) {
            scales[g * t + row] = *scale;
            note(g, q);
        }
        let q = &mut q[groups.start * group * t..groups.end * group * t];
        let at = row * layout.kr();
        // Constants for the heights of whole tiles and of few rows.
        match (layout.kr(), t) {
            (8, 12) => spread::<8, 96>(row_q, at, q),
            (8, 8) => spread::<8, 64>(row_q, at, q),
            (8, _) => spread_by::<8>(row_q, &mut q[at..], t),
            (_, 12) => spread::<4, 48>(row_q, at, q),
            (_, 8) => spread::<4, 32>(row_q, at, q),
            (_, 7) => spread::<4, 28>(row_q, at, q),
            (_, 6) => spread::<4, 24>(row_q, at, q),
            (_, 5) => spread::<4, 20>(row_q, at, q),
            (_, 4) => spread::<4, 16>(row_q, at, q),
            _ => spread_by::<4>(row_q, &mut q[at..], t),
        }
    }
}

/// Writes blocks of `KR` values `STEP` values apart, the first at `at`. This is a function of its own because its step
/// must be a constant.
#[inline(never)]
fn spread<const KR: usize, const STEP: usize>(row_q: &[i8], at: usize, q: &mut [i8]) {
    assert!(at <= STEP - KR);
    let blocks = row_q.as_chunks::<BLOCK>().0;
    for (q, row_q) in q.chunks_exact_mut(BLOCK / KR * STEP).zip(blocks) {
        for (q, block) in q.as_chunks_mut::<STEP>().0.iter_mut().zip(row_q.as_chunks::<KR>().0) {
            q[at..][..KR].copy_from_slice(block);
        }
    }
}

/// Writes blocks of `KR` values `t` blocks apart.
#[inline]
fn spread_by<const KR: usize>(row_q: &[i8], q: &mut [i8], t: usize) {
    let blocks = q.as_chunks_mut::<KR>().0.iter_mut().step_by(t);
    for (q, row_q) in blocks.zip(row_q.as_chunks::<KR>().0) {
        *q = *row_q;
    }
}
