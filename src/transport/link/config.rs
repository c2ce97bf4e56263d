//! Settings of a node's links.

use crate::transport::Micros;
use crate::wire::hello::{Name, RingInfo};
use crate::wire::seal::{Key, derive};

/// Most banks of a link: as many as the kernel module maps.
pub const BANKS_MAX: usize = 64;

/// Settings for both links of a node.
#[derive(Clone)]
pub struct LinkConfig {
    /// This node.
    pub node: RingInfo,
    /// The ring's key, if it has one.
    pub key: Option<Key>,
    /// Name of the previous node, if no other one is accepted.
    pub prev: Option<Name>,
    /// Name of the next node, if known: no other node gets its frames.
    pub next: Option<Name>,
    /// Number of this run of the node. A HELLO with this number has come back to its sender, which drops it.
    pub run: u64,
    /// Frames that each direction keeps in memory: a power of two, 2 to [`BANKS_MAX`].
    pub n_banks: usize,
    /// Shortest time for which a missing datagram counts as overtaken by later ones, in microseconds. After that it is
    /// requested again.
    pub reorder_us: Micros,
    /// Unpredictable bytes, different for each run of a node.
    pub seed: [u8; 32],
}

impl LinkConfig {
    /// Settings with 16 banks, and a millisecond for reordering.
    pub fn new(node: RingInfo, key: Option<Key>, seed: [u8; 32]) -> LinkConfig {
        let (prev, next, run) = (None, None, 0);
        let mut config =
            LinkConfig { node, key, prev, next, run, n_banks: 16, reorder_us: 1_000, seed };
        config.reseed(seed);
        config
    }

    /// Makes this another run of the node.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.run = u64::from_le_bytes(derive(&seed, "LEAP run", &[])).max(1);
        self.seed = seed;
    }

    /// Replaces the used seed by one from which neither the old seed nor its secrets can be derived.
    pub(in crate::transport) fn spend_seed(&mut self) {
        self.seed = derive(&self.seed, "LEAP spent seed", &[]);
    }
}
