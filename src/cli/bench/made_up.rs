//! The made-up model of a shape, if there is memory for it.

use crate::cli::Failure;
use crate::engine::made_up::{self, MadeUpError};
use crate::format::model::Weights;
use crate::kernels::Kernels;
use crate::model::{KvKind, Model, Shape};
use crate::sys::huge::Pages;

/// Makes up a model of `shape` in `pages`, packed for `kernels`, with `layers` layers or all of the shape's. Fails if
/// there is no memory for it and for a context of `context.0` tokens.
pub(super) fn model(
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
    made_up::model(shape, wanted, weights, kernels, context, pages).map_err(|e| match e {
        MadeUpError::Memory { needed, free, fits } => {
            let mend = fits
                .map_or("not one of its layers fits".to_owned(), |n| format!("--layers {n} fits"));
            Failure::Runtime(format!(
                "{} in version {} needs {} MiB of memory, {} MiB are left for it: {mend}",
                shape.name,
                weights.version(),
                needed >> 20,
                free >> 20
            ))
        }
        e => Failure::runtime(&e),
    })
}
