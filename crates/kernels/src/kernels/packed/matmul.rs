//! Matrix products as tiles of activations by panels of weights.
//!
//! Panels are outermost: each is read from memory once and stays in cache for the whole batch. While a tile works, the
//! next weights and outputs are prefetched.
//!
//! Best: one whole panel per tile, from L2 if need be; results go out once. With few tiles, or panels longer than a
//! tier wants, the panel is cut into parts that fit L1, and results wait for the last part. A single tile streams the
//! panel from memory.

use std::cell::RefCell;
use std::ops::Range;

use super::super::table::{Table, call};
use super::activations::Q8Tiles;
use super::cut::{CUT_ROWS, TileSet};
use super::ggml::{RUNS_MAX, RunTile, Unpacked};
use super::layout::{NR_MAX, PackedB2, PackedB6, PackedGgml, PackedQ4, PackedQ8, Panels};
use super::table::{PART_BYTES, PackedTable, Unpack};
use super::tile::{AHEAD_COLUMNS, Ahead, MR_MAX, Q8Tile, TileFn};
use crate::quant::bcml1::BLOCK;
use crate::quant::bcml6;
use crate::quant::ggml::Form;

#[cfg(target_arch = "x86_64")]
mod bytes;

/// Fewest tiles for which parts are as large as a tier wants.
const TILES_MANY: usize = 5;

/// Most bytes of an unpacked part of a panel; it stays in L1 too.
const UNPACKED_BYTES: usize = 24 << 10;

/// Most bytes of a part of 6-bit weights that is unpacked to int8: few enough that the next part arrives from memory
/// meanwhile.
const INT8_BYTES: usize = 3 << 10;

/// Floats of results that wait for the last part of a panel.
const RESULTS: usize = CUT_ROWS * NR_MAX;

/// Most tiles that each panel is multiplied by before the next panel: so few that they stay in L1 and L2.
const TILES_AT_ONCE: usize = 8;

/// Prefetch distance of a single tile's weights.
const NEAR_BYTES: usize = 8192;

/// Buffers of a thread for its products, aligned so that no vector crosses a cache line.
#[repr(align(64))]
struct Room {
    results: [f32; RESULTS],
    /// Results of a second plane, or of offsets.
    others: [f32; RESULTS],
    unpacked: [u8; UNPACKED_BYTES],
    /// Address of the panel that was prefetched last and is on its way to L2. Any other panel is in memory.
    asked: usize,
}

thread_local! {
    static ROOM: RefCell<Room> =
        const { RefCell::new(Room { results: [0.0; RESULTS], others: [0.0; RESULTS], unpacked: [0; UNPACKED_BYTES], asked: 0 }) };
}

/// See [`super::super::Kernels::matmul_packed_q8`].
pub(in crate::kernels) fn matmul_q8(
    table: &PackedTable,
    w: PackedQ8<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_zeros());
    assert_eq!(w.group(), x.group());
    matmul(table, (table.tiles_q8, None), w.panels(), x, out);
}

/// See [`super::super::Kernels::matmul_packed_q4`].
pub(in crate::kernels) fn matmul_q4(
    table: &PackedTable,
    w: PackedQ4<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_sums());
    matmul(table, (table.tiles_q4, table.unpack_q4.as_ref()), w.panels(), x, out);
}

/// See [`super::super::Kernels::matmul_packed_b2`].
pub(in crate::kernels) fn matmul_b2(
    table: &PackedTable,
    w: PackedB2<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_int_sums());
    matmul(table, (table.tiles_b2, table.unpack_b2.as_ref()), w.panels(), x, out);
}

/// See [`super::super::Kernels::matmul_packed_b6`].
pub(in crate::kernels) fn matmul_b6(
    table: &Table,
    w: PackedB6<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_zeros());
    assert_eq!(x.group(), BLOCK);
    check(table.packed(), table.packed().tiles_q8, w.panels(), x, out);
    for (i, out) in out.chunks_mut(CUT_ROWS).enumerate() {
        let x = x.slice_rows(i * CUT_ROWS..i * CUT_ROWS + out.len());
        ROOM.with_borrow_mut(|room| matmul_unpacked(table, w.panels(), x, out, room));
    }
}

/// See [`super::super::Kernels::matmul_packed_ggml`].
pub(in crate::kernels) fn matmul_ggml(
    table: &Table,
    w: PackedGgml<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_zeros());
    assert_eq!(x.group(), BLOCK);
    let Some(form) = w.kind().form() else {
        return matmul(table.packed(), (table.packed().tiles_q8, None), w.panels(), x, out);
    };
    check(table.packed(), table.packed().tiles_q8, w.panels(), x, out);
    let tiles = (table.packed().run_tiles)(form);
    let has_tiles = x.cut().tiles(out.len()).all(|rows| rows.len() <= tiles.len());
    #[cfg(target_arch = "x86_64")]
    if has_tiles && out.len() >= bytes::FROM_ROWS {
        for (i, out) in out.chunks_mut(CUT_ROWS).enumerate() {
            let x = x.slice_rows(i * CUT_ROWS..i * CUT_ROWS + out.len());
            ROOM.with_borrow_mut(|Room { results, others, .. }| {
                bytes::matmul((table.packed(), form), tiles, w.panels(), x, out, [results, others]);
            });
        }
        return;
    }
    if has_tiles {
        return matmul_run_tiles(tiles, form, w.panels(), x, out);
    }
    for (i, out) in out.chunks_mut(CUT_ROWS).enumerate() {
        let x = x.slice_rows(i * CUT_ROWS..i * CUT_ROWS + out.len());
        ROOM.with_borrow_mut(|room| matmul_runs(table, form, w.panels(), x, out, room));
    }
}

/// Multiplies tiles by panels of a GGUF file's blocks, whose codes each tile unpacks in registers.
fn matmul_run_tiles(
    tiles: &[RunTile],
    form: Form,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    let nr = w.layout.panel_rows();
    let mut y = [0.0; MR_MAX * NR_MAX];
    let mut cut = x.cut().tiles(out.len()).peekable();
    while cut.peek().is_some() {
        let at_once: heapless::Vec<Range<usize>, TILES_AT_ONCE> =
            cut.by_ref().take(TILES_AT_ONCE).collect();
        for (panel_index, (_, panel)) in w.iter().enumerate() {
            let columns = panel_index * nr..((panel_index + 1) * nr).min(w.dims.rows);
            for rows in &at_once {
                let tile = tiles[rows.len() - 1];
                let y = &mut y[..rows.len() * nr];
                call!(tile(form, panel, &x.tile(rows.clone()), y));
                place_rows(y, columns.clone(), &mut out[rows.clone()]);
            }
        }
    }
}

/// Multiplies rows that are cut together by panels of a GGUF file's blocks. Parts of at most [`RUNS_MAX`] runs are
/// unpacked to int8 for all tiles. The sums of the second halves of runs, and of offsets, are added at the end.
fn matmul_runs(
    table: &Table,
    form: Form,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
    room: &mut Room,
) {
    let packed = table.packed();
    let (nr, cut, runs) = (w.layout.panel_rows(), x.cut(), w.dims.k / BLOCK);
    let part_bytes = RUNS_MAX * BLOCK / form.columns() * form.panel_block(nr);
    let plane_bytes = RUNS_MAX * w.layout.group_bytes(BLOCK);
    let mut offsets = [0.0; RUNS_MAX * NR_MAX];
    let mut mins = [[0; 2]; RUNS_MAX * NR_MAX];
    for (panel_index, (_, panel)) in w.iter().enumerate() {
        let columns = panel_index * nr..((panel_index + 1) * nr).min(w.dims.rows);
        for (part_index, part) in panel.chunks(part_bytes).enumerate() {
            let groups = part_index * RUNS_MAX..((part_index + 1) * RUNS_MAX).min(runs);
            let (first, rest) = room.unpacked.split_at_mut(plane_bytes);
            let planes = [first, &mut rest[..plane_bytes]];
            let mut unpacked = Unpacked { planes, offsets: &mut offsets, mins: &mut mins };
            call!(packed.unpack_ggml(w.layout, form, part, &mut unpacked));
            let Unpacked { planes, offsets, mins } = unpacked;
            let mins = form.has_halves().then_some(&*mins);
            let planes = planes.map(|plane| &plane[..groups.len() * w.layout.group_bytes(BLOCK)]);
            for rows in cut.tiles(out.len()) {
                let out = &mut out[rows.clone()];
                let place = rows.start * nr..(rows.start + out.len()) * nr;
                let (y, others) = (&mut room.results[place.clone()], &mut room.others[place]);
                if groups.start == 0 {
                    y.fill(0.0);
                    others.fill(0.0);
                }
                let kernel = cut.kernel(out.len(), false).kernel;
                let tile = x.part(rows, groups.clone());
                call!(kernel(planes[0], &tile, y));
                if form.n_scales == 2 {
                    call!(kernel(planes[1], &tile, others));
                }
                if form.has_min {
                    let offsets = (&offsets[..groups.len() * nr], mins);
                    call!(table.add_offsets(w.layout, offsets, &tile, others));
                }
                if groups.end == runs {
                    call!(packed.place(y, columns.clone(), out));
                    add_others(packed, form, others, columns.clone(), out);
                }
            }
        }
    }
}

/// Adds a tile's other sums to its results, which are in their places.
fn add_others(
    packed: &PackedTable,
    form: Form,
    others: &[f32],
    columns: Range<usize>,
    out: &mut [&mut [f32]],
) {
    if !form.has_others() {
        return;
    }
    let mut room = [[0.0; NR_MAX]; MR_MAX];
    let mut rows: heapless::Vec<&mut [f32], MR_MAX> =
        room.iter_mut().map(|row| &mut row[..]).take(out.len()).collect();
    if form.has_min {
        place_rows(others, 0..columns.len(), &mut rows);
    } else {
        call!(packed.place(others, 0..columns.len(), &mut rows));
    }
    for (out, other) in out.iter_mut().zip(&rows) {
        out[columns.clone()].iter_mut().zip(other.iter()).for_each(|(out, other)| *out += other);
    }
}

/// Multiplies rows that are cut together by panels that are first unpacked to int8, part by part, for all tiles.
fn matmul_unpacked(
    table: &Table,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
    room: &mut Room,
) {
    let packed = table.packed();
    let (nr, cut, blocks) = (w.layout.nr, x.cut(), w.dims.k / BLOCK);
    let (block_bytes, group_bytes) = (nr * bcml6::BLOCK_BYTES, w.layout.group_bytes(BLOCK));
    let part_blocks = blocks.div_ceil(blocks.div_ceil(INT8_BYTES / group_bytes));
    for (panel_index, (steps, panel)) in w.iter().enumerate() {
        let columns = panel_index * nr..((panel_index + 1) * nr).min(w.dims.rows);
        for (part_index, part) in panel.chunks(part_blocks * block_bytes).enumerate() {
            let groups = part_index * part_blocks..((part_index + 1) * part_blocks).min(blocks);
            let unpacked = &mut room.unpacked[..groups.len() * group_bytes];
            call!(table.unpack_b6(w.layout, steps, part, unpacked));
            for rows in cut.tiles(out.len()) {
                let out = &mut out[rows.clone()];
                let y = &mut room.results[rows.start * nr..][..out.len() * nr];
                if groups.start == 0 {
                    y.fill(0.0);
                }
                let kernel = cut.kernel(out.len(), false).kernel;
                call!(kernel(unpacked, &x.part(rows, groups.clone()), y));
                if groups.end == blocks {
                    call!(packed.place(y, columns.clone(), out));
                }
            }
        }
    }
}

/// Checks that weights, activations and results belong together.
fn check(
    table: &PackedTable,
    tiles: &'static TileSet,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &[&mut [f32]],
) {
    assert_eq!(w.layout, table.layout);
    assert!(x.cut().is_of(tiles));
    assert_eq!(w.dims.k, x.k());
    assert_eq!(out.len(), x.m());
    assert!(out.iter().all(|out| out.len() == w.dims.rows));
}

fn matmul(
    table: &PackedTable,
    (tiles, unpack): (&'static TileSet, Option<&Unpack>),
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    check(table, tiles, w, x, out);
    if let [out] = out {
        return matmul_single(x.cut().kernel(1, false).kernel, w, &x.tile(0..1), out);
    }
    for (i, out) in out.chunks_mut(CUT_ROWS).enumerate() {
        let x = x.slice_rows(i * CUT_ROWS..i * CUT_ROWS + out.len());
        ROOM.with_borrow_mut(|room| matmul_tiles(table, unpack, w, x, out, room));
    }
}

/// Multiplies several rows that are cut together. The list of tiles is filled in place, because `collect` would copy
/// all of its capacity.
fn matmul_tiles(
    table: &PackedTable,
    unpack: Option<&Unpack>,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
    room: &mut Room,
) {
    let (nr, cut, m) = (w.layout.panel_rows(), x.cut(), x.m());
    let mut tiles = heapless::Vec::<Range<usize>, CUT_ROWS>::new();
    tiles.extend(cut.tiles(m));
    let (groups, n_tiles) = (w.dims.k / x.group(), tiles.len());
    let unpack = unpack.filter(|_| cut.unpacks(m));
    if n_tiles == 1 && unpack.is_none() {
        return matmul_tile(table, w, x, out, room);
    }
    let is_many = m >= TILES_MANY * cut.highest();
    for (panel_index, (head, panel)) in w.iter().enumerate() {
        let is_asked = room.asked == panel.as_ptr().addr();
        room.asked = panel.as_ptr_range().end.addr();
        let part_groups = part_groups(table, unpack, w, x.group(), is_many && is_asked);
        let (start, group_bytes) = (panel_index * nr, panel.len() / groups);
        let columns = start..(start + nr).min(w.dims.rows);
        for first in (0..groups).step_by(part_groups) {
            let part_range = first..(first + part_groups).min(groups);
            let part = &panel[part_range.start * group_bytes..part_range.end * group_bytes];
            let unpacked =
                unpack.map_or(&[][..], |unpack| unpack.part(part, x.group(), &mut room.unpacked));
            let is_last = part_range.end == groups;
            let next = if is_last && is_many { panel.len() } else { part.len() };
            let share = next / n_tiles;
            // The first tile of the next part or panel takes all of it at once.
            let distance = part.len() - share.min(part.len()) + NEAR_BYTES;
            let w_step = share * AHEAD_COLUMNS / (part_range.len() * x.group());
            for (tile_index, rows) in tiles.iter().cloned().enumerate() {
                let out = &mut out[rows.clone()];
                // If a tile takes the whole panel, its results are placed before the next tile begins.
                let slot = if part_groups == groups { 0 } else { rows.start * nr };
                let y = &mut room.results[slot..][..out.len() * nr];
                if first == 0 {
                    y.fill(0.0);
                }
                let ahead = Ahead {
                    w: part.as_ptr().wrapping_add(distance + tile_index * share),
                    w_step,
                    n_tiles: if is_many { 0 } else { n_tiles },
                    rows: if is_last { &*out } else { &[] },
                    column: start,
                };
                let chosen = cut.kernel(out.len(), unpack.is_some());
                let tile = Q8Tile { ahead, ..x.part(rows, part_range.clone()) };
                call!(chosen.kernel(if chosen.is_unpacked { unpacked } else { part }, &tile, y));
                if is_last {
                    call!(table.place(y, columns.clone(), out));
                }
            }
        }
        scale_rows(head, columns, out);
    }
}

/// Multiplies a single tile by packed weights: it reads each panel once, in one go.
fn matmul_tile(
    table: &PackedTable,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
    room: &mut Room,
) {
    let (nr, m) = (w.layout.panel_rows(), x.m());
    let (kernel, tile) = (x.cut().kernel(m, false).kernel, x.tile(0..m));
    let y = &mut room.results[..m * nr];
    for (panel_index, (head, panel)) in w.iter().enumerate() {
        let start = panel_index * nr;
        let columns = start..(start + nr).min(w.dims.rows);
        let ahead = Ahead {
            w: panel.as_ptr().wrapping_add(NEAR_BYTES),
            w_step: panel.len() * AHEAD_COLUMNS / w.dims.k,
            n_tiles: 1,
            rows: &*out,
            column: start,
        };
        y.fill(0.0);
        call!(kernel(panel, &Q8Tile { ahead, ..tile }, y));
        call!(table.place(y, columns.clone(), out));
        scale_rows(head, columns, out);
        room.asked = panel.as_ptr_range().end.addr();
    }
}

/// Multiplies results of a panel, `columns` of each row, by the steps of its rows, if they have steps.
fn scale_rows(head: &[u8], columns: Range<usize>, out: &mut [&mut [f32]]) {
    if head.is_empty() {
        return;
    }
    let steps = head.as_chunks().0;
    out.iter_mut().for_each(|out| scale(steps, &mut out[columns.clone()]));
}

/// Multiplies one row of outputs by its steps; 16 outputs, the usual number, take whole vectors.
#[inline(always)]
fn scale(steps: &[[u8; 4]], out: &mut [f32]) {
    if let (Some(steps), Ok(out)) =
        (steps.first_chunk::<16>(), <&mut [f32; 16]>::try_from(&mut *out))
    {
        for i in 0..16 {
            out[i] *= f32::from_ne_bytes(steps[i]);
        }
    } else {
        for (out, step) in out.iter_mut().zip(steps) {
            *out *= f32::from_ne_bytes(*step);
        }
    }
}

/// Activation groups of a part of a panel; the last part may have fewer. For many tiles of a prefetched panel, parts
/// are as large as the tier wants. Otherwise they are small, because the first tile waits for a whole part.
fn part_groups(
    table: &PackedTable,
    unpack: Option<&Unpack>,
    w: Panels<'_>,
    group: usize,
    is_large: bool,
) -> usize {
    let columns = match unpack {
        Some(unpack) => UNPACKED_BYTES / unpack.bytes * BLOCK,
        None if is_large => table.part_bytes / w.layout.panel_rows(),
        None => PART_BYTES / w.layout.panel_rows(),
    };
    let (groups, most) = (w.dims.k / group, (columns / group).max(1));
    groups.div_ceil(groups.div_ceil(most))
}

impl Unpack {
    /// Unpacks the codes of `part`, whole activation groups of `group` columns.
    fn part<'a>(&self, part: &[u8], group: usize, out: &'a mut [u8]) -> &'a [u8] {
        let out = &mut out[..part.len() / self.packed_bytes * self.bytes];
        call!(self.unpack(part, group / BLOCK, out));
        out
    }
}

/// Multiplies a single row.
fn matmul_single(kernel: TileFn, w: Panels<'_>, x: &Q8Tile<'_>, out: &mut [f32]) {
    let nr = w.layout.panel_rows();
    for ((head, panel), out) in w.iter().zip(out.chunks_mut(nr)) {
        let mut last = [0.0; NR_MAX];
        let y = if out.len() == nr { &mut *out } else { &mut last[..nr] };
        y.fill(0.0);
        call!(kernel(panel, x, y));
        if out.len() < nr {
            out.copy_from_slice(&last[..out.len()]);
        }
        scale(head.as_chunks().0, out);
    }
}

/// Copies a tile's results, `[t, nr]`, to their places.
pub(in crate::kernels) fn place_rows(y: &[f32], columns: Range<usize>, out: &mut [&mut [f32]]) {
    let nr = y.len() / out.len();
    for (out, y) in out.iter_mut().zip(y.chunks_exact(nr)) {
        copy(&y[..columns.len()], &mut out[columns.clone()]);
    }
}

/// Copies a panel's results. Usually there are 16: a constant length needs no call.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    if from.len() == 16
        && let (Some(from), Some(to)) = (from.first_chunk::<16>(), to.first_chunk_mut())
    {
        *to = *from;
    } else {
        to.copy_from_slice(from);
    }
}
