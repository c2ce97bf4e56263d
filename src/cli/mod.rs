//! The commands. This layer alone prints and decides the exit code.
//!
//! Text goes to stdout, everything else to stderr.

mod bench;
mod doctor;
#[cfg(feature = "tools")]
mod eval;
#[cfg(feature = "tools")]
mod export;
mod failure;
mod folders;
mod info;
#[cfg(feature = "tools")]
mod json;
mod json_object;
mod model_files;
mod options;
mod pack;
mod run;
#[cfg(feature = "tools")]
mod tokenizer;
mod weights;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use argh::{FromArgs, SubCommands};
use failure::Failure;

use crate::sys::signal;

/// Runs Llama-architecture language models on edge boards.
#[derive(FromArgs)]
struct Leap {
    #[argh(subcommand)]
    command: Command,
}

#[derive(FromArgs)]
#[argh(subcommand)]
enum Command {
    #[cfg(feature = "tools")]
    Export(export::Export),
    Run(run::Run),
    Info(info::Info),
    Bench(bench::Bench),
    Pack(pack::Pack),
    Doctor(doctor::Doctor),
    #[cfg(feature = "tools")]
    Tokenizer(tokenizer::Tokenizer),
    #[cfg(feature = "tools")]
    Eval(eval::Eval),
}

impl Command {
    fn execute(self) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "tools")]
            Command::Export(export) => export.execute(),
            Command::Run(run) => run.execute(),
            Command::Info(info) => info.execute(),
            Command::Bench(bench) => bench.execute(),
            Command::Pack(pack) => pack.execute(),
            Command::Doctor(doctor) => doctor.execute(),
            #[cfg(feature = "tools")]
            Command::Tokenizer(tokenizer) => tokenizer.execute(),
            #[cfg(feature = "tools")]
            Command::Eval(eval) => eval.execute(),
        }
    }
}

/// What is said of a mapped file whose bytes are gone.
const UNREADABLE_FILE: &str =
    "leap: a file in use could not be read: its disk failed, or somebody shortened it\n";

/// Parses `args` (program name first), runs the command and returns its exit code:
/// 0 done, 1 failed at run time, 2 bad usage, 3 bad input file, 4 ring lost.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    start_log();
    // If it is refused, such a file ends the program all the same, but without a word.
    let _ = signal::explain_bus_errors(UNREADABLE_FILE, 1);
    let result = parse(args).and_then(|parsed| match parsed {
        Parsed::Help(text) => print(&text),
        Parsed::Command(command) => command.execute(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Log lines go to stderr; `LEAP_LOG=debug` shows more of them.
fn start_log() {
    let level = std::env::var("LEAP_LOG").ok().and_then(|level| level.parse().ok());
    let logger = simple_logger::SimpleLogger::new();
    // A logger that is there already belongs to a program around this library.
    let _ = logger.with_level(level.unwrap_or(log::LevelFilter::Warn)).init();
}

enum Parsed {
    Command(Box<Command>),
    Help(String),
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Parsed, Failure> {
    let mut words = Vec::new();
    for arg in args {
        words.push(
            arg.into_string()
                .map_err(|arg| Failure::Usage(format!("argument {arg:?} is not valid UTF-8")))?,
        );
    }
    let words = command_words(words);
    if matches!(words[0].as_str(), "--version" | "-V") {
        return Ok(Parsed::Help(concat!("leap ", env!("CARGO_PKG_VERSION"), "\n").to_owned()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match Leap::from_args(&["leap"], &words) {
        Ok(leap) => Ok(Parsed::Command(Box::new(leap.command))),
        Err(exit) if exit.status.is_ok() => Ok(Parsed::Help(exit.output)),
        Err(exit) => Err(Failure::Usage(match words.first() {
            Some(word) if !is_command(word) => {
                format!("{word:?} is no command; `leap run` runs a model, `leap --help` lists all")
            }
            _ => {
                let problem = exit.output.trim_end().replace('\n', " ");
                format!("{problem} (leap --help shows commands and options)")
            }
        })),
    }
}

fn is_command(word: &str) -> bool {
    Command::COMMANDS.iter().any(|command| command.name == word)
}

/// The words after the program name, with the applet that `argv[0]` names in front.
///
/// `--option=value` becomes two words, and no words at all mean `run`.
fn command_words(argv: Vec<String>) -> Vec<String> {
    let mut argv = argv.into_iter();
    let program = argv.next().unwrap_or_default();
    let name = Path::new(&program).file_name().and_then(|n| n.to_str()).unwrap_or("leap");
    let mut words: Vec<String> = argv.flat_map(split_assignment).collect();
    if let Some(applet) = applet(name) {
        words.insert(0, applet.to_owned());
    }
    match words.first().map(String::as_str) {
        None => words.push("run".to_owned()),
        Some("inference") => words[0] = "run".to_owned(),
        Some(role @ ("master" | "worker")) => {
            let role = role.to_owned();
            words.splice(..1, ["run".to_owned(), "--role".to_owned(), role]);
        }
        Some(_) => {}
    }
    words
}

fn applet(name: &str) -> Option<&'static str> {
    match name {
        "inference" | "run" => Some("run"),
        "export" => Some("export"),
        "master" => Some("master"),
        "worker" => Some("worker"),
        "tokenizer" => Some("tokenizer"),
        _ => None,
    }
}

fn split_assignment(word: String) -> Vec<String> {
    match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => {
            vec![option.to_owned(), value.to_owned()]
        }
        _ => vec![word],
    }
}

/// Tells the user something on stderr that is not part of the text.
fn note(text: &str) {
    // A closed stderr leaves nobody to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Warns the user on stderr.
fn warn(text: &str) {
    note(&format!("leap: warning: {text}"));
}

/// Writes `text` to stdout; a reader that went away is not a failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| Failure::Runtime(format!("cannot write to stdout: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(argv: &[&str]) -> Vec<String> {
        command_words(argv.iter().map(|&w| w.to_owned()).collect())
    }

    #[test]
    fn program_name_selects_the_applet() {
        assert_eq!(words(&["/usr/bin/leap"]), ["run"]);
        assert_eq!(words(&["./inference", "m.bin"]), ["run", "m.bin"]);
        assert_eq!(words(&["export", "out"]), ["export", "out"]);
        assert_eq!(words(&["leap", "inference"]), ["run"]);
        assert_eq!(words(&["leap", "worker", "m.bin"]), ["run", "--role", "worker", "m.bin"]);
        assert_eq!(words(&["/bin/master"]), ["run", "--role", "master"]);
    }

    #[test]
    fn assignments_are_split_for_long_options_only() {
        assert_eq!(words(&["leap", "run", "--temp=0", "a=b"]), ["run", "--temp", "0", "a=b"]);
    }
}
