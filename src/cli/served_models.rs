//! The models of `leap serve --models`: where they are, what they take, and how they are loaded.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
#[cfg(feature = "tools")]
use std::sync::MutexGuard;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::checkpoint::CheckpointPath;
#[cfg(feature = "tools")]
use super::convert;
use super::model_files::{self, Loaded};
#[cfg(feature = "tools")]
use super::names;
use super::options::ChatChoice;
#[cfg(feature = "tools")]
use super::served_names;
use super::weights::{self, Words};
use super::{Failure, counted, note, options, overwritten, prefixes, warn};
use crate::engine::{Embedder, Engine, KvMemory, Options, Scheduler, StallLimit, WeightsPlace};
use crate::format::model::Header;
use crate::format::{ChatTemplate, Shard, Suggested, printable};
use crate::model::{KV_PAGE, Plan, PlanError, Share};
use crate::serve::{
    DescribedModel, ListedModel, LoadedModel, Machine, ModelAbout, ModelSource, Progress,
    ServedModel, SourceError, TellProgress, untagged,
};
use crate::sys::memory;
use crate::tokenizer::Tokenizer;

/// The part of free memory that is left to other programs by default.
const SPARE_PART: u64 = 8;

/// Begins to draft for a scheduler.
pub(super) type BeginDrafts =
    Box<dyn Fn(&mut Scheduler<'_>, &Engine) -> Result<(), Failure> + Send + Sync>;

/// Settings of all models.
pub(super) struct Settings {
    /// The engines' options, except for the memory of keys and values.
    pub(super) options: Options,
    /// Bytes for keys and values of each model, if the user has said so.
    pub(super) kv_memory: Option<u64>,
    /// Bytes for all loaded models.
    pub(super) budget: u64,
    pub(super) stalls: StallLimit,
    pub(super) drafts: BeginDrafts,
    /// Whether models are loaded with their own blocks that guess.
    pub(super) guesses: bool,
    /// Folder for keys and values of prompts, and the most bytes in it.
    pub(super) prefixes: Option<(PathBuf, Option<u64>)>,
    pub(super) is_quiet: bool,
}

/// A part of the value of `--models`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Model {
        name: String,
        path: PathBuf,
        /// The path or name that the user gave.
        place: String,
    },
    /// Every model directly in this folder, under its file's name.
    Folder(PathBuf),
    /// Every model on this machine that has a name.
    #[cfg(feature = "tools")]
    Auto,
}

/// The models of a server.
pub(super) struct ServedModels {
    entries: Vec<Entry>,
    /// Names and paths of the models that clients pulled.
    #[cfg(feature = "tools")]
    pulled: Mutex<Vec<(String, PathBuf)>>,
    settings: Settings,
    /// Results of earlier looks at files.
    seen: Mutex<HashMap<PathBuf, Seen>>,
}

/// The result of a look at a file or folder.
#[derive(Clone)]
struct Seen {
    stamp: Stamp,
    header: Result<Arc<Header>, String>,
    /// The model's fingerprint, or another number that changes with the file.
    digest: u64,
}

/// A file's length and the time of its last change, which change with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    bytes: u64,
    modified: SystemTime,
}

impl Stamp {
    /// The stamp of a model's file, or of its files.
    fn of(path: &Path) -> Result<Stamp, Failure> {
        let unreadable = |e: std::io::Error| Failure::unreadable(path, &e);
        let files: Vec<PathBuf> = match path.is_dir() {
            true => fs::read_dir(path).map_err(unreadable)?.flatten().map(|e| e.path()).collect(),
            false => Shard::all(path),
        };
        let mut stamp = Stamp { bytes: 0, modified: UNIX_EPOCH };
        for file in files.iter().filter(|file| file.is_file()) {
            let file = fs::metadata(file).map_err(unreadable)?;
            stamp.bytes = stamp.bytes.saturating_add(file.len());
            stamp.modified = stamp.modified.max(file.modified().unwrap_or(UNIX_EPOCH));
        }
        if stamp.modified == UNIX_EPOCH {
            // The reason is told: there is no file, or it cannot be looked at.
            fs::metadata(path).map_err(unreadable)?;
        }
        Ok(stamp)
    }
}

/// Memory for loaded models, if the user names none: most of what is free.
pub(super) fn default_budget() -> u64 {
    memory::available_bytes().map_or(u64::MAX, |free| free - free / SPARE_PART)
}

/// A model with this header and tokenizer, as it is served.
pub(super) fn served(
    about: ModelAbout,
    header: &Header,
    (tokenizer, chat_template): (Arc<Tokenizer>, ChatTemplate),
    suggested: Suggested,
) -> ServedModel {
    let mut stop_ids = header.stop_ids.clone();
    stop_ids.extend_from_slice(tokenizer.stop_ids());
    let embeds = header.embedding().map(|_| Arc::new(header.clone()));
    ServedModel { about, tokenizer, chat_template, stop_ids, suggested, embeds }
}

/// The description of a model, for clients.
pub(super) fn about(name: String, header: &Header, bytes: u64, digest: u64) -> ModelAbout {
    ModelAbout {
        name,
        bytes,
        digest: format!("{digest:016x}"),
        family: format!("{:?}", header.architecture).to_lowercase(),
        quantization: header.weights.to_string(),
        memory: 0,
        device_memory: 0,
        dim: header.dim,
    }
}

impl ServedModels {
    /// The models that `value` names: paths, names and folders behind commas, with a name before `=` if clients use
    /// another one. Says which of them cannot be used.
    ///
    /// # Errors
    /// If none can be used; of `auto` there may be none yet.
    pub(super) fn open(value: &str, settings: Settings) -> Result<ServedModels, Failure> {
        let entry = |text| entry(text, settings.is_quiet);
        let entries = value.split(',').map(entry).collect::<Result<Vec<_>, _>>()?;
        let models = ServedModels {
            entries,
            #[cfg(feature = "tools")]
            pulled: Mutex::default(),
            settings,
            seen: Mutex::default(),
        };
        let mut n_usable = 0;
        models.warn_of_equal_names();
        for (name, path) in models.candidates() {
            match models.look(&path).and_then(|seen| models.listed(&name, &path, &seen)) {
                Ok(_) => n_usable += 1,
                Err(why) => warn(&format!("{} is not served: {why}", path.display())),
            }
        }
        match n_usable {
            0 if !models.may_grow() => {
                Err(Failure::Input(format!("--models {value}: there is no model that can be used")))
            }
            _ => Ok(models),
        }
    }

    /// Warns of names that the user gave to several models.
    fn warn_of_equal_names(&self) {
        let mut names = std::collections::HashSet::new();
        for entry in &self.entries {
            if let Entry::Model { name, path, .. } = entry
                && !names.insert(name)
            {
                warn(&format!("{} is not served: another model is called {name}", path.display()));
            }
        }
    }

    /// Whether models may come later.
    fn may_grow(&self) -> bool {
        #[cfg(feature = "tools")]
        return self.entries.contains(&Entry::Auto);
        #[cfg(not(feature = "tools"))]
        false
    }

    /// Number of models that can be used now, in words; none of those that clients call `other`.
    pub(super) fn counted(&self, other: Option<&str>) -> String {
        let all = self.list();
        let own = all.iter().filter(|model| other != Some(untagged(&model.about.name)));
        counted(own.count(), "model")
    }

    /// Bytes of memory for all loaded models; `u64::MAX` if there is no limit.
    pub(super) fn budget(&self) -> u64 {
        self.settings.budget
    }

    /// Leaves `bytes` of the memory to others.
    pub(super) fn leave(&mut self, bytes: u64) {
        let budget = &mut self.settings.budget;
        if *budget < u64::MAX {
            *budget = budget.saturating_sub(bytes);
        }
    }

    /// Whether clients may call a model `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.list().iter().any(|model| untagged(&model.about.name) == name)
    }

    /// The names and paths of all that may be models. Names that the user gave go before those of files; else, if several
    /// have the same name, the first one has it.
    fn candidates(&self) -> Vec<(String, PathBuf)> {
        let mut all: Vec<(String, PathBuf)> = Vec::new();
        let is_model = |entry: &&Entry| matches!(entry, Entry::Model { .. });
        let named = self.entries.iter().filter(is_model);
        for entry in named.chain(self.entries.iter().filter(|entry| !is_model(entry))) {
            match entry {
                Entry::Model { name, path, .. } => all.push((name.clone(), path.clone())),
                Entry::Folder(folder) => all.extend(models_in(folder)),
                #[cfg(feature = "tools")]
                Entry::Auto => {
                    let found = served_names::on_disk(&self.pulled());
                    all.extend(found);
                }
            }
        }
        #[cfg(feature = "tools")]
        all.extend(self.pulled().iter().filter(|_| !self.may_grow()).cloned());
        let mut names = std::collections::HashSet::new();
        all.retain(|(name, _)| names.insert(name.clone()));
        all
    }

    /// Name and path of the model that a client calls `name`.
    fn resolved(&self, name: &str) -> Result<(String, PathBuf), SourceError> {
        let all = self.candidates();
        if let Some(found) = all.iter().find(|(own, _)| own == name) {
            return Ok(found.clone());
        }
        // A full name means a model that is listed under a shorter one.
        #[cfg(feature = "tools")]
        if let Some(found) = served_names::meant_of(name, &all) {
            return Ok(found.clone());
        }
        let unreadable = |entry: &Entry| match entry {
            Entry::Folder(folder) => fs::read_dir(folder).err().map(|e| (folder.clone(), e)),
            _ => None,
        };
        match self.entries.iter().find_map(unreadable) {
            Some((folder, e)) => {
                Err(SourceError::Failed(format!("cannot read {}: {e}", folder.display())))
            }
            None => Err(SourceError::Absent),
        }
    }

    #[cfg(feature = "tools")]
    fn pulled(&self) -> MutexGuard<'_, Vec<(String, PathBuf)>> {
        self.pulled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path_of(&self, name: &str) -> Result<PathBuf, SourceError> {
        Ok(self.resolved(name)?.1)
    }

    /// Looks at the model at `path`, if it has changed since it was last looked at.
    fn look(&self, path: &Path) -> Result<Seen, String> {
        let stamp = Stamp::of(path).map_err(Failure::message)?;
        let lock = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = lock().get(path).filter(|seen| seen.stamp == stamp) {
            return Ok(seen.clone());
        }
        let mut hasher = DefaultHasher::new();
        (path, stamp).hash(&mut hasher);
        let looked = model_files::look(path);
        let fingerprint = looked.as_ref().ok().and_then(|(_, fingerprint)| *fingerprint);
        let header = looked.map(|(header, _)| Arc::new(header)).map_err(Failure::message);
        let digest = fingerprint.unwrap_or_else(|| hasher.finish());
        let seen = Seen { stamp, header, digest };
        // A failure may pass without a change of the file: rights, or memory.
        if seen.header.is_ok() {
            lock().insert(path.to_owned(), seen.clone());
        }
        Ok(seen)
    }

    fn listed(&self, name: &str, path: &Path, seen: &Seen) -> Result<ListedModel, String> {
        let header = seen.header.as_ref().map_err(Clone::clone)?;
        let (options, memory) = self.sizes(header).map_err(Failure::message)?;
        let bytes = if path.is_file() { seen.stamp.bytes } else { weight_bytes(header) };
        let modified = seen.stamp.modified.duration_since(UNIX_EPOCH);
        Ok(ListedModel {
            about: about(name.to_owned(), header, bytes, seen.digest),
            ctx_len: options.plan(header).ctx_len,
            modified: modified.map_or(0, |time| time.as_secs()),
            memory,
        })
    }

    /// The engine's options for a model with this header, and the memory that it takes. Keys and values get a context
    /// for each stream, but at most half of what the budget leaves, and room for one context at least.
    fn sizes(&self, header: &Header) -> Result<(Options, u64), Failure> {
        let Settings { options, kv_memory, budget, .. } = &self.settings;
        let ctx_len = options.ctx_len.map(|ctx_len| ctx_len.min(header.max_seq_len));
        let options = Options { ctx_len, ..options.clone() };
        if header.embedding().is_some() {
            let options = Options { n_streams: None, max_logits: None, ..options };
            let buffers = Embedder::plan(header, &options).bytes(header, &Share::whole(header));
            let buffers = buffers.map_err(|e| options::plan_failure(&e))?;
            return Ok((options, weight_bytes(header).saturating_add(buffers as u64)));
        }
        let (plan, weights) = (options.plan(header), weight_bytes(header));
        let whole = match self.settings.guesses {
            true => Share::with_next(header),
            false => Share::whole(header),
        };
        let context = plan.context_bytes(header, &whole) as u64;
        let kv_memory = kv_memory.unwrap_or_else(|| {
            let most = context.saturating_mul(plan.n_streams as u64);
            most.min(budget.saturating_sub(weights) / 2).max(context)
        });
        let (n_pages, ctx_len) = (plan.pages_in(kv_memory, header, &whole), plan.ctx_len);
        if n_pages < plan.kv_plan(header).ctx_pages {
            let short = PlanError::KvPages { tokens: n_pages * KV_PAGE, ctx_len };
            return Err(options::plan_failure(&short));
        }
        let plan = Plan { kv_pages: Some(n_pages), ..plan };
        let buffers = plan.bytes(header, &whole);
        let buffers = buffers.map_err(|e| options::plan_failure(&e))?;
        let options = Options { kv_memory: KvMemory::Bytes(kv_memory), ..options };
        Ok((options, weights.saturating_add(buffers as u64)))
    }

    fn load_from(&self, name: &str, path: &Path) -> Result<LoadedModel, Failure> {
        let start = Instant::now();
        let Settings { prefixes, is_quiet, .. } = &self.settings;
        let seen = self.look(path).map_err(Failure::Input)?;
        let listed = self.listed(name, path, &seen).map_err(Failure::Input)?;
        let file = model_file(path, *is_quiet)?;
        let mut loaded = model_files::load(Some(&file), None)?;
        let suggested = self.suggested(name, path);
        #[cfg(feature = "tools")]
        options::tell_left_out(&suggested, *is_quiet);
        loaded.choose_template(options::template_of(&suggested, *is_quiet).as_ref())?;
        let Loaded { model, tokenizer, chat_template, .. } = loaded;
        overwritten::watch(Some(&file), &model);
        let (options, memory) = self.sizes(model.header())?;
        let (cache, huge) = (options.cache.clone(), options.huge);
        let place = WeightsPlace { model: Some(file), cache, huge };
        let words = if *is_quiet { Words::None } else { Words::Progress };
        let machine = if model.header().embedding().is_some() {
            let embedder = Embedder::new(Arc::clone(&model), &options);
            let mut embedder = embedder.map_err(options::engine_failure)?;
            weights::prepare_embedder(&mut embedder, &place, words)?;
            Machine::Embeds(Box::new(embedder))
        } else {
            let model = match self.settings.guesses {
                true => model_files::with_next(Arc::clone(&model))?,
                false => Arc::clone(&model),
            };
            let engine = Engine::new(model, &options);
            let mut engine = engine.map_err(options::engine_failure)?;
            weights::prepare(&mut engine, &place, words)?;
            if let Some((folder, size)) = prefixes {
                prefixes::keep(&mut engine, Some(folder), *size);
            }
            Machine::Writes(Box::new(engine))
        };
        if !is_quiet {
            let (mb, seconds) = (memory as f64 / 1e6, start.elapsed().as_secs_f64());
            let name = printable(name);
            note(&format!("leap: {name} is loaded in {seconds:.1} s and takes {mb:.1} MB"));
        }
        let words = (tokenizer, chat_template);
        let model = served(listed.about, model.header(), words, suggested);
        Ok(LoadedModel { machine, model })
    }

    /// Settings of answers that come with the model that clients call `name`.
    #[cfg(feature = "tools")]
    fn suggested(&self, name: &str, path: &Path) -> Suggested {
        let place = self.entries.iter().find_map(|entry| match entry {
            Entry::Model { name: own, place, .. } if own == name => Some(place.as_str()),
            _ => None,
        });
        let found = served_names::at(place.unwrap_or(name), path);
        found.map_or_else(Suggested::default, |found| found.suggested)
    }

    /// Without checkpoints no model comes with settings.
    #[cfg(not(feature = "tools"))]
    fn suggested(&self, _name: &str, _path: &Path) -> Suggested {
        Suggested::default()
    }

    fn describe_at(&self, name: &str, path: &Path) -> Result<DescribedModel, Failure> {
        let seen = self.look(path).map_err(Failure::Input)?;
        let ListedModel { about, ctx_len, .. } =
            self.listed(name, path, &seen).map_err(Failure::Input)?;
        let (header, mut tokenizer) = header_and_tokenizer(path)?;
        let vocab_size = header.vocab_size;
        let suggested = self.suggested(name, path);
        let choice = options::template_of(&suggested, true);
        let chosen = ChatChoice::apply(choice.as_ref(), &mut tokenizer)?;
        let words = (Arc::new(tokenizer), chosen.unwrap_or(header.chat_template));
        Ok(DescribedModel { model: served(about, &header, words, suggested), ctx_len, vocab_size })
    }
}

impl ModelSource for ServedModels {
    fn list(&self) -> Vec<ListedModel> {
        let listed = |(name, path): &(String, PathBuf)| {
            self.look(path).and_then(|seen| self.listed(name, path, &seen)).ok()
        };
        self.candidates().iter().filter_map(listed).collect()
    }

    fn find(&self, name: &str) -> Result<ListedModel, SourceError> {
        let (name, path) = self.resolved(name)?;
        let listed = self.look(&path).and_then(|seen| self.listed(&name, &path, &seen));
        listed.map_err(|why| SourceError::Failed(format!("{name} cannot be used: {why}")))
    }

    fn describe(&self, name: &str) -> Result<DescribedModel, SourceError> {
        self.describe_at(name, &self.path_of(name)?).map_err(|why| failed(name, why))
    }

    fn load(&self, name: &str) -> Result<LoadedModel, SourceError> {
        let loaded = self.load_from(name, &self.path_of(name)?);
        loaded.map_err(|why| {
            let error = failed(name, why);
            if let SourceError::Failed(why) = &error {
                warn(why);
            }
            error
        })
    }

    fn schedule<'t>(
        &self,
        engine: &mut Engine,
        tokenizer: &'t Tokenizer,
    ) -> Result<Scheduler<'t>, SourceError> {
        let n_streams = engine.plan().n_streams;
        let scheduler = Scheduler::new(engine, n_streams, Some(tokenizer));
        let mut scheduler = scheduler.map_err(|e| SourceError::Failed(e.to_string()))?;
        scheduler.limit_stalls(self.settings.stalls);
        let begun = (self.settings.drafts)(&mut scheduler, engine);
        begun.map_err(|why| SourceError::Failed(why.message()))?;
        Ok(scheduler)
    }

    fn pull(&self, name: &str, tell: TellProgress<'_>) -> Result<(), SourceError> {
        match self.path_of(name) {
            // Its files are here already.
            Ok(_) => {
                let _ = tell(Progress::Step("pulling manifest"));
                Ok(())
            }
            #[cfg(feature = "tools")]
            Err(_) => {
                let path = served_names::pull(name, tell)?;
                if let Err(why) = self.look(&path).and_then(|seen| seen.header) {
                    // No request can use it, and none could remove it.
                    let _ = served_names::delete(name, &path);
                    let why = format!("{name} was fetched, but cannot be used: {why}");
                    return Err(SourceError::Failed(why));
                }
                self.pulled().push((name.to_owned(), path));
                Ok(())
            }
            #[cfg(not(feature = "tools"))]
            Err(_) => Err(SourceError::Unknown(format!("there is no model {name:?} here"))),
        }
    }

    fn delete(&self, name: &str) -> Result<(), SourceError> {
        let path = self.path_of(name)?;
        #[cfg(feature = "tools")]
        {
            served_names::delete(name, &path)?;
            self.pulled().retain(|(_, pulled)| *pulled != path);
            Ok(())
        }
        #[cfg(not(feature = "tools"))]
        Err(SourceError::Refused(format!(
            "{name} was not pulled: remove {} yourself",
            path.display()
        )))
    }
}

fn failed(name: &str, why: Failure) -> SourceError {
    SourceError::Failed(format!("{name} cannot be loaded: {}", why.message()))
}

/// Bytes of a model's weights.
pub(super) fn weight_bytes(header: &Header) -> u64 {
    header.tensors().map(|tensor| tensor.bytes).sum()
}

/// A part of the value of `--models`.
fn entry(text: &str, is_quiet: bool) -> Result<Entry, Failure> {
    #[cfg(feature = "tools")]
    if text == "auto" {
        return Ok(Entry::Auto);
    }
    let (alias, place) = match text.split_once('=') {
        Some((alias, place)) if !Path::new(text).exists() => (Some(alias), place),
        _ => (None, text),
    };
    if place.is_empty() || alias.is_some_and(str::is_empty) {
        return Err(Failure::Usage(format!(
            "--models: {text:?} names no model; wanted auto, DIR, PATH, a name or ALIAS=PATH, and more behind commas"
        )));
    }
    let path = path_of(place, is_quiet)?;
    let is_checkpoint = matches!(CheckpointPath::at(&path), Some(CheckpointPath::Folder(_)));
    if !path.is_dir() || is_checkpoint {
        let name = match alias {
            Some(alias) => alias.to_owned(),
            None => short_name(place)?.unwrap_or_else(|| name_of(&path)),
        };
        return Ok(Entry::Model { name, path, place: place.to_owned() });
    }
    match alias {
        None => Ok(Entry::Folder(path)),
        Some(_) => Err(Failure::Usage(format!(
            "--models: {text:?} gives one name to a folder of models; name a file in it"
        ))),
    }
}

/// The name of the model at `path`: its file's name without the ending, or its folder's name.
fn name_of(path: &Path) -> String {
    let name = match path.is_dir() {
        true => path.canonicalize().ok().and_then(|path| path.file_name().map(ToOwned::to_owned)),
        false => path.file_stem().map(ToOwned::to_owned),
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The names and paths of all that may be models in `folder`, sorted by path.
fn models_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| may_be_model(path));
    paths.sort();
    paths.into_iter().map(|path| (name_of(&path), path)).collect()
}

/// Whether `path` is a checkpoint, or has the name of a model's file.
fn may_be_model(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with('.') {
        return false;
    }
    if path.is_dir() {
        return CheckpointPath::at(path).is_some();
    }
    let ending = path.extension().unwrap_or_default();
    // Vision parts and calibration data are no models, nor are the later files of a model in several.
    let is_beside = || name.contains("mmproj") || name.contains("imatrix");
    let is_first = || CheckpointPath::at(path).is_none_or(|checkpoint| checkpoint.path() == path);
    (ending == "bin" && !name.ends_with("tokenizer.bin"))
        || (ending == "gguf" && !is_beside() && is_first())
}

/// The model file that stands for `path`: a checkpoint is converted once.
fn model_file(path: &Path, is_quiet: bool) -> Result<PathBuf, Failure> {
    #[cfg(feature = "tools")]
    if CheckpointPath::at(path).is_some() {
        let wanted = convert::Wanted {
            version: None,
            ends: None,
            has_boards: false,
            needs_tokenizer: true,
            is_quiet,
        };
        let found = convert::model_file(Some(path.to_owned()), wanted)?;
        return Ok(found.unwrap_or_else(|| path.to_owned()));
    }
    model_files::converted(path, is_quiet)
}

/// Header and tokenizer of the model at `path`; of a checkpoint those of its conversion, which is not made.
fn header_and_tokenizer(path: &Path) -> Result<(Header, Tokenizer), Failure> {
    #[cfg(feature = "tools")]
    if let Some(checkpoint) = CheckpointPath::at(path) {
        let mut plan = convert::planned(&checkpoint, None, None)?;
        let none = || Failure::Input(format!("{} has no tokenizer", path.display()));
        let bytes = convert::tokenizer(&mut plan, checkpoint.path(), true)?.ok_or_else(none)?;
        let tokenizer = Tokenizer::from_bytes(&bytes, Some(plan.header().vocab_size));
        return Ok((plan.header().clone(), tokenizer.map_err(|e| Failure::input(&e))?));
    }
    let model = model_files::open_whole(path)?;
    let tokenizer = model_files::tokenizer(path, model.header(), None)?;
    Ok((model.header().clone(), tokenizer))
}

/// The file or folder that a path or name in `--models` stands for.
#[cfg(feature = "tools")]
fn path_of(place: &str, is_quiet: bool) -> Result<PathBuf, Failure> {
    names::path_or_fetched(Path::new(place), is_quiet)
}

/// The file or folder that a path in `--models` stands for.
#[cfg(not(feature = "tools"))]
fn path_of(place: &str, _is_quiet: bool) -> Result<PathBuf, Failure> {
    Ok(PathBuf::from(place))
}

/// The short form of a name in `--models`; `None` of a path.
#[cfg(feature = "tools")]
fn short_name(place: &str) -> Result<Option<String>, Failure> {
    Ok(names::parsed(Path::new(place))?.map(|name| name.short()))
}

/// Without checkpoints there are no names.
#[cfg(not(feature = "tools"))]
fn short_name(_place: &str) -> Result<Option<String>, Failure> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_stand_before_a_path() {
        let model = |name: &str, path: &str| Entry::Model {
            name: name.to_owned(),
            path: path.into(),
            place: path.to_owned(),
        };
        assert_eq!(entry("a/b.gguf", true).ok(), Some(model("b", "a/b.gguf")));
        assert_eq!(
            entry("gpt-4o-mini=a/b.gguf", true).ok(),
            Some(model("gpt-4o-mini", "a/b.gguf"))
        );
        assert_eq!(entry("src", true).ok(), Some(Entry::Folder("src".into())));
        for wrong in ["", "=a.bin", "a=", "x=src"] {
            assert!(matches!(entry(wrong, true), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn tokenizers_and_parts_are_no_models() {
        let may = |name: &str| may_be_model(Path::new(name));
        assert!(may("smol.bin") && may("smol.gguf"));
        for name in ["tokenizer.bin", "smol.tokenizer.bin", "mmproj-a.gguf", ".a.gguf", "a.txt"] {
            assert!(!may(name), "{name}");
        }
    }
}
