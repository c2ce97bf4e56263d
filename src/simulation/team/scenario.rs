//! Faults and changes of a team, drawn from a seed.

use std::convert::Infallible;
use std::panic;
use std::sync::{Arc, Mutex};

use super::nodes::{self, config, endpoint};
use super::shape::{Answer, Layer, Shape};
use crate::simulation::incidents::{self, Group, Incident, Later, Odds, run_seeds};
use crate::simulation::world::{Actor, World};
use crate::team::{To, banks};
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};
use crate::transport::loopback::Network;

/// Virtual time that a run may take: far more than any takes that goes on at all.
const PATIENCE_US: Micros = 60_000_000;
/// Period of looks whether the answer is there.
const LOOK_US: Micros = 50_000;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) shape: Shape,
    pub(super) faults: Faults,
    incidents: Vec<Later<Incident<Infallible>>>,
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
        Scenario { shape, faults, incidents: Vec::new() }
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
        let odds = Odds {
            gap_us: 400_000,
            down_us: 2_500_000,
            mortals: 0..n_nodes,
            n_nodes,
            is_round: false,
            faults: self::faults,
        };
        Scenario { shape, faults: faults(&mut dice), incidents: odds.draw(&mut dice) }
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
        };
        (0..self.shape.n_nodes).for_each(|node| _ = team.start(node, 0));
        let answer = incidents::run(&mut team, &self.incidents, PATIENCE_US);
        let answer = answer.unwrap_or_else(|| panic!("the team hangs: {self:?}"));
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
}

impl Group for Team<'_> {
    type Change = Infallible;
    type Answer = Answer;

    fn now(&self) -> Micros {
        self.actor.now()
    }

    fn set_faults(&mut self, faults: Faults) {
        self.actor.network().set_faults(faults);
    }

    fn kill(&mut self, node: usize) -> bool {
        let Some(threads) = self.threads[node].take() else { return false };
        threads.into_iter().for_each(|thread| self.actor.kill(thread));
        for peer in 0..self.shape.n_nodes {
            self.actor.network().stop(endpoint(self.shape, node, peer));
        }
        true
    }

    fn start(&mut self, node: usize, life: u64) -> Option<Later<Infallible>> {
        let threads = nodes::start(&self.actor, self.shape, (node, life), &self.answer);
        self.threads[node] = Some(threads);
        None
    }

    fn cut(&mut self, [a, b]: [usize; 2], is_cut: bool) {
        let ends = [endpoint(self.shape, a, b), endpoint(self.shape, b, a)];
        self.actor.network().partition(ends[0], ends[1], is_cut);
    }

    fn change(&mut self, change: Infallible, _: u64) {
        match change {}
    }

    fn run_to(&mut self, until: Micros) -> Option<Answer> {
        loop {
            if let Some(answer) = self.answer.lock().unwrap().take() {
                return Some(answer);
            }
            let now = self.actor.now();
            if now >= until {
                return None;
            }
            self.actor.sleep(until.min(now + LOOK_US));
        }
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

/// Has a team form and answer on such a network.
///
/// # Panics
/// If it takes too long, or the tokens are wrong.
pub(crate) fn check(seed: u64, faults: &Faults) {
    let n_nodes = 2 + seed as usize % 3;
    let bytes = [1000, 1500, 500, 700];
    let layer = |to| Layer::new(&bytes[..n_nodes], to);
    let shape = Shape {
        seed,
        n_nodes,
        layers: vec![layer(To::All); 4],
        head: layer(To::Lead),
        is_whole: true,
        max_batch: 8,
        prompt: vec![1, 2, 3],
        n_predict: 4,
        layer_us: 400,
        n_banks: banks(n_nodes),
        has_halves: false,
        has_key: seed.is_multiple_of(2),
    };
    Scenario::quiet(shape, faults.clone()).run();
}

#[test]
fn teams_give_the_right_tokens_whatever_happens() {
    run_seeds("teams_give", 150, |seed| Scenario::from_seed(seed).run() as usize);
}
