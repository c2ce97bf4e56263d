//! Matrix products as tiles of activations by panels of weights.
//!
//! Panels are outermost: each is read from memory once and stays in cache for the whole batch. If
//! there are several tiles, a panel is taken in parts that stay in the first level of cache.

use super::super::Table;
use super::layout::Panels;
use super::{MR_MAX, NR_MAX, PackedQ4, PackedQ8, PackedTable, Q8Tiles, Tile, TileFn};

/// Bytes of a part of a panel, its values counted as int8.
const PART_BYTES: usize = 16 << 10;

/// See [`super::super::Kernels::matmul_packed_q8`].
pub(in crate::kernels) fn matmul_q8(
    table: &PackedTable,
    w: PackedQ8<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_biases());
    assert_eq!(w.group(), x.group());
    matmul(table, table.tiles_q8, w.panels(), x, out);
}

/// See [`super::super::Kernels::matmul_packed_q4`].
pub(in crate::kernels) fn matmul_q4(
    table: &PackedTable,
    w: PackedQ4<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_sums());
    matmul(table, table.tiles_q4, w.panels(), x, out);
}

fn matmul(
    table: &PackedTable,
    kernels: &[TileFn],
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    let (nr, mr) = (w.layout.panel_rows(), table.mr());
    assert_eq!(w.layout, table.layout);
    assert_eq!(x.mr(), mr);
    assert_eq!(w.k, x.k());
    assert_eq!(out.len(), x.m());
    assert!(out.iter().all(|out| out.len() == w.rows));
    if let [out] = out {
        return matmul_single(kernels[0], w, &x.tile(0..1), out);
    }
    let groups = w.k / x.x_group();
    let part_groups = match out.len() > mr {
        true => (PART_BYTES / (nr * x.x_group())).clamp(1, groups),
        false => groups,
    };
    let mut y = [0.0; MR_MAX * NR_MAX];
    for (panel_index, panel) in w.iter().enumerate() {
        let start = panel_index * nr;
        let columns = start..(start + nr).min(w.rows);
        let group_bytes = panel.len() / groups;
        for (part_index, part) in panel.chunks(part_groups * group_bytes).enumerate() {
            let first = part_index * part_groups;
            let part_range = first..first + part.len() / group_bytes;
            for (tile_index, out) in out.chunks_mut(mr).enumerate() {
                let (t, row) = (out.len(), tile_index * mr);
                let y = &mut y[..t * nr];
                let tile = x.tile(row..row + t).groups_of(part_range.clone(), t);
                if first == 0 {
                    y.fill(0.0);
                } else {
                    for (out, y) in out.iter().zip(y.chunks_exact_mut(nr)) {
                        copy(&out[columns.clone()], &mut y[..columns.len()]);
                    }
                }
                // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its
                // features.
                unsafe { (kernels[t - 1])(part, &tile, y) };
                for (out, y) in out.iter_mut().zip(y.chunks_exact(nr)) {
                    copy(&y[..columns.len()], &mut out[columns.clone()]);
                }
            }
        }
    }
}

/// The same for a single row.
fn matmul_single(kernel: TileFn, w: Panels<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let nr = w.layout.panel_rows();
    for (panel, out) in w.iter().zip(out.chunks_mut(nr)) {
        let mut last = [0.0; NR_MAX];
        let y = if out.len() == nr { &mut *out } else { &mut last[..nr] };
        y.fill(0.0);
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { kernel(panel, x, y) };
        if out.len() < nr {
            out.copy_from_slice(&last[..out.len()]);
        }
    }
}

/// Copies so few floats that a call would cost more.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, from_tail), (to, to_tail)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    to_tail.iter_mut().zip(from_tail).for_each(|(to, from)| *to = *from);
}

impl Table {
    /// The tier's packed half.
    pub(in crate::kernels) fn packed(&self) -> &PackedTable {
        self.packed.as_ref().expect("only a tier with a layout is given packed weights")
    }
}
