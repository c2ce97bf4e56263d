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

use half::f16;

use super::float::{BLOCK, LANES, Softmax};
use super::table::{BlockScores, Table, call};

/// Floats of keys or values converted at a time: a block of 128 each.
const SCRATCH: usize = BLOCK * 128;

/// Longest head: one position has to fit the scratch.
pub const HEAD_DIM_MAX: usize = SCRATCH;

/// Queries that share a pass over the keys and values.
pub const QUERIES: usize = 128;

/// Queries of a tile: what the kernels take together.
const TILE: usize = 4;

/// Fewest queries for which transposing keys pays.
const TRANSPOSE_QUERIES: usize = 16;

/// Room for keys or values as f32, and for transposed keys, from whole cache lines on.
#[repr(align(64))]
struct Scratch {
    floats: [f32; SCRATCH],
    transposed: [f32; SCRATCH],
}

/// Where keys and values lie, with those of other heads and streams.
#[derive(Debug, Clone, Copy)]
pub enum KvStored<'a> {
    /// As computed.
    F32(&'a [f32]),
    /// As [`store_kv`](super::Kernels::store_kv) stores them.
    F16(&'a [f16]),
}

/// Keys and values of one head, in pages that each hold consecutive positions.
#[derive(Debug, Clone, Copy)]
pub struct KvPages<'a> {
    /// All pages.
    pub stored: KvStored<'a>,
    /// Which page has the positions `i << page_shift` and following is said by element `i`; where the
    /// table ends it begins again.
    pub table: &'a [u32],
    /// A page has `1 << page_shift` positions.
    pub page_shift: u32,
    /// Values from the beginning of a page to that of the next.
    pub page_step: usize,
    /// Where in a page the head's keys begin, `[positions, head_dim]`.
    pub keys_at: usize,
    /// The same of its values.
    pub values_at: usize,
}

impl KvPages<'_> {
    /// Where the keys or values of `positions` lie, all of one page.
    fn range(&self, part: KvPart, positions: &Range<usize>, head_dim: usize) -> Range<usize> {
        let index = positions.start >> self.page_shift;
        let row = positions.start - (index << self.page_shift);
        // Only a window's table begins again; a division costs more than to see that.
        let index = if index < self.table.len() { index } else { index % self.table.len() };
        let at = match part {
            KvPart::Keys => self.keys_at,
            KvPart::Values => self.values_at,
        };
        let start = self.table[index] as usize * self.page_step + at + row * head_dim;
        start..start + positions.len() * head_dim
    }

    /// The end of the page that holds `pos`.
    fn page_end(&self, pos: usize) -> usize {
        ((pos >> self.page_shift) + 1) << self.page_shift
    }
}

/// The keys and values of one head that queries of consecutive positions look at.
#[derive(Debug, Clone, Copy)]
pub struct Attended<'a> {
    /// Those of all positions that any of the queries looks at.
    pub kv: KvPages<'a>,
    /// The position of the first query.
    pub pos: usize,
    /// How many positions each query looks at, its own included and the last of them.
    pub window: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// One more score for each of a row's heads, as it is, of a position without a value; empty if
    /// there is none.
    pub sinks: &'a [f32],
}

#[derive(Clone, Copy)]
enum KvPart {
    Keys,
    Values,
}

/// A query and its softmax so far.
struct Query<'q, 'o> {
    q: &'q [f32],
    out: &'o mut [f32],
    /// The positions it looks at.
    positions: Range<usize>,
    state: Softmax,
    /// Factor of its output before this block's values are added.
    correction: f32,
    scores: [f32; BLOCK],
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

    let mut scratch = Scratch { floats: [0.0; SCRATCH], transposed: [0.0; SCRATCH] };
    let mut queries = heapless::Vec::<Query<'_, '_>, QUERIES>::new();
    for (row, (q, out)) in q.iter().zip(out).enumerate() {
        let pos = to.pos + row;
        let heads = q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
        for (head, (q, out)) in heads.enumerate() {
            let positions = first_position(pos, to.window)..pos + 1;
            if queries.is_full() {
                pass(table, to, &mut queries, &mut scratch);
                queries.clear();
            }
            out.fill(0.0);
            let sink = to.sinks.get(head);
            let state = sink.map_or(Softmax::EMPTY, |sink| Softmax { max: *sink, sum: 1.0 });
            let (correction, scores) = (1.0, [0.0; BLOCK]);
            // Full ones were cleared just now.
            let _ = queries.push(Query { q, out, positions, state, correction, scores });
        }
    }
    pass(table, to, &mut queries, &mut scratch);
}

/// The first position that the query at `pos` looks at.
fn first_position(pos: usize, window: usize) -> usize {
    (pos + 1).saturating_sub(window)
}

/// Attention of `queries`, which are in order of position.
fn pass(table: &Table, to: &Attended<'_>, queries: &mut [Query<'_, '_>], scratch: &mut Scratch) {
    let [Some(first), Some(last)] = [queries.first(), queries.last()] else { return };
    let positions = first.positions.start..last.positions.end;
    for start in (positions.start / BLOCK * BLOCK..positions.end).step_by(BLOCK) {
        let block = start.max(positions.start)..positions.end.min(start + BLOCK);
        // Both ends of the queries' positions ascend.
        let from = queries.partition_point(|query| query.positions.end <= block.start);
        let to_ = queries.partition_point(|query| query.positions.start < block.end);
        let queries = &mut queries[from..to_];
        let mut block = KvBlock { table, to, start, positions: block, queries };
        block.score(scratch);
        block.soften();
        block.weigh(scratch);
    }
    for query in queries {
        query.out.iter_mut().for_each(|out| *out /= query.state.sum);
    }
}

/// A block of positions and the queries that look at any of them.
struct KvBlock<'a, 'b, 'q, 'o> {
    table: &'a Table,
    to: &'a Attended<'a>,
    /// The position that the block's first score is of.
    start: usize,
    /// Those that any query of the pass looks at.
    positions: Range<usize>,
    queries: &'b mut [Query<'q, 'o>],
}

impl KvBlock<'_, '_, '_, '_> {
    /// Scores of each query for all of the block's positions.
    fn score(&mut self, scratch: &mut Scratch) {
        let (table, to, start) = (self.table, self.to, self.start);
        let queries = &mut *self.queries;
        let Scratch { floats, transposed } = scratch;
        for_pieces(table, to, KvPart::Keys, self.positions.clone(), floats, |piece, keys| {
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

    /// Whether each query looks at a whole block of positions.
    fn is_seen_whole(&self) -> bool {
        let [Some(first), Some(last)] = [self.queries.first(), self.queries.last()] else {
            return true;
        };
        // Both ends of the queries' positions ascend.
        last.positions.start <= self.start && self.start + BLOCK <= first.positions.end
    }

    /// Masks what each query does not look at: scores of minus infinity, weights of 0.
    fn mask(&mut self) {
        for query in self.queries.iter_mut() {
            let seen = overlap(&query.positions, &self.positions);
            query.scores[..seen.start - self.start].fill(f32::NEG_INFINITY);
            query.scores[seen.end - self.start..].fill(f32::NEG_INFINITY);
        }
    }

    /// Softmax: turns scores into weights.
    fn soften(&mut self) {
        if !self.is_seen_whole() {
            self.mask();
        }
        let (tiles, rest) = self.queries.as_chunks_mut::<TILE>();
        for [a, b, c, d] in tiles {
            let scores = [&mut a.scores, &mut b.scores, &mut c.scores, &mut d.scores];
            let states = [&mut a.state, &mut b.state, &mut c.state, &mut d.state];
            let corrections = call!(self.table.soften_4(scores, states));
            [a.correction, b.correction, c.correction, d.correction] = corrections;
        }
        for query in rest {
            query.correction = call!(self.table.soften(&mut query.scores, &mut query.state));
        }
    }

    /// Adds the values times their weights to the queries' outputs.
    fn weigh(&mut self, scratch: &mut Scratch) {
        let (table, to, start) = (self.table, self.to, self.start);
        let is_seen_whole = self.is_seen_whole();
        let queries = &mut *self.queries;
        let floats = &mut scratch.floats;
        for_pieces(table, to, KvPart::Values, self.positions.clone(), floats, |piece, values| {
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
        });
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

/// What of `part` lies in `positions`, as a range inside `part`.
fn overlap(positions: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    let start = positions.start.clamp(part.start, part.end);
    start..positions.end.clamp(start, part.end)
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
    }
}
