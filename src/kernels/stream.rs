//! How x86-64 processors best prefetch what is read in order and once: AVX-512's weights of a single
//! row, and the memory that tells how fast weights could be read. Figures: benches/README.md.
//!
//! On their way to the first level of cache, so many lines hold up loads of Intel's, which decode
//! fastest if these only come to the second. AMD's third level takes what leaves the second, weights
//! that nobody needs again too: they decode fastest if those do not come there at all.

use std::arch::x86_64::*;

use super::Table;

/// Lines come into the second level of cache.
pub(super) const INTO_L2: i32 = _MM_HINT_T1;

/// Lines come into the first level and into no other.
pub(super) const PAST_L2: i32 = _MM_HINT_NTA;

/// The table for this processor: of kernels that prefetch [`INTO_L2`] or [`PAST_L2`].
pub(super) fn better(into_l2: &'static Table, past_l2: &'static Table) -> &'static Table {
    // AMD's processors have SSE4a, and nobody else's but Hygon's, which are built like them.
    if is_x86_feature_detected!("sse4a") { past_l2 } else { into_l2 }
}

/// Prefetches the line that is some way behind `line`.
#[inline(always)]
pub(super) fn prefetch_ahead<const HINT: i32>(line: *const u8) {
    let bytes = if HINT == INTO_L2 { 8192 } else { 6144 };
    // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
    unsafe { _mm_prefetch::<HINT>(line.wrapping_add(bytes).cast()) };
}
