//! The bytes of activations for packed weights.

use std::ops::Range;

use super::super::Table;
use super::{GROUP_MAX, MR_MAX, Tile};

/// Quantised activations, `[m, k]`, in tiles; [`super`] describes the order. One that exists has
/// consistent lengths; its values are what
/// [`Kernels::quantize_tile`](super::super::Kernels::quantize_tile) wrote.
#[derive(Debug, Clone, Copy)]
pub struct Q8Tiles<'a> {
    q: &'a [i8],
    scales: &'a [f32],
    biases: &'a [i32],
    k: usize,
    group: usize,
    mr: usize,
}

impl<'a> Q8Tiles<'a> {
    /// Joins `[m, k]` values and `[m, k / group]` scales and biases, written in tiles of `mr` rows.
    ///
    /// # Panics
    ///
    /// When `k` is no whole number of groups, or the lengths do not fit together.
    pub fn new(
        (q, scales, biases): (&'a [i8], &'a [f32], &'a [i32]),
        k: usize,
        group: usize,
        mr: usize,
    ) -> Self {
        assert!(k != 0);
        assert!(k.is_multiple_of(group));
        assert!(q.len().is_multiple_of(k));
        assert_eq!(scales.len(), q.len() / group);
        assert_eq!(biases.len(), q.len() / group);
        debug_assert!(!q.contains(&i8::MIN));
        Q8Tiles { q, scales, biases, k, group, mr }
    }

    /// How many rows (tokens) there are.
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

    /// Rows of a tile.
    pub fn mr(&self) -> usize {
        self.mr
    }

    /// The rows of `range`.
    ///
    /// # Panics
    ///
    /// When `range` is not inside `0..m`, does not start with a tile, or ends inside one that is
    /// not the last.
    pub fn slice_rows(&self, range: Range<usize>) -> Q8Tiles<'a> {
        assert!(range.start.is_multiple_of(self.mr));
        assert!(range.end == self.m() || range.end.is_multiple_of(self.mr));
        let groups = self.k / self.group;
        let span = range.start * groups..range.end * groups;
        Q8Tiles {
            q: &self.q[range.start * self.k..range.end * self.k],
            scales: &self.scales[span.clone()],
            biases: &self.biases[span],
            ..*self
        }
    }

    /// The tile of rows `range`.
    pub(super) fn tile(&self, range: Range<usize>) -> Tile<'a> {
        let Q8Tiles { q, scales, biases, group, .. } = self.slice_rows(range);
        Tile { q, scales, biases, group }
    }
}

/// See [`super::super::Kernels::quantize_tile`].
pub(in crate::kernels) fn quantize_tile(
    table: &Table,
    x: &[f32],
    (k, group): (usize, usize),
    (q, scales, biases): (&mut [i8], &mut [f32], &mut [i32]),
) {
    let layout = table.packed().layout;
    let t = x.len() / k;
    assert!(x.len().is_multiple_of(k));
    assert!(t <= MR_MAX);
    assert!(layout.bytes_q8(1, k, group).is_some());
    assert_eq!(q.len(), x.len());
    assert_eq!(scales.len(), x.len() / group);
    assert_eq!(biases.len(), x.len() / group);
    if t == 1 {
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (table.quantize_q8)(x, group, q, scales) };
        // SAFETY: as above.
        return unsafe { (table.biases)(q, group, biases) };
    }
    let mut row_q = [0; GROUP_MAX];
    let row_q = &mut row_q[..group];
    for (row, x) in x.chunks_exact(k).enumerate() {
        for (g, x) in x.chunks_exact(group).enumerate() {
            let at = g * t + row;
            // SAFETY: as above.
            unsafe { (table.quantize_q8)(x, group, row_q, &mut scales[at..][..1]) };
            // SAFETY: as above.
            unsafe { (table.biases)(row_q, group, &mut biases[at..][..1]) };
            let q = &mut q[g * group * t..][..group * t];
            match layout.kr() {
                8 => spread::<8>(row_q, q, row, t),
                _ => spread::<4>(row_q, q, row, t),
            }
        }
    }
}

/// Writes blocks of `KR` values `t` blocks apart.
fn spread<const KR: usize>(row_q: &[i8], q: &mut [i8], row: usize, t: usize) {
    let blocks = q.as_chunks_mut::<KR>().0[row..].iter_mut().step_by(t);
    for (q, row_q) in blocks.zip(row_q.as_chunks::<KR>().0) {
        *q = *row_q;
    }
}
