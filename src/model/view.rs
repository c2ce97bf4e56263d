//! The weights of a model's file that one node uses.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::file::{LoadError, ModelFile};
use super::matrix::Matrix;
use super::share::Share;
use super::source::Weights;
use crate::format::FormatError;
use crate::format::model::{Encoding, FileShare, Header, TensorId, TensorKind};
use crate::kernels::Isa;
use crate::quant::{Bcml1Matrix, Bcml2Matrix, Bcml6Matrix, GgmlMatrix, Q8Matrix};
use crate::sys::map::Stamp;

/// A view of a model's file: the mapped weights of the whole model, or of one node's share. Another view can
/// have other layers of the same file.
pub struct Model {
    file: Arc<ModelFile>,
    share: Share,
    weights: Weights,
}

impl Model {
    /// Maps the model file at `path` and checks its header.
    ///
    /// # Errors
    /// If the file cannot be mapped, is not a model with every tensor inside the file, or holds only some of
    /// the layers.
    pub fn open(path: &Path) -> Result<Model, LoadError> {
        let model = Model::open_part(path)?;
        match model.check_whole() {
            Ok(()) => Ok(model),
            Err(source) => Err(LoadError::Format { path: path.to_owned(), source }),
        }
    }

    /// Maps the model file at `path`, with all of the model's layers or some; see [`Model::share`].
    ///
    /// # Errors
    /// If the file cannot be mapped, or is not a model with every tensor inside the file.
    pub fn open_part(path: &Path) -> Result<Model, LoadError> {
        let file = ModelFile::open(path)?;
        Model::of_file(file).map_err(|source| LoadError::Io { path: path.to_owned(), source })
    }

    /// Uses a model file that is part of the program.
    ///
    /// # Errors
    /// If the bytes are not a model file, or do not start at a multiple of 4.
    pub fn from_static(bytes: &'static [u8]) -> Result<Model, FormatError> {
        ModelFile::from_static(bytes).map(Model::in_memory)
    }

    /// A view of everything in a file in memory.
    pub(super) fn in_memory(file: ModelFile) -> Model {
        Model::of_file(file).expect("only files can fail to be mapped")
    }

    fn of_file(file: ModelFile) -> io::Result<Model> {
        let share = file.share();
        let weights = Weights::new(file.header(), &file.source, &share)?;
        Ok(Model { file: Arc::new(file), share, weights })
    }

    /// A view of the weights of `share` in the same file. This view need not hold them.
    ///
    /// # Errors
    /// If the file cannot be mapped or was written to, the share has no layers, or the file does not hold
    /// them.
    pub fn with_share(&self, share: Share) -> io::Result<Model> {
        let Range { start, end } = share.layers;
        let own = self.file.share();
        if start >= end || !own.includes(&share) {
            let ends = if share.has_ends && !own.has_ends { " and the embedding" } else { "" };
            let what = format!(
                "no layers {start}..{end}{ends} where there are {}..{} of {}",
                own.layers.start,
                own.layers.end,
                self.header().n_layers
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if let Some(why) = self.header().why_not_alone(&share.layers) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.view_of(share)
    }

    /// A view of the whole model and of the block behind its last layer, see
    /// [`Header::next_layer`]; `None` if the file lacks one of them.
    ///
    /// # Errors
    /// If the file cannot be mapped or was written to.
    pub fn with_next(&self) -> io::Result<Option<Model>> {
        let is_there = self.header().share.is_none() && self.header().next_layer().is_some();
        is_there.then(|| self.view_of(Share::with_next(self.header()))).transpose()
    }

    /// A view of the weights of `share`, which the file must hold. The share may have no layers.
    ///
    /// # Errors
    /// If the file cannot be mapped or was written to.
    pub(crate) fn view_of(&self, share: Share) -> io::Result<Model> {
        let weights = Weights::new(self.header(), &self.file.source, &share)?;
        Ok(Model { file: Arc::clone(&self.file), share, weights })
    }

    /// Refuses a model whose file holds only some layers.
    ///
    /// # Errors
    /// The layers that the file holds.
    pub fn check_whole(&self) -> Result<(), FormatError> {
        let Some(FileShare { layers: Range { start, end }, slice, .. }) = &self.header().share
        else {
            return Ok(());
        };
        let (n_layers, rows) =
            (self.header().n_layers, if slice.is_some() { "some rows of " } else { "" });
        Err(FormatError::Unsupported(format!(
            "the file holds only {rows}layers {start}..{end} of {n_layers}, for one node of a ring"
        )))
    }

    /// The file.
    pub fn file(&self) -> &ModelFile {
        &self.file
    }

    /// The file's header.
    pub fn header(&self) -> &Header {
        self.file.header()
    }

    /// The kernels that the file's matrices are packed for; no others can use them. `None` if they are not
    /// packed.
    pub fn packed_for(&self) -> Option<Isa> {
        self.file.packed_for().map(|(isa, _)| isa)
    }

    /// The part of the model that this view holds.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// Fingerprint of the file, see [`ModelFile::fingerprint`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn fingerprint(&self) -> io::Result<u64> {
        self.file.fingerprint()
    }

    /// Stamp of the file, see [`ModelFile::stamp`].
    pub fn stamp(&self) -> Option<&Stamp> {
        self.file.stamp()
    }

    /// Bytes of the share's weights that decoding one token reads, see [`Header::reads_per_token`].
    pub fn bytes_per_token(&self) -> u64 {
        self.header().bytes_per_token(|id| self.share.holds(id))
    }

    /// Bytes of all weights of the share. Packed weights have about as many.
    pub fn weight_bytes(&self) -> u64 {
        let own = self.header().tensors().filter(|tensor| self.share.holds(tensor.id));
        own.map(|tensor| tensor.bytes).sum()
    }

    /// The vector of `kind` in `layer`, or another tensor that is always f32.
    pub(crate) fn vector(&self, kind: TensorKind, layer: usize) -> &[f32] {
        floats(self.content(TensorId { kind, layer }))
    }

    /// The matrix of `kind` in `layer` (0 for a matrix outside the layers).
    pub(crate) fn matrix(&self, kind: TensorKind, layer: usize) -> Matrix<'_> {
        let header = self.header();
        let id = TensorId { kind, layer };
        let bytes = self.content(id);
        let is_packed = header.packing_of(kind).is_some();
        if let Some((_, layout)) = self.file.packed_for().filter(|_| is_packed) {
            return Matrix::packed(bytes, header, id, layout);
        }
        let (rows, k) = header.held_shape(kind);
        match header.encoding(id) {
            Encoding::F32 => Matrix::F32 { w: floats(bytes), k },
            Encoding::Q8 { group } => {
                let (q, scales) = bytes.split_at(rows * k);
                let matrix = Q8Matrix::new(bytemuck::cast_slice(q), floats(scales), k, group);
                Matrix::Q8(matrix.expect("the header's group size divides every matrix"))
            }
            Encoding::Bcml1 => {
                let matrix = Bcml1Matrix::new(bytes, k);
                Matrix::Q4(matrix.expect("the header's group size divides every matrix"))
            }
            Encoding::Bcml2 => {
                let matrix = Bcml2Matrix::new(bytes, k);
                Matrix::B2(matrix.expect("the header's group size divides every matrix"))
            }
            Encoding::Bcml6 => {
                let matrix = Bcml6Matrix::new(bytes, k);
                Matrix::B6(matrix.expect("the header's group size divides every matrix"))
            }
            Encoding::Ggml(kind) => {
                let matrix = GgmlMatrix::new(kind, bytes, k);
                Matrix::Ggml(matrix.expect("the header's rows are whole blocks"))
            }
        }
    }

    /// Bytes of a tensor without the padding at its end.
    pub(super) fn content(&self, id: TensorId) -> &[u8] {
        &self.tensor_bytes(id)[..self.header().content_bytes(id) as usize]
    }

    /// See [`Weights::advise_dont_need`].
    pub(super) fn advise_dont_need(&self, id: TensorId) {
        self.weights.advise_dont_need(id);
    }

    pub(super) fn tensor_bytes(&self, id: TensorId) -> &[u8] {
        self.weights.tensor(id)
    }
}

/// Casts bytes of a tensor, which are aligned: tensors start at multiples of 4 in a file.
fn floats(bytes: &[u8]) -> &[f32] {
    bytemuck::cast_slice(bytes)
}

#[cfg(test)]
mod tests;
