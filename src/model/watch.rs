//! Shows the inputs of matrices to an observer.

use super::project::Fill;
use crate::format::model::{TensorId, TensorKind};
use crate::kernels::MatrixDims;
use crate::pool::{Chunks, Pool};

/// Observer of inputs. Its arguments are the matrix, its expert (0 if there are none), the rows `[m, k]` that
/// the matrix will be multiplied by, and `k`. If several matrices have the same inputs, it is called for the
/// first only.
pub type Watch = dyn Fn(TensorId, usize, &[f32], usize) + Send + Sync;

/// Observer of one layer's inputs, if there is one.
#[derive(Clone, Copy)]
pub(super) struct Watcher<'a> {
    pub(super) watch: Option<&'a Watch>,
    pub(super) layer: usize,
}

impl Watcher<'_> {
    /// Shows the inputs of `expert`'s matrix of `kind` to the observer: the first rows of `x`, which `fill`
    /// writes first if there is one. Returns `fill` if it still has to be called.
    pub(super) fn tell<'f>(
        &self,
        (kind, expert): (TensorKind, usize),
        (x, MatrixDims { rows: m, k }): (&mut [f32], MatrixDims),
        pool: &Pool,
        fill: Option<Fill<'f>>,
    ) -> Option<Fill<'f>> {
        let Some(watch) = self.watch else { return fill };
        let x = &mut x[..m * k];
        if let Some(fill) = fill {
            pool.run_chunks(Chunks::new(&mut *x, k), &|row, x| fill(row, x));
        }
        watch(TensorId { kind, layer: self.layer }, expert, x, k);
        None
    }
}
