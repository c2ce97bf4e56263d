//! A board for the tests of planners.

use crate::ring::Address;
use crate::ring::plan::{Board, Wish};

/// A board of this name, whose links cost nothing.
pub(super) fn board(name: &str) -> Board {
    Board {
        name: name.to_owned(),
        address: Address { host: name.to_owned(), port: 1 },
        threads: None,
        read: 1e9,
        int8: 1e12,
        memory: 1 << 40,
        round_trip_s: 0.0,
        wire: 1e12,
        kernel: None,
        gpu: None,
        layer_s: 0.0,
        watts: None,
        wish: Wish::Any,
        others: Vec::new(),
    }
}
