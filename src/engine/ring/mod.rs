//! A node of a ring at work: joins the model's stages, the ring's state machines and a link.

mod master;
mod node;
mod rows;
mod worker;

use std::io;

use crate::model::{CheckError, KvType, Plan};
use crate::wire::Dtype;
use crate::wire::frame::Sizes;

pub use master::{RingMaster, RingOptions, Tell};
pub(super) use rows::from_spans;
pub use worker::{Limits, run_worker};

/// Why a node cannot work.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// The link's socket failed.
    Link(io::Error),
    /// The system refused a thread.
    Thread(io::Error),
    /// A row of the model is larger than a frame.
    Width,
    /// The weights are damaged: the other nodes' work would be for nothing.
    Weights(CheckError),
}

impl std::fmt::Display for NodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NodeError::Link(e) => write!(f, "the link failed: {e}"),
            NodeError::Thread(e) => write!(f, "cannot start the link's thread: {e}"),
            NodeError::Width => write!(f, "the model is too wide for the ring's frames"),
            NodeError::Weights(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for NodeError {}

/// What all nodes of a ring agree on for runs of `plan`; `None` if a number is beyond what
/// frames can say.
fn sizes(plan: &Plan, dim: usize, wire: Dtype) -> Option<Sizes> {
    Some(Sizes {
        ctx_len: u32::try_from(plan.ctx_len).ok()?,
        n_streams: u16::try_from(plan.n_streams).ok()?,
        max_batch: u16::try_from(plan.max_batch).ok()?,
        max_logits: u16::try_from(plan.max_logits).ok()?,
        kv: match plan.kv {
            KvType::F16 => Dtype::F16,
            KvType::F32 => Dtype::F32,
        },
        wire,
        dim: u32::try_from(dim).ok()?,
    })
}

/// The plan of a run of these sizes.
fn plan(sizes: &Sizes) -> Plan {
    Plan {
        ctx_len: sizes.ctx_len as usize,
        max_batch: sizes.max_batch.into(),
        max_logits: sizes.max_logits.into(),
        n_streams: sizes.n_streams.into(),
        kv: match sizes.kv {
            Dtype::F16 => KvType::F16,
            Dtype::F32 => KvType::F32,
        },
    }
}
