//! Single rows of packed matrices as f32: embeddings of tokens, where the embedding is also the classifier.

use super::layout::{Layout, PackedB2, PackedB6, PackedGgml, PackedQ4, PackedQ8, Panels};
use super::{ggml, six};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};
use crate::quant::f16::half_to_f32;
use crate::quant::ggml::Form;
use crate::quant::{bcml2, bcml6};

impl PackedQ8<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`dequantize`](crate::quant::dequantize).
    ///
    /// # Panics
    ///
    /// When there is no such row, or `out` has another length.
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        read_bytes(&self.panels(), index, self.group(), out);
    }
}

impl PackedQ4<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`decode`](crate::quant::bcml1::decode).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        let (layout, row, _, groups) = place(&self.panels(), index, out);
        let blocks = groups.chunks_exact(layout.nr * BLOCK_BYTES);
        for (block, out) in blocks.zip(out.as_chunks_mut::<BLOCK>().0) {
            let (parameters, codes) = block.split_at(4 * layout.nr);
            let at = layout.parameter(row);
            let multiplier = half_at(parameters, at);
            let offset = half_at(parameters, at + layout.strip_rows);
            for (i, out) in out.iter_mut().enumerate() {
                *out = f32::from(layout.code(row, i, codes)) * multiplier + offset;
            }
        }
    }
}

impl PackedB2<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`decode`](crate::quant::bcml2::decode).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        let (layout, row, steps, groups) = place(&self.panels(), index, out);
        let (nr, step) = (layout.nr, f32_at(steps, row));
        let blocks = groups.chunks_exact(nr * bcml2::BLOCK_BYTES);
        for (block, out) in blocks.zip(out.as_chunks_mut::<BLOCK>().0) {
            let (parameters, codes) = block.split_at(2 * nr);
            let at = layout.b2_parameter(row);
            let flip = if layout.has_biased_codes(row) { 0x80 } else { 0 };
            let (scale, zero) = (i32::from(parameters[at]), i32::from(parameters[nr + at] ^ flip));
            for (i, out) in out.iter_mut().enumerate() {
                let code = i32::from(layout.code(row, i, codes));
                *out = step * (scale * (bcml2::ZERO_PARTS * code - zero)) as f32;
            }
        }
    }
}

impl PackedB6<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`decode`](crate::quant::bcml6::decode).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        let (layout, row, steps, groups) = place(&self.panels(), index, out);
        let (nr, step) = (layout.nr, f32_at(steps, row));
        let blocks = groups.chunks_exact(nr * bcml6::BLOCK_BYTES);
        for (block, out) in blocks.zip(out.as_chunks_mut::<BLOCK>().0) {
            let (scales, codes) = block.split_at(nr);
            let scale = step * f32::from(scales[row]);
            for (i, out) in out.iter_mut().enumerate() {
                let code = six::code(codes, layout.byte(row, i));
                *out = scale * f32::from(code as i8 - bcml6::ZERO as i8);
            }
        }
    }
}

impl PackedGgml<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`widen`](crate::quant::Ggml::widen).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        let Some(form) = self.kind().form() else {
            return read_bytes(&self.panels(), index, BLOCK, out);
        };
        let (layout, row, _, groups) = place(&self.panels(), index, out);
        let blocks = groups.chunks_exact(form.panel_block(layout.nr));
        for (block, out) in blocks.zip(out.chunks_exact_mut(form.len())) {
            for (i, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
                read_run((layout, form), (row, i), block, out);
            }
        }
    }
}

/// Reads run `i` of a row of a panel's block.
fn read_run(
    (layout, form): (Layout, Form),
    (row, i): (usize, usize),
    block: &[u8],
    out: &mut [f32; BLOCK],
) {
    let codes = ggml::get(layout, form, (row, i), block);
    let scales = codes.scales.map(|scale| form.scale(codes.d, scale));
    for (i, (out, code)) in out.iter_mut().zip(codes.codes).enumerate() {
        *out = scales[i / (BLOCK / 2)] * f32::from(form.integer(code));
    }
    // A sum with an offset of 0 would lose the sign of -0.
    if form.has_min {
        let offset = form.offset(codes.m, codes.min);
        out.iter_mut().for_each(|out| *out += offset);
    }
}

/// Reads a row of groups of int8 weights.
fn read_bytes(panels: &Panels<'_>, index: usize, group: usize, out: &mut [f32]) {
    let (layout, row, _, groups) = place(panels, index, out);
    let groups = groups.chunks_exact(layout.group_bytes(group));
    for (bytes, out) in groups.zip(out.chunks_exact_mut(group)) {
        let (scales, codes) = bytes.split_at(4 * layout.nr);
        let scale = f32_at(scales, row);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from((codes[layout.byte(row, i)] ^ layout.flip) as i8);
        }
    }
}

/// The layout, a row's place in its panel, and the panel's bytes before its groups and its groups.
fn place<'a>(
    panels: &Panels<'a>,
    index: usize,
    out: &[f32],
) -> (Layout, usize, &'a [u8], &'a [u8]) {
    assert!(index < panels.dims.rows);
    assert_eq!(out.len(), panels.dims.k);
    let nr = panels.layout.nr;
    let (head, groups) = panels.panel(index / nr);
    (panels.layout, index % nr, head, groups)
}

fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_ne_bytes(bytes.as_chunks().0[index])
}

fn half_at(bytes: &[u8], index: usize) -> f32 {
    half_to_f32(u16::from_ne_bytes(bytes.as_chunks().0[index]))
}
