//! `leap serve`: answers programs over HTTP.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};

use super::boards::{self, Auto, Named, Said};
#[cfg(feature = "tools")]
use super::convert;
use super::draft::{self, Beside, Draft};
use super::draft_node::{self, DraftNode};
use super::model_files::{self, Loaded};
use super::options::ChatChoice;

#[cfg(feature = "tools")]
use super::names;
use super::power::{self, StatedWatts};
use super::prefixes;
use super::ring::{self, RebalanceAfter};
use super::served_models::{self, ServedModels, about, served, weight_bytes};
use super::weights;
use super::words::Line;
use super::{Failure, counted, key, note, options, overwritten, warn};
use crate::engine::{
    Cache, DeviceChoice, DeviceOptions, Embedder, Engine, Huge, KvMemory, Options, Scheduler,
    StallLimit, WeightsPlace,
};
use crate::fleet::boards::Boards;
use crate::fleet::gather::gather;
use crate::fleet::settings::{ControlPlace, LinkSettings, Settings, Wishes};
#[cfg(feature = "tools")]
use crate::format::model::Ends;
use crate::format::{Suggested, text_without_mark};
use crate::model::KvKind;
use crate::ring::Address;
use crate::ring::plan::Objective;
use crate::serve::{
    AccessLog, ApiKeys, ListenSocket, ModelAbout, Others, ServeLimits, ServeOptions, serve,
    serve_embeddings, serve_several, untagged,
};
use crate::sys::power::Meter;
use crate::sys::{activation, clock, notify, random, signal};
use crate::tokenizer::Tokenizer;
use crate::transport::carrier::Carrier;
use crate::wire::Dtype;

/// Answers that are written at the same time by default.
const STREAMS: usize = 4;
/// Options of one model or of a ring.
const OF_ONE_MODEL: &[&str] = &[
    "--version",
    "--embedding-bits",
    "--tokenizer",
    "--name",
    "--chat-template",
    "--team",
    "--boards",
    "--take",
    "--objective",
    "--node",
    "--host",
    "--port",
    "--key",
    "--transport",
    "--wire",
    "--control",
    "--rebalance-after",
    "--ring-timeout",
    "--draft-node",
    "--device",
];
/// Limit on the bytes of a request's body: a hundred times a long conversation.
const BODY_MAX: usize = 4 << 20;

/// Answers programs over HTTP, as OpenAI's and Ollama's servers do.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "serve")]
pub(super) struct Serve {
    #[cfg_attr(
        feature = "tools",
        doc = "model file, or a GGUF file or a checkpoint's folder, which is converted once and kept \
               in the cache folder, or a name: hf:ORG/REPO[:QUANT][@REVISION] or ollama:MODEL[:TAG]; the \
               built-in demo model if absent"
    )]
    #[cfg_attr(not(feature = "tools"), doc = "model file; the built-in demo model if absent")]
    #[argh(positional)]
    model: Option<PathBuf>,
    /// several models instead of one: auto (all that `leap models` lists), a folder, whose models are all served, or
    /// paths and names behind commas, each after ALIAS= if clients call it otherwise. A model is loaded when a request
    /// names it. Beside a model that stays loaded, on several boards too: more models, which this board computes alone
    #[argh(option)]
    models: Option<String>,
    /// memory for the models of --models that are loaded at a time, as in 500M or 8G; those that were unused for
    /// longest are dropped (seven eighths of what is free at the start)
    #[argh(option, from_str_fn(options::room))]
    memory: Option<u64>,
    #[cfg(feature = "tools")]
    /// weights of a converted checkpoint, as for export: 1 for f32, 2 for int8, 3 or 4 for 4 bits, 5 for
    /// a GGUF file's own (default for GGUF files, int8 for others)
    #[argh(option)]
    version: Option<u32>,
    #[cfg(feature = "tools")]
    /// bits of its embedding and classifier with --version 4, as for export: 8 (default) or 6
    #[argh(option, arg_name = "bits", from_str_fn(options::embedding_bits))]
    embedding_bits: Option<Ends>,
    /// tokenizer.bin; by default the one beside the model
    #[argh(option, short = 't')]
    tokenizer: Option<PathBuf>,
    /// address HOST:PORT or path of a Unix socket; may be given several times (the sockets that systemd passes, else 127.0.0.1:8080)
    #[argh(option)]
    listen: Vec<String>,
    /// file with the keys that clients may have, one a line
    #[argh(option)]
    api_key_file: Option<PathBuf>,
    /// listen beyond this machine without keys
    #[argh(switch)]
    no_auth: bool,
    /// web page (as https://chat.example.org) whose scripts may ask, or *; may be given several times
    #[argh(option, from_str_fn(options::origin))]
    allow_origin: Vec<String>,
    /// what clients call the model (its file's name)
    #[argh(option)]
    name: Option<String>,
    /// chat template instead of the model's, as for run
    #[argh(option, from_str_fn(options::chat_template))]
    chat_template: Option<ChatChoice>,
    /// most tokens of thoughts before an answer, for requests that name no number: then they are ended as the
    /// template ends them
    #[argh(option, from_str_fn(options::think_tokens))]
    think_tokens: Option<usize>,
    /// answers that are written at the same time (4)
    #[argh(option, from_str_fn(options::count))]
    streams: Option<usize>,
    /// memory for keys and values of answers, running and earlier ones, as in 500M or 2G: a context's at
    /// least (half of the free memory, up to two contexts for each stream); in a ring or team, of all boards
    /// together (a context for each stream)
    #[argh(option, from_str_fn(options::room))]
    kv_memory: Option<u64>,
    /// folder that keeps keys and values of prompts of 256 tokens and more over restarts, so that equal
    /// beginnings are not computed again; prompts can be reconstructed from it. On a ring every board needs
    /// one of its own
    #[argh(option)]
    prefix_cache: Option<PathBuf>,
    /// most bytes in that folder: the least recently used files are removed (2G: five prompts of 3,000 tokens
    /// of a model of 8 B, twenty of one of 1 B)
    #[argh(option, from_str_fn(options::room))]
    prefix_cache_size: Option<u64>,
    /// answers that may wait for a stream; more are refused (64)
    #[argh(option, default = "64")]
    queue: usize,
    /// most milliseconds between two tokens of an answer while a prompt is computed (twice the usual time; 0:
    /// any)
    #[argh(option)]
    stall_ms: Option<u64>,
    /// connections at the same time (256)
    #[argh(option, from_str_fn(options::count), default = "256")]
    connections: usize,
    /// seconds that answers have to end after a signal (10)
    #[argh(option, default = "10")]
    drain_s: u64,
    /// team: auto; the boards of --boards (auto) share every layer by how quick they are, and each gets its
    /// rows
    #[argh(option, from_str_fn(boards::team))]
    team: Option<Auto>,
    /// be the master of a ring of these boards, and divide the model among them: auto (those that answer
    /// on this network) or HOST[:PORT] and more behind commas (9998); each runs `leap worker` with the
    /// same --key. Or a file, whose lines have layers, shares or neither: see `leap help compatibility`
    #[argh(option, from_str_fn(boards::parse))]
    boards: Option<boards::Value>,
    /// ring or team with --boards: take boards that work for another master, which loses them
    #[argh(switch)]
    take: bool,
    /// ring with --boards: goal of the split: throughput (default) of many streams, latency of one, energy of
    /// a token, where all boards have --watts, or memory that stays free on the fullest board
    #[argh(option, from_str_fn(options::objective), default = "Objective::Throughput")]
    objective: Objective,
    /// ring: which board of it this is (the first; with --boards by the machine's name)
    #[argh(option)]
    node: Option<String>,
    /// ring with --boards: address and port where other boards reach this one (9999)
    #[argh(option)]
    host: Option<String>,
    /// ring: port to listen on
    #[argh(option)]
    port: Option<u16>,
    /// file with the 32 random bytes that all boards share, or 64 hexadecimal digits
    #[argh(option)]
    key: Option<PathBuf>,
    /// ring: auto (default), kernel, udp or tcp
    #[argh(option, from_str_fn(ring::transport), default = "Carrier::Auto")]
    transport: Carrier,
    /// ring or team: how activations travel: f32 (default) gives the very bits of one board, f16 halves
    /// the traffic
    #[argh(option, from_str_fn(ring::wire), default = "Dtype::F32")]
    wire: Dtype,
    /// ring or team: socket by which `leap ring` looks at the ring and changes it: a path, auto (default: in the
    /// user's folder) or off
    #[argh(option, from_str_fn(ring::control_place), default = "ControlPlace::Auto")]
    control: ControlPlace,
    /// ring or --team auto: seconds that a board may be away, or another split of a ring be better by
    /// observed times, before layers or rows move by themselves (60 with --boards, else off), or off
    #[argh(option, from_str_fn(ring::rebalance_after))]
    rebalance_after: Option<RebalanceAfter>,
    /// ring: seconds without progress after which answers fail, and others are refused until the boards
    /// are back (120; 0: never)
    #[argh(option)]
    ring_timeout: Option<u64>,
    /// source of guesses of the next tokens, which save time and change no text: auto (the text so far,
    /// and the model's own block for that), ngram (the text so far), a smaller model's file (and the text so far), or off
    #[argh(option, from_str_fn(draft::parse), default = "Draft::Auto")]
    draft: Draft,
    /// board that guesses with a smaller model, and leaves this one's cores free: a name in the ring file, or
    /// HOST[:PORT] (9997); it runs `leap worker --draft-model` with the same --key
    #[argh(option, from_str_fn(draft_node::parse))]
    draft_node: Option<Address>,
    /// longest context in tokens (the model's, up to 4096)
    #[argh(option, from_str_fn(options::count))]
    ctx: Option<usize>,
    /// prompt tokens that go through the model at once (256; 512 of a mixture)
    #[argh(option, from_str_fn(options::count))]
    batch: Option<usize>,
    /// how keys and values are kept: f16, f32 (default for f32 models), or int8: half of f16's memory
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvKind>,
    /// where layers are computed: cpu (default), gpu, auto (a GPU if it is faster), or part of a device's name
    #[argh(option, from_str_fn(options::device), default = "DeviceChoice::Cpu")]
    device: DeviceChoice,
    /// most of the GPU's memory to use, as in 6G (nine tenths of it)
    #[argh(option, from_str_fn(options::room))]
    gpu_memory: Option<u64>,
    /// number of threads (one for each fast core that a quota of CPU time pays for; one for models of few MB)
    #[argh(option, from_str_fn(options::count))]
    threads: Option<usize>,
    /// cores to run on, as in 4-7 or 0,2
    #[argh(option, from_str_fn(options::cores))]
    cores: Option<options::Cores>,
    /// packed weights: auto (beside the model, or in the cache folder), a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    cache: Cache,
    /// weights in huge pages: auto (if there is memory to spare), on or off
    #[argh(option, from_str_fn(weights::huge), default = "Huge::Auto")]
    huge: Huge,
    /// command that prints the watts the machine takes, a line each, where no sensor tells
    #[argh(option)]
    power_cmd: Option<String>,
    /// what the machine takes, IDLE,BUSY watts, where nothing measures it
    #[argh(option, from_str_fn(power::stated))]
    watts: Option<StatedWatts>,
    /// log what clients ask, too
    #[argh(switch)]
    log_prompts: bool,
    /// print neither the address nor a line for each request
    #[argh(switch, short = 'q')]
    quiet: bool,
}

impl Serve {
    pub(super) fn execute(mut self, line: &Line) -> Result<(), Failure> {
        self.check()?;
        let named = self.named(line)?;
        if let Some(models) = &self.models {
            self.check_models()?;
            if self.model.is_none() {
                self.check_options_of_one(line)?;
                return self.execute_several(models);
            }
        }
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let keys = self.keys()?;
        let meter = power::meter(self.power_cmd.as_deref(), self.watts)?;
        let suggested = self.suggested()?;
        #[cfg(feature = "tools")]
        self.convert(named.has_others())?;
        let place =
            WeightsPlace { model: self.model.clone(), cache: self.cache.clone(), huge: self.huge };
        if self.computes_embeddings(named.has_others())? {
            return self.execute_embeddings(&place, (keys, meter));
        }
        let others = self.models.as_deref().map(|models| self.several(models)).transpose()?;
        let mut settings = self.settings(named)?;
        let has_boards = settings.boards != Boards::Alone;
        let (options, by) = (self.engine_options(has_boards)?, settings.named_by);
        let gathered = gather(&mut settings, &place, &options, meter.as_deref());
        gathered.map_err(|e| boards::failure(by, e))?;
        let (master, mut loaded) = ring::load(&settings, &place, self.tokenizer.as_deref())?;
        loaded.choose_template(self.chat_template.as_ref())?;
        loaded.model = self.draft.with_next(loaded.model, !has_boards && self.is_plain())?;
        overwritten::watch(place.model.as_deref(), &loaded.model);
        let (listeners, _files) = self.listeners(&keys)?;
        let engine = Engine::new(loaded.model.clone(), &master.options(options));
        let mut engine = options::started(engine, &self.device, self.quiet)?;
        master.prepare(&mut engine).map_err(|e| boards::failure(by, e))?;
        notify::start();
        let announce = || notify::status("waiting for the other boards");
        let control = ring::begin(&mut engine, (&master, &settings), meter.clone(), &announce)?;
        prefixes::keep(&mut engine, self.prefix_cache.as_deref(), self.prefix_cache_size);
        let Loaded { model, tokenizer, chat_template, .. } = loaded;
        let scheduler = self.scheduler(&mut engine, &self.beside(&tokenizer, &settings.boards))?;
        let mut options = self.options((listeners, keys), meter.clone())?;
        let words = (Arc::clone(&tokenizer), chat_template);
        let model = served(self.about(&model, room_of(&engine))?, model.header(), words, suggested);
        if let Some(fleet) = &settings.fleet {
            let holds = fleet.holds.clone();
            options.lost = Box::new(move || holds.lost());
        }
        let n_streams = counted(scheduler.n_streams(), "stream");
        let what = format!("{n_streams} of {} tokens", engine.ctx_len());
        self.introduce(&model.about.name, &options, &what);
        let others = others.map(|others| self.beside_one(others, &engine, &model.about.name));
        notify::ready();
        let visit = move |engine: &mut _| control.iter().for_each(|c| c.visit(engine));
        let model = (model, Box::new(visit) as Box<_>);
        let ended = serve(&mut engine, scheduler, model, others, options);
        let ended = ended.map_err(ring::step_failure);
        meter.iter().for_each(|meter| meter.stop());
        ended
    }

    /// The scheduler of the model that stays loaded, with its drafts.
    fn scheduler<'t>(
        &self,
        engine: &mut Engine,
        beside: &Beside<'t>,
    ) -> Result<Scheduler<'t>, Failure> {
        let n_streams = self.streams.unwrap_or(STREAMS);
        let scheduler = Scheduler::new(engine, n_streams, Some(beside.tokenizer));
        let mut scheduler = scheduler.map_err(|e| Failure::runtime(&e))?;
        scheduler.limit_stalls(self.stalls());
        self.draft.begin(&mut scheduler, engine, beside)?;
        Ok(scheduler)
    }

    /// Says where the server answers, unless the user wants no such line.
    fn introduce(&self, who: &str, options: &ServeOptions, what: &str) {
        if !self.quiet {
            introduce(who, options, what);
        }
    }

    /// Whether no device and no board that guesses is asked for.
    fn is_plain(&self) -> bool {
        self.draft_node.is_none() && self.device == DeviceChoice::Cpu
    }

    /// Whether the model is one of embeddings, which this board computes alone.
    fn computes_embeddings(&self, has_boards: bool) -> Result<bool, Failure> {
        match &self.model {
            Some(path) if !has_boards => {
                Ok(model_files::model(Some(path))?.header().embedding().is_some())
            }
            _ => Ok(false),
        }
    }

    /// Serves a model of embeddings.
    fn execute_embeddings(
        &self,
        place: &WeightsPlace,
        (keys, meter): (ApiKeys, Option<Arc<Meter>>),
    ) -> Result<(), Failure> {
        if self.models.is_some() {
            return Err(Failure::Usage(
                "a model of embeddings beside --models is one of them: name it there".to_owned(),
            ));
        }
        let loaded = model_files::load(place.model.as_deref(), self.tokenizer.as_deref())?;
        let Loaded { model, tokenizer, chat_template, .. } = loaded;
        overwritten::watch(place.model.as_deref(), &model);
        let (listeners, _files) = self.listeners(&keys)?;
        let options = Options { n_streams: None, max_logits: None, ..self.engine_options(false)? };
        let embedder = Embedder::new(Arc::clone(&model), &options);
        let mut embedder = embedder.map_err(options::engine_failure)?;
        weights::prepare_embedder(&mut embedder, place, weights::words(self.quiet))?;
        notify::start();
        let options = self.options((listeners, keys), meter.clone())?;
        let words = (tokenizer, chat_template);
        let memory = weight_bytes(model.header()).saturating_add(embedder.arena_bytes() as u64);
        let about = self.about(&model, [memory, 0])?;
        let model = served(about, model.header(), words, Suggested::default());
        let what = format!("embeddings of up to {} tokens", embedder.ctx_len());
        self.introduce(&model.about.name, &options, &what);
        notify::ready();
        serve_embeddings(&mut embedder, model, options);
        meter.iter().for_each(|meter| meter.stop());
        Ok(())
    }

    /// Serves several models, none of which stays loaded.
    fn execute_several(&self, models: &str) -> Result<(), Failure> {
        signal::install().map_err(|e| Failure::runtime(&e))?;
        let keys = self.keys()?;
        let meter = power::meter(self.power_cmd.as_deref(), self.watts)?;
        let (listeners, _files) = self.listeners(&keys)?;
        let options = self.options((listeners, keys), meter.clone())?;
        let models = self.several(models)?;
        notify::start();
        let who = format!("a server of {}", models.counted(None));
        self.introduce(&who, &options, &loaded_when_asked_for(models.budget()));
        notify::ready();
        let budget = models.budget();
        serve_several((Box::new(models), budget), options);
        meter.iter().for_each(|meter| meter.stop());
        Ok(())
    }

    /// The models that stand beside the model `name` of `engine`, which stays loaded, and the memory for those that are
    /// loaded: by default what that model leaves.
    fn beside_one(&self, mut others: ServedModels, engine: &Engine, name: &str) -> Others {
        if self.memory.is_none() {
            others.leave(room_of(engine)[0]);
        }
        let name = untagged(name);
        if others.has(name) {
            warn(&format!(
                "two models are called {name}, and that of --models is not served: call one of them otherwise, by \
                 --name or ALIAS="
            ));
        }
        let budget = others.budget();
        if !self.quiet {
            let (others, when) = (others.counted(Some(name)), loaded_when_asked_for(budget));
            note(&format!("leap: {others} beside it: {when}"));
        }
        (Box::new(others), budget)
    }

    /// The models of `--models`.
    fn several(&self, models: &str) -> Result<ServedModels, Failure> {
        let draft = self.draft.clone();
        let settings = served_models::Settings {
            options: Options {
                cache: self.cache.clone(),
                huge: self.huge,
                device: DeviceOptions::default(),
                ..self.engine_options(false)?
            },
            kv_memory: self.kv_memory,
            budget: self.memory.unwrap_or_else(served_models::default_budget),
            stalls: self.stalls(),
            guesses: matches!(draft, Draft::Auto),
            drafts: Box::new(move |scheduler, engine| draft.begin_alone(scheduler, engine)),
            prefixes: self.prefix_cache.clone().map(|folder| (folder, self.prefix_cache_size)),
            is_quiet: self.quiet,
        };
        ServedModels::open(models, settings)
    }

    /// Refuses options that are for one model or for a ring, which is not named.
    fn check_options_of_one(&self, line: &Line) -> Result<(), Failure> {
        match OF_ONE_MODEL.iter().find(|option| line.has(option)) {
            Some(option) => Err(Failure::Usage(format!(
                "{option} is for one model, which is named before --models, as in leap serve MODEL --models {}",
                self.models.as_deref().unwrap_or_default()
            ))),
            None => Ok(()),
        }
    }

    /// Refuses options that cannot be for several models.
    fn check_models(&self) -> Result<(), Failure> {
        let usage = |what: String| Err(Failure::Usage(what));
        match (&self.draft, &self.cache) {
            (Draft::Model(_), _) => usage(
                "--draft with a model's file is for one model; with --models wanted auto or off"
                    .to_owned(),
            ),
            (_, Cache::At(path)) if !path.is_dir() => usage(format!(
                "--cache {} is no folder; the packed weights of several models need one",
                path.display()
            )),
            _ => Ok(()),
        }
    }

    fn stalls(&self) -> StallLimit {
        match self.stall_ms {
            None => StallLimit::Doubled,
            Some(0) => StallLimit::None,
            Some(ms) => StallLimit::Fixed(Duration::from_millis(ms)),
        }
    }

    /// Refuses options that have no effect.
    fn check(&self) -> Result<(), Failure> {
        if self.memory.is_some() && self.models.is_none() {
            return Err(Failure::Usage("--memory is for --models".to_owned()));
        }
        self.draft.check(self.draft_node.as_ref(), self.key.as_deref())?;
        prefixes::check(self.prefix_cache.as_deref())
    }

    /// The boards that the options name, `older` ones among them.
    fn named(&self, line: &Line) -> Result<Named, Failure> {
        Named::find(&Said {
            boards: self.boards.as_ref(),
            is_team: self.team.is_some(),
            line,
            is_master: true,
            has_model: self.model.is_some(),
            has_key: self.key.is_some(),
        })
    }

    /// Settings that come with a model that is given by its name, which is replaced by the path.
    #[cfg(feature = "tools")]
    fn suggested(&mut self) -> Result<Suggested, Failure> {
        let Some(model) = &mut self.model else { return Ok(Suggested::default()) };
        if self.name.is_none() {
            self.name = names::shown(model)?;
        }
        let Some(name) = names::parsed(model)? else { return Ok(Suggested::default()) };
        let found = names::found_or_fetched(&name, self.quiet)?;
        *model = found.path;
        options::tell_left_out(&found.suggested, self.quiet);
        if self.chat_template.is_none() {
            self.chat_template = options::template_of(&found.suggested, self.quiet);
        }
        Ok(found.suggested)
    }

    /// Without checkpoints no model comes with settings.
    #[cfg(not(feature = "tools"))]
    fn suggested(&mut self) -> Result<Suggested, Failure> {
        Ok(Suggested::default())
    }

    /// Converts a checkpoint that is given instead of a model file.
    #[cfg(feature = "tools")]
    fn convert(&mut self, has_boards: bool) -> Result<(), Failure> {
        let wanted = convert::Wanted {
            version: self.version,
            ends: self.embedding_bits,
            has_boards,
            needs_tokenizer: self.tokenizer.is_none(),
            is_quiet: self.quiet,
        };
        self.model = convert::model_file(self.model.take(), wanted)?;
        Ok(())
    }

    fn options(
        &self,
        (listeners, keys): (Vec<ListenSocket>, ApiKeys),
        meter: Option<Arc<Meter>>,
    ) -> Result<ServeOptions, Failure> {
        let seed = random::seed().map_err(|e| Failure::runtime(&e))?;
        Ok(ServeOptions {
            // Short enough for a client to repeat it.
            seed: u64::from(u32::from_le_bytes([seed[0], seed[1], seed[2], seed[3]])),
            listeners,
            keys,
            origins: self.allow_origin.clone(),
            limits: ServeLimits {
                queue: self.queue,
                connections: self.connections,
                body_max: BODY_MAX,
                drain: Duration::from_secs(self.drain_s),
            },
            think_tokens: self.think_tokens,
            meter,
            access_log: self.access_log(),
            lost: Box::new(|| None),
        })
    }

    /// This board's settings among those that are named.
    fn settings(&self, named: Named) -> Result<Settings, Failure> {
        let key = self.key.as_deref().filter(|_| named.boards != Boards::Alone);
        let usual = named.settings(true);
        Ok(Settings {
            node: self.node.clone().or(usual.node),
            links: LinkSettings {
                carrier: self.transport,
                host: self.host.clone(),
                port: self.port,
                key: key.map(key::read).transpose()?,
                wire: self.wire,
                busy_poll: None,
                timeout: ring::timeout(self.ring_timeout, usual.links.timeout),
            },
            wishes: Wishes {
                objective: self.objective,
                patience: self.rebalance_after.unwrap_or(usual.wishes.patience),
                is_taking: self.take,
            },
            control: self.control.clone(),
            figures: power::known(self.watts),
            events: ring::events(self.quiet),
            ..usual
        })
    }

    /// How the engine runs the model.
    fn engine_options(&self, has_boards: bool) -> Result<Options, Failure> {
        let n_streams = self.streams.unwrap_or(STREAMS);
        Ok(Options {
            ctx_len: self.ctx,
            batch: self.batch,
            n_streams: Some(n_streams),
            max_logits: Some(self.draft.max_logits(n_streams)),
            kv: self.kv,
            device: DeviceOptions { choice: self.device.clone(), memory: self.gpu_memory },
            kv_memory: match self.kv_memory {
                Some(bytes) => KvMemory::Bytes(bytes),
                None if has_boards => KvMemory::Whole,
                None => KvMemory::Free,
            },
            ..options::of_cores(self.threads, self.cores.as_ref())?
        })
    }

    fn beside<'a>(&'a self, tokenizer: &'a Tokenizer, boards: &'a Boards) -> Beside<'a> {
        let key = self.key.as_deref();
        Beside {
            node: self.draft_node.as_ref().map(|at| DraftNode { at, key, boards }),
            tokenizer,
            threads: self.threads,
            cores: self.cores.as_ref(),
            cache: &self.cache,
            huge: self.huge,
            is_quiet: self.quiet,
        }
    }

    /// The model as it is shown, with the memory that it takes, and the part of that which is a GPU's.
    fn about(
        &self,
        model: &crate::model::Model,
        [memory, device_memory]: [u64; 2],
    ) -> Result<ModelAbout, Failure> {
        let stem = self.model.as_deref().and_then(Path::file_stem).and_then(|stem| stem.to_str());
        let fingerprint = model.fingerprint().map_err(|e| Failure::runtime(&e))?;
        let name = self.name.clone().unwrap_or_else(|| stem.unwrap_or("demo").to_owned());
        let about = about(name, model.header(), self.file_bytes(model), fingerprint);
        Ok(ModelAbout { memory, device_memory, ..about })
    }

    /// Bytes of the model's file, or of the built-in model's weights.
    fn file_bytes(&self, model: &crate::model::Model) -> u64 {
        let file = self.model.as_deref().and_then(|path| fs::metadata(path).ok());
        file.map_or_else(|| model.bytes_per_token(), |file| file.len())
    }

    fn keys(&self) -> Result<ApiKeys, Failure> {
        let Some(path) = &self.api_key_file else { return Ok(ApiKeys::parse("")) };
        let text = fs::read_to_string(path).map_err(|e| Failure::unreadable(path, &e))?;
        let keys = ApiKeys::parse(text_without_mark(&text));
        let shown = path.display();
        if keys.is_empty() {
            return Err(Failure::Input(format!("{shown} holds no key; one a line is wanted")));
        }
        let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
        if mode & 0o077 != 0 {
            warn(&format!("others may read the key file {shown}: chmod 600 {shown}"));
        }
        Ok(keys)
    }

    fn access_log(&self) -> AccessLog {
        // A journal adds the time to each line.
        let write: fn(&str) = match std::env::var_os("JOURNAL_STREAM") {
            Some(_) => |line| note(&format!("leap: {line}")),
            None => |line| {
                note(&format!("leap: {} {line}", clock::stamp().as_deref().unwrap_or("-")));
            },
        };
        AccessLog { write: (!self.quiet).then_some(write), with_prompts: self.log_prompts }
    }

    /// The addresses to listen on.
    fn places(&self) -> Vec<String> {
        match self.listen.is_empty() {
            true => vec!["127.0.0.1:8080".to_owned()],
            false => self.listen.clone(),
        }
    }

    fn listeners(&self, keys: &ApiKeys) -> Result<(Vec<ListenSocket>, Vec<SocketFile>), Failure> {
        let (mut listeners, mut files) = (Vec::new(), Vec::new());
        if self.listen.is_empty() {
            let passed = activation::listeners();
            let passed = passed.map_err(|e| Failure::Runtime(format!("cannot listen: {e}")))?;
            for listener in passed.into_iter().map(ListenSocket::from) {
                self.check_open(&listener, &listener.address(), keys)?;
                listeners.push(listener);
            }
            if !listeners.is_empty() {
                return Ok((listeners, files));
            }
        }
        for place in self.places() {
            let fail = |e: io::Error| match e.kind() {
                io::ErrorKind::InvalidInput => Failure::Usage(format!(
                    "--listen {place:?}: wanted HOST:PORT, or the path of a socket with a /"
                )),
                _ => Failure::Runtime(format!("cannot listen on {place}: {e}")),
            };
            let listener = match place.contains('/') {
                true => {
                    let (listener, file) = unix_socket(Path::new(&place)).map_err(fail)?;
                    files.push(file);
                    ListenSocket::Unix(listener)
                }
                false => ListenSocket::tcp(&place).map_err(fail)?,
            };
            self.check_open(&listener, &place, keys)?;
            listeners.push(listener);
        }
        Ok((listeners, files))
    }

    /// Refuses an address that is open to other machines without keys, unless `--no-auth` is given.
    fn check_open(&self, on: &ListenSocket, place: &str, keys: &ApiKeys) -> Result<(), Failure> {
        match on.is_local() || !keys.is_empty() || self.no_auth {
            true => Ok(()),
            false => Err(Failure::Usage(format!(
                "{place} is open to other machines: give --api-key-file FILE, or --no-auth if \
                 everybody may ask"
            ))),
        }
    }
}

/// Memory that a loaded model takes on this board, for weights, keys and values, and buffers; and the part of it that is
/// a GPU's.
fn room_of(engine: &Engine) -> [u64; 2] {
    let weights = engine.packed_bytes().unwrap_or_else(|| weight_bytes(engine.header()));
    let (of_device, arena) = (engine.device_bytes(), engine.about().arena_bytes as u64);
    [weights.saturating_add(of_device).saturating_add(arena), of_device]
}

fn loaded_when_asked_for(budget: u64) -> String {
    match budget {
        u64::MAX => "loaded when asked for".to_owned(),
        bytes => format!("loaded when asked for, in {:.1} MB", bytes as f64 / 1e6),
    }
}

/// Says where the server answers.
fn introduce(who: &str, options: &ServeOptions, what: &str) {
    let places: Vec<String> = options.listeners.iter().map(ListenSocket::address).collect();
    note(&format!("leap: {who} answers on {}: {what}", places.join(", ")));
}

/// The file of a Unix socket; it is removed with the server.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another program may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// A socket at `path`. It replaces one that an earlier server left behind.
fn unix_socket(path: &Path) -> std::io::Result<(UnixListener, SocketFile)> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    Ok((listener, SocketFile(path.to_owned())))
}
