//! A worker's loop. It outlives masters: the next master opens the ring again.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use super::NodeError;
use super::frames;
use super::link::{carrier_notice, line, serve};
use super::node::Node;
use super::resplit::{Prepare, tell_unpacked};
use super::streams::{self, StageParts};
use crate::engine::prefix::{self, Store};
use crate::engine::weights::{Listener, Preparing};
use crate::group::Notice;
use crate::model::{
    AssembleError, CheckError, ForwardError, KV_PAGE, PackError, PackReport, Plan, Share, Span,
    Stage, StageInfo, StartError,
};
use crate::ring::{Held, Hop, Opening, Rows, Worker, WorkerStep};
use crate::transport::Endpoint;
use crate::wire::Dtype;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{
    BoardsReport, FrameKeep, FramePage, KvPiece, MachineReading, Sizes, Status, WorkFigures,
};
use crate::wire::hello;

/// Longest wait for the link between two polls for an interrupt.
const WAIT: Duration = Duration::from_millis(100);

/// Maximum sizes that a worker accepts from a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest context.
    pub ctx_len: usize,
    /// Maximum number of streams.
    pub n_streams: usize,
    /// Maximum number of rows of a batch.
    pub max_batch: usize,
}

impl Limits {
    /// Maximum number of KV pages: enough for all streams, and as many again for texts that are not in use.
    pub(in crate::engine) fn pages_max(&self) -> usize {
        self.ctx_len.div_ceil(KV_PAGE).saturating_mul(self.n_streams).saturating_mul(2)
    }
}

/// Reads the figures of a node's machine. The argument says whether the node computes.
pub type NodeMeter<'a> = &'a dyn Fn(bool) -> MachineReading;

/// Gives a stage layers that its file lacks, from another file, like [`Stage::set_share`]. `None` if no file
/// has them.
pub type Elsewhere<'a, S> = &'a dyn Fn(&mut S, &Share, Plan) -> Option<Result<(), StartError>>;

/// Options of a ring's worker.
pub struct WorkerOptions<'a, S> {
    /// Name of the worker.
    pub name: &'a str,
    /// The worker's layers, unless the master gives it others.
    pub wish: Option<Range<usize>>,
    /// Maximum sizes that the worker accepts.
    pub limits: Limits,
    /// Prepares the weights of other layers.
    pub prepare: &'a Prepare<'a, S>,
    /// Takes layers from other files.
    pub elsewhere: Elsewhere<'a, S>,
    /// Files of prompt beginnings, if the worker keeps them.
    pub prefixes: Option<&'a RefCell<Store>>,
    /// Reads the figures of the node's machine.
    pub meter: NodeMeter<'a>,
    /// Reports on the node's boards, if it is a team.
    pub report: &'a dyn Fn(&S) -> Option<BoardsReport>,
    /// Polled regularly; true ends the work.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// Works for any master until it is interrupted. `stage` has this node's share, with prepared weights. The
/// master chooses plan and layers, within the limits and the files. `held` is the KV from the node's last
/// work, and afterwards that of this work.
///
/// # Errors
/// If weights do not match their checksums, including those of another file, or the system refuses a thread.
pub fn run_worker<S: Stage>(
    stage: &mut S,
    endpoint: Box<dyn Endpoint>,
    options: &WorkerOptions<'_, S>,
    held: &mut Held,
    tell: &mut dyn FnMut(&Notice),
) -> Result<(), NodeError> {
    let WorkerOptions { name, limits, is_interrupted, .. } = options;
    stage.check_weights(is_interrupted).map_err(NodeError::Weights)?;
    let ready = Some(stage.about().share.clone());
    let mut host = StageRows {
        ready,
        damaged: None,
        is_elsewhere: false,
        is_leaving: false,
        stage,
        options,
        held,
        restored: None,
    };
    // The caller has reported earlier notices.
    let mut n_told = endpoint.notices().len();
    let node = Node::new(endpoint, Some(hello::name(name)))?;
    let StageInfo { header, .. } = host.stage.about();
    let sizes = (header.row_width() as u32, header.n_layers as u32);
    let wish = options.wish.as_ref().map(|layers| layers.start as u32..layers.end as u32);
    let mut worker = Worker::new((line(host.stage, name), wish), sizes, FRAME_MAX);
    let mut batch: Vec<Span> = Vec::with_capacity(limits.max_batch);
    while !is_interrupted() {
        let mut endpoint = node.lock();
        serve(&mut **endpoint, Duration::ZERO);
        let step = worker.poll(node.now(), &mut Hop::new(&mut **endpoint), &mut host);
        while let Some(notice) = worker.notice() {
            tell(&notice);
        }
        while let Some(notice) = carrier_notice(&**endpoint, &mut n_told) {
            tell(&notice);
        }
        if step == WorkerStep::Idle {
            serve(&mut **endpoint, WAIT);
            continue;
        }
        // Acknowledges received frames before this thread computes.
        serve(&mut **endpoint, Duration::ZERO);
        drop(endpoint);
        let is_over = match step {
            WorkerStep::Open => !host.answer(&node, &mut worker, tell),
            WorkerStep::Fetch => {
                host.fetch(&node, &mut worker);
                false
            }
            _ => !host.compute(&node, &mut worker, &mut batch),
        };
        if is_over {
            break;
        }
    }
    host.set_aside();
    host.damaged.map_or(Ok(()), |e| Err(NodeError::Weights(e)))
}

/// Outcome of preparing for an opening.
enum Readied {
    /// The answer for the master.
    Status(Status),
    /// The worker is ready, with other layers than before.
    Took(PackReport),
    /// The user ended the work, or another file is damaged.
    Over,
}

/// The node's stage, in the form that the ring uses.
struct StageRows<'a, S> {
    stage: &'a mut S,
    options: &'a WorkerOptions<'a, S>,
    /// Share whose weights are ready; `None` if the stage's present weights are not.
    ready: Option<Share>,
    /// Whether another file is in use than at first; and the damage, if that file is damaged.
    is_elsewhere: bool,
    damaged: Option<CheckError>,
    /// Whether the node has no layers in this epoch and so leaves the ring. Its stage stays unchanged.
    is_leaving: bool,
    held: &'a mut Held,
    /// Epoch whose KV was restored to the stage.
    restored: Option<u32>,
}

impl<S: Stage> Rows for StageRows<'_, S> {
    fn put(&mut self, first: usize, dtype: Dtype, bytes: &[u8]) {
        self.stage.put_rows(first, frames::precision(dtype), bytes);
    }

    fn get(&mut self, row: usize, dtype: Dtype, out: &mut [u8]) {
        self.stage.get_row(row, frames::precision(dtype), out);
    }

    fn set_page(&mut self, page: &FramePage, sizes: &Sizes) -> bool {
        streams::set_page(self.held, (page, sizes), self.stage)
    }

    fn keep(&mut self, page: &FrameKeep, sizes: &Sizes) -> bool {
        let mut prefixes = self.options.prefixes.map(RefCell::borrow_mut);
        streams::keep(prefixes.as_deref_mut(), (page, sizes), self.stage)
    }

    fn give_kv(&mut self, out: &mut [u8]) -> Option<KvPiece> {
        self.held.give(&self.layers(), out)
    }

    fn take_kv(&mut self, piece: &KvPiece, bytes: &[u8], sizes: &Sizes) -> Option<bool> {
        let own = self.layers();
        streams::take(self.held, (piece, bytes), (&own, sizes), self.stage)
    }

    fn moved(&mut self, epoch: u32, sizes: &Sizes) {
        self.held.moved(epoch, sizes);
    }
}

impl<S: Stage> StageRows<'_, S> {
    /// Computes a batch; `false` if the user ended the work.
    fn compute(&mut self, node: &Node, worker: &mut Worker, batch: &mut Vec<Span>) -> bool {
        batch.clear();
        batch.extend(worker.spans().iter().map(frames::from_frame));
        let meter = self.options.meter;
        meter(true);
        let (result, compute_us) = node.compute(|| self.stage.run_layers(batch));
        let machine = meter(false);
        match result {
            Ok(()) => {
                let (epoch, sizes) = worker.epoch();
                self.held.computed(epoch, &sizes);
                self.restored = None;
                worker.computed(WorkFigures::new(compute_us, machine));
                if worker.is_report_due(node.now()) {
                    let report = (self.options.report)(self.stage);
                    report.into_iter().for_each(|report| worker.report(node.now(), report));
                }
            }
            Err(ForwardError::Interrupted) => return false,
            // A device or a board of the node's team is lost. Or the plan changed: the spans were checked against it.
            Err(_) => {
                self.held.clear();
                self.restored = None;
                worker.discard();
            }
        }
        true
    }

    /// Reads pages of a text that will be computed next.
    fn fetch(&mut self, node: &Node, worker: &mut Worker) {
        let (epoch, sizes) = worker.epoch();
        let (n_read, _) = node.compute(|| {
            let mut prefixes = self.options.prefixes.map(RefCell::borrow_mut);
            let of = (epoch, &sizes);
            streams::read(self.held, prefixes.as_deref_mut(), worker.fetch(), of, self.stage)
        });
        if n_read > 0 {
            self.restored = None;
        }
        worker.fetched(n_read);
    }

    /// Prepares for the master's opening, and answers it; `false` if the work ends.
    fn answer(&mut self, node: &Node, worker: &mut Worker, tell: &mut dyn FnMut(&Notice)) -> bool {
        let opening = worker.opening();
        let (asked, from, sizes) = (opening.layers.clone(), opening.from, opening.sizes);
        let (mut status, report) = match self.open(node, opening) {
            Readied::Over => return false,
            Readied::Status(status) => (status, None),
            Readied::Took(report) => (Status::Ready, Some(report)),
        };
        let mut is_intact = true;
        if status == Status::Ready {
            match node.assemble(|| self.stage.assemble()) {
                Ok(true) => {}
                Ok(false) => {
                    self.held.clear();
                    is_intact = false;
                }
                Err(AssembleError::Interrupted) => return false,
                Err(AssembleError::Refused) => status = Status::Team,
                Err(AssembleError::Memory) => status = Status::Memory,
            }
        }
        let mut line = line(self.stage, self.options.name);
        line.status = status;
        line.keeps = self.options.prefixes.is_some() && prefix::can_keep(self.stage);
        self.restore(from, &sizes);
        line.streams = streams::said(self.held, from, &sizes);
        if let Some(layers) = asked {
            line.layers = layers;
        }
        if let Some(PackReport { packed, reused, .. }) = report {
            tell(&Notice::Took { layers: line.layers.clone(), packed, reused });
        }
        worker.opened(line, is_intact);
        true
    }

    fn open(&mut self, node: &Node, opening: &Opening) -> Readied {
        let (plan, limits) = (frames::plan(&opening.sizes), &self.options.limits);
        if plan.ctx_len > limits.ctx_len {
            return Readied::Status(Status::Context(limits.ctx_len as u32));
        }
        if plan.n_streams > limits.n_streams {
            return Readied::Status(Status::Streams(limits.n_streams as u32));
        }
        if opening.sizes.n_pages as usize > limits.pages_max() {
            return Readied::Status(Status::Memory);
        }
        if plan.max_batch > limits.max_batch {
            return Readied::Status(Status::Batch(limits.max_batch as u32));
        }
        let Some(layers) = &opening.layers else { return Readied::Status(Status::Unassigned) };
        self.is_leaving = layers.is_empty();
        if self.is_leaving {
            self.set_aside();
            return Readied::Status(Status::Ready);
        }
        let layers = layers.start as usize..layers.end as usize;
        let share = Share { layers, has_ends: false };
        let StageInfo { plan: own_plan, share: own, .. } = self.stage.about();
        if self.stage.n_nodes() > 1 && share != *own {
            return Readied::Status(Status::Fixed);
        }
        if self.ready.as_ref() == Some(&share) {
            return Readied::Status(match plan == *own_plan {
                true => Status::Ready,
                false => {
                    self.set_aside();
                    status(self.stage.set_plan(plan))
                }
            });
        }
        self.take(node, share, plan, opening.from.is_some())
    }

    /// The node's layers in this epoch.
    fn layers(&self) -> Range<u32> {
        if self.is_leaving { 0..0 } else { streams::layers(self.stage) }
    }

    /// Copies the stage's KV, because other nodes will need it or the stage will be emptied.
    fn set_aside(&mut self) {
        streams::set_aside(self.held, self.stage);
        self.restored = None;
    }

    /// Restores the copied KV of epoch `from` to the stage, unless the stage has it.
    fn restore(&mut self, from: Option<u32>, sizes: &Sizes) {
        if !self.held.is_intact(from, sizes) && (from.is_none() || self.restored != from) {
            let own = (self.layers(), sizes);
            self.held.restore(from, own, &mut StageParts(self.stage));
            self.restored = from;
        }
    }

    /// Takes other layers, and packs the new ones. `goes_on` tells that the stage's KV is still valid.
    fn take(&mut self, node: &Node, share: Share, plan: Plan, goes_on: bool) -> Readied {
        let before = self.ready.take();
        match goes_on {
            true => self.set_aside(),
            false => self.held.clear(),
        }
        let WorkerOptions { prepare, is_interrupted, elsewhere, .. } = self.options;
        let is_here = Share::of_file(self.stage.about().header).includes(&share);
        let took = match is_here {
            true => Some(self.stage.set_share(share.clone(), plan)),
            false => elsewhere(self.stage, &share, plan),
        };
        let status = took.map_or(Status::Lacks, status);
        if status != Status::Ready {
            self.ready = before;
            return Readied::Status(status);
        }
        self.is_elsewhere |= !is_here;
        let prepared = node.prepare(|percent| {
            let tell = |what: Preparing<'_>| match what {
                Preparing::Packing(done) => percent(done.percent()),
                what => tell_unpacked(what),
            };
            prepare(self.stage, Listener { tell: &tell, is_interrupted })
        });
        match prepared {
            Ok(report) => {
                self.ready = Some(share);
                let nothing = PackReport { packed: 0, reused: 0, bytes: 0 };
                Readied::Took(report.unwrap_or(nothing))
            }
            Err(PackError::Weights(CheckError::Interrupted)) => Readied::Over,
            Err(PackError::Weights(e)) if self.is_elsewhere => {
                self.damaged = Some(e);
                Readied::Over
            }
            Err(e) => {
                log::warn!("{e}");
                Readied::Status(match e {
                    PackError::Weights(_) => Status::Damaged,
                    _ => Status::Memory,
                })
            }
        }
    }
}

fn status<E: std::fmt::Display>(result: Result<(), E>) -> Status {
    match result {
        Ok(()) => Status::Ready,
        Err(e) => {
            log::warn!("{e}");
            Status::Memory
        }
    }
}
