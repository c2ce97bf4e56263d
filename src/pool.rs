#![allow(unsafe_code)]
//! A fixed set of threads that share the work of one call at a time.
//!
//! The caller is one of the threads. Work comes in pieces that the threads take a few at a time,
//! in the end one by one, so that unequal cores finish together. A thread joins a call when it
//! comes round to it, and nobody waits for one that did not: where other programs use the cores
//! too, whoever has one does the work. Between calls the threads spin for a moment, as the next
//! call usually follows at once, then sleep.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crate::sys::cpu;

/// Rows of a matrix that [`Pool::run_columns`] hands to a job at once: many, as a job reads its
/// weights anew for each lot. A multiple of every tile height of the kernels.
pub const ROW_TILE: usize = 384;

/// Most rows that [`Pool::run_tiles`] hands to a job at once.
pub const TILE_ROWS: usize = 32;

/// Polls of an idle thread before it sleeps: some tens of microseconds.
const SPINS: u32 = 20_000;

/// How often each thread would have to take pieces if it went on with as many as it takes at first.
const TURNS: usize = 4;

/// The work of one call: pieces are numbers, each taken once.
type Job<'a> = &'a (dyn Fn(usize) + Sync + 'a);
/// The work on one pair of chunks: its index and the two chunks.
type PairJob<'a, A, B> = &'a (dyn Fn(usize, &mut [A], &mut [B]) + Sync + 'a);
/// The work on three chunks that belong together.
type TripleJob<'a, A, B, C> = &'a (dyn Fn(usize, &mut [A], &mut [B], &mut [C]) + Sync + 'a);
/// The work on four chunks that belong together.
type QuadrupleJob<'a, A, B, C, D> =
    &'a (dyn Fn(usize, &mut [A], &mut [B], &mut [C], &mut [D]) + Sync + 'a);
/// The work on some columns of some rows: their section, which they are, and the parts of the
/// rows.
type ColumnJob<'a> = &'a (dyn Fn(usize, Range<usize>, Range<usize>, &mut [&mut [f32]]) + Sync + 'a);

/// The work on some columns of some rows: which they are, and the parts of the rows.
type TileJob<'a> = &'a (dyn Fn(Range<usize>, Range<usize>, &mut [&mut [f32]]) + Sync + 'a);

/// A set of threads; dropping it ends them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Calls come from one thread at a time, so a pool may move but not be shared.
    not_sync: PhantomData<Cell<()>>,
}

struct Shared {
    /// Number of the call in the upper half; [`CLOSED`] and the number of workers in it.
    state: AtomicU64,
    /// The current job: a pointer to a [`Job`] on the caller's stack.
    job: AtomicPtr<()>,
    /// Next piece to take.
    next: AtomicUsize,
    /// Number of pieces.
    pieces: AtomicUsize,
    /// Workers that have started: what a thread allocates at first is behind them.
    started: AtomicUsize,
    /// Workers that sleep, one flag each.
    sleeping: Vec<AtomicBool>,
    panicked: AtomicBool,
    closing: AtomicBool,
}

impl Pool {
    /// Starts `cpus.len() - 1` threads; the caller and they are pinned to `cpus` in order.
    ///
    /// With `cpus` empty the caller works alone and is not pinned. A core that cannot be
    /// pinned to is no failure: the thread then runs where the system puts it.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(cpus: &[usize]) -> io::Result<Pool> {
        let n_workers = cpus.len().saturating_sub(1);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            job: AtomicPtr::new(ptr::null_mut()),
            next: AtomicUsize::new(0),
            pieces: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            sleeping: (0..n_workers).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        if n_workers > 0 {
            cpu::pin_current_thread(cpus[0]);
        }
        let mut pool = Pool { shared, workers: Vec::new(), not_sync: PhantomData };
        for index in 0..n_workers {
            let shared = Arc::clone(&pool.shared);
            let cpu = cpus[index + 1];
            let name = format!("leap-{}", index + 1);
            let worker = thread::Builder::new().name(name).spawn(move || {
                cpu::pin_current_thread(cpu);
                // The first use of a thread's own handle allocates.
                drop(thread::current());
                shared.started.fetch_add(1, Ordering::Release);
                shared.work(index);
            })?;
            pool.workers.push(worker);
        }
        while pool.shared.started.load(Ordering::Acquire) < n_workers {
            if pool.workers.iter().any(JoinHandle::is_finished) {
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, "a thread ended at once"));
            }
            thread::yield_now();
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job` once for each number below `pieces`, on all threads; returns when all are done.
    ///
    /// # Panics
    /// If `job` panicked on any thread.
    pub fn run(&self, pieces: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || pieces < 2 {
            return (0..pieces).for_each(job);
        }
        let shared = &*self.shared;
        let job: Job<'_> = job;
        shared.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        shared.pieces.store(pieces, Ordering::Relaxed);
        let epoch = epoch(shared.state.load(Ordering::Relaxed)).wrapping_add(1);
        // Pairs with the sleeper's swap: it sees this call, or we see it sleeping.
        shared.state.swap(u64::from(epoch) << 32, Ordering::SeqCst);
        for (flag, worker) in shared.sleeping.iter().zip(&self.workers) {
            if flag.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        // `job` must outlive the workers' use of it even if a piece panics here.
        let close = Close(shared);
        shared.take_pieces(job);
        drop(close);
        assert!(!shared.panicked.load(Ordering::Relaxed), "a worker thread panicked");
    }

    /// Splits `out` into chunks of `chunk` elements and calls `job(index, chunk)` for each.
    pub fn run_chunks<T: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        job: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let parts = Parts::new(out);
        let pieces = parts.len.div_ceil(chunk);
        self.run(pieces, &|i| {
            let range = i * chunk..((i + 1) * chunk).min(parts.len);
            // SAFETY: `run` calls each piece once and pieces' ranges do not overlap.
            job(i, unsafe { parts.slice(range) });
        });
    }

    /// Splits `a` and `b` into the same number of chunks and calls `job(index, a, b)` for each pair.
    ///
    /// # Panics
    /// If the numbers of chunks differ.
    pub fn run_chunks2<A: Send, B: Send>(
        &self,
        (a, a_chunk): (&mut [A], usize),
        (b, b_chunk): (&mut [B], usize),
        job: PairJob<'_, A, B>,
    ) {
        assert_eq!(a.len().div_ceil(a_chunk), b.len().div_ceil(b_chunk));
        let b = Parts::new(b);
        self.run_chunks(a, a_chunk, &|i, a| {
            let range = i * b_chunk..((i + 1) * b_chunk).min(b.len);
            // SAFETY: `run_chunks` calls each index once and indices' ranges do not overlap.
            job(i, a, unsafe { b.slice(range) });
        });
    }

    /// As [`Pool::run_chunks2`] with three slices.
    ///
    /// # Panics
    /// If the numbers of chunks differ.
    pub fn run_chunks3<A: Send, B: Send, C: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        (c, c_chunk): (&mut [C], usize),
        job: TripleJob<'_, A, B, C>,
    ) {
        assert_eq!(a.0.len().div_ceil(a.1), c.len().div_ceil(c_chunk));
        let c = Parts::new(c);
        self.run_chunks2(a, b, &|i, a, b| {
            let range = i * c_chunk..((i + 1) * c_chunk).min(c.len);
            // SAFETY: `run_chunks2` calls each index once and indices' ranges do not overlap.
            job(i, a, b, unsafe { c.slice(range) });
        });
    }

    /// As [`Pool::run_chunks2`] with four slices.
    ///
    /// # Panics
    /// If the numbers of chunks differ.
    pub fn run_chunks4<A: Send, B: Send, C: Send, D: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        c: (&mut [C], usize),
        (d, d_chunk): (&mut [D], usize),
        job: QuadrupleJob<'_, A, B, C, D>,
    ) {
        assert_eq!(a.0.len().div_ceil(a.1), d.len().div_ceil(d_chunk));
        let d = Parts::new(d);
        self.run_chunks3(a, b, c, &|i, a, b, c| {
            let range = i * d_chunk..((i + 1) * d_chunk).min(d.len);
            // SAFETY: `run_chunks3` calls each index once and indices' ranges do not overlap.
            job(i, a, b, c, unsafe { d.slice(range) });
        });
    }

    /// Splits the matrix `out`, whose columns are sections of these `widths` side by side, by
    /// columns and calls `job(section, columns, rows, parts)`: `parts` holds those columns of the
    /// section, counted from its start, of each of those rows.
    ///
    /// Columns come in multiples of `step` except at a section's end, rows in tiles of
    /// [`ROW_TILE`]; one thread walks all rows of its columns before it takes new ones.
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

    /// Splits the matrix `out`, `[rows, width]`, into tiles of `step` rows and columns, fewer at
    /// its ends, and calls `job(rows, columns, parts)` for each. Later rows are taken first: where
    /// there is a difference, they are more work.
    ///
    /// # Panics
    /// If `out` is not a whole number of rows, or a tile is to have none or more than
    /// [`TILE_ROWS`] of them.
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
                // SAFETY: `run` calls each piece once, and two pieces differ in their rows or in
                // their columns: `i` counts columns up as it counts rows down, `across` to a row.
                let slice = unsafe { parts.slice(range) };
                // A tile has at most TILE_ROWS rows.
                let _ = slices.push(slice);
            }
            job(tile, columns, &mut slices);
        });
    }
}

/// Piece `index` of sections of these widths, cut in steps: its section, the column where that
/// starts, and the piece's columns in it.
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
        self.shared.closing.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was reported by the call that met it.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.join_next(seen, index) {
            seen = epoch;
            let _leave = Leave(self);
            let job: *const Job<'_> = self.job.load(Ordering::Relaxed).cast();
            // SAFETY: `run` stored the address of a live `Job` before it opened the call that
            // `join_next` joined, and waits for `Leave` before the job dies.
            let job = unsafe { *job };
            self.take_pieces(job);
        }
    }

    fn take_pieces(&self, job: Job<'_>) {
        while let Some(pieces) = self.next_pieces() {
            pieces.for_each(job);
        }
    }

    /// Takes pieces that nobody has: neighbours, as what one reads a processor fetches ahead into
    /// the next, and the fewer the fewer are left, so that all threads finish together.
    fn next_pieces(&self) -> Option<Range<usize>> {
        let pieces = self.pieces.load(Ordering::Relaxed);
        let threads = self.sleeping.len() + 1;
        let mut next = self.next.load(Ordering::Relaxed);
        while next < pieces {
            let end = next + ((pieces - next) / (TURNS * threads)).max(1);
            match self.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next..end),
                Err(now) => next = now,
            }
        }
        None
    }

    /// Waits for an open call after `seen` and joins it; `None` when the pool is dropped.
    fn join_next(&self, mut seen: u32, index: usize) -> Option<u32> {
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if epoch(state) != seen {
                seen = epoch(state);
                spins = 0;
                if self.join(state) {
                    return Some(seen);
                }
            }
            if self.closing.load(Ordering::Acquire) {
                return None;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                self.sleep(seen, index);
            }
        }
    }

    /// Enters the call of `state`, unless it is closed by now.
    fn join(&self, mut state: u64) -> bool {
        let call = epoch(state);
        while epoch(state) == call && state & CLOSED == 0 {
            let joined = state + 1;
            match self.state.compare_exchange_weak(
                state,
                joined,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Sleeps until there is a call after `seen`, or for no reason.
    fn sleep(&self, seen: u32, index: usize) {
        // A swap and no store: an emulator may let the loads below pass a store.
        self.sleeping[index].swap(true, Ordering::SeqCst);
        let is_due = epoch(self.state.load(Ordering::SeqCst)) != seen;
        if !is_due && !self.closing.load(Ordering::SeqCst) {
            thread::park();
        }
        self.sleeping[index].store(false, Ordering::Relaxed);
    }
}

/// Set once a call takes no more workers.
const CLOSED: u64 = 1 << 31;

/// The number of a call.
fn epoch(state: u64) -> u32 {
    (state >> 32) as u32
}

/// Takes a worker out of a call, also when it panics.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.panicked.store(true, Ordering::Relaxed);
        }
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// Closes a call and waits until no worker is in it.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while state & (CLOSED - 1) > 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                // A worker may wait for this very core.
                thread::yield_now();
            }
            state = self.0.state.load(Ordering::Acquire);
        }
    }
}

/// A slice whose disjoint parts several threads write.
struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` only gives out `&mut` parts, which its users keep disjoint, so sharing
// it moves each element to at most one thread; `T: Send` allows that.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// # Safety
    /// - No two parts that are alive at the same time may overlap.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, as the contract demands")]
    unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len);
        // SAFETY: the range lies inside the slice that `new` borrowed for `'a`, and the
        // caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(&vec![0; threads]).expect("threads start")
    }

    #[test]
    fn each_piece_runs_once() {
        for threads in [1, 2, 4] {
            let pool = pool(threads);
            for pieces in [0, 1, 2, 3, 100] {
                let counts: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..50 {
                    pool.run(pieces, &|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                }
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 50));
            }
        }
    }

    #[test]
    fn sleeping_threads_wake_up() {
        let pool = pool(3);
        for _ in 0..5 {
            thread::sleep(std::time::Duration::from_millis(20));
            let sum = AtomicUsize::new(0);
            pool.run(10, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn chunks_cover_the_slice() {
        let pool = pool(2);
        let (mut a, mut b) = (vec![0; 10], vec![0; 4]);
        pool.run_chunks2((&mut a, 3), (&mut b, 1), &|i, a, b| {
            a.fill(i + 1);
            b.fill(10 * i);
        });
        assert_eq!(a, [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]);
        assert_eq!(b, [0, 10, 20, 30]);
    }

    #[test]
    fn chunks_of_several_slices_go_together() {
        let (mut a, mut b, mut c, mut d) = ([0; 5], [0; 10], [0; 3], [0; 3]);
        let (a_, b_, c_, d_) = ((&mut a[..], 2), (&mut b[..], 4), (&mut c[..], 1), (&mut d[..], 1));
        pool(2).run_chunks4(a_, b_, c_, d_, &|i, a, b, c, d| {
            assert_eq!(a.len() * 2, b.len());
            (a[0], b[0], c[0], d[0]) = (i + 1, i + 10, i + 100, i + 1000);
        });
        assert_eq!((a, c, d), ([1, 0, 2, 0, 3], [100, 101, 102], [1000, 1001, 1002]));
        assert_eq!(b, [10, 0, 0, 0, 11, 0, 0, 0, 12, 0]);
    }

    #[test]
    fn columns_cover_the_matrix() {
        let pool = pool(2);
        let (rows, width) = (ROW_TILE + 3, 19);
        let mut out = vec![0.0; rows * width];
        pool.run_columns(&mut out, &[10, 0, 4, 5], 4, &|section, columns, tile, parts| {
            assert_eq!(tile.len(), parts.len());
            let start = [0, 10, 10, 14][section];
            assert!(columns.len() == 4 || columns.end == [10, 0, 4, 5][section]);
            for (row, part) in tile.zip(parts) {
                for (column, x) in columns.clone().zip(part.iter_mut()) {
                    *x += (row * width + start + column) as f32;
                }
            }
        });
        assert!(out.iter().enumerate().all(|(i, &x)| x == i as f32));
    }

    #[test]
    fn tiles_cover_the_matrix() {
        let pool = pool(2);
        for (rows, width, step) in
            [(7, 10, (3, 4)), (1, 8, (32, 2)), (0, 3, (1, 1)), (64, 1, (32, 9))]
        {
            let mut out = vec![0.0; rows * width];
            pool.run_tiles(&mut out, width, step, &|tile, columns, parts| {
                assert_eq!(tile.len(), parts.len());
                for (row, part) in tile.zip(parts) {
                    for (column, x) in columns.clone().zip(part.iter_mut()) {
                        *x += (row * width + column) as f32;
                    }
                }
            });
            assert!(out.iter().enumerate().all(|(i, &x)| x == i as f32));
        }
    }

    #[test]
    fn a_panic_in_a_piece_reaches_the_caller() {
        let result = std::panic::catch_unwind(|| {
            pool(2).run(64, &|i| assert_ne!(i, 63, "on purpose"));
        });
        assert!(result.is_err());
    }

    #[test]
    fn dropping_ends_the_threads() {
        let pool = pool(3);
        let shared = Arc::clone(&pool.shared);
        drop(pool);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
