//! Matrix products as tiles of 1 or 4 activation rows by 4 weight rows.
//!
//! Weight rows are outermost: each is read from memory once and stays in cache for the whole batch. A last tile of
//! fewer than four weight rows repeats the last row.

use super::packed::layout::GROUP_MAX;
use super::scalar;
use super::table::{Blocks4, SummedRow, Table, call};
use crate::quant::bcml1::BLOCK;
use crate::quant::{
    Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, GgmlMatrix, Q8Activations, Q8Matrix, Q8Row,
};

/// See [`super::Kernels::matmul_q8`].
pub(super) fn matmul_q8(
    table: &Table,
    w: Q8Matrix<'_>,
    x: Q8Activations<'_>,
    out: &mut [&mut [f32]],
) {
    let (rows, m, group) = (w.rows(), x.m(), w.group());
    assert_eq!(w.k(), x.k());
    assert_eq!(group, x.group());
    assert_eq!(out.len(), m);
    assert!(out.iter().all(|out| out.len() == rows));
    for row in (0..rows).step_by(4) {
        let w4 = [0, 1, 2, 3].map(|j| w.row((row + j).min(rows - 1)));
        let (x_tiles, rest) = out.as_chunks_mut::<4>();
        for (tile, out) in x_tiles.iter_mut().enumerate() {
            let x4 = [0, 1, 2, 3].map(|i| x.row(tile * 4 + i));
            let y = call!(table.dot_q8_q8_f32_4x4(&x4, &w4, group));
            for (out, y) in out.iter_mut().zip(&y) {
                put(out, row, y);
            }
        }
        for (out, i) in rest.iter_mut().zip(m - m % 4..) {
            let y = call!(table.dot_q8_q8_f32_1x4(&x.row(i), &w4, group));
            put(out, row, &y);
        }
    }
}

/// See [`super::Kernels::matmul_q4`].
pub(super) fn matmul_q4(
    table: &Table,
    w: Bcml1Matrix<'_>,
    x: Q8Activations<'_>,
    sums: &[i32],
    out: &mut [&mut [f32]],
) {
    let (rows, m, group, row_blocks) = (w.rows(), x.m(), x.group(), w.k() / BLOCK);
    assert_eq!(w.k(), x.k());
    assert_eq!(sums.len(), m * row_blocks);
    assert_eq!(out.len(), m);
    assert!(out.iter().all(|out| out.len() == rows));
    let x_row = |i| SummedRow { row: x.row(i), sums: &sums[i * row_blocks..][..row_blocks] };
    for row in (0..rows).step_by(4) {
        let w4 = [0, 1, 2, 3].map(|j| w.row((row + j).min(rows - 1)));
        let (x_tiles, rest) = out.as_chunks_mut::<4>();
        for (tile, out) in x_tiles.iter_mut().enumerate() {
            let x4 = [0, 1, 2, 3].map(|i| x_row(tile * 4 + i));
            let y = call!(table.dot_q8_q4_f32_4x4(&x4, &w4, group));
            for (out, y) in out.iter_mut().zip(&y) {
                put(out, row, y);
            }
        }
        for (out, i) in rest.iter_mut().zip(m - m % 4..) {
            let y = call!(table.dot_q8_q4_f32_1x4(&x_row(i), &w4, group));
            put(out, row, &y);
        }
    }
}

/// See [`super::Kernels::matmul_b2`]. No tier has kernels for unpacked rows, which only machines without room for
/// packed ones use.
pub(super) fn matmul_b2(
    w: Bcml2Matrix<'_>,
    x: Q8Activations<'_>,
    sums: &[i32],
    out: &mut [&mut [f32]],
) {
    let (rows, m, group, row_blocks) = (w.rows(), x.m(), x.group(), w.k() / BLOCK);
    assert_eq!(w.k(), x.k());
    assert!(group <= GROUP_MAX);
    assert_eq!(sums.len(), m * row_blocks);
    assert_eq!(out.len(), m);
    assert!(out.iter().all(|out| out.len() == rows));
    for index in 0..rows {
        let row = w.row(index);
        for (i, out) in out.iter_mut().enumerate() {
            let x = SummedRow { row: x.row(i), sums: &sums[i * row_blocks..][..row_blocks] };
            out[index] = scalar::dot_q8_b2(&x, &row, group);
        }
    }
}

/// See [`super::Kernels::matmul_b6`]. Like [`matmul_b2`], no tier has kernels for it.
pub(super) fn matmul_b6(w: Bcml6Matrix<'_>, x: Q8Activations<'_>, out: &mut [&mut [f32]]) {
    assert_eq!(w.k(), x.k());
    assert_eq!(x.group(), BLOCK);
    assert_eq!(out.len(), x.m());
    assert!(out.iter().all(|out| out.len() == w.rows()));
    for index in 0..w.rows() {
        let row = w.row(index);
        for (i, out) in out.iter_mut().enumerate() {
            out[index] = scalar::dot_q8_b6(&x.row(i), &row);
        }
    }
}

/// See [`super::Kernels::matmul_ggml`]. Like [`matmul_b2`], no tier has kernels for it.
pub(super) fn matmul_ggml(w: GgmlMatrix<'_>, x: Q8Activations<'_>, out: &mut [&mut [f32]]) {
    assert_eq!(w.k(), x.k());
    assert_eq!(x.group(), BLOCK);
    assert_eq!(out.len(), x.m());
    assert!(out.iter().all(|out| out.len() == w.rows()));
    for index in 0..w.rows() {
        for (i, out) in out.iter_mut().enumerate() {
            out[index] = scalar::dot_q8_ggml(&x.row(i), w.kind(), w.row(index));
        }
    }
}

/// See [`super::Kernels::matmul_f32`].
pub(super) fn matmul_f32(table: &Table, w: &[f32], k: usize, x: &[f32], out: &mut [&mut [f32]]) {
    assert!(k != 0);
    assert!(w.len().is_multiple_of(k));
    assert!(x.len().is_multiple_of(k));
    let rows = w.len() / k;
    assert_eq!(out.len(), x.len() / k);
    assert!(out.iter().all(|out| out.len() == rows));
    for row in (0..rows).step_by(4) {
        let w4 = [0, 1, 2, 3].map(|j| &w[(row + j).min(rows - 1) * k..][..k]);
        for (x, out) in x.chunks_exact(k).zip(out.iter_mut()) {
            let y = call!(table.dot_f32_f32_f32_1x4(x, w4));
            put(out, row, &y);
        }
    }
}

/// Rows cut to one length, so one bounds check serves all of them.
#[inline(always)]
pub(super) fn level<'a, const M: usize>(
    rows: [&Q8Row<'a>; M],
    k: usize,
    group: usize,
) -> [Q8Row<'a>; M] {
    rows.map(|row| Q8Row { q: &row.q[..k], scales: &row.scales[..k / group] })
}

/// Each row's scale of group `g`.
#[inline(always)]
pub(super) fn scales(rows: &[Q8Row<'_>; 4], g: usize) -> [f32; 4] {
    rows.each_ref().map(|row| row.scales[g])
}

/// Group `g` of each row, in vectors of `N` bytes.
///
/// A function of its own: a closure inside a tier's function is compiled for its features and would not be inlined into
/// `map`.
#[inline(always)]
pub(super) fn chunks<'a, const M: usize, const N: usize>(
    rows: &[Q8Row<'a>; M],
    g: usize,
    group: usize,
) -> [&'a [[i8; N]]; M] {
    rows.each_ref().map(|row| row.q[g * group..][..group].as_chunks().0)
}

/// Activation rows of a 4-bit tile in blocks: values, and sums of blocks.
#[inline(always)]
pub(super) fn level_blocks<'a, const M: usize>(
    rows: [&SummedRow<'a>; M],
    blocks: usize,
) -> [(&'a [[i8; BLOCK]], &'a [i32]); M] {
    rows.map(|x| (&x.row.q.as_chunks().0[..blocks], &x.sums[..blocks]))
}

/// Weight rows cut to the same number of blocks.
#[inline(always)]
pub(super) fn level_weights<'a>(rows: &Blocks4<'a>, blocks: usize) -> Blocks4<'a> {
    rows.map(|row| &row[..blocks])
}

/// Writes a tile's results to the columns from `row` on; results of repeated rows are dropped.
fn put(out: &mut [f32], row: usize, y: &[f32; 4]) {
    for (out, y) in out[row..].iter_mut().zip(y) {
        *out = *y;
    }
}
