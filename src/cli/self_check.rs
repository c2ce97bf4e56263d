//! `leap self-check`: whether this program works on this machine.

use std::error::Error;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};

use super::{Failure, counted, model_files, options, print};
use crate::engine::{Engine, Isa, KvKind, Listener, Model, Options, Wants, WeightsPlace};
use crate::format::model::Header;
use crate::format::printable;
use crate::kernels::Kernels;
use crate::model::Shape;
use crate::sampler::argmax;
use crate::sys::folders;
use crate::sys::huge::Pages;

/// Longest wait for a server's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer that are read.
const ANSWER_MAX: usize = 4096;
/// Rows of the made-up models' first pass: whole tiles of every tier, and a rest. Each further pass has one row.
const ROWS: usize = 37;
/// Tokens that the made-up models read.
const TOKENS: usize = ROWS + 3;
/// Formats of the made-up models: `--version` of their weights, and their keys and values.
const FORMATS: [(u32, KvKind); 4] =
    [(1, KvKind::F32), (2, KvKind::F16), (3, KvKind::Int8), (4, KvKind::Int8)];
/// A beginning, and how the demo model goes on from it on every machine.
const STORY: [&str; 2] = [
    "Once upon a time",
    ", in a green valley, there lived a stubborn owl called Nilo. His best treasure was a wooden",
];

/// Text of a check that passed, or what is wrong.
type Checked = Result<String, Box<dyn Error>>;

/// Checks in a few seconds that this program works on this machine: its kernels, the demo model, its cache.
///
/// Prints a line for each check: ok, or bad and what is wrong. Exit code 0 if all are ok, else 1.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "self-check")]
pub(super) struct SelfCheck {
    /// ask instead whether the server at HOST:PORT can answer
    #[argh(option)]
    server: Option<String>,
}

impl SelfCheck {
    pub(super) fn execute(self) -> Result<(), Failure> {
        let mut n_bad = 0;
        let mut tell = |name: &str, checked: Checked| {
            n_bad += usize::from(checked.is_err());
            let (state, text) =
                checked.map_or_else(|e| ("bad", e.to_string()), |text| ("ok", text));
            print(&format!("{state:<4} {name:<8} {}\n", printable(&text)))
        };
        match &self.server {
            Some(place) => tell("server", health(place))?,
            None => {
                tell("kernels", kernels())?;
                if model_files::BUILT_IN.is_some() {
                    tell("demo", demo())?;
                }
                tell("cache", cache())?;
            }
        }
        match n_bad {
            0 => Ok(()),
            n => Err(Failure::Runtime(format!("{} failed", counted(n, "check")))),
        }
    }
}

/// Compares every tier of this CPU with the scalar one: the bits of made-up models' logits.
fn kernels() -> Checked {
    let tiers = || Isa::ALL.iter().filter(|isa| Kernels::for_isa(**isa).is_some());
    for (version, kv) in FORMATS {
        let model = Arc::new(Model::synthetic_in(&header(version)?, Pages::Small)?);
        let wanted = logits(&model, Isa::Scalar, kv)?;
        for isa in tiers() {
            if logits(&model, *isa, kv)? != wanted {
                return Err(format!("{}: not scalar's bits, version {version}", isa.name()).into());
            }
        }
    }
    let names: Vec<&str> = tiers().map(|isa| isa.name()).collect();
    Ok(format!("{}: the same bits, versions 1 to {}", names.join(", "), FORMATS.len()))
}

/// The header of a small model with weights of `version`.
fn header(version: u32) -> Result<Header, &'static str> {
    let weights = options::weights_of_shape(version, None).map_err(|_| "no such version")?;
    let shape = Shape::ALL[0].with_layers(2).header(weights);
    Ok(Header { dim: 256, ffn_dim: 768, vocab_size: 512, n_heads: 4, n_kv_heads: 2, ..shape })
}

/// Bits of the logits after each of [`TOKENS`] tokens.
fn logits(model: &Arc<Model>, isa: Isa, kv: KvKind) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut engine = ready(model, Options { isa: Some(isa), kv: Some(kv), ..Options::default() })?;
    let mut stream = engine.stream()?;
    let ids: Vec<u32> = (0..TOKENS).map(|n| (n * 101 % 509) as u32).collect();
    let (first, rest) = ids.split_at(ROWS);
    let mut bits = Vec::new();
    for ids in std::iter::once(first).chain(rest.chunks(1)) {
        let logits = engine.push_batch(&mut stream, ids, Wants::All)?;
        bits.extend(logits.iter().map(|x| x.to_bits()));
    }
    Ok(bits)
}

/// An engine for [`TOKENS`] tokens, with its weights packed if its tier wants that.
fn ready(model: &Arc<Model>, options: Options) -> Result<Engine, Box<dyn Error>> {
    let (ctx_len, batch) = (Some(TOKENS), Some(ROWS));
    let options = Options { ctx_len, batch, max_logits: batch, ..options };
    let mut engine = Engine::new(model.clone(), &options)?;
    engine.prepare(&WeightsPlace::default(), Listener::NONE)?;
    Ok(engine)
}

/// Compares the built-in model's text with the known one.
fn demo() -> Checked {
    let loaded = model_files::load(None, None).map_err(|_| "the built-in model is damaged")?;
    let ids_of = |text: &str| {
        let mut ids: Vec<u32> = loaded.tokenizer.bos().into_iter().collect();
        loaded.tokenizer.encode(text, &mut ids);
        ids
    };
    let mut engine = ready(&loaded.model, Options::default())?;
    let mut stream = engine.stream()?;
    let (whole, mut new) = (ids_of(&STORY.concat()), ids_of(STORY[0]));
    let known = &whole[new.len()..];
    for &id in known {
        if argmax(engine.push(&mut stream, &new)?) != Some(id) {
            return Err("its story is not the known one".into());
        }
        new = vec![id];
    }
    Ok(format!("{} tokens of its story, by {}", known.len(), engine.isa().name()))
}

/// Writes a file into the cache folder and reads it.
fn cache() -> Checked {
    let folder = folders::writable_cache()?;
    let path = folder.join(format!("self-check-{}", std::process::id()));
    let content = [0xa5; 4096];
    let read = fs::write(&path, content).and_then(|()| fs::read(&path));
    // Nothing is lost if it stays.
    let _ = fs::remove_file(&path);
    match read.map_err(|e| format!("{}: {e}", path.display()))? == content {
        true => Ok(format!("{} can be written", folder.display())),
        false => Err(format!("{} does not keep what is written", folder.display()).into()),
    }
}

/// Asks the server at `place` for its health.
fn health(place: &str) -> Checked {
    let answer = ask(place).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("{place}: no answer within {} s", PATIENCE.as_secs())
        }
        _ => format!("{place}: {e}"),
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.strip_prefix("HTTP/1.1 ").and_then(|head| head.lines().next()) {
        Some("200 OK") => Ok(format!("{place} answers")),
        Some(status) => Err(format!("{place}: {status}: {}", body.trim()).into()),
        None => Err(format!("{place}: no HTTP server").into()),
    }
}

fn ask(place: &str) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let mut to = Err(io::Error::from(io::ErrorKind::NotFound));
    for address in place.to_socket_addrs()? {
        to = to.or_else(|_| TcpStream::connect_timeout(&address, left()?));
    }
    let mut to = to?;
    to.set_write_timeout(Some(PATIENCE))?;
    // In one packet: a server may answer the first, and close.
    let request = format!("GET /health HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
    to.write_all(request.as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 512]);
    while answer.len() < ANSWER_MAX {
        to.set_read_timeout(Some(left()?))?;
        match to.read(&mut part)? {
            0 => break,
            n => answer.extend_from_slice(&part[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
