//! Weights in the layout of the kernels in use: in a cache file that processes share, or in
//! memory of this process, in huge pages if the system has them.

use std::fmt;
use std::io;
use std::mem::discriminant;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use super::{CheckError, Matrix, Model};
use crate::format::model::{Header, TensorId, TensorKind};
use crate::kernels::{Kernels, Layout};
use crate::pack::{self, Builder, Cache, Entry, Identity};
use crate::pool::Pool;
use crate::sys::cpu;
use crate::sys::huge::HugeMemory;

/// Changes when the order or the meaning of a cache's tensors does.
const ORDER: u32 = 4;

/// Panels that a thread packs at once.
const PIECE_PANELS: usize = 8;

/// Bytes copied to huge pages between two looks at whether they are still wanted.
const COPY_BYTES: usize = 8 << 20;

/// What became of the weights when they were packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackReport {
    /// Matrices packed now; 0 if a cache had them.
    pub packed: usize,
    /// Matrices taken from a cache file.
    pub reused: usize,
    /// Bytes of all packed matrices.
    pub bytes: u64,
}

/// Why weights were not packed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PackError {
    /// The weights are damaged, or nobody wants them any more.
    Weights(CheckError),
    /// The cache file cannot be read or written.
    Cache(pack::Error),
    /// There is not enough memory.
    Memory(io::Error),
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::Weights(e) => e.fmt(f),
            PackError::Cache(e) => e.fmt(f),
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

impl From<pack::Error> for PackError {
    fn from(error: pack::Error) -> PackError {
        PackError::Cache(error)
    }
}

/// How far packing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress {
    /// Bytes packed.
    pub done_bytes: u64,
    /// Bytes there will be.
    pub total_bytes: u64,
}

/// Where weights are packed to.
pub(super) struct Packer<'a> {
    pub(super) model: &'a Model,
    pub(super) kernels: &'a Kernels,
    pub(super) pool: &'a Pool,
}

/// One matrix that is multiplied by.
struct Job<'a> {
    id: TensorId,
    w: Matrix<'a>,
    bytes: usize,
}

/// A packed copy of every quantised matrix that is multiplied by.
pub(super) struct PackedWeights {
    layout: Layout,
    /// First layer of the share.
    first_layer: usize,
    /// Place of each kind's matrices, by layer.
    kinds: Kinds,
    home: Home,
    /// A copy in huge pages on its way.
    moving: Option<Moving>,
}

type Kinds = Vec<(TensorKind, Vec<Entry>)>;

enum Home {
    File(Arc<Cache>),
    /// The model's own file; entries say where a copy of its matrices puts them.
    Model(Arc<Model>),
    Memory(HugeMemory),
}

/// A copy being made by another thread.
struct Moving {
    done: Receiver<HugeMemory>,
    is_wanted: Arc<AtomicBool>,
}

impl Packer<'_> {
    /// The matrices to pack; `None` if none are quantised, or the kernels want them as they are.
    fn jobs(&self) -> Option<(Layout, Vec<Job<'_>>)> {
        let layout = self.kernels.layout()?;
        let header = self.model.header();
        let ids = header.tensors().map(|tensor| tensor.id);
        let is_own = |id: &TensorId| header.is_multiplied(id.kind) && self.model.share().holds(*id);
        let jobs = ids.filter(is_own).filter_map(|id| {
            let w = self.model.matrix(id.kind, id.layer);
            let bytes = packed_bytes(layout, &w, w.rows(), header.weights.group()?)?;
            Some(Job { id, w, bytes })
        });
        let jobs: Vec<Job<'_>> = jobs.collect();
        (!jobs.is_empty()).then_some((layout, jobs))
    }

    /// Bytes of all packed matrices; `None` if there are none.
    pub(super) fn bytes(&self) -> Option<u64> {
        let (_, jobs) = self.jobs()?;
        Some(jobs.iter().map(|job| job.bytes as u64).sum())
    }

    /// What a cache file of these matrices is recognised by.
    fn identity(&self, layout: Layout) -> Identity {
        let layers = &self.model.share().layers;
        Identity {
            fingerprint: self.model.fingerprint(),
            layers: (layers.start as u32, layers.end as u32),
            layout: layout.id(),
            order: ORDER,
        }
    }

    /// Maps the cache file at `path`, which is built if it is not there or does not match; whoever
    /// builds it compares all of the share with its checksums. `go_on` is told between tensors how
    /// far it is and may end the work. `None` as for `bytes`.
    pub(super) fn cached(
        &self,
        path: &Path,
        go_on: &dyn Fn(PackProgress) -> bool,
    ) -> Result<Option<(PackedWeights, PackReport)>, PackError> {
        let Some((layout, jobs)) = self.jobs() else { return Ok(None) };
        let fill = |builder: &mut Builder| self.fill(builder, layout, &jobs, go_on);
        let (cache, was_built) = Cache::open_or_build(path, &self.identity(layout), fill)?;
        let mismatch = |what| pack::Error::Mismatch { path: path.to_owned(), what };
        let entries = jobs.iter().map(|job| {
            let entry = cache.look_up(key(job.id)).filter(|entry| entry.bytes == job.bytes as u64);
            entry.map(|entry| (job.id.kind, entry)).ok_or_else(|| mismatch("a tensor"))
        });
        let kinds = by_kind(entries.collect::<Result<Vec<_>, _>>()?);
        let (n, bytes) = (jobs.len(), jobs.iter().map(|job| job.bytes as u64).sum());
        let report = match was_built {
            true => PackReport { packed: n, reused: 0, bytes },
            false => PackReport { packed: 0, reused: n, bytes },
        };
        Ok(Some((self.packed(layout, kinds, Home::File(Arc::new(cache))), report)))
    }

    fn fill(
        &self,
        builder: &mut Builder,
        layout: Layout,
        jobs: &[Job<'_>],
        go_on: &dyn Fn(PackProgress) -> bool,
    ) -> Result<(), PackError> {
        let total_bytes = jobs.iter().map(|job| job.bytes as u64).sum();
        let mut done_bytes = 0;
        builder.reserve_disk(total_bytes)?;
        let header = self.model.header();
        let mut sources: Vec<(u32, &Job<'_>)> = Vec::with_capacity(jobs.len());
        for job in jobs {
            if !go_on(PackProgress { done_bytes, total_bytes }) {
                return Err(CheckError::Interrupted.into());
            }
            done_bytes += job.bytes as u64;
            let crc = self.model.check_tensor(job.id)?;
            let is_same = |other: &Job<'_>| {
                self.model.tensor_bytes(other.id) == self.model.tensor_bytes(job.id)
                    && discriminant(&other.w) == discriminant(&job.w)
                    && header.shape(other.id.kind) == header.shape(job.id.kind)
            };
            let same = sources.iter().find(|(of, other)| *of == crc && is_same(other));
            if let Some(entry) = same.and_then(|(_, other)| builder.look_up(key(other.id))) {
                builder.insert_same(key(job.id), entry);
                continue;
            }
            self.pack(layout, job.w, builder.reserve_space(job.bytes));
            builder.look_up_or_insert(key(job.id))?;
            sources.push((crc, job));
        }
        let mut others = self.model.checkable();
        others.retain(|id| jobs.iter().all(|job| job.id != *id));
        let all = PackProgress { done_bytes, total_bytes };
        Ok(self.model.check(&others, self.pool, &|| go_on(all))?)
    }

    /// Packs into memory of this process. `None` as for `bytes`.
    pub(super) fn in_memory(&self) -> io::Result<Option<(PackedWeights, PackReport)>> {
        let Some((layout, jobs)) = self.jobs() else { return Ok(None) };
        let padded = |bytes: usize| bytes.next_multiple_of(crate::arena::ALIGN);
        let total = jobs.iter().map(|job| padded(job.bytes)).sum();
        let mut memory = HugeMemory::new(total)?;
        let (mut entries, mut end) = (Vec::with_capacity(jobs.len()), 0);
        for job in &jobs {
            self.pack(layout, job.w, &mut memory.as_mut_slice()[end..end + job.bytes]);
            let (offset, bytes) = (end as u64, job.bytes as u64);
            entries.push((job.id.kind, Entry { key: key(job.id), offset, bytes, crc: 0 }));
            end += padded(job.bytes);
        }
        let report = PackReport { packed: jobs.len(), reused: 0, bytes: total as u64 };
        Ok(Some((self.packed(layout, by_kind(entries), Home::Memory(memory)), report)))
    }

    fn packed(&self, layout: Layout, kinds: Kinds, home: Home) -> PackedWeights {
        let first_layer = self.model.share().layers.start;
        PackedWeights { layout, first_layer, kinds, home, moving: None }
    }

    fn pack(&self, layout: Layout, w: Matrix<'_>, out: &mut [u8]) {
        let kernels = self.kernels;
        let piece_rows = PIECE_PANELS * layout.panel_rows();
        let group = self.model.header().weights.group();
        let piece_bytes = group.and_then(|group| packed_bytes(layout, &w, piece_rows, group));
        self.pool.run_chunks(out, piece_bytes.unwrap_or(usize::MAX), &|index, out| {
            let start = index * piece_rows;
            match w.slice_rows(start..(start + piece_rows).min(w.rows())) {
                Matrix::Q8(w) => kernels.pack_q8(w, out),
                Matrix::Q4(w) => kernels.pack_q4(w, out),
                _ => unreachable!("`jobs` chose matrices that can be packed"),
            }
        });
    }
}

/// Bytes of `rows` rows of `w` once packed; `None` if its kind is not.
fn packed_bytes(layout: Layout, w: &Matrix<'_>, rows: usize, group: usize) -> Option<usize> {
    match w {
        Matrix::Q8(w) => layout.bytes_q8(rows, w.k(), group),
        Matrix::Q4(w) => layout.bytes_q4(rows, w.k(), group),
        _ => None,
    }
}

fn key(id: TensorId) -> u64 {
    (id.kind as u64) << 32 | id.layer as u64
}

/// Groups entries that come kind after kind, layer after layer.
fn by_kind(entries: Vec<(TensorKind, Entry)>) -> Kinds {
    let mut kinds = Kinds::new();
    for (kind, entry) in entries {
        match kinds.last_mut() {
            Some((last, layers)) if *last == kind => layers.push(entry),
            _ => kinds.push((kind, vec![entry])),
        }
    }
    kinds
}

impl PackedWeights {
    /// The matrices of a model whose file holds them packed; `None` if it does not.
    pub(super) fn of_model(model: &Arc<Model>) -> Option<PackedWeights> {
        let layout = model.packed_for()?.layout()?;
        let (header, share) = (model.header(), model.share());
        let mut end = 0;
        let ids = header.tensors().map(|tensor| tensor.id).filter(|id| share.holds(*id));
        let entries = ids.filter(|id| header.packing_of(id.kind).is_some()).map(|id| {
            let (offset, bytes) = (end, header.content_bytes(id.kind));
            end += bytes.next_multiple_of(crate::arena::ALIGN as u64);
            (id.kind, Entry { key: key(id), offset, bytes, crc: 0 })
        });
        let (kinds, home) = (by_kind(entries.collect()), Home::Model(Arc::clone(model)));
        Some(PackedWeights { layout, first_layer: share.layers.start, kinds, home, moving: None })
    }

    /// The packed matrix of `kind` in `layer`, `[rows, k]`, if there is one.
    pub(super) fn matrix(
        &self,
        (kind, layer): (TensorKind, usize),
        header: &Header,
    ) -> Option<Matrix<'_>> {
        let (_, layers) = self.kinds.iter().find(|(of, _)| *of == kind)?;
        let entry = &layers[layer - self.first(kind)];
        let bytes = match &self.home {
            Home::Model(model) => return Some(model.matrix(kind, layer)),
            Home::File(cache) => cache.offset_to_addr(entry),
            Home::Memory(memory) => {
                let start = entry.offset as usize;
                &memory.as_slice()[start..start + entry.bytes as usize]
            }
        };
        Some(Matrix::packed(bytes, header, kind, self.layout))
    }

    /// Layer of the first matrix of `kind`.
    fn first(&self, kind: TensorKind) -> usize {
        if kind.is_per_layer() { self.first_layer } else { 0 }
    }

    /// How many matrices there are, none of them packed by this process, and their bytes.
    pub(super) fn reused(&self) -> PackReport {
        let entries = || self.kinds.iter().flat_map(|(_, layers)| layers);
        let bytes = entries().map(|entry| entry.bytes).sum();
        PackReport { packed: 0, reused: entries().count(), bytes }
    }

    /// Whether the weights are in huge pages of this process, rather than in a mapped file.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.home, Home::Memory(_))
    }

    /// Starts copying the mapped weights to huge pages; [`PackedWeights::finish_move`] takes
    /// the copy into use.
    pub(super) fn start_move(&mut self) {
        let Some(source) = self.source() else { return };
        let is_wanted = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&is_wanted);
        let (send, done) = sync_channel(1);
        let worker = thread::Builder::new().name("leap-pages".to_owned()).spawn(move || {
            cpu::unpin_current_thread();
            if let Some(copy) = source.copy(&flag) {
                // Nobody waits for the copy if the model is gone.
                let _ = send.send(copy);
            }
        });
        // Without a thread the mapped file goes on serving.
        if worker.is_ok() {
            self.moving = Some(Moving { done, is_wanted });
        }
    }

    /// What a copy is made of; `None` if the weights are in memory already.
    fn source(&self) -> Option<Source> {
        match &self.home {
            Home::File(cache) => Some(Source::File(Arc::clone(cache))),
            Home::Model(model) => {
                let layers = |(kind, entries): &(TensorKind, Vec<Entry>)| {
                    let kind = *kind;
                    let id = move |layer| TensorId { kind, layer };
                    let places: Vec<_> = (self.first(kind)..)
                        .map(id)
                        .zip(entries.iter().map(|entry| entry.offset))
                        .collect();
                    places
                };
                let places = self.kinds.iter().flat_map(layers).collect();
                Some(Source::Model(Arc::clone(model), places))
            }
            Home::Memory(_) => None,
        }
    }

    /// Takes a finished copy into use. Entries say where the matrices are in it.
    pub(super) fn finish_move(&mut self) {
        let copy = self.moving.as_ref().and_then(|moving| moving.done.try_recv().ok());
        if let Some(copy) = copy {
            self.home = Home::Memory(copy);
            self.moving = None;
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

/// Mapped bytes to copy to huge pages.
enum Source {
    /// The whole cache file.
    File(Arc<Cache>),
    /// Matrices of the model, each with its place in the copy.
    Model(Arc<Model>, Vec<(TensorId, u64)>),
}

impl Source {
    /// The copy; `None` if there is no memory, or it is no longer wanted.
    fn copy(&self, is_wanted: &AtomicBool) -> Option<HugeMemory> {
        let parts: Vec<(usize, &[u8])> = match self {
            Source::File(cache) => vec![(0, cache.file_bytes())],
            Source::Model(model, places) => {
                places.iter().map(|(id, at)| (*at as usize, model.content(*id))).collect()
            }
        };
        let end = parts.iter().map(|(at, bytes)| at + bytes.len()).max()?;
        let mut memory = HugeMemory::new(end).ok()?;
        for (at, bytes) in parts {
            let copy = &mut memory.as_mut_slice()[at..at + bytes.len()];
            for (from, to) in bytes.chunks(COPY_BYTES).zip(copy.chunks_mut(COPY_BYTES)) {
                if !is_wanted.load(Ordering::Relaxed) {
                    return None;
                }
                to.copy_from_slice(from);
            }
        }
        Some(memory)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::{KvType, Plan, Row, Transformer};
    use super::*;
    use crate::format::model::Weights;

    fn model() -> Arc<Model> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin");
        Arc::new(Model::open(&path).unwrap())
    }

    fn transformer(model: &Arc<Model>, kernels: Kernels) -> Transformer {
        let plan =
            Plan { ctx_len: 64, max_batch: 32, max_logits: 32, n_streams: 1, kv: KvType::F16 };
        Transformer::new(Arc::clone(model), kernels, Pool::new(&[0, 0]).unwrap(), plan).unwrap()
    }

    fn logits(transformer: &mut Transformer) -> Vec<f32> {
        let rows = |range: std::ops::Range<usize>| -> Vec<Row> {
            let token = |pos: usize| (pos * 37 % 300) as u32;
            range.map(|pos| Row { token: token(pos), stream: 0, pos, wants_logits: true }).collect()
        };
        let mut logits = transformer.forward(&rows(0..29)).unwrap().to_vec();
        logits.extend_from_slice(transformer.forward(&rows(29..30)).unwrap());
        logits
    }

    fn check_in_every_tier(model: &Arc<Model>) {
        let wanted = logits(&mut transformer(model, Kernels::best()));
        assert!(wanted.iter().all(|x| x.is_finite()));
        for kernels in crate::kernels::Isa::ALL.iter().filter_map(|isa| Kernels::for_isa(*isa)) {
            let mut transformer = transformer(model, kernels);
            let report = transformer.pack_in_memory().unwrap();
            assert_eq!(report.is_some(), kernels.layout().is_some());
            assert!(logits(&mut transformer) == wanted, "{kernels:?}");
        }
    }

    #[test]
    fn packed_weights_give_the_same_logits() {
        check_in_every_tier(&model());
    }

    #[test]
    fn packed_4_bit_weights_give_the_same_logits() {
        for int8_embedding in [false, true] {
            let header = model().header().clone();
            let weights = Weights::Q4 { group: 64, int8_embedding };
            let model = Model::synthetic(&Header { weights, ..header }).unwrap();
            check_in_every_tier(&Arc::new(model));
        }
    }

    #[test]
    fn a_second_start_packs_nothing_and_gives_the_same_logits() {
        let model = model();
        let name = format!("leap-packed-{}.leapw", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut first = transformer(&model, Kernels::best());
        let steps = RefCell::new(Vec::new());
        let go_on = |PackProgress { done_bytes, total_bytes }| {
            steps.borrow_mut().push((done_bytes, total_bytes));
            true
        };
        let Some(built) = first.use_cache(&path, &go_on).unwrap() else { return };
        let steps = steps.into_inner();
        assert!(steps.len() > built.packed && steps.is_sorted());
        assert_eq!(
            (steps[0], steps[steps.len() - 1]),
            ((0, built.bytes), (built.bytes, built.bytes))
        );
        assert!(built.packed > 0 && built.reused == 0);
        let wanted = logits(&mut first);
        let mut second = transformer(&model, Kernels::best());
        let reused = second.use_cache(&path, &|_| true).unwrap().unwrap();
        assert_eq!(reused, PackReport { packed: 0, reused: built.packed, bytes: built.bytes });
        assert!(logits(&mut second) == wanted);
        second.move_to_huge_pages();
        while !second.is_in_memory() {
            assert!(logits(&mut second) == wanted);
        }
        assert!(logits(&mut second) == wanted);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_interrupted_build_leaves_no_file() {
        let model = model();
        let path = std::env::temp_dir().join(format!("leap-half-{}.leapw", std::process::id()));
        let mut transformer = transformer(&model, Kernels::best());
        if transformer.kernels().layout().is_some() {
            let result = transformer.use_cache(&path, &|_| false);
            assert!(matches!(result, Err(PackError::Weights(CheckError::Interrupted))));
            assert!(!path.exists());
        }
    }
}
