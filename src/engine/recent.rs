//! The latest ids of a text, with their counts.

use std::collections::VecDeque;

/// The last ids of a text, up to a maximum number. Allocates only in [`Recent::new`].
pub(super) struct Recent {
    /// The ids, the oldest first.
    ids: VecDeque<u32>,
    /// Maximum number of ids.
    last_n: usize,
    /// Each id once, with its count; in the order of ids.
    counts: Vec<(u32, u32)>,
}

impl Recent {
    /// The last `last_n` ids of `prompt` and the answer, which has up to `n_max` ids. `vocab_size` limits the
    /// number of different ids.
    pub(super) fn new(
        prompt: &[u32],
        last_n: usize,
        (n_max, vocab_size): (usize, usize),
    ) -> Recent {
        let last_n = last_n.min(prompt.len().saturating_add(n_max));
        let mut recent = Recent {
            ids: VecDeque::with_capacity(last_n),
            last_n,
            counts: Vec::with_capacity(last_n.min(vocab_size)),
        };
        let first = prompt.len().saturating_sub(last_n);
        prompt[first..].iter().for_each(|&id| recent.push(id));
        recent
    }

    /// Appends `id` to the text.
    pub(super) fn push(&mut self, id: u32) {
        if self.ids.len() == self.last_n {
            let Some(oldest) = self.ids.pop_front() else { return };
            self.forget(oldest);
        }
        self.ids.push_back(id);
        match self.counts.binary_search_by_key(&id, |count| count.0) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (id, 1)),
        }
    }

    fn forget(&mut self, id: u32) {
        let Ok(at) = self.counts.binary_search_by_key(&id, |count| count.0) else { return };
        match self.counts[at].1 {
            0 | 1 => drop(self.counts.remove(at)),
            n => self.counts[at].1 = n - 1,
        }
    }

    /// Each id once, with its count.
    pub(super) fn counts(&self) -> &[(u32, u32)] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_until_as_many_others_have_come() {
        let mut recent = Recent::new(&[9, 5, 5, 3], 3, (10, 16));
        assert_eq!(recent.counts(), [(3, 1), (5, 2)]);
        recent.push(3);
        assert_eq!(recent.counts(), [(3, 2), (5, 1)]);
        recent.push(7);
        assert_eq!(recent.counts(), [(3, 2), (7, 1)]);
        for (last_n, wanted) in [(0, vec![]), (usize::MAX, vec![(1, 2), (2, 1)])] {
            let mut recent = Recent::new(&[1, 2], last_n, (1, 16));
            let capacities = (recent.ids.capacity(), recent.counts.capacity());
            recent.push(1);
            assert_eq!(recent.counts(), wanted, "{last_n}");
            assert_eq!((recent.ids.capacity(), recent.counts.capacity()), capacities);
        }
    }
}
