//! The cut of a batch of activations into tiles: by cost, not by the highest possible tile.
//!
//! A tier has kernels for tiles of some heights. It knows the cost of each in a unit of its own, counted or measured. A
//! batch of many rows begins with highest tiles. The cheapest cut of few rows, or of the rest, is computed at compile
//! time. Unpacking 4-bit weights, which some heights need, adds a cost once for all tiles of a batch.

use std::ops::Range;

use super::tile::{MR_MAX, TileFn};

/// Rows that are cut independently: a caller splits batches at multiples of this number.
pub const CUT_ROWS: usize = 384;

/// Most rows whose cheapest cut is looked up.
const FEW: usize = 2 * MR_MAX;

/// Height of the first tile, by number of rows.
type Heights = [usize; FEW + 1];

/// A kernel for tiles of one height.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct TileKernel {
    rows: usize,
    pub(super) kernel: TileFn,
    cost: u32,
    /// True if the kernel takes unpacked weights.
    pub(super) is_unpacked: bool,
}

impl TileKernel {
    /// A kernel for tiles of `rows` rows.
    pub(in crate::kernels) const fn new(rows: usize, kernel: TileFn, cost: u32) -> TileKernel {
        TileKernel { rows, kernel, cost, is_unpacked: false }
    }

    /// This kernel, for weights that were unpacked first.
    pub(in crate::kernels) const fn unpacked(self) -> TileKernel {
        TileKernel { is_unpacked: true, ..self }
    }
}

/// A tier's kernels for one kind of weights.
pub(in crate::kernels) struct TileSet {
    /// The cheapest kernel for tiles of `index + 1` rows, if there is one: among those that take packed weights, and
    /// among all.
    kernels: [[Option<TileKernel>; MR_MAX]; 2],
    /// Rows of the highest tile.
    mr: usize,
    /// True if the cheapest cut of `index` rows unpacks weights.
    unpacks: [bool; FEW + 1],
    /// Cheapest cuts without unpacked weights, and with them.
    heights: [Heights; 2],
}

impl TileSet {
    /// Kernels in order of height, including one for a single row; unpacking weights costs `unpack`. A height may have
    /// a kernel for packed and one for unpacked weights.
    pub(in crate::kernels) const fn new(tiles: &[TileKernel], unpack: u32) -> TileSet {
        let mut kernels = [[None; MR_MAX]; 2];
        let mut i = 0;
        while i < tiles.len() {
            let tile = tiles[i];
            assert!(i == 0 || tiles[i - 1].rows <= tile.rows);
            let mut set = tile.is_unpacked as usize;
            while set < 2 {
                let place: &mut Option<TileKernel> = &mut kernels[set][tile.rows - 1];
                match place {
                    Some(other) if other.cost <= tile.cost => (),
                    _ => *place = Some(tile),
                }
                set += 1;
            }
            i += 1;
        }
        let (packed, packed_costs) = cheapest(tiles, false);
        let (any, any_costs) = cheapest(tiles, true);
        let mut unpacks = [false; FEW + 1];
        let mut rows = 1;
        while rows <= FEW {
            unpacks[rows] = any_costs[rows] + unpack < packed_costs[rows];
            rows += 1;
        }
        let highest = tiles[tiles.len() - 1];
        assert!(unpacks[FEW] == highest.is_unpacked);
        TileSet { kernels, mr: highest.rows, unpacks, heights: [packed, any] }
    }
}

/// For each number of rows, the first tile of the cheapest cut (of equal cuts, the one with the highest tile), and the
/// cost of the cut.
const fn cheapest(tiles: &[TileKernel], may_unpack: bool) -> (Heights, [u32; FEW + 1]) {
    let (mut heights, mut costs) = ([0; FEW + 1], [0; FEW + 1]);
    let mut rows = 1;
    while rows <= FEW {
        costs[rows] = u32::MAX;
        let mut i = 0;
        while i < tiles.len() {
            let tile = tiles[i];
            if tile.rows <= rows && (may_unpack || !tile.is_unpacked) {
                let cost = tile.cost + costs[rows - tile.rows];
                if cost <= costs[rows] {
                    (heights[rows], costs[rows]) = (tile.rows, cost);
                }
            }
            i += 1;
        }
        rows += 1;
    }
    (heights, costs)
}

/// The cut of batches into tiles for products with one kind of weights.
#[derive(Clone, Copy)]
pub struct TileCut(&'static TileSet);

impl std::fmt::Debug for TileCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TileCut").field(&self.0.mr).finish()
    }
}

impl TileCut {
    pub(in crate::kernels) fn new(tiles: &'static TileSet) -> TileCut {
        TileCut(tiles)
    }

    pub(super) fn is_of(self, tiles: &'static TileSet) -> bool {
        std::ptr::eq(self.0, tiles)
    }

    /// Ranges of rows of the tiles of a batch of `m` rows.
    pub fn tiles(self, m: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let after = move |tile: &Range<usize>| self.first_tile(m, tile.end);
        std::iter::successors(self.first_tile(m, 0), after)
    }

    /// The tile that begins with row `start` of a batch of `m` rows; `None` at its end.
    fn first_tile(self, m: usize, start: usize) -> Option<Range<usize>> {
        let cut = start - start % CUT_ROWS..m.min((start / CUT_ROWS + 1) * CUT_ROWS);
        let left = m.min(cut.end) - start.min(cut.end);
        let heights = &self.0.heights[usize::from(self.unpacks(cut.len()))];
        let height = if left > FEW { self.0.mr } else { heights[left] };
        (height != 0).then_some(start..start + height)
    }

    /// True if 4-bit weights are to be unpacked for a batch of up to [`CUT_ROWS`] rows.
    pub(super) fn unpacks(self, m: usize) -> bool {
        self.0.unpacks[m.min(FEW)]
    }

    /// The kernel for tiles of `rows` rows, in a batch with unpacked weights or without.
    pub(super) fn kernel(self, rows: usize, unpacks: bool) -> &'static TileKernel {
        let kernel = &self.0.kernels[usize::from(unpacks)][rows - 1];
        kernel.as_ref().expect("a batch is cut into tiles that have kernels")
    }

    /// Rows of the highest tile.
    pub fn highest(self) -> usize {
        self.0.mr
    }
}
