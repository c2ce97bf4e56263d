//! Single rows of packed matrices as f32: embeddings of tokens, where the embedding is also the classifier.

use super::layout::{Layout, PackedB2, PackedB6, PackedGgml, PackedQ4, PackedQ8, Panels};
use super::{ggml, six};
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};
use crate::quant::f16::half_to_f32;
use crate::quant::ggml::Run;
use crate::quant::{bcml2, bcml6};

impl PackedQ8<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`dequantize`](crate::quant::dequantize).
    ///
    /// # Panics
    ///
    /// When there is no such row, or `out` has another length.
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        let panels = self.panels();
        assert_eq!(out.len(), panels.dims.k);
        let groups = byte_groups(&panels, index, self.group());
        for ((scale, codes), out) in groups.zip(out.chunks_exact_mut(self.group())) {
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = scale * f32::from(code));
        }
    }

    /// Scale and codes of each group of row `index`.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    #[cfg(feature = "gpu")]
    pub fn groups_of(&self, index: usize) -> impl Iterator<Item = (f32, impl Iterator<Item = i8>)> {
        byte_groups(&self.panels(), index, self.group())
    }
}

impl PackedQ4<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`decode`](crate::quant::bcml1::decode).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.panels().dims.k);
        for (block, out) in self.blocks_of(index).zip(out.as_chunks_mut::<BLOCK>().0) {
            let (multiplier, offset, codes) = block;
            *out = codes.map(|code| f32::from(code) * multiplier + offset);
        }
    }

    /// Multiplier, offset and codes of each block of row `index`.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn blocks_of(&self, index: usize) -> impl Iterator<Item = (f32, f32, [u8; BLOCK])> {
        let (layout, row, _, groups) = place(&self.panels(), index);
        groups.chunks_exact(layout.nr * BLOCK_BYTES).map(move |block| {
            let (parameters, codes) = block.split_at(4 * layout.nr);
            let at = layout.parameter(row);
            let multiplier = half_at(parameters, at);
            let offset = half_at(parameters, at + layout.strip_rows);
            (multiplier, offset, std::array::from_fn(|i| layout.code(row, i, codes)))
        })
    }
}

impl PackedB2<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`decode`](crate::quant::bcml2::decode).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.panels().dims.k);
        let (step, blocks) = self.blocks_of(index);
        for ((scale, zero, codes), out) in blocks.zip(out.as_chunks_mut::<BLOCK>().0) {
            let (scale, zero) = (i32::from(scale), i32::from(zero));
            *out = codes
                .map(|code| step * (scale * (bcml2::ZERO_PARTS * i32::from(code) - zero)) as f32);
        }
    }

    /// The step of row `index`; scale, zero and codes of each of its blocks.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn blocks_of(&self, index: usize) -> (f32, impl Iterator<Item = (u8, u8, [u8; BLOCK])>) {
        let (layout, row, steps, groups) = place(&self.panels(), index);
        let nr = layout.nr;
        let blocks = groups.chunks_exact(nr * bcml2::BLOCK_BYTES).map(move |block| {
            let (parameters, codes) = block.split_at(2 * nr);
            let at = layout.b2_parameter(row);
            let flip = if layout.has_biased_codes(row) { 0x80 } else { 0 };
            let codes = std::array::from_fn(|i| layout.code(row, i, codes));
            (parameters[at], parameters[nr + at] ^ flip, codes)
        });
        (f32_at(steps, row), blocks)
    }
}

impl PackedB6<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`decode`](crate::quant::bcml6::decode).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.panels().dims.k);
        for ((scale, codes), out) in self.blocks_of(index).zip(out.as_chunks_mut::<BLOCK>().0) {
            *out = codes.map(|code| scale * f32::from(code));
        }
    }

    /// Scale and values of each block of row `index`.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn blocks_of(&self, index: usize) -> impl Iterator<Item = (f32, [i8; BLOCK])> {
        let (layout, row, steps, groups) = place(&self.panels(), index);
        let (nr, step) = (layout.nr, f32_at(steps, row));
        groups.chunks_exact(nr * bcml6::BLOCK_BYTES).map(move |block| {
            let (scales, codes) = block.split_at(nr);
            let code = |i| six::code(codes, layout.byte(row, i)) as i8 - bcml6::ZERO as i8;
            (step * f32::from(scales[row]), std::array::from_fn(code))
        })
    }
}

impl PackedGgml<'_> {
    /// Writes row `index` to `out`, `[k]`: the bits of [`widen`](crate::quant::Ggml::widen).
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::read_row`].
    pub fn read_row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.panels().dims.k);
        // A sum with an offset of 0 would lose the sign of -0.
        let has_min = self.kind().form().is_some_and(|form| form.has_min);
        let runs = |run: Run, out: &mut [f32; BLOCK]| {
            for (i, (out, code)) in out.iter_mut().zip(run.codes).enumerate() {
                let half = i / (BLOCK / 2);
                *out = run.scales[half] * f32::from(code);
                if has_min {
                    *out += run.offset * f32::from(run.mins[half]);
                }
            }
        };
        let mut out = out.as_chunks_mut::<BLOCK>().0.iter_mut();
        self.for_runs(index, |run| out.next().into_iter().for_each(|out| runs(run, out)));
    }

    /// Calls `f` with the runs of row `index`, in order.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn for_runs(&self, index: usize, mut f: impl FnMut(Run)) {
        let panels = self.panels();
        let Some(form) = self.kind().form() else {
            for (scale, mut bytes) in byte_groups(&panels, index, BLOCK) {
                let codes = std::array::from_fn(|_| bytes.next().unwrap_or(0));
                f(Run { codes, scales: [scale; 2], offset: 0.0, mins: [1; 2] });
            }
            return;
        };
        let (layout, row, _, groups) = place(&panels, index);
        for block in groups.chunks_exact(form.panel_block(layout.nr)) {
            for i in 0..form.columns() / BLOCK {
                f(ggml::get(layout, form, (row, i), block).run(form));
            }
        }
    }
}

/// Scale and codes of each group of a row of int8 weights.
fn byte_groups<'a>(
    panels: &Panels<'a>,
    index: usize,
    group: usize,
) -> impl Iterator<Item = (f32, impl Iterator<Item = i8> + use<'a>)> + use<'a> {
    let (layout, row, _, groups) = place(panels, index);
    groups.chunks_exact(layout.group_bytes(group)).map(move |bytes| {
        let (scales, codes) = bytes.split_at(4 * layout.nr);
        let code = move |i| (codes[layout.byte(row, i)] ^ layout.flip) as i8;
        (f32_at(scales, row), (0..group).map(code))
    })
}

/// The layout, a row's place in its panel, and the panel's bytes before its groups and its groups.
fn place<'a>(panels: &Panels<'a>, index: usize) -> (Layout, usize, &'a [u8], &'a [u8]) {
    assert!(index < panels.dims.rows);
    let nr = panels.layout.nr;
    let (head, groups) = panels.panel(index / nr);
    (panels.layout, index % nr, head, groups)
}

#[inline]
fn f32_at(bytes: &[u8], index: usize) -> f32 {
    f32::from_ne_bytes(bytes.as_chunks().0[index])
}

#[inline]
fn half_at(bytes: &[u8], index: usize) -> f32 {
    half_to_f32(u16::from_ne_bytes(bytes.as_chunks().0[index]))
}
