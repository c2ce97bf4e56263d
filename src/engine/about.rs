//! An engine's description: model, kernels, memory, threads.

use crate::kernels::Isa;
use crate::model::KvKind;

/// Model, kernels, memory and threads of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineInfo {
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Threads that compute.
    pub threads: usize,
    /// Format of stored keys and values.
    pub kv: KvKind,
    /// Bytes of buffers and KV cache.
    pub arena_bytes: usize,
    /// Where the weights are read from.
    pub weights: WeightsIn,
}

/// Where weights are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsIn {
    /// The model's file, not packed.
    Unpacked,
    /// A mapped file that holds the weights packed for the kernels.
    Mapped,
    /// Memory of this process, packed; in huge pages if there are any.
    Memory,
}
