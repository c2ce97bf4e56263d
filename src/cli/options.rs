//! Values of options that several commands share.

use std::num::IntErrorKind;
use std::path::Path;

use super::checkpoint::load_failure;
use super::{Failure, counted, note, warn};
use crate::arena::Exhausted;
use crate::channel::PORT_DEFAULT;
use crate::engine::{DeviceChoice, Engine, EngineError, Options};
#[cfg(feature = "tools")]
use crate::export::go_template;
#[cfg(any(feature = "tools", feature = "serve"))]
use crate::format::Suggested;
use crate::format::model::{Ends, Weights};
use crate::format::{ChatTemplate, Date, text_without_mark};
use crate::kernels::Isa;
use crate::model::{KvKind, PlanError, Shape, StartError};
use crate::quant::GROUP_DEFAULT;
use crate::ring::plan::Objective;
use crate::sys::file::read_file;
use crate::sys::{clock, cpu};
use crate::tokenizer::Tokenizer;

/// Parses the format of keys and values: `f16`, `f32` or `int8`.
pub(super) fn kv_type(value: &str) -> Result<KvKind, String> {
    let kind = KvKind::from_name(value);
    kind.ok_or_else(|| format!("{value:?} is none of f16, f32 and int8"))
}

/// Parses where layers are computed.
pub(super) fn device(value: &str) -> Result<DeviceChoice, String> {
    match value {
        "cpu" => Ok(DeviceChoice::Cpu),
        "auto" => Ok(DeviceChoice::Auto),
        "gpu" => Ok(DeviceChoice::Gpu { name: None }),
        // A digit or two are in the name of any device, but not meant as a part of it.
        name if name.len() < 3 && name.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("wanted cpu, gpu, auto or part of a device's name (leap doctor lists them)"
                .to_owned())
        }
        name => Ok(DeviceChoice::Gpu { name: Some(name.to_owned()) }),
    }
}

/// Parses a number of bytes: `500M`, `2G` or `2GiB`, in steps of 1024.
pub(super) fn bytes(value: &str) -> Result<u64, String> {
    let text = value.strip_suffix("iB").unwrap_or(value);
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        Some(b'T' | b't') => (&text[..text.len() - 1], 40),
        _ => (value, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        "wanted a whole number of bytes, or with K, M, G or T, as in 500M or 2G".to_owned()
    })
}

/// Parses a number of bytes that has room for something.
pub(super) fn room(value: &str) -> Result<u64, String> {
    match bytes(value)? {
        0 => Err("nothing has room in 0 bytes; write it as 500M or 2G".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Reads a number of tokens of thoughts.
pub(super) fn think_tokens(text: &str) -> Result<usize, String> {
    let n = text.parse().ok().filter(|n| *n > 0);
    n.ok_or_else(|| {
        "wanted a number of tokens; `--think off` of `leap run` turns thoughts off".to_owned()
    })
}

/// Parses a number that is at least 1.
pub(super) fn count(value: &str) -> Result<usize, String> {
    match value.parse::<usize>() {
        Ok(0) => Err("wanted at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => {
            Err("the number is too large".to_owned())
        }
        Err(_) => Err("wanted a whole number".to_owned()),
    }
}

/// Parses the origin of web pages, as browsers send it: `https://chat.example.org`, or `*` for all.
#[cfg(feature = "serve")]
pub(super) fn origin(value: &str) -> Result<String, String> {
    let host = value.split_once("://").filter(|(scheme, _)| !scheme.is_empty());
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', '?', '#', ' ', ',']);
    // Pages from files say `null`.
    match ["*", "null"].contains(&value) || host.is_some_and(|(_, host)| is_host(host)) {
        true => Ok(value.to_owned()),
        false => Err("wanted scheme://host or scheme://host:port, without a path, or *".to_owned()),
    }
}

/// `auto`, or the TCP port of boards that call each other.
pub(super) fn port(value: &str) -> Result<u16, String> {
    match (value, value.parse()) {
        ("auto", _) => Ok(PORT_DEFAULT),
        (_, Ok(port)) if port > 0 => Ok(port),
        _ => Err(format!("{value:?} is neither auto nor a port")),
    }
}

/// A chat template that the user chose.
pub(super) enum ChatChoice {
    Named(ChatTemplate),
    /// Text of a file in Jinja's language.
    Text(String),
}

impl ChatChoice {
    /// The chosen template, which `tokenizer` gets if it is a file's; `None` if none was chosen.
    pub(super) fn apply(
        choice: Option<&ChatChoice>,
        tokenizer: &mut Tokenizer,
    ) -> Result<Option<ChatTemplate>, Failure> {
        match choice {
            None => Ok(None),
            Some(ChatChoice::Named(template)) => Ok(Some(*template)),
            Some(ChatChoice::Text(text)) => {
                let set = tokenizer.set_template(text.clone());
                set.map_err(|e| Failure::Usage(format!("--chat-template: {e}")))?;
                Ok(Some(ChatTemplate::Own))
            }
        }
    }
}

/// The chat template of this name, or in the file of this name.
pub(super) fn chat_template(name: &str) -> Result<ChatChoice, String> {
    if let Some(template) = ChatTemplate::from_name(name) {
        return Ok(ChatChoice::Named(template));
    }
    let path = Path::new(name);
    if path.is_file() {
        let bytes = read_file(path).map_err(|e| format!("{name}: {e}"))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8"))?;
        return chat_text(text_without_mark(&text)).map_err(|e| format!("{name}: {e}"));
    }
    let known: Vec<&str> = ChatTemplate::ALL.iter().map(|t| t.name()).collect();
    Err(format!("{name:?} is neither a file nor one of {}", known.join(", ")))
}

/// The chat template of this text, in Jinja's language or in Go's as Ollama's are.
#[cfg(feature = "tools")]
fn chat_text(text: &str) -> Result<ChatChoice, String> {
    if !go_template::is_go_template(text) {
        return Ok(ChatChoice::Text(text.to_owned()));
    }
    let jinja = go_template::jinja(text)?;
    jinja.map(ChatChoice::Text).ok_or_else(|| "writes the user's text alone".to_owned())
}

/// Says which settings that come with a model cannot be used, and why.
#[cfg(feature = "tools")]
pub(super) fn tell_left_out(suggested: &Suggested, is_quiet: bool) {
    for what in suggested.left_out.iter().filter(|_| !is_quiet) {
        note(&format!("leap: the model's settings: {what}"));
    }
}

/// The template that comes with a model of Ollama, unless there is none or it cannot run: a note says why then.
#[cfg(feature = "tools")]
pub(super) fn template_of(suggested: &Suggested, is_quiet: bool) -> Option<ChatChoice> {
    match go_template::jinja(suggested.template.as_ref()?) {
        Ok(jinja) => jinja.map(ChatChoice::Text),
        Err(why) => {
            if !is_quiet {
                note(&format!(
                    "leap: the template in the model's file is used, not Ollama's: {why}"
                ));
            }
            None
        }
    }
}

/// Without checkpoints no model comes with a template.
#[cfg(all(feature = "serve", not(feature = "tools")))]
pub(super) fn template_of(_: &Suggested, _: bool) -> Option<ChatChoice> {
    None
}

/// The chat template of this text, in Jinja's language.
#[cfg(not(feature = "tools"))]
fn chat_text(text: &str) -> Result<ChatChoice, String> {
    Ok(ChatChoice::Text(text.to_owned()))
}

/// Parses the objective of a plan.
pub(super) fn objective(value: &str) -> Result<Objective, String> {
    match value {
        "latency" => Ok(Objective::Latency),
        "throughput" => Ok(Objective::Throughput),
        "energy" => Ok(Objective::Energy),
        "memory" => Ok(Objective::Memory),
        _ => Err(format!("{value:?} is none of latency, throughput, energy and memory")),
    }
}

/// The date that dated templates print.
pub(super) fn today() -> Result<Date, Failure> {
    let today = clock::today().and_then(|(year, month, day)| Date::new(year, month, day));
    today.ok_or_else(|| Failure::Runtime("the system's clock shows no date".to_owned()))
}

/// The instruction set that `LEAP_ISA` forces.
pub(super) fn isa_from_environment() -> Result<Option<Isa>, Failure> {
    let Some(name) = std::env::var_os("LEAP_ISA") else { return Ok(None) };
    match name.to_str().and_then(Isa::from_name) {
        Some(isa) => Ok(Some(isa)),
        None => {
            let known: Vec<&str> = Isa::ALL.iter().map(|isa| isa.name()).collect();
            let known = known.join(", ");
            Err(Failure::Usage(format!("LEAP_ISA is {name:?}, wanted one of {known}")))
        }
    }
}

/// Limits the wanted threads to the cores: a thread without a core delays the rest.
pub(super) fn useful_threads(wanted: usize) -> usize {
    let cores = cpu::cores().len();
    if wanted > cores {
        let cores = counted(cores, "core");
        warn(&format!("--threads {wanted}: there are {cores}, one thread for each is used"));
    }
    wanted.min(cores)
}

/// Engine options for the threads and cores that a command names, and for `LEAP_ISA`.
pub(super) fn of_cores(threads: Option<usize>, cores: Option<&Cores>) -> Result<Options, Failure> {
    Ok(Options {
        threads: threads.map(useful_threads),
        cores: cores.map(|cores| cores.0.clone()),
        isa: isa_from_environment()?,
        ..Options::default()
    })
}

/// Cores named on the command line.
pub(super) struct Cores(pub Vec<usize>);

/// Parses cores that this process may use: `4-7`, `0,2` or both.
pub(super) fn cores(value: &str) -> Result<Cores, String> {
    let cores = core_numbers(value)?;
    let mut usable: Vec<usize> = cpu::cores().iter().map(|core| core.cpu).collect();
    usable.sort_unstable();
    match cores.iter().find(|cpu| !usable.contains(cpu)) {
        None => Ok(Cores(cores)),
        Some(cpu) => {
            let usable: Vec<String> = usable.iter().map(usize::to_string).collect();
            Err(format!("there is no core {cpu} here; there are {}", usable.join(", ")))
        }
    }
}

fn core_numbers(value: &str) -> Result<Vec<usize>, String> {
    let mut cores = Vec::new();
    for part in value.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&cpu| cpu < 4096);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cores.extend(first..=last),
            _ => return Err(format!("{part:?} is no core or range of cores")),
        }
    }
    Ok(cores)
}

/// An engine that has started. Tells which device computes how many layers, if one was asked for.
pub(super) fn started(
    engine: Result<Engine, EngineError>,
    asked: &DeviceChoice,
    is_quiet: bool,
) -> Result<Engine, Failure> {
    let engine = engine.map_err(engine_failure)?;
    match engine.device() {
        _ if is_quiet => {}
        Some((name, layers)) => {
            note(&format!("leap: {layers} of {} layers on {name}", engine.header().n_layers));
        }
        None if *asked == DeviceChoice::Auto => {
            note("leap: all layers on the CPU; `leap doctor` lists the devices");
        }
        None => {}
    }
    Ok(engine)
}

/// The failure, with its exit code, of an engine that did not start.
pub(super) fn engine_failure(error: EngineError) -> Failure {
    match &error {
        EngineError::Load(e) => load_failure(e),
        EngineError::Device(why) => Failure::Runtime(format!("--device: {why}")),
        EngineError::Isa(_) | EngineError::Embeddings => Failure::Usage(error.to_string()),
        EngineError::Start(StartError::Plan(e)) => plan_failure(e),
        EngineError::Start(StartError::Memory(Exhausted { bytes, .. })) => {
            Failure::Runtime(format!(
                "cannot allocate {:.1} MB for the KV cache and the buffers: lower --ctx, --batch or \
                 --streams",
                *bytes as f64 / 1e6
            ))
        }
        EngineError::Start(e @ StartError::Packed { .. }) => Failure::input(e),
        _ => Failure::runtime(&error),
    }
}

/// The failure of sizes that do not fit, with the option that asks for them.
pub(super) fn plan_failure(error: &PlanError) -> Failure {
    let option = match error {
        PlanError::ContextLength { .. } => "--ctx: ",
        PlanError::Streams(_) => "--streams: ",
        PlanError::KvPages { .. } => "--kv-memory: ",
        _ => "",
    };
    Failure::Usage(format!("{option}{error}"))
}

/// The shape of a well-known model.
pub(super) fn shape(name: &str) -> Result<Shape, String> {
    Shape::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Shape::ALL.iter().map(|shape| shape.name).collect();
        format!("{name:?} is no shape; there are {}", known.join(", "))
    })
}

/// Parses the bits of a weight of the embedding and the classifier.
pub(super) fn embedding_bits(value: &str) -> Result<Ends, String> {
    match value {
        "8" => Ok(Ends::Int8),
        "6" => Ok(Ends::SixBits),
        _ => Err(format!("{value:?} is neither 8 nor 6")),
    }
}

/// Weights of a model of this version whose shape alone is known.
pub(super) fn weights_of_shape(version: u32, ends: Option<Ends>) -> Result<Weights, Failure> {
    match weights(version, GROUP_DEFAULT, ends)? {
        Weights::Ggml => Err(Failure::Usage(
            "--version 5 is a GGUF file's own weights; with --shape wanted 1 to 4".to_owned(),
        )),
        weights => Ok(weights),
    }
}

/// Weights of a model of this version, with `ends` if asked for.
pub(super) fn weights(version: u32, group: usize, ends: Option<Ends>) -> Result<Weights, Failure> {
    if ends.is_some() && version != 4 {
        return Err(Failure::Usage("--embedding-bits is for --version 4".to_owned()));
    }
    match version {
        1 => Ok(Weights::F32),
        2 => Ok(Weights::Q8 { group }),
        3 => Ok(Weights::Q4 { group, int8_embedding: true }),
        4 => Ok(Weights::B2 { group, ends: ends.unwrap_or(Ends::Int8) }),
        5 => Ok(Weights::Ggml),
        other => Err(Failure::Usage(format!(
            "--version is {other}, wanted 1 (f32), 2 (int8), 3 (4 bits), 4 (4.5 bits) or 5 (a GGUF \
             file's own)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_multiples_of_1024() {
        for (text, wanted) in [
            ("0", 0),
            ("77", 77),
            ("3k", 3 << 10),
            ("500M", 500 << 20),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(wanted));
        }
        for text in ["", "G", "-1", "1.5G", "1P", "2 G", "9iB", "99999999999G", "é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_are_numbers_above_0() {
        assert_eq!((port("auto"), port("7000")), (Ok(9998), Ok(7000)));
        assert!(port("0").is_err() && port("70000").is_err() && port("x").is_err());
    }

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(core_numbers("4-6,0"), Ok(vec![4, 5, 6, 0]));
        for bad in ["", "x", "3-1", "1-", "99999"] {
            assert!(core_numbers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cores_are_those_of_this_machine() {
        let core = cpu::cores()[0].cpu;
        assert_eq!(cores(&core.to_string()).map(|c| c.0), Ok(vec![core]));
        let problem = cores("4095").err().unwrap();
        assert!(problem.starts_with("there is no core 4095 here; there are "), "{problem}");
    }
}
