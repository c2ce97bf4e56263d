//! A simulated master and workers: the real machines over a stand-in for layers.

mod texts;

use std::ops::Range;
use std::time::Duration;

use super::layers::{Layers, MasterRows, PAGE, ROOM, Stored};
use super::{Memory, N_BANKS, Shape};
use crate::group::Notice;
use crate::ring::{
    Address, Held, Hop, Master, MasterOptions, MasterStep, Member, Misfits, Setbacks, Topology,
    Worker, WorkerStep,
};
use crate::simulation::mix;
use crate::transport::fault::Dice;
use crate::transport::link::{LinkConfig, Links};
use crate::transport::loopback::{self, Loopback, Network};
use crate::transport::{Endpoint, Micros};
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{
    FrameKeep, FramePage, FrameSpan, FrameWants, MachineReading, NodeLine, Sizes, Status, Streams,
    WorkFigures,
};
use crate::wire::hello::{self, RingInfo};
use crate::wire::seal::Key;
use crate::wire::{Dtype, KvType};

/// When a node began and ended to compute a batch: node, first position, begin, end.
pub(super) type Log = Vec<(usize, u32, Micros, Micros)>;

fn embed(token: u32) -> u64 {
    mix(77, token.into())
}

fn choose(value: u64) -> u32 {
    (value % 1000) as u32
}

/// The tokens that a node with all layers gives.
pub(super) fn reference(shape: &Shape) -> Vec<Vec<u32>> {
    let answer = |prompt: &Vec<u32>| {
        let n_layers = shape.layers.iter().sum();
        let mut node = Layers::new(0..0, 4);
        let n_pages = shape.ctx_len.div_ceil(PAGE as u32);
        node.open(0..n_layers, n_pages as usize, 1);
        for index in 0..n_pages {
            node.set_page(&FramePage { stream: 0, index, to: (index, None), from: None });
        }
        let mut answer = Vec::new();
        let mut tokens = prompt.clone();
        for pos in 0.. {
            node.x = vec![embed(tokens[pos])];
            node.run(&[FrameSpan {
                stream: 0,
                wants: FrameWants::None,
                pos: pos as u32,
                n_rows: 1,
                is_long: false,
                state: [None; 2],
            }]);
            let last = node.x[0];
            if pos + 1 >= prompt.len() {
                answer.push(choose(last));
                tokens.push(choose(last));
            }
            if answer.len() == shape.n_predict {
                break;
            }
        }
        answer
    };
    shape.prompts.iter().map(answer).collect()
}

fn config(shape: &Shape, index: usize, life: u64) -> LinkConfig {
    let node = RingInfo {
        model: 1,
        dim: shape.dim,
        n_layers: shape.layers.iter().sum(),
        kv_dim: 1,
        vocab_size: 1000,
        held: 0..shape.layers.iter().sum(),
        // The master may give the nodes others.
        wish: None,
        dtype: Dtype::F32,
        is_master: index == 0,
        name: hello::name(&name(index)),
        ..RingInfo::default()
    };
    let key = shape.has_key.then(|| Key::new([9; 32]));
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&mix(shape.seed, (index as u64) << 32 | life).to_le_bytes());
    let prev = Some(hello::name(&name(shape.prev_of(index))));
    let next = Some(hello::name(&name(shape.next_of(index))));
    LinkConfig { prev, next, n_banks: N_BANKS, ..LinkConfig::new(node, key, seed) }
}

fn memory(links: &Links, heap: usize) -> Memory {
    Memory { banks: links.bank_bytes(), held: links.held(), heap }
}

fn name(index: usize) -> String {
    format!("node{index}")
}

fn line(shape: &Shape, index: usize, layers: Range<u32>) -> NodeLine {
    NodeLine {
        name: hello::name(&name(index)),
        isa: heapless::String::new(),
        layers,
        held: 0..shape.layers.iter().sum(),
        bytes_per_token: 0,
        nodes: 1,
        threads: 1,
        status: Status::Ready,
        streams: Streams::Empty,
        keeps: false,
        ..NodeLine::default()
    }
}

/// The ring file of `n` nodes.
fn members(n: usize) -> Vec<Member> {
    let line = |i: usize| format!("{} 10.0.0.{i} {i}..{}\n", name(i), i + 1);
    let text: String = (0..n).map(line).collect();
    Topology::parse(&text).expect("it is a ring file").members().to_vec()
}

/// Start and end of a node's computation.
struct Busy {
    since: Micros,
    until: Micros,
}

pub(super) struct WorkerNode {
    index: usize,
    shape: Shape,
    endpoint: Loopback,
    worker: Worker,
    stored: Stored,
    /// Step that it works on.
    step: WorkerStep,
    busy: Option<Busy>,
    /// Whether it has lost what it had stored, and does not know yet.
    is_lost: bool,
    log: Log,
}

impl WorkerNode {
    pub(super) fn new(
        network: &Network,
        shape: &Shape,
        index: usize,
        life: u64,
        (is_restart, held): (bool, Held),
    ) -> WorkerNode {
        let next = Some(shape.next_of(index));
        let config = config(shape, index, life);
        let endpoint = match is_restart {
            true => network.restart(index, config, next),
            false => network.endpoint(config, next),
        };
        let n_layers = shape.layers.iter().sum();
        let layers = shape.layers_of(index);
        WorkerNode {
            index,
            shape: shape.clone(),
            endpoint,
            worker: Worker::new(
                (line(shape, index, layers.clone()), Some(layers.clone())),
                (shape.dim, n_layers),
                FRAME_MAX,
            ),
            stored: Stored::new(index, shape.files.clone(), Layers::new(layers, shape.dim), held),
            step: WorkerStep::Idle,
            busy: None,
            is_lost: false,
            log: Vec::new(),
        }
    }

    pub(super) fn busy_until(&self) -> Option<Micros> {
        self.busy.as_ref().map(|busy| busy.until)
    }

    /// Makes it lose its KV, which it finds out when it needs that.
    pub(super) fn lose_kv(&mut self) {
        self.is_lost = true;
    }

    /// The stored positions, for the node that takes its place.
    pub(super) fn into_held(mut self) -> Held {
        if self.is_lost {
            self.stored.lose_kv();
        }
        let Stored { mut layers, mut held, .. } = self.stored;
        held.set_aside(layers.layers.clone(), ROOM, &mut layers);
        held
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    pub(super) fn memory(&mut self) -> Memory {
        memory(self.endpoint.links(), self.worker.heap_bytes())
    }

    pub(super) fn turn(&mut self, now: Micros) {
        serve(&mut self.endpoint);
        if let Some(Busy { since, until }) = self.busy.take_if(|busy| busy.until <= now) {
            self.work(since, until);
        }
        if self.busy.is_some() {
            return;
        }
        loop {
            let step = self.worker.poll(now, &mut Hop::new(&mut self.endpoint), &mut self.stored);
            let took_us = match step {
                WorkerStep::Idle => break,
                WorkerStep::Open => self.packing_us(),
                WorkerStep::Fetch => 0,
                WorkerStep::Compute => {
                    let spans = self.worker.spans();
                    let rows = spans.iter().map(|span| usize::from(span.n_rows)).sum();
                    self.shape.cost.of(self.stored.layers.layers.len() as u64, rows)
                }
            };
            self.step = step;
            if took_us > 0 {
                self.busy = Some(Busy { since: now, until: now + took_us });
                break;
            }
            self.work(now, now);
        }
        while self.worker.notice().is_some() {}
        serve(&mut self.endpoint);
    }
}

impl WorkerNode {
    /// The layers that an OPEN asks for.
    fn asked(&self) -> Range<u32> {
        self.worker.opening().layers.clone().expect("simulated nodes have wishes")
    }

    /// Time to get ready: layers that are new are packed.
    fn packing_us(&self) -> u64 {
        let own = &self.stored.layers.layers;
        let n_new = self.asked().filter(|layer| !own.contains(layer)).count() as u64;
        n_new * self.shape.packing_us
    }

    /// The work of the last step is done.
    fn work(&mut self, since: Micros, until: Micros) {
        let is_lost = std::mem::take(&mut self.is_lost);
        if is_lost {
            self.stored.lose_kv();
        }
        if self.step == WorkerStep::Open {
            let (layers, opening) = (self.asked(), self.worker.opening());
            let streams = self.stored.open(&layers, opening.from, &opening.sizes);
            let line = line(&self.shape, self.index, layers);
            return self.worker.opened(NodeLine { streams, ..line }, !is_lost);
        }
        if is_lost {
            return self.worker.discard();
        }
        if self.step == WorkerStep::Fetch {
            let (epoch, sizes) = self.worker.epoch();
            let n_read = self.stored.read_pages(self.worker.fetch(), (epoch, &sizes));
            return self.worker.fetched(n_read);
        }
        self.log.push((self.index, self.worker.spans()[0].pos, since, until));
        self.stored.layers.run(self.worker.spans());
        let (epoch, sizes) = self.worker.epoch();
        self.stored.held.computed(epoch, &sizes);
        self.worker.computed(WorkFigures::new((until - since) as u32, MachineReading::default()));
    }
}

/// One stream as its user drives it.
struct Lane {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    /// Number of ids of both that are submitted.
    n_submitted: usize,
    is_waiting: bool,
    /// Pages of the stream, the number that the nodes know of, and the number that is kept.
    pages: Vec<u32>,
    n_told: usize,
    n_kept: usize,
    /// Whether it has been asked what files have of its text.
    has_asked: bool,
}

pub(super) struct MasterNode {
    shape: Shape,
    n_predict: usize,
    max_batch: usize,
    endpoint: Loopback,
    master: Master,
    stored: Stored,
    sizes: Sizes,
    /// Values of the last result.
    returned: Vec<u64>,
    lanes: Vec<Lane>,
    /// Pages that no stream has.
    free: Vec<u32>,
    /// Pages that are full and not kept yet.
    keeps: Vec<FrameKeep>,
    /// The stream whose text's pages are read.
    reading: Option<usize>,
    /// Ids that were read.
    pub(super) n_read: usize,
    dice: Dice,
    busy: Option<Busy>,
    is_lost: bool,
    log: Log,
    notices: Vec<Notice>,
}

impl MasterNode {
    pub(super) fn new(network: &Network, shape: &Shape) -> MasterNode {
        let next = (shape.layers.len() > 1).then_some(1);
        let lane = |prompt: &Vec<u32>| Lane {
            prompt: prompt.clone(),
            answer: Vec::new(),
            n_submitted: 0,
            is_waiting: false,
            pages: Vec::new(),
            n_told: 0,
            n_kept: 0,
            has_asked: shape.files.is_none(),
        };
        let n_streams = shape.prompts.len() as u16;
        // Some more, to copy to.
        let n_pages = u32::from(n_streams) * shape.ctx_len.div_ceil(PAGE as u32) + 2;
        let mut layers = Layers::new(0..0, shape.dim);
        layers.open(shape.layers_of(0), n_pages as usize, n_streams.into());
        let sizes = Sizes {
            ctx_len: shape.ctx_len,
            n_streams,
            n_pages,
            max_batch: shape.max_batch,
            max_logits: n_streams,
            kv: KvType::F16,
            wire: Dtype::F32,
            dim: shape.dim,
        };
        let master = Master::new(MasterOptions {
            line: line(shape, 0, shape.layers_of(0)),
            sizes,
            n_layers: shape.layers.iter().sum(),
            frame_bytes: FRAME_MAX,
            n_nodes: shape.layers.len(),
            members: members(shape.layers.len()),
            timeout_us: None,
            misfits: Misfits::End,
            epoch: mix(shape.seed, 5) as u32,
        });
        MasterNode {
            shape: shape.clone(),
            n_predict: shape.n_predict,
            max_batch: shape.max_batch.into(),
            endpoint: network.endpoint(config(shape, 0, 0), next),
            master,
            stored: Stored::new(0, shape.files.clone(), layers, Held::default()),
            sizes,
            returned: Vec::new(),
            lanes: shape.prompts.iter().map(lane).collect(),
            free: (0..n_pages).collect(),
            keeps: Vec::new(),
            reading: None,
            n_read: 0,
            dice: Dice::new(shape.seed ^ 0x9a9e),
            busy: None,
            is_lost: false,
            log: Vec::new(),
            notices: Vec::new(),
        }
    }

    pub(super) fn busy_until(&self) -> Option<Micros> {
        self.busy.as_ref().map(|busy| busy.until)
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// The ring as it is.
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Makes it lose its KV, which it finds out when it needs that.
    pub(super) fn lose_kv(&mut self) {
        self.is_lost = true;
    }

    /// Counts of what its ring lost or put off.
    pub(super) fn setbacks(&self) -> &Setbacks {
        self.master.setbacks()
    }

    /// Whether it can become another ring now.
    pub(super) fn hold(&mut self) -> bool {
        self.master.hold()
    }

    /// Takes its layers of `shape`; what it computes is done again.
    fn take(&mut self, shape: &Shape) -> NodeLine {
        self.shape = shape.clone();
        self.busy = None;
        let (from, layers) = (self.master.begin_move(), shape.layers_of(0));
        if std::mem::take(&mut self.is_lost) {
            self.stored.lose_kv();
        }
        let streams = self.stored.open(&layers, from, &self.sizes);
        NodeLine { streams, ..line(shape, 0, layers) }
    }

    /// Gives the nodes other layers.
    pub(super) fn resplit(&mut self, shape: &Shape) {
        let shares = (0..shape.layers.len()).map(|index| shape.layers_of(index)).collect();
        let line = self.take(shape);
        self.master.assign(line, shares);
    }

    /// Has the nodes of `before` that are not in `after` hand over their KV, if they can.
    pub(super) fn hand_over(&mut self, before: &Shape, after: &Shape) -> bool {
        let can_be = self.master.is_quiet();
        if can_be {
            let line = self.take(after);
            let shares = before.members().map(|index| after.layers_of(index)).collect();
            self.master.hand_over(line, shares);
        }
        can_be
    }

    /// Whether that is done, or it is too late.
    pub(super) fn is_handed_over(&self, is_late: bool) -> bool {
        self.master.is_handed_over() || (is_late && !self.master.is_moving())
    }

    /// Has these nodes for a ring from now on.
    pub(super) fn rejoin(&mut self, shape: &Shape) {
        let line = self.take(shape);
        self.endpoint.expect_next(Some(hello::name(&name(shape.next_of(0)))));
        self.endpoint.set_next(loopback::address(shape.next_of(0)));
        let prev = self.endpoint.links().prev.as_mut().expect("a ring's node has one before it");
        prev.expect(hello::name(&name(shape.prev_of(0))));
        let member = |index| {
            let Range { start, end } = shape.layers_of(index);
            let address = Address { host: format!("10.0.0.{index}"), port: 9999 };
            Member {
                name: name(index),
                address,
                layers: start as usize..end as usize,
                threads: None,
            }
        };
        let members = shape.members().map(member).collect();
        self.master.rejoin(line, members);
    }

    /// Notices to the user so far.
    pub(super) fn notices(&self) -> &[Notice] {
        &self.notices
    }

    pub(super) fn memory(&mut self) -> Memory {
        memory(self.endpoint.links(), self.master.heap_bytes())
    }

    pub(super) fn answers(&self) -> Option<Vec<Vec<u32>>> {
        let is_done = self.lanes.iter().all(|lane| lane.answer.len() == self.n_predict);
        is_done.then(|| self.lanes.iter().map(|lane| lane.answer.clone()).collect())
    }

    pub(super) fn turn(&mut self, now: Micros) {
        serve(&mut self.endpoint);
        if let Some(Busy { since, until }) = self.busy.take_if(|busy| busy.until <= now) {
            self.computed(since, until);
        }
        if self.busy.is_some() {
            return;
        }
        loop {
            if self.master.has_found() {
                self.go_on_from_files();
            }
            while self.master.has_room() && self.submit() {}
            let mut rows = MasterRows(&mut self.stored, &mut self.returned);
            match self.master.poll(now, &mut Hop::new(&mut self.endpoint), &mut rows) {
                MasterStep::Idle => break,
                MasterStep::Failed(error) => panic!("{error}"),
                MasterStep::Compute => {
                    let rows = self.master.tokens().len();
                    let n_layers = self.stored.layers.layers.len() as u64;
                    let until = now + self.shape.cost.of(n_layers, rows);
                    self.busy = Some(Busy { since: now, until });
                    break;
                }
                MasterStep::Fetch if std::mem::take(&mut self.is_lost) => {
                    self.stored.lose_kv();
                    self.master.begin_anew();
                }
                MasterStep::Fetch => {
                    let (wanted, epoch) = (self.master.fetch(), self.master.epoch());
                    let asked = (wanted, wanted.pages.len());
                    let n_read = self.stored.read_pages(asked, (epoch, &self.sizes));
                    self.master.fetched(n_read);
                }
                MasterStep::Done => self.collect(),
                MasterStep::Lost => self.begin_streams_anew(),
            }
        }
        while let Some(notice) = self.master.notice() {
            self.notices.push(notice);
        }
        serve(&mut self.endpoint);
    }

    /// A batch has been computed.
    fn computed(&mut self, since: Micros, until: Micros) {
        if std::mem::take(&mut self.is_lost) {
            self.stored.lose_kv();
            return self.master.begin_anew();
        }
        self.log.push((0, self.master.spans()[0].pos, since, until));
        let layers = &mut self.stored.layers;
        layers.x = self.master.tokens().iter().map(|&token| embed(token)).collect();
        layers.run(self.master.spans());
        let epoch = self.master.epoch();
        self.stored.held.computed(epoch, &self.sizes);
        self.master.computed(WorkFigures::new((until - since) as u32, MachineReading::default()));
    }

    fn collect(&mut self) {
        let mut values = self.returned[self.master.result_row()..].iter();
        for span in self.master.spans() {
            let lane = &mut self.lanes[usize::from(span.stream)];
            assert!(lane.is_waiting);
            lane.is_waiting = false;
            let value = values.next().expect("each span wants one row");
            lane.answer.push(choose(*value));
        }
        self.master.finish();
    }

    /// Submits the next part of one stream's text.
    fn submit(&mut self) -> bool {
        let n_predict = self.n_predict;
        let is_ready = |(stream, lane): &(usize, &Lane)| {
            let is_reading = self.reading == Some(*stream);
            let may_ask = lane.has_asked || self.reading.is_none();
            !lane.is_waiting && !is_reading && may_ask && lane.answer.len() < n_predict
        };
        let Some((stream, _)) = self.lanes.iter().enumerate().find(is_ready) else { return false };
        if !self.lanes[stream].has_asked {
            self.ask_files(stream);
            return true;
        }
        self.keep_pages();
        let lane = &mut self.lanes[stream];
        let n_ids = lane.prompt.len() + lane.answer.len();
        let (pos, end) = (lane.n_submitted, n_ids.min(lane.n_submitted + self.max_batch));
        let ids = lane.prompt.iter().chain(&lane.answer).skip(pos).take(end - pos);
        let tokens: Vec<u32> = ids.copied().collect();
        (lane.n_submitted, lane.is_waiting) = (end, end == n_ids);
        let wants = if lane.is_waiting { FrameWants::Last } else { FrameWants::None };
        let pages = self.change_pages(stream, pos..end);
        let (stream, pos, n_rows) = (stream as u16, pos as u32, tokens.len() as u16);
        let span = FrameSpan { stream, wants, pos, n_rows, is_long: false, state: [None; 2] };
        self.master.submit((&[span], &tokens), (&self.keeps, &pages));
        self.keeps.clear();
        true
    }
}

fn serve(endpoint: &mut Loopback) {
    endpoint.service(Duration::ZERO).expect("a loopback does not fail");
}
