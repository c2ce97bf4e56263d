//! Options for running a model.

use std::io;

use super::weights::{Cache, Huge};
use crate::format::model::Header;
use crate::kernels::Isa;
use crate::model::{KV_PAGE, KvKind, Model, Plan, Share};
use crate::pool::Pool;
use crate::sys::{cpu, memory};

/// Context length if none is asked for and the model allows it.
pub const CTX_LEN_DEFAULT: usize = 4096;

/// Rows of a prompt in one pass.
const BATCH_DEFAULT: usize = 256;

/// Default number of prompt rows in one pass. It is doubled for a mixture of experts, where each expert gets
/// only some of the rows, and its weights have to be read for them.
pub fn batch_default(header: &Header) -> usize {
    if header.features.experts.is_some() { 2 * BATCH_DEFAULT } else { BATCH_DEFAULT }
}

/// Minimum weights of a step, in bytes, for several threads by default. Fewer bytes than this are read by one
/// thread from its cache in the 10 to 20 microseconds that threads wait for each other at a step.
pub const STEP_BYTES_MIN: u64 = 256 << 10;

/// Projections of a layer that threads share: q, k and v, attention's output, gate and up, and down.
const PROJECTIONS: usize = 4;

/// Memory for keys and values, shared by the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvMemory {
    /// Full contexts of all streams.
    #[default]
    Whole,
    /// Half of the memory that is free beside the weights; at most two contexts for each stream, and at least
    /// one in all. Pages that streams do not need keep earlier texts.
    Free,
    /// Room for this many tokens, and at least for one context.
    Tokens(usize),
    /// At most this many bytes, and at least one context. In a ring, bytes of all nodes together.
    Bytes(u64),
}

impl KvMemory {
    /// Number of KV pages of `plan` for `model`; `None` for full contexts of all streams.
    pub(super) fn pages(self, plan: &Plan, model: &Model) -> Option<usize> {
        let header = model.header();
        let whole = match model.share().has_next(header) {
            true => Share::with_next(header),
            false => Share::whole(header),
        };
        let ctx_pages = plan.kv_plan(header).ctx_pages;
        match self {
            KvMemory::Whole => None,
            KvMemory::Tokens(n) => Some(n / KV_PAGE),
            KvMemory::Bytes(bytes) => Some(plan.pages_in(bytes, header, &whole)),
            KvMemory::Free => {
                let most = ctx_pages.saturating_mul(2).saturating_mul(plan.n_streams);
                let free = memory::available_bytes().unwrap_or(0);
                let free = free.saturating_sub(model.bytes_per_token());
                Some(plan.pages_in(free / 2, header, &whole).clamp(ctx_pages, most.max(ctx_pages)))
            }
        }
    }
}

/// Which device computes layers beside the CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// None.
    #[default]
    Cpu,
    /// A GPU, if there is one that gives the CPUs' bits, can compute the model, and multiplies weights faster than the
    /// CPUs read them.
    Auto,
    /// A GPU; starting fails without one.
    Gpu {
        /// Part of its name; `None` for the first that is no program on the CPU.
        name: Option<String>,
    },
}

/// A device beside the CPUs. The model's last layers that fit its memory are computed there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Which device.
    pub choice: DeviceChoice,
    /// Most bytes of its memory to use; nine tenths by default.
    pub memory: Option<u64>,
}

/// How to run a model. The default suits the machine.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Longest context; by default what the model allows, up to [`CTX_LEN_DEFAULT`].
    pub ctx_len: Option<usize>,
    /// Rows of one forward pass, [`batch_default`] by default.
    pub batch: Option<usize>,
    /// Most rows of a forward pass that may want logits; by default one for each stream, if a batch has that
    /// many rows.
    pub max_logits: Option<usize>,
    /// Streams with a KV cache of their own, 1 by default.
    pub n_streams: Option<usize>,
    /// How much memory streams share for keys and values.
    pub kv_memory: KvMemory,
    /// Format of stored keys and values; see [`KvKind::for_weights`].
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
    /// The device beside the CPUs.
    pub device: DeviceOptions,
}

impl Options {
    /// The sizes of a run of a model with this header, with full contexts of all streams.
    pub(crate) fn plan(&self, header: &Header) -> Plan {
        let ctx_len = self.ctx_len.unwrap_or(header.max_seq_len.min(CTX_LEN_DEFAULT));
        let n_streams = self.n_streams.unwrap_or(1);
        // A stream never has more rows than its context.
        let rows = ctx_len.max(1).saturating_mul(n_streams.max(1));
        let max_batch = self.batch.unwrap_or(batch_default(header)).min(rows);
        Plan {
            ctx_len,
            max_batch,
            max_logits: self.max_logits.unwrap_or(n_streams).min(max_batch),
            n_streams,
            kv: self.kv.unwrap_or(KvKind::for_weights(header.weights)),
            kv_pages: None,
        }
    }

    /// The cores to run on, one for each thread: those asked for, or else the fastest.
    pub fn cpus(&self) -> Vec<usize> {
        let all: Vec<usize> = match &self.cores {
            Some(cores) => cores.clone(),
            None if self.threads.is_some() => cpu::cores().iter().map(|core| core.cpu).collect(),
            None => cpu::cores_worth_using(),
        };
        let threads = self.threads.unwrap_or(all.len()).max(1);
        all.iter().copied().cycle().take(threads).collect()
    }

    /// CPUs to run `model` on. If neither threads nor cores are asked for, a model whose step reads less than
    /// [`STEP_BYTES_MIN`] per token gets one thread: several would wait for each other after every step, for
    /// as long as one thread takes for the whole step.
    pub fn cpus_for(&self, model: &Model) -> Vec<usize> {
        let mut cpus = self.cpus();
        let is_asked_for = self.threads.is_some() || self.cores.is_some();
        if !is_asked_for && is_small(model) {
            cpus.truncate(1);
        }
        cpus
    }

    /// The threads that compute `model`. A single thread is pinned only to a core that was asked for:
    /// otherwise several processes with one thread each would share the fastest core.
    pub(super) fn pool(&self, model: &Model) -> io::Result<Pool> {
        let cpus = self.cpus_for(model);
        let is_pinned = self.cores.is_some() || cpus.len() > 1;
        Pool::new(if is_pinned { &cpus } else { &[] })
    }
}

/// Whether a step is so short that several threads are not worth their waiting for each other.
pub fn is_small(model: &Model) -> bool {
    step_bytes(model) < STEP_BYTES_MIN
}

/// Bytes of weights that one projection of one token reads, on average.
fn step_bytes(model: &Model) -> u64 {
    let share = model.share();
    let steps = PROJECTIONS * share.layers.len() + usize::from(share.has_ends);
    model.bytes_per_token() / steps as u64
}
