//! The master's loop: batches go in, rows that want logits come back.

use std::time::{Duration, Instant};

use super::node::Node;
use super::rows::{MasterRows, from_spans};
use super::{NodeError, sizes};
use crate::engine::StepError;
use crate::model::{ForwardError, Row, Transformer};
use crate::ring::{Hop, Master, MasterOptions, Member, Notice, Step, Times};
use crate::transport::Endpoint;
use crate::wire::Dtype;
use crate::wire::datagram::FRAME_MAX;
use crate::wire::frame::{Line, Span, Status};
use crate::wire::hello;

/// Longest wait for the link before the caller's wish is asked again.
const WAIT: Duration = Duration::from_millis(100);
/// How long a leaving master tries to tell the others.
const FAREWELL: Duration = Duration::from_millis(100);

/// Told what happens to the ring, and its nodes as far as they are known.
pub type Tell = Box<dyn FnMut(&Notice, &[Line]) + Send>;

/// How a master takes part in a ring.
pub struct RingOptions {
    /// What it is called.
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
    /// Asked while waiting; `false` ends the wait.
    pub is_wanted: fn() -> bool,
    /// Told what happens to the ring.
    pub tell: Tell,
}

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// The ring is open.
    Open,
    /// There is room for another batch, and nothing that could be computed meanwhile.
    Room,
    /// The oldest batch that wants logits is back.
    Done,
}

/// The ring as the master's engine uses it.
pub struct RingMaster {
    node: Node,
    master: Master,
    /// Rows of the last result, `[max_logits, dim]`.
    returned: Vec<f32>,
    rows: Vec<Row>,
    /// Whether that result has been given to its user.
    is_taken: bool,
    is_wanted: fn() -> bool,
    tell: Tell,
    /// Notices of the carrier that have been told.
    n_told: usize,
    n_nodes: usize,
}

impl RingMaster {
    /// A master of which `transformer` is the first share, over `endpoint`.
    ///
    /// # Errors
    /// If the model is too wide for frames, or the system refuses a thread.
    pub fn new(
        transformer: &Transformer,
        endpoint: Box<dyn Endpoint>,
        options: RingOptions,
    ) -> Result<RingMaster, NodeError> {
        let plan = transformer.plan();
        let header = transformer.model().header();
        let sizes = sizes(plan, header.dim, options.wire).ok_or(NodeError::Width)?;
        if !crate::ring::fits(&sizes, FRAME_MAX) {
            return Err(NodeError::Width);
        }
        let master = Master::new(MasterOptions {
            line: line(transformer, &options.name),
            sizes,
            n_layers: header.n_layers as u32,
            frame_bytes: FRAME_MAX,
            n_nodes: options.n_nodes,
            members: options.members,
            timeout_us: options.timeout.map(|timeout| timeout.as_micros() as u64),
            epoch: options.epoch,
        });
        Ok(RingMaster {
            // Those that there are, the caller has told.
            n_told: endpoint.notices().len(),
            node: Node::new(endpoint, None)?,
            master,
            returned: vec![0.0; plan.max_logits * header.dim],
            rows: Vec::with_capacity(plan.max_batch),
            is_taken: false,
            is_wanted: options.is_wanted,
            tell: options.tell,
            n_nodes: options.n_nodes,
        })
    }

    /// Waits until the ring is complete.
    ///
    /// # Errors
    /// If it cannot be, or nobody wants it any more.
    pub fn open(&mut self, transformer: &mut Transformer) -> Result<(), StepError> {
        self.drive(transformer, Goal::Open)
    }

    /// The nodes, the master first; empty before the ring is open.
    pub fn lines(&self) -> &[Line] {
        self.master.lines()
    }

    /// Where the time of decoded tokens went.
    pub fn times(&self) -> &Times {
        self.master.times()
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

    /// Whether a batch can be submitted without waiting.
    pub(crate) fn has_room(&self) -> bool {
        self.master.has_room()
    }

    /// Sends a batch on its way; waits only if too many are.
    pub(crate) fn submit(
        &mut self,
        transformer: &mut Transformer,
        spans: &[Span],
        tokens: &[u32],
    ) -> Result<(), StepError> {
        self.drive(transformer, Goal::Room)?;
        self.master.submit(spans, tokens);
        self.drive(transformer, Goal::Room)
    }

    /// Waits for the oldest batch that wants logits: its spans, and the rows wanted.
    pub(crate) fn collect(
        &mut self,
        transformer: &mut Transformer,
    ) -> Result<(&[Span], &[f32]), StepError> {
        self.drive(transformer, Goal::Done)?;
        let dim = transformer.model().header().dim;
        self.is_taken = true;
        let spans = self.master.spans();
        let wanted: usize = spans.iter().map(Span::n_wanted).sum();
        Ok((spans, &self.returned[..wanted * dim]))
    }

    fn drive(&mut self, transformer: &mut Transformer, goal: Goal) -> Result<(), StepError> {
        if std::mem::take(&mut self.is_taken) {
            self.master.finish();
        }
        let result = self.try_drive(transformer, goal);
        if result == Err(StepError::Interrupted) {
            self.master.forget_pending();
        }
        result
    }

    fn try_drive(&mut self, transformer: &mut Transformer, goal: Goal) -> Result<(), StepError> {
        loop {
            let step = self.poll(transformer);
            while let Some(notice) = self.master.notice() {
                (self.tell)(&notice, self.master.lines());
            }
            match step {
                Step::Compute => self.compute(transformer)?,
                // Whoever waits for something else takes the result next.
                Step::Done => return Ok(()),
                Step::Failed(error) => return Err(StepError::Ring(error)),
                Step::Idle => {
                    let is_reached = match goal {
                        Goal::Open => self.master.is_open(),
                        Goal::Room => self.master.has_room() && !self.master.is_eager(),
                        Goal::Done => false,
                    };
                    if is_reached {
                        return Ok(());
                    }
                    if !(self.is_wanted)() {
                        return Err(StepError::Interrupted);
                    }
                    serve(&mut **self.node.lock(), WAIT);
                }
            }
        }
    }

    fn poll(&mut self, transformer: &mut Transformer) -> Step {
        let mut endpoint = self.node.lock();
        serve(&mut **endpoint, Duration::ZERO);
        let mut rows = MasterRows { transformer, returned: &mut self.returned };
        let mut hop = Hop::new(&mut **endpoint);
        let step = self.master.poll(self.node.now(), &mut hop, &mut rows);
        if step == Step::Compute {
            // Frames taken just now are acknowledged before this thread is away.
            serve(&mut **endpoint, Duration::ZERO);
        }
        while let Some(notice) = carrier_notice(&**endpoint, &mut self.n_told) {
            (self.tell)(&notice, self.master.lines());
        }
        step
    }

    fn compute(&mut self, transformer: &mut Transformer) -> Result<(), StepError> {
        from_spans(self.master.spans(), self.master.tokens(), &mut self.rows);
        let rows = &self.rows;
        let (result, compute_us) = self.node.compute(|| {
            transformer.embed(rows)?;
            transformer.run_layers(rows)
        });
        match result {
            Ok(()) => {
                self.master.computed(compute_us);
                Ok(())
            }
            Err(ForwardError::Interrupted) => Err(StepError::Interrupted),
            Err(error) => Err(error.into()),
        }
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

/// Lets the endpoint work; a socket's failure shows as a silent neighbour.
pub(super) fn serve(endpoint: &mut dyn Endpoint, wait: Duration) {
    if let Err(e) = endpoint.service(wait) {
        log::debug!("link: {e}");
    }
}

/// The next thing that the endpoint's carrier has to say, after the first `n_told`.
pub(super) fn carrier_notice(endpoint: &dyn Endpoint, n_told: &mut usize) -> Option<Notice> {
    let notice = endpoint.notices().get(*n_told)?;
    *n_told += 1;
    Some(Notice::Carrier(notice.clone()))
}

/// What a node says of itself when the ring opens.
pub(super) fn line(transformer: &Transformer, name: &str) -> Line {
    let model = transformer.model();
    let layers = &model.share().layers;
    Line {
        name: hello::name(name),
        isa: heapless::String::try_from(transformer.kernels().isa().name()).unwrap_or_default(),
        layers: layers.start as u32..layers.end as u32,
        bytes_per_token: model.bytes_per_token(),
        rtt_us: 0,
        datagram_bytes: 0,
        threads: transformer.threads() as u16,
        carrier: heapless::String::new(),
        status: Status::Ready,
    }
}
