//! The bytes of packed weights, and their sizes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::quant;
use crate::quant::bcml1::{BLOCK, BLOCK_BYTES};
use crate::quant::{Ggml, bcml2, bcml6};

/// Longest group of packed weights: zero points allow no more products. A matrix with longer groups stays unpacked.
pub const GROUP_MAX: usize = 256;

/// Most rows of any tier's panels.
pub(in crate::kernels) const NR_MAX: usize = 32;

/// Number of rows that makes whole panels in every tier.
pub const PANEL_ROWS: usize = NR_MAX;

/// Rows of a matrix, or of activations, of `k` values each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixDims {
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub k: usize,
}

/// A tier's order of packed weights; `kernels/packed/mod.rs` describes the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number that tells layouts apart, in files too.
    id: u32,
    /// Rows of a panel.
    pub(super) nr: usize,
    /// Consecutive columns of a row in a vector.
    pub(super) kr: usize,
    /// Rows of a strip: those that a kernel takes at once in one vector.
    pub(super) strip_rows: usize,
    /// Blocks of `kr` columns that follow each other in a strip.
    strip_steps: usize,
    /// XOR of each weight: 0, or 0x80, which flips the sign bit and so adds a u8 bias of 128.
    pub(super) flip: u8,
    /// True if a byte holds codes of two strips, not of neighbouring columns.
    pub(super) pairs_strips: bool,
}

impl Layout {
    /// Layouts of all tiers. They are here, not beside the kernels, because weights are also packed for other machines.
    pub(in crate::kernels) const AVX2: Layout = Layout::new(0x0121, 16, 4, 0);
    pub(in crate::kernels) const AVX_VNNI: Layout = Layout::new(0x0122, 16, 4, 0x80);
    pub(in crate::kernels) const AVX512_VNNI: Layout = Layout::new(0x0123, 32, 4, 0x80);
    pub(in crate::kernels) const NEON: Layout = Layout::new(0x0221, 8, 4, 0);
    pub(in crate::kernels) const NEON_DOT: Layout =
        Layout::new(0x0222, 16, 4, 0).in_strips(4, 4).in_pairs();
    pub(in crate::kernels) const NEON_I8MM: Layout = Layout::new(0x0223, 16, 8, 0).in_strips(4, 2);

    const fn new(id: u32, nr: usize, kr: usize, flip: u8) -> Layout {
        assert!(PANEL_ROWS.is_multiple_of(nr));
        assert!(kr == 4 || kr == 8);
        Layout { id, nr, kr, strip_rows: nr, strip_steps: 1, flip, pairs_strips: false }
    }

    /// This layout in strips of `rows` rows by `steps` times `kr` columns.
    pub(in crate::kernels) const fn in_strips(self, rows: usize, steps: usize) -> Layout {
        assert!(self.nr.is_multiple_of(rows));
        assert!((quant::GROUP_MIN / 2 / self.kr).is_multiple_of(steps));
        Layout { strip_rows: rows, strip_steps: steps, ..self }
    }

    /// This layout with codes of two strips in each byte.
    pub(in crate::kernels) const fn in_pairs(self) -> Layout {
        assert!((self.nr / self.strip_rows).is_multiple_of(2));
        Layout { pairs_strips: true, ..self }
    }

    /// A number for files: layouts with the same number have the same bytes. A layout that changes gets a new number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Rows of a panel, the unit of packed matrices.
    pub const fn panel_rows(&self) -> usize {
        self.nr
    }

    /// Consecutive columns of a row in a vector.
    pub(super) fn kr(&self) -> usize {
        self.kr
    }

    /// Index of block `c` of `kr` columns of row `row` among a group's blocks.
    pub(super) fn place(&self, row: usize, c: usize) -> usize {
        let (strip, row) = (row / self.strip_rows, row % self.strip_rows);
        let strips = self.nr / self.strip_rows;
        let (before, step) = (c / self.strip_steps * strips + strip, c % self.strip_steps);
        (before * self.strip_steps + step) * self.strip_rows + row
    }

    /// Index of the byte of column `i` of row `row` among a group's int8 weights.
    pub(super) fn byte(&self, row: usize, i: usize) -> usize {
        self.place(row, i / self.kr) * self.kr + i % self.kr
    }

    /// The code of column `i` of row `row` of a block of 4-bit weights, whose codes are `codes`.
    pub(super) fn code(&self, row: usize, i: usize, codes: &[u8]) -> u8 {
        let (c, j) = (i / self.kr, i % self.kr);
        if self.pairs_strips {
            let byte = codes[self.pair_place(row, c) * self.kr + j];
            return if self.is_high(row) { byte >> 4 ^ 8 } else { byte & 15 };
        }
        codes[self.place(row, c / 2) * self.kr + j] >> (c % 2 * 4) & 15
    }

    /// Index of the multiplier of row `row` among a block's parameters; its offset follows `strip_rows` later.
    pub(super) fn parameter(&self, row: usize) -> usize {
        row / self.strip_rows * 2 * self.strip_rows + row % self.strip_rows
    }

    /// Index of block `c` of a row's codes if strips are in pairs. The other strip's row shares these bytes.
    pub(super) fn pair_place(&self, row: usize, c: usize) -> usize {
        let (strip, row) = (row / self.strip_rows, row % self.strip_rows);
        (strip / 2 * (BLOCK / self.kr) + c) * self.strip_rows + row
    }

    /// True if a row's codes are the high ones of bytes with two strips.
    pub(super) fn is_high(&self, row: usize) -> bool {
        !(row / self.strip_rows).is_multiple_of(2)
    }

    /// True if a row's codes are stored less 8.
    pub(super) fn has_biased_codes(&self, row: usize) -> bool {
        self.pairs_strips && self.is_high(row)
    }

    /// Bytes of a packed matrix. `None` if it cannot be packed: its group is invalid or above [`GROUP_MAX`], `k` is no
    /// whole number of groups, or memory could not hold it.
    pub fn bytes_q8(&self, dims: MatrixDims, group: usize) -> Option<usize> {
        if !is_packable(dims.k, group) {
            return None;
        }
        self.panels_bytes(dims.rows, (dims.k / group).checked_mul(self.group_bytes(group))?)
    }

    /// Bytes of a packed 4-bit matrix for activations in groups of `group`; `None` in the cases of
    /// [`Layout::bytes_q8`].
    pub fn bytes_q4(&self, dims: MatrixDims, group: usize) -> Option<usize> {
        if !is_packable(dims.k, group) {
            return None;
        }
        self.panels_bytes(dims.rows, (dims.k / BLOCK).checked_mul(self.nr * BLOCK_BYTES)?)
    }

    /// Bytes of a packed matrix of BCML2; `None` if its rows are no whole blocks or memory could not hold it.
    pub fn bytes_b2(&self, dims: MatrixDims) -> Option<usize> {
        self.bytes_in_steps::<bcml2::Block>(dims)
    }

    /// Bytes of a packed matrix of BCML6; `None` if its rows are no whole blocks or memory could not hold it.
    pub fn bytes_b6(&self, dims: MatrixDims) -> Option<usize> {
        self.bytes_in_steps::<bcml6::Block>(dims)
    }

    /// Bytes of a packed matrix of a GGUF file's blocks; `None` if its rows are no whole blocks or memory could not hold
    /// it.
    pub fn bytes_ggml(&self, kind: Ggml, dims: MatrixDims) -> Option<usize> {
        if !dims.k.is_multiple_of(kind.len()) {
            return None;
        }
        let Some(form) = kind.form() else { return self.bytes_q8(dims, BLOCK) };
        if !is_packable(dims.k, BLOCK) {
            return None;
        }
        self.panels_bytes(
            dims.rows,
            (dims.k / form.columns()).checked_mul(form.panel_block(self.nr))?,
        )
    }

    fn bytes_in_steps<B>(&self, dims: MatrixDims) -> Option<usize> {
        if !is_packable(dims.k, BLOCK) || dims.k > usize::MAX / 2 {
            return None;
        }
        self.panels_bytes(dims.rows, quant::row_bytes::<B>(dims.k).checked_mul(self.nr)?)
    }

    /// Bytes of the steps at the beginning of a panel of BCML2 or BCML6.
    pub(super) fn step_bytes(&self) -> usize {
        self.nr * quant::STEP_BYTES
    }

    /// Index of the scale of row `row` among a block's scales of BCML2, and of its zero among the zeros. If strips are
    /// in pairs, those with the low codes come first.
    pub(super) fn b2_parameter(&self, row: usize) -> usize {
        let (strip, place) = (row / self.strip_rows, row % self.strip_rows);
        match self.pairs_strips {
            true => strip % 2 * (self.nr / 2) + strip / 2 * self.strip_rows + place,
            false => row,
        }
    }

    fn panels_bytes(&self, rows: usize, panel: usize) -> Option<usize> {
        panel.checked_mul(rows.div_ceil(self.nr)).filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    /// Bytes of a group of a panel, its scales included.
    pub(super) fn group_bytes(&self, group: usize) -> usize {
        self.nr * (size_of::<f32>() + group)
    }
}

fn is_packable(k: usize, group: usize) -> bool {
    let is_group = group != 0 && group.is_multiple_of(quant::GROUP_MIN) && group <= GROUP_MAX;
    is_group && k != 0 && k.is_multiple_of(group)
}

/// Reason why bytes are no packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackedBytesError {
    /// A matrix of this shape is not packed.
    Shape {
        /// Rows and columns of the matrix.
        dims: MatrixDims,
        /// Group of the matrix.
        group: usize,
    },
    /// The number of bytes is not the matrix's.
    Bytes {
        /// Bytes found.
        found: usize,
        /// Bytes wanted.
        wanted: usize,
    },
}

impl fmt::Display for PackedBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PackedBytesError::Shape { dims: MatrixDims { rows, k }, group } => {
                write!(f, "{rows} rows of {k} values in groups of {group} cannot be packed")
            }
            PackedBytesError::Bytes { found, wanted } => {
                write!(f, "{found} bytes for a packed matrix of {wanted}")
            }
        }
    }
}

impl std::error::Error for PackedBytesError {}

/// Panels of any kind of weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels<'a> {
    bytes: &'a [u8],
    pub(super) dims: MatrixDims,
    pub(super) layout: Layout,
    /// Bytes of a panel.
    panel_bytes: usize,
    /// Bytes before the first group of a panel: the steps of BCML2 and BCML6.
    head_bytes: usize,
    /// Bytes of a panel's groups.
    groups_bytes: usize,
}

impl<'a> Panels<'a> {
    fn new(
        bytes: &'a [u8],
        dims: MatrixDims,
        group: usize,
        layout: Layout,
        bytes_of: fn(&Layout, MatrixDims, usize) -> Option<usize>,
    ) -> Result<Self, PackedBytesError> {
        let sizes =
            [dims, MatrixDims { rows: 1, ..dims }].map(|dims| bytes_of(&layout, dims, group));
        Panels::of_sizes(bytes, dims, group, layout, sizes)
    }

    /// Panels whose matrix and whose panel have these `sizes`.
    fn of_sizes(
        bytes: &'a [u8],
        dims: MatrixDims,
        group: usize,
        layout: Layout,
        sizes: [Option<usize>; 2],
    ) -> Result<Self, PackedBytesError> {
        let [Some(wanted), Some(panel_bytes)] = sizes else {
            return Err(PackedBytesError::Shape { dims, group });
        };
        if bytes.len() != wanted {
            return Err(PackedBytesError::Bytes { found: bytes.len(), wanted });
        }
        Ok(Panels { bytes, dims, layout, panel_bytes, head_bytes: 0, groups_bytes: panel_bytes })
    }

    fn slice_rows(&self, range: Range<usize>) -> Panels<'a> {
        let nr = self.layout.nr;
        assert!(range.end <= self.dims.rows);
        assert!(range.start.is_multiple_of(nr));
        assert!(range.end == self.dims.rows || range.end.is_multiple_of(nr));
        let panels = range.start / nr..range.end.div_ceil(nr);
        let bytes = &self.bytes[panels.start * self.panel_bytes..panels.end * self.panel_bytes];
        Panels { bytes, dims: MatrixDims { rows: range.len(), ..self.dims }, ..*self }
    }

    /// Each panel's bytes before its groups, and its groups.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let (head_bytes, groups_bytes) = (self.head_bytes, self.groups_bytes);
        self.bytes.chunks_exact(self.panel_bytes).map(move |panel| {
            let (head, groups) = panel.split_at(head_bytes);
            (head, &groups[..groups_bytes])
        })
    }

    /// The bytes of panel `index` before its groups, and its groups.
    ///
    /// # Panics
    ///
    /// When there is no such panel.
    pub(super) fn panel(&self, index: usize) -> (&'a [u8], &'a [u8]) {
        let panel = &self.bytes[index * self.panel_bytes..][..self.panel_bytes];
        let (head, groups) = panel.split_at(self.head_bytes);
        (head, &groups[..self.groups_bytes])
    }
}

/// A packed matrix, `[rows, k]`, always as long as its shape and layout demand. Its bytes may have any values.
#[derive(Debug, Clone, Copy)]
pub struct PackedQ8<'a> {
    panels: Panels<'a>,
    group: usize,
}

impl<'a> PackedQ8<'a> {
    /// Takes `bytes` as a matrix that [`Kernels::pack_q8`](super::super::Kernels::pack_q8) wrote.
    ///
    /// # Errors
    ///
    /// When a matrix of that shape cannot be packed, or does not have that length.
    pub fn new(
        bytes: &'a [u8],
        dims: MatrixDims,
        group: usize,
        layout: Layout,
    ) -> Result<Self, PackedBytesError> {
        let panels = Panels::new(bytes, dims, group, layout, Layout::bytes_q8)?;
        Ok(PackedQ8 { panels, group })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.panels.dims.rows
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.panels.dims.k
    }

    /// Values that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Layout of the packed bytes.
    pub fn layout(&self) -> Layout {
        self.panels.layout
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..rows`, does not start with a panel, or ends inside a panel that is not the last.
    pub fn slice_rows(&self, range: Range<usize>) -> PackedQ8<'a> {
        PackedQ8 { panels: self.panels.slice_rows(range), ..*self }
    }

    pub(super) fn panels(&self) -> Panels<'a> {
        self.panels
    }
}

/// A packed 4-bit matrix, `[rows, k]`, always as long as its shape and layout demand. Its bytes may have any values.
#[derive(Debug, Clone, Copy)]
pub struct PackedQ4<'a>(Panels<'a>);

impl<'a> PackedQ4<'a> {
    /// Takes `bytes` as a matrix that [`Kernels::pack_q4`](super::super::Kernels::pack_q4) wrote;
    /// `group` is that of the activations.
    ///
    /// # Errors
    ///
    /// When a matrix of that shape cannot be packed, or does not have that length.
    pub fn new(
        bytes: &'a [u8],
        dims: MatrixDims,
        group: usize,
        layout: Layout,
    ) -> Result<Self, PackedBytesError> {
        Panels::new(bytes, dims, group, layout, Layout::bytes_q4).map(PackedQ4)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.0.dims.rows
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.0.dims.k
    }

    /// Layout of the packed bytes.
    pub fn layout(&self) -> Layout {
        self.0.layout
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::slice_rows`].
    pub fn slice_rows(&self, range: Range<usize>) -> PackedQ4<'a> {
        PackedQ4(self.0.slice_rows(range))
    }

    pub(super) fn panels(&self) -> Panels<'a> {
        self.0
    }
}

/// A packed matrix of BCML2, `[rows, k]`.
pub type PackedB2<'a> = PackedSteps<'a, bcml2::Block>;

/// A packed matrix of BCML6, `[rows, k]`.
pub type PackedB6<'a> = PackedSteps<'a, bcml6::Block>;

/// A packed matrix, `[rows, k]`, in blocks `B`, whose rows have steps. It is always as long as its shape and layout
/// demand; its bytes may have any values.
#[derive(Debug, Clone, Copy)]
pub struct PackedSteps<'a, B> {
    panels: Panels<'a>,
    blocks: PhantomData<B>,
}

impl<'a, B: Copy> PackedSteps<'a, B> {
    /// Takes `bytes` as a matrix that [`Kernels::pack_b2`](super::super::Kernels::pack_b2) or
    /// [`Kernels::pack_b6`](super::super::Kernels::pack_b6) wrote.
    ///
    /// # Errors
    ///
    /// When a matrix of that shape cannot be packed, or does not have that length.
    pub fn new(
        bytes: &'a [u8],
        dims: MatrixDims,
        layout: Layout,
    ) -> Result<Self, PackedBytesError> {
        let bytes_of =
            |layout: &Layout, dims: MatrixDims, _: usize| layout.bytes_in_steps::<B>(dims);
        let panels = Panels::new(bytes, dims, BLOCK, layout, bytes_of)?;
        let groups_bytes = dims.k / BLOCK * layout.nr * size_of::<B>();
        let panels = Panels { head_bytes: layout.step_bytes(), groups_bytes, ..panels };
        Ok(PackedSteps { panels, blocks: PhantomData })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.panels.dims.rows
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.panels.dims.k
    }

    /// Layout of the packed bytes.
    pub fn layout(&self) -> Layout {
        self.panels.layout
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::slice_rows`].
    pub fn slice_rows(&self, range: Range<usize>) -> PackedSteps<'a, B> {
        PackedSteps { panels: self.panels.slice_rows(range), ..*self }
    }

    pub(super) fn panels(&self) -> Panels<'a> {
        self.panels
    }
}

/// A packed matrix of a GGUF file's blocks, `[rows, k]`, always as long as its shape and layout demand. Its bytes may
/// have any values.
#[derive(Debug, Clone, Copy)]
pub struct PackedGgml<'a> {
    panels: Panels<'a>,
    kind: Ggml,
}

impl<'a> PackedGgml<'a> {
    /// Takes `bytes` as a matrix that [`Kernels::pack_ggml`](super::super::Kernels::pack_ggml) wrote.
    ///
    /// # Errors
    ///
    /// When a matrix of that shape cannot be packed, or does not have that length.
    pub fn new(
        bytes: &'a [u8],
        dims: MatrixDims,
        kind: Ggml,
        layout: Layout,
    ) -> Result<Self, PackedBytesError> {
        let sizes =
            [dims, MatrixDims { rows: 1, ..dims }].map(|dims| layout.bytes_ggml(kind, dims));
        let panels = Panels::of_sizes(bytes, dims, BLOCK, layout, sizes)?;
        Ok(PackedGgml { panels, kind })
    }

    /// Type of the blocks.
    pub fn kind(&self) -> Ggml {
        self.kind
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.panels.dims.rows
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.panels.dims.k
    }

    /// Layout of the packed bytes.
    pub fn layout(&self) -> Layout {
        self.panels.layout
    }

    /// The rows of `range` as a matrix: a thread's share.
    ///
    /// # Panics
    ///
    /// See [`PackedQ8::slice_rows`].
    pub fn slice_rows(&self, range: Range<usize>) -> PackedGgml<'a> {
        PackedGgml { panels: self.panels.slice_rows(range), ..*self }
    }

    pub(super) fn panels(&self) -> Panels<'a> {
        self.panels
    }
}
