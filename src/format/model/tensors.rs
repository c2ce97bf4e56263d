//! The tensors of a model, and their places in its file.

use std::fmt;
use std::ops::Range;

use super::header::{Header, PACKED_ALIGN, Packed};
use super::kinds::{TensorKind, TensorRole};
use super::layer_set::LAYER_SET_MAX;
use super::weights::{Encoding, Ends, Weights};
use crate::format::FormatError;
use crate::format::cursor::u32_at;

/// Identifies a tensor of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// Purpose of the tensor.
    pub kind: TensorKind,
    /// Layer of the tensor; 0 for a tensor outside the layers.
    pub layer: usize,
}

impl TensorId {
    /// The only tensor of `kind`, or that of layer 0.
    pub fn first(kind: TensorKind) -> TensorId {
        TensorId { kind, layer: 0 }
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.is_per_layer() {
            true => write!(f, "layers.{}.{}", self.layer, self.kind.name()),
            false => f.write_str(self.kind.name()),
        }
    }
}

/// A tensor's shape, and its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Identity of the tensor.
    pub id: TensorId,
    /// Number of rows; 1 for a vector.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, including the padding in a packed file.
    pub bytes: u64,
}

impl Tensor {
    /// Bytes of the tensor in `file`, the whole file.
    pub(super) fn of<'f>(&self, file: &'f [u8]) -> &'f [u8] {
        let start = self.offset as usize;
        &file[start..start + self.bytes as usize]
    }
}

impl Header {
    /// Number of tensors in the file.
    pub fn n_tensors(&self) -> usize {
        self.kinds().map(|kind| self.n_layers_of(kind)).sum()
    }

    pub(super) fn check_extents(
        &self,
        file_len: u64,
        table: Option<(u64, u64)>,
    ) -> Result<(), FormatError> {
        let mut end = self.len_bytes() as u64;
        for kind in self.kinds() {
            let start = end;
            let next = self.bytes_of_all(kind).and_then(|bytes| start.checked_add(bytes));
            end = next.unwrap_or(u64::MAX);
            if end > file_len {
                let what = self.first_outside(kind, start, file_len);
                return Err(FormatError::Truncated { what, need: end, have: file_len });
            }
        }
        if let Some((offset, len)) = table {
            let wanted = 4 * self.n_tensors() as u64;
            if offset != end || len != wanted {
                return Err(FormatError::Unsupported(format!(
                    "checksum table at {offset}, {len} bytes"
                )));
            }
            end += wanted;
        }
        match file_len.cmp(&end) {
            std::cmp::Ordering::Less => {
                let what = "checksum table".to_owned();
                Err(FormatError::Truncated { what, need: end, have: file_len })
            }
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(FormatError::TrailingBytes { end, have: file_len }),
        }
    }

    /// Bytes of all tensors of `kind`. Only layers in blocks of a GGUF file differ in size, and their number is known to
    /// be that of the file's types, so a damaged number of layers does not make this slow.
    fn bytes_of_all(&self, kind: TensorKind) -> Option<u64> {
        match self.weights {
            Weights::Ggml => self.layers_of(kind).try_fold(0_u64, |sum, layer| {
                sum.checked_add(self.bytes_of(TensorId { kind, layer })?)
            }),
            _ => {
                let bytes = self.bytes_of(TensorId::first(kind))?;
                bytes.checked_mul(self.n_layers_of(kind) as u64)
            }
        }
    }

    /// Name of the first tensor of `kind` that does not end inside the file.
    fn first_outside(&self, kind: TensorKind, start: u64, file_len: u64) -> String {
        let bytes = |layer| self.bytes_of(TensorId { kind, layer }).unwrap_or(u64::MAX);
        let layer = match self.weights {
            Weights::Ggml => {
                let mut end = start;
                self.layers_of(kind).find(|layer| {
                    end = end.saturating_add(bytes(*layer));
                    end > file_len
                })
            }
            _ => {
                let index = (file_len.saturating_sub(start) / bytes(0).max(1)) as usize;
                self.layers_of(kind).nth(index)
            }
        };
        TensorId { kind, layer: layer.unwrap_or_default() }.to_string()
    }

    /// Tensors of the file, in their order.
    ///
    /// Offsets are correct for a header that passed [`Header::parse`], or if all tensors together are known
    /// to have fewer than 2^64 bytes.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        let mut offset = self.len_bytes() as u64;
        let ids = self
            .kinds()
            .flat_map(|kind| self.layers_of(kind).map(move |layer| TensorId { kind, layer }));
        ids.map(move |id| {
            let (rows, cols) = self.held_shape(id.kind);
            let bytes = self.bytes_of(id).unwrap_or(u64::MAX);
            let tensor = Tensor { id, rows, cols, offset, bytes };
            offset = offset.saturating_add(bytes);
            tensor
        })
    }

    /// End of the tensors in the file, where the checksums begin if there are any.
    pub fn tensors_end(&self) -> u64 {
        self.tensors().last().map_or(0, |t| t.offset.saturating_add(t.bytes))
    }

    /// Packing of tensors of `kind`; `None` if they are row-major.
    pub fn packing_of(&self, kind: TensorKind) -> Option<Packed> {
        let rows = self.rows_of_one(kind);
        let is_whole = |packed: &Packed| rows.is_none_or(|n| n.is_multiple_of(packed.panel_rows));
        self.packed.filter(|packed| self.is_multiplied(kind) && is_whole(packed))
    }

    /// Rows per expert in a tensor of `kind`; `None` if it is not divided by experts. Panels never extend
    /// over two experts.
    pub fn rows_of_one(&self, kind: TensorKind) -> Option<usize> {
        let experts = self.features.experts.filter(|_| kind.is_per_expert())?;
        Some(self.shape(kind).0 / experts.n)
    }

    /// Encoding of tensor `id`.
    pub fn encoding(&self, id: TensorId) -> Encoding {
        match (self.weights, id.kind.role()) {
            (_, TensorRole::Vector | TensorRole::Router) | (Weights::F32, _) => Encoding::F32,
            _ if self.is_narrow(id.kind) => Encoding::F32,
            (Weights::Ggml, _) => self.ggml_encoding(id),
            (Weights::Q8 { group }, _) => Encoding::Q8 { group },
            (
                Weights::Q4 { group, int8_embedding: true }
                | Weights::B2 { group, ends: Ends::Int8 },
                TensorRole::Embedding | TensorRole::Classifier,
            ) => Encoding::Q8 { group },
            (
                Weights::B2 { ends: Ends::SixBits, .. },
                TensorRole::Embedding | TensorRole::Classifier,
            ) => Encoding::Bcml6,
            (Weights::Q4 { .. }, _) => Encoding::Bcml1,
            (Weights::B2 { .. }, _) => Encoding::Bcml2,
        }
    }

    /// Bytes of tensor `id` without padding; at most [`Tensor::bytes`].
    pub fn content_bytes(&self, id: TensorId) -> u64 {
        self.checked_content_bytes(id).unwrap_or(u64::MAX)
    }

    /// Layers of the file, for a `kind` that is per layer; otherwise layer 0, if the file has the tensor.
    fn all_layers_of(&self, kind: TensorKind) -> Range<usize> {
        match &self.share {
            Some(share) if kind.is_per_layer() => share.layers.clone(),
            Some(share) => 0..usize::from(share.has_ends && self.has_rows_of(kind)),
            None if kind.is_per_layer() => 0..self.n_layers_and_next(),
            None => 0..1,
        }
    }

    /// Layers for which the file has a tensor of `kind`; layer 0 for a tensor outside the layers.
    fn layers_of(&self, kind: TensorKind) -> impl Iterator<Item = usize> + '_ {
        self.all_layers_of(kind).filter(move |layer| self.has_in(kind, *layer))
    }

    /// Number of layers for which the file has a tensor of `kind`. Only the first [`LAYER_SET_MAX`] layers
    /// can lack one, so a damaged number of layers does not make this slow.
    fn n_layers_of(&self, kind: TensorKind) -> usize {
        let Range { start, end } = self.all_layers_of(kind);
        let lacks = |layer: &usize| !self.has_in(kind, *layer);
        match self.has_in(kind, LAYER_SET_MAX) {
            true => {
                end.saturating_sub(start) - (start..end.min(LAYER_SET_MAX)).filter(lacks).count()
            }
            false => (start..end.min(LAYER_SET_MAX)).filter(|layer| !lacks(layer)).count(),
        }
    }

    fn bytes_of(&self, id: TensorId) -> Option<u64> {
        let bytes = self.checked_content_bytes(id)?;
        let align = if self.packed.is_some() { PACKED_ALIGN } else { size_of::<f32>() as u64 };
        bytes.checked_next_multiple_of(align)
    }

    fn checked_content_bytes(&self, id: TensorId) -> Option<u64> {
        let (rows, cols) = self.held_shape(id.kind);
        let encoding = self.encoding(id);
        match self.packing_of(id.kind) {
            Some(packed) => {
                let rows = rows.checked_next_multiple_of(packed.panel_rows)?;
                encoding.packed_bytes(rows as u64, cols as u64)
            }
            None => encoding.bytes(rows as u64, cols as u64),
        }
    }

    /// Header of this model without packing and with all layers.
    pub fn plain(&self) -> Header {
        Header { packed: None, share: None, ..self.clone() }
    }

    /// Compares the stored checksum of each tensor with its bytes.
    ///
    /// `file` is the whole file that this header was parsed from. Without extension there is nothing to
    /// compare, and the result is `false`.
    ///
    /// # Errors
    /// The first tensor whose bytes do not match.
    pub fn verify(&self, file: &[u8]) -> Result<bool, FormatError> {
        for (tensor, crc) in self.tensors().zip(self.checksums(file)) {
            if crc32fast::hash(tensor.of(file)) != crc {
                return Err(FormatError::Checksum { what: tensor.id.to_string() });
            }
        }
        Ok(self.has_extension)
    }

    /// Stored checksums of [`Header::tensors`]; none if the file has no extension.
    ///
    /// `file` is the whole file that this header was parsed from.
    pub fn checksums<'f>(&self, file: &'f [u8]) -> impl Iterator<Item = u32> + use<'f> {
        let table = self.tensors_end() as usize;
        let n = if self.has_extension { self.n_tensors() } else { 0 };
        (0..n).map(move |index| u32_at(file, table + 4 * index))
    }
}
