//! Faults and changes of a group, drawn from a seed, and what follows from them.

use std::cmp::Reverse;
use std::fmt::Debug;
use std::ops::Range;
use std::panic;

use super::is_quick;
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};

/// When the first fault may happen: nodes have found each other by then, or are about to.
pub(super) const FIRST_US: Micros = 1_000_000;

/// A group that is simulated.
pub(super) trait Group {
    /// A change that only groups of this kind have.
    type Change: Clone + Debug;
    /// Result of the run.
    type Answer;

    /// The time.
    fn now(&self) -> Micros;

    /// Changes the faults of its network.
    fn set_faults(&mut self, faults: Faults);

    /// Kills a node; `false` if that is dead.
    fn kill(&mut self, node: usize) -> bool;

    /// Starts a dead node again, as the `life`-th life of any; returns what follows from that later.
    fn start(&mut self, node: usize, life: u64) -> Option<Later<Self::Change>>;

    /// Cuts the way between two nodes, or mends it.
    fn cut(&mut self, nodes: [usize; 2], is_cut: bool);

    /// Makes a change.
    fn change(&mut self, change: Self::Change, life: u64);

    /// Goes on until the answer is there, or until this time.
    fn run_to(&mut self, until: Micros) -> Option<Self::Answer>;
}

/// A change, and its time.
pub(super) type Later<C> = (Micros, C);

/// A fault or change of a group.
#[derive(Clone, Debug)]
pub(super) enum Incident<C> {
    /// A node is killed, and comes back.
    Death { node: usize, down_us: Micros },
    /// The way between two nodes is cut, and mended.
    Cut { nodes: [usize; 2], down_us: Micros },
    /// The network becomes another one.
    Weather(Faults),
    /// A change that only this kind of group has.
    Change(C),
    /// A dead node is started again.
    Return(usize),
    /// The way between two nodes is mended.
    Mend([usize; 2]),
}

/// Kinds and frequency of the faults that a group may have.
pub(super) struct Odds {
    /// Most time between two faults.
    pub(super) gap_us: Micros,
    /// Longest time for which a node is dead, or a way cut.
    pub(super) down_us: Micros,
    /// Nodes that may die.
    pub(super) mortals: Range<usize>,
    /// Nodes of the group.
    pub(super) n_nodes: usize,
    /// Whether each node has a way to the next one alone.
    pub(super) is_round: bool,
    /// Draws a network.
    pub(super) faults: fn(&mut Dice) -> Faults,
}

impl Odds {
    /// Draws faults, and when they happen.
    pub(super) fn draw<C>(&self, dice: &mut Dice) -> Vec<Later<Incident<C>>> {
        let (mut at, n) = (FIRST_US, dice.below(5));
        let incident = |_| {
            at += dice.below(self.gap_us);
            (at, self.draw_one(dice))
        };
        (0..n).map(incident).collect()
    }

    fn draw_one<C>(&self, dice: &mut Dice) -> Incident<C> {
        let (n_nodes, down_us) = (self.n_nodes as u64, dice.below(self.down_us));
        match dice.below(5) {
            0 | 1 => {
                let node = self.mortals.start + dice.below(self.mortals.len() as u64) as usize;
                Incident::Death { node, down_us }
            }
            2 | 3 => {
                let node = dice.below(n_nodes) as usize;
                let away = if self.is_round { 1 } else { 1 + dice.below(n_nodes - 1) as usize };
                Incident::Cut { nodes: [node, (node + away) % self.n_nodes], down_us }
            }
            _ => Incident::Weather((self.faults)(dice)),
        }
    }
}

impl<C: Clone + Debug> Incident<C> {
    /// Makes the incident happen; returns the incident that follows from it later.
    fn happen<G: Group<Change = C>>(self, group: &mut G, life: u64) -> Option<Later<Incident<C>>> {
        let now = group.now();
        match self {
            Incident::Death { node, down_us } => {
                return group.kill(node).then_some((now + down_us, Incident::Return(node)));
            }
            Incident::Cut { nodes, down_us } => {
                group.cut(nodes, true);
                return Some((now + down_us, Incident::Mend(nodes)));
            }
            Incident::Weather(faults) => group.set_faults(faults),
            Incident::Change(change) => group.change(change, life),
            Incident::Return(node) => {
                let next = group.start(node, life)?;
                return Some((next.0, Incident::Change(next.1)));
            }
            Incident::Mend(nodes) => group.cut(nodes, false),
        }
        None
    }
}

/// Has all incidents happen to a group until its answer is there; `None` if that takes too long.
pub(super) fn run<G: Group>(
    group: &mut G,
    incidents: &[Later<Incident<G::Change>>],
    patience_us: Micros,
) -> Option<G::Answer> {
    let end = group.now() + patience_us;
    // Events to come, the soonest last.
    let mut coming = incidents.to_vec();
    let mut life = 0;
    loop {
        coming.sort_by_key(|(at, _)| Reverse(*at));
        let until = coming.last().map_or(end, |(at, _)| *at);
        if let Some(answer) = group.run_to(until) {
            return Some(answer);
        }
        let (_, incident) = coming.pop()?;
        life += 1;
        coming.extend(incident.happen(group, life));
    }
}

/// Runs many seeds, and returns the sum of the runs' results, if there are enough runs for it to mean something.
/// `LEAP_SIM_SEED=n` runs that seed alone, `LEAP_SIM_SEEDS=n` as many as asked for instead of `n_seeds`.
pub(super) fn run_seeds(
    test: &str,
    n_seeds: u64,
    run: impl Fn(u64) -> usize + panic::RefUnwindSafe,
) -> Option<usize> {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(seed) = number("LEAP_SIM_SEED") {
        run(seed);
        return None;
    }
    let n = number("LEAP_SIM_SEEDS").unwrap_or(if is_quick() { 10 } else { n_seeds });
    let mut sum = 0;
    for seed in 0..n {
        let ran = panic::catch_unwind(|| run(seed));
        assert!(
            ran.is_ok(),
            "seed {seed} fails; replay: LEAP_SIM_SEED={seed} cargo test --lib {test}"
        );
        sum += ran.unwrap_or(0);
    }
    (n >= 100).then_some(sum)
}
