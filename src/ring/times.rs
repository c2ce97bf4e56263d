//! Where the time of decoded tokens goes.

/// Where the time of decoded tokens went, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Batches of one row a stream, the usual decoding.
    pub batches: u64,
    /// Their tokens.
    pub tokens: u64,
    /// From the start of each to its result.
    pub lap_us: u64,
    /// Computing, by node.
    pub compute_us: Vec<u64>,
}

impl Times {
    /// Nothing yet, on a ring of up to `n_nodes`.
    pub(super) fn start(&mut self, n_nodes: usize) {
        (self.batches, self.tokens, self.lap_us) = (0, 0, 0);
        self.compute_us.clear();
        self.compute_us.resize(n_nodes, 0);
    }

    /// A batch of `tokens` went round in `lap_us`, of which the nodes computed for so long.
    pub(super) fn add(&mut self, tokens: usize, lap_us: u64, compute_us: &[u32]) {
        self.batches += 1;
        self.tokens += tokens as u64;
        self.lap_us += lap_us;
        for (sum, &us) in self.compute_us.iter_mut().zip(compute_us) {
            *sum += u64::from(us);
        }
    }
}
