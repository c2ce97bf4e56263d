//! Weights made ready: packed for the kernels, kept in a file that later starts map, compared with their
//! checksums once, and copied to huge pages.

use std::path::{Path, PathBuf};

use super::Engine;
use crate::model::{Model, PackError, PackProgress, PackReport, Share};
use crate::pack::Receipt;
use crate::sys::{file, folders, huge, memory};

/// Weights that pack in a few milliseconds are packed, and compared with their checksums, at every
/// start: a file saves nothing.
const FILE_FROM_BYTES: u64 = 32 << 20;

/// Memory left free, at least, when weights are copied to huge pages.
const SPARE_BYTES: u64 = 512 << 20;

/// Where packed weights are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Beside the model, else in the user's cache folder; those of small models in memory.
    #[default]
    Auto,
    /// In this file, or a file in this folder.
    At(PathBuf),
    /// Nowhere: weights are used as they are, which is slower but gives the same bits.
    Off,
}

/// Whether weights are copied to huge pages, which are quicker to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Huge {
    /// If the system has huge pages and memory to spare.
    #[default]
    Auto,
    /// Whatever the memory.
    On,
    /// Never.
    Off,
}

/// What [`Engine::prepare`] tells of its work.
#[derive(Debug)]
pub enum Preparing<'a> {
    /// It packs.
    Packing(PackProgress),
    /// It compares weights with their checksums.
    Checking,
    /// The packed weights are in this file.
    Packed(PackReport, &'a Path),
    /// The cache file cannot be used: the weights are used unpacked, which is slower.
    Unpacked(&'a PackError),
}

/// Hears what [`Engine::prepare`] tells, and says whether to go on.
pub type Listener<'a> = &'a dyn Fn(Preparing<'_>) -> bool;

impl Engine {
    /// Makes the weights ready, as [`Engine::open`] does: packs those that no earlier start has
    /// packed, and compares those with their checksums that none has compared. `model` is the model's
    /// file; `None` if it has none.
    ///
    /// A cache that cannot be written is told of, and done without.
    ///
    /// # Errors
    /// If the weights are damaged, there is no memory for them, or `tell` does not want to go on.
    pub fn prepare(
        &mut self,
        model: Option<&Path>,
        (cache, huge): (&Cache, Huge),
        tell: Listener<'_>,
    ) -> Result<(), PackError> {
        self.trust_if_known(cache);
        if let Some(bytes) = self.pack(model, cache, tell)?
            && wants_huge_pages(huge, bytes)
        {
            self.transformer.move_to_huge_pages();
        }
        self.transformer.check_weights(&|| tell(Preparing::Checking))?;
        self.remember(cache);
        Ok(())
    }

    /// The bytes of the packed weights that are mapped from a file.
    fn pack(
        &mut self,
        model: Option<&Path>,
        cache: &Cache,
        tell: Listener<'_>,
    ) -> Result<Option<u64>, PackError> {
        if let Some(report) = self.transformer.packed_in_model() {
            if let Some(path) = model {
                tell(Preparing::Packed(report, path));
            }
            return Ok(Some(report.bytes));
        }
        let Some(bytes) = self.transformer.packed_bytes().filter(|_| *cache != Cache::Off) else {
            return Ok(None);
        };
        let Some(path) = self.cache_file(model, cache) else {
            self.transformer.pack_in_memory()?;
            return Ok(None);
        };
        match self.build_or_reuse(&path, tell) {
            Err(e @ PackError::Weights(_)) => return Err(e),
            Err(e) => _ = tell(Preparing::Unpacked(&e)),
            Ok(()) => {}
        }
        Ok(Some(bytes))
    }

    /// Packs the weights into the cache file at `path`, unless it is there. `cache` says where it is
    /// noted that they were compared with their checksums.
    ///
    /// # Errors
    /// If the weights are damaged, the file cannot be written, or `tell` does not want to go on.
    pub fn pack_into(
        &mut self,
        (cache, path): (&Cache, &Path),
        tell: Listener<'_>,
    ) -> Result<(), PackError> {
        self.trust_if_known(cache);
        self.build_or_reuse(path, tell)?;
        self.remember(cache);
        Ok(())
    }

    fn build_or_reuse(&mut self, path: &Path, tell: Listener<'_>) -> Result<(), PackError> {
        let report = self.transformer.use_cache(path, &|done| tell(Preparing::Packing(done)))?;
        if let Some(report) = report {
            tell(Preparing::Packed(report, path));
        }
        Ok(())
    }

    /// The cache file that [`Engine::prepare`] uses; `None` if weights are packed in memory, or not at
    /// all.
    pub fn cache_file(&self, model: Option<&Path>, cache: &Cache) -> Option<PathBuf> {
        let bytes = self.transformer.packed_bytes()?;
        match (cache, model) {
            (Cache::Off, _) | (Cache::Auto, None) => None,
            (Cache::Auto, _) if bytes < FILE_FROM_BYTES => None,
            (Cache::At(path), model) => Some(self.cache_file_at(path, model)),
            (Cache::Auto, Some(model)) => Some(self.cache_file_beside(model)),
        }
    }

    /// The cache file that [`Cache::At`] `path` means for `model`.
    pub fn cache_file_at(&self, path: &Path, model: Option<&Path>) -> PathBuf {
        match path.is_dir() {
            true => path.join(self.cache_name(model.unwrap_or(Path::new("demo.bin")))),
            false => path.to_owned(),
        }
    }

    /// The cache file beside `model` if that folder can be written, or has it already; else in the
    /// user's cache folder.
    pub fn cache_file_beside(&self, model: &Path) -> PathBuf {
        let name = self.cache_name(model);
        let beside = model.with_file_name(&name);
        let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty());
        if beside.exists() || file::is_writable(folder.unwrap_or(Path::new("."))) {
            return beside;
        }
        match folders::cache() {
            // Models of different folders may have one name.
            Some(folder) => {
                folder.join(format!("{:016x}-{name}", self.transformer.model().fingerprint()))
            }
            None => beside,
        }
    }

    /// `MODEL.TIER.leapw`; of a node that runs some of the layers, `MODEL.FIRST-LAST.TIER.leapw`.
    fn cache_name(&self, model: &Path) -> String {
        let stem = model.file_stem().unwrap_or_default().to_string_lossy();
        let layers = match self.transformer.model().share() {
            share if *share == Share::whole(self.header()) => String::new(),
            Share { layers, .. } => format!(".{}-{}", layers.start, layers.end - 1),
        };
        format!("{stem}{layers}.{}.leapw", self.transformer.kernels().isa().name())
    }

    fn trust_if_known(&mut self, cache: &Cache) {
        let model = self.transformer.model();
        let Some(receipt) = recall(model, cache) else { return };
        let layers = receipt.layers.0 as usize..receipt.layers.1 as usize;
        let checked = Share { layers, has_ends: receipt.has_ends };
        if checked.includes(model.share()) {
            self.transformer.trust_weights();
        }
    }

    /// Leaves a receipt of the weights' comparison for later starts. Without one they compare again.
    fn remember(&self, cache: &Cache) {
        let model = self.transformer.model();
        let Some(folder) = receipt_folder(model, cache) else { return };
        let (Some(stamp), Some(fingerprint)) = (model.stamp(), model.known_fingerprint()) else {
            return;
        };
        let Share { layers, has_ends } = model.share();
        let layers = (layers.start as u32, layers.end as u32);
        let receipt = Receipt { stamp: *stamp, fingerprint, layers, has_ends: *has_ends };
        if Receipt::read(&folder, stamp) != Some(receipt)
            && let Err(e) = receipt.write(&folder)
        {
            log::debug!("{e}");
        }
    }
}

/// Takes over what an earlier start found out about the file of `model`, if it is still the same.
pub fn recall(model: &Model, cache: &Cache) -> Option<Receipt> {
    let receipt = Receipt::read(&receipt_folder(model, cache)?, model.stamp()?)?;
    model.assume_fingerprint(receipt.fingerprint);
    Some(receipt)
}

/// Where the receipt of `model`'s comparison is kept: where its cache is, or in the user's cache
/// folder. `None` if a model is not worth one.
fn receipt_folder(model: &Model, cache: &Cache) -> Option<PathBuf> {
    model.stamp().filter(|stamp| stamp.bytes >= FILE_FROM_BYTES)?;
    match cache {
        Cache::At(path) if path.is_dir() => Some(path.clone()),
        Cache::At(path) => Some(path.parent()?.to_owned()),
        Cache::Auto | Cache::Off => folders::cache(),
    }
}

fn wants_huge_pages(huge: Huge, bytes: u64) -> bool {
    match huge {
        Huge::Off => false,
        Huge::On => true,
        Huge::Auto => {
            let free = memory::available_bytes().unwrap_or(0);
            huge::is_available() && free / 2 > bytes && free - bytes > SPARE_BYTES
        }
    }
}
