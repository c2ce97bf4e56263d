//! The master's loop: batches go in, rows that want logits come back.

mod backend;
mod changes;
mod prefixes;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use super::NodeError;
use super::frames;
use super::link::{carrier_notice, line, serve};
use super::node::Node;
use super::resplit::{Prepare, ResplitError, check_fixed, check_split, tell_unpacked};
use super::returned::{MasterRows, Returned};
use super::streams::{self, StageParts};
use crate::engine::error::StepError;
use crate::engine::own_stage::OwnStage;
use crate::engine::weights::{Listener, WeightsPlace};
use crate::model::{
    Batch, ForwardError, KV_PAGE, PackReport, Share, Span, Stage, StageInfo, Transformer,
};
use crate::ring::{Held, Hop, Master, MasterOptions, MasterStep, Member, Notice, Setbacks, Times};
use crate::transport::Endpoint;
use crate::wire::Dtype;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{
    BoardsReport, FrameKeep, FramePage, FrameSpan, MachineReading, NodeLine, Sizes, WorkFigures,
};
use crate::wire::hello::Name;

/// Longest wait for the link before the caller's wish is asked again.
const WAIT: Duration = Duration::from_millis(100);
/// Longest wait for the link while the master waits for something else, too.
const LOOKED_EVERY: Duration = Duration::from_millis(1);
/// How long a leaving master tries to tell the others.
const FAREWELL: Duration = Duration::from_millis(100);

/// Told what happens to the ring, and its nodes as far as they are known.
pub type Tell = Box<dyn FnMut(&Notice, &[NodeLine]) + Send>;

/// Reads the figures of the master's machine, like a worker's meter.
pub type MasterMeter = Box<dyn Fn(bool) -> MachineReading + Send>;

/// Other nodes for a ring that runs.
pub struct OtherNodes {
    /// All of them with their layers, the master first.
    pub members: Vec<Member>,
    /// Where the second of them is.
    pub next: SocketAddr,
    /// Tells them. Meanwhile nothing is sent to the nodes there were.
    pub tell: Box<dyn FnOnce() -> Result<(), String> + Send>,
    /// Hears whether the master has its layers, and the others know of theirs.
    pub done: Sender<Result<(), String>>,
}

/// Other layers for the nodes of a ring that runs.
pub struct OtherLayers {
    /// In the ring's order, the master's first.
    pub layers: Vec<Range<usize>>,
    /// Settled by the first to act: the master, which begins the change, or the caller, which withdraws it.
    pub is_settled: Arc<AtomicBool>,
    /// Hears what came of it.
    pub done: Sender<Result<(), ResplitError>>,
}

/// A change to a running ring.
pub enum Change {
    /// A ring of other nodes.
    Nodes(OtherNodes),
    /// Other layers for the nodes that there are.
    Layers(OtherLayers),
}

/// How a master hears of changes.
pub struct ChangesBy {
    /// They come from here.
    pub asked: Receiver<Change>,
    /// How many get other nodes ready: meanwhile those that are away are waited for.
    pub n_coming: Arc<AtomicUsize>,
    /// Where the weights of the master's other layers are kept.
    pub place: WeightsPlace,
    /// Whether such a change leaves out nodes that cannot take their part. Else the ring cannot be opened.
    pub leaves_out: bool,
}

/// How a master takes part in a ring.
pub struct RingOptions {
    /// Name of the node.
    pub name: String,
    /// Most nodes of the ring.
    pub n_nodes: usize,
    /// How activations travel.
    pub wire: Dtype,
    /// The nodes as far as they are known, the master first.
    pub members: Vec<Member>,
    /// Longest time without progress; `None` to wait for ever.
    pub timeout: Option<Duration>,
    /// First epoch, a random number.
    pub epoch: u32,
    /// Asked while waiting; `true` ends the wait.
    pub is_interrupted: fn() -> bool,
    /// Told what happens to the ring.
    pub tell: Tell,
    /// Tells what the machine has spent.
    pub meter: MasterMeter,
    /// How it hears of changes, if there may be any.
    pub changes: Option<ChangesBy>,
}

/// How a node makes other layers ready, and the check that may end that.
type Means<'a> = (&'a Prepare<'a, Transformer>, &'a dyn Fn() -> bool);

/// Condition that ends a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// The ring is open.
    Open,
    /// Leaving nodes have handed their KV over, or the deadline has passed.
    HandedOver(Instant),
    /// No batch is in flight.
    Still,
    /// A batch has room, and no other can be computed meanwhile.
    Room,
    /// A FETCH has room.
    Fetch,
    /// The FETCH is answered.
    Fetched,
    /// The oldest batch that wants logits is back.
    Done,
}

/// The ring as the master's engine uses it.
pub struct RingMaster {
    node: Node,
    master: Master,
    /// Contents of the next batch.
    next: NextBatch,
    /// The batch being computed.
    batch: Batch,
    results: Results,
    /// Whether what was submitted is lost, and what nodes had stored.
    is_lost: bool,
    user: User,
    changes: Changes,
    /// This node's stored positions per stream.
    held: Held,
    sizes: Sizes,
    n_nodes: usize,
}

/// Everything that the next batch takes round the ring.
struct NextBatch {
    spans: Vec<FrameSpan>,
    /// Pages that streams have from it on.
    pages: Vec<FramePage>,
    /// Pages of prompts that are to be kept ahead of it.
    keeps: Vec<FrameKeep>,
    /// Which node keeps none, as was told last.
    unkept: Option<Name>,
}

/// Results that have arrived.
struct Results {
    returned: Returned,
    /// Spans of the last result.
    spans: Vec<Span>,
    /// Whether that result has been given to its user.
    is_taken: bool,
}

/// The master's user: what it is called, and what it is told and asked.
struct User {
    name: String,
    is_interrupted: fn() -> bool,
    tell: Tell,
    /// Notices of the carrier that have been told.
    n_told: usize,
    meter: MasterMeter,
}

/// Changes that are asked for or under way.
struct Changes {
    /// Source of changes, if there may be any.
    by: Option<ChangesBy>,
    /// A change that waits until batches are answered.
    waiting: Option<Change>,
}

impl RingMaster {
    /// A master that runs `stage`, the first share, over `endpoint`.
    ///
    /// # Errors
    /// If the model is too wide for frames, or the system refuses a thread.
    pub fn new(
        stage: &dyn Stage,
        endpoint: Box<dyn Endpoint>,
        mut options: RingOptions,
    ) -> Result<RingMaster, NodeError> {
        let StageInfo { plan, header, .. } = stage.about();
        let sizes = frames::sizes(plan, header.dim, options.wire).ok_or(NodeError::Counts)?;
        if !crate::ring::fits(&sizes, FRAME_MAX) {
            return Err(NodeError::Width);
        }
        let master = Master::new(MasterOptions {
            line: line(stage, &options.name),
            sizes,
            n_layers: header.n_layers as u32,
            frame_bytes: FRAME_MAX,
            n_nodes: options.n_nodes,
            members: std::mem::take(&mut options.members),
            leaves_out: options.changes.as_ref().is_some_and(|by| by.leaves_out),
            timeout_us: options.timeout.map(|timeout| timeout.as_micros() as u64),
            epoch: options.epoch,
        });
        let n_rows = master.n_result_rows();
        // Those that there are, the caller has told.
        let n_told = endpoint.notices().len();
        let RingOptions { name, wire, is_interrupted, tell, meter, changes, n_nodes, .. } = options;
        let n_pages = plan.ctx_len.div_ceil(KV_PAGE) + plan.n_streams;
        Ok(RingMaster {
            node: Node::new(endpoint, None)?,
            master,
            next: NextBatch {
                spans: Vec::with_capacity(plan.max_batch),
                pages: Vec::with_capacity(n_pages),
                keeps: Vec::new(),
                unkept: None,
            },
            batch: Batch::with_capacity(plan.max_batch),
            results: Results {
                returned: Returned::new(n_rows, header.dim, wire),
                spans: Vec::with_capacity(plan.max_batch),
                is_taken: false,
            },
            is_lost: false,
            user: User { name, is_interrupted, tell, n_told, meter },
            changes: Changes { by: changes, waiting: None },
            held: Held::default(),
            sizes,
            n_nodes,
        })
    }

    /// Waits until the ring is complete.
    ///
    /// # Errors
    /// If the ring cannot open, or the caller withdraws.
    pub(in crate::engine) fn open(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        if !self.assemble(stage)? {
            self.master.begin_anew();
        }
        self.drive(stage, Goal::Open)
    }

    /// Waits until all boards of this node's place are there; `false` if their KV is lost.
    fn assemble(&mut self, stage: &mut OwnStage) -> Result<bool, StepError> {
        let (assembled, _) = self.node.compute(|| stage.assemble_team());
        let is_intact = assembled?;
        if !is_intact {
            self.held.clear();
        }
        Ok(is_intact)
    }

    /// Starts again after this node's place lost its KV: once all its boards are back, everything is
    /// recomputed.
    fn begin_anew(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        self.assemble(stage)?;
        self.master.begin_anew();
        Ok(())
    }

    /// Gives the nodes other layers, in the ring's order, this one's first, and waits until the ring is open
    /// with them; streams go on, and times start again. Returns the matrices packed on this node: `prepare`
    /// gets its weights ready.
    ///
    /// # Errors
    /// If the split is none of this ring, or a node cannot take its part: the ring is opened as it was
    /// before then. Or if the ring is lost.
    pub(in crate::engine) fn resplit(
        &mut self,
        stage: &mut OwnStage,
        layers: &[Range<usize>],
        prepare: &Prepare<'_, Transformer>,
    ) -> Result<Option<PackReport>, ResplitError> {
        self.check(stage, layers)?;
        // A move now would lose the batches in flight, which are then recomputed.
        if !self.master.hold() {
            self.drive(stage, Goal::Still).inspect_err(|_| self.master.go_on())?;
        }
        // Meanwhile the ring may have become another one.
        self.check(stage, layers).inspect_err(|_| self.master.go_on())?;
        let lines = self.lines().iter();
        let before: Vec<Range<usize>> =
            lines.map(|line| line.layers.start as usize..line.layers.end as usize).collect();
        let is_interrupted = self.user.is_interrupted;
        let assigned = self.assign(stage, layers, (prepare, &is_interrupted));
        let result = assigned.and_then(|report| {
            self.drive(stage, Goal::Open)?;
            self.start_times();
            Ok(report)
        });
        match &result {
            Err(e) if e.leaves_a_ring() => {
                self.assign(stage, &before, (prepare, &|| false))?;
                self.drive(stage, Goal::Open)?;
            }
            // The caller does not wait until it is open. Stopping a move under way would lose all KV: it
            // goes on.
            Err(ResplitError::Step(StepError::Interrupted)) if !self.master.is_moving() => {
                self.assign(stage, &before, (prepare, &|| false))?;
            }
            _ => {}
        }
        result
    }

    /// Whether `layers` are a split of the ring as it is.
    fn check(&self, stage: &OwnStage, layers: &[Range<usize>]) -> Result<(), ResplitError> {
        check_split(layers, self.lines().len(), stage.about().header.n_layers)?;
        check_fixed(self.lines(), layers)
    }

    /// Takes this node's part of `layers`, and begins to open the ring with them.
    fn assign(
        &mut self,
        stage: &mut OwnStage,
        layers: &[Range<usize>],
        means: Means<'_>,
    ) -> Result<Option<PackReport>, ResplitError> {
        let (report, line) = self.take_layers(stage, &layers[0], means)?;
        let assigned = layers.iter().map(|layers| layers.start as u32..layers.end as u32);
        self.master.assign(line, assigned.collect());
        Ok(report)
    }

    /// Makes this node's part ready, if it has changed; returns its line.
    fn take_layers(
        &mut self,
        stage: &mut OwnStage,
        layers: &Range<usize>,
        (prepare, is_interrupted): Means<'_>,
    ) -> Result<(Option<PackReport>, NodeLine), ResplitError> {
        let from = self.master.begin_move();
        self.assemble(stage)?;
        let StageInfo { share: own, plan, .. } = stage.about();
        let share = Share { layers: layers.clone(), has_ends: true };
        let mut report = None;
        if share != *own {
            let plan = *plan;
            if from.is_some() {
                streams::set_aside(&mut self.held, stage);
            }
            stage.set_share(share, plan).map_err(ResplitError::Start)?;
            let own = (streams::layers(stage), &self.sizes);
            self.held.restore(from, own, &mut StageParts(stage));
            let listener = Listener { tell: &tell_unpacked, is_interrupted };
            let prepared = self.node.prepare(|_| prepare(&mut stage.transformer, listener));
            report = prepared.map_err(ResplitError::Weights)?;
        }
        let said = streams::said(&self.held, from, &self.sizes);
        Ok((report, NodeLine { streams: said, ..line(stage, &self.user.name) }))
    }

    /// The nodes, the master first; empty before the ring is open.
    pub fn lines(&self) -> &[NodeLine] {
        self.master.lines()
    }

    /// Reports of places that are teams, about their boards.
    pub fn reports(&self) -> &[BoardsReport] {
        self.master.reports()
    }

    /// Where the time of decoded tokens went.
    pub fn times(&self) -> &Times {
        self.master.times()
    }

    /// Counts of losses, pauses and failures of the ring since it was formed; all are 0 if nothing failed.
    pub fn setbacks(&self) -> &Setbacks {
        self.master.setbacks()
    }

    /// Forgets the times so far.
    pub fn start_times(&mut self) {
        self.master.start_times();
    }

    /// Nodes that can compute at the same time.
    pub fn n_nodes(&self) -> usize {
        match self.lines().len() {
            0 => self.n_nodes,
            n => n,
        }
    }

    fn drive(&mut self, stage: &mut OwnStage, goal: Goal) -> Result<(), StepError> {
        self.drive_while(stage, goal, None)
    }

    /// Drives the ring until its goal is reached, or until the other wait is over.
    fn drive_while(
        &mut self,
        stage: &mut OwnStage,
        goal: Goal,
        is_waiting: Option<&dyn Fn() -> bool>,
    ) -> Result<(), StepError> {
        if std::mem::take(&mut self.results.is_taken) {
            self.master.finish();
        }
        let result = self.try_drive(stage, goal, is_waiting);
        if result == Err(StepError::Interrupted) {
            // A batch may come to nothing that was to compute what they hold.
            self.next.keeps.clear();
            self.master.forget_pending();
        }
        result
    }

    fn try_drive(
        &mut self,
        stage: &mut OwnStage,
        goal: Goal,
        is_waiting: Option<&dyn Fn() -> bool>,
    ) -> Result<(), StepError> {
        let wait = if is_waiting.is_some() { LOOKED_EVERY } else { WAIT };
        loop {
            if self.is_lost && matches!(goal, Goal::Room | Goal::Done) {
                self.is_lost = false;
                self.next.pages.clear();
                self.next.keeps.clear();
                return Err(StepError::Lost);
            }
            // The caller hears of it when it submits the next batch.
            if self.is_lost && matches!(goal, Goal::Fetch | Goal::Fetched) {
                return Err(StepError::Lost);
            }
            self.look_for_changes(stage);
            let step = self.poll(stage);
            while let Some(notice) = self.master.notice() {
                (self.user.tell)(&notice, self.master.lines());
            }
            match step {
                MasterStep::Compute => self.compute(stage)?,
                MasterStep::Fetch => self.fetch(stage),
                MasterStep::Lost => self.is_lost = true,
                // A finished batch also ends a wait for room: the caller collects it first.
                MasterStep::Done if matches!(goal, Goal::Room | Goal::Done) => {
                    return Ok(());
                }
                MasterStep::Failed(error) => return Err(StepError::Ring(error)),
                MasterStep::Idle | MasterStep::Done => {
                    let is_reached = match goal {
                        Goal::Open => self.master.is_open(),
                        Goal::HandedOver(end) => {
                            let is_late = !self.master.is_moving() && Instant::now() > end;
                            self.master.is_handed_over() || is_late
                        }
                        Goal::Still => self.master.hold(),
                        Goal::Room => self.master.has_room() && !self.master.is_eager(),
                        Goal::Fetch => self.master.has_room(),
                        Goal::Fetched => self.master.has_found(),
                        Goal::Done => is_waiting.is_some_and(|is_waiting| !is_waiting()),
                    };
                    if is_reached {
                        return Ok(());
                    }
                    if (self.user.is_interrupted)() {
                        return Err(StepError::Interrupted);
                    }
                    serve(&mut **self.node.lock(), wait);
                }
            }
        }
    }

    fn poll(&mut self, stage: &mut OwnStage) -> MasterStep {
        let mut endpoint = self.node.lock();
        serve(&mut **endpoint, Duration::ZERO);
        let mut rows =
            MasterRows { stage, returned: &mut self.results.returned, held: &mut self.held };
        let mut hop = Hop::new(&mut **endpoint);
        let step = self.master.poll(self.node.now(), &mut hop, &mut rows);
        if step == MasterStep::Compute {
            // Frames taken just now are acknowledged before this thread is away.
            serve(&mut **endpoint, Duration::ZERO);
        }
        while let Some(notice) = carrier_notice(&**endpoint, &mut self.user.n_told) {
            (self.user.tell)(&notice, self.master.lines());
        }
        step
    }

    fn compute(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        frames::batch(self.master.spans(), self.master.tokens(), &mut self.batch);
        let batch = &self.batch;
        (self.user.meter)(true);
        let (result, compute_us) = self.node.compute(|| {
            stage.embed(batch)?;
            stage.run_layers(batch.spans())
        });
        let machine = (self.user.meter)(false);
        if let Err(ForwardError::Gather(_)) = result {
            return self.begin_anew(stage);
        }
        result?;
        self.held.computed(self.master.epoch(), &self.sizes);
        self.master.computed(WorkFigures::new(compute_us, machine));
        Ok(())
    }
}

impl Drop for RingMaster {
    /// Tells the workers, as far as that is possible at once.
    fn drop(&mut self) {
        let mut endpoint = self.node.lock();
        self.master.close(&mut Hop::new(&mut **endpoint));
        let until = Instant::now() + FAREWELL;
        while Hop::new(&mut **endpoint).is_sending() && Instant::now() < until {
            serve(&mut **endpoint, Duration::from_millis(5));
        }
    }
}
