//! How x86-64 processors best prefetch bytes that are read in order and once: weights of a single row, and the memory
//! that measures how fast weights could be read. Figures: docs/benchmarks.md.
//!
//! Intel: many prefetches into L1 delay loads; decoding is fastest with prefetches into L2. AMD: L3 is a victim cache,
//! which also takes weights that L2 evicts and no core reads again; decoding is fastest if they bypass L2 and go to L1
//! only.

use std::arch::x86_64::*;

use super::table::Table;

/// Prefetches into L2.
pub(super) const INTO_L2: i32 = _MM_HINT_T1;

/// Prefetches into L1 and no other level.
pub(super) const PAST_L2: i32 = _MM_HINT_NTA;

/// Prefetches into all levels.
pub(super) const INTO_L1: i32 = _MM_HINT_T0;

/// The faster table for this processor: the one of kernels that prefetch [`INTO_L2`], or [`PAST_L2`].
pub(super) fn better(into_l2: &'static Table, past_l2: &'static Table) -> &'static Table {
    // Only processors of AMD, and of Hygon with the same design, have SSE4a.
    if is_x86_feature_detected!("sse4a") { past_l2 } else { into_l2 }
}

/// Prefetch distance of `hint`, in bytes.
pub(super) const fn ahead_bytes(hint: i32) -> usize {
    match hint {
        INTO_L2 => 8192,
        PAST_L2 => 6144,
        _ => 4096,
    }
}

/// Prefetches the line [`ahead_bytes`] behind `line`.
#[inline(always)]
pub(super) fn prefetch_ahead<const HINT: i32>(line: *const u8) {
    // SAFETY: every x86-64 CPU has the instruction, and it takes any address.
    unsafe { _mm_prefetch::<HINT>(line.wrapping_add(const { ahead_bytes(HINT) }).cast()) };
}
