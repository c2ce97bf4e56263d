//! Queries and their softmax, block by block.

use std::ops::Range;

use super::super::float::{BLOCK, Softmax};
use super::super::table::{Table, call};
use super::pages::Attended;

/// Queries that share a pass over the keys and values.
pub const QUERIES: usize = 128;

/// Queries that kernels take together.
pub(super) const TILE: usize = 4;

/// A query and its softmax so far.
pub(super) struct Query<'q, 'o> {
    pub(super) q: &'q [f32],
    pub(super) out: &'o mut [f32],
    /// Positions that the query looks at.
    pub(super) positions: Range<usize>,
    pub(super) state: Softmax,
    /// Factor of the output before this block's values are added.
    pub(super) correction: f32,
    pub(super) scores: [f32; BLOCK],
}

/// Calls `pass` with the heads of the rows `q` and `out`, up to `n` at once, in order.
pub(super) fn for_queries(
    to: &Attended<'_>,
    q: &[&[f32]],
    out: &mut [&mut [f32]],
    n: usize,
    mut pass: impl FnMut(&mut [Query<'_, '_>]),
) {
    let mut queries = heapless::Vec::<Query<'_, '_>, QUERIES>::new();
    for (row, (q, out)) in q.iter().zip(out).enumerate() {
        let pos = to.pos + row;
        let heads = q.chunks_exact(to.head_dim).zip(out.chunks_exact_mut(to.head_dim));
        for (head, (q, out)) in heads.enumerate() {
            let end = to.end.map_or(pos + 1, |end| end.min(pos.saturating_add(to.window)));
            let positions = (pos + 1).saturating_sub(to.window)..end;
            if queries.len() == n.min(QUERIES) {
                pass(&mut queries);
                queries.clear();
            }
            out.fill(0.0);
            let sink = to.sinks.get(head);
            let state = sink.map_or(Softmax::EMPTY, |sink| Softmax { max: *sink, sum: 1.0 });
            let (correction, scores) = (1.0, [0.0; BLOCK]);
            // Full buffers were emptied above.
            let _ = queries.push(Query { q, out, positions, state, correction, scores });
        }
    }
    pass(&mut queries);
}

/// A block of positions.
#[derive(Clone)]
pub(super) struct Block {
    /// Position of the block's first score.
    pub(super) start: usize,
    /// Positions that any query of the pass looks at.
    pub(super) positions: Range<usize>,
}

/// Calls `f` for each block with those of `queries` that look at any of it, and with the index of the first of them.
/// `queries` must be in order of position. At the end divides outputs by the weights' sums.
pub(super) fn for_blocks<'q, 'o>(
    queries: &mut [Query<'q, 'o>],
    mut f: impl FnMut(Block, &mut [Query<'q, 'o>], usize),
) {
    let [Some(first), Some(last)] = [queries.first(), queries.last()] else { return };
    let positions = first.positions.start..last.positions.end;
    for start in (positions.start / BLOCK * BLOCK..positions.end).step_by(BLOCK) {
        let block = start.max(positions.start)..positions.end.min(start + BLOCK);
        // Both ends of the queries' positions ascend.
        let from = queries.partition_point(|query| query.positions.end <= block.start);
        let to = queries.partition_point(|query| query.positions.start < block.end);
        f(Block { start, positions: block }, &mut queries[from..to], from);
    }
    for query in queries {
        query.out.iter_mut().for_each(|out| *out /= query.state.sum);
    }
}

impl Block {
    /// True if each of `queries` looks at the whole block.
    pub(super) fn is_seen_whole(&self, queries: &[Query<'_, '_>]) -> bool {
        let [Some(first), Some(last)] = [queries.first(), queries.last()] else {
            return true;
        };
        // Both ends of the queries' positions ascend.
        last.positions.start <= self.start && self.start + BLOCK <= first.positions.end
    }

    /// Masks positions that a query does not look at: scores of minus infinity, weights of 0.
    fn mask(&self, queries: &mut [Query<'_, '_>]) {
        for query in queries {
            let seen = overlap(&query.positions, &self.positions);
            query.scores[..seen.start - self.start].fill(f32::NEG_INFINITY);
            query.scores[seen.end - self.start..].fill(f32::NEG_INFINITY);
        }
    }

    /// Softmax: turns scores into weights.
    pub(super) fn soften(&self, table: &Table, queries: &mut [Query<'_, '_>]) {
        if !self.is_seen_whole(queries) {
            self.mask(queries);
        }
        let (tiles, rest) = queries.as_chunks_mut::<TILE>();
        for [a, b, c, d] in tiles {
            let scores = [&mut a.scores, &mut b.scores, &mut c.scores, &mut d.scores];
            let states = [&mut a.state, &mut b.state, &mut c.state, &mut d.state];
            let corrections = call!(table.soften_4(scores, states));
            [a.correction, b.correction, c.correction, d.correction] = corrections;
        }
        for query in rest {
            query.correction = call!(table.soften(&mut query.scores, &mut query.state));
        }
    }
}

/// The positions of `part` inside `positions`, as a range inside `part`.
pub(super) fn overlap(positions: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    let start = positions.start.clamp(part.start, part.end);
    start..positions.end.clamp(start, part.end)
}
