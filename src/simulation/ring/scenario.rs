//! Faults and changes of a ring, drawn from a seed.

use super::layers::Files;
use super::{Change, Cost, Ring, Shape};
use crate::simulation::incidents::{self, FIRST_US, Group, Incident, Later, Odds, run_seeds};
use crate::simulation::mix;
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};

/// Virtual time that a run may take: far more than any takes that goes on at all.
const PATIENCE_US: Micros = 600_000_000;

/// Time after which a worker that is back is told of a ring that became another one without it.
const TOLD_AFTER_US: Micros = 500_000;

/// A change that only a ring has.
#[derive(Clone, Debug)]
pub(super) enum RingChange {
    /// The nodes get other layers, so many each.
    Resplit(Vec<u32>),
    /// A node loses what it has stored, the master too.
    Loss(usize),
    /// Nodes that are alive are drawn from this seed to be the ring from now on.
    Members(u64),
    /// A worker is told of the ring, if it was not when that became another one.
    Tell(usize),
}

/// A ring, its network, and what happens when.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) shape: Shape,
    pub(super) faults: Faults,
    incidents: Vec<Later<Incident<RingChange>>>,
}

fn faults(dice: &mut Dice) -> Faults {
    Faults::draw(dice, 0.2, (2_000, 3_000))
}

impl Scenario {
    /// A ring of `n_nodes` to which nothing happens.
    pub(super) fn quiet(n_nodes: usize) -> Scenario {
        let mut scenario = Scenario::from_seed(n_nodes as u64);
        scenario.shape.layers = (0..n_nodes).map(|i| 1 + (i as u32 * 7) % 3).collect();
        scenario.incidents.clear();
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
        let odds = Odds {
            gap_us: 600_000,
            down_us: 3_000_000,
            mortals: 1..n_nodes,
            n_nodes,
            is_round: true,
            faults: self::faults,
        };
        let mut scenario = Scenario { shape, faults, incidents: odds.draw(&mut dice) };
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
        let mut at = FIRST_US;
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
            self.incidents.push((at, Incident::Change(RingChange::Resplit(layers))));
        }
    }

    /// Now and then nodes leave the ring and join it, once or more; in the end the remaining ones are all
    /// alive.
    fn draw_members(&mut self, dice: &mut Dice) {
        let has_splits =
            self.incidents.iter().any(|(_, incident)| matches!(incident, Incident::Change(_)));
        if has_splits || dice.below(2) > 0 {
            return;
        }
        let mut at = FIRST_US;
        for _ in 0..1 + dice.below(4) {
            at += dice.below(1_500_000);
            self.incidents.push((at, Incident::Change(RingChange::Members(dice.roll()))));
        }
        let last = self.incidents.iter().map(|(at, _)| *at).max().unwrap_or(at);
        self.incidents.push((last + 4_000_000, Incident::Change(RingChange::Members(dice.roll()))));
    }

    /// Now and then nodes lose what they have stored.
    fn draw_losses(&mut self, dice: &mut Dice) {
        let mut at = FIRST_US;
        for _ in 0..dice.below(4) {
            at += dice.below(1_000_000);
            let index = dice.below(self.shape.layers.len() as u64) as usize;
            self.incidents.push((at, Incident::Change(RingChange::Loss(index))));
        }
    }

    /// Runs it; returns how many positions were read from files.
    ///
    /// # Panics
    /// If the ring hangs or gives wrong tokens.
    pub(super) fn run(&self) -> usize {
        let mut ring = Ring::new(self.shape.clone(), self.faults.clone());
        let Some(answers) = incidents::run(&mut ring, &self.incidents, PATIENCE_US) else {
            panic!("the ring hangs, after {:?}: {self:?}", ring.told_last())
        };
        assert_eq!(answers, ring.wanted(), "wrong tokens: {self:?}");
        ring.master.n_read
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

impl Group for Ring {
    type Change = RingChange;
    type Answer = Vec<Vec<u32>>;

    fn now(&self) -> Micros {
        Ring::now(self)
    }

    fn set_faults(&mut self, faults: Faults) {
        self.network.set_faults(faults);
    }

    fn kill(&mut self, node: usize) -> bool {
        Ring::kill(self, node)
    }

    fn start(&mut self, node: usize, life: u64) -> Option<Later<RingChange>> {
        self.restart(node, life);
        Some((self.now() + TOLD_AFTER_US, RingChange::Tell(node)))
    }

    fn cut(&mut self, [node, next]: [usize; 2], is_cut: bool) {
        self.network.partition(node, next, is_cut);
    }

    fn change(&mut self, change: RingChange, life: u64) {
        match change {
            RingChange::Resplit(n_layers) => self.coming.push_back(Change::Layers(n_layers)),
            RingChange::Loss(index) => self.lose_kv(index),
            RingChange::Members(seed) => self.coming.push_back(Change::Nodes(seed, life)),
            RingChange::Tell(index) => self.tell(index, life),
        }
    }

    fn run_to(&mut self, until: Micros) -> Option<Vec<Vec<u32>>> {
        Ring::run_to(self, until)
    }
}

#[test]
fn rings_give_the_right_tokens_whatever_happens() {
    let read = run_seeds("rings_give", 300, |seed| Scenario::from_seed(seed).run());
    assert!(read.is_none_or(|n_read| n_read > 100), "of files little is read: {read:?}");
}
