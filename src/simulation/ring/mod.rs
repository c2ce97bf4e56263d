//! Simulated rings.

mod layers;
mod nodes;
mod scenario;
mod speed;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::group::Notice;
use crate::ring::{Held, Setbacks};
use crate::transport::Micros;
use crate::transport::fault::{Dice, Faults};
use crate::transport::loopback::Network;
use crate::wire::datagram::{CHUNKS_MAX, DATAGRAM_BYTES};
use crate::wire::frame::FrameSpan;

use layers::Files;
use nodes::{MasterNode, WorkerNode};
use scenario::Scenario;

/// Cost of a batch for a layer, in microseconds: reading its weights, or computing its rows, whichever takes
/// longer.
#[derive(Clone, Copy, Debug)]
struct Cost {
    weights_us: u64,
    row_us: u64,
}

impl Cost {
    fn of(self, layers: u64, rows: usize) -> u64 {
        layers * self.weights_us.max(self.row_us * rows as u64)
    }
}

/// Longest wait until a ring is open in which nodes hand over what they have stored.
const HAND_OVER_US: u64 = 30_000_000;
/// Banks of each link.
const N_BANKS: usize = 16;
/// Bytes of a machine besides batches and tokens: lines of all nodes, notices, a frame.
const MACHINE_BYTES: usize = 64 << 10;

/// Memory of a node: bytes of its links' banks, frames in them, bytes of its machine.
struct Memory {
    banks: usize,
    held: usize,
    heap: usize,
}

/// A ring and its network.
struct Ring {
    network: Network,
    master: MasterNode,
    workers: Vec<Option<WorkerNode>>,
    /// The shape that each worker was told last.
    told: Vec<Shape>,
    shape: Shape,
    /// Changes to make, in order, each as soon as its batches are answered.
    coming: VecDeque<Change>,
    /// The layers after some nodes leave, their next life, and the deadline for the KV of those that leave.
    leaving: Option<(Vec<u32>, u64, Micros)>,
}

/// A change to a ring.
enum Change {
    /// The nodes get so many layers each.
    Layers(Vec<u32>),
    /// Some of the nodes that are alive then, drawn from this seed; as this life of theirs.
    Nodes(u64, u64),
}

/// Sizes and costs that stay the same during a run.
#[derive(Clone, Debug)]
struct Shape {
    seed: u64,
    /// Layers of each node.
    layers: Vec<u32>,
    dim: u32,
    ctx_len: u32,
    max_batch: u16,
    prompts: Vec<Vec<u32>>,
    n_predict: usize,
    cost: Cost,
    /// Time to pack a layer that is new to a node.
    packing_us: u64,
    has_key: bool,
    /// Files of the nodes, if they keep any.
    files: Option<Files>,
}

impl Shape {
    /// The nodes that have layers, the master first.
    fn members(&self) -> impl Iterator<Item = usize> {
        (0..self.layers.len()).filter(|index| self.layers[*index] > 0)
    }

    /// The next node behind `index` that has layers.
    fn next_of(&self, index: usize) -> usize {
        self.members().find(|other| *other > index).unwrap_or(0)
    }

    /// The last node before `index` that has layers.
    fn prev_of(&self, index: usize) -> usize {
        let all: Vec<usize> = self.members().collect();
        let before = all.iter().rev().find(|other| **other < index).or(all.last());
        *before.expect("the master has layers")
    }

    /// Whether nodes leave, and none come, as it becomes the ring `after`.
    fn is_left_for(&self, after: &Shape) -> bool {
        let stays = |index: usize| self.layers[index] > 0;
        after.members().all(stays) && after.members().count() < self.members().count()
    }

    /// The layers of the node at `index`.
    fn layers_of(&self, index: usize) -> Range<u32> {
        let first = self.layers[..index].iter().sum();
        first..first + self.layers[index]
    }
}

impl Ring {
    fn new(mut shape: Shape, faults: Faults) -> Ring {
        shape.files = shape.files.map(|_| Files::default());
        let network = Network::new(shape.seed, faults);
        let master = MasterNode::new(&network, &shape);
        let told = vec![shape.clone(); shape.layers.len() - 1];
        let mut ring = Ring {
            network,
            master,
            workers: Vec::new(),
            told,
            shape,
            coming: VecDeque::new(),
            leaving: None,
        };
        for index in 1..ring.shape.layers.len() {
            let worker =
                WorkerNode::new(&ring.network, &ring.shape, index, 0, (false, Held::default()));
            ring.workers.push(Some(worker));
        }
        ring
    }

    /// A quiet ring with one stream, long enough for all events of a test, in which packing a layer takes a
    /// second.
    fn with_one_stream(n_nodes: usize) -> Ring {
        let mut shape = Scenario::quiet(n_nodes).shape;
        (shape.n_predict, shape.packing_us) = (40, 1_000_000);
        shape.prompts.truncate(1);
        shape.cost = Cost { weights_us: 20_000, row_us: 0 };
        Ring::new(shape, Faults::NONE)
    }

    fn now(&self) -> Micros {
        self.network.now()
    }

    /// Three splits of the layers: all but one for each other node are the master's, then the last node's, and then the
    /// nodes have those of the ring file again.
    fn splits(&self) -> [Vec<u32>; 3] {
        let wishes = &self.shape.layers;
        let mut masters = vec![1; wishes.len()];
        masters[0] = wishes.iter().sum::<u32>() - (wishes.len() as u32 - 1);
        let lasts = masters.iter().rev().copied().collect();
        [masters, lasts, wishes.clone()]
    }

    /// Makes what is to come once it can.
    fn change(&mut self) {
        if let Some((layers, life, end)) = &self.leaving {
            if self.master.is_handed_over(self.now() > *end) {
                let (layers, life) = (layers.clone(), *life);
                self.leaving = None;
                self.rejoin(layers, life);
            }
            return;
        }
        if self.coming.is_empty() || !self.master.hold() {
            return;
        }
        match self.coming.pop_front() {
            Some(Change::Layers(n_layers)) => {
                self.master.resplit(&Shape { layers: n_layers, ..self.master.shape().clone() });
            }
            Some(Change::Nodes(seed, life)) => {
                let layers = self.draw_members(&mut Dice::new(seed));
                let after = Shape { layers, ..self.shape.clone() };
                match self.shape.is_left_for(&after) && self.master.hand_over(&self.shape, &after) {
                    true => self.leaving = Some((after.layers, life, self.now() + HAND_OVER_US)),
                    false => self.rejoin(after.layers, life),
                }
            }
            None => {}
        }
    }

    /// Makes a ring of the nodes that get layers, so many each, and tells the live workers: they start again,
    /// with their KV.
    fn rejoin(&mut self, n_layers: Vec<u32>, life: u64) {
        self.shape.layers = n_layers;
        for index in 1..self.shape.layers.len() {
            self.tell(index, life);
        }
        self.master.rejoin(&self.shape);
    }

    /// Tells a worker of the ring, if it is alive and does not know.
    fn tell(&mut self, index: usize, life: u64) {
        if self.told[index - 1].layers == self.shape.layers {
            return;
        }
        if let Some(worker) = self.workers[index - 1].take() {
            self.told[index - 1] = self.shape.clone();
            self.network.stop(index);
            self.start(index, life, worker.into_held());
        }
    }

    /// Kills the worker at `index` of the ring; `false` if that is dead.
    fn kill(&mut self, index: usize) -> bool {
        self.network.stop(index);
        self.workers[index - 1].take().is_some()
    }

    /// Makes the node at `index` lose its KV, if it is alive.
    fn lose_kv(&mut self, index: usize) {
        match index.checked_sub(1) {
            None => self.master.lose_kv(),
            Some(index) => self.workers[index].iter_mut().for_each(WorkerNode::lose_kv),
        }
    }

    /// Starts it again as a new process, the `life`-th, that does what it was told last.
    fn restart(&mut self, index: usize, life: u64) {
        self.start(index, life, Held::default());
    }

    fn start(&mut self, index: usize, life: u64, held: Held) {
        let told = &self.told[index - 1];
        let worker = WorkerNode::new(&self.network, told, index, life, (true, held));
        self.workers[index - 1] = Some(worker);
    }

    /// Latest notices of the master.
    fn told_last(&self) -> &[Notice] {
        let told = self.master.notices();
        &told[told.len().saturating_sub(8)..]
    }

    /// Lets all nodes do their current work; `Some` once all streams are answered.
    fn turn(&mut self) -> Option<Vec<Vec<u32>>> {
        let now = self.network.now();
        for worker in self.workers.iter_mut().flatten() {
            worker.turn(now);
        }
        self.change();
        self.master.turn(now);
        self.check_memory();
        self.master.answers()
    }

    /// Asserts the bound on a node's memory, which follows from the ring's sizes: its links' banks, and a few
    /// batches and each stream's tokens in the machines. Vectors that grow as they are used may have room for
    /// twice as much.
    fn check_memory(&mut self) {
        let shape = &self.shape;
        let [batch, ctx] = [usize::from(shape.max_batch).max(4), shape.ctx_len as usize];
        let batches = 2 * (2 * shape.layers.len() + 8) * batch * (size_of::<FrameSpan>() + 4);
        let tokens = shape.prompts.len() * ctx * 4;
        let machine = batches + tokens + MACHINE_BYTES;
        let workers = self.workers.iter_mut().flatten().map(WorkerNode::memory);
        for Memory { banks, held, heap } in workers.chain([self.master.memory()]) {
            assert_eq!(banks, 2 * N_BANKS * (CHUNKS_MAX * DATAGRAM_BYTES).next_multiple_of(64));
            assert!(held <= 2 * N_BANKS, "{held} frames held");
            assert!(heap <= machine, "{heap} bytes kept, {machine} at most");
        }
    }

    /// Goes on until all streams are answered, or until `limit`.
    fn run_to(&mut self, limit: Micros) -> Option<Vec<Vec<u32>>> {
        loop {
            if let Some(answers) = self.turn() {
                return Some(answers);
            }
            if self.network.now() >= limit {
                return None;
            }
            let busy = self.workers.iter().flatten().map(WorkerNode::busy_until);
            let wake = busy.chain([self.master.busy_until()]).flatten().min();
            self.network.step_to(wake.map_or(limit, |wake| wake.min(limit)));
        }
    }

    /// The tokens that one node would have given.
    fn wanted(&self) -> Vec<Vec<u32>> {
        nodes::reference(&self.shape)
    }

    /// Whether no node has computed a position twice.
    fn has_computed_once(&self) -> bool {
        let mut batches: Vec<(usize, u32)> =
            self.log().iter().map(|(node, pos, ..)| (*node, *pos)).collect();
        let n = batches.len();
        batches.sort_unstable();
        batches.dedup();
        n == batches.len()
    }

    /// When each batch began to be computed, by node: the order of events.
    fn log(&self) -> Vec<(usize, u32, Micros, Micros)> {
        let workers = self.workers.iter().flatten().flat_map(|worker| worker.log().iter().copied());
        self.master.log().iter().copied().chain(workers).collect()
    }
}

/// Has a ring form and answer on such a network.
///
/// # Panics
/// If it takes longer, or the tokens are wrong.
pub(super) fn check(seed: u64, faults: &Faults, most_us: Micros) {
    let mut shape = Scenario::quiet(2 + seed as usize % 4).shape;
    (shape.seed, shape.has_key) = (seed, seed.is_multiple_of(2));
    let mut ring = Ring::new(shape, faults.clone());
    let begun = ring.now();
    let answers = ring.run_to(begun + most_us);
    let told = ring.told_last();
    assert_eq!(answers, Some(ring.wanted()), "{faults:?}, seed {seed}, after {told:?}");
}

#[test]
fn a_quiet_ring_of_any_size_gives_the_tokens_of_one_node() {
    for n_nodes in 2..=8 {
        let mut ring = Ring::new(Scenario::quiet(n_nodes).shape, Faults::NONE);
        let limit = ring.now() + Duration::from_secs(60).as_micros() as u64;
        assert_eq!(ring.run_to(limit), Some(ring.wanted()), "{n_nodes} nodes");
    }
}

#[test]
fn a_node_in_the_middle_that_is_missing_is_named() {
    let mut ring = Ring::new(Scenario::quiet(5).shape, Faults::NONE);
    ring.kill(2);
    let limit = ring.now() + Duration::from_secs(10).as_micros() as u64;
    assert_eq!(ring.run_to(limit), None);
    let waiting = |notice: &&Notice| matches!(notice, Notice::Waiting { .. });
    let told: Vec<&Notice> = ring.master.notices().iter().filter(waiting).collect();
    let what = "waiting for node2 (10.0.0.2:9999)".to_owned();
    assert_eq!(told, [&Notice::Waiting { what, missing: vec!["node2".to_owned()] }]);
    ring.restart(2, 1);
    assert_eq!(
        ring.run_to(limit + Duration::from_secs(60).as_micros() as u64),
        Some(ring.wanted())
    );
}

#[test]
fn nodes_take_other_layers_while_streams_go_on() {
    let second = Duration::from_secs(1).as_micros() as u64;
    for n_nodes in 2..=5 {
        let mut ring = Ring::with_one_stream(n_nodes);
        assert_eq!(ring.run_to(ring.now() + second / 10), None);
        for split in ring.splits() {
            ring.coming.push_back(Change::Layers(split));
            assert_eq!(ring.run_to(ring.now() + second / 10), None, "{n_nodes} nodes");
        }
        assert_eq!(ring.run_to(ring.now() + 600 * second), Some(ring.wanted()), "{n_nodes} nodes");
        // The KV has moved with the layers.
        assert!(ring.has_computed_once(), "{n_nodes} nodes");
        assert_eq!(ring.master.setbacks(), &Setbacks::default(), "{n_nodes} nodes");
    }
}

/// Batches of several streams are under way when the layers move, and moves begin while others are under way.
#[test]
fn a_ring_that_gets_other_layers_again_and_again_loses_and_waits_for_nothing() {
    for n_nodes in 2..=5 {
        let mut shape = Scenario::quiet(n_nodes).shape;
        shape.n_predict = 40;
        let mut ring = Ring::new(shape, Faults::NONE);
        for split in ring.splits().iter().cycle().take(12) {
            ring.coming.push_back(Change::Layers(split.clone()));
            assert_eq!(ring.run_to(ring.now() + 20_000), None, "{n_nodes} nodes");
        }
        let answers = ring.run_to(ring.now() + 600_000_000);
        assert_eq!(answers, Some(ring.wanted()), "{n_nodes} nodes");
        assert_eq!(ring.master.setbacks(), &Setbacks::default(), "{n_nodes} nodes");
    }
}

#[test]
fn nodes_that_leave_hand_over_what_they_have_stored() {
    let second = Duration::from_secs(1).as_micros() as u64;
    for n_nodes in 2..=5 {
        let mut ring = Ring::with_one_stream(n_nodes);
        assert_eq!(ring.run_to(ring.now() + second), None);
        let after = |seed: u64| {
            let layers = ring.draw_members(&mut Dice::new(seed));
            Shape { layers, ..ring.shape.clone() }
        };
        let seed = (0..).find(|seed| ring.shape.is_left_for(&after(*seed)));
        ring.coming.extend(seed.map(|seed| Change::Nodes(seed, 1)));
        assert_eq!(ring.run_to(ring.now() + 600 * second), Some(ring.wanted()), "{n_nodes} nodes");
        assert!(ring.has_computed_once(), "{n_nodes} nodes");
    }
}
