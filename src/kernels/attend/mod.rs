//! Attention by online softmax (arXiv:1805.02867, arXiv:2205.14135).
//!
//! Positions are taken in blocks of [`BLOCK`] that begin at its multiples, so that queries share a
//! block's keys and values, and a result depends neither on the queries taken together nor on how the
//! KV cache is cut into pages. For each block with scores `s` and values `v`, from the largest score
//! so far, `max`, and the sum so far:
//!
//! ```text
//! new        = max(max, s...)
//! correction = exp(max - new)
//! weight     = exp(s - new)                              for each position
//! sum        = sum * correction + Σ weight
//! out        = out * correction + Σ weight * v           in the end divided by sum
//! ```
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

/// Floats of keys or values converted at a time: a block of 128 each.
const SCRATCH: usize = BLOCK * 128;

/// Longest head: one position has to fit the scratch.
pub const HEAD_DIM_MAX: usize = SCRATCH;

/// Fewest queries for which transposing keys pays.
const TRANSPOSE_QUERIES: usize = 16;

/// Room for keys or values as f32, and for transposed keys, from whole cache lines on.
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

    if let KvStored::Int8(lines) = to.kv.stored {
        assert!(1 << to.kv.page_shift >= BLOCK);
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

/// A block of positions and the queries that look at any of them.
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
        for_pieces(table, to, KvPart::Keys, self.block.positions.clone(), floats, |piece, keys| {
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

    /// Adds the values times their weights to the queries' outputs.
    fn weigh(&mut self, scratch: &mut Scratch) {
        let (table, to, start) = (self.table, self.to, self.block.start);
        let is_seen_whole = self.block.is_seen_whole(self.queries);
        let queries = &mut *self.queries;
        let floats = &mut scratch.floats;
        for_pieces(
            table,
            to,
            KvPart::Values,
            self.block.positions.clone(),
            floats,
            |piece, values| {
                let (tiles, rest) = queries.as_chunks_mut::<TILE>();
                for tile in tiles {
                    // A weight of 0 hides no value that is infinite or NaN, so a tile is taken at once only
                    // where its queries look at the same positions, as those of one position do.
                    let seen = overlap(&tile[0].positions, &piece);
                    if !is_seen_whole
                        && tile.iter().any(|query| overlap(&query.positions, &piece) != seen)
                    {
                        weigh_each(table, tile, start, &piece, values);
                        continue;
                    }
                    let head_dim = tile[0].out.len();
                    let at = seen.start - start..seen.end - start;
                    let values =
                        &values[(seen.start - piece.start) * head_dim..][..at.len() * head_dim];
                    let corrections = tile.each_ref().map(|query| query.correction);
                    let [a, b, c, d] = tile.each_mut();
                    let weights = [&a.scores, &b.scores, &c.scores, &d.scores];
                    let weights = weights.map(|scores| &scores[at.clone()]);
                    let out = [&mut *a.out, &mut *b.out, &mut *c.out, &mut *d.out];
                    call!(table.weigh_4(weights, values, corrections, out));
                    tile.iter_mut().for_each(|query| query.correction = 1.0);
                }
                weigh_each(table, rest, start, &piece, values);
            },
        );
    }
}

/// Scores of `tiles` for all keys of a block, which it transposes.
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

/// Adds the values of `piece` that each query looks at; `start` is that of the block.
fn weigh_each(
    table: &Table,
    queries: &mut [Query<'_, '_>],
    start: usize,
    piece: &Range<usize>,
    values: &[f32],
) {
    for query in queries {
        let (seen, head_dim) = (overlap(&query.positions, piece), query.out.len());
        let values = &values[(seen.start - piece.start) * head_dim..][..seen.len() * head_dim];
        let weights = &query.scores[seen.start - start..][..seen.len()];
        call!(table.weigh(weights, values, query.correction, query.out));
        query.correction = 1.0;
    }
}

/// Calls `f` with keys or values of `positions` as f32, in order, piece by piece, and with the
/// positions of each piece.
fn for_pieces(
    table: &Table,
    to: &Attended<'_>,
    part: KvPart,
    positions: Range<usize>,
    scratch: &mut [f32; SCRATCH],
    mut f: impl FnMut(Range<usize>, &[f32]),
) {
    let head_dim = to.head_dim;
    let mut pos = positions.start;
    while pos < positions.end {
        let end = positions.end.min(to.kv.page_end(pos)).min(pos + SCRATCH / head_dim);
        let range = to.kv.range(part, &(pos..end), head_dim);
        f(pos..end, to_f32(table, to.kv.stored, range, scratch));
        pos = end;
    }
}

/// The floats `range` of what is stored, converted into `scratch` if need be.
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
