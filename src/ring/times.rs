//! Time and energy of decoded tokens, by their use.

use crate::wire::frame::{Heat, WorkFigures};

/// Hundredths of a joule a microsecond that no node takes: 10 kW.
const MOST_PER_US: u64 = 1;
/// Longest delay of a sensor, from when energy is spent until the reading has it.
const LAG_US: u64 = 2_000_000;

/// Time of decoded tokens by its use, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Batches of one row a stream, the usual decoding.
    pub batches: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Time from the start of each batch to its result.
    pub lap_us: u64,
    /// Computing, by node.
    pub compute_us: Vec<u64>,
    /// Energy of the nodes, from the result before to theirs.
    pub energy: Vec<NodeEnergy>,
    /// Temperature of each node, as it told last.
    pub heat: Vec<Option<Heat>>,
}

/// Energy that a node has spent on decoded tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeEnergy {
    hundredths: u64,
    us: u64,
    /// Last reading of the node, and its time.
    last: Option<(u32, u64)>,
    /// The node's readings were impossible, or have ended.
    is_broken: bool,
}

impl Times {
    /// Starts with no times, on a ring of up to `n_nodes`.
    pub(super) fn start(&mut self, n_nodes: usize) {
        (self.batches, self.tokens, self.lap_us) = (0, 0, 0);
        self.compute_us.clear();
        self.compute_us.resize(n_nodes, 0);
        self.energy.clear();
        self.energy.resize(n_nodes, NodeEnergy::default());
        self.heat.clear();
        self.heat.resize(n_nodes, None);
    }

    /// The rest of them, after those that came `before`; `None` if these are others.
    pub fn since(&self, before: &Times) -> Option<Times> {
        let mut rest = self.clone();
        rest.batches = self.batches.checked_sub(before.batches)?;
        rest.tokens = self.tokens.checked_sub(before.tokens)?;
        rest.lap_us = self.lap_us.checked_sub(before.lap_us)?;
        for (us, before) in rest.compute_us.iter_mut().zip(&before.compute_us) {
            *us = us.checked_sub(*before)?;
        }
        Some(rest)
    }

    /// Forgets the last readings: energy spent while the ring was not open belongs to no token.
    pub(super) fn reopen(&mut self) {
        self.energy.iter_mut().for_each(|node| node.last = None);
    }

    /// Adds a batch that came back at `now`, after `lap_us`: of `n_decoded` tokens, or one of prompts.
    pub(super) fn add(
        &mut self,
        now: u64,
        lap_us: u64,
        figures: &[WorkFigures],
        n_decoded: Option<usize>,
    ) {
        for (node, figures) in self.energy.iter_mut().zip(figures) {
            node.see(now, figures.energy, n_decoded.is_some());
        }
        for (heat, figures) in self.heat.iter_mut().zip(figures) {
            *heat = figures.heat;
        }
        let Some(tokens) = n_decoded else { return };
        self.batches += 1;
        self.tokens += tokens as u64;
        self.lap_us += lap_us;
        for (sum, figures) in self.compute_us.iter_mut().zip(figures) {
            *sum += u64::from(figures.compute_us);
        }
    }
}

impl NodeEnergy {
    fn see(&mut self, now: u64, energy: Option<u32>, is_counted: bool) {
        let last = std::mem::replace(&mut self.last, energy.map(|energy| (energy, now)));
        let Some((before, then)) = last else { return };
        let Some(energy) = energy else {
            self.is_broken = true;
            return;
        };
        let range = u64::from(WorkFigures::ENERGY_RANGE);
        let spent = (u64::from(energy) + range - u64::from(before)) % range;
        let us = now.saturating_sub(then);
        self.is_broken |= spent > (us + LAG_US) * MOST_PER_US;
        if is_counted {
            self.hundredths += spent;
            self.us += us;
        }
    }

    /// Joules, and the seconds in which they were spent; `None` if the node does not know.
    pub fn spent(&self) -> Option<(f64, f64)> {
        let is_known = !self.is_broken && self.us > 0;
        is_known.then(|| (self.hundredths as f64 / 1e2, self.us as f64 / 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_that_of_decoded_tokens_while_a_node_tells_it() {
        let mut times = Times::default();
        times.start(3);
        let second = |s: u64| s * 1_000_000;
        let heat = Some(Heat { degrees: 60, is_slowed: false });
        let figures = |energies: [Option<u32>; 3]| {
            energies.map(|energy| WorkFigures { compute_us: 5, heat, energy })
        };
        let range = WorkFigures::ENERGY_RANGE;
        times.add(0, 0, &figures([Some(range - 500), None, Some(7)]), None);
        // A prompt.
        times.add(second(1), 0, &figures([Some(range - 300), None, Some(7)]), None);
        times.add(second(2), 9, &figures([Some(100), None, Some(7)]), Some(2));
        times.add(second(3), 9, &figures([Some(500), None, None]), Some(2));
        // The first is another one from here on, or its sensor is.
        times.reopen();
        times.add(second(4), 9, &figures([Some(3), None, Some(7)]), Some(2));
        times.add(second(5), 9, &figures([Some(403), None, Some(7)]), Some(2));
        let spent: Vec<_> = times.energy.iter().map(NodeEnergy::spent).collect();
        assert_eq!(spent, [Some((12.0, 3.0)), None, None]);
        assert_eq!((times.tokens, times.compute_us[0]), (8, 20));
        assert_eq!(times.heat, [heat; 3]);
        times.add(second(6), 9, &figures([Some(2), None, None]), Some(1));
        assert_eq!(times.energy[0].spent(), None);
    }
}
