//! The made-up model of a shape, if there is memory for it.

use crate::cli::Failure;
use crate::cli::doctor::model::buffer_bytes;
use crate::format::model::{Header, Packed, Weights};
use crate::kernels::Kernels;
use crate::model::{KvKind, Model, Shape};
use crate::sys::huge::Pages;
use crate::sys::memory;

/// Most memory left to the rest of the program and of the system, in bytes.
const SPARE_BYTES: u64 = 256 << 20;
/// This part of the free memory is left (1/8), if that is less than [`SPARE_BYTES`].
const SPARE_PART: u64 = 8;

/// Makes up a model of `shape` in `pages`, packed for `kernels`, with `layers` layers or all of the shape's. Fails if
/// there is no memory for it and for a context of `context.0` tokens.
pub(in crate::cli) fn model(
    shape: Shape,
    layers: Option<usize>,
    weights: Weights,
    kernels: &Kernels,
    context: (usize, Option<KvKind>),
    pages: Pages,
) -> Result<Model, Failure> {
    let (all, wanted) = (shape.n_layers(), layers.unwrap_or(shape.n_layers()));
    if !(1..=all).contains(&wanted) {
        let problem = format!("--layers is {wanted}, {} has {all} layers", shape.name);
        return Err(Failure::Usage(problem));
    }
    let header = |layers: usize| packed(shape.with_layers(layers).header(weights), kernels);
    let needed = |layers: usize| bytes(&header(layers), context);
    let free = memory::available_bytes().map(|free| free - (free / SPARE_PART).min(SPARE_BYTES));
    if let Some(free) = free.filter(|free| *free < needed(wanted)) {
        let most = (1..wanted).rev().find(|layers| needed(*layers) <= free);
        let mend =
            most.map_or("not one of its layers fits".to_owned(), |n| format!("--layers {n} fits"));
        return Err(Failure::Runtime(format!(
            "{} in version {} needs {} MiB of memory, {} MiB are left for it: {mend}",
            shape.name,
            weights.version(),
            needed(wanted) >> 20,
            free >> 20
        )));
    }
    Model::synthetic_in(&header(wanted), pages).map_err(|e| Failure::runtime(&e))
}

/// `header` of a model that is packed for `kernels`, if they have an order of their own for its weights.
fn packed(header: Header, kernels: &Kernels) -> Header {
    let layout = kernels.layout().filter(|_| header.weights != Weights::F32);
    let packed = layout.map(|layout| Packed {
        layout: layout.id(),
        panel_rows: layout.panel_rows(),
        fingerprint: 0,
    });
    Header { packed, ..header }
}

/// Bytes of the model and of its buffers.
fn bytes(header: &Header, (ctx_len, kv): (usize, Option<KvKind>)) -> u64 {
    let buffers = buffer_bytes(header, ctx_len, kv).unwrap_or(u64::MAX);
    header.tensors_end().saturating_add(buffers)
}
