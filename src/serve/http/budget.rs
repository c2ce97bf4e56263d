//! Memory that the bodies of all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that bodies may still take.
#[derive(Clone)]
pub(in crate::serve) struct Budget(Arc<AtomicUsize>);

/// A part of a [`Budget`]. Dropping it gives the bytes back.
pub(super) struct Reserved {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    pub(in crate::serve) fn new(bytes: usize) -> Budget {
        Budget(Arc::new(AtomicUsize::new(bytes)))
    }

    /// A reservation of no bytes.
    pub(super) fn reserve_none(&self) -> Reserved {
        Reserved { budget: self.clone(), bytes: 0 }
    }
}

impl Reserved {
    /// Takes `bytes` more. Returns `false` if fewer are left.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let left = &self.budget.0;
        let taken =
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(bytes));
        self.bytes += if taken.is_ok() { bytes } else { 0 };
        taken.is_ok()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_comes_back() {
        let budget = Budget::new(10);
        let mut first = budget.reserve_none();
        assert!(first.grow(4) && first.grow(5) && !first.grow(2));
        let mut second = budget.reserve_none();
        assert!(!second.grow(2) && second.grow(1));
        drop(first);
        assert!(second.grow(9) && !second.grow(1));
    }
}
