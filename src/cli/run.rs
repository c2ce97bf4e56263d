//! `leap run`: generates text, or holds a conversation.

mod chat;
mod complete;
mod drafting;
#[cfg(feature = "tools")]
mod editor;
mod energy;
mod figures;
mod flags;
mod input;
mod messages;
mod session;
mod streams;
mod terminal;
mod thinking;
mod worker;

#[cfg(feature = "tools")]
use super::convert;
use super::draft::Beside;
use super::draft_node::DraftNode;
use super::model_files::Loaded;
use super::power;
use super::words::Line;
use super::{Failure, options, overwritten, ring, warn};
#[cfg(feature = "tools")]
use super::{names, note};
use crate::engine::{DeviceChoice, DeviceOptions, Engine, Options, Scheduler};
use crate::fleet::boards::Boards;
use crate::fleet::gather::gather;
use crate::fleet::interrupt::is_interrupted;
#[cfg(feature = "tools")]
use crate::store::FoundModel;
use crate::sys::{memory, notify, signal};
pub(super) use flags::Run;

use super::boards::failure;
use super::roles::Role;
use energy::AnswerEnergy;
use session::Session;

impl Run {
    #[cfg_attr(not(feature = "tools"), expect(unused_mut, reason = "nothing is converted"))]
    pub(super) fn execute(mut self, line: &Line) -> Result<(), Failure> {
        let role = line.role;
        self.check(role)?;
        let named = self.boards(line)?;
        signal::install().map_err(|e| Failure::runtime(&e))?;
        signal::count_one().map_err(|e| Failure::runtime(&e))?;
        #[cfg(feature = "tools")]
        {
            self.suggest(line)?;
            self.convert(role, named.has_others())?;
        }
        let mut settings = self.settings(named, role)?;
        if role == Role::Worker {
            return worker::work(&self, &settings);
        }
        let meter = power::meter(self.power_cmd.as_deref(), self.watts)?;
        let (place, options, by) = (self.place(), self.options()?, settings.named_by);
        let gathered = gather(&mut settings, &place, &options, meter.as_deref());
        gathered.map_err(|e| failure(by, e))?;
        let (master, mut loaded) = ring::load(&settings, &place, self.tokenizer.as_deref())?;
        loaded.choose_template(self.chat_template.as_ref())?;
        loaded.model = self.draft.with_next(loaded.model, self.is_alone(&settings.boards))?;
        overwritten::watch(self.model.as_deref(), &loaded.model);
        let mut engine = engine(&loaded, &master.options(options), self.quiet)?;
        master.prepare(&mut engine).map_err(|e| failure(by, e))?;
        // Lets a signal end an answer at once, not after the prompt that is being read.
        engine.interrupt_by(is_interrupted);
        let control = ring::begin(&mut engine, (&master, &settings), meter.clone(), &announce)?;
        let n_streams = self.streams.unwrap_or(1);
        let scheduler = Scheduler::new(&mut engine, n_streams, Some(&loaded.tokenizer));
        let mut scheduler = scheduler.map_err(|e| Failure::runtime(&e))?;
        self.draft.begin(&mut scheduler, &mut engine, &self.beside(&loaded, &settings.boards))?;
        let seed = self.seed();
        let energy = AnswerEnergy::default();
        let (flags, loaded) = (&self, &loaded);
        let session = Session { flags, loaded, engine, scheduler, control, seed, meter, energy };
        match (self.chat, self.streams) {
            (true, _) => chat::run(session),
            (false, Some(_)) => streams::run(session),
            (false, None) => complete::run(session),
        }
    }

    /// Takes the settings that come with a model that is given by its name, where the user gives none.
    #[cfg(feature = "tools")]
    fn suggest(&mut self, line: &Line) -> Result<(), Failure> {
        let name = self.model.as_deref().map(names::parsed).transpose()?.flatten();
        let Some(name) = name else { return Ok(()) };
        let FoundModel { path, mut suggested, .. } = names::found_or_fetched(&name, self.quiet)?;
        self.model = Some(path);
        let is_given = |long: &str| line.has(long);
        suggested.temperature = suggested.temperature.filter(|_| !is_given("--temp"));
        suggested.top_p = suggested.top_p.filter(|_| !is_given("--top-p"));
        suggested.top_k = suggested.top_k.filter(|_| !is_given("--top-k"));
        suggested.min_p = suggested.min_p.filter(|_| !is_given("--min-p"));
        suggested.system = suggested.system.filter(|_| self.chat && !is_given("--system"));
        suggested.template =
            suggested.template.filter(|_| self.chat && !is_given("--chat-template"));
        let words = suggested.words();
        if !self.quiet && !words.is_empty() {
            note(&format!("leap: the model's settings: {words}"));
        }
        options::tell_left_out(&suggested, self.quiet);
        let own = || options::template_of(&suggested, self.quiet);
        self.chat_template = self.chat_template.take().or_else(own);
        self.temp = suggested.temperature.unwrap_or(self.temp);
        self.top_p = suggested.top_p.unwrap_or(self.top_p);
        self.top_k = suggested.top_k.unwrap_or(self.top_k);
        self.min_p = suggested.min_p.unwrap_or(self.min_p);
        self.stop.extend(suggested.stop_strings);
        self.system = suggested.system.or(self.system.take());
        Ok(())
    }

    /// Converts a checkpoint that is given instead of a model file, and uses the result.
    #[cfg(feature = "tools")]
    fn convert(&mut self, role: Role, has_boards: bool) -> Result<(), Failure> {
        let wanted = convert::Wanted {
            version: self.version,
            ends: self.embedding_bits,
            has_boards,
            needs_tokenizer: self.tokenizer.is_none() && role != Role::Worker,
            is_quiet: self.quiet,
        };
        self.model = convert::model_file(self.model.take(), wanted)?;
        Ok(())
    }

    /// How the engine runs the model.
    fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            ctx_len: self.ctx,
            batch: self.batch,
            n_streams: self.streams,
            max_logits: Some(self.draft.max_logits(self.streams.unwrap_or(1))),
            kv: self.kv,
            device: self.device_options(),
            ..options::of_cores(self.threads, self.cores.as_ref())?
        })
    }

    /// Whether this machine's CPUs alone compute the model and draft.
    fn is_alone(&self, boards: &Boards) -> bool {
        let has_device = self.device != DeviceChoice::Cpu;
        *boards == Boards::Alone && self.draft_node.is_none() && !has_device
    }

    /// The device beside the CPUs.
    fn device_options(&self) -> DeviceOptions {
        DeviceOptions { choice: self.device.clone(), memory: self.gpu_memory }
    }

    fn beside<'a>(&'a self, loaded: &'a Loaded, boards: &'a Boards) -> Beside<'a> {
        let key = self.key.as_deref();
        Beside {
            node: self.draft_node.as_ref().map(|at| DraftNode { at, key, boards }),
            tokenizer: &loaded.tokenizer,
            threads: self.threads,
            cores: self.cores.as_ref(),
            cache: &self.cache,
            huge: self.huge,
            is_quiet: self.quiet,
        }
    }
}

/// An engine for the model. Warns if memory is short.
fn engine(loaded: &Loaded, options: &Options, is_quiet: bool) -> Result<Engine, Failure> {
    let engine = options::started(
        Engine::new(loaded.model.clone(), options),
        &options.device.choice,
        is_quiet,
    )?;
    let needed = engine.about().arena_bytes as u64;
    if let Some(available) = memory::available_bytes().filter(|&bytes| bytes < needed) {
        warn(&format!(
            "context and buffers need {} MiB, {} MiB of memory are free; try a smaller --ctx",
            needed >> 20,
            available >> 20
        ));
    }
    Ok(engine)
}

/// Tells the service manager that this board is up. Services that depend on it may start: neighbours come in
/// their own time.
fn announce() {
    notify::start();
    notify::ready();
    notify::status("waiting for the ring");
}
