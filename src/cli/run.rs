//! `leap run`: generates text, or holds a conversation.

mod chat;
mod complete;
mod figures;
mod input;

use std::cell::Cell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use argh::FromArgs;

use super::model_files::{self, Loaded};
use super::weights::{self, Huge, Place};
use super::{Failure, options, warn};
use crate::engine::{Engine, Generator, Options, StopStrings};
use crate::format::ChatTemplate;
use crate::model::KvType;
use crate::sampler::{Sampler, Sampling};
use crate::sys::{memory, signal};

/// Generates text, or holds a conversation with --chat.
#[derive(FromArgs)]
#[argh(subcommand, name = "run")]
pub(super) struct Run {
    /// model file; the built-in demo model if absent
    #[argh(positional)]
    model: Option<PathBuf>,
    /// tokenizer.bin; by default the one beside the model
    #[argh(option, short = 't')]
    tokenizer: Option<PathBuf>,
    /// text to go on from; - reads it from stdin
    #[argh(option, short = 'p')]
    prompt: Option<String>,
    /// file with the text to go on from
    #[argh(option)]
    prompt_file: Option<PathBuf>,
    /// text that follows: the model fills in what is between, if it is trained to (CodeLlama)
    #[argh(option)]
    suffix: Option<String>,
    /// hold a conversation; each line of stdin is a message
    #[argh(switch, short = 'c')]
    chat: bool,
    /// instructions for the whole conversation
    #[argh(option, short = 's')]
    system: Option<String>,
    /// chat template instead of the model's: none, llama2, llama3, mistral-v1, mistral-v3,
    /// zephyr, chatml
    #[argh(option, from_str_fn(chat_template))]
    chat_template: Option<ChatTemplate>,
    /// most tokens to generate (256; in a chat as many as fit)
    #[argh(option, short = 'n')]
    n_predict: Option<usize>,
    /// text that ends the answer; may be given several times
    #[argh(option)]
    stop: Vec<String>,
    /// temperature (1.0); 0 always takes the most likely token
    #[argh(option, default = "1.0")]
    temp: f32,
    /// keep the most likely tokens that have this probability together (0.9)
    #[argh(option, default = "0.9")]
    top_p: f32,
    /// keep this many of the most likely tokens (0: all)
    #[argh(option, default = "0")]
    top_k: usize,
    /// start of the random numbers (0: a different one each time)
    #[argh(option, default = "0")]
    seed: u64,
    /// longest context in tokens (the model's, up to 4096)
    #[argh(option)]
    ctx: Option<usize>,
    /// prompt tokens that go through the model at once (128)
    #[argh(option)]
    batch: Option<usize>,
    /// how keys and values are kept: f16, or f32 (default for f32 models)
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvType>,
    /// number of threads (one for each fast core)
    #[argh(option)]
    threads: Option<usize>,
    /// cores to run on, as in 4-7 or 0,2
    #[argh(option, from_str_fn(options::cores))]
    cores: Option<options::Cores>,
    /// packed weights: auto (beside the model, or in the cache folder), a file, a folder, or off
    #[argh(option, from_str_fn(weights::place), default = "Place::Auto")]
    cache: Place,
    /// weights in huge pages: auto (if there is memory to spare), on or off
    #[argh(option, from_str_fn(weights::huge), default = "Huge::Auto")]
    huge: Huge,
    /// print one JSON object instead of the text
    #[argh(switch)]
    json: bool,
    /// do not print the line of figures
    #[argh(switch, short = 'q')]
    quiet: bool,
    /// part in a ring of boards: single (default), master or worker
    #[argh(option, default = "String::from(\"single\")")]
    role: String,
    /// ring: first layer that is not this board's
    #[argh(option)]
    split: Option<usize>,
    /// ring: layer after the worker's last
    #[argh(option)]
    end: Option<usize>,
    /// ring: auto, kernel, udp or tcp
    #[argh(option)]
    transport: Option<String>,
    /// ring: address to listen on
    #[argh(option)]
    host: Option<String>,
    /// ring: port to listen on (9999)
    #[argh(option)]
    port: Option<u16>,
    /// ring: host of the next board
    #[argh(option)]
    next_host: Option<String>,
    /// ring: port of the next board (9999)
    #[argh(option)]
    next_port: Option<u16>,
}

fn chat_template(name: &str) -> Result<ChatTemplate, String> {
    ChatTemplate::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = ChatTemplate::ALL.iter().map(|t| t.name()).collect();
        format!("{name:?} is no chat template; there are {}", known.join(", "))
    })
}

/// Prompt of the built-in model when none is given.
const DEMO_PROMPT: &str = "Once upon a time";

/// Tokens generated without -n.
const N_PREDICT: usize = 256;

/// A model that is ready, and what the flags say about using it.
struct Session<'a> {
    flags: &'a Run,
    loaded: &'a Loaded,
    engine: Engine,
    generator: Generator<'a>,
}

impl Run {
    pub(super) fn execute(self) -> Result<(), Failure> {
        self.check()?;
        signal::install().map_err(|e| Failure::runtime(&e))?;
        signal::count_one().map_err(|e| Failure::runtime(&e))?;
        let loaded = model_files::load(self.model.as_deref(), self.tokenizer.as_deref())?;
        let mut engine = self.engine(&loaded)?;
        let model = self.model.as_deref();
        weights::prepare(&mut engine, model, &self.cache, self.huge, self.quiet)?;
        let generator = self.generator(&loaded, engine.ctx_len());
        let session = Session { flags: &self, loaded: &loaded, engine, generator };
        match self.chat {
            true => chat::run(session),
            false => complete::run(session),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
        if self.role != "single" {
            return usage("this version runs on one board: --role can only be single");
        }
        if self.has_ring_options() {
            return usage(
                "--split, --end, --transport, --host, --port, --next-host and --next-port need a --role other than single",
            );
        }
        if self.prompt.is_some() && self.prompt_file.is_some() {
            return usage("give --prompt or --prompt-file, not both");
        }
        if self.suffix.is_some() && self.chat {
            return usage("--suffix is for a prompt, not for conversations");
        }
        if self.system.is_some() && !self.chat {
            return usage("--system is for conversations; add --chat");
        }
        if !(self.temp.is_finite() && self.temp >= 0.0) {
            return usage("--temp must be 0 or more");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return usage("--top-p must lie between 0 and 1");
        }
        if self.n_predict == Some(0) || self.threads == Some(0) || self.batch == Some(0) {
            return usage("-n, --threads and --batch must be at least 1");
        }
        Ok(())
    }

    fn has_ring_options(&self) -> bool {
        let hosts = [&self.transport, &self.host, &self.next_host];
        let layers = [self.split, self.end];
        let ports = [self.port, self.next_port];
        hosts.iter().any(|o| o.is_some())
            || layers.iter().any(Option::is_some)
            || ports.iter().any(Option::is_some)
    }

    fn engine(&self, loaded: &Loaded) -> Result<Engine, Failure> {
        let options = Options {
            ctx_len: self.ctx,
            batch: self.batch,
            kv: self.kv,
            threads: self.threads.map(options::useful_threads),
            cores: self.cores.as_ref().map(|cores| cores.0.clone()),
            isa: options::isa_from_environment()?,
            ..Options::default()
        };
        let engine =
            Engine::new(loaded.model.clone(), &options).map_err(options::engine_failure)?;
        let needed = engine.transformer().arena_bytes() as u64;
        if let Some(available) = memory::available_bytes().filter(|&bytes| bytes < needed) {
            warn(&format!(
                "context and buffers need {} MiB, {} MiB of memory are free; try a smaller --ctx",
                needed >> 20,
                available >> 20
            ));
        }
        Ok(engine)
    }

    fn generator<'t>(&self, loaded: &'t Loaded, ctx_len: usize) -> Generator<'t> {
        let sampling = Sampling {
            temperature: self.temp,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: if self.seed == 0 { random_seed() } else { self.seed },
        };
        let sampler = Sampler::new(sampling, loaded.model.header().vocab_size);
        let stop_strings = StopStrings::new(self.stop.clone());
        Generator::new(&loaded.tokenizer, sampler, stop_strings, ctx_len)
    }
}

fn random_seed() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since_epoch.map_or(1, |time| time.as_nanos() as u64);
    nanos ^ u64::from(std::process::id()).rotate_left(32)
}

/// Shows text as it comes. Once the reader is gone, nobody waits for the rest of the answer.
struct Screen {
    is_open: Cell<bool>,
}

impl Screen {
    fn new() -> Screen {
        Screen { is_open: Cell::new(true) }
    }

    fn show(&self, text: &str) {
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        self.is_open.set(self.is_open.get() && written.is_ok());
    }

    /// Whether the answer should end here: a signal asked for it, or its reader went away.
    fn is_interrupted(&self) -> bool {
        signal::interrupted() > 0 || !self.is_open.get()
    }
}
