//! Made-up models of a shape, to measure with.

use std::fmt;

use super::options::batch_default;
use crate::format::model::{Header, Packed, Weights};
use crate::kernels::Kernels;
use crate::model::{KvKind, Model, Plan, Shape, Share, SyntheticError};
use crate::sys::huge::Pages;
use crate::sys::memory;

/// Most memory left to the rest of the program and of the system, in bytes.
const SPARE_BYTES: u64 = 256 << 20;
/// This part of the free memory is left (1/8), if that is less than [`SPARE_BYTES`].
const SPARE_PART: u64 = 8;

/// Why there is no made-up model.
#[derive(Debug)]
pub(crate) enum MadeUpError {
    /// The model needs more memory than is left for it.
    Memory {
        /// Bytes that the model needs.
        needed: u64,
        /// Bytes that are left for the model.
        free: u64,
        /// Most layers of the model that fit, if one does.
        fits: Option<usize>,
    },
    /// The model cannot be made.
    Synthetic(SyntheticError),
}

impl fmt::Display for MadeUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MadeUpError::Memory { needed, free, .. } => write!(
                f,
                "the model needs {} MiB of memory, {} MiB are left for it",
                needed >> 20,
                free >> 20
            ),
            MadeUpError::Synthetic(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for MadeUpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MadeUpError::Memory { .. } => None,
            MadeUpError::Synthetic(e) => e.source(),
        }
    }
}

/// Makes up a model of `layers` layers of `shape` in `pages`, packed for `kernels`.
///
/// # Errors
/// If there is no memory for it and for a context of `context.0` tokens.
pub(crate) fn model(
    shape: Shape,
    layers: usize,
    weights: Weights,
    kernels: &Kernels,
    context: (usize, Option<KvKind>),
    pages: Pages,
) -> Result<Model, MadeUpError> {
    let header = |layers: usize| packed(shape.with_layers(layers).header(weights), kernels);
    let needed = |layers: usize| bytes(&header(layers), context);
    let free = memory::available_bytes().map(|free| free - (free / SPARE_PART).min(SPARE_BYTES));
    if let Some(free) = free.filter(|free| *free < needed(layers)) {
        let fits = (1..layers).rev().find(|layers| needed(*layers) <= free);
        return Err(MadeUpError::Memory { needed: needed(layers), free, fits });
    }
    Model::synthetic_in(&header(layers), pages).map_err(MadeUpError::Synthetic)
}

/// Bytes for a context of `ctx_len` tokens and one stream, with keys and values in the usual format for the model's
/// weights unless `kv` says otherwise; `None` if the model does not allow this context.
pub(crate) fn buffer_bytes(header: &Header, ctx_len: usize, kv: Option<KvKind>) -> Option<u64> {
    let plan = Plan {
        ctx_len,
        max_batch: batch_default(header).min(ctx_len),
        max_logits: 1,
        n_streams: 1,
        kv: kv.unwrap_or(KvKind::for_weights(header.weights)),
        kv_pages: None,
    };
    plan.bytes(header, &Share::whole(header)).ok().and_then(|bytes| u64::try_from(bytes).ok())
}

/// `header` of a model that is packed for `kernels`, if they have an order of their own for its weights.
fn packed(header: Header, kernels: &Kernels) -> Header {
    let layout = kernels.layout().filter(|_| header.weights != Weights::F32);
    let packed = layout.map(|layout| Packed {
        layout: layout.id(),
        panel_rows: layout.panel_rows(),
        shares_embedding: header.shared_classifier,
        fingerprint: 0,
    });
    Header { packed, ..header }
}

/// Bytes of the model and of its buffers.
fn bytes(header: &Header, (ctx_len, kv): (usize, Option<KvKind>)) -> u64 {
    let buffers = buffer_bytes(header, ctx_len, kv).unwrap_or(u64::MAX);
    header.tensors_end().saturating_add(buffers)
}
