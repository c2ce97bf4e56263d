#![allow(unsafe_code)]
//! A fixed set of threads that share the work of one call at a time.
//!
//! The caller is one of the threads. Work is divided into pieces. Each thread begins with a section of
//! successive pieces, which is always the same for the same number of pieces: so their memory is still in the
//! thread's caches, and neighbouring pieces are neighbours in memory. A thread that has finished takes half
//! of another's remaining pieces, so that unequal cores finish together. A call never waits for a thread that
//! has not started on it: if other programs use the cores too, the running threads do the work. Between calls
//! the threads spin for a moment, because the next call usually follows at once, then sleep.

mod calls;
mod pairs;
mod parts;
mod section;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use self::calls::Calls;
use self::pairs::Counts;
pub use self::pairs::{Pairs, UNITS_MAX};
use self::parts::Parts;
pub use self::parts::{Chunked, Chunks, ColumnChunks, RowChunks, TILE_ROWS};
use crate::sys::cpu;

/// Maximum number of rows that [`Pool::run_columns`] gives to a job at once. It is large because a job reads
/// its weights again for each such tile. A multiple of every tile height of the kernels.
pub const ROW_TILE: usize = 384;

/// A job on some columns of some rows. Its arguments are the section, the columns in it, the rows, and the
/// rows' parts in these columns.
type ColumnJob<'a> = &'a (dyn Fn(usize, Range<usize>, Range<usize>, &mut [&mut [f32]]) + Sync + 'a);

/// A job on some columns of some rows. Its arguments are the rows, the columns, and the rows' parts in these
/// columns.
type TileJob<'a> = &'a (dyn Fn(Range<usize>, Range<usize>, &mut [&mut [f32]]) + Sync + 'a);

/// A job on a unit of two matrices. Its arguments are the unit's index, each row's parts in both matrices,
/// and a chunk.
type UnitJob<'a, C> = &'a (dyn Fn(usize, &[[&mut [f32]; 2]], C) + Sync + 'a);

/// A set of threads; dropping it ends them.
pub struct Pool {
    calls: Arc<Calls>,
    workers: Vec<JoinHandle<()>>,
    /// Whether the caller is pinned until the pool is dropped.
    is_pinned: bool,
    /// Number of finished pieces of each unit of [`Pool::run_pairs`].
    counts: Counts,
    /// Calls come from one thread at a time: a pool may move to another thread, but not be shared.
    not_sync: PhantomData<Cell<()>>,
}

impl Pool {
    /// Starts `cpus.len() - 1` threads. The caller and these threads are pinned to `cpus` in this order; the
    /// caller is unpinned when the pool is dropped.
    ///
    /// With fewer than two `cpus` the caller works alone; without any it is not pinned. If a thread cannot be
    /// pinned to its core, it runs where the system puts it.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(cpus: &[usize]) -> io::Result<Pool> {
        let n_workers = cpus.len().saturating_sub(1);
        let calls = Arc::new(Calls::new(n_workers));
        if let Some(&first) = cpus.first() {
            cpu::pin_current_thread(first);
        }
        let (is_pinned, counts) = (!cpus.is_empty(), Counts::new());
        let mut pool =
            Pool { calls, workers: Vec::new(), is_pinned, counts, not_sync: PhantomData };
        for index in 0..n_workers {
            let calls = Arc::clone(&pool.calls);
            let cpu = cpus[index + 1];
            let name = format!("leap-{}", index + 1);
            let worker = thread::Builder::new().name(name).spawn(move || {
                cpu::pin_current_thread(cpu);
                // A thread's first use of its own handle allocates, so this happens here.
                drop(thread::current());
                calls.note_start();
                calls.work(index);
            })?;
            pool.workers.push(worker);
        }
        while pool.calls.started() < n_workers {
            if pool.workers.iter().any(JoinHandle::is_finished) {
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, "a thread ended at once"));
            }
            thread::yield_now();
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job` once for each number below `pieces`, on all threads. Returns when all are done.
    ///
    /// # Panics
    /// If `job` panicked on any thread.
    pub fn run(&self, pieces: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || pieces < 2 {
            return (0..pieces).for_each(job);
        }
        // SAFETY: a pool is not shared and no job can hold it, so no other call is in progress; a call ends
        // before it returns.
        unsafe { self.calls.run(pieces, job, &self.workers) };
    }

    /// Calls `job(index, chunk)` for each chunk of one slice ([`Chunks`]), or of several slices,
    /// `(a, (b, c))`, that are cut into the same number of chunks.
    ///
    /// # Panics
    /// If the numbers of chunks differ.
    pub fn run_chunks<C: Chunked>(&self, chunks: C, job: &(dyn Fn(usize, C::Chunk) + Sync)) {
        self.run(chunks.count(), &|i| {
            // SAFETY: `run` calls each piece once, and there are `count` of them.
            job(i, unsafe { chunks.chunk(i) });
        });
    }

    /// Splits the matrix `out` by columns. The columns consist of sections with these `widths`, side by side.
    /// Calls `job(section, columns, rows, parts)`: `columns` are counted from the section's start, and
    /// `parts` holds these columns of each of `rows`.
    ///
    /// Columns come in multiples of `step`, except at a section's end; rows come in tiles of [`ROW_TILE`].
    /// One thread computes all rows of its columns before it takes others.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows.
    pub fn run_columns(&self, out: &mut [f32], widths: &[usize], step: usize, job: ColumnJob<'_>) {
        let width: usize = widths.iter().sum();
        assert!(out.len().is_multiple_of(width));
        let rows = out.len() / width;
        let parts = Parts::new(out);
        let pieces = widths.iter().map(|width| width.div_ceil(step)).sum();
        self.run(pieces, &|i| {
            let (section, start, columns) = piece(widths, step, i);
            for first in (0..rows).step_by(ROW_TILE) {
                let tile = first..(first + ROW_TILE).min(rows);
                let mut slices = heapless::Vec::<&mut [f32], ROW_TILE>::new();
                for row in tile.clone() {
                    let at = row * width + start;
                    let range = at + columns.start..at + columns.end;
                    // SAFETY: `run` calls each piece once, `piece` gives each columns of its
                    // own, and within a piece each row is taken once per tile.
                    let slice = unsafe { parts.slice(range) };
                    // A tile has at most ROW_TILE rows.
                    let _ = slices.push(slice);
                }
                job(section, columns.clone(), tile, &mut slices);
            }
        });
    }

    /// Splits two matrices that stand side by side in up to [`TILE_ROWS`] rows of `out`. Calls
    /// `job(matrix, columns, rows, parts)` for each piece. The thread that finishes the last piece of a unit,
    /// in both matrices, calls `make(unit, parts, chunk)`.
    ///
    /// # Panics
    /// If `out` does not consist of such rows, a unit is not a multiple of pieces, there are more than
    /// [`UNITS_MAX`] units, or not one chunk for each unit.
    pub fn run_pairs<C: Chunked>(
        &self,
        out: &mut [f32],
        pairs: Pairs,
        job: ColumnJob<'_>,
        chunks: C,
        make: UnitJob<'_, C::Chunk>,
    ) {
        assert!(pairs.unit.is_multiple_of(pairs.step));
        assert!(out.len().is_multiple_of(2 * pairs.width));
        let rows = out.len() / (2 * pairs.width);
        assert!(rows <= TILE_ROWS);
        assert!(pairs.units() <= UNITS_MAX);
        assert_eq!(chunks.count(), pairs.units());
        let parts = Parts::new(out);
        let (counts, threads) = (&self.counts, self.threads());
        let _reset = counts.reset();
        self.run(pairs.pieces(threads), &|i| {
            let (matrix, columns) = pairs.piece(threads, i);
            if columns.is_empty() {
                return;
            }
            let unit = columns.start / pairs.unit;
            {
                let slice = |row| {
                    // SAFETY: `run` calls each piece once, and each has columns of its own. Its unit takes
                    // these columns only after this piece is counted.
                    unsafe { parts.slice(pairs.place(row, matrix, &columns)) }
                };
                let mut slices: heapless::Vec<_, TILE_ROWS> = (0..rows).map(slice).collect();
                job(matrix, columns, 0..rows, &mut slices);
            }
            if !counts.add(unit, pairs.pieces_of(unit)) {
                return;
            }
            let columns = pairs.columns(unit);
            let both = |row| {
                // SAFETY: all pieces of the unit are done, only this one was the last, and no other unit has
                // these columns.
                [0, 1].map(|matrix| unsafe { parts.slice(pairs.place(row, matrix, &columns)) })
            };
            let slices: heapless::Vec<_, TILE_ROWS> = (0..rows).map(both).collect();
            // SAFETY: each unit is completed once, and there is one chunk for each.
            make(unit, &slices, unsafe { chunks.chunk(unit) });
        });
    }

    /// Splits the matrix `out`, `[rows, width]`, into tiles of the given numbers of rows and columns, fewer
    /// at its ends. Calls `job(rows, columns, parts)` for each. Later rows are taken first: they may be more
    /// work, and a long piece should not begin last.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows, or a tile has no rows or more than [`TILE_ROWS`].
    pub fn run_tiles(
        &self,
        out: &mut [f32],
        width: usize,
        (rows_step, columns_step): (usize, usize),
        job: TileJob<'_>,
    ) {
        assert!(out.len().is_multiple_of(width));
        assert!((1..=TILE_ROWS).contains(&rows_step));
        let rows = out.len() / width;
        let parts = Parts::new(out);
        let across = width.div_ceil(columns_step);
        let pieces = rows.div_ceil(rows_step) * across;
        self.run(pieces, &|i| {
            let (first, start) = ((pieces - 1 - i) / across * rows_step, i % across * columns_step);
            let tile = first..(first + rows_step).min(rows);
            let columns = start..(start + columns_step).min(width);
            let mut slices = heapless::Vec::<&mut [f32], TILE_ROWS>::new();
            for row in tile.clone() {
                let range = row * width + columns.start..row * width + columns.end;
                // SAFETY: `run` calls each piece once. Two pieces differ in their rows or in their columns,
                // because there are `across` pieces for the same rows, each with other columns.
                let slice = unsafe { parts.slice(range) };
                // A tile has at most TILE_ROWS rows.
                let _ = slices.push(slice);
            }
            job(tile, columns, &mut slices);
        });
    }
}

/// Piece `index` of sections with these `widths`, cut in steps: its section, the section's first column, and
/// the piece's columns within the section.
fn piece(widths: &[usize], step: usize, mut index: usize) -> (usize, usize, Range<usize>) {
    let mut start = 0;
    for (section, width) in widths.iter().enumerate() {
        let pieces = width.div_ceil(step);
        if index < pieces {
            return (section, start, index * step..((index + 1) * step).min(*width));
        }
        index -= pieces;
        start += width;
    }
    unreachable!("callers number the pieces of these sections")
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.calls.end();
        if self.is_pinned {
            cpu::unpin_current_thread();
        }
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was reported by the call during which it happened.
            let _ = worker.join();
        }
    }
}
