//! Access to the bytes of a share's tensors.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::share::Share;
use crate::format::model::{Header, Tensor, TensorId, TensorKind};
use crate::sys::huge::HugeMemory;
use crate::sys::map::{Map, OpenFile};

/// Source of the bytes of a model's file.
pub(super) enum Source {
    File(OpenFile),
    Static(&'static [u8]),
    Memory(Arc<HugeMemory>),
}

/// Bytes of a source, in memory.
pub(super) enum Bytes {
    Map(Map),
    Static(&'static [u8]),
    Memory(Arc<HugeMemory>, Range<usize>),
}

impl Source {
    /// The bytes `range`. A file's bytes get a map of their own, so that no other part of the file is read
    /// into memory.
    ///
    /// # Errors
    /// If the file cannot be mapped, or was written to since it was opened.
    pub(super) fn bytes(&self, range: Range<usize>) -> io::Result<Bytes> {
        Ok(match self {
            Source::File(file) => Bytes::Map(file.map(range)?),
            Source::Static(bytes) => Bytes::Static(&bytes[range]),
            Source::Memory(memory) => Bytes::Memory(Arc::clone(memory), range),
        })
    }

    /// All bytes of the source.
    ///
    /// # Errors
    /// See [`Source::bytes`].
    pub(super) fn all(&self) -> io::Result<Bytes> {
        let len = match self {
            Source::File(file) => usize::try_from(file.stamp().bytes).unwrap_or(usize::MAX),
            Source::Static(bytes) => bytes.len(),
            Source::Memory(memory) => memory.as_slice().len(),
        };
        self.bytes(0..len)
    }
}

impl Bytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Map(map) => map.as_bytes(),
            Bytes::Static(bytes) => bytes,
            Bytes::Memory(memory, range) => &memory.as_slice()[range.clone()],
        }
    }
}

/// The tensors of one kind. They are neighbours in the file, layer after layer.
struct Extent {
    kind: TensorKind,
    /// Layers of the tensors, ascending, and their places in `bytes`.
    layers: Vec<(usize, Range<usize>)>,
    bytes: Bytes,
}

/// The tensors of a share.
pub(super) struct Weights(Vec<Extent>);

impl Weights {
    /// The tensors of `share` in `source`, whose layout `header` describes. The file must hold them.
    ///
    /// # Errors
    /// See [`Source::bytes`].
    pub(super) fn new(header: &Header, source: &Source, share: &Share) -> io::Result<Weights> {
        let held: Vec<Tensor> = header.tensors().filter(|t| share.holds(t.id)).collect();
        let extents = held.chunk_by(|a, b| a.id.kind == b.id.kind).map(|tensors| {
            let mut end = tensors[0].offset as usize;
            let start = end;
            let place = |tensor: &Tensor| {
                let from = end - start;
                end += tensor.bytes as usize;
                (tensor.id.layer, from..end - start)
            };
            let layers = tensors.iter().map(place).collect();
            Ok(Extent { kind: tensors[0].id.kind, layers, bytes: source.bytes(start..end)? })
        });
        Ok(Weights(extents.collect::<io::Result<_>>()?))
    }

    /// The bytes of tensor `id`.
    ///
    /// # Panics
    /// If the share does not hold the tensor.
    pub(super) fn tensor(&self, id: TensorId) -> &[u8] {
        let (bytes, range) = self.place(id);
        &bytes.as_slice()[range]
    }

    /// Drops the pages of tensor `id` from this process's memory, if they are mapped from a file. The system maps them
    /// again at the next use.
    ///
    /// # Panics
    /// If the share does not hold the tensor.
    pub(super) fn advise_dont_need(&self, id: TensorId) {
        if let (Bytes::Map(map), range) = self.place(id) {
            map.advise_dont_need(range);
        }
    }

    fn place(&self, id: TensorId) -> (&Bytes, Range<usize>) {
        let extent = self.0.iter().find(|extent| extent.kind == id.kind);
        let extent = extent.expect("callers ask for kinds that the share has");
        let index = extent.layers.binary_search_by_key(&id.layer, |(layer, _)| *layer);
        let index = index.expect("callers ask for layers that the share has");
        (&extent.bytes, extent.layers[index].1.clone())
    }
}
