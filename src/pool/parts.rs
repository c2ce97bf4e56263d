//! Slices that several threads write at once, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice whose disjoint parts several threads write.
pub(super) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` only gives out `&mut` parts, which its users keep disjoint, so sharing
// it moves each element to at most one thread; `T: Send` allows that.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// # Safety
    /// - No two parts that are alive at the same time may overlap.
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len);
        // SAFETY: the range lies inside the slice that `new` borrowed for `'a`, and the
        // caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Slices whose chunks threads write, each its own.
///
/// # Safety
/// - Chunks of different indices share no memory.
pub unsafe trait Chunked: Sync {
    /// What belongs together: a chunk of each slice.
    type Chunk;

    /// How many chunks there are.
    ///
    /// # Panics
    /// If slices that belong together have different numbers of them.
    fn count(&self) -> usize;

    /// Chunk `index`.
    ///
    /// # Safety
    /// - No chunk may be taken twice.
    unsafe fn chunk(&self, index: usize) -> Self::Chunk;
}

/// A slice in chunks of the same length, but for the last, which may be shorter.
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
        // SAFETY: chunks do not overlap, and the caller takes none twice.
        unsafe { self.parts.slice(start..(start + self.chunk).min(self.parts.len)) }
    }
}

/// Rows of a matrix in chunks of unequal numbers of them.
pub struct RowChunks<'a, 'e, T> {
    parts: Parts<'a, T>,
    width: usize,
    ends: &'e [usize],
}

impl<'a, 'e, T> RowChunks<'a, 'e, T> {
    /// The rows of `slice`, of `width` elements each, in chunks that end behind the rows `ends`.
    ///
    /// # Panics
    /// If `ends` go back.
    pub fn new(slice: &'a mut [T], width: usize, ends: &'e [usize]) -> RowChunks<'a, 'e, T> {
        assert!(ends.is_sorted());
        RowChunks { parts: Parts::new(slice), width, ends }
    }
}

// SAFETY: chunk `index` starts where the one before ends, and ends do not go back.
unsafe impl<'a, T: Send> Chunked for RowChunks<'a, '_, T> {
    type Chunk = &'a mut [T];

    fn count(&self) -> usize {
        self.ends.len()
    }

    unsafe fn chunk(&self, index: usize) -> &'a mut [T] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        // SAFETY: chunks do not overlap, and the caller takes none twice.
        unsafe { self.parts.slice(start * self.width..self.ends[index] * self.width) }
    }
}

// SAFETY: each slice's chunks keep apart, and two slices are mutable, so share nothing.
unsafe impl<A: Chunked, B: Chunked> Chunked for (A, B) {
    type Chunk = (A::Chunk, B::Chunk);

    fn count(&self) -> usize {
        assert_eq!(self.0.count(), self.1.count());
        self.0.count()
    }

    unsafe fn chunk(&self, index: usize) -> Self::Chunk {
        // SAFETY: the caller takes no chunk twice, so neither slice's is.
        unsafe { (self.0.chunk(index), self.1.chunk(index)) }
    }
}
