//! Writing of keys and values.

use super::super::table::{Table, call};
use super::{KEY_GROUP, KEY_LINES, KvLine, TILE_LINES, VALUE_GROUP, VALUE_LINES, word};

/// Stores a key at `position` of a block.
pub(in crate::kernels) fn store_key(
    table: &Table,
    x: &[f32],
    block: &mut [KvLine],
    position: usize,
) {
    let (half, lane) = (position / 16, position % 16);
    for (x, lines) in x.chunks(KEY_GROUP).zip(block.chunks_mut(KEY_LINES)) {
        let mut padded = [[0.0; 32]; 1];
        padded[0][..x.len()].copy_from_slice(x);
        let mut q = [[0; 32]; 1];
        lines[0].set_scale(position, call!(table.quantize_kv(&padded, &mut q)));
        let pairs = lines[1..].as_chunks_mut::<2>().0;
        for (quad, pair) in q[0].as_chunks::<4>().0.iter().zip(pairs) {
            pair[half].0.as_chunks_mut::<4>().0[lane] = word(*quad).to_ne_bytes();
        }
    }
}

/// Stores a value at `position` of a block.
pub(in crate::kernels) fn store_value(
    table: &Table,
    x: &[f32],
    block: &mut [KvLine],
    position: usize,
) {
    let (line, byte) = (position / 4, position % 4);
    for (x, lines) in x.chunks(VALUE_GROUP).zip(block.chunks_mut(VALUE_LINES)) {
        let mut padded = [[0.0; 32]; VALUE_GROUP / 32];
        padded.as_flattened_mut()[..x.len()].copy_from_slice(x);
        let mut q = [[0; 32]; VALUE_GROUP / 32];
        let n = x.len().div_ceil(32);
        lines[0].set_scale(position, call!(table.quantize_kv(&padded[..n], &mut q[..n])));
        let tiles = lines[1..].as_chunks_mut::<TILE_LINES>().0;
        for (q, tile) in q.as_flattened().as_chunks::<16>().0.iter().zip(tiles) {
            for (column, q) in q.iter().enumerate() {
                tile[line].put(4 * column + byte, *q);
            }
        }
    }
}
