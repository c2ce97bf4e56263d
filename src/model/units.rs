//! Inputs of few rows for packed weights, quantised in units of columns by the thread that computed the
//! columns.
//!
//! So only int8 values move to other cores' caches, and no thread waits for another that quantises
//! everything.

use super::inputs::{Inputs, Prepared, activation_group};
use super::matrix::Matrix;
use super::project::{FEW_ROWS, Projector, TileKind, encoding};
use crate::kernels::{ActivationRow, Groups, Kernels, TileParts, TilePartsMut, TileRow};
use crate::pool::Chunks;

/// Maximum number of tiles for a few rows.
pub(super) const TILES: usize = 8;

/// Division of input rows into units.
pub(super) struct Units {
    kind: TileKind,
    groups: Groups,
    m: usize,
    /// Columns of a unit: whole groups.
    columns: usize,
}

/// Units of each tile.
pub(super) type UnitChunks<'a> = heapless::Vec<TileChunks<'a>, TILES>;
type TileChunks<'a> = (Chunks<'a, i8>, (Chunks<'a, f32>, Chunks<'a, f32>));

/// One unit of each tile.
pub(super) type Unit<'a> = heapless::Vec<(&'a mut [i8], (&'a mut [f32], &'a mut [f32])), TILES>;

impl Units {
    /// Units of `columns` columns of `m` rows of inputs of `matrix`, which are `k` long. `None` if there are
    /// too many rows, the matrix is not packed, or `columns` is no multiple of a group.
    pub(super) fn new(
        projector: Projector<'_>,
        (matrix, k): (&Matrix<'_>, usize),
        m: usize,
        columns: usize,
    ) -> Option<Units> {
        let groups = Groups { k, group: activation_group(encoding(matrix))? };
        let kind = projector.tiles(matrix, groups)?;
        let is_whole = columns.is_multiple_of(groups.group);
        let fits = is_whole && m <= FEW_ROWS && kind.cut.tiles(m).count() <= TILES;
        fits.then_some(Units { kind, groups, m, columns })
    }

    /// Has `write` write all units. Returns the rows that they form.
    pub(super) fn write<'i>(
        &self,
        room: Inputs<'i>,
        write: impl FnOnce(UnitChunks<'_>),
    ) -> Prepared<'i> {
        let Units { ref kind, groups: Groups { k, group }, m, columns } = *self;
        let Inputs { q, scales, zeros, tile_sums, .. } = room;
        let terms = if kind.has_zeros { zeros } else { tile_sums };
        let q = &mut q[..m * k];
        let (scales, terms) = (&mut scales[..m * k / group], &mut terms[..m * kind.row_terms]);
        let (mut q_left, mut scales_left, mut terms_left) = (&mut *q, &mut *scales, &mut *terms);
        let tiles = kind.cut.tiles(m).map(|rows| {
            let t = rows.len();
            let q = Chunks::new(cut(&mut q_left, t * k), t * columns);
            let scales = Chunks::new(cut(&mut scales_left, t * k / group), t * columns / group);
            let each = t * columns * kind.row_terms / k;
            let terms = Chunks::new(cut(&mut terms_left, t * kind.row_terms), each);
            (q, (scales, terms))
        });
        write(tiles.collect());
        (kind.join)(TileParts { q, scales, terms }, self.groups, kind.cut)
    }

    /// Quantises a unit. `give` is called with the index of each row, and must pass the row's values to its
    /// second argument.
    pub(super) fn quantize(
        &self,
        kernels: &Kernels,
        unit: Unit<'_>,
        give: impl Fn(usize, &mut dyn FnMut(&[f32])),
    ) {
        let tiles = self.kind.cut.tiles(self.m);
        for (rows, (q, (scales, terms))) in tiles.zip(unit) {
            for (place, index) in rows.clone().enumerate() {
                let place = TileRow { row: place, rows: rows.len() };
                give(index, &mut |x| {
                    let (x, out) = (
                        ActivationRow::F32(x),
                        TilePartsMut { q: &mut *q, scales: &mut *scales, terms: &mut *terms },
                    );
                    (self.kind.quantize)(kernels, x, place, self.groups.group, out);
                });
            }
        }
    }
}

/// Takes the first `n` values off `left`.
fn cut<'s, T>(left: &mut &'s mut [T], n: usize) -> &'s mut [T] {
    let (first, rest) = std::mem::take(left).split_at_mut(n);
    *left = rest;
    first
}
