//! Placeholder.

/// Placeholder.
pub fn fingerprint(_bytes: &[u8]) -> u64 {
    0
}
