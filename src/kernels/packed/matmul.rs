//! Matrix products as tiles of activations by panels of weights.
//!
//! Panels are outermost: each is read from memory once and stays in cache for the whole batch. If
//! there are several tiles, a panel is taken in parts that stay in the first level of cache, by a
//! block of tiles whose results wait in one place until they are whole: rows of an output lie pages
//! apart. What comes next of weights and outputs is asked for while a part is in use.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::Table;
use super::layout::Panels;
use super::{
    AHEAD_COLUMNS, MR_MAX, NR_MAX, PackedQ4, PackedQ8, PackedTable, PlaceFn, Q8Tiles, Tile, TileFn,
    Unpack,
};
use crate::quant::bcml1::BLOCK;

/// Bytes of a part of a panel, its values counted as int8.
const PART_BYTES: usize = 16 << 10;

/// Results of a block of tiles.
const BLOCK_RESULTS: usize = 8192;

const _: () = assert!(BLOCK_RESULTS >= MR_MAX * NR_MAX);

/// How far ahead of the weights in use a single tile asks for others.
const NEAR_BYTES: usize = 8192;

/// Most bytes of a part of a panel whose codes were taken apart.
const UNPACKED_BYTES: usize = 24 << 10;

/// See [`super::super::Kernels::matmul_packed_q8`].
pub(in crate::kernels) fn matmul_q8(
    table: &PackedTable,
    w: PackedQ8<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_zeros());
    assert_eq!(w.group(), x.group());
    matmul(table, table.tiles_q8, None, w.panels(), x, out);
}

/// See [`super::super::Kernels::matmul_packed_q4`].
pub(in crate::kernels) fn matmul_q4(
    table: &PackedTable,
    w: PackedQ4<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    assert!(x.has_sums());
    matmul(table, table.tiles_q4, table.unpack_q4.as_ref(), w.panels(), x, out);
}

fn matmul(
    table: &PackedTable,
    kernels: &[TileFn],
    unpack: Option<&Unpack>,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    let mr = table.mr();
    assert_eq!(w.layout, table.layout);
    assert_eq!(x.mr(), mr);
    assert_eq!(w.k, x.k());
    assert_eq!(out.len(), x.m());
    assert!(out.iter().all(|out| out.len() == w.rows));
    match out {
        [out] => matmul_single(kernels[0], w, &x.tile(0..1), out),
        _ if out.len() <= mr => {
            matmul_blocks::<{ MR_MAX * NR_MAX }>(table.place, kernels, unpack, w, x, out);
        }
        _ => matmul_blocks::<BLOCK_RESULTS>(table.place, kernels, unpack, w, x, out),
    }
}

/// The same for several rows, with room for `RESULTS` of them: clearing it takes time.
fn matmul_blocks<const RESULTS: usize>(
    place: PlaceFn,
    kernels: &[TileFn],
    unpack: Option<&Unpack>,
    w: Panels<'_>,
    x: Q8Tiles<'_>,
    out: &mut [&mut [f32]],
) {
    let (nr, mr) = (w.layout.panel_rows(), x.mr());
    let groups = w.k / x.x_group();
    let part_groups = (PART_BYTES / (nr * x.x_group())).clamp(1, groups);
    let block_rows = RESULTS / (nr * mr) * mr;
    let mut results = Aligned([MaybeUninit::uninit(); RESULTS]);
    let mut unpacked = unpack.map(|unpack| (unpack, Aligned([0; UNPACKED_BYTES])));
    for (panel_index, panel) in w.iter().enumerate() {
        let start = panel_index * nr;
        let columns = start..(start + nr).min(w.rows);
        let group_bytes = panel.len() / groups;
        for (block_index, out) in out.chunks_mut(block_rows).enumerate() {
            let first_row = block_index * block_rows;
            let results = zeros(&mut results.0[..out.len() * nr]);
            let parts = panel.chunks(part_groups * group_bytes);
            let last = parts.len() - 1;
            let is_single = out.len() <= mr;
            for (part_index, part) in parts.enumerate() {
                let first = part_index * part_groups;
                let part_range = first..first + part.len() / group_bytes;
                let whole = match &mut unpacked {
                    Some((unpack, unpacked)) => unpack.part(part, x.x_group(), &mut unpacked.0),
                    None => part,
                };
                // A single tile needs what others ask for during the part before.
                let distance = if is_single { NEAR_BYTES } else { part.len() };
                let tiles = results.chunks_mut(mr * nr).zip(out.chunks_mut(mr));
                let share = part.len() / tiles.len();
                let w_step = share * AHEAD_COLUMNS / (part_range.len() * x.x_group());
                for (tile_index, (y, out)) in tiles.enumerate() {
                    let (t, row) = (out.len(), first_row + tile_index * mr);
                    let mut tile = x.part(row..row + t, part_range.clone());
                    tile.ahead.w = part.as_ptr().wrapping_add(distance + tile_index * share);
                    tile.ahead.w_step = w_step;
                    let part = if t == 1 { part } else { whole };
                    if part_index == last {
                        prefetch(out, columns.clone());
                    }
                    // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has
                    // its features.
                    unsafe { (kernels[t - 1])(part, &tile, y) };
                    if part_index == last {
                        // SAFETY: as above.
                        unsafe { place(y, columns.clone(), out) };
                    }
                }
            }
        }
    }
}

/// Makes all of `room` zeros: much of it is never used.
fn zeros(room: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    room.fill(MaybeUninit::new(0.0));
    // SAFETY: all of it has just been written.
    unsafe { &mut *(std::ptr::from_mut(room) as *mut [f32]) }
}

/// Asks for part of the output, which will be written.
#[inline(always)]
fn prefetch(out: &[&mut [f32]], columns: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    for line in out.iter().flat_map(|out| out[columns.clone()].chunks(16)) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (out, columns);
}

/// Starts with a cache line, so that no vector lies in two.
#[repr(align(64))]
struct Aligned<T>(T);

impl Unpack {
    /// Takes apart the codes of `part`, whole activation groups of `x_group` columns.
    fn part<'a>(&self, part: &[u8], x_group: usize, out: &'a mut [u8]) -> &'a [u8] {
        let out = &mut out[..part.len() / self.packed_bytes * self.bytes];
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { (self.unpack)(part, x_group / BLOCK, out) };
        out
    }
}

/// The same for a single row.
fn matmul_single(kernel: TileFn, w: Panels<'_>, x: &Tile<'_>, out: &mut [f32]) {
    let nr = w.layout.panel_rows();
    for (panel, out) in w.iter().zip(out.chunks_mut(nr)) {
        let mut last = [0.0; NR_MAX];
        let y = if out.len() == nr { &mut *out } else { &mut last[..nr] };
        y.fill(0.0);
        // SAFETY: a table comes from `for_isa` alone, which checked that this CPU has its features.
        unsafe { kernel(panel, x, y) };
        if out.len() < nr {
            out.copy_from_slice(&last[..out.len()]);
        }
    }
}

/// Puts a tile's results in place, `[t, nr]`.
pub(in crate::kernels) fn place_rows(y: &[f32], columns: Range<usize>, out: &mut [&mut [f32]]) {
    let nr = y.len() / out.len();
    for (out, y) in out.iter_mut().zip(y.chunks_exact(nr)) {
        copy(&y[..columns.len()], &mut out[columns.clone()]);
    }
}

/// Copies so few floats that a call would cost more: a panel's rows, which mostly are sixteens.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<16>(), to.as_chunks_mut::<16>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    let ((from, from_tail), (to, to_tail)) =
        (from_rest.as_chunks::<4>(), to_rest.as_chunks_mut::<4>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    to_tail.iter_mut().zip(from_tail).for_each(|(to, from)| *to = *from);
}

impl Table {
    /// The tier's packed half.
    pub(in crate::kernels) fn packed(&self) -> &PackedTable {
        self.packed.as_ref().expect("only a tier with a layout is given packed weights")
    }
}
