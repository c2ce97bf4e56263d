//! A heap that tells what is allocated.

#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's heap; calls its function with the bytes of each allocation. That function allocates nothing itself.
pub(crate) struct Counting(pub(crate) fn(usize));

// SAFETY: every call is passed on to `System` unchanged, which keeps the promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout.size());
        // SAFETY: `System` asks for the same promises about `layout` as this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System`, as all memory here does, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        (self.0)(bytes);
        // SAFETY: `pointer` came from `System` with this layout; the caller promises the rest.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}
