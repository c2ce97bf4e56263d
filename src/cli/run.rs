//! `leap run`: generates text, or holds a conversation.

mod chat;
mod complete;
#[cfg(feature = "tools")]
mod editor;
mod figures;
mod input;
mod messages;
mod ring;
mod roles;
mod streams;
mod terminal;

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use argh::{ArgsInfo, FromArgs};

use super::model_files::{self, Loaded};
use super::weights::{self, Words};
use super::{Failure, options, stdout_failure, warn};
#[cfg(feature = "tools")]
use super::{checkpoint::Checkpoint, convert};
use crate::engine::{Cache, Engine, GenerateError, Generator, Huge, Options, StopStrings};
use crate::format::ChatTemplate;
use crate::model::KvType;
use crate::sampler::{Sampler, Sampling};
use crate::sys::{memory, signal};
use crate::wire::Dtype;
pub(super) use roles::{Role, roles};

use ring::{Board, Carrier};

/// Generates text, or holds a conversation with --chat.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "run")]
pub(super) struct Run {
    #[cfg_attr(
        feature = "tools",
        doc = "model file, or a GGUF file or a checkpoint's folder, which is converted once and kept \
               in the cache folder; the built-in demo model if absent"
    )]
    #[cfg_attr(not(feature = "tools"), doc = "model file; the built-in demo model if absent")]
    #[argh(positional)]
    model: Option<PathBuf>,
    #[cfg(feature = "tools")]
    /// weights of a converted checkpoint, as for export: 1 for f32, 2 for int8 (default), 3 for 4
    /// bits
    #[argh(option)]
    version: Option<u32>,
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
    /// hold a conversation; each line of stdin is a message, on a terminal /help says more
    #[argh(switch, short = 'c')]
    chat: bool,
    /// do not keep what is written on the terminal for the next conversation
    #[argh(switch)]
    no_history: bool,
    /// instructions for the whole conversation
    #[argh(option, short = 's')]
    system: Option<String>,
    /// chat template instead of the model's: none, llama2, llama3, mistral-v1, mistral-v3,
    /// zephyr, chatml
    #[argh(option, from_str_fn(chat_template))]
    chat_template: Option<ChatTemplate>,
    /// most tokens to generate (256; in a chat as many as fit); -1: until the text or the context
    /// ends
    #[argh(option, short = 'n', from_str_fn(n_predict))]
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
    /// prompt tokens that go through the model at once (256)
    #[argh(option)]
    batch: Option<usize>,
    /// how keys and values are kept: f16, or f32 (default for f32 models)
    #[argh(option, from_str_fn(options::kv_type))]
    kv: Option<KvType>,
    /// number of threads (one for each fast core; one for models of few MB)
    #[argh(option)]
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
    /// print one JSON object instead of the text
    #[argh(switch)]
    json: bool,
    /// do not print the line of figures
    #[argh(switch, short = 'q')]
    quiet: bool,
    /// prompts answered at the same time, which come one a line from --prompt-file or stdin; on a
    /// worker the most that a master may ask for (16)
    #[argh(option)]
    streams: Option<usize>,
    /// part in a ring of boards: single (default), master or worker; `leap master` and
    /// `leap worker` are short for it
    #[argh(option, from_str_fn(roles::parse), default = "Role::Single")]
    role: Role,
    /// ring: file with a line for each node: name, address, layers
    #[argh(option)]
    ring: Option<PathBuf>,
    /// ring: which node of the file this is (on the master the first)
    #[argh(option)]
    node: Option<String>,
    /// ring without a file: layers of the master; first layer of a worker
    #[argh(option)]
    split: Option<usize>,
    /// ring without a file: layer after the worker's last (the model's last)
    #[argh(option)]
    end: Option<usize>,
    /// ring: auto (default), kernel, udp or tcp
    #[argh(option, from_str_fn(ring::carrier), default = "Carrier::Auto")]
    transport: Carrier,
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
    /// ring: file with the 32 random bytes that all boards share, or 64 hexadecimal digits
    #[argh(option)]
    key: Option<PathBuf>,
    /// ring: how activations travel: f32 (default) gives the very bits of one board; f16 halves the
    /// traffic and rounds, so that texts may differ from one board's
    #[argh(option, from_str_fn(ring::wire), default = "Dtype::F32")]
    wire: Dtype,
    /// ring: seconds without progress after which the master gives up (120; 0: never)
    #[argh(option)]
    ring_timeout: Option<u64>,
    /// ring: microseconds to look for datagrams before sleeping until one comes, also in the
    /// network device where its driver can (50, not in the device): quicker, for more power
    #[argh(option)]
    busy_poll: Option<u16>,
}

/// A number of tokens, or -1 for as many as there are.
fn n_predict(value: &str) -> Result<usize, String> {
    match value {
        "-1" => Ok(usize::MAX),
        n => n.parse().map_err(|_| "wanted a number of tokens, or -1".to_owned()),
    }
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
    /// Start of the random numbers.
    seed: u64,
}

impl Run {
    #[cfg_attr(not(feature = "tools"), expect(unused_mut, reason = "nothing is converted"))]
    pub(super) fn execute(mut self) -> Result<(), Failure> {
        self.check()?;
        signal::install().map_err(|e| Failure::runtime(&e))?;
        signal::count_one().map_err(|e| Failure::runtime(&e))?;
        #[cfg(feature = "tools")]
        self.convert()?;
        let (loaded, board) = match self.role {
            Role::Worker => return ring::work(&self),
            Role::Single => {
                let model = self.model.as_deref();
                (model_files::load(model, self.tokenizer.as_deref())?, None)
            }
            Role::Master => {
                let (loaded, board) = ring::load(&self)?;
                (loaded, Some(board).filter(Board::has_ring))
            }
        };
        let batch = board.as_ref().map_or(self.batch, |_| Some(ring::batch(&self)));
        let mut engine = self.engine(&loaded, batch)?;
        let model = self.model.as_deref();
        weights::prepare(&mut engine, model, (&self.cache, self.huge), self.words())?;
        if let Some(board) = &board {
            board.join(&self, &mut engine)?;
        }
        let seed = self.seed();
        let generator = self.generator(&loaded, engine.ctx_len(), seed);
        let session = Session { flags: &self, loaded: &loaded, engine, generator, seed };
        match (self.chat, self.streams) {
            (true, _) => chat::run(session),
            (false, Some(n)) => streams::run(session, n),
            (false, None) => complete::run(session),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
        if self.ring.is_some() && (self.split.is_some() || self.next_host.is_some()) {
            return usage(
                "--ring says what --split, --end and --next-host would; give one or the other",
            );
        }
        if self.streams.is_some()
            && self.role != Role::Worker
            && (self.chat || self.prompt.is_some())
        {
            return usage("--streams takes prompts from --prompt-file or stdin, one a line");
        }
        if self.streams == Some(0) {
            return usage("--streams must be at least 1");
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

    /// Has a checkpoint converted that is given instead of a model file, and goes on with that.
    #[cfg(feature = "tools")]
    fn convert(&mut self) -> Result<(), Failure> {
        match (self.model.as_deref().and_then(Checkpoint::at), self.version) {
            (Some(checkpoint), version) => {
                let wanted = convert::Wanted {
                    version: version.unwrap_or(2),
                    needs_tokenizer: self.tokenizer.is_none() && self.role != Role::Worker,
                    is_quiet: self.quiet,
                };
                self.model = Some(convert::kept(&checkpoint, wanted)?);
                Ok(())
            }
            (None, Some(_)) => Err(Failure::Usage(
                "--version is for a checkpoint that is converted; this is none".to_owned(),
            )),
            (None, None) => Ok(()),
        }
    }

    fn words(&self) -> Words {
        if self.quiet { Words::None } else { Words::All }
    }

    fn engine(&self, loaded: &Loaded, batch: Option<usize>) -> Result<Engine, Failure> {
        let options = Options {
            ctx_len: self.ctx,
            batch,
            n_streams: self.streams,
            max_logits: self.streams,
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

    /// Start of the random numbers.
    fn seed(&self) -> u64 {
        if self.seed == 0 { random_seed() } else { self.seed }
    }

    fn generator<'t>(&self, loaded: &'t Loaded, ctx_len: usize, seed: u64) -> Generator<'t> {
        let sampling =
            Sampling { temperature: self.temp, top_p: self.top_p, top_k: self.top_k, seed };
        let sampler = Sampler::new(sampling, loaded.model.header().vocab_size);
        let stop_strings = StopStrings::new(self.stop.clone());
        Generator::new(&loaded.tokenizer, sampler, stop_strings, ctx_len)
    }
}

/// Sorts what ended an answer under its exit code.
fn failure(error: GenerateError) -> Failure {
    match &error {
        GenerateError::Step(e) => ring::step_failure(e),
        _ => Failure::runtime(&error),
    }
}

/// What to do about a text that is longer than the context.
fn shorten(engine: &Engine) -> &'static str {
    match engine.ctx_len() < engine.header().max_seq_len {
        true => "shorten it or raise --ctx",
        false => "shorten it: the model allows no more",
    }
}

/// Ids that end a text: the model's and the tokenizer's.
fn stop_ids(loaded: &Loaded) -> Vec<u32> {
    let mut stop_ids = loaded.model.header().stop_ids.clone();
    stop_ids.extend_from_slice(loaded.tokenizer.stop_ids());
    stop_ids
}

/// A number that is another one each time, short enough to be typed, and never 0.
fn random_seed() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since_epoch.map_or(1, |time| time.as_nanos() as u64);
    let mixed =
        (nanos ^ u64::from(std::process::id()).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32).max(1)
}

/// Shows text as it comes. Once it cannot be written, nobody waits for the rest of the answer.
struct Screen {
    problem: RefCell<Option<io::Error>>,
}

impl Screen {
    fn new() -> Screen {
        Screen { problem: RefCell::new(None) }
    }

    fn show(&self, text: &str) {
        if self.is_open() {
            let mut stdout = io::stdout().lock();
            let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
            *self.problem.borrow_mut() = written.err();
        }
    }

    fn is_open(&self) -> bool {
        self.problem.borrow().is_none()
    }

    /// Fails if the text could not be written: a disk is full. A reader that went away has seen
    /// what it wanted.
    fn check(&self) -> Result<(), Failure> {
        match &*self.problem.borrow() {
            Some(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(stdout_failure(e)),
            _ => Ok(()),
        }
    }

    /// Whether the answer should end here: a signal asked for it, or it cannot be shown.
    fn is_interrupted(&self) -> bool {
        signal::interrupted() > 0 || !self.is_open()
    }
}

#[cfg(test)]
mod tests {
    use argh::FromArgs;

    use super::*;

    #[test]
    fn a_ring_is_exact_unless_it_is_told_otherwise() {
        let wire = |args: &[&str]| Run::from_args(&["run"], args).unwrap().wire;
        assert_eq!(wire(&[]), Dtype::F32);
        assert_eq!(wire(&["--wire", "f16"]), Dtype::F16);
    }
}
