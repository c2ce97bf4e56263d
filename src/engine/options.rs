//! How a model is run.

use super::weights::{Cache, Huge};
use crate::format::model::Header;
use crate::kernels::Isa;
use crate::model::{KV_PAGE, KvKind, Model, Plan};
use crate::sys::{cpu, memory};

/// Context used when none is asked for, if the model allows that much.
pub const CTX_LEN_DEFAULT: usize = 4096;

/// Rows of a prompt that go through a model at once.
const BATCH_DEFAULT: usize = 256;

/// Default number of prompt rows in one pass. It is twice as large for a mixture of experts: each expert gets
/// only a few rows, and its weights have to be read for these.
pub fn batch_default(header: &Header) -> usize {
    if header.features.experts.is_some() { 2 * BATCH_DEFAULT } else { BATCH_DEFAULT }
}

/// Weights of a step from which on several threads are used by default: one thread reads fewer from its cache
/// in the 10 to 20 microseconds for which threads wait at a step.
pub const STEP_BYTES_MIN: u64 = 256 << 10;

/// Projections of a layer that threads share: queries to values, attention's output, gate and up, and down.
const PROJECTIONS: usize = 4;

/// Memory for keys and values, which streams share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvMemory {
    /// Whole contexts of all streams.
    #[default]
    Whole,
    /// Half of the memory that is free beside the weights, but no more than two contexts for each stream, and
    /// no less than one in all: pages that streams do not need keep earlier texts.
    Free,
    /// For so many tokens, a context at least.
    Tokens(usize),
    /// At most so many bytes, and at least a context; in a ring, those of all nodes together.
    Bytes(u64),
}

impl KvMemory {
    /// The pages of `plan` for `model`.
    pub(super) fn pages(self, plan: &Plan, model: &Model) -> Option<usize> {
        let header = model.header();
        let ctx_pages = plan.kv_plan(header).ctx_pages;
        match self {
            KvMemory::Whole => None,
            KvMemory::Tokens(n) => Some(n / KV_PAGE),
            KvMemory::Bytes(bytes) => Some(plan.pages_in(bytes, header)),
            KvMemory::Free => {
                let most = ctx_pages.saturating_mul(2).saturating_mul(plan.n_streams);
                let free = memory::available_bytes().unwrap_or(0);
                let free = free.saturating_sub(model.bytes_per_token());
                Some(plan.pages_in(free / 2, header).clamp(ctx_pages, most.max(ctx_pages)))
            }
        }
    }
}

/// How to run a model. The default suits the machine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Longest context; by default what the model allows, up to [`CTX_LEN_DEFAULT`].
    pub ctx_len: Option<usize>,
    /// Rows of one forward pass, [`batch_default`] by default.
    pub batch: Option<usize>,
    /// Most rows of a forward pass that may want logits, by default one for each stream,
    /// as far as a batch has room for them.
    pub max_logits: Option<usize>,
    /// Streams with a KV cache of their own, 1 by default.
    pub n_streams: Option<usize>,
    /// How much memory streams share for keys and values.
    pub kv_memory: KvMemory,
    /// How keys and values are kept; see [`KvKind::for_weights`].
    pub kv: Option<KvKind>,
    /// Number of threads; by default one for each fast core within the control groups' quota, or only one if
    /// a token's work is too short for several: see [`Options::cpus_for`].
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

impl Options {
    /// The cores to run on: those asked for, else the fastest, as many as threads are wanted.
    pub fn cpus(&self) -> Vec<usize> {
        let all: Vec<usize> = match &self.cores {
            Some(cores) => cores.clone(),
            None if self.threads.is_some() => cpu::cores().iter().map(|core| core.cpu).collect(),
            None => cpu::cores_worth_using(),
        };
        let threads = self.threads.unwrap_or(all.len()).max(1);
        all.iter().copied().cycle().take(threads).collect()
    }

    /// CPUs to run `model` on. If neither threads nor cores are asked for, one thread runs a model of which a
    /// step of a token reads less than [`STEP_BYTES_MIN`]: several threads would wait for each other after
    /// every step, for as long as one thread takes for the whole step.
    pub fn cpus_for(&self, model: &Model) -> Vec<usize> {
        let mut cpus = self.cpus();
        let is_asked_for = self.threads.is_some() || self.cores.is_some();
        if !is_asked_for && is_small(model) {
            cpus.truncate(1);
        }
        cpus
    }
}

/// Whether a step of a token is not worth waiting for other threads.
pub fn is_small(model: &Model) -> bool {
    step_bytes(model) < STEP_BYTES_MIN
}

/// Bytes of weights that one projection of one token reads, on average.
fn step_bytes(model: &Model) -> u64 {
    let share = model.share();
    let steps = PROJECTIONS * share.layers.len() + usize::from(share.has_ends);
    model.bytes_per_token() / steps as u64
}
