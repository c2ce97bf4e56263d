//! Generation: prompts in chunks, the decode loop, stop conditions and figures.

pub mod chat;
mod generate;
pub mod ring;
pub mod score;
mod stop;
mod stream;
mod streams;
mod weights;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::format::model::Header;
use crate::kernels::Kernels;
use crate::model::{ForwardError, LoadError, PackError, Plan, Row, StartError, Transformer};
use crate::pool::Pool;
use crate::ring::RingError;
use crate::sys::cpu;
use crate::transport::Endpoint;
use crate::wire::frame::{Span, Wants};
use ring::{NodeError, RingMaster, RingOptions};
use stream::Slots;

pub use crate::kernels::Isa;
pub use crate::model::{KvType, Model};
pub use generate::{Figures, GenerateError, Generator, Outcome, Request, StopReason};
pub use stop::StopStrings;
pub use stream::Stream;
pub use streams::{Answer, Prompt, Streams};
pub use weights::{Cache, Huge, Listener, Preparing, recall};

/// Context used when none is asked for, if the model allows that much.
pub const CTX_LEN_DEFAULT: usize = 4096;

/// Rows of a prompt that go through the model at once.
pub const BATCH_DEFAULT: usize = 256;

/// Weights of a step from which on more than one thread is used by default: one thread reads them from
/// its cache in the 10 to 20 microseconds that a step's waiting takes.
pub const STEP_BYTES_MIN: u64 = 256 << 10;

/// Projections of a layer that threads share: queries to values, attention's output, gate and up,
/// and down.
const PROJECTIONS: usize = 4;

/// How to run a model. The default suits the machine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Longest context; by default what the model allows, up to [`CTX_LEN_DEFAULT`].
    pub ctx_len: Option<usize>,
    /// Rows of one forward pass, [`BATCH_DEFAULT`] by default.
    pub batch: Option<usize>,
    /// Most rows of a forward pass that may want logits, 1 by default.
    pub max_logits: Option<usize>,
    /// Streams with a KV cache of their own, 1 by default.
    pub n_streams: Option<usize>,
    /// How keys and values are kept; see [`KvType::for_weights`].
    pub kv: Option<KvType>,
    /// Number of threads; by default one for each fast core, or one alone if a token's work is not
    /// worth waiting for others: see [`Options::cpus_for`].
    pub threads: Option<usize>,
    /// Cores to run on, the caller's thread first; by default the fastest.
    pub cores: Option<Vec<usize>>,
    /// Instruction set to use; by default the best this CPU has.
    pub isa: Option<Isa>,
    /// Where packed weights are kept.
    pub cache: Cache,
    /// Whether weights are copied to huge pages.
    pub huge: Huge,
}

/// Why an engine cannot be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineError {
    /// The model cannot be opened.
    Load(LoadError),
    /// Context, batch or memory do not fit.
    Start(StartError),
    /// The weights are damaged, or there is no memory to pack them.
    Weights(PackError),
    /// This CPU cannot run the instruction set asked for.
    Isa(Isa),
    /// The system refused a thread.
    Threads(io::Error),
    /// Every stream is taken.
    NoStream,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Load(e) => e.fmt(f),
            EngineError::Start(e) => e.fmt(f),
            EngineError::Weights(e) => e.fmt(f),
            EngineError::Isa(isa) => write!(f, "this CPU cannot run {} kernels", isa.name()),
            EngineError::Threads(_) => write!(f, "cannot start the threads"),
            EngineError::NoStream => write!(f, "all streams are in use"),
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EngineError::Load(e) => e.source(),
            EngineError::Threads(e) => Some(e),
            _ => None,
        }
    }
}

/// Why a batch was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// It does not fit the model or the plan.
    Forward(ForwardError),
    /// The ring cannot go on.
    Ring(RingError),
    /// The stream is another engine's.
    Stranger,
    /// Its user does not want it any more.
    Interrupted,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepError::Forward(e) => e.fmt(f),
            StepError::Ring(e) => e.fmt(f),
            StepError::Stranger => write!(f, "the stream belongs to another engine"),
            StepError::Interrupted => write!(f, "interrupted"),
        }
    }
}

impl std::error::Error for StepError {}

impl From<ForwardError> for StepError {
    fn from(error: ForwardError) -> StepError {
        StepError::Forward(error)
    }
}

/// Why a ring was not joined.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// This node cannot work.
    Node(NodeError),
    /// The ring cannot be completed.
    Step(StepError),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Node(e) => e.fmt(f),
            JoinError::Step(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for JoinError {}

/// A model ready to run, here or on a ring of which this is the master, and the streams in it.
pub struct Engine {
    transformer: Transformer,
    /// The other nodes; `None` if all layers are here.
    ring: Option<RingMaster>,
    /// Without a ring: the spans of the batch in `rows`, and whether it waits to be collected.
    spans: Vec<Span>,
    is_submitted: bool,
    /// Places of the KV cache that streams take.
    slots: Arc<Slots>,
    /// Scratch for one batch, `[max_batch]`.
    rows: Vec<Row>,
}

impl Engine {
    /// Opens the model file at `path` and makes it ready to run. The first time that takes as long as
    /// packing its weights; see [`Engine::prepare`].
    ///
    /// # Errors
    /// If the file is not a model, is damaged, or does not fit `options` or the machine.
    pub fn open(path: &Path, options: &Options) -> Result<Engine, EngineError> {
        let model = Model::open(path).map_err(EngineError::Load)?;
        let mut engine = Engine::new(Arc::new(model), options)?;
        let place = (&options.cache, options.huge);
        engine.prepare(Some(path), place, &|_| true).map_err(EngineError::Weights)?;
        Ok(engine)
    }

    /// Plans to run `model`, and starts threads. Its weights are used as they are, and believed, until
    /// [`Engine::prepare`] has packed and compared them.
    ///
    /// # Errors
    /// If `options` do not fit the model or the machine.
    pub fn new(model: Arc<Model>, options: &Options) -> Result<Engine, EngineError> {
        let header = model.header();
        let ctx_len = options.ctx_len.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT));
        let plan = Plan {
            ctx_len,
            // A stream never has more rows than its context.
            max_batch: options
                .batch
                .unwrap_or(BATCH_DEFAULT)
                .min(ctx_len.max(1).saturating_mul(options.n_streams.unwrap_or(1))),
            max_logits: options.max_logits.unwrap_or(1),
            n_streams: options.n_streams.unwrap_or(1),
            kv: options.kv.unwrap_or(KvType::for_weights(header.weights)),
        };
        let kernels = Engine::kernels(Some(&model), options.isa)?;
        let pool = Pool::new(&options.cpus_for(&model)).map_err(EngineError::Threads)?;
        let transformer =
            Transformer::new(model, kernels, pool, plan).map_err(EngineError::Start)?;
        Ok(Engine {
            transformer,
            ring: None,
            spans: Vec::with_capacity(plan.max_batch),
            is_submitted: false,
            slots: Slots::new(plan.n_streams),
            rows: Vec::with_capacity(plan.max_batch),
        })
    }

    /// Becomes the master of a ring over `endpoint`, and waits until it is complete. The model
    /// is the share with ends.
    ///
    /// # Errors
    /// If the weights do not match their checksums, or the ring cannot be completed.
    pub fn join(
        &mut self,
        endpoint: Box<dyn Endpoint>,
        options: RingOptions,
    ) -> Result<(), JoinError> {
        let checked = self.transformer.check_weights(&options.is_wanted);
        checked.map_err(|e| JoinError::Node(NodeError::Weights(e)))?;
        self.transformer.interrupt_by(options.is_wanted);
        let ring =
            RingMaster::new(&self.transformer, endpoint, options).map_err(JoinError::Node)?;
        self.ring.insert(ring).open(&mut self.transformer).map_err(JoinError::Step)
    }

    /// The ring, if this is its master.
    pub fn ring(&self) -> Option<&RingMaster> {
        self.ring.as_ref()
    }

    /// The same, to reset its times.
    pub fn ring_mut(&mut self) -> Option<&mut RingMaster> {
        self.ring.as_mut()
    }

    /// The kernels for `model`: `isa` if it is given, else those that the model's file is packed
    /// for, else the best this CPU has.
    ///
    /// # Errors
    /// If this CPU cannot run them.
    pub fn kernels(model: Option<&Model>, isa: Option<Isa>) -> Result<Kernels, EngineError> {
        if let Some(isa) = isa {
            return Kernels::for_isa(isa).ok_or(EngineError::Isa(isa));
        }
        let best = Kernels::best();
        let Some(wanted) = model.and_then(Model::packed_for) else { return Ok(best) };
        let unusable = StartError::Packed { wanted, found: best.isa() };
        Kernels::for_isa(wanted).ok_or(EngineError::Start(unusable))
    }

    /// What the model file says.
    pub fn header(&self) -> &Header {
        self.transformer.model().header()
    }

    /// The model with its threads and buffers.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// The same, to be told where to keep packed weights.
    pub fn transformer_mut(&mut self) -> &mut Transformer {
        &mut self.transformer
    }

    /// Longest context of a stream.
    pub fn ctx_len(&self) -> usize {
        self.transformer.plan().ctx_len
    }

    /// Most rows of a batch.
    pub fn max_batch(&self) -> usize {
        self.transformer.plan().max_batch
    }

    /// A new, empty stream. Its place is free again when it is dropped.
    ///
    /// # Errors
    /// If all planned streams are in use.
    pub fn stream(&mut self) -> Result<Stream, EngineError> {
        Stream::new(&self.slots, self.ctx_len()).ok_or(EngineError::NoStream)
    }

    /// Appends `ids` to the stream, in batches, and returns the logits after the last one;
    /// nothing if `ids` is empty.
    ///
    /// # Errors
    /// If the context would overflow or an id does not exist. The stream then holds the
    /// batches before the failing one.
    pub fn push(&mut self, stream: &mut Stream, ids: &[u32]) -> Result<&mut [f32], StepError> {
        if ids.is_empty() {
            return Ok(&mut []);
        }
        let max_batch = self.transformer.plan().max_batch;
        let (first, last) = ids.split_at((ids.len() - 1) / max_batch * max_batch);
        for batch in first.chunks(max_batch) {
            self.push_batch(stream, batch, Logits::None)?;
        }
        self.push_batch(stream, last, Logits::Last)
    }

    /// Appends one batch to the stream and returns the logits that are wanted,
    /// `[wanted, vocab_size]`.
    ///
    /// # Errors
    /// If the batch or the logits are more than planned, the context would overflow, an id
    /// does not exist, or the stream is another engine's; the stream is unchanged then.
    pub fn push_batch(
        &mut self,
        stream: &mut Stream,
        ids: &[u32],
        logits: Logits,
    ) -> Result<&mut [f32], StepError> {
        if !stream.is_of(&self.slots) {
            return Err(StepError::Stranger);
        }
        let wants = match logits {
            Logits::None => Wants::None,
            Logits::Last => Wants::Last,
            Logits::All => Wants::All,
        };
        if ids.len() > self.max_batch() {
            return Err(ForwardError::Plan.into());
        }
        let span = stream.span(ids.len(), wants);
        self.submit(&[span], ids)?;
        if span.n_wanted() == 0 {
            stream.ids.extend_from_slice(ids);
            return Ok(&mut []);
        }
        let (_, logits) = self.collect()?;
        stream.ids.extend_from_slice(ids);
        Ok(logits)
    }

    /// Whether a batch can be submitted without waiting for another one's result.
    fn has_room(&self) -> bool {
        match &self.ring {
            Some(ring) => ring.has_room(),
            None => !self.is_submitted,
        }
    }

    /// Nodes that can compute at the same time.
    fn n_nodes(&self) -> usize {
        self.ring.as_ref().map_or(1, RingMaster::n_nodes)
    }

    /// Starts a batch of `tokens` in these spans. Those that want logits are collected in the
    /// same order.
    fn submit(&mut self, spans: &[Span], tokens: &[u32]) -> Result<(), StepError> {
        ring::from_spans(spans, tokens, &mut self.rows);
        self.transformer.check(&self.rows)?;
        match &mut self.ring {
            Some(ring) => ring.submit(&mut self.transformer, spans, tokens),
            None if self.rows.iter().any(|row| row.wants_logits) => {
                self.spans.clear();
                self.spans.extend_from_slice(spans);
                self.is_submitted = true;
                Ok(())
            }
            None => {
                self.transformer.forward(&self.rows)?;
                Ok(())
            }
        }
    }

    /// The oldest batch submitted that wants logits: its spans, and its logits,
    /// `[wanted, vocab_size]`.
    fn collect(&mut self) -> Result<(&[Span], &mut [f32]), StepError> {
        match &mut self.ring {
            Some(ring) => {
                let (spans, x) = ring.collect(&mut self.transformer)?;
                Ok((spans, self.transformer.classify(x)?))
            }
            None => {
                self.is_submitted = false;
                Ok((&self.spans, self.transformer.forward(&self.rows)?))
            }
        }
    }

    /// Makes the stream forget everything that `ids` does not begin with, and returns how
    /// many of `ids` remain in it. Pushing the rest makes the stream hold `ids`.
    ///
    /// At least one id is left to push, as its logits are wanted. With a sliding window none
    /// remains if more than a batch ([`Engine::max_batch`]) would be forgotten of a stream that
    /// is longer than the window.
    pub fn rewind(&self, stream: &mut Stream, ids: &[u32]) -> usize {
        let common = stream.ids.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let mut keep = common.min(ids.len().saturating_sub(1));
        if !self.transformer.can_rewind(stream.reached, keep) {
            keep = 0;
        }
        match keep {
            0 => stream.clear(),
            _ => stream.ids.truncate(keep),
        }
        keep
    }
}

/// Which rows of a batch want their logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None of them.
    None,
    /// The last.
    Last,
    /// All of them.
    All,
}

impl Options {
    /// The cores to run on: those asked for, else the fastest, as many as threads are wanted.
    pub fn cpus(&self) -> Vec<usize> {
        let cores = cpu::cores();
        let all: Vec<usize> = match &self.cores {
            Some(cores) => cores.clone(),
            None if self.threads.is_some() => cores.iter().map(|core| core.cpu).collect(),
            None => cpu::fast_cores(&cores),
        };
        let threads = self.threads.unwrap_or(all.len()).max(1);
        all.iter().copied().cycle().take(threads).collect()
    }

    /// The same for one model. If neither threads nor cores are asked for, one thread runs a model of
    /// which a step of a token reads less than [`STEP_BYTES_MIN`]: the threads wait for each other
    /// after every step, which takes as long as one alone needs for so little.
    pub fn cpus_for(&self, model: &Model) -> Vec<usize> {
        let mut cpus = self.cpus();
        let is_asked_for = self.threads.is_some() || self.cores.is_some();
        if !is_asked_for && step_bytes(model) < STEP_BYTES_MIN {
            cpus.truncate(1);
        }
        cpus
    }
}

/// Bytes of weights that one projection of one token reads, on average.
fn step_bytes(model: &Model) -> u64 {
    let share = model.share();
    let steps = PROJECTIONS * share.layers.len() + usize::from(share.has_ends);
    model.bytes_per_token() / steps as u64
}
