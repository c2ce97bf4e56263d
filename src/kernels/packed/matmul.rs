//! Matrix products as tiles of activations by panels of weights.
//!
//! Panels are outermost: each is read from memory once and stays in cache for the whole batch. If
//! there are several tiles, a panel is taken in parts that stay in the first level of cache.

use std::ops::Range;

use super::super::Table;
use super::layout::Panels;
use super::{MR_MAX, NR_MAX, PackedQ4, PackedQ8, PackedTable, Q8Tiles, TileFn};

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
                match first {
                    0 => y.fill(0.0),
                    _ => copy_columns(out, columns.clone(), y.chunks_exact_mut(nr)),
                }
                // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its
                // features.
                unsafe { (kernels[t - 1])(part, &tile, y) };
                for (out, y) in out.iter_mut().zip(y.chunks_exact(nr)) {
                    out[columns.clone()].copy_from_slice(&y[..columns.len()]);
                }
            }
        }
    }
}

/// Copies `columns` of each row to the start of a row of `y`.
fn copy_columns<'a>(
    rows: &[&mut [f32]],
    columns: Range<usize>,
    y: impl Iterator<Item = &'a mut [f32]>,
) {
    for (row, y) in rows.iter().zip(y) {
        y[..columns.len()].copy_from_slice(&row[columns.clone()]);
    }
}

impl Table {
    /// The tier's packed half.
    pub(in crate::kernels) fn packed(&self) -> &PackedTable {
        self.packed.as_ref().expect("only a tier with a layout is given packed weights")
    }
}
