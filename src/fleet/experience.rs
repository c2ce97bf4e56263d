//! Observed speeds of a ring's nodes by number of layers.

use std::time::Duration;

/// Observed speed of a node.
struct Shown {
    name: String,
    n_layers: usize,
    bytes_per_s: f64,
    at: Duration,
}

/// Observed speeds of nodes, by number of layers; the latest observation counts.
///
/// A node that is slow under long work may be fast under little: a hot processor cools down between two tokens, and a
/// quota of CPU time fills again. So a speed with few layers does not predict the speed with more, as long as the
/// latter is known.
#[derive(Default)]
pub(super) struct Experience(Vec<Shown>);

impl Experience {
    /// Notes that a node with `n_layers` layers reads this many bytes of weights in a second.
    pub(super) fn note(&mut self, at: Duration, name: &str, n_layers: usize, bytes_per_s: f64) {
        self.0.retain(|shown| shown.n_layers != n_layers || shown.name != name);
        self.0.push(Shown { name: name.to_owned(), n_layers, bytes_per_s, at });
    }

    /// Forgets observations from before this moment.
    pub(super) fn forget_before(&mut self, moment: Duration) {
        self.0.retain(|shown| shown.at >= moment);
    }

    /// The lowest speed of a node with at least `n_layers` layers; `None` if none is known.
    pub(super) fn least(&self, name: &str, n_layers: usize) -> Option<f64> {
        let known = self.0.iter().filter(|s| s.name == name && s.n_layers >= n_layers);
        known.map(|shown| shown.bytes_per_s).min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shown_with_more_layers_counts_until_it_is_old() {
        let s = Duration::from_secs;
        let mut experience = Experience::default();
        experience.note(s(10), "pi", 17, 4e9);
        assert_eq!(experience.least("pi", 17), Some(4e9));
        // The board is throttled, and gets one layer.
        experience.note(s(40), "pi", 17, 1e9);
        experience.note(s(70), "pi", 1, 6e9);
        experience.note(s(70), "desk", 21, 5e9);
        assert_eq!(experience.least("pi", 1), Some(1e9));
        assert_eq!(experience.least("pi", 18), None);
        assert_eq!(experience.least("desk", 1), Some(5e9));
        experience.forget_before(s(41));
        assert_eq!(experience.least("pi", 1), Some(6e9));
    }
}
