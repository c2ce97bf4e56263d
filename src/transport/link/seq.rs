//! Numbers of frames, which wrap around.

/// Whether `a` comes before `b`, where numbers wrap around.
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Which bank holds frame `seq`.
pub(super) fn bank(seq: u32, n_banks: u32) -> usize {
    (seq % n_banks) as usize
}
