//! Weights in the layout of the kernels in use: in a cache file that processes share, or in this process's
//! memory, in huge pages if the system has them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::matrix::Matrix;
use super::view::Model;
use crate::arena::ALIGN;
use crate::format::model::{Header, TensorId, TensorKind};
use crate::kernels::Layout;
use crate::pack::CacheFile;
use crate::sys::cpu;
use crate::sys::huge::HugeMemory;

/// Bytes copied to huge pages between two polls of whether the copy is still wanted.
const COPY_BYTES: usize = 8 << 20;

/// A packed copy of every quantised matrix that is used as a factor.
pub(super) struct PackedWeights {
    layout: Layout,
    kinds: Kinds,
    home: Home,
    /// The copy to huge pages that is in progress, if any.
    moving: Option<Moving>,
}

/// Byte ranges of each kind's matrices, with their layers in ascending order. For a model's own file only the
/// lengths count.
pub(super) type Kinds = Vec<(TensorKind, Vec<(usize, Range<usize>)>)>;

pub(super) enum Home {
    File(Arc<CacheFile>),
    /// The model's own file.
    Model(Arc<Model>),
    Memory(HugeMemory),
}

/// A copy that another thread makes, with the byte ranges of its matrices.
struct Moving {
    copier: JoinHandle<Option<(HugeMemory, Kinds)>>,
    /// Ends the copier's work when dropped.
    unwanted: Unwanted,
}

/// Sets a flag when it is dropped.
struct Unwanted(Arc<AtomicBool>);

/// Groups matrices by kind. The input lists kind after kind, and layer after layer.
pub(super) fn by_kind(places: impl Iterator<Item = (TensorId, Range<usize>)>) -> Kinds {
    let mut kinds = Kinds::new();
    for (TensorId { kind, layer }, place) in places {
        match kinds.last_mut() {
            Some((last, layers)) if *last == kind => layers.push((layer, place)),
            _ => kinds.push((kind, vec![(layer, place)])),
        }
    }
    kinds
}

impl PackedWeights {
    /// The packed matrices `kinds` of a share, stored in `home`.
    pub(super) fn new(layout: Layout, kinds: Kinds, home: Home) -> Self {
        PackedWeights { layout, kinds, home, moving: None }
    }

    /// The matrices of a model whose file holds them packed; `None` if the file is not packed.
    pub(super) fn of_model(model: &Arc<Model>) -> Option<PackedWeights> {
        let layout = model.packed_for()?.layout()?;
        let (header, share) = (model.header(), model.share());
        let ids = header.tensors().map(|tensor| tensor.id).filter(|id| share.holds(*id));
        let packed = ids.filter(|id| header.packing_of(id.kind).is_some());
        let kinds = by_kind(packed.map(|id| (id, 0..header.content_bytes(id) as usize)));
        let home = Home::Model(Arc::clone(model));
        Some(PackedWeights::new(layout, kinds, home))
    }

    /// The packed matrix `id`, `[rows, k]`, if there is one.
    pub(super) fn matrix(&self, id: TensorId, header: &Header) -> Option<Matrix<'_>> {
        match &self.home {
            Home::Model(model) => {
                self.place(id)?;
                Some(model.matrix(id.kind, id.layer))
            }
            Home::File(_) | Home::Memory(_) => {
                Some(Matrix::packed(self.bytes(id)?, header, id, self.layout))
            }
        }
    }

    /// The bytes of the packed matrix `id`, if there is one.
    pub(super) fn bytes(&self, id: TensorId) -> Option<&[u8]> {
        let place = self.place(id)?;
        Some(self.home.bytes(id, place))
    }

    fn place(&self, id: TensorId) -> Option<&Range<usize>> {
        let (_, layers) = self.kinds.iter().find(|(of, _)| *of == id.kind)?;
        let index = layers.binary_search_by_key(&id.layer, |(layer, _)| *layer).ok()?;
        Some(&layers.get(index)?.1)
    }

    /// Layout of the packed matrices.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Number of matrices, and their total bytes.
    pub(super) fn size(&self) -> (usize, u64) {
        let places = || self.kinds.iter().flat_map(|(_, layers)| layers);
        (places().count(), places().map(|(_, place)| place.len() as u64).sum())
    }

    /// Whether the weights are in this process's memory, rather than in a mapped file.
    pub(super) fn is_in_memory(&self) -> bool {
        match &self.home {
            Home::Memory(_) => true,
            Home::Model(model) => model.stamp().is_none(),
            Home::File(_) => false,
        }
    }

    /// Starts to copy the mapped weights to huge pages. [`PackedWeights::finish_move`] switches to the copy.
    pub(super) fn start_move(&mut self) {
        let home = match &self.home {
            Home::File(cache) => Home::File(Arc::clone(cache)),
            Home::Model(model) => Home::Model(Arc::clone(model)),
            Home::Memory(_) => return,
        };
        let (parts, kinds) = self.copy_plan();
        let unwanted = Unwanted(Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&unwanted.0);
        let copier = thread::Builder::new().name("leap-pages".to_owned()).spawn(move || {
            cpu::unpin_current_thread();
            home.copy(&parts, &flag).map(|copy| (copy, kinds))
        });
        // Without a thread, the mapped file stays in use.
        self.moving = copier.ok().map(|copier| Moving { copier, unwanted });
    }

    /// The parts to copy, and the matrices' ranges in the copy. Matrices that share bytes in the file share
    /// them in the copy, too.
    fn copy_plan(&self) -> (Vec<Part>, Kinds) {
        let is_shared = matches!(self.home, Home::File(_));
        let (mut parts, mut copied, mut end) = (Vec::new(), HashMap::new(), 0_usize);
        let mut copy = |kind: TensorKind, layer: usize, place: &Range<usize>| -> Range<usize> {
            if let Some(start) = copied.get(place).filter(|_| is_shared) {
                return *start..start + place.len();
            }
            let start = end;
            parts.push(Part { id: TensorId { kind, layer }, place: place.clone(), start });
            copied.insert(place.clone(), start);
            end = (start + place.len()).next_multiple_of(ALIGN);
            start..start + place.len()
        };
        let kinds = self.kinds.iter().map(|(kind, places)| {
            let copies = places.iter().map(|(layer, place)| (*layer, copy(*kind, *layer, place)));
            (*kind, copies.collect())
        });
        let kinds = kinds.collect();
        (parts, kinds)
    }

    /// Switches to the copy if it is finished.
    pub(super) fn finish_move(&mut self) {
        if self.moving.as_ref().is_some_and(|moving| moving.copier.is_finished()) {
            self.await_move();
        }
    }

    /// Waits for a copy in progress, and switches to it if there was memory for it.
    pub(super) fn await_move(&mut self) {
        let Some(Moving { copier, unwanted }) = self.moving.take() else { return };
        // A copier that panicked has made no copy.
        if let Ok(Some((copy, kinds))) = copier.join() {
            self.home.advise_dont_need(&self.kinds);
            (self.home, self.kinds) = (Home::Memory(copy), kinds);
        }
        drop(unwanted);
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A matrix to copy: its range, and its start in the copy.
struct Part {
    id: TensorId,
    place: Range<usize>,
    start: usize,
}

impl Home {
    fn bytes(&self, id: TensorId, place: &Range<usize>) -> &[u8] {
        match self {
            Home::File(cache) => &cache.file_bytes()[place.clone()],
            Home::Model(model) => model.content(id),
            Home::Memory(memory) => &memory.as_slice()[place.clone()],
        }
    }

    /// Drops the pages of the matrices `kinds` of the model's file, which stays mapped, from this process's memory.
    fn advise_dont_need(&self, kinds: &Kinds) {
        let Home::Model(model) = self else { return };
        for (kind, layers) in kinds {
            layers.iter().for_each(|(layer, _)| {
                model.advise_dont_need(TensorId { kind: *kind, layer: *layer });
            });
        }
    }

    /// A copy of `parts`; `None` if memory is short, or `is_dropped` was set.
    fn copy(&self, parts: &[Part], is_dropped: &AtomicBool) -> Option<HugeMemory> {
        let end = parts.iter().map(|part| part.start + part.place.len()).max()?;
        let mut memory = HugeMemory::new(end).ok()?;
        for Part { id, place, start } in parts {
            let copy = &mut memory.as_mut_slice()[*start..start + place.len()];
            let bytes = self.bytes(*id, place);
            for (from, to) in bytes.chunks(COPY_BYTES).zip(copy.chunks_mut(COPY_BYTES)) {
                if is_dropped.load(Ordering::Relaxed) {
                    return None;
                }
                to.copy_from_slice(from);
            }
        }
        Some(memory)
    }
}
