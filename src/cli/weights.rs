//! Where packed weights are kept.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::progress::Progress;
use super::{Failure, folders, note, warn};
use crate::engine::Engine;
use crate::model::{CheckError, Model, PackError, PackProgress, PackReport, Share};
use crate::pack::Receipt;
use crate::sys::{huge, memory, signal};

/// Weights that pack in a few milliseconds are packed, and compared with their checksums, at every
/// start: a file saves nothing.
const FILE_FROM_BYTES: u64 = 32 << 20;

/// Memory left free, at least, when weights are copied to huge pages.
const SPARE_BYTES: u64 = 512 << 20;

/// What `--cache` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Beside the model, else in the user's cache folder.
    Auto,
    /// This file, or a file in this folder.
    At(PathBuf),
    /// Nowhere: weights are used as they are.
    Off,
}

/// What `--huge` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Huge {
    /// If the system has huge pages and memory to spare.
    Auto,
    /// Whatever the memory.
    On,
    /// Never.
    Off,
}

/// `off`, `auto`, a file or a folder.
pub(super) fn place(value: &str) -> Result<Place, String> {
    match value {
        "" => Err("wants a file, a folder, auto or off".to_owned()),
        "off" => Ok(Place::Off),
        "auto" => Ok(Place::Auto),
        path => Ok(Place::At(PathBuf::from(path))),
    }
}

/// `auto`, `on` or `off`.
pub(super) fn huge(value: &str) -> Result<Huge, String> {
    match value {
        "auto" => Ok(Huge::Auto),
        "on" => Ok(Huge::On),
        "off" => Ok(Huge::Off),
        _ => Err(format!("{value:?} is none of auto, on and off")),
    }
}

/// Packs the weights of `engine`, whose model file is `model` (`None` if it is built in), and
/// tells the user what happened unless `is_quiet`. Weights that no earlier start has compared with
/// their checksums are compared.
///
/// A cache that cannot be written is a warning: the weights are used as they are.
pub(super) fn prepare(
    engine: &mut Engine,
    model: Option<&Path>,
    place: &Place,
    huge: Huge,
    is_quiet: bool,
) -> Result<(), Failure> {
    trust_if_known(engine, place);
    pack(engine, model, place, huge, is_quiet)?;
    let checked = engine.transformer_mut().check_weights(&is_wanted);
    checked.map_err(|e| unusable(model, &e))?;
    remember(engine, place);
    Ok(())
}

fn pack(
    engine: &mut Engine,
    model: Option<&Path>,
    place: &Place,
    huge: Huge,
    is_quiet: bool,
) -> Result<(), Failure> {
    if let Some(report) = engine.transformer().packed_in_model() {
        if let Some(path) = model.filter(|_| !is_quiet) {
            note(&describe(&report, path, 0.0));
        }
        move_to_huge_pages(engine, huge, report.bytes);
        return Ok(());
    }
    let Some(bytes) = engine.transformer().packed_bytes() else { return Ok(()) };
    if *place == Place::Off {
        return Ok(());
    }
    let Some(path) = file(engine, model, place) else {
        let packed = engine.transformer_mut().pack_in_memory();
        packed.map_err(|e| failure(model, &e))?;
        return Ok(());
    };
    match build_or_reuse(engine, &path, is_quiet) {
        Ok(()) => {}
        Err(PackError::Weights(e)) => return Err(unusable(model, &e)),
        Err(e) => warn(&format!("{e}; weights are used unpacked, which is slower")),
    }
    move_to_huge_pages(engine, huge, bytes);
    Ok(())
}

/// Packs the weights of `engine`, whose model file is `model`, into the cache file at `path`, unless
/// it is there.
pub(super) fn pack_into(
    engine: &mut Engine,
    model: &Path,
    (place, path): (&Place, &Path),
) -> Result<(), Failure> {
    trust_if_known(engine, place);
    build_or_reuse(engine, path, false).map_err(|e| failure(Some(model), &e))?;
    remember(engine, place);
    Ok(())
}

/// Takes over what an earlier start found out about the file of `model`, if it is still the same.
pub(super) fn recall(model: &Model, place: &Place) -> Option<Receipt> {
    let receipt = Receipt::read(&receipt_folder(model, place)?, model.stamp()?)?;
    model.assume_fingerprint(receipt.fingerprint);
    Some(receipt)
}

fn trust_if_known(engine: &mut Engine, place: &Place) {
    let model = engine.transformer().model();
    let Some(receipt) = recall(model, place) else { return };
    let layers = receipt.layers.0 as usize..receipt.layers.1 as usize;
    let checked = Share { layers, has_ends: receipt.has_ends };
    if checked.includes(model.share()) {
        engine.transformer_mut().trust_weights();
    }
}

/// Leaves a receipt of the weights' comparison for later starts. Without one they compare again.
fn remember(engine: &Engine, place: &Place) {
    let model = engine.transformer().model();
    let Some(folder) = receipt_folder(model, place) else { return };
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

/// Where the receipt of `model`'s comparison is kept: where its cache is, or in the user's cache
/// folder. `None` if a model is not worth one.
fn receipt_folder(model: &Model, place: &Place) -> Option<PathBuf> {
    model.stamp().filter(|stamp| stamp.bytes >= FILE_FROM_BYTES)?;
    match place {
        Place::At(path) if path.is_dir() => Some(path.clone()),
        Place::At(path) => Some(path.parent()?.to_owned()),
        Place::Auto | Place::Off => folders::cache(),
    }
}

fn is_wanted() -> bool {
    signal::interrupted() == 0
}

fn failure(model: Option<&Path>, error: &PackError) -> Failure {
    match error {
        PackError::Weights(e) => unusable(model, e),
        e => Failure::runtime(e),
    }
}

fn unusable(model: Option<&Path>, error: &CheckError) -> Failure {
    let model = model.unwrap_or(Path::new("built in")).display();
    match error {
        CheckError::Interrupted => Failure::Runtime(error.to_string()),
        error => {
            Failure::Input(format!("cannot use model {model}: {error}; copy or export it anew"))
        }
    }
}

/// The cache file that [`prepare`] uses for `model`; `None` if weights are packed in memory, or
/// not at all.
pub(super) fn file(engine: &Engine, model: Option<&Path>, place: &Place) -> Option<PathBuf> {
    let bytes = engine.transformer().packed_bytes()?;
    match (place, model) {
        (Place::Off, _) | (Place::Auto, None) => None,
        (Place::Auto, _) if bytes < FILE_FROM_BYTES => None,
        (Place::At(path), model) => Some(at(engine, path, model)),
        (Place::Auto, Some(model)) => Some(beside_or_cache_folder(engine, model)),
    }
}

/// Builds the cache file at `path`, or finds it there, and says which.
fn build_or_reuse(engine: &mut Engine, path: &Path, is_quiet: bool) -> Result<(), PackError> {
    let start = Instant::now();
    let report = {
        let progress = RefCell::new(Progress::new("packing weights", is_quiet));
        let go_on = |PackProgress { done_bytes, total_bytes }| {
            progress.borrow_mut().update(done_bytes, total_bytes);
            is_wanted()
        };
        engine.transformer_mut().use_cache(path, &go_on)?
    };
    if let Some(report) = report.filter(|_| !is_quiet) {
        note(&describe(&report, path, start.elapsed().as_secs_f64()));
    }
    Ok(())
}

fn describe(report: &PackReport, path: &Path, seconds: f64) -> String {
    let (path, mb) = (path.display(), report.bytes as f64 / 1e6);
    match report.packed {
        0 => format!("leap: reused {} packed tensors ({mb:.1} MB): {path}", report.reused),
        n => format!("leap: packed {n} tensors ({mb:.1} MB) in {seconds:.1} s: {path}"),
    }
}

/// The cache file that `--cache PATH` means.
pub(super) fn at(engine: &Engine, path: &Path, model: Option<&Path>) -> PathBuf {
    match path.is_dir() {
        true => path.join(file_name(engine, model.unwrap_or(Path::new("demo.bin")))),
        false => path.to_owned(),
    }
}

/// Beside the model if that folder can be written, or has the file already.
pub(super) fn beside_or_cache_folder(engine: &Engine, model: &Path) -> PathBuf {
    let name = file_name(engine, model);
    let beside = model.with_file_name(&name);
    if beside.exists() || is_writable(beside.parent().unwrap_or(Path::new(""))) {
        return beside;
    }
    match folders::cache() {
        Some(folder) => folder.join(unique_name(engine.transformer().model(), &name)),
        None => beside,
    }
}

/// `MODEL.TIER.leapw`; of a node that runs some of the layers, `MODEL.FIRST-LAST.TIER.leapw`.
fn file_name(engine: &Engine, model: &Path) -> String {
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    let layers = match engine.transformer().model().share() {
        share if *share == Share::whole(engine.header()) => String::new(),
        Share { layers, .. } => format!(".{}-{}", layers.start, layers.end - 1),
    };
    format!("{stem}{layers}.{}.leapw", engine.transformer().kernels().isa().name())
}

/// Models of different folders may have one name.
fn unique_name(model: &Model, name: &str) -> String {
    format!("{:016x}-{name}", model.fingerprint())
}

/// Tries it: permissions alone do not tell of read-only file systems.
fn is_writable(folder: &Path) -> bool {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let probe = folder.join(format!(".leap-{}", std::process::id()));
    let is_writable = fs::OpenOptions::new().write(true).create_new(true).open(&probe).is_ok();
    is_writable && fs::remove_file(&probe).is_ok()
}

fn move_to_huge_pages(engine: &mut Engine, huge: Huge, bytes: u64) {
    if wants_huge_pages(huge, bytes) {
        engine.transformer_mut().move_to_huge_pages();
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
