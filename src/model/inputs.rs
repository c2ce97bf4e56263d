//! Input rows of a projection, in the form that its weights need.

use std::ops::Range;

use crate::arena::{Carver, Exhausted};
use crate::format::model::{EXPERTS_ACTIVE_MAX, Encoding, Header, Weights};
use crate::kernels::{ActivationRow, Q8Tiles};
use crate::quant::bcml1::BLOCK;
use crate::quant::{Q8Activations, Q8Row};

/// Room for the input rows of any projection of a model.
pub(super) struct Inputs<'a> {
    /// `[batch, k]`.
    pub(super) f32: &'a mut [f32],
    /// Quantised inputs; empty if the weights are f32. `[batch, k]`.
    pub(super) q: &'a mut [i8],
    /// Scales of `q`, one for each group; at most `[batch, k / group]`.
    pub(super) scales: &'a mut [f32],
    /// Zero points of packed int8 weights, one for each group; at most `[batch, k / group]`.
    pub(super) zeros: &'a mut [f32],
    /// Sums of each 32 values of `q` for weights of 4 or 4.5 bits, `[batch, k / 32]`.
    pub(super) sums: &'a mut [i32],
    /// Sums of each 32 values of `q` for packed weights, in the order of tiles.
    pub(super) tile_sums: &'a mut [f32],
}

impl<'a> Inputs<'a> {
    /// Splits the buffers into `n` equal parts.
    pub(super) fn split(&mut self, n: usize) -> heapless::Vec<Inputs<'_>, EXPERTS_ACTIVE_MAX> {
        let mut f32 = parts(self.f32, n);
        let mut q = parts(self.q, n);
        let mut scales = parts(self.scales, n);
        let mut zeros = parts(self.zeros, n);
        let mut sums = parts(self.sums, n);
        let mut tile_sums = parts(self.tile_sums, n);
        let all = (0..n).map(|_| Inputs {
            f32: f32(),
            q: q(),
            scales: scales(),
            zeros: zeros(),
            sums: sums(),
            tile_sums: tile_sums(),
        });
        all.collect()
    }

    /// The whole buffers, borrowed for a shorter time.
    pub(super) fn whole(&mut self) -> Inputs<'_> {
        let Inputs { f32, q, scales, zeros, sums, tile_sums } = self;
        Inputs { f32, q, scales, zeros, sums, tile_sums }
    }

    /// The f32 buffer, and the other buffers.
    pub(super) fn split_f32(&mut self) -> (&mut [f32], Inputs<'_>) {
        let Inputs { f32, q, scales, zeros, sums, tile_sums } = self;
        (f32, Inputs { f32: &mut [], q, scales, zeros, sums, tile_sums })
    }

    /// Takes buffers for `rows` rows.
    pub(super) fn carve(
        header: &Header,
        rows: usize,
        carver: &mut Carver<'a>,
    ) -> Result<Inputs<'a>, Exhausted> {
        let rows = |width: usize| rows.saturating_mul(width);
        let mixed = header.features.recurrent.map_or(0, |of| of.mixer.out_cols(header.dim));
        let widest = header.dim.max(header.q_dim_max()).max(header.ffn_dim_max()).max(mixed);
        let widest = widest.max(header.features.more.layer_input_dim).max(next_dim(header));
        let (q_width, scale_width) = match header.weights.group() {
            None => (0, 0),
            Some(group) if matches!(header.weights, Weights::Q8 { .. }) => {
                (widest, widest.div_ceil(group))
            }
            Some(_) => (widest, widest / BLOCK),
        };
        Ok(Inputs {
            f32: carver.take("inputs", rows(widest))?,
            q: carver.take("quantised inputs", rows(q_width))?,
            scales: carver.take("input scales", rows(scale_width))?,
            zeros: carver.take("zeros of sums", rows(scale_width))?,
            sums: carver.take("input sums", rows(q_width / BLOCK))?,
            tile_sums: carver.take("input sums in tiles", rows(q_width / BLOCK))?,
        })
    }
}

/// Width of the input of the block behind the last layer; 0 if there is none.
fn next_dim(header: &Header) -> usize {
    if header.features.more.has_next { header.dim.saturating_mul(2) } else { 0 }
}

/// Gives out `n` equal parts of `slice`, one after the other.
fn parts<'s, T>(slice: &'s mut [T], n: usize) -> impl FnMut() -> &'s mut [T] {
    let len = slice.len() / n;
    let mut rest = slice;
    move || {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
        rest = others;
        part
    }
}

/// Number of activations that share a scale, for weights with this encoding: that of the weights. `None` if
/// activations stay f32.
pub(crate) fn activation_group(encoding: Encoding) -> Option<usize> {
    match encoding {
        Encoding::F32 => None,
        Encoding::Q8 { group } => Some(group),
        Encoding::Bcml1 | Encoding::Bcml2 | Encoding::Bcml6 | Encoding::Ggml(_) => Some(BLOCK),
    }
}

/// Rows of inputs that the nodes of a team have gathered.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    /// `[m, k]` in f32; or for each row `k` bytes of int8, then its scales.
    pub(super) rows: &'a [f32],
    pub(super) k: usize,
    /// Number of values that share a scale; `None` if the values are f32.
    pub(super) group: Option<usize>,
}

impl<'a> Given<'a> {
    /// Length of a row, in f32.
    pub(super) fn row_len(k: usize, group: Option<usize>) -> usize {
        group.map_or(k, |group| k / size_of::<f32>() + k / group)
    }

    /// Row `index`.
    pub(super) fn row(&self, index: usize) -> ActivationRow<'a> {
        let len = Given::row_len(self.k, self.group);
        let row = &self.rows[index * len..][..len];
        match self.group {
            None => ActivationRow::F32(row),
            Some(_) => {
                let (q, scales) = row.split_at(self.k / size_of::<f32>());
                ActivationRow::Q8(Q8Row { q: bytemuck::cast_slice(q), scales })
            }
        }
    }

    /// The rows from `index` on.
    pub(super) fn from(&self, index: usize) -> Given<'a> {
        Given { rows: &self.rows[index * Given::row_len(self.k, self.group)..], ..*self }
    }
}

/// `m` rows of inputs, in the form for one kind of weights.
#[derive(Clone, Copy)]
pub(super) enum Prepared<'a> {
    F32 {
        /// `[m, k]`.
        x: &'a [f32],
        k: usize,
    },
    Q8(Q8Activations<'a>),
    Q4 {
        x: Q8Activations<'a>,
        /// `[m, k / 32]`.
        sums: &'a [i32],
    },
    PackedQ8(Q8Tiles<'a>),
    PackedQ4(Q8Tiles<'a>),
    B2 {
        x: Q8Activations<'a>,
        /// `[m, k / 32]`.
        sums: &'a [i32],
    },
    PackedB2(Q8Tiles<'a>),
}

impl<'a> Prepared<'a> {
    /// Number of rows.
    pub(super) fn m(&self) -> usize {
        match self {
            Prepared::F32 { x, k } => x.len() / k,
            Prepared::Q8(x) | Prepared::Q4 { x, .. } | Prepared::B2 { x, .. } => x.m(),
            Prepared::PackedQ8(x) | Prepared::PackedQ4(x) | Prepared::PackedB2(x) => x.m(),
        }
    }

    /// The rows of `range`. For packed weights it must begin at a tile's first row, and end at a tile's last
    /// row or the last of all.
    pub(super) fn slice_rows(&self, range: Range<usize>) -> Prepared<'a> {
        match self {
            Prepared::F32 { x, k } => {
                Prepared::F32 { x: &x[range.start * k..range.end * k], k: *k }
            }
            Prepared::Q8(x) => Prepared::Q8(x.slice_rows(range)),
            Prepared::Q4 { x, sums } => {
                let sums = rows_of(sums, x.k() / BLOCK, &range);
                Prepared::Q4 { x: x.slice_rows(range), sums }
            }
            Prepared::B2 { x, sums } => {
                let sums = rows_of(sums, x.k() / BLOCK, &range);
                Prepared::B2 { x: x.slice_rows(range), sums }
            }
            Prepared::PackedQ8(x) => Prepared::PackedQ8(x.slice_rows(range)),
            Prepared::PackedQ4(x) => Prepared::PackedQ4(x.slice_rows(range)),
            Prepared::PackedB2(x) => Prepared::PackedB2(x.slice_rows(range)),
        }
    }
}

/// The rows of `range`, each of `width` values.
fn rows_of<'a, T>(values: &'a [T], width: usize, range: &Range<usize>) -> &'a [T] {
    &values[range.start * width..range.end * width]
}
