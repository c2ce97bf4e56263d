//! Slices of which several threads write disjoint parts at a time.

use std::marker::PhantomData;
use std::ops::Range;

/// Maximum number of rows that [`Pool::run_tiles`](super::Pool::run_tiles) and
/// [`Pool::run_pairs`](super::Pool::run_pairs) give to a job at once, and of rows in [`ColumnChunks`].
pub const TILE_ROWS: usize = 32;

/// A slice of which several threads write disjoint parts.
pub(super) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` only gives out `&mut` parts, which its users keep disjoint. So sharing it moves each
// element to at most one thread, which `T: Send` allows.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// # Safety
    /// - No two parts may overlap while both are alive.
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len);
        // SAFETY: the range lies inside the slice that `new` borrowed for `'a`, and the caller keeps parts
        // disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Slices in chunks that different threads write.
///
/// # Safety
/// - Chunks of different indices share no memory.
pub unsafe trait Chunked: Sync {
    /// One chunk of each slice.
    type Chunk;

    /// Number of chunks.
    ///
    /// # Panics
    /// If the slices have different numbers of chunks.
    fn count(&self) -> usize;

    /// Chunk `index`.
    ///
    /// # Safety
    /// - No chunk may be taken twice.
    unsafe fn chunk(&self, index: usize) -> Self::Chunk;
}

/// A slice in chunks of equal length; the last one may be shorter.
pub struct Chunks<'a, T> {
    parts: Parts<'a, T>,
    chunk: usize,
}

impl<'a, T> Chunks<'a, T> {
    /// `slice` in chunks of `chunk` elements.
    pub fn new(slice: &'a mut [T], chunk: usize) -> Chunks<'a, T> {
        Chunks { parts: Parts::new(slice), chunk }
    }
}

// SAFETY: chunk `index` ends where the next starts.
unsafe impl<'a, T: Send> Chunked for Chunks<'a, T> {
    type Chunk = &'a mut [T];

    fn count(&self) -> usize {
        self.parts.len.div_ceil(self.chunk)
    }

    unsafe fn chunk(&self, index: usize) -> &'a mut [T] {
        let start = index * self.chunk;
        // SAFETY: chunks do not overlap, and the caller takes each only once.
        unsafe { self.parts.slice(start..(start + self.chunk).min(self.parts.len)) }
    }
}

/// The rows of a matrix in chunks with different numbers of rows.
pub struct RowChunks<'a, 'e, T> {
    parts: Parts<'a, T>,
    width: usize,
    ends: &'e [usize],
}

impl<'a, 'e, T> RowChunks<'a, 'e, T> {
    /// The rows of `slice`, of `width` elements each. Each chunk ends before the row in `ends`.
    ///
    /// # Panics
    /// If `ends` are not sorted.
    pub fn new(slice: &'a mut [T], width: usize, ends: &'e [usize]) -> RowChunks<'a, 'e, T> {
        assert!(ends.is_sorted());
        RowChunks { parts: Parts::new(slice), width, ends }
    }
}

// SAFETY: chunk `index` starts where the one before ends, and ends are sorted.
unsafe impl<'a, T: Send> Chunked for RowChunks<'a, '_, T> {
    type Chunk = &'a mut [T];

    fn count(&self) -> usize {
        self.ends.len()
    }

    unsafe fn chunk(&self, index: usize) -> &'a mut [T] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        // SAFETY: chunks do not overlap, and the caller takes each only once.
        unsafe { self.parts.slice(start * self.width..self.ends[index] * self.width) }
    }
}

/// The first columns of a matrix of up to [`TILE_ROWS`] rows, in chunks of columns.
pub struct ColumnChunks<'a, T> {
    parts: Parts<'a, T>,
    width: usize,
    columns: usize,
    chunk: usize,
}

impl<'a, T> ColumnChunks<'a, T> {
    /// The first `columns` columns of the rows of `slice`, which have `width` elements, in chunks of `chunk`
    /// columns; the last one may have fewer.
    ///
    /// # Panics
    /// If `slice` is not a whole number of rows, has too many rows, or `columns` exceeds `width`.
    pub fn new(
        slice: &'a mut [T],
        width: usize,
        columns: usize,
        chunk: usize,
    ) -> ColumnChunks<'a, T> {
        assert!(slice.len().is_multiple_of(width));
        assert!(slice.len() / width <= TILE_ROWS);
        assert!(columns <= width);
        ColumnChunks { parts: Parts::new(slice), width, columns, chunk }
    }
}

// SAFETY: chunk `index` has columns of its own, which end where those of the next chunk start.
unsafe impl<'a, T: Send> Chunked for ColumnChunks<'a, T> {
    type Chunk = heapless::Vec<&'a mut [T], TILE_ROWS>;

    fn count(&self) -> usize {
        self.columns.div_ceil(self.chunk)
    }

    unsafe fn chunk(&self, index: usize) -> Self::Chunk {
        let (start, end) = (index * self.chunk, ((index + 1) * self.chunk).min(self.columns));
        let rows = 0..self.parts.len / self.width;
        // SAFETY: rows do not overlap, nor do columns of two chunks, and the caller takes each chunk only
        // once.
        rows.map(|row| unsafe {
            self.parts.slice(row * self.width + start..row * self.width + end)
        })
        .collect()
    }
}

// SAFETY: the chunks of each slice are disjoint, and two mutable slices share no memory.
unsafe impl<A: Chunked, B: Chunked> Chunked for (A, B) {
    type Chunk = (A::Chunk, B::Chunk);

    fn count(&self) -> usize {
        assert_eq!(self.0.count(), self.1.count());
        self.0.count()
    }

    unsafe fn chunk(&self, index: usize) -> Self::Chunk {
        // SAFETY: the caller takes each chunk only once, so each slice's chunk is taken once.
        unsafe { (self.0.chunk(index), self.1.chunk(index)) }
    }
}

// SAFETY: the chunks of each slice are disjoint, and mutable slices share no memory.
unsafe impl<C: Chunked, const N: usize> Chunked for heapless::Vec<C, N> {
    type Chunk = heapless::Vec<C::Chunk, N>;

    fn count(&self) -> usize {
        let count = self.first().map_or(0, Chunked::count);
        assert!(self.iter().all(|chunks| chunks.count() == count));
        count
    }

    unsafe fn chunk(&self, index: usize) -> Self::Chunk {
        // SAFETY: the caller takes each chunk only once, so each slice's chunk is taken once.
        self.iter().map(|chunks| unsafe { chunks.chunk(index) }).collect()
    }
}
