//! Conversion of checkpoints for `leap export`, `leap run` and `leap serve`, and the converted files that the last two
//! commands keep.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Instant, UNIX_EPOCH};

use super::checkpoint::CheckpointPath;
use super::{Failure, names, note, options, packing, progress, temporary};
use crate::engine::WeightsPlace;
use crate::export::tokenizer::{self as import, ImportedTokenizer};
use crate::export::{ExportError, ExportOptions, ExportPlan, ExportProgress, Vocabulary};
use crate::format::Shard;
use crate::format::model::Ends;
#[cfg(feature = "gguf")]
use crate::format::tokenizer::TokenizerFile;
use crate::format::tokenizer::fingerprint;
use crate::kernels::Isa;
use crate::model::Model;
use crate::quant::GROUP_DEFAULT;
use crate::sys::{file, folders, signal};

/// Version of the conversion; it changes when the same checkpoint becomes another model file.
const VERSION: u32 = 11;

/// Longest part of a kept file's name that comes from the checkpoint's name.
const NAME_BYTES: usize = 100;

/// Reads `checkpoint`.
pub(super) fn open(
    checkpoint: &CheckpointPath,
    options: &ExportOptions,
) -> Result<ExportPlan, Failure> {
    match checkpoint {
        CheckpointPath::Folder(dir) => ExportPlan::open(dir, options),
        CheckpointPath::Gguf(file) => ExportPlan::open_gguf(file, options),
    }
    .map_err(Failure::export)
}

/// The version of the model file that a checkpoint becomes; none if it has a GGUF file's own weights.
fn version_by_default(checkpoint: &CheckpointPath) -> Option<u32> {
    match checkpoint {
        CheckpointPath::Folder(_) => Some(2),
        CheckpointPath::Gguf(_) => None,
    }
}

/// The conversion of `checkpoint` that `leap run` makes. If no version is asked for, a GGUF file's weights stay as they are;
/// floats become int8.
pub(super) fn planned(
    checkpoint: &CheckpointPath,
    version: Option<u32>,
    ends: Option<Ends>,
) -> Result<ExportPlan, Failure> {
    let weights = options::weights(version.unwrap_or(2), GROUP_DEFAULT, ends)?;
    let mut plan = open(checkpoint, &ExportOptions { weights, ctx: None, verify: false })?;
    if version.or_else(|| version_by_default(checkpoint)).is_none() {
        plan.keep_blocks_if_any().map_err(Failure::export)?;
    }
    Ok(plan)
}

/// Copies into `plan` what the checkpoint's tokenizer says, and returns its `tokenizer.bin`; `None` if it has none.
pub(super) fn tokenizer(
    plan: &mut ExportPlan,
    source: &Path,
    is_quiet: bool,
) -> Result<Option<Vec<u8>>, Failure> {
    if !import::is_in(source) {
        return Ok(None);
    }
    let imported = import::import(source, Some(plan.header().vocab_size));
    let ImportedTokenizer { file, notes, around, .. } = imported.map_err(|e| Failure::input(&e))?;
    if !is_quiet {
        notes.iter().for_each(|hint| note(&format!("leap: {hint}")));
    }
    let bytes = file.to_bytes();
    let vocabulary = Vocabulary {
        bos: file.bos,
        stop_ids: file.stop_ids,
        chat_template: file.chat,
        tokenizer_hash: fingerprint(&bytes),
        around,
    };
    plan.set_vocabulary(vocabulary).map_err(Failure::export)?;
    Ok(Some(bytes))
}

/// Writes the model file; shows progress unless `is_quiet`.
pub(super) fn write_model(plan: &ExportPlan, out: &Path, is_quiet: bool) -> Result<u64, Failure> {
    with_progress(is_quiet, |progress| plan.write(out, progress))
}

/// Writes a GGUF file of the model, and shows progress.
#[cfg(feature = "gguf")]
pub(super) fn write_gguf(
    plan: &ExportPlan,
    out: &Path,
    tokenizer: Option<&TokenizerFile>,
) -> Result<u64, Failure> {
    with_progress(false, |progress| plan.write_gguf(out, tokenizer, progress))
}

/// Calls `write`, shows its progress unless `is_quiet`, and ends it at an interrupt.
fn with_progress(
    is_quiet: bool,
    write: impl FnOnce(&mut dyn FnMut(ExportProgress) -> ControlFlow<()>) -> Result<u64, ExportError>,
) -> Result<u64, Failure> {
    let mut shown = progress::ProgressLine::new("converting", is_quiet);
    let result = write(&mut |ExportProgress { done_bytes, total_bytes }| {
        shown.update(done_bytes, total_bytes);
        match signal::interrupted() {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    drop(shown);
    result.map_err(Failure::export)
}

/// Writes a small file whole or not at all.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    file::write_whole(path, bytes)
        .map_err(|e| Failure::Runtime(format!("cannot write {}: {e}", path.display())))
}

/// The conversion that `leap run` makes of a checkpoint.
#[derive(Clone, Copy)]
struct Conversion {
    /// Version of the model file, or none for a GGUF file's own weights.
    version: Option<u32>,
    /// Storage of the embedding and the classifier, if asked for.
    ends: Option<Ends>,
    /// Instruction set whose kernels the matrices are packed for.
    isa: Option<Isa>,
    /// True if the model needs a tokenizer and none is given.
    needs_tokenizer: bool,
    is_quiet: bool,
}

/// Requirements of a command that takes checkpoints for models.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Version of the model file, if one is asked for.
    pub(super) version: Option<u32>,
    /// Storage of the embedding and the classifier, if asked for.
    pub(super) ends: Option<Ends>,
    /// True if other boards get layers or rows of the model. Their CPUs may be of another kind, and rows of any number
    /// are cut out, so its matrices are not packed.
    pub(super) has_boards: bool,
    pub(super) needs_tokenizer: bool,
    pub(super) is_quiet: bool,
}

/// The model file for `model`, a path or name: the file itself, or the converted file if it is a checkpoint.
pub(super) fn model_file(
    model: Option<PathBuf>,
    Wanted { version, ends, has_boards, needs_tokenizer, is_quiet }: Wanted,
) -> Result<Option<PathBuf>, Failure> {
    let model = model.map(|model| names::path_or_fetched(&model, is_quiet)).transpose()?;
    match (model.as_deref().and_then(CheckpointPath::at), version, ends) {
        (Some(checkpoint), version, ends) => {
            let version = version.or_else(|| version_by_default(&checkpoint));
            let isa = match has_boards || version == Some(1) {
                true => None,
                false => packing::own_isa()?,
            };
            kept(&checkpoint, Conversion { version, ends, isa, needs_tokenizer, is_quiet })
                .map(Some)
        }
        (None, Some(_), _) => Err(Failure::Usage(
            "--version is for a checkpoint that is converted; this is none".to_owned(),
        )),
        (None, None, Some(_)) => Err(Failure::Usage(
            "--embedding-bits is for a checkpoint that is converted; this is none".to_owned(),
        )),
        (None, None, None) => Ok(model),
    }
}

/// The model file of `checkpoint` in the user's cache folder; converts the checkpoint if the file is missing or
/// outdated. If no file can be kept, converts to a file that lasts as long as this process.
fn kept(checkpoint: &CheckpointPath, wanted: Conversion) -> Result<PathBuf, Failure> {
    // Even a folder that cannot be written may hold the file.
    let there =
        folders::cache().map(|folder| Kept::new(checkpoint, &folder, wanted)).transpose()?;
    if let Some(kept) = there.filter(Kept::is_there) {
        log::debug!("{} is converted: {}", checkpoint.path().display(), kept.model.display());
        return Ok(kept.model);
    }
    let folder = match folders::writable_cache() {
        Ok(folder) => folder,
        Err(why) => return passing(checkpoint, &why, wanted),
    };
    let kept = Kept::new(checkpoint, &folder, wanted)?;
    let _lock = lock(&folder, wanted.is_quiet)?;
    if !kept.is_there() {
        let made = kept.make(checkpoint, wanted);
        made.map_err(|failure| with_advice(failure, "make room", checkpoint))?;
    }
    Ok(kept.model)
}

/// Removes the kept model files of `checkpoint`, and returns their bytes.
pub(super) fn forget(checkpoint: &CheckpointPath) -> u64 {
    let Some(folder) = folders::cache() else { return 0 };
    let Ok(prefix) = prefix(checkpoint) else { return 0 };
    let mut bytes = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_own = entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix));
        let length = entry.metadata().map_or(0, |file| file.len());
        if is_own && fs::remove_file(entry.path()).is_ok() {
            bytes += length;
        }
    }
    bytes
}

/// Start of the names of all files that are made of `checkpoint`.
fn prefix(checkpoint: &CheckpointPath) -> std::io::Result<String> {
    let place = checkpoint.path().canonicalize()?;
    let place = fingerprint(place.as_os_str().as_encoded_bytes());
    let mut name = checkpoint.name();
    let end = (0..=NAME_BYTES).rev().find(|&end| name.is_char_boundary(end));
    name.truncate(end.unwrap_or(0));
    Ok(format!("{name}-{place:016x}-"))
}

/// Converts `checkpoint` to a folder that is removed when this process ends; `why` says why the file cannot be kept.
fn passing(checkpoint: &CheckpointPath, why: &str, wanted: Conversion) -> Result<PathBuf, Failure> {
    let lacks = |failure| {
        let failure = match failure {
            Failure::Runtime(problem) => Failure::Runtime(format!("{why}, and {problem}")),
            other => other,
        };
        with_advice(failure, "set XDG_CACHE_HOME to a folder with room", checkpoint)
    };
    let folder = temporary::folder().map_err(|e| {
        lacks(Failure::Runtime(format!("no temporary folder can be made ($TMPDIR): {e}")))
    })?;
    if !wanted.is_quiet {
        note(&format!(
            "leap: {why}: the converted model is not kept, and is made again at the next start; \
             set XDG_CACHE_HOME to a folder for it"
        ));
    }
    let kept = Kept::new(checkpoint, &folder, wanted)?;
    kept.make(checkpoint, wanted).map_err(lacks)?;
    Ok(kept.model)
}

/// Locks the cache folder, so that two processes do not convert or pack the same model. On a file system without locks
/// the worst case is double work.
fn lock(folder: &Path, is_quiet: bool) -> Result<Option<File>, Failure> {
    let Ok(folder) = File::open(folder) else { return Ok(None) };
    if let Err(TryLockError::WouldBlock) = folder.try_lock() {
        if !is_quiet {
            note("leap: waiting for another process, which converts or packs a model");
        }
        let is_locked = folder.lock().is_ok();
        if !is_locked && signal::interrupted() > 0 {
            return Err(Failure::export(ExportError::Interrupted));
        }
    }
    Ok(Some(folder))
}

/// Files of a converted checkpoint.
struct Kept {
    model: PathBuf,
    tokenizer: PathBuf,
    /// Start of the names of all files that were made of the checkpoint at this path.
    prefix: String,
    /// Rest of the names; it changes with the checkpoint.
    state: String,
}

impl Kept {
    fn new(
        checkpoint: &CheckpointPath,
        folder: &Path,
        Conversion { version, ends, isa, .. }: Conversion,
    ) -> Result<Kept, Failure> {
        let unreadable = |e: std::io::Error| {
            Failure::Input(format!("cannot read {}: {e}", checkpoint.path().display()))
        };
        let prefix = prefix(checkpoint).map_err(unreadable)?;
        let state = format!("{:016x}.", state(checkpoint).map_err(unreadable)?);
        let bits = if ends == Some(Ends::SixBits) { "-6" } else { "" };
        let isa = isa.map_or(String::new(), |isa| format!(".{}", isa.name()));
        let version = version.map_or("own".to_owned(), |version| format!("v{version}"));
        let model = folder.join(format!("{prefix}{state}{version}{bits}{isa}.bin"));
        Ok(Kept { tokenizer: model.with_extension("tokenizer.bin"), model, prefix, state })
    }

    /// True if the model is there, in a form that this version knows: a file that an earlier one packed may not be.
    fn is_there(&self) -> bool {
        Model::open(&self.model).is_ok()
    }

    /// Converts the checkpoint, and removes the files made of its earlier states.
    fn make(&self, checkpoint: &CheckpointPath, wanted: Conversion) -> Result<(), Failure> {
        let start = Instant::now();
        let (source, model) = (checkpoint.path().display(), self.model.display());
        let mut plan = planned(checkpoint, wanted.version, wanted.ends)?;
        if let Some(isa) = wanted.isa {
            packing::pack_for(&mut plan, isa)?;
        }
        let tokenizer = tokenizer(&mut plan, checkpoint.path(), wanted.is_quiet)?;
        if tokenizer.is_none() && wanted.needs_tokenizer {
            return Err(Failure::Input(format!("{source} has no tokenizer; name one with -t")));
        }
        if !wanted.is_quiet {
            plan.notes().iter().for_each(|hint| note(&format!("leap: {hint}")));
            note(&format!("leap: converting {source} once, to {model}"));
        }
        self.remove_others();
        // The model comes last: where it is, the tokenizer is too.
        let written = tokenizer
            .map_or(Ok(()), |bytes| write_file(&self.tokenizer, &bytes))
            .and_then(|()| write_model(&plan, &self.model, wanted.is_quiet));
        let bytes = written.inspect_err(|_| {
            let _ = fs::remove_file(&self.tokenizer);
        })?;
        if !wanted.is_quiet {
            let (mb, seconds) = (bytes as f64 / 1e6, start.elapsed().as_secs_f64());
            let packed =
                wanted.isa.map_or(String::new(), |isa| format!(" and packed for {}", isa.name()));
            note(&format!("leap: converted{packed}, {mb:.1} MB in {seconds:.1} s"));
        }
        self.vouch();
        Ok(())
    }

    /// Has the next start use the weights without comparing them with checksums that were just computed. If that fails,
    /// they are compared.
    fn vouch(&self) {
        let place = WeightsPlace { model: Some(self.model.clone()), ..WeightsPlace::default() };
        if let Ok(model) = Model::open(&self.model) {
            place.vouch(&model);
        }
    }

    /// Removes files of other states of this checkpoint, and those of a killed conversion. This process holds the lock,
    /// so no conversion is running.
    fn remove_others(&self) {
        let entries = self.model.parent().and_then(|folder| fs::read_dir(folder).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let is_part = name.strip_prefix('.').is_some_and(|name| name.starts_with(&self.prefix));
            let state = name.strip_prefix(&self.prefix);
            if is_part || state.is_some_and(|state| !state.starts_with(&self.state)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A number that changes with the names, lengths and times of a checkpoint's files.
fn state(checkpoint: &CheckpointPath) -> std::io::Result<u64> {
    let mut files = Vec::new();
    match checkpoint {
        CheckpointPath::Gguf(file) => {
            files.extend(Shard::all(file));
        }
        CheckpointPath::Folder(folder) => {
            for folder in [folder.clone(), folder.join("original")] {
                let entries = fs::read_dir(folder).into_iter().flatten().flatten();
                files.extend(entries.map(|entry| entry.path()).filter(|path| is_read(path)));
            }
            files.push(folder.join("../tokenizer.model"));
        }
    }
    files.sort();
    let mut text = format!("{VERSION}\n");
    for path in &files {
        let Ok(metadata) = fs::metadata(path) else { continue };
        let time = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Only the last name counts: the path may be relative, or a link. Writing to a string cannot fail.
        let name = path.file_name().unwrap_or_default();
        let _ = writeln!(text, "{name:?} {} {}", metadata.len(), time.as_nanos());
    }
    Ok(fingerprint(text.as_bytes()))
}

/// True if a conversion may read this file of the checkpoint's folder.
fn is_read(path: &Path) -> bool {
    const ENDS: [&str; 7] = ["json", "jinja", "safetensors", "bin", "pt", "pth", "model"];
    path.extension().and_then(OsStr::to_str).is_some_and(|end| ENDS.contains(&end))
}

/// The failure of a conversion that could not be written, with advice and the command that writes elsewhere.
fn with_advice(failure: Failure, advice: &str, checkpoint: &CheckpointPath) -> Failure {
    match failure {
        Failure::Runtime(problem) if signal::interrupted() == 0 => {
            let command = checkpoint.command();
            Failure::Runtime(format!("{problem}; {advice}, or choose a place: {command}"))
        }
        other => other,
    }
}
