//! The type of blocks of each matrix.

use crate::quant::Ggml;

/// The type of blocks of each matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GgmlTypes {
    /// Types by layer, for each kind of tensor that is stored in blocks, by the kind's number.
    pub(super) kinds: Vec<(usize, Vec<Option<Ggml>>)>,
}

impl GgmlTypes {
    /// The type of the matrix of the kind with this number in `layer`, if it has one.
    pub(super) fn get(&self, kind: usize, layer: usize) -> Option<Ggml> {
        let (_, layers) = self.kinds.iter().find(|(number, _)| *number == kind)?;
        layers.get(layer).copied().flatten()
    }

    /// The types in use, each once, in the order of their numbers.
    pub fn in_use(&self) -> Vec<Ggml> {
        let mut types: Vec<Ggml> =
            self.kinds.iter().flat_map(|(_, layers)| layers.iter().flatten().copied()).collect();
        types.sort_unstable_by_key(|kind| kind.id());
        types.dedup();
        types
    }
}
