//! The options of `leap run`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use argh::{ArgsInfo, FromArgs};

use super::thinking::{self, Think};
use crate::cli::boards::{self, Auto, Named, Said};
use crate::cli::draft::{self, Draft};
use crate::cli::draft_node;
use crate::cli::options::ChatChoice;
use crate::cli::power::{self, StatedWatts};
use crate::cli::ring::{self, RebalanceAfter};
use crate::cli::roles::Role;
use crate::cli::weights::{self, Words};
use crate::cli::words::Line;
use crate::cli::{Failure, key, options, prefixes};
use crate::engine::{Cache, DeviceChoice, Huge, WeightsPlace};
use crate::fleet::boards::Boards;
use crate::fleet::settings::{ControlPlace, LinkSettings, Settings, Wishes};
#[cfg(feature = "tools")]
use crate::format::model::Ends;
use crate::model::KvKind;
use crate::ring::Address;
use crate::ring::plan::Objective;
use crate::transport::carrier::Carrier;
use crate::wire::Dtype;

/// A board that guesses does nothing else.
const GUESSES_ALONE: &str =
    "--draft-model is for a board that guesses: no other model, and no ring";

/// Generates text, or holds a conversation with --chat.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "run")]
pub(in crate::cli) struct Run {
    #[cfg_attr(
        feature = "tools",
        doc = "model file, or a GGUF file or a checkpoint's folder, which is converted once and kept \
               in the cache folder, or a name: hf:ORG/REPO[:QUANT][@REVISION] or ollama:MODEL[:TAG]; the \
               built-in demo model if absent"
    )]
    #[cfg_attr(not(feature = "tools"), doc = "model file; the built-in demo model if absent")]
    #[argh(positional)]
    pub(super) model: Option<PathBuf>,
    #[cfg(feature = "tools")]
    /// weights of a converted checkpoint, as for export: 1 for f32, 2 for int8, 3 or 4 for 4 bits, 5 for
    /// a GGUF file's own (default for GGUF files, int8 for others)
    #[argh(option)]
    pub(super) version: Option<u32>,
    #[cfg(feature = "tools")]
    /// bits of its embedding and classifier with --version 4, as for export: 8 (default) or 6
    #[argh(option, arg_name = "bits", from_str_fn(options::embedding_bits))]
    pub(super) embedding_bits: Option<Ends>,
    /// tokenizer.bin; by default the one beside the model
    #[argh(option, short = 't')]
    pub(super) tokenizer: Option<PathBuf>,
    /// text to go on from; - reads it from stdin
    #[argh(option, short = 'p')]
    pub(super) prompt: Option<String>,
    /// file with the text to go on from
    #[argh(option)]
    pub(super) prompt_file: Option<PathBuf>,
    /// text that follows: the model fills in what is between, if it is trained to (CodeLlama)
    #[argh(option)]
    pub(super) suffix: Option<String>,
    /// hold a conversation; each line of stdin is a message, on a terminal /help says more
    #[argh(switch, short = 'c')]
    pub(super) chat: bool,
    /// do not keep what is written on the terminal for the next conversation
    #[argh(switch)]
    pub(super) no_history: bool,
    /// instructions for the whole conversation
    #[argh(option, short = 's')]
    pub(super) system: Option<String>,
    /// chat template instead of the model's: a file in Jinja's language or in Go's, or none, llama2,
    /// llama3, mistral-v1, mistral-v3, zephyr, chatml, qwen3, smollm3, granite, gemma, phi3, phi4,
    /// harmony
    #[argh(option, from_str_fn(options::chat_template))]
    pub(super) chat_template: Option<ChatChoice>,
    /// thoughts of a model that thinks before it answers: on (shown, dimmed on a terminal), off, or
    /// hide; none stay in the context
    #[argh(option, from_str_fn(thinking::parse))]
    pub(super) think: Option<Think>,
    /// most tokens of thoughts before an answer: then they are ended as the template ends them
    #[argh(option, from_str_fn(options::think_tokens))]
    pub(super) think_tokens: Option<usize>,
    /// most tokens to generate (256; in a chat as many as fit); -1: until the text or the context
    /// ends
    #[argh(option, short = 'n', from_str_fn(n_predict))]
    pub(super) n_predict: Option<usize>,
    /// text that ends the answer; may be given several times
    #[argh(option)]
    pub(super) stop: Vec<String>,
    /// temperature (1.0); 0 always takes the most likely token
    #[argh(option, default = "1.0")]
    pub(super) temp: f32,
    /// keep the most likely tokens that have this probability together (0.9)
    #[argh(option, default = "0.9")]
    pub(super) top_p: f32,
    /// keep this many of the most likely tokens (0: all)
    #[argh(option, default = "0")]
    pub(super) top_k: usize,
    /// keep tokens that are at least this many times as likely as the most likely one, from 0 (all) to 1
    #[argh(option, default = "0.0")]
    pub(super) min_p: f32,
    /// start of the random numbers (0: a different one each time)
    #[argh(option, default = "0")]
    pub(super) seed: u64,
    /// source of guesses of the next tokens, which save time and change no text: auto (the text so far,
    /// and the model's own block for that), ngram (the text so far), a smaller model's file (and the text so far), or off
    #[argh(option, from_str_fn(draft::parse), default = "Draft::Auto")]
    pub(super) draft: Draft,
    /// board that guesses with a smaller model, and leaves this one's cores free: a name in the ring file, or
    /// HOST[:PORT] (9997); it runs `leap worker --draft-model` with the same --key
    #[argh(option, from_str_fn(draft_node::parse))]
    pub(super) draft_node: Option<Address>,
    /// be such a board, with this smaller model's file, for any master with the same --key
    #[argh(option)]
    pub(super) draft_model: Option<PathBuf>,
    /// longest context in tokens (the model's, up to 4096)
    #[argh(option, from_str_fn(options::count))]
    pub(super) ctx: Option<usize>,
    /// prompt tokens that go through the model at once (256; 512 of a mixture)
    #[argh(option, from_str_fn(options::count))]
    pub(super) batch: Option<usize>,
    /// how keys and values are kept: f16, f32 (default for f32 models), or int8: half of f16's memory
    #[argh(option, from_str_fn(options::kv_type))]
    pub(super) kv: Option<KvKind>,
    /// where layers are computed: cpu (default), gpu, auto (a GPU if it is faster), or part of a device's name
    #[argh(option, from_str_fn(options::device), default = "DeviceChoice::Cpu")]
    pub(super) device: DeviceChoice,
    /// most of the GPU's memory to use, as in 6G (nine tenths of it)
    #[argh(option, from_str_fn(options::room))]
    pub(super) gpu_memory: Option<u64>,
    /// number of threads (one for each fast core that a quota of CPU time pays for; one for models of few MB)
    #[argh(option, from_str_fn(options::count))]
    pub(super) threads: Option<usize>,
    /// cores to run on, as in 4-7 or 0,2
    #[argh(option, from_str_fn(options::cores))]
    pub(super) cores: Option<options::Cores>,
    /// packed weights: auto (beside the model, or in the cache folder), a file, a folder, or off
    #[argh(option, from_str_fn(weights::cache), default = "Cache::Auto")]
    pub(super) cache: Cache,
    /// folder that keeps this board's part of keys and values of prompts of 256 tokens and more over
    /// restarts, where `leap serve` on the ring's master does so too; prompts can be reconstructed from it
    #[argh(option)]
    pub(super) prefix_cache: Option<PathBuf>,
    /// most bytes in that folder: the least recently used files are removed (2G)
    #[argh(option, from_str_fn(options::room))]
    pub(super) prefix_cache_size: Option<u64>,
    /// weights in huge pages: auto (if there is memory to spare), on or off
    #[argh(option, from_str_fn(weights::huge), default = "Huge::Auto")]
    pub(super) huge: Huge,
    /// command that prints the watts the machine takes, a line each, where no sensor tells
    #[argh(option)]
    pub(super) power_cmd: Option<String>,
    /// what the machine takes, IDLE,BUSY watts, where nothing measures it
    #[argh(option, from_str_fn(power::stated))]
    pub(super) watts: Option<StatedWatts>,
    /// print one JSON object instead of the text
    #[argh(switch)]
    pub(super) json: bool,
    /// do not print the line of figures
    #[argh(switch, short = 'q')]
    pub(super) quiet: bool,
    /// prompts answered at the same time, which come one a line from --prompt-file or stdin; on a
    /// worker the most that a master may ask for (16)
    #[argh(option, from_str_fn(options::count))]
    pub(super) streams: Option<usize>,
    /// team: auto; the boards of --boards (auto) share every layer by how quick they are, and each gets its
    /// rows
    #[argh(option, from_str_fn(boards::team))]
    pub(super) team: Option<Auto>,
    /// ring or team: boards to divide the model among, auto (those that answer on this
    /// network) or HOST[:PORT] and more behind commas (9998); each runs `leap worker` with the same
    /// --key. Or a file, whose lines have layers, shares or neither: see `leap help compatibility`
    #[argh(option, from_str_fn(boards::parse))]
    pub(super) boards: Option<boards::Value>,
    /// ring or team with --boards: take boards that work for another master, which loses them
    #[argh(switch)]
    pub(super) take: bool,
    /// ring with --boards: goal of the split: latency (default) of one stream, throughput of many, energy of
    /// a token, where all boards have --watts, or memory that stays free on the fullest board
    #[argh(option, from_str_fn(options::objective), default = "Objective::Latency")]
    pub(super) objective: Objective,
    /// ring: which node of the file this is (on the master the first)
    #[argh(option)]
    pub(super) node: Option<String>,
    /// ring: auto (default), kernel, udp or tcp
    #[argh(option, from_str_fn(ring::transport), default = "Carrier::Auto")]
    pub(super) transport: Carrier,
    /// ring: address to listen on
    #[argh(option)]
    pub(super) host: Option<String>,
    /// ring: port to listen on (9999; 9997 with --draft-model)
    #[argh(option)]
    pub(super) port: Option<u16>,
    /// file with the 32 random bytes that all boards share, or 64 hexadecimal digits
    #[argh(option)]
    pub(super) key: Option<PathBuf>,
    /// ring or team: how activations travel: f32 (default) gives the very bits of one board; f16 halves
    /// the traffic and rounds, so that texts may differ from one board's
    #[argh(option, from_str_fn(ring::wire), default = "Dtype::F32")]
    pub(super) wire: Dtype,
    /// ring or team: socket by which `leap ring` looks at the ring and changes it: a path, auto (default: in the
    /// user's folder) or off
    #[argh(option, from_str_fn(ring::control_place), default = "ControlPlace::Auto")]
    pub(super) control: ControlPlace,
    /// ring or --team auto: seconds that a board may be away, or another split of a ring be better by
    /// observed times, before layers or rows move by themselves (60 with --boards, else off), or off
    #[argh(option, from_str_fn(ring::rebalance_after))]
    pub(super) rebalance_after: Option<RebalanceAfter>,
    /// ring: seconds without progress after which the master gives up (120; 0: never)
    #[argh(option)]
    pub(super) ring_timeout: Option<u64>,
    /// ring: microseconds to look for datagrams before sleeping until one comes, also in the
    /// network device where its driver can (50, not in the device): quicker, for more power
    #[argh(option)]
    pub(super) busy_poll: Option<u16>,
}

/// Parses a number of tokens; -1 stands for no limit.
fn n_predict(value: &str) -> Result<usize, String> {
    match value {
        "-1" => Ok(usize::MAX),
        n => options::count(n).map_err(|why| format!("{why}, or -1 for no limit")),
    }
}

impl Run {
    /// Refuses options that contradict each other or have no effect.
    pub(super) fn check(&self, role: Role) -> Result<(), Failure> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
        if self.streams.is_some() && role != Role::Worker && (self.chat || self.prompt.is_some()) {
            return usage("--streams takes prompts from --prompt-file or stdin, one a line");
        }
        if self.prompt.is_some() && self.prompt_file.is_some() {
            return usage("give --prompt or --prompt-file, not both");
        }
        prefixes::check(self.prefix_cache.as_deref())?;
        self.draft.check(self.draft_node.as_ref(), self.key.as_deref())?;
        if self.key.is_some() && role == Role::Single && self.draft_node.is_none() {
            return usage("--key is for leap master and leap worker, and for --draft-node");
        }
        if !(self.temp.is_finite() && self.temp >= 0.0) {
            return usage("--temp must be a number from 0 on");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return usage("--top-p must lie between 0 and 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return usage("--min-p must lie between 0 and 1");
        }
        Ok(())
    }

    /// The boards that the options name, `older` ones among them.
    pub(super) fn boards(&self, line: &Line) -> Result<Named, Failure> {
        let is_master = line.role != Role::Worker;
        if self.draft_model.is_some() && line.older.boards(is_master)?.is_some() {
            return Err(Failure::Usage(GUESSES_ALONE.to_owned()));
        }
        let named = Named::find(&Said {
            boards: self.boards.as_ref(),
            is_team: self.team.is_some(),
            line,
            is_master,
            has_model: self.model.is_some() || self.draft_model.is_some(),
            has_key: self.key.is_some(),
        })?;
        self.check_boards(&named, line.role)?;
        Ok(named)
    }

    /// Refuses options that contradict these boards or have no effect with them.
    fn check_boards(&self, named: &Named, role: Role) -> Result<(), Failure> {
        let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
        let has_place = named.boards != Boards::Alone || named.gets.is_some();
        if self.prefix_cache.is_some() && self.draft_model.is_some() {
            return usage("--prefix-cache is for boards that have layers; this one guesses");
        }
        if self.draft_model.is_some() && (has_place || self.model.is_some()) {
            return usage(GUESSES_ALONE);
        }
        if named.gets.is_some() && self.model.is_some() {
            return usage("--fetch gets the layers from another board; give no model file");
        }
        let must_name = role == Role::Worker && self.draft_model.is_none();
        match named.boards == Boards::Alone && (must_name || role == Role::Master) {
            true => {
                let has_both = self.model.is_some() && self.key.is_some();
                usage(boards::no_boards(role == Role::Master, has_both))
            }
            false => Ok(()),
        }
    }

    /// This board's settings among those that are named.
    pub(super) fn settings(&self, named: Named, role: Role) -> Result<Settings, Failure> {
        let key = self.key.as_deref().filter(|_| named.boards != Boards::Alone);
        let usual = named.settings(role != Role::Worker);
        Ok(Settings {
            node: self.node.clone().or(usual.node),
            links: LinkSettings {
                carrier: self.transport,
                host: self.host.clone(),
                port: self.port,
                key: key.map(key::read).transpose()?,
                wire: self.wire,
                busy_poll: self.busy_poll,
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

    /// Location of the packed weights.
    pub(super) fn place(&self) -> WeightsPlace {
        WeightsPlace { model: self.model.clone(), cache: self.cache.clone(), huge: self.huge }
    }

    /// Amount of messages while weights are packed.
    pub(super) fn words(&self) -> Words {
        weights::words(self.quiet)
    }

    /// The given seed, or a random one.
    pub(super) fn seed(&self) -> u64 {
        if self.seed == 0 { random_seed() } else { self.seed }
    }
}

/// A number that differs each time, short enough to be typed, and never 0.
fn random_seed() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since_epoch.map_or(1, |time| time.as_nanos() as u64);
    let mixed =
        (nanos ^ u64::from(std::process::id()).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32).max(1)
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
