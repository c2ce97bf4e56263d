//! Packing of weights, for any CPU.

use std::ops::Range;

use super::layout::{Layout, MatrixDims, NR_MAX};
use super::{ggml, six};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};
use crate::quant::ggml::Form;
use crate::quant::{Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, GgmlMatrix, Q8Matrix};
use crate::quant::{bcml2, bcml6};

impl Layout {
    /// Packs `w`, whole panels of a matrix or its last rows, into `out`. This CPU need not have the layout's
    /// instruction set.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as [`Layout::bytes_q8`] says.
    pub fn pack_q8(&self, w: Q8Matrix<'_>, out: &mut [u8]) {
        pack_q8(*self, w, out);
    }

    /// Packs a 4-bit matrix.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as [`Layout::bytes_q4`] says.
    pub fn pack_q4(&self, w: Bcml1Matrix<'_>, out: &mut [u8]) {
        pack_q4(*self, w, out);
    }

    /// Packs a matrix of BCML2.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as [`Layout::bytes_b2`] says.
    pub fn pack_b2(&self, w: Bcml2Matrix<'_>, out: &mut [u8]) {
        pack_b2(*self, w, out);
    }

    /// Packs a matrix of BCML6.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as [`Layout::bytes_b6`] says.
    pub fn pack_b6(&self, w: Bcml6Matrix<'_>, out: &mut [u8]) {
        pack_b6(*self, w, out);
    }

    /// Packs a matrix of a GGUF file's blocks.
    ///
    /// # Panics
    ///
    /// When `out` is not as long as [`Layout::bytes_ggml`] says.
    pub fn pack_ggml(&self, w: GgmlMatrix<'_>, out: &mut [u8]) {
        pack_ggml(*self, w, out);
    }
}

/// See [`Layout::pack_q8`].
fn pack_q8(layout: Layout, w: Q8Matrix<'_>, out: &mut [u8]) {
    assert_eq!(
        layout.bytes_q8(MatrixDims { rows: w.rows(), k: w.k() }, w.group()),
        Some(out.len())
    );
    for (rows, out) in panels(layout, w.rows(), out) {
        let w = w.slice_rows(rows);
        match layout.kr {
            8 => pack_panel::<8>(layout, w, out),
            _ => pack_panel::<4>(layout, w, out),
        }
    }
}

/// Rows and bytes of each panel; none if the matrix has no rows.
fn panels(
    layout: Layout,
    rows: usize,
    out: &mut [u8],
) -> impl Iterator<Item = (Range<usize>, &mut [u8])> {
    let panel_bytes = (out.len() / rows.div_ceil(layout.nr).max(1)).max(1);
    let starts = (0..rows).step_by(layout.nr);
    let ranges = starts.map(move |start| start..(start + layout.nr).min(rows));
    ranges.zip(out.chunks_exact_mut(panel_bytes))
}

fn pack_panel<const KR: usize>(layout: Layout, w: Q8Matrix<'_>, out: &mut [u8]) {
    let (nr, group) = (layout.nr, w.group());
    if w.rows() < nr {
        pad(layout, group, out);
    }
    for row in 0..w.rows() {
        let w = w.row(row);
        let groups = w.q.chunks_exact(group).zip(out.chunks_exact_mut(layout.group_bytes(group)));
        for ((q, out), scale) in groups.zip(w.scales) {
            let (scales, out) = out.split_at_mut(nr * size_of::<f32>());
            scales.as_chunks_mut().0[row] = scale.to_ne_bytes();
            let (out, _) = out.as_chunks_mut::<KR>();
            for (c, q) in q.as_chunks::<KR>().0.iter().enumerate() {
                out[layout.place(row, c)] = q.map(|q| q as u8 ^ layout.flip);
            }
        }
    }
}

/// Sets all rows of a panel to zeros.
fn pad(layout: Layout, group: usize, out: &mut [u8]) {
    for out in out.chunks_exact_mut(layout.group_bytes(group)) {
        let (scales, out) = out.split_at_mut(layout.nr * size_of::<f32>());
        scales.fill(0);
        out.fill(layout.flip);
    }
}

/// See [`Layout::pack_q4`].
fn pack_q4(layout: Layout, w: Bcml1Matrix<'_>, out: &mut [u8]) {
    assert_eq!(layout.bytes_q4(MatrixDims { rows: w.rows(), k: w.k() }, BLOCK), Some(out.len()));
    for (rows, out) in panels(layout, w.rows(), out) {
        let w = w.slice_rows(rows);
        match layout.kr {
            8 => pack_panel_q4::<8>(layout, w, out),
            _ => pack_panel_q4::<4>(layout, w, out),
        }
    }
}

fn pack_panel_q4<const KR: usize>(layout: Layout, w: Bcml1Matrix<'_>, out: &mut [u8]) {
    let nr = layout.nr;
    if w.rows() < nr {
        out.fill(0);
    }
    for row in 0..w.rows() {
        for (block, out) in w.row(row).iter().zip(out.chunks_exact_mut(nr * BLOCK_BYTES)) {
            let (parameters, out) = out.split_at_mut(4 * nr);
            let parameters = parameters.as_chunks_mut().0;
            let place = layout.parameter(row);
            parameters[place] = block.multiplier().to_ne_bytes();
            parameters[place + layout.strip_rows] = block.offset().to_ne_bytes();
            pack_codes::<KR>(layout, row, &block.codes(), out.as_chunks_mut().0);
        }
    }
}

/// See [`Layout::pack_b2`].
fn pack_b2(layout: Layout, w: Bcml2Matrix<'_>, out: &mut [u8]) {
    assert_eq!(layout.bytes_b2(MatrixDims { rows: w.rows(), k: w.k() }), Some(out.len()));
    for (rows, out) in panels(layout, w.rows(), out) {
        let w = w.slice_rows(rows);
        match layout.kr {
            8 => pack_panel_b2::<8>(layout, w, out),
            _ => pack_panel_b2::<4>(layout, w, out),
        }
    }
}

fn pack_panel_b2<const KR: usize>(layout: Layout, w: Bcml2Matrix<'_>, out: &mut [u8]) {
    let nr = layout.nr;
    if w.rows() < nr || !(w.k() / BLOCK).is_multiple_of(2) {
        out.fill(0);
    }
    let (steps, out) = out.split_at_mut(layout.step_bytes());
    for row in 0..w.rows() {
        let bcml2::Row { step, blocks } = w.row(row);
        steps.as_chunks_mut().0[row] = step.to_ne_bytes();
        for (block, out) in blocks.iter().zip(out.chunks_exact_mut(nr * bcml2::BLOCK_BYTES)) {
            let (parameters, out) = out.split_at_mut(2 * nr);
            let place = layout.b2_parameter(row);
            parameters[place] = block.scale();
            parameters[nr + place] = match layout.has_biased_codes(row) {
                true => block.zero ^ 0x80,
                false => block.zero,
            };
            pack_codes::<KR>(layout, row, &block.codes(), out.as_chunks_mut().0);
        }
    }
}

/// See [`Layout::pack_b6`].
fn pack_b6(layout: Layout, w: Bcml6Matrix<'_>, out: &mut [u8]) {
    assert_eq!(layout.bytes_b6(MatrixDims { rows: w.rows(), k: w.k() }), Some(out.len()));
    for (rows, out) in panels(layout, w.rows(), out) {
        let w = w.slice_rows(rows);
        match layout.kr {
            8 => pack_panel_b6::<8>(layout, w, out),
            _ => pack_panel_b6::<4>(layout, w, out),
        }
    }
}

fn pack_panel_b6<const KR: usize>(layout: Layout, w: Bcml6Matrix<'_>, out: &mut [u8]) {
    let (nr, mut codes) = (layout.nr, [0; NR_MAX * BLOCK]);
    let codes = &mut codes[..nr * BLOCK];
    out.fill(0);
    let (steps, out) = out.split_at_mut(layout.step_bytes());
    for row in 0..w.rows() {
        steps.as_chunks_mut().0[row] = w.row(row).step.to_ne_bytes();
    }
    for (b, out) in out.chunks_exact_mut(nr * bcml6::BLOCK_BYTES).enumerate() {
        let (scales, out) = out.split_at_mut(nr);
        for (row, scale) in scales[..w.rows()].iter_mut().enumerate() {
            let block = &w.row(row).blocks[b];
            *scale = block.scale();
            for (c, row_codes) in block.codes().as_chunks::<KR>().0.iter().enumerate() {
                codes.as_chunks_mut::<KR>().0[layout.place(row, c)] = *row_codes;
            }
        }
        six::join(codes, out);
    }
}

/// See [`Layout::pack_ggml`].
fn pack_ggml(layout: Layout, w: GgmlMatrix<'_>, out: &mut [u8]) {
    let dims = MatrixDims { rows: w.rows(), k: w.k() };
    assert_eq!(layout.bytes_ggml(w.kind(), dims), Some(out.len()));
    for (rows, out) in panels(layout, w.rows(), out) {
        let w = w.slice_rows(rows);
        match w.kind().form() {
            Some(form) => pack_panel_ggml(layout, form, w, out),
            None => pack_panel_bytes(layout, w, out),
        }
    }
}

/// Packs a type whose codes have fewer than eight bits.
fn pack_panel_ggml(layout: Layout, form: Form, w: GgmlMatrix<'_>, out: &mut [u8]) {
    let (kind, runs) = (w.kind(), form.columns() / BLOCK);
    out.fill(0);
    for (b, out) in out.chunks_exact_mut(form.panel_block(layout.nr)).enumerate() {
        for i in 0..runs {
            let mut codes = [0; NR_MAX * BLOCK];
            for row in 0..w.rows() {
                let block = &w.row(row)[b * kind.bytes()..][..kind.bytes()];
                ggml::put(layout, form, (row, i), &kind.codes(block, i), out, &mut codes);
            }
            ggml::join(layout, form, i, &codes[..layout.nr * BLOCK], out);
        }
    }
}

/// Packs a type whose codes are bytes as groups of 32 int8 weights.
fn pack_panel_bytes(layout: Layout, w: GgmlMatrix<'_>, out: &mut [u8]) {
    let (nr, kr) = (layout.nr, layout.kr());
    if w.rows() < nr {
        pad(layout, BLOCK, out);
    }
    for row in 0..w.rows() {
        let groups = out.chunks_exact_mut(layout.group_bytes(BLOCK));
        for (run, out) in w.kind().runs(w.row(row)).zip(groups) {
            let (scales, out) = out.split_at_mut(nr * size_of::<f32>());
            scales.as_chunks_mut().0[row] = run.scales[0].to_ne_bytes();
            for (c, codes) in run.codes.chunks_exact(kr).enumerate() {
                let out = &mut out[layout.place(row, c) * kr..][..kr];
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = *code as u8 ^ layout.flip;
                }
            }
        }
    }
}

/// Writes a row's codes of one block.
fn pack_codes<const KR: usize>(layout: Layout, row: usize, codes: &[u8], out: &mut [[u8; KR]]) {
    if layout.pairs_strips {
        return pack_half::<KR>(layout, row, codes, out);
    }
    for (c, [low, high]) in codes.as_chunks::<KR>().0.as_chunks().0.iter().enumerate() {
        let out = &mut out[layout.place(row, c)];
        for i in 0..KR {
            out[i] = low[i] | high[i] << 4;
        }
    }
}

/// Writes a row's codes of one block to their halves of bytes. Rows with low codes come first, and set the high codes
/// to zero.
fn pack_half<const KR: usize>(layout: Layout, row: usize, codes: &[u8], out: &mut [[u8; KR]]) {
    for (c, codes) in codes.as_chunks::<KR>().0.iter().enumerate() {
        let out = &mut out[layout.pair_place(row, c)];
        for i in 0..KR {
            match layout.is_high(row) {
                false => out[i] = codes[i],
                true => out[i] |= (codes[i] ^ 8) << 4,
            }
        }
    }
}
