//! Attention by online softmax (arXiv:1805.02867, arXiv:2205.14135).
//!
//! Positions are taken in blocks of [`BLOCK`] that begin at its multiples, so queries share a block's keys and values.
//! A result depends neither on which queries are taken together nor on how the KV cache is cut into pages. For each
//! block with scores `s` and values `v`, the largest score so far `max`, and the sum so far:
//!
//! ```text
//! new        = max(max, s...)
//! correction = exp(max - new)
//! weight     = exp(s - new)                              for each position
//! sum        = sum * correction + Σ weight
//! out        = out * correction + Σ weight * v           in the end divided by sum
//! ```
//!
//! The sums over a block begin at 0, so blocks depend on each other only through the maximum.
//!
//! Scratch lies on the stack.

use std::ops::Range;

mod int8;
mod pages;
mod query;

use self::pages::KvPart;
pub use self::pages::{Attended, KvPages, KvStored};
pub use self::query::QUERIES;
use self::query::{Block, Query, TILE, for_blocks, for_queries, overlap};
use super::float::{BLOCK, LANES};
use super::table::{BlockScores, Table, call};

/// Columns of a block's values converted at a time.
const COLUMNS: usize = 128;

/// Floats of keys or values converted at a time.
const SCRATCH: usize = BLOCK * COLUMNS;

/// Longest head: one position must fit the scratch.
pub const HEAD_DIM_MAX: usize = SCRATCH;

/// Fewest queries for which transposing keys pays.
const TRANSPOSE_QUERIES: usize = 16;

/// Room for keys or values as f32, and for transposed keys, aligned to cache lines.
#[repr(align(64))]
struct Scratch {
    floats: [f32; SCRATCH],
    transposed: [f32; SCRATCH],
}

/// See [`super::Kernels::attend`].
pub(super) fn attend(table: &Table, q: &[&[f32]], to: &Attended<'_>, out: &mut [&mut [f32]]) {
    let head_dim = to.head_dim;
    assert!(head_dim != 0);
    assert!(head_dim <= HEAD_DIM_MAX);
    assert!(to.window != 0);
    assert!(to.sinks.is_empty() || q.iter().all(|q| q.len() == to.sinks.len() * head_dim));
    assert_eq!(q.len(), out.len());
    assert!(q.iter().zip(&*out).all(|(q, out)| q.len() == out.len()));
    assert!(q.iter().all(|q| q.len().is_multiple_of(head_dim)));
    assert!(!to.kv.table.is_empty());

    // Needed so that a block lies in one page.
    assert!(1 << to.kv.page_shift >= BLOCK);

    if let KvStored::Int8(lines) = to.kv.stored {
        return int8::attend(table, q, (to, lines), out);
    }
    let mut scratch = Scratch { floats: [0.0; SCRATCH], transposed: [0.0; SCRATCH] };
    for_queries(to, q, out, QUERIES, |queries| {
        for_blocks(queries, |block, queries, _| {
            let mut block = KvBlock { table, to, block, queries };
            block.score(&mut scratch);
            block.block.soften(table, block.queries);
            block.weigh(&mut scratch);
        });
    });
}

/// A block of positions, and the queries that look at any of them.
struct KvBlock<'a, 'b, 'q, 'o> {
    table: &'a Table,
    to: &'a Attended<'a>,
    block: Block,
    queries: &'b mut [Query<'q, 'o>],
}

impl KvBlock<'_, '_, '_, '_> {
    /// Scores of each query for all of the block's positions.
    fn score(&mut self, scratch: &mut Scratch) {
        let (table, to, start) = (self.table, self.to, self.block.start);
        let queries = &mut *self.queries;
        let Scratch { floats, transposed } = scratch;
        for_pieces(table, to, self.block.positions.clone(), floats, |piece, keys| {
            let at = piece.start - start..piece.end - start;
            let (mut tiles, rest) = queries.as_chunks_mut::<TILE>();
            let is_whole = at.len() == BLOCK && to.head_dim.is_multiple_of(LANES);
            if let Some(kernels) = &table.block_scores
                && is_whole
                && tiles.len() >= TRANSPOSE_QUERIES / TILE
            {
                score_block(kernels, tiles, (keys, transposed), to.scale);
                tiles = &mut [];
            }
            for tile in tiles {
                let q = tile.each_ref().map(|query| query.q);
                let scores = tile.each_mut().map(|query| &mut query.scores[at.clone()]);
                call!(table.score_4(q, keys, to.scale, scores));
            }
            for query in rest {
                call!(table.score(query.q, keys, to.scale, &mut query.scores[at.clone()]));
            }
        });
    }

    /// Adds the values times their weights to the queries' outputs. A long head is taken in parts of its columns,
    /// because a block's sums must be complete before they are added to the outputs.
    fn weigh(&mut self, scratch: &mut Scratch) {
        let is_seen_whole = self.block.is_seen_whole(self.queries);
        let head_dim = self.to.head_dim;
        for from in (0..head_dim).step_by(COLUMNS) {
            let columns = from..head_dim.min(from + COLUMNS);
            self.weigh_columns(columns, is_seen_whole, &mut scratch.floats);
        }
    }

    fn weigh_columns(
        &mut self,
        columns: Range<usize>,
        is_seen_whole: bool,
        floats: &mut [f32; SCRATCH],
    ) {
        let (table, block) = (self.table, self.block.positions.clone());
        let values = values_of(table, self.to, &block, columns.clone(), floats);
        let (tiles, rest) = self.queries.as_chunks_mut::<TILE>();
        for tile in tiles {
            // A weight of 0 does not hide infinities and NaNs. A tile is therefore taken at once only if its queries
            // look at the same positions, like the heads of one position.
            let seen = overlap(&tile[0].positions, &block);
            if !is_seen_whole && tile.iter().any(|query| overlap(&query.positions, &block) != seen)
            {
                weigh_each(table, tile, (&self.block, &columns), values);
                continue;
            }
            let at = seen.start - self.block.start..seen.end - self.block.start;
            let values =
                &values[(seen.start - block.start) * columns.len()..][..at.len() * columns.len()];
            let corrections = tile.each_ref().map(|query| query.correction);
            let [a, b, c, d] = tile.each_mut();
            let weights = [&a.scores, &b.scores, &c.scores, &d.scores];
            let weights = weights.map(|scores| &scores[at.clone()]);
            let out = [&mut *a.out, &mut *b.out, &mut *c.out, &mut *d.out];
            let out = out.map(|out| &mut out[columns.clone()]);
            call!(table.weigh_4(weights, values, corrections, out));
        }
        weigh_each(table, rest, (&self.block, &columns), values);
    }
}

/// Scores of `tiles` for all keys of a block, which are transposed for it.
fn score_block(
    kernels: &BlockScores,
    tiles: &mut [[Query<'_, '_>; TILE]],
    (keys, transposed): (&[f32], &mut [f32; SCRATCH]),
    scale: f32,
) {
    let transposed = &mut transposed.as_chunks_mut().0[..keys.len() / BLOCK];
    call!(kernels.transpose(keys, transposed));
    for tile in tiles {
        let q = tile.each_ref().map(|query| query.q);
        let scores = tile.each_mut().map(|query| &mut query.scores);
        call!(kernels.score(q, transposed, scale, scores));
    }
}

/// Adds some columns of a block's values, each query with the positions it looks at.
fn weigh_each(
    table: &Table,
    queries: &mut [Query<'_, '_>],
    (block, columns): (&Block, &Range<usize>),
    values: &[f32],
) {
    let width = columns.len();
    for query in queries {
        let seen = overlap(&query.positions, &block.positions);
        let values = &values[(seen.start - block.positions.start) * width..][..seen.len() * width];
        let weights = &query.scores[seen.start - block.start..][..seen.len()];
        call!(table.weigh(weights, values, query.correction, &mut query.out[columns.clone()]));
    }
}

/// Columns of the values of `positions`, which lie in one block, as f32: `[positions, columns]`.
fn values_of<'a>(
    table: &Table,
    to: &Attended<'a>,
    positions: &Range<usize>,
    columns: Range<usize>,
    scratch: &'a mut [f32; SCRATCH],
) -> &'a [f32] {
    let (head_dim, width) = (to.head_dim, columns.len());
    let range = to.kv.range(KvPart::Values, positions, head_dim);
    if width == head_dim {
        return to_f32(table, to.kv.stored, range, scratch);
    }
    let rows = range.step_by(head_dim).zip(scratch.chunks_exact_mut(width));
    for (start, out) in rows {
        let row = start + columns.start..start + columns.end;
        match to.kv.stored {
            KvStored::F32(values) => out.copy_from_slice(&values[row]),
            KvStored::F16(values) => call!(table.widen(&values[row], out)),
            KvStored::Int8(_) => unreachable!("has a way of its own"),
        }
    }
    &scratch[..positions.len() * width]
}

/// Calls `f` for each piece of the keys of `positions`, which lie in one block: with the piece's positions and its keys
/// as f32, in order.
fn for_pieces(
    table: &Table,
    to: &Attended<'_>,
    positions: Range<usize>,
    scratch: &mut [f32; SCRATCH],
    mut f: impl FnMut(Range<usize>, &[f32]),
) {
    let head_dim = to.head_dim;
    let mut pos = positions.start;
    while pos < positions.end {
        let end = positions.end.min(pos + SCRATCH / head_dim);
        let range = to.kv.range(KvPart::Keys, &(pos..end), head_dim);
        f(pos..end, to_f32(table, to.kv.stored, range, scratch));
        pos = end;
    }
}

/// The floats `range` of `stored`, converted into `scratch` if they are not f32.
fn to_f32<'a>(
    table: &Table,
    stored: KvStored<'a>,
    range: Range<usize>,
    scratch: &'a mut [f32; SCRATCH],
) -> &'a [f32] {
    match stored {
        KvStored::F32(values) => &values[range],
        KvStored::F16(values) => {
            let scratch = &mut scratch[..range.len()];
            call!(table.widen(&values[range], scratch));
            scratch
        }
        KvStored::Int8(_) => unreachable!("has a way of its own"),
    }
}
