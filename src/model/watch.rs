//! Lets somebody look at what matrices are multiplied by.

use super::inputs::Prepared;
use crate::format::model::{TensorId, TensorKind};

/// Is told the matrix, the expert whose it is, 0 where there are none, the rows `[m, k]` that it is
/// about to be multiplied by, and `k`. Only of rows that stay f32; of matrices that have the same
/// rows only the first.
pub type Watch = dyn Fn(TensorId, usize, &[f32], usize) + Send + Sync;

/// Who is told of one layer's inputs, if anybody.
#[derive(Clone, Copy)]
pub(super) struct Watcher<'a> {
    pub(super) watch: Option<&'a Watch>,
    pub(super) layer: usize,
}

impl Watcher<'_> {
    /// Tells of the inputs of a matrix of `kind`.
    pub(super) fn tell(&self, kind: TensorKind, expert: usize, inputs: Prepared<'_>) {
        if let (Some(watch), Prepared::F32 { x, k }) = (self.watch, inputs) {
            watch(TensorId { kind, layer: self.layer }, expert, x, k);
        }
    }
}
