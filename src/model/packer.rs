//! Packs weights for the kernels in use, into a cache file or this process's memory. Reuses weights that are
//! packed already.

use std::fmt;
use std::io;
use std::mem::discriminant;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::check::CheckError;
use super::file::layout_number;
use super::matrix::Matrix;
use super::packed::{Home, PackedWeights, by_kind};
use super::view::Model;
use crate::arena::ALIGN;
use crate::format::model::{TensorId, TensorKind};
use crate::kernels::{Kernels, Layout, MatrixDims};
use crate::pack::{CacheBuilder, CacheError, CacheFile, CacheIdentity, WantedEntry};
use crate::pool::{Chunks, Pool};
use crate::sys::huge::HugeMemory;

/// Version of the cache's content: increase it when the order or the meaning of its tensors changes.
const ORDER: u32 = 5;

/// Number of panels that a thread packs at a time.
const PIECE_PANELS: usize = 8;

/// Result of packing the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackReport {
    /// Number of matrices packed by this call.
    pub packed: usize,
    /// Number of matrices that had been packed before.
    pub reused: usize,
    /// Bytes of all packed matrices.
    pub bytes: u64,
}

/// Why weights were not packed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PackError {
    /// The weights are damaged, or the caller ended the work.
    Weights(CheckError),
    /// The cache file cannot be read or written.
    Cache(CacheError),
    /// The model's file cannot be read.
    Model(io::Error),
    /// Not enough memory.
    Memory(io::Error),
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::Weights(e) => e.fmt(f),
            PackError::Cache(e) => e.fmt(f),
            PackError::Model(e) => write!(f, "cannot read the model: {e}"),
            PackError::Memory(e) => write!(f, "no memory for packed weights: {e}"),
        }
    }
}

impl std::error::Error for PackError {}

impl From<CheckError> for PackError {
    fn from(error: CheckError) -> PackError {
        PackError::Weights(error)
    }
}

impl From<CacheError> for PackError {
    fn from(error: CacheError) -> PackError {
        PackError::Cache(error)
    }
}

/// Progress of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress {
    /// Bytes packed or taken over so far.
    pub done_bytes: u64,
    /// Bytes of all packed matrices.
    pub total_bytes: u64,
}

impl PackProgress {
    /// Progress in percent, 0 to 100.
    pub fn percent(self) -> u32 {
        (100 * self.done_bytes.min(self.total_bytes)).checked_div(self.total_bytes).unwrap_or(0)
            as u32
    }
}

/// Callbacks of packing.
#[derive(Clone, Copy)]
pub struct PackWatch<'a> {
    /// Gets the progress, between tensors.
    pub tell: &'a dyn Fn(PackProgress),
    /// Polled between tensors; true ends the work.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

impl PackWatch<'_> {
    /// A watch that ignores progress and never interrupts.
    pub const NONE: PackWatch<'static> = PackWatch { tell: &|_| {}, is_interrupted: &|| false };

    fn check(&self, done_bytes: u64, total_bytes: u64) -> Result<(), CheckError> {
        (self.tell)(PackProgress { done_bytes, total_bytes });
        if (self.is_interrupted)() { Err(CheckError::Interrupted) } else { Ok(()) }
    }
}

/// Packs the weights of a model.
pub(super) struct Packer<'a> {
    pub(super) model: &'a Model,
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
}

/// A matrix to pack.
struct Candidate<'a> {
    id: TensorId,
    w: Matrix<'a>,
    bytes: usize,
}

impl Candidate<'_> {
    fn wanted(&self) -> WantedEntry {
        WantedEntry { key: key(self.id), bytes: self.bytes as u64 }
    }
}

impl Packer<'_> {
    /// The matrices to pack; `None` if none are quantised, or the kernels use them unpacked.
    fn candidates(&self) -> Option<(Layout, Vec<Candidate<'_>>)> {
        let layout = self.kernels.layout()?;
        let header = self.model.header();
        let ids = header.tensors().map(|tensor| tensor.id);
        let is_whole = |rows: usize| rows.is_multiple_of(layout.panel_rows());
        let is_packable = |kind: TensorKind| {
            header.is_multiplied(kind) && header.rows_of_one(kind).is_none_or(is_whole)
        };
        let is_own = |id: &TensorId| is_packable(id.kind) && self.model.share().holds(*id);
        let candidates = ids.filter(is_own).filter_map(|id| {
            let w = self.model.matrix(id.kind, id.layer);
            // A board of a team may have no rows of some matrices.
            if w.rows() == 0 {
                return None;
            }
            let bytes = packed_bytes(layout, &w, w.rows(), header.weights.group()?)?;
            Some(Candidate { id, w, bytes })
        });
        let candidates: Vec<Candidate<'_>> = candidates.collect();
        (!candidates.is_empty()).then_some((layout, candidates))
    }

    /// Bytes of all packed matrices; `None` if there are none.
    pub(super) fn bytes(&self) -> Option<u64> {
        let (_, candidates) = self.candidates()?;
        Some(candidates.iter().map(|candidate| candidate.bytes as u64).sum())
    }

    /// Number of matrices that the cache file at `path` lacks; `None` if there are none to pack.
    pub(super) fn lacks(&self, path: &Path) -> Result<Option<usize>, PackError> {
        let Some((layout, candidates)) = self.candidates() else { return Ok(None) };
        let wanted: Vec<WantedEntry> = candidates.iter().map(Candidate::wanted).collect();
        Ok(Some(CacheFile::open(path, &self.identity(layout)?)?.lacks(&wanted)))
    }

    /// Identity that a cache file of these matrices must have.
    fn identity(&self, layout: Layout) -> Result<CacheIdentity, PackError> {
        let fingerprint = self.model.fingerprint().map_err(PackError::Model)?;
        let fingerprint = self.model.header().fingerprint_of_rows(fingerprint);
        let layout = layout_number(layout, self.model.header().weights);
        Ok(CacheIdentity { fingerprint, layout, order: ORDER })
    }

    /// Maps the cache file at `path` after adding the matrices that it lacks. If the file does not exist or
    /// does not match, it is built. Packing compares the whole share with its checksums. `None` if there are
    /// no matrices to pack.
    pub(super) fn cached(
        &self,
        path: &Path,
        watch: PackWatch<'_>,
    ) -> Result<Option<(PackedWeights, PackReport)>, PackError> {
        let Some((layout, candidates)) = self.candidates() else { return Ok(None) };
        let wanted: Vec<WantedEntry> = candidates.iter().map(Candidate::wanted).collect();
        let mut packed = 0;
        let fill = |builder: &mut CacheBuilder| {
            packed = self.fill(builder, layout, &candidates, watch)?;
            Ok::<(), PackError>(())
        };
        let (cache, _) = CacheFile::open_or_build(path, &self.identity(layout)?, &wanted, fill)?;
        let places = candidates.iter().map(|candidate| {
            let entry = cache
                .find(&candidate.wanted())
                .ok_or_else(|| CacheError::Mismatch { path: path.to_owned(), what: "a tensor" })?;
            let start = entry.offset as usize;
            Ok((candidate.id, start..start + entry.bytes as usize))
        });
        let places = places.collect::<Result<Vec<(TensorId, Range<usize>)>, CacheError>>()?;
        let bytes = wanted.iter().map(|wanted| wanted.bytes).sum();
        let report = PackReport { packed, reused: candidates.len() - packed, bytes };
        let (kinds, home) = (by_kind(places.into_iter()), Home::File(Arc::new(cache)));
        Ok(Some((PackedWeights::new(layout, kinds, home), report)))
    }

    /// Fills a cache file. Returns the number of matrices that were packed for it.
    fn fill(
        &self,
        builder: &mut CacheBuilder,
        layout: Layout,
        candidates: &[Candidate<'_>],
        watch: PackWatch<'_>,
    ) -> Result<usize, PackError> {
        let wanted: Vec<WantedEntry> = candidates.iter().map(Candidate::wanted).collect();
        let total_bytes = wanted.iter().map(|wanted| wanted.bytes).sum();
        let others = builder.reserve_disk(&wanted)?;
        let (mut packed, mut done_bytes) = (Vec::new(), 0);
        let mut sources: Vec<(u32, &Candidate<'_>)> = Vec::new();
        for (candidate, wanted) in candidates.iter().zip(&wanted) {
            watch.check(done_bytes, total_bytes)?;
            done_bytes += wanted.bytes;
            if builder.take_over(wanted)? {
                continue;
            }
            let crc = self.model.check_tensor(candidate.id)?;
            packed.push(candidate.id);
            let same =
                sources.iter().find(|(of, other)| *of == crc && self.is_same(other, candidate));
            if let Some(entry) = same.and_then(|(_, other)| builder.look_up(key(other.id))) {
                builder.insert_same(wanted.key, entry);
                continue;
            }
            self.pack(layout, candidate.w, builder.reserve_space(candidate.bytes));
            builder.look_up_or_insert(wanted.key)?;
            sources.push((crc, candidate));
        }
        for other in &others {
            watch.check(done_bytes, total_bytes)?;
            builder.take_over(other)?;
        }
        watch.check(done_bytes, total_bytes)?;
        self.model.check(&packed, self.pool, watch.is_interrupted)?;
        Ok(packed.len())
    }

    /// Whether two matrices have the same bytes once packed.
    fn is_same(&self, a: &Candidate<'_>, b: &Candidate<'_>) -> bool {
        let header = self.model.header();
        discriminant(&a.w) == discriminant(&b.w)
            && header.encoding(a.id) == header.encoding(b.id)
            && header.held_shape(a.id.kind) == header.held_shape(b.id.kind)
            && self.model.tensor_bytes(a.id) == self.model.tensor_bytes(b.id)
    }

    /// Packs into this process's memory. Matrices that `former` has are copied. `None` if there are no
    /// matrices to pack.
    pub(super) fn in_memory(
        &self,
        former: Option<&PackedWeights>,
    ) -> io::Result<Option<(PackedWeights, PackReport)>> {
        let Some((layout, candidates)) = self.candidates() else { return Ok(None) };
        let padded = |bytes: usize| bytes.next_multiple_of(ALIGN);
        let total = candidates.iter().map(|candidate| padded(candidate.bytes)).sum();
        let mut memory = HugeMemory::new(total)?;
        let former = former.filter(|former| former.layout() == layout);
        let (mut places, mut end, mut packed) = (Vec::with_capacity(candidates.len()), 0, 0);
        for Candidate { id, w, bytes } in &candidates {
            let out = &mut memory.as_mut_slice()[end..end + bytes];
            match former.and_then(|former| former.bytes(*id)) {
                Some(before) => out.copy_from_slice(before),
                None => {
                    self.pack(layout, *w, out);
                    packed += 1;
                }
            }
            places.push((*id, end..end + bytes));
            end += padded(*bytes);
        }
        let reused = candidates.len() - packed;
        let bytes = candidates.iter().map(|candidate| candidate.bytes as u64).sum();
        let report = PackReport { packed, reused, bytes };
        let (kinds, home) = (by_kind(places.into_iter()), Home::Memory(memory));
        Ok(Some((PackedWeights::new(layout, kinds, home), report)))
    }

    fn pack(&self, layout: Layout, w: Matrix<'_>, out: &mut [u8]) {
        let kernels = self.kernels;
        let piece_rows = PIECE_PANELS * layout.panel_rows();
        let group = self.model.header().weights.group();
        let piece_bytes = group.and_then(|group| packed_bytes(layout, &w, piece_rows, group));
        let chunks = Chunks::new(out, piece_bytes.unwrap_or(usize::MAX));
        self.pool.run_chunks(chunks, &|index, out| {
            let start = index * piece_rows;
            match w.slice_rows(start..(start + piece_rows).min(w.rows())) {
                Matrix::Q8(w) => kernels.pack_q8(w, out),
                Matrix::Q4(w) => kernels.pack_q4(w, out),
                Matrix::B2(w) => kernels.pack_b2(w, out),
                Matrix::B6(w) => kernels.pack_b6(w, out),
                Matrix::Ggml(w) => kernels.pack_ggml(w, out),
                _ => unreachable!("`candidates` are matrices that can be packed"),
            }
        });
    }
}

/// Bytes of `rows` rows of `w` once packed; `None` if its kind cannot be packed.
fn packed_bytes(layout: Layout, w: &Matrix<'_>, rows: usize, group: usize) -> Option<usize> {
    match w {
        Matrix::Q8(w) => layout.bytes_q8(MatrixDims { rows, k: w.k() }, group),
        Matrix::Q4(w) => layout.bytes_q4(MatrixDims { rows, k: w.k() }, group),
        Matrix::B2(w) => layout.bytes_b2(MatrixDims { rows, k: w.k() }),
        Matrix::B6(w) => layout.bytes_b6(MatrixDims { rows, k: w.k() }),
        Matrix::Ggml(w) => layout.bytes_ggml(w.kind(), MatrixDims { rows, k: w.k() }),
        _ => None,
    }
}

/// Key of a tensor in a cache file, equal for all shares: its kind, and its layer counted from 1, or 0 for a
/// tensor outside the layers.
fn key(id: TensorId) -> u64 {
    let layer = if id.kind.is_per_layer() { id.layer as u64 + 1 } else { 0 };
    (id.kind as u64) << 32 | layer
}

/// The layers that have tensors under these `keys` of a cache file, and whether there is a tensor outside the
/// layers: the classifier.
pub fn cached_layers(keys: impl Iterator<Item = u64>) -> (Vec<Range<usize>>, bool) {
    let (mut layers, mut has_ends) = (Vec::new(), false);
    for key in keys {
        match (key as u32).checked_sub(1) {
            Some(layer) => layers.push(layer as usize),
            None => has_ends = true,
        }
    }
    layers.sort_unstable();
    layers.dedup();
    let ranges = layers.chunk_by(|a, b| a + 1 == *b);
    (ranges.map(|range| range[0]..range[0] + range.len()).collect(), has_ends)
}

#[cfg(test)]
mod tests;
