//! Faults and changes of a team, drawn from a seed.

use std::panic;
use std::sync::{Arc, Mutex};

use super::nodes::{self, config, endpoint};
use super::shape::{Answer, Layer, Shape};
use super::world::{Actor, World};
use crate::team::parts::To;
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};
use crate::transport::loopback::Network;

/// Virtual time that a run may take: far more than any takes that goes on at all.
const PATIENCE_US: Micros = 60_000_000;
/// How often it is seen whether the answer is there.
const LOOK_US: Micros = 50_000;

/// A fault or change of a team.
#[derive(Clone, Debug)]
enum Blow {
    /// A node is killed, and comes back.
    Death {
        node: usize,
        down_us: Micros,
    },
    /// The way between two nodes is cut, and mended.
    Cut {
        nodes: [usize; 2],
        down_us: Micros,
    },
    /// The network becomes another one.
    Weather(Faults),
    /// End of a fault.
    Return(usize),
    Mend([usize; 2]),
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) shape: Shape,
    pub(super) faults: Faults,
    blows: Vec<(Micros, Blow)>,
}

fn faults(dice: &mut Dice) -> Faults {
    Faults::draw(dice, 0.1, (500, 1_000))
}

/// Gathers of a pass, and the one at its end.
fn layers(dice: &mut Dice, n_nodes: usize) -> (Vec<Layer>, Layer) {
    // Now and then parts that are several datagrams or frames.
    let most = [40, 40, 2_000, 200_000][dice.below(4) as usize];
    let bytes = |dice: &mut Dice| -> Vec<usize> {
        let mut bytes: Vec<usize> = (0..n_nodes).map(|_| dice.below(most) as usize).collect();
        bytes[dice.below(n_nodes as u64) as usize] += 1;
        bytes
    };
    let n = 1 + dice.below(if most > 10_000 { 3 } else { 6 });
    let all = (0..n).map(|_| Layer::new(&bytes(dice), To::All)).collect();
    (all, Layer::new(&bytes(dice), To::Lead))
}

impl Scenario {
    /// A team of this shape to which nothing happens.
    pub(super) fn quiet(shape: Shape, faults: Faults) -> Scenario {
        Scenario { shape, faults, blows: Vec::new() }
    }

    fn from_seed(seed: u64) -> Scenario {
        let mut dice = Dice::new(seed);
        let n_nodes = 2 + dice.below(4) as usize;
        let (layers, head) = layers(&mut dice, n_nodes);
        let shape = Shape {
            seed,
            n_nodes,
            layers,
            head,
            is_whole: dice.below(2) == 0,
            max_batch: 1 + dice.below(8) as usize,
            prompt: (0..1 + dice.below(12)).map(|_| dice.below(1000) as u32).collect(),
            n_predict: 4 + dice.below(16) as usize,
            layer_us: 50 + dice.below(3_000),
            n_banks: [4, 16][dice.below(2) as usize],
            has_halves: dice.below(4) > 0,
            has_key: dice.below(4) == 0,
        };
        let mut scenario = Scenario { shape, faults: faults(&mut dice), blows: Vec::new() };
        let mut at = 1_000_000;
        for _ in 0..dice.below(5) {
            at += dice.below(400_000);
            scenario.blows.push((at, scenario.draw(&mut dice)));
        }
        scenario
    }

    fn draw(&self, dice: &mut Dice) -> Blow {
        let n_nodes = self.shape.n_nodes as u64;
        let down_us = dice.below(2_500_000);
        let node = dice.below(n_nodes) as usize;
        match dice.below(5) {
            0 | 1 => Blow::Death { node, down_us },
            2 | 3 => {
                let other = (node + 1 + dice.below(n_nodes - 1) as usize) % self.shape.n_nodes;
                Blow::Cut { nodes: [node, other], down_us }
            }
            _ => Blow::Weather(faults(dice)),
        }
    }

    /// Runs it; returns how long the answer took.
    ///
    /// # Panics
    /// If the team hangs or gives wrong tokens.
    pub(super) fn run(&self) -> Micros {
        let network = Network::new(self.shape.seed, self.faults.clone());
        for own in 0..self.shape.n_nodes {
            for peer in 0..self.shape.n_nodes {
                let index = endpoint(&self.shape, own, peer);
                network.endpoint(config(&self.shape, own, index as u64), None);
            }
        }
        let mut team = Team {
            actor: World::begin(network),
            shape: &self.shape,
            threads: vec![None; self.shape.n_nodes],
            answer: Arc::default(),
            life: 0,
        };
        (0..self.shape.n_nodes).for_each(|node| team.start(node));
        let end = team.actor.now() + PATIENCE_US;
        // Events to come, the soonest last.
        let mut coming = self.blows.clone();
        let answer = loop {
            coming.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            if let Some(answer) = team.answer.lock().unwrap().take() {
                break answer;
            }
            let now = team.actor.now();
            assert!(now < end, "the team hangs: {self:?}");
            let next = coming.last().map_or(end, |(at, _)| *at).min(now + LOOK_US);
            team.actor.sleep(next.max(now + 1));
            if let Some((_, blow)) = coming.pop_if(|(at, _)| *at <= team.actor.now()) {
                coming.extend(team.happen(blow));
            }
        };
        team.actor.end();
        assert_eq!(answer.tokens, nodes::reference(&self.shape), "wrong tokens: {self:?}");
        answer.us
    }
}

/// A team that runs.
struct Team<'a> {
    actor: Actor,
    shape: &'a Shape,
    /// Threads of each node that is there.
    threads: Vec<Option<[usize; 2]>>,
    answer: Arc<Mutex<Option<Answer>>>,
    /// Nodes that began to live so far.
    life: u64,
}

impl Team<'_> {
    fn start(&mut self, node: usize) {
        self.life += 1;
        let threads = nodes::start(&self.actor, self.shape, (node, self.life), &self.answer);
        self.threads[node] = Some(threads);
    }

    /// Makes it happen; returns what follows from it later.
    fn happen(&mut self, blow: Blow) -> Option<(Micros, Blow)> {
        let now = self.actor.now();
        match blow {
            Blow::Death { node, down_us } => {
                let threads = self.threads[node].take()?;
                threads.into_iter().for_each(|thread| self.actor.kill(thread));
                for peer in 0..self.shape.n_nodes {
                    self.actor.network().stop(endpoint(self.shape, node, peer));
                }
                return Some((now + down_us, Blow::Return(node)));
            }
            Blow::Cut { nodes, down_us } => {
                self.cut(nodes, true);
                return Some((now + down_us, Blow::Mend(nodes)));
            }
            Blow::Weather(faults) => self.actor.network().set_faults(faults),
            Blow::Return(node) => self.start(node),
            Blow::Mend(nodes) => self.cut(nodes, false),
        }
        None
    }

    fn cut(&self, [a, b]: [usize; 2], is_cut: bool) {
        let ends = [endpoint(self.shape, a, b), endpoint(self.shape, b, a)];
        self.actor.network().partition(ends[0], ends[1], is_cut);
    }
}

impl Drop for Team<'_> {
    /// If the run fails, its threads end too.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = panic::catch_unwind(panic::AssertUnwindSafe(|| self.actor.end()));
        }
    }
}

/// `LEAP_SIM_SEED=n` runs that seed alone, `LEAP_SIM_SEEDS=n` as many as asked for.
#[test]
fn teams_give_the_right_tokens_whatever_happens() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(seed) = number("LEAP_SIM_SEED") {
        Scenario::from_seed(seed).run();
        return;
    }
    let is_quick = std::env::var("LEAP_TEST_QUICK").is_ok_and(|value| value == "1");
    let n = number("LEAP_SIM_SEEDS").unwrap_or(if is_quick { 10 } else { 150 });
    for seed in 0..n {
        let run = panic::catch_unwind(|| Scenario::from_seed(seed).run());
        assert!(
            run.is_ok(),
            "seed {seed} fails; replay: LEAP_SIM_SEED={seed} cargo test --lib teams_give"
        );
    }
}
