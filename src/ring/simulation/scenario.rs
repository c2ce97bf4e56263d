//! Faults and changes of a ring, drawn from a seed.

use super::layers::{Files, mix};
use super::{Change, Cost, Ring, Shape};
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};

/// Virtual time that a run may take: far more than any takes that goes on at all.
const PATIENCE_US: Micros = 600_000_000;

/// How long after it is back a worker is told of a ring that became another one without it.
const TOLD_AFTER_US: Micros = 500_000;

/// A fault or change of a ring.
#[derive(Clone, Debug)]
enum Blow {
    /// A worker is killed, and comes back.
    Death { index: usize, down_us: Micros },
    /// The way between two neighbours is cut, and mended.
    Cut { index: usize, down_us: Micros },
    /// The network becomes another one.
    Weather(Faults),
    /// The nodes get other layers, so many each.
    Resplit(Vec<u32>),
    /// A node loses what it has stored, the master too.
    Loss(usize),
    /// Nodes that are alive are drawn from this seed to be the ring from now on.
    Members(u64),
}

/// A ring, its network, and what happens when.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) shape: Shape,
    pub(super) faults: Faults,
    blows: Vec<(Micros, Blow)>,
}

fn faults(dice: &mut Dice) -> Faults {
    Faults::draw(dice, 0.2, (2_000, 3_000))
}

impl Scenario {
    /// A ring of `n_nodes` to which nothing happens.
    pub(super) fn quiet(n_nodes: usize) -> Scenario {
        let mut scenario = Scenario::from_seed(n_nodes as u64);
        scenario.shape.layers = (0..n_nodes).map(|i| 1 + (i as u32 * 7) % 3).collect();
        scenario.blows.clear();
        scenario.shape.files = None;
        scenario
    }

    pub(super) fn from_seed(seed: u64) -> Scenario {
        let mut dice = Dice::new(seed);
        let n_nodes = 2 + dice.below(7) as usize;
        let layers = (0..n_nodes).map(|_| 1 + dice.below(4) as u32).collect();
        let n_streams = 1 + dice.below(3);
        let prompt = |dice: &mut Dice| {
            let len = 1 + dice.below(24);
            (0..len).map(|_| dice.below(1000) as u32).collect::<Vec<u32>>()
        };
        // Now and then rows so wide that a batch is several frames.
        let dim = if dice.below(12) == 0 { 12_000 } else { 4 };
        let shape = Shape {
            seed,
            layers,
            dim,
            ctx_len: 64,
            max_batch: 1 + dice.below(8) as u16,
            prompts: (0..n_streams).map(|_| prompt(&mut dice)).collect(),
            n_predict: 4 + dice.below(16) as usize,
            cost: Cost { weights_us: 50 + dice.below(2_000), row_us: dice.below(300) },
            packing_us: 0,
            has_key: dice.below(4) == 0,
            files: (!mix(seed, 0xf11e).is_multiple_of(3)).then(Files::default),
        };
        let faults = faults(&mut dice);
        let mut scenario = Scenario { shape, faults, blows: Vec::new() };
        let mut at = 1_000_000;
        for _ in 0..dice.below(5) {
            at += dice.below(600_000);
            scenario.blows.push((at, scenario.draw(&mut dice)));
        }
        scenario.draw_splits(&mut Dice::new(seed ^ 0x5eed));
        scenario.draw_members(&mut Dice::new(seed ^ 0x3e3b));
        scenario.draw_losses(&mut Dice::new(seed ^ 0x1055));
        scenario
    }

    /// Now and then the nodes get other layers too, once or more.
    fn draw_splits(&mut self, dice: &mut Dice) {
        if dice.below(3) > 0 {
            return;
        }
        self.shape.packing_us = dice.below(400_000);
        let mut at = 1_000_000;
        for _ in 0..1 + dice.below(3) {
            at += dice.below(600_000);
            let mut layers = self.shape.layers.clone();
            for _ in 0..layers.len() {
                let [from, to] = [(); 2].map(|()| dice.below(layers.len() as u64) as usize);
                if layers[from] > 1 {
                    layers[from] -= 1;
                    layers[to] += 1;
                }
            }
            self.blows.push((at, Blow::Resplit(layers)));
        }
    }

    /// Now and then nodes leave the ring and join it, once or more; in the end the remaining ones are all
    /// alive.
    fn draw_members(&mut self, dice: &mut Dice) {
        let has_splits = self.blows.iter().any(|(_, blow)| matches!(blow, Blow::Resplit(_)));
        if has_splits || dice.below(2) > 0 {
            return;
        }
        let mut at = 1_000_000;
        for _ in 0..1 + dice.below(4) {
            at += dice.below(1_500_000);
            self.blows.push((at, Blow::Members(dice.roll())));
        }
        let last = self.blows.iter().map(|(at, _)| *at).max().unwrap_or(at);
        self.blows.push((last + 4_000_000, Blow::Members(dice.roll())));
    }

    /// Now and then nodes lose what they have stored.
    fn draw_losses(&mut self, dice: &mut Dice) {
        let mut at = 1_000_000;
        for _ in 0..dice.below(4) {
            at += dice.below(1_000_000);
            let index = dice.below(self.shape.layers.len() as u64) as usize;
            self.blows.push((at, Blow::Loss(index)));
        }
    }

    fn draw(&self, dice: &mut Dice) -> Blow {
        let n_nodes = self.shape.layers.len();
        let down_us = dice.below(3_000_000);
        match dice.below(5) {
            0 | 1 => Blow::Death { index: 1 + dice.below(n_nodes as u64 - 1) as usize, down_us },
            2 | 3 => Blow::Cut { index: dice.below(n_nodes as u64) as usize, down_us },
            _ => Blow::Weather(faults(dice)),
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// If the ring hangs or gives wrong tokens.
    pub(super) fn run(&self) -> usize {
        let mut ring = Ring::new(self.shape.clone(), self.faults.clone());
        let end = ring.now() + PATIENCE_US;
        // Events to come, the soonest last.
        let mut coming: Vec<(Micros, Coming)> =
            self.blows.iter().map(|(at, blow)| (*at, Coming::Blow(blow.clone()))).collect();
        let mut life = 0;
        loop {
            coming.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            let until = coming.last().map_or(end, |(at, _)| *at);
            if let Some(answers) = ring.run_to(until) {
                assert_eq!(answers, ring.wanted(), "wrong tokens: {self:?}");
                return ring.master.n_read;
            }
            let Some((_, next)) = coming.pop() else {
                let told = ring.told_last();
                panic!("the ring hangs, after {told:?}: {self:?}")
            };
            life += 1;
            coming.extend(next.happen(&mut ring, life));
        }
    }
}

impl Ring {
    /// A split of the layers over the master and some of the workers that are alive, or were just now.
    pub(super) fn draw_members(&self, dice: &mut Dice) -> Vec<u32> {
        let n_layers: u32 = self.shape.layers.iter().sum();
        let is_alive = |index: usize| index == 0 || self.workers[index - 1].is_some();
        let mut members: Vec<usize> = (0..self.shape.layers.len())
            .filter(|&index| match is_alive(index) {
                true => index == 0 || dice.below(4) > 0,
                false => dice.below(8) == 0,
            })
            .collect();
        members.truncate(n_layers as usize);
        let mut layers = vec![0; self.shape.layers.len()];
        for member in &members {
            layers[*member] = 1;
        }
        for _ in members.len()..n_layers as usize {
            layers[members[dice.below(members.len() as u64) as usize]] += 1;
        }
        layers
    }
}

#[derive(Clone, Debug)]
enum Coming {
    Blow(Blow),
    Return(usize),
    /// A worker is told of the ring, if it was not when that became another one.
    Tell(usize),
    Mend(usize),
}

impl Coming {
    /// Makes it happen; returns what follows from it later.
    fn happen(self, ring: &mut Ring, life: u64) -> Option<(Micros, Coming)> {
        let now = ring.now();
        let next = |index: usize| (index + 1) % ring.shape.layers.len();
        match self {
            Coming::Blow(Blow::Death { index, down_us }) => {
                ring.kill(index);
                Some((now + down_us, Coming::Return(index)))
            }
            Coming::Blow(Blow::Cut { index, down_us }) => {
                ring.network().partition(index, next(index), true);
                Some((now + down_us, Coming::Mend(index)))
            }
            Coming::Blow(Blow::Weather(faults)) => {
                ring.network().set_faults(faults);
                None
            }
            Coming::Blow(Blow::Resplit(n_layers)) => {
                ring.coming.push_back(Change::Layers(n_layers));
                None
            }
            Coming::Blow(Blow::Loss(index)) => {
                ring.lose_kv(index);
                None
            }
            Coming::Blow(Blow::Members(seed)) => {
                ring.coming.push_back(Change::Nodes(seed, life));
                None
            }
            Coming::Return(index) => {
                ring.restart(index, life);
                Some((now + TOLD_AFTER_US, Coming::Tell(index)))
            }
            Coming::Tell(index) => {
                ring.tell(index, life);
                None
            }
            Coming::Mend(index) => {
                ring.network().partition(index, next(index), false);
                None
            }
        }
    }
}

/// `LEAP_SIM_SEED=n` runs that seed alone, `LEAP_SIM_SEEDS=n` as many as asked for.
#[test]
fn rings_give_the_right_tokens_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(seed) = number("LEAP_SIM_SEED") {
        Scenario::from_seed(seed).run();
        return;
    }
    let is_quick = std::env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1");
    let n = number("LEAP_SIM_SEEDS").unwrap_or(if is_quick { 10 } else { 300 });
    let mut n_read = 0;
    for seed in 0..n {
        let run = std::panic::catch_unwind(|| Scenario::from_seed(seed).run());
        assert!(
            run.is_ok(),
            "seed {seed} fails; replay: LEAP_SIM_SEED={seed} cargo test --lib whatever_happens"
        );
        n_read += run.unwrap_or(0);
    }
    assert!(n < 100 || n_read > 100, "of files little is read: {n_read}");
}
