//! The type of blocks of each matrix in a file of version 5.
//!
//! ```text
//! offset  type  field
//! 0       u8s   number of the type in GGUF files, for each matrix of the whole model: kind after kind in the order of the
//!               file, and layer after layer; 0 where a layer lacks the kind
//!               then zeros up to a multiple of 128
//! ```

use super::ggml_types::GgmlTypes;
use super::header::{Header, PACKED_ALIGN};
use super::kinds::{TensorKind, TensorRole};
use super::tensors::{Tensor, TensorId};
use super::weights::{Encoding, Weights};
use crate::format::FormatError;
use crate::quant::Ggml;

impl Header {
    /// Kinds of tensors that have types. A shared classifier has the embedding's, also where a packed file has both.
    fn kinds_in_blocks(&self) -> impl Iterator<Item = TensorKind> + '_ {
        let is_in_blocks =
            |kind: &TensorKind| !matches!(kind.role(), TensorRole::Vector | TensorRole::Router);
        let kinds = self.kinds().filter(is_in_blocks).filter(|kind| !self.is_narrow(*kind));
        kinds.filter(|kind| self.kind_of_types(*kind) == *kind)
    }

    /// The kind whose types those of `kind` are.
    fn kind_of_types(&self, kind: TensorKind) -> TensorKind {
        match kind {
            TensorKind::Classifier if self.shared_classifier => TensorKind::Embedding,
            kind => kind,
        }
    }

    /// The types that `of` gives for the matrices of a whole model.
    ///
    /// # Errors
    /// The first error of `of` ends it.
    pub fn ggml_types<E>(
        &self,
        mut of: impl FnMut(TensorId) -> Result<Ggml, E>,
    ) -> Result<GgmlTypes, E> {
        let mut kinds = Vec::new();
        for kind in self.kinds_in_blocks() {
            let types = (0..self.n_layers_of_whole(kind)).map(|layer| {
                let is_there = self.has_in(kind, layer);
                is_there.then(|| of(TensorId { kind, layer })).transpose()
            });
            kinds.push((kind as usize, types.collect::<Result<Vec<_>, E>>()?));
        }
        Ok(GgmlTypes { kinds })
    }

    /// Number of layers of the whole model that may have a tensor of `kind`.
    fn n_layers_of_whole(&self, kind: TensorKind) -> usize {
        if kind.is_per_layer() { self.n_layers_and_next() } else { 1 }
    }

    /// Length of the block of types in a file; 0 if it has none.
    pub(super) fn types_len(&self) -> usize {
        if self.weights != Weights::Ggml {
            return 0;
        }
        let len = self
            .kinds_in_blocks()
            .fold(0, |len: usize, kind| len.saturating_add(self.n_layers_of_whole(kind)));
        len.checked_next_multiple_of(PACKED_ALIGN as usize).unwrap_or(usize::MAX)
    }

    /// The block of types.
    pub(super) fn emit_types(&self) -> Vec<u8> {
        let types = self.ggml.kinds.iter().flat_map(|(_, layers)| layers);
        let mut bytes: Vec<u8> = types.map(|kind| kind.map_or(0, Ggml::id)).collect();
        bytes.resize(self.types_len(), 0);
        bytes
    }

    /// Reads the block of types.
    pub(super) fn parse_types(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let mut bytes = bytes.iter();
        let mut kinds = Vec::new();
        for kind in self.kinds_in_blocks() {
            let layers = bytes.by_ref().take(self.n_layers_of_whole(kind)).enumerate();
            let types = layers.map(|(layer, byte)| {
                let is_there = self.has_in(kind, layer);
                match (Ggml::from_id((*byte).into()), is_there) {
                    (Some(kind), true) => Ok(Some(kind)),
                    (None, false) if *byte == 0 => Ok(None),
                    _ => {
                        let id = TensorId { kind, layer };
                        Err(FormatError::Unsupported(format!("{id} in blocks of type {byte}")))
                    }
                }
            });
            kinds.push((kind as usize, types.collect::<Result<Vec<_>, FormatError>>()?));
        }
        self.ggml = GgmlTypes { kinds };
        match bytes.all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(FormatError::Unsupported("types of blocks of other tensors".to_owned())),
        }
    }

    /// Checks that rows of matrices are whole blocks.
    pub(super) fn check_types(&self) -> Result<(), FormatError> {
        if self.weights != Weights::Ggml {
            return Ok(());
        }
        for Tensor { id, cols, .. } in self.tensors() {
            let ggml = self.type_of(id);
            if let Some(ggml) = ggml.filter(|ggml| !cols.is_multiple_of(ggml.len())) {
                let len = ggml.len();
                let what = format!("{id}: rows of {cols} values in blocks of {len}");
                return Err(FormatError::Unsupported(what));
            }
        }
        Ok(())
    }

    /// Encoding of matrix `id` in blocks.
    pub(super) fn ggml_encoding(&self, id: TensorId) -> Encoding {
        // A header that was parsed or checked has a type for each of its matrices.
        self.type_of(id).map_or(Encoding::F32, Encoding::Ggml)
    }

    fn type_of(&self, id: TensorId) -> Option<Ggml> {
        self.ggml.get(self.kind_of_types(id.kind) as usize, id.layer)
    }
}
