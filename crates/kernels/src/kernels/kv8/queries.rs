//! Queries as int8.

use super::super::table::{Table, call};
use super::{KEY_GROUP, KeyQuery};

/// Room for as many queries as fit its bytes.
pub(in crate::kernels) struct Queries {
    q: [[[i8; 4]; KEY_GROUP / 4]; GROUPS],
    scales: [f32; GROUPS],
    biases: [i32; GROUPS],
    groups_of_each: usize,
}

/// Groups of all queries: enough for 128 heads of 128 columns.
const GROUPS: usize = 512;

impl Queries {
    /// Room for queries of heads of `head_dim` columns.
    pub(in crate::kernels) fn new(head_dim: usize) -> Queries {
        Queries {
            q: [[[0; 4]; KEY_GROUP / 4]; GROUPS],
            scales: [0.0; GROUPS],
            biases: [0; GROUPS],
            groups_of_each: head_dim.div_ceil(KEY_GROUP),
        }
    }

    /// Number of queries that fit.
    pub(in crate::kernels) fn capacity(&self) -> usize {
        GROUPS / self.groups_of_each
    }

    /// Quantises `x` and stores it as query `index`.
    pub(in crate::kernels) fn set(&mut self, table: &Table, index: usize, x: &[f32]) {
        let at = index * self.groups_of_each;
        for (g, x) in (at..).zip(x.chunks(KEY_GROUP)) {
            let mut padded = [0.0; KEY_GROUP];
            padded[..x.len()].copy_from_slice(x);
            let q = self.q[g].as_flattened_mut();
            let scales = std::slice::from_mut(&mut self.scales[g]);
            call!(table.quantize_q8(&padded, KEY_GROUP, q, scales));
            let biases = std::slice::from_mut(&mut self.biases[g]);
            call!(table.biases(q, KEY_GROUP, biases));
        }
    }

    /// Query `index`.
    pub(in crate::kernels) fn get(&self, index: usize) -> KeyQuery<'_> {
        let groups = index * self.groups_of_each..(index + 1) * self.groups_of_each;
        KeyQuery {
            q: &self.q[groups.clone()],
            scales: &self.scales[groups.clone()],
            biases: &self.biases[groups],
        }
    }
}
