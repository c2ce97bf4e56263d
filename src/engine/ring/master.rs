//! The master's loop: submits batches, and receives the rows that want logits.

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
use crate::group::Notice;
use crate::model::{
    Batch, ForwardError, KV_PAGE, PackReport, Share, Span, Stage, StageInfo, Transformer,
};
use crate::ring::{Held, Hop, Master, MasterOptions, MasterStep, Member, Misfits, Setbacks, Times};
use crate::transport::Endpoint;
use crate::wire::Dtype;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{
    BoardsReport, FrameKeep, FramePage, FrameSpan, MachineReading, NodeLine, Sizes, WorkFigures,
};
use crate::wire::hello::Name;

/// Longest wait for the link between two polls of the caller's interrupt.
const WAIT: Duration = Duration::from_millis(100);
/// Longest wait for the link while the master waits for something else, too.
const LOOKED_EVERY: Duration = Duration::from_millis(1);
/// Time in which a leaving master tries to tell the other nodes.
const FAREWELL: Duration = Duration::from_millis(100);

/// Callback for notices of the ring, with its nodes if they are known.
pub type Tell = Box<dyn FnMut(&Notice, &[NodeLine]) + Send>;

/// Reads the figures of the master's machine, like a worker's meter.
pub type MasterMeter = Box<dyn Fn(bool) -> MachineReading + Send>;

/// Other nodes for a running ring.
pub struct OtherNodes {
    /// The nodes with their layers, the master first.
    pub members: Vec<Member>,
    /// Address of the second node.
    pub next: SocketAddr,
    /// Tells the other nodes. During the call nothing is sent to the former nodes.
    pub tell: Box<dyn FnOnce() -> Result<(), String> + Send>,
    /// Gets the outcome: whether the master has its layers and the others know theirs.
    pub done: Sender<Result<(), String>>,
}

/// Other layers for the nodes of a running ring.
pub struct OtherLayers {
    /// Layers in the ring's order, the master's first.
    pub layers: Vec<Range<usize>>,
    /// Settled by the first to act: the master, which begins the change, or the caller, which withdraws it.
    pub is_settled: Arc<AtomicBool>,
    /// Gets the outcome.
    pub done: Sender<Result<(), ResplitError>>,
}

/// A change to a running ring.
pub enum Change {
    /// Another set of nodes.
    Nodes(OtherNodes),
    /// Other layers for the present nodes.
    Layers(OtherLayers),
}

/// Source of a master's changes.
pub struct ChangesBy {
    /// Channel of requested changes.
    pub asked: Receiver<Change>,
    /// Number of changes for which callers are preparing other nodes. Until then the master waits for missing
    /// nodes.
    pub n_coming: Arc<AtomicUsize>,
    /// Place of the weights of the master's other layers.
    pub place: WeightsPlace,
    /// Fate of nodes that do not fit.
    pub misfits: Misfits,
}

/// Options of a ring's master.
pub struct RingOptions {
    /// Name of the node.
    pub name: String,
    /// Maximum number of nodes of the ring.
    pub n_nodes: usize,
    /// Type of activations on the wire.
    pub wire: Dtype,
    /// The known nodes, the master first.
    pub members: Vec<Member>,
    /// Longest time without progress; `None` to wait forever.
    pub timeout: Option<Duration>,
    /// First epoch: a random number.
    pub epoch: u32,
    /// Polled during waits; `true` ends the wait.
    pub is_interrupted: fn() -> bool,
    /// Callback for notices of the ring.
    pub tell: Tell,
    /// Reads the machine's figures.
    pub meter: MasterMeter,
    /// Source of changes, if there can be any.
    pub changes: Option<ChangesBy>,
}

/// Function that prepares other layers, and the poll that interrupts it.
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
    /// There is room for a batch, and no other can be computed before it.
    Room,
    /// There is room for a FETCH.
    Fetch,
    /// The FETCH has been answered.
    Fetched,
    /// The oldest batch that wants logits has returned.
    Done,
}

/// The ring, in the form that the master's engine uses.
pub struct RingMaster {
    node: Node,
    master: Master,
    /// Contents of the next batch.
    next: NextBatch,
    /// The batch being computed.
    batch: Batch,
    results: Results,
    /// Whether the submitted batches and the nodes' KV are lost.
    is_lost: bool,
    user: User,
    changes: Changes,
    /// KV that this node has stored for the streams.
    held: Held,
    sizes: Sizes,
    n_nodes: usize,
}

/// Everything that goes round the ring with the next batch.
struct NextBatch {
    spans: Vec<FrameSpan>,
    /// Changed pages of streams, valid from this batch on.
    pages: Vec<FramePage>,
    /// Pages of prompts to keep before this batch.
    keeps: Vec<FrameKeep>,
    /// Node without prefix files that was reported last.
    unkept: Option<Name>,
}

/// Results that have arrived.
struct Results {
    returned: Returned,
    /// Spans of the last result.
    spans: Vec<Span>,
    /// Whether the user has taken that result.
    is_taken: bool,
}

/// The master's user: its name and callbacks.
struct User {
    name: String,
    is_interrupted: fn() -> bool,
    tell: Tell,
    /// Number of the carrier's notices that were reported.
    n_told: usize,
    meter: MasterMeter,
}

/// Changes that are requested or in progress.
struct Changes {
    /// Source of changes, if there may be any.
    by: Option<ChangesBy>,
    /// A change that waits until no batch is in flight.
    waiting: Option<Change>,
}

impl RingMaster {
    /// A master that computes `stage`, the first share, over `endpoint`.
    ///
    /// # Errors
    /// If the model is too wide for frames, or the system refuses a thread.
    pub fn new(
        stage: &dyn Stage,
        endpoint: Box<dyn Endpoint>,
        mut options: RingOptions,
    ) -> Result<RingMaster, NodeError> {
        let StageInfo { plan, header, .. } = stage.about();
        let sizes =
            frames::sizes(plan, header.row_width(), options.wire).ok_or(NodeError::Counts)?;
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
            misfits: options.changes.as_ref().map_or(Misfits::End, |by| by.misfits),
            timeout_us: options.timeout.map(|timeout| timeout.as_micros() as u64),
            epoch: options.epoch,
        });
        let n_rows = master.n_result_rows();
        // The caller has reported earlier notices.
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
                returned: Returned::new(n_rows, header.row_width(), wire),
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
    /// If the ring cannot open, or the caller interrupts the wait.
    pub(in crate::engine) fn open(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        if !self.assemble(stage)? {
            self.master.begin_anew();
        }
        self.drive(stage, Goal::Open)
    }

    /// Waits until all boards of this node are ready; `false` if their KV is lost.
    fn assemble(&mut self, stage: &mut OwnStage) -> Result<bool, StepError> {
        let (assembled, _) = self.node.compute(|| stage.assemble_parts());
        let is_intact = assembled?;
        if !is_intact {
            self.held.clear();
        }
        Ok(is_intact)
    }

    /// Starts again after this node's boards or its device lost their KV. Once all are back, everything is recomputed.
    fn begin_anew(&mut self, stage: &mut OwnStage) -> Result<(), StepError> {
        let assembled = self.assemble(stage);
        // An interrupted batch is computed later. No other batch can build on one that is lost.
        if !matches!(assembled, Err(StepError::Interrupted)) {
            self.master.begin_anew();
        }
        assembled.map(drop)
    }

    /// Gives the nodes other layers, and waits until the ring is open again. `layers` are in the ring's
    /// order, this node's first. Streams continue; measured times are reset. `prepare` packs this node's
    /// weights; returns its report.
    ///
    /// If `layers` is not a valid split of this ring, or a node cannot take its part: the ring is then open
    /// as before. Or if the ring is lost.
    pub(in crate::engine) fn resplit(
        &mut self,
        stage: &mut OwnStage,
        layers: &[Range<usize>],
        prepare: &Prepare<'_, Transformer>,
    ) -> Result<Option<PackReport>, ResplitError> {
        self.check(stage, layers)?;
        // A move now would lose the batches in flight, which would have to be recomputed.
        if !self.master.hold() {
            self.drive(stage, Goal::Still).inspect_err(|_| self.master.go_on())?;
        }
        // During the wait the ring may have changed.
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
            // The caller does not wait for the ring to open. A move in progress continues, because stopping
            // it would lose all KV.
            Err(ResplitError::Step(StepError::Interrupted)) if !self.master.is_moving() => {
                self.assign(stage, &before, (prepare, &|| false))?;
            }
            _ => {}
        }
        result
    }

    /// Checks whether `layers` are a split of the present ring.
    fn check(&self, stage: &OwnStage, layers: &[Range<usize>]) -> Result<(), ResplitError> {
        check_split(layers, self.lines().len(), stage.about().header.n_layers)?;
        check_fixed(self.lines(), layers)
    }

    /// Takes this node's part of `layers`, and starts to open the ring with the new layers.
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

    /// Prepares this node's part, if it has changed. Returns the report of packing, and this node's line.
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

    /// Reports on the boards of nodes that are teams.
    pub fn reports(&self) -> &[BoardsReport] {
        self.master.reports()
    }

    /// Time of decoded tokens, by its use.
    pub fn times(&self) -> &Times {
        self.master.times()
    }

    /// Counts of losses, pauses and failures of the ring since it was formed; all are 0 if nothing failed.
    pub fn setbacks(&self) -> &Setbacks {
        self.master.setbacks()
    }

    /// Resets the measured times.
    pub fn start_times(&mut self) {
        self.master.start_times();
    }

    fn drive(&mut self, stage: &mut OwnStage, goal: Goal) -> Result<(), StepError> {
        self.drive_while(stage, goal, None)
    }

    /// Drives the ring until its goal is reached, or until `is_waiting` returns false.
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
            // The batch that would have computed these pages may be dropped.
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
            // The caller learns of the loss when it submits the next batch.
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
            // Acknowledges received frames before this thread computes.
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
        match result {
            Ok(()) => {}
            Err(ForwardError::Gather(_) | ForwardError::Device(_)) => {
                return self.begin_anew(stage);
            }
            Err(ForwardError::Interrupted) => return Err(StepError::Interrupted),
            // The batch will never be computed: nothing can build on it.
            Err(error) => {
                self.master.begin_anew();
                return Err(error.into());
            }
        }
        self.held.computed(self.master.epoch(), &self.sizes);
        self.master.computed(WorkFigures::new(compute_us, machine));
        Ok(())
    }
}

impl Drop for RingMaster {
    /// Tells the workers that the ring ends, if that is possible within [`FAREWELL`].
    fn drop(&mut self) {
        let mut endpoint = self.node.lock();
        self.master.close(&mut Hop::new(&mut **endpoint));
        let until = Instant::now() + FAREWELL;
        while Hop::new(&mut **endpoint).is_sending() && Instant::now() < until {
            serve(&mut **endpoint, Duration::from_millis(5));
        }
    }
}
