//! Prepares weights: packs them for the kernels, keeps the result in a file that later starts map, compares
//! them with their checksums once, and copies them to huge pages.

use std::path::{Path, PathBuf};

use crate::model::{Model, PackError, PackProgress, PackReport, PackWatch, Stage, Transformer};
use crate::pack::Receipt;
use crate::sys::{file, folders, huge, memory};

/// Minimum size of packed weights for a cache file. Smaller ones are packed in a few milliseconds, and
/// compared with their checksums, at every start: a file would save nothing.
const FILE_FROM_BYTES: u64 = 32 << 20;

/// Minimum memory left free when weights are copied to huge pages.
const SPARE_BYTES: u64 = 512 << 20;

/// Where packed weights are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Beside the model, or else in the user's cache folder; small models are packed in memory.
    #[default]
    Auto,
    /// In this file, or a file in this folder.
    At(PathBuf),
    /// Nowhere: weights are used unpacked, which is slower but gives the same bits.
    Off,
}

/// Whether packed weights are copied to huge pages, from which they are read faster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Huge {
    /// If the system has huge pages and memory to spare.
    #[default]
    Auto,
    /// Always, however little memory is free.
    On,
    /// Never.
    Off,
}

/// Progress of [`Engine::prepare`](super::Engine::prepare).
#[derive(Debug)]
pub enum Preparing<'a> {
    /// Weights are being packed.
    Packing(PackProgress),
    /// The packed weights are in this file.
    Packed(PackReport, &'a Path),
    /// The cache file cannot be used: the weights are used unpacked, which is slower.
    Unpacked(&'a PackError),
    /// The weights are more than the memory that is free.
    Larger(LargerThanMemory),
}

/// Weights that do not fit into memory. Those that a token needs and memory lacks are read from their file,
/// and evict others. All figures are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargerThanMemory {
    /// Bytes of the weights, in the layout that is used.
    pub weights: u64,
    /// Bytes of memory that are free or hold cached files.
    pub free: u64,
    /// Bytes of weights that one token reads.
    pub per_token: u64,
}

/// Callbacks of [`Engine::prepare`](super::Engine::prepare).
#[derive(Clone, Copy)]
pub struct Listener<'a> {
    /// Gets the progress of the work.
    pub tell: &'a dyn Fn(Preparing<'_>),
    /// Polled during the work; true ends it.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

impl Listener<'_> {
    /// A listener that ignores everything and never interrupts.
    pub const NONE: Listener<'static> = Listener { tell: &|_| {}, is_interrupted: &|| false };
}

/// Where a model's weights are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsPlace {
    /// The model's file; `None` if the model is not in a file.
    pub model: Option<PathBuf>,
    /// Where the model's packed weights are kept.
    pub cache: Cache,
    /// Whether the packed weights are copied to huge pages.
    pub huge: Huge,
}

impl WeightsPlace {
    /// See [`Engine::prepare`](super::Engine::prepare).
    pub(super) fn prepare(
        &self,
        transformer: &mut Transformer,
        listener: Listener<'_>,
    ) -> Result<Option<PackReport>, PackError> {
        self.recall(transformer.model());
        let report = self.pack(transformer, listener)?;
        if let Some(report) = report.filter(|_| !transformer.is_in_memory())
            && self.wants_huge_pages(report.bytes)
        {
            transformer.move_to_huge_pages();
        }
        if let Some(larger) = larger_than_memory(transformer, memory::available_bytes()) {
            (listener.tell)(Preparing::Larger(larger));
        }
        transformer.check_weights(listener.is_interrupted)?;
        self.remember(transformer.model());
        Ok(report)
    }

    fn pack(
        &self,
        transformer: &mut Transformer,
        listener: Listener<'_>,
    ) -> Result<Option<PackReport>, PackError> {
        if let Some(report) = transformer.packed_in_model() {
            return Ok(Some(report));
        }
        if transformer.packed_bytes().is_none() || self.cache == Cache::Off {
            return Ok(None);
        }
        let Some(path) = self.cache_file(transformer) else {
            return transformer.pack_in_memory(listener.is_interrupted);
        };
        match build_or_reuse(transformer, &path, listener) {
            Err(e) if !matches!(e, PackError::Weights(_)) => {
                (listener.tell)(Preparing::Unpacked(&e));
                Ok(None)
            }
            result => result,
        }
    }

    /// See [`Engine::pack_into`](super::Engine::pack_into).
    pub(super) fn pack_into(
        &self,
        transformer: &mut Transformer,
        path: &Path,
        listener: Listener<'_>,
    ) -> Result<(), PackError> {
        self.recall(transformer.model());
        build_or_reuse(transformer, path, listener)?;
        self.remember(transformer.model());
        Ok(())
    }

    /// See [`Engine::cache_file`](super::Engine::cache_file).
    pub(super) fn cache_file(&self, transformer: &Transformer) -> Option<PathBuf> {
        let bytes = transformer.packed_bytes()?;
        match (&self.cache, &self.model) {
            (Cache::Auto, None) => None,
            (Cache::Auto, _) if bytes < FILE_FROM_BYTES => None,
            _ => self.cache_file_for_any(transformer),
        }
    }

    /// See [`Engine::cache_file_for_any`](super::Engine::cache_file_for_any).
    pub(super) fn cache_file_for_any(&self, transformer: &Transformer) -> Option<PathBuf> {
        let model = self.model.as_deref().unwrap_or(Path::new("demo.bin"));
        match &self.cache {
            Cache::Off => None,
            Cache::At(path) if path.is_dir() => Some(path.join(cache_name(transformer, model))),
            Cache::At(path) => Some(path.clone()),
            Cache::Auto => Some(cache_file_beside(transformer, model)),
        }
    }

    /// Reads the receipt that an earlier start left for the file of `model`, if the file is unchanged.
    pub fn recall(&self, model: &Model) {
        let receipt = self.receipt_folder(model);
        let receipt = receipt.and_then(|folder| Receipt::read(&folder, model.stamp()?));
        if let Some(receipt) = receipt {
            model.file().believe(receipt.fingerprint, &receipt.checked);
        }
    }

    /// Has later starts use the weights of `model`, whose file this process has written, without comparing them with
    /// their checksums.
    #[cfg(feature = "tools")]
    pub(crate) fn vouch(&self, model: &Model) {
        if let Some(fingerprint) = model.file().known_fingerprint() {
            let parts = model.file().checked().len();
            model.file().believe(fingerprint, &vec![true; parts]);
            self.remember(model);
        }
    }

    /// Writes a receipt of the weights' comparison with their checksums, so that later starts skip it.
    fn remember(&self, model: &Model) {
        let Some(folder) = self.receipt_folder(model) else { return };
        let file = model.file();
        let (Some(stamp), Some(fingerprint)) = (file.stamp(), file.known_fingerprint()) else {
            return;
        };
        // Keeps comparisons that another process has made in the meantime.
        let written = Receipt::read(&folder, stamp);
        if let Some(Receipt { fingerprint, checked, .. }) = &written {
            file.believe(*fingerprint, checked);
        }
        let receipt = Receipt { stamp: *stamp, fingerprint, checked: file.checked() };
        if written.as_ref() != Some(&receipt)
            && let Err(e) = receipt.write(&folder)
        {
            log::debug!("{e}");
        }
    }

    /// Folder for the receipt of `model`'s comparison: the folder of its cache, or the user's cache folder.
    /// `None` if the model is too small.
    fn receipt_folder(&self, model: &Model) -> Option<PathBuf> {
        model.stamp().filter(|stamp| stamp.bytes >= FILE_FROM_BYTES)?;
        match &self.cache {
            Cache::At(path) if path.is_dir() => Some(path.clone()),
            Cache::At(path) => Some(path.parent()?.to_owned()),
            Cache::Auto | Cache::Off => folders::cache(),
        }
    }

    fn wants_huge_pages(&self, bytes: u64) -> bool {
        match self.huge {
            Huge::Off => false,
            Huge::On => true,
            Huge::Auto => {
                let free = memory::available_bytes().unwrap_or(0);
                huge::is_available() && free / 2 > bytes && free - bytes > SPARE_BYTES
            }
        }
    }
}

/// The sizes to report, if the weights are in files and larger than the `free` memory.
fn larger_than_memory(transformer: &Transformer, free: Option<u64>) -> Option<LargerThanMemory> {
    let free = free.filter(|_| !transformer.is_in_memory())?;
    let model = transformer.model();
    let weights = model.weight_bytes();
    let larger = LargerThanMemory { weights, free, per_token: model.bytes_per_token() };
    (weights > free).then_some(larger)
}

fn build_or_reuse(
    transformer: &mut Transformer,
    path: &Path,
    Listener { tell, is_interrupted }: Listener<'_>,
) -> Result<Option<PackReport>, PackError> {
    let watch = PackWatch { tell: &|done| tell(Preparing::Packing(done)), is_interrupted };
    let report = transformer.use_cache(path, watch)?;
    if let Some(report) = report {
        tell(Preparing::Packed(report, path));
    }
    Ok(report)
}

/// The cache file beside `model` if it exists or its folder can be written; otherwise the file in the user's
/// cache folder.
fn cache_file_beside(transformer: &Transformer, model: &Path) -> PathBuf {
    let name = cache_name(transformer, model);
    let beside = model.with_file_name(&name);
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty());
    if beside.exists() || file::is_writable(folder.unwrap_or(Path::new("."))) {
        return beside;
    }
    match folders::cache().zip(transformer.model().fingerprint().ok()) {
        // Models in different folders may have the same name.
        Some((folder, fingerprint)) => folder.join(format!("{fingerprint:016x}-{name}")),
        None => beside,
    }
}

/// `MODEL.TIER.leapw`, whichever of the model's layers the file holds.
fn cache_name(transformer: &Transformer, model: &Path) -> String {
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    format!("{stem}.{}.leapw", transformer.kernels().isa().name())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kernels::Kernels;
    use crate::model::{KvKind, Plan};
    use crate::pool::Pool;

    #[test]
    fn weights_in_a_file_that_are_more_than_memory_are_told_of() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo.bin");
        let model = Arc::new(Model::open(&path).unwrap());
        let plan = Plan {
            ctx_len: 8,
            max_batch: 1,
            max_logits: 1,
            n_streams: 1,
            kv: KvKind::F16,
            kv_pages: None,
        };
        let (weights, per_token) = (model.weight_bytes(), model.bytes_per_token());
        let pool = Pool::new(&[]).unwrap();
        let mut transformer = Transformer::new(model, Kernels::best(), pool, plan).unwrap();
        let free = weights - 1;
        let larger = LargerThanMemory { weights, free, per_token };
        assert_eq!(larger_than_memory(&transformer, Some(free)), Some(larger));
        assert_eq!(larger_than_memory(&transformer, Some(weights)), None);
        assert_eq!(larger_than_memory(&transformer, None), None);
        transformer.pack_in_memory(&|| false).unwrap();
        // The scalar kernels use weights unpacked, so these stay in the file.
        assert_eq!(larger_than_memory(&transformer, Some(0)).is_none(), transformer.is_in_memory());
    }
}
