//! Attention to int8 keys and values; see [`super::super::kv8`]. Blocks are taken whole: positions that a query does
//! not look at get the weight 0.

use super::super::kv8::queries::Queries;
use super::super::kv8::{self, KvLine, VALUE_GROUP, VALUE_LINES};
use super::super::table::{Table, call};
use super::pages::{Attended, KvPart};
use super::query::{Block, QUERIES, Query, TILE, for_blocks, for_queries};

/// See [`super::super::Kernels::attend`].
pub(super) fn attend(
    table: &Table,
    q: &[&[f32]],
    (to, lines): (&Attended<'_>, &[KvLine]),
    out: &mut [&mut [f32]],
) {
    let mut int8 = Queries::new(to.head_dim);
    let capacity = int8.capacity().min(QUERIES);
    for_queries(to, q, out, capacity, |queries| {
        for (index, query) in queries.iter().enumerate() {
            int8.set(table, index, query.q);
        }
        let pass = Pass { table, to, lines, queries: &int8 };
        for_blocks(queries, |block, queries, from| pass.block(&block, queries, from));
    });
}

/// Attention of some queries.
struct Pass<'a> {
    table: &'a Table,
    to: &'a Attended<'a>,
    lines: &'a [KvLine],
    /// The queries as int8.
    queries: &'a Queries,
}

impl Pass<'_> {
    /// Adds a block of positions to the queries from index `from` on.
    fn block(&self, block: &Block, queries: &mut [Query<'_, '_>], from: usize) {
        let [of_keys, of_values] = kv8::block_lines(self.to.head_dim);
        self.score(self.part(KvPart::Keys, block, of_keys), queries, from);
        block.soften(self.table, queries);
        self.weigh(self.part(KvPart::Values, block, of_values), queries);
    }

    /// The keys or values of a block, `n_lines` lines.
    fn part(&self, part: KvPart, block: &Block, n_lines: usize) -> &[KvLine] {
        let kv = &self.to.kv;
        // A page holds whole blocks.
        let first = block.start >> kv.page_shift << kv.page_shift;
        let page = kv.range(part, &(first..first), 0).start;
        &self.lines[page + (block.start - first) / kv8::KV_BLOCK * n_lines..][..n_lines]
    }

    fn score(&self, keys: &[KvLine], queries: &mut [Query<'_, '_>], from: usize) {
        let (table, scale) = (self.table, self.to.scale);
        let (tiles, rest) = queries.as_chunks_mut::<TILE>();
        let mut at = from;
        for tile in tiles {
            let q = [at, at + 1, at + 2, at + 3].map(|index| self.queries.get(index));
            let scores = tile.each_mut().map(|query| &mut query.scores);
            call!(table.score_i8_4(q, keys, scale, scores));
            at += TILE;
        }
        for (index, query) in (at..).zip(rest) {
            call!(table.score_i8(self.queries.get(index), keys, scale, &mut query.scores));
        }
    }

    fn weigh(&self, values: &[KvLine], queries: &mut [Query<'_, '_>]) {
        let table = self.table;
        for (g, values) in values.chunks(VALUE_LINES).enumerate() {
            let (tiles, rest) = queries.as_chunks_mut::<TILE>();
            for tile in tiles {
                let corrections = tile.each_ref().map(|query| query.correction);
                let [a, b, c, d] = tile.each_mut();
                let weights = [&a.scores, &b.scores, &c.scores, &d.scores];
                let out = [&mut *a.out, &mut *b.out, &mut *c.out, &mut *d.out];
                let out = out.map(|out| columns(out, g));
                call!(table.weigh_i8_4(weights, values, corrections, out));
            }
            for query in rest {
                let out = columns(query.out, g);
                call!(table.weigh_i8(&query.scores, values, query.correction, out));
            }
        }
    }
}

/// The columns of a group of values.
fn columns(out: &mut [f32], g: usize) -> &mut [f32] {
    let end = out.len().min((g + 1) * VALUE_GROUP);
    &mut out[g * VALUE_GROUP..end]
}
