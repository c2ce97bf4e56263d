//! Products of many rows with blocks of GGUF files: each part of a panel is unpacked once for all tiles (x86-64).

use std::ops::Range;

use super::super::activations::Q8Tiles;
use super::super::bytes::{ByteTiles, Bytes, NEXT_BYTES, RUNS_MAX, are_usual};
use super::super::ggml::RunTile;
use super::super::layout::Panels;
use super::super::table::PackedTable;
use crate::kernels::table::call;
use crate::quant::bcml1::BLOCK;
use crate::quant::ggml::Form;

/// Fewest rows for which panels are unpacked once for all tiles, because that takes less time.
pub(super) const FROM_ROWS: usize = 12;

/// Least size of scales of activations: products with any scale of weights are no zeros.
const X_LEAST: f32 = 1.0 / (1_u128 << 105) as f32;

/// Multiplies rows that are cut together by panels of a GGUF file's blocks. A panel with unusual scales, and all panels
/// if activations have such, are multiplied by `tiles`, which unpack codes in registers.
pub(super) fn matmul(
    (packed, form): (&PackedTable, Form),
    tiles: &[RunTile],
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
    mut sums: [&mut [f32]; 2],
) {
    let nr = w.layout.panel_rows();
    let is_usual = are_usual(x.scales(), X_LEAST);
    let mut bytes = Bytes::ZERO;
    for (panel_index, (_, panel)) in w.iter().enumerate() {
        let columns = panel_index * nr..((panel_index + 1) * nr).min(w.dims.rows);
        let panel = Panel { form, blocks: panel, columns };
        if !is_usual || multiply(packed, &panel, x, &mut bytes, &mut sums, out).is_none() {
            for rows in x.cut().tiles(out.len()) {
                let (tile, y) = (tiles[rows.len() - 1], &mut sums[0][..rows.len() * nr]);
                call!(tile(form, panel.blocks, &x.tile(rows.clone()), y));
                call!(packed.place(y, panel.columns.clone(), &mut out[rows]));
            }
        }
    }
}

/// A panel's blocks, and the columns of its results.
struct Panel<'a> {
    form: Form,
    blocks: &'a [u8],
    columns: Range<usize>,
}

/// Multiplies rows by a panel, part by part; `None` if it has unusual scales.
fn multiply(
    packed: &PackedTable,
    panel: &Panel<'_>,
    x: Q8Tiles<'_>,
    bytes: &mut Bytes,
    sums: &mut [&mut [f32]; 2],
    out: &mut [&mut [f32]],
) -> Option<()> {
    let Panel { form, blocks, columns } = panel;
    let (nr, runs) = (packed.layout.panel_rows(), x.k() / BLOCK);
    bytes.k = x.k();
    let ByteTiles { unpack, tiles } = (packed.byte_tiles)(*form);
    let part_bytes = RUNS_MAX * BLOCK / form.columns() * form.panel_block(nr);
    for (i, part) in blocks.chunks(part_bytes).enumerate() {
        let groups = i * RUNS_MAX..((i + 1) * RUNS_MAX).min(runs);
        call!(unpack(*form, part, bytes));
        (bytes.is_first, bytes.is_last) = (groups.start == 0, groups.end == runs);
        if !bytes.is_usual {
            return None;
        }
        bytes.next = part.as_ptr_range().end;
        for rows in x.cut().tiles(x.m()) {
            let sums = sums.each_mut().map(|sums| &mut sums[rows.start * nr..rows.end * nr]);
            let ([y, others], tile) = (sums, tiles[rows.len() - 1]);
            call!(tile(bytes, &x.part(rows.clone(), groups.clone()), [&mut *y, others]));
            bytes.next = bytes.next.wrapping_add(groups.len() * NEXT_BYTES);
            if bytes.is_last {
                call!(packed.place(y, columns.clone(), &mut out[rows]));
            }
        }
    }
    Some(())
}
