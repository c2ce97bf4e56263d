//! Which part of a model one node holds, and where in memory that is.

use std::io;
use std::ops::Range;

use super::Source;
use crate::format::model::{Header, TensorId, TensorKind};

/// The layers of a model that one node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// First layer and layer after the last.
    pub layers: Range<usize>,
    /// Whether the node also embeds tokens and turns the last activations into logits.
    pub has_ends: bool,
}

impl Share {
    /// All of the model that `header` describes.
    pub fn whole(header: &Header) -> Share {
        Share { layers: 0..header.n_layers, has_ends: true }
    }

    /// What the file of `header` holds.
    pub fn of_file(header: &Header) -> Share {
        match &header.part {
            Some(part) => Share { layers: part.layers.clone(), has_ends: part.has_ends },
            None => Share::whole(header),
        }
    }

    /// Whether all of `other` belongs to it.
    pub fn includes(&self, other: &Share) -> bool {
        let (own, others) = (&self.layers, &other.layers);
        own.start <= others.start && others.end <= own.end && (self.has_ends || !other.has_ends)
    }

    /// Whether the tensor `id` belongs to it.
    pub fn holds(&self, id: TensorId) -> bool {
        match id.kind.is_per_layer() {
            true => self.layers.contains(&id.layer),
            false => self.has_ends,
        }
    }

    /// The tensors of `kind` in it, counted by layer; empty if it has none.
    fn layers_of(&self, kind: TensorKind) -> Range<usize> {
        match kind.is_per_layer() {
            true => self.layers.clone(),
            false => 0..usize::from(self.has_ends),
        }
    }
}

/// The tensors of one kind: neighbours in the file, layer after layer.
struct Extent {
    kind: TensorKind,
    /// Layer of the first.
    first: usize,
    /// Index of the source they are in.
    source: usize,
    /// Where in it the first begins.
    start: usize,
    /// Bytes of each.
    bytes: usize,
}

/// The bytes of a share's tensors.
pub(super) struct Weights {
    sources: Vec<Source>,
    extents: Vec<Extent>,
}

impl Weights {
    /// The tensors of `header` in `file`, the whole file.
    pub(super) fn whole(header: &Header, file: Source) -> Weights {
        let share = Share::of_file(header);
        let is_first = |id: TensorId| id.layer == share.layers_of(id.kind).start;
        let first = header.tensors().filter(|tensor| is_first(tensor.id));
        let extents = first.map(|tensor| Extent {
            kind: tensor.id.kind,
            first: tensor.id.layer,
            source: 0,
            start: tensor.offset as usize,
            bytes: tensor.bytes as usize,
        });
        Weights { extents: extents.collect(), sources: vec![file] }
    }

    /// Only the tensors of `share`. A mapped file is mapped anew, one map for each kind, so
    /// that nothing else of it can come into memory.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub(super) fn narrow(mut self, share: &Share) -> io::Result<Weights> {
        let mut maps = Vec::new();
        let mut extents = Vec::new();
        for extent in self.extents {
            let layers = share.layers_of(extent.kind);
            if layers.is_empty() {
                continue;
            }
            let mut start = extent.start + (layers.start - extent.first) * extent.bytes;
            let mut source = extent.source;
            if let Source::Map(map) = &self.sources[extent.source] {
                let part = map.part(start..start + layers.len() * extent.bytes)?;
                maps.push(Source::Map(part));
                (start, source) = (0, maps.len() - 1);
            }
            extents.push(Extent { first: layers.start, source, start, ..extent });
        }
        if !maps.is_empty() {
            self.sources = maps;
        }
        Ok(Weights { sources: self.sources, extents })
    }

    /// The whole file, of which nothing has been left out yet.
    pub(super) fn whole_file(&self) -> &[u8] {
        self.sources[0].bytes()
    }

    /// The bytes of tensor `id`.
    ///
    /// # Panics
    /// If the share does not hold it.
    pub(super) fn tensor(&self, id: TensorId) -> &[u8] {
        let extent = self.extents.iter().find(|extent| extent.kind == id.kind);
        let extent = extent.expect("callers ask for kinds that the share has");
        let start = extent.start + (id.layer - extent.first) * extent.bytes;
        &self.sources[extent.source].bytes()[start..start + extent.bytes]
    }
}
